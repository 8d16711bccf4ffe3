// The catalog: names of tables and namespaces, answered by the driver's Python, and the tables behind them.
//
// A table knows its path, schema and version. Reads and writes end in Spark's own classes for Python data sources,
// with the columns that Spark asks for; the optimizer rule of LancePruning adds filters, limits and statistics.
// Nothing of this is sent to executors.
//
// Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance.sql;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.SupportsPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

public class LanceCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  private String name;
  private Map options;

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = options.asCaseSensitiveMap();
    ask("open_catalog", null);
  }

  public String name() {
    return name;
  }

  public String[] defaultNamespace() {
    return new String[0];
  }

  Map question(String verb) {
    Map question = Bridge.question(verb);
    question.put("catalog", name);
    question.put("options", options);
    return question;
  }

  Map question(String verb, String[] parts) {
    Map question = question(verb);
    question.put("name", Bridge.list(parts));
    question.put("options", Bridge.optionsFor(parts, options));
    return question;
  }

  private Map question(String verb, Identifier identifier) {
    return question(verb, parts(identifier));
  }

  private Object ask(String verb, String[] parts) {
    return Bridge.ask(parts == null ? question(verb) : question(verb, parts), null);
  }

  private static String[] parts(Identifier identifier) {
    String[] namespace = identifier.namespace();
    String[] parts = new String[namespace.length + 1];
    System.arraycopy(namespace, 0, parts, 0, namespace.length);
    parts[namespace.length] = identifier.name();
    return parts;
  }

  // Namespaces

  public String[][] listNamespaces() {
    return listNamespaces(new String[0]);
  }

  public String[][] listNamespaces(String[] namespace) {
    List answer = (List) ask("list_namespaces", namespace);
    String[][] found = new String[answer.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = Bridge.texts(answer.get(i));
    }
    return found;
  }

  public Map loadNamespaceMetadata(String[] namespace) {
    return namespace.length == 0 ? new HashMap() : (Map) ask("load_namespace", namespace);
  }

  public void createNamespace(String[] namespace, Map metadata) {
    Map question = question("create_namespace", namespace);
    question.put("properties", metadata);
    Bridge.ask(question, null);
  }

  public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
    Map question = question("alter_namespace", namespace);
    Map set = new HashMap();
    question.put("set", set);
    List removed = new ArrayList();
    question.put("removed", removed);
    for (int i = 0; i < changes.length; i++) {
      if (changes[i] instanceof NamespaceChange.SetProperty) {
        NamespaceChange.SetProperty change = (NamespaceChange.SetProperty) changes[i];
        set.put(change.property(), change.value());
      } else {
        removed.add(((NamespaceChange.RemoveProperty) changes[i]).property());
      }
    }
    Bridge.ask(question, null);
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) {
    Map question = question("drop_namespace", namespace);
    question.put("cascade", Boolean.valueOf(cascade));
    Bridge.ask(question, null);
    return true;
  }

  // Tables

  public Identifier[] listTables(String[] namespace) {
    List answer = (List) ask("list_tables", namespace);
    Identifier[] found = new Identifier[answer.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, (String) answer.get(i));
    }
    return found;
  }

  public Table loadTable(Identifier identifier) {
    if (identifier instanceof Bridge.Loads) {
      return ((Bridge.Loads) identifier).load();
    }
    return found(identifier, question("load_table", identifier));
  }

  public Table loadTable(Identifier identifier, String version) {
    Map question = question("load_table", identifier);
    question.put("version", version);
    return found(identifier, question);
  }

  public Table loadTable(Identifier identifier, long micros) {
    Map question = question("load_table", identifier);
    question.put("asof", new Long(micros));
    return found(identifier, question);
  }

  // Where the catalog is called like the format, a name of two parts that the analyzer does not find here is next
  // taken for a file of the format, which ends in an error that says nothing of a table. So the analyzer hears at once
  // that there is none; whoever else asks, as writers do that make what is missing, gets the exception to catch.
  private Table found(Identifier identifier, Map question) {
    try {
      return table(question);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      boolean format = name.equalsIgnoreCase("lance") && identifier.namespace().length == 0;
      if (format && problem instanceof NoSuchTableException && Bridge.isCalledBy("ResolveRelations")) {
        Platform.throwException(Bridge.missing((NoSuchTableException) problem, name, identifier.name()));
      }
      Platform.throwException(problem);
      return null;
    }
  }

  private Table table(Map question) {
    return new LanceTable(this, question.get("name"), (Map) Bridge.ask(question, null));
  }

  public Table createTable(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return table(definition("create_table", identifier, schema, partitions, properties));
  }

  private Map definition(
      String verb, Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    Map question = question(verb, identifier);
    question.put("schema", schema.json());
    question.put("properties", properties);
    // These name a format where the user did not.
    boolean names = Bridge.isCalledBy("DataFrameWriter") || Bridge.isCalledBy("DataStreamWriter");
    question.put("default_format", Boolean.valueOf(names || Bridge.isCalledBy("classic.Catalog")));
    List transforms = new ArrayList();
    question.put("partitions", transforms);
    for (int i = 0; i < partitions.length; i++) {
      transforms.add(partitions[i].toString());
    }
    return question;
  }

  public StagedTable stageCreate(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("create", identifier, schema, partitions, properties);
  }

  public StagedTable stageReplace(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("replace", identifier, schema, partitions, properties);
  }

  public StagedTable stageCreateOrReplace(
      Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("create_or_replace", identifier, schema, partitions, properties);
  }

  private StagedTable staged(
      String mode, Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    Map question = definition("stage_table", identifier, schema, partitions, properties);
    question.put("mode", mode);
    return new Staged(this, question, (Map) Bridge.ask(question, null));
  }

  public boolean dropTable(Identifier identifier) {
    return ((Boolean) Bridge.ask(question("drop_table", identifier), null)).booleanValue();
  }

  public boolean purgeTable(Identifier identifier) {
    return dropTable(identifier);
  }

  public void renameTable(Identifier from, Identifier to) {
    Map question = question("rename_table", from);
    question.put("to", Bridge.list(parts(to)));
    Bridge.ask(question, null);
  }

  public Table alterTable(Identifier identifier, TableChange[] changes) {
    Map question = question("alter_table", identifier);
    List list = new ArrayList();
    question.put("changes", list);
    for (int i = 0; i < changes.length; i++) {
      Map told = new HashMap();
      describe(changes[i], told);
      list.add(told);
    }
    return table(question);
  }

  private static void describe(TableChange change, Map told) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      told.put("kind", "set_property");
      told.put("property", set.property());
      told.put("value", set.value());
    } else if (change instanceof TableChange.RemoveProperty) {
      told.put("kind", "remove_property");
      told.put("property", ((TableChange.RemoveProperty) change).property());
    } else if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      column(told, "add_column", add.fieldNames());
      told.put("type", add.dataType().json());
      told.put("nullable", Boolean.valueOf(add.isNullable()));
      told.put("comment", add.comment());
      told.put("position", add.position() == null ? null : add.position().toString());
      told.put("default", add.defaultValue() == null ? null : add.defaultValue().toString());
    } else if (change instanceof TableChange.RenameColumn) {
      TableChange.RenameColumn rename = (TableChange.RenameColumn) change;
      column(told, "rename_column", rename.fieldNames());
      told.put("to", rename.newName());
    } else if (change instanceof TableChange.UpdateColumnType) {
      TableChange.UpdateColumnType update = (TableChange.UpdateColumnType) change;
      column(told, "column_type", update.fieldNames());
      told.put("type", update.newDataType().json());
    } else if (change instanceof TableChange.UpdateColumnNullability) {
      TableChange.UpdateColumnNullability update = (TableChange.UpdateColumnNullability) change;
      column(told, "column_nullability", update.fieldNames());
      told.put("nullable", Boolean.valueOf(update.nullable()));
    } else if (change instanceof TableChange.UpdateColumnComment) {
      TableChange.UpdateColumnComment update = (TableChange.UpdateColumnComment) change;
      column(told, "column_comment", update.fieldNames());
      told.put("comment", update.newComment());
    } else if (change instanceof TableChange.DeleteColumn) {
      TableChange.DeleteColumn delete = (TableChange.DeleteColumn) change;
      column(told, "drop_column", delete.fieldNames());
      told.put("if_exists", delete.ifExists());
    } else {
      told.put("kind", change.getClass().getSimpleName());
    }
  }

  private static void column(Map told, String kind, String[] path) {
    told.put("kind", kind);
    told.put("column", Bridge.list(path));
  }

  // Procedures: a unit of their own.

  public Identifier[] listProcedures(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals("system")) {
      return new Identifier[0];
    }
    List answer = (List) ask("list_procedures", null);
    Identifier[] found = new Identifier[answer.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, (String) answer.get(i));
    }
    return found;
  }

  public UnboundProcedure loadProcedure(Identifier identifier) {
    return LanceProcedures.load(question("load_procedure", identifier));
  }

  // A source of Spark's for Python data sources of the name `lance`.
  static PythonDataSourceV2 source() {
    return Bridge.source();
  }

  /** A table, at the version that was the newest when its name was resolved, or the one asked for. */
  public static class LanceTable
      implements Table, SupportsRead, SupportsWrite, SupportsMetadataColumns, SupportsDeleteV2, SupportsPartitionManagement {
    private static final TableCapability[] ABILITIES = {
      TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE,
      TableCapability.OVERWRITE_BY_FILTER, TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE
    };
    // Makes builders of scans that the driver plans; null where this unit does not fit.
    private static final Method PLANNED = planned();
    final LanceCatalog catalog;
    private final Object name;
    private final String shown;
    private final StructType schema;
    private final Map properties;
    // Options of every read and write (the path, those of the store), and of reads only (what pins the version).
    private final Map always;
    private final Map pinned;
    private final StructType hidden;
    private final boolean writable;

    // By it Python tells this table from one that takes its place.
    private final String token = java.util.UUID.randomUUID().toString();

    private static Method planned() {
      try {
        Method[] methods = Class.forName("spark_lance.sql.LanceScan").getMethods();
        for (int i = 0; i < methods.length; i++) {
          if (methods[i].getName().equals("builder")) {
            return methods[i];
          }
        }
      } catch (ClassNotFoundException problem) {
        // A warning has told of it.
      }
      return null;
    }

    LanceTable(LanceCatalog catalog, Object name, Map answer) {
      this.catalog = catalog;
      this.name = name;
      this.shown = (String) answer.get("shown");
      this.schema = (StructType) DataType.fromJson((String) answer.get("schema"));
      this.hidden = (StructType) DataType.fromJson((String) answer.get("hidden"));
      this.properties = (Map) answer.get("properties");
      this.always = (Map) answer.get("always");
      this.pinned = (Map) answer.get("pinned");
      this.writable = ((Boolean) answer.get("writable")).booleanValue();
    }

    public String name() {
      return shown;
    }

    public String id() {
      return (String) always.get("path");
    }

    public String version() {
      return (String) pinned.get("version");
    }

    public StructType schema() {
      return schema;
    }

    public Map properties() {
      return properties;
    }

    // For statements that change rows: the path and the options of the store.
    public Map options() {
      return always;
    }

    public boolean writable() {
      return writable;
    }

    public Transform[] partitioning() {
      return new Transform[0];
    }

    public Set capabilities() {
      Set found = new HashSet();
      for (int i = 0; i < ABILITIES.length; i++) {
        if (writable || ABILITIES[i] == TableCapability.BATCH_READ || ABILITIES[i] == TableCapability.MICRO_BATCH_READ) {
          found.add(ABILITIES[i]);
        }
      }
      // Spark adds the columns of MERGE WITH SCHEMA EVOLUTION by alterTable, where it knows of that.
      TableCapability[] known = TableCapability.values();
      for (int i = 0; writable && i < known.length; i++) {
        if (known[i].name().equals("AUTOMATIC_SCHEMA_EVOLUTION")) {
          found.add(known[i]);
        }
      }
      return found;
    }

    public MetadataColumn[] metadataColumns() {
      MetadataColumn[] found = new MetadataColumn[hidden.length()];
      for (int i = 0; i < found.length; i++) {
        found[i] = new Hidden(hidden.fields()[i]);
      }
      return found;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      check(options, "read");
      ScanBuilder own = new Reading(this, options);
      if (PLANNED == null) {
        return own;
      }
      CaseInsensitiveStringMap all = options(options.asCaseSensitiveMap(), true);
      boolean named = options.containsKey("version") || options.containsKey("asof") || options.containsKey("tag");
      Object[] parts = {Boolean.TRUE, shown, all, new Boolean(!named), schema, token, hidden, own};
      try {
        return (ScanBuilder) PLANNED.invoke(null, parts);
      } catch (IllegalAccessException problem) {
        throw new IllegalStateException(problem);
      } catch (java.lang.reflect.InvocationTargetException problem) {
        throw new IllegalStateException(problem.getCause());
      }
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      check(info.options(), "write");
      return new Writing(this, info, false);
    }

    // Refuses options of a statement that mean nothing, or lead to another table.
    final void check(CaseInsensitiveStringMap options, String use) {
      if (options.isEmpty()) {
        return;
      }
      Map question = catalog.question("check_options");
      question.put("name", name);
      question.put("path", always.get("path"));
      question.put("given", options.asCaseSensitiveMap());
      question.put("use", use);
      Bridge.ask(question, null);
    }

    CaseInsensitiveStringMap options(Map asked, boolean pinning) {
      Map all = new HashMap(always);
      boolean named = asked.containsKey("version") || asked.containsKey("asof") || asked.containsKey("tag");
      if (pinning && !named) {
        all.putAll(pinned);
      }
      all.putAll(asked);
      return new CaseInsensitiveStringMap(all);
    }

    public boolean truncateTable() {
      Map question = catalog.question("truncate_table");
      question.put("name", name);
      return ((Boolean) Bridge.ask(question, null)).booleanValue();
    }

    // Statements about partitions end in a sentence of ours.

    public StructType partitionSchema() {
      throw new UnsupportedOperationException(
          shown + " has no partitions, as Lance tables have none: conditions find their rows by indices (CALL "
              + catalog.name + ".system.create_index), and rows are clustered by CALL " + catalog.name
              + ".system.sort or zorder");
    }

    public void createPartition(InternalRow partition, Map properties) {
      partitionSchema();
    }

    public boolean dropPartition(InternalRow partition) {
      return partitionSchema() == null;
    }

    public void replacePartitionMetadata(InternalRow partition, Map properties) {
      partitionSchema();
    }

    public Map loadPartitionMetadata(InternalRow partition) {
      partitionSchema();
      return null;
    }

    public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow partition) {
      partitionSchema();
      return null;
    }

    public boolean canDeleteWhere(Predicate[] predicates) {
      return writable;
    }

    public void deleteWhere(Predicate[] predicates) {
      Map question = catalog.question("delete_where");
      question.put("name", name);
      List list = new ArrayList();
      question.put("predicates", list);
      for (int i = 0; i < predicates.length; i++) {
        list.add(predicates[i].toString());
      }
      Bridge.ask(question, null);
    }
  }

  public static final class Hidden implements MetadataColumn {
    private final StructField field;

    Hidden(StructField field) {
      this.field = field;
    }

    public String name() {
      return field.name();
    }

    public DataType dataType() {
      return field.dataType();
    }

    public boolean isNullable() {
      return field.nullable();
    }

    public String comment() {
      return field.getComment().isEmpty() ? null : (String) field.getComment().get();
    }
  }

  /** Builds Spark's own scan of the columns that are needed. */
  public static final class Reading implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final LanceTable table;
    private final CaseInsensitiveStringMap options;
    private StructType wanted;

    Reading(LanceTable table, CaseInsensitiveStringMap options) {
      this.table = table;
      this.options = options;
      this.wanted = table.schema;
    }

    public void pruneColumns(StructType required) {
      wanted = Bridge.readable(required, table.schema);
    }

    public Scan build() {
      Map asked = new HashMap(options.asCaseSensitiveMap());
      for (int i = 0; i < table.hidden.length(); i++) {
        StructField column = table.hidden.fields()[i];
        if (Arrays.asList(wanted.fieldNames()).contains(column.name())) {
          asked.put((String) column.metadata().getString("lance.option"), "true");
        }
      }
      return scan(table.options(asked, true));
    }

    private Scan scan(CaseInsensitiveStringMap all) {
      return new PythonTable(source(), "lance", wanted).newScanBuilder(all).build();
    }
  }

  /** Builds Spark's own write to the table's path. */
  public static final class Writing implements WriteBuilder, SupportsTruncate, SupportsOverwriteV2 {
    private final LanceTable table;
    private final LogicalWriteInfo info;
    private final Map more = new HashMap();
    private boolean truncates;

    Writing(LanceTable table, LogicalWriteInfo info, boolean truncates) {
      this.table = table;
      this.info = info;
      this.truncates = truncates;
    }

    Writing with(String option, String value) {
      more.put(option, value);
      return this;
    }

    public WriteBuilder truncate() {
      truncates = true;
      return this;
    }

    public boolean canOverwrite(Predicate[] predicates) {
      return true;
    }

    public WriteBuilder overwrite(Predicate[] predicates) {
      truncates = true;
      StringBuilder condition = new StringBuilder();
      for (int i = 0; i < predicates.length; i++) {
        if (!predicates[i].name().equals("ALWAYS_TRUE")) {
          condition.append(condition.length() == 0 ? "(" : " AND (").append(predicates[i]).append(")");
        }
      }
      if (condition.length() > 0) {
        more.put("replaceWhere", condition.toString());
      }
      return this;
    }

    public Write build() {
      Map all = new HashMap(info.options().asCaseSensitiveMap());
      all.putAll(more);
      CaseInsensitiveStringMap options = table.options(all, false);
      PythonDataSourceV2 source = source();
      LogicalWriteInfo told = new Info(info, options);
      WriteBuilder own = new PythonTable(source, "lance", info.schema()).newWriteBuilder(told);
      WriteBuilder builder = Bridge.writing(true, table.shown, source, told, own);
      return (truncates ? ((SupportsTruncate) builder).truncate() : builder).build();
    }
  }

  public static final class Info implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    Info(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
      this.info = info;
      this.options = options;
    }

    public CaseInsensitiveStringMap options() {
      return options;
    }

    public String queryId() {
      return info.queryId();
    }

    public StructType schema() {
      return info.schema();
    }
  }

  /** A table that appears, or changes, with the rows that a statement writes into it. */
  public static final class Staged extends LanceTable implements StagedTable {
    private final Map question;
    private final Map staged;
    private boolean written = false;

    Staged(LanceCatalog catalog, Map question, Map answer) {
      super(catalog, question.get("name"), answer);
      this.question = question;
      this.staged = (Map) answer.get("staged");
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      check(info.options(), "write");
      written = true;
      Writing writing = new Writing(this, info, ((Boolean) staged.get("truncates")).booleanValue());
      for (Iterator i = ((Map) staged.get("options")).entrySet().iterator(); i.hasNext(); ) {
        Map.Entry option = (Map.Entry) i.next();
        writing.with((String) option.getKey(), (String) option.getValue());
      }
      return writing;
    }

    public void commitStagedChanges() {
      finish("commit_staged");
    }

    public void abortStagedChanges() {
      finish("abort_staged");
    }

    private void finish(String verb) {
      Map told = new HashMap(question);
      told.put("verb", verb);
      told.put("written", Boolean.valueOf(written));
      told.put("staged", staged);
      Bridge.ask(told, null);
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }
  }
}
