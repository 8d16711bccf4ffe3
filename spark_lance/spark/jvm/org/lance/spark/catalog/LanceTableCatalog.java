// The catalog: names of tables and namespaces, answered by the driver's Python. The tables behind them are LanceTable.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin$;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.OptionalUnit;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;
import org.lance.spark.transport.LanceFunctions;

public class LanceTableCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  // What stands before a name that need not be there, and that Spark looks up nevertheless.
  private static final Pattern UNCACHED =
      Pattern.compile("UNCACHE\\s+TABLE\\s+IF\\s+EXISTS\\s+$", Pattern.CASE_INSENSITIVE);
  private String name;
  // As Spark found them when it first used the catalog.
  private Map options;
  // The version of spark_lance.
  private String release;

  // The name that saveAsTable looked up last. Spark Connect creates the table later, when no writer is on the stack.
  private static final ThreadLocal<Identifier> SAVING = new ThreadLocal<>();

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = options.asCaseSensitiveMap();
    this.release = (String) ask(Protocol.OPEN_CATALOG, null);
  }

  public String name() {
    return name;
  }

  public Set capabilities() {
    return Collections.singleton(TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
  }

  public String[] defaultNamespace() {
    return new String[0];
  }

  // What the session's settings say now: a root may be named after the first use.
  private Map options() {
    String prefix = "spark.sql.catalog." + name;
    Map settings = settings((SQLConf) SQLConf$.MODULE$.get());
    if (!settings.containsKey(prefix)) {
      // Spark resolves a view under the settings that the view has captured, and these have no catalogs.
      settings = settings(SparkSession.active().sessionState().conf());
    }
    if (!settings.containsKey(prefix)) {
      return options; // another session's
    }
    Map found = new HashMap();
    for (Iterator i = settings.entrySet().iterator(); i.hasNext(); ) {
      Map.Entry setting = (Map.Entry) i.next();
      String key = (String) setting.getKey();
      if (key.startsWith(prefix + ".")) {
        found.put(key.substring(prefix.length() + 1), setting.getValue());
      }
    }
    return found;
  }

  private static Map settings(SQLConf conf) {
    return scala.jdk.javaapi.CollectionConverters.asJava(conf.getAllConfs());
  }

  public Map question(String verb) {
    Map question = Bridge.question(verb);
    question.put(Protocol.CATALOG, name);
    question.put(Protocol.OPTIONS, options());
    return question;
  }

  public Map question(String verb, String[] parts) {
    Map question = question(verb);
    question.put(Protocol.NAME, Bridge.list(parts));
    question.put(Protocol.OPTIONS, Bridge.optionsFor(name, parts, options()));
    return question;
  }

  Map question(String verb, Identifier identifier) {
    return question(verb, parts(identifier));
  }

  private Object ask(String verb, String[] parts) {
    return Bridge.ask(parts == null ? question(verb) : question(verb, parts), null);
  }

  static String[] parts(Identifier identifier) {
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
    List answer = (List) ask(Protocol.LIST_NAMESPACES, namespace);
    String[][] found = new String[answer.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = Bridge.texts(answer.get(i));
    }
    return found;
  }

  public Map loadNamespaceMetadata(String[] namespace) {
    return namespace.length == 0 ? new HashMap() : (Map) ask(Protocol.LOAD_NAMESPACE, namespace);
  }

  public void createNamespace(String[] namespace, Map metadata) {
    Map question = question(Protocol.CREATE_NAMESPACE, namespace);
    question.put(Protocol.PROPERTIES, metadata);
    Bridge.ask(question, null);
  }

  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    Map question = question(Protocol.ALTER_NAMESPACE, namespace);
    Map set = new HashMap();
    question.put(Protocol.SET, set);
    List removed = new ArrayList();
    question.put(Protocol.REMOVED, removed);
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
    Map question = question(Protocol.DROP_NAMESPACE, namespace);
    question.put(Protocol.CASCADE, Boolean.valueOf(cascade));
    Bridge.ask(question, null);
    return true;
  }

  // Tables

  public Identifier[] listTables(String[] namespace) {
    List answer = (List) ask(Protocol.LIST_TABLES, namespace);
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
    return (Table) load(identifier, question(Protocol.LOAD_TABLE, identifier));
  }

  public Table loadTable(Identifier identifier, String version) {
    Map question = question(Protocol.LOAD_TABLE, identifier);
    question.put(Protocol.VERSION, version);
    return (Table) load(identifier, question);
  }

  public Table loadTable(Identifier identifier, long micros) {
    Map question = question(Protocol.LOAD_TABLE, identifier);
    question.put(Protocol.ASOF, Long.valueOf(micros));
    return (Table) load(identifier, question);
  }

  // Where the catalog is called like the format, a name of two parts that the analyzer does not find here is next
  // taken for a file of the format, which ends in an error that says nothing of a table. So the analyzer hears at once
  // that there is none; whoever else asks, as writers do that make what is missing, gets the exception to catch. Of a
  // branch that is missing the analyzer would not tell why, so it hears this, too, at once.
  Object load(Identifier identifier, Map question) {
    if (Callers.isSavingAsTable()) {
      SAVING.set(identifier);
    }
    try {
      return relation(question);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      boolean atOnce = problem instanceof Bridge.NoSuchBranchException
          || (name.equalsIgnoreCase("lance") && identifier.namespace().length == 0);
      if (atOnce && problem instanceof NoSuchTableException && Callers.isResolvingRelations()) {
        if (UNCACHED.matcher(before()).find()) {
          return new Nothing(identifier.name());
        }
        Platform.throwException(Bridge.missing((NoSuchTableException) problem, name, identifier));
      }
      if (problem instanceof NoSuchTableException) {
        refuseMetadataTable(identifier);
      }
      Platform.throwException(problem);
      return null;
    }
  }

  // Spark takes t.history for table history of namespace t. Where it is a table in the current namespace, the error has the
  // whole name. It is not loaded by the short one, which Spark looks up again later, perhaps from another namespace.
  private void refuseMetadataTable(Identifier identifier) {
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    String[] current = catalogs.currentNamespace();
    if (identifier.namespace().length != 1 || current.length == 0 || catalogs.currentCatalog() != this
        || !Callers.isResolvingRelations() || UNCACHED.matcher(before()).find()) {
      return;
    }
    String[] namespace = (String[]) Arrays.copyOf(current, current.length + 1);
    namespace[current.length] = identifier.namespace()[0];
    Identifier whole = Identifier.of(namespace, identifier.name());
    try {
      Bridge.ask(question(Protocol.LOAD_TABLE, whole), null);
    } catch (Exception problem) {
      if (!(problem instanceof NoSuchTableException || problem instanceof NoSuchNamespaceException)) {
        Platform.throwException(problem);
      }
      return;
    }
    Platform.throwException(
        Bridge.missing(Bridge.noSuchTable(identifier, "write " + Bridge.quoted(name, whole)), name, identifier));
  }

  // The text of a statement before the name that the analyzer looks up.
  private static String before() {
    Origin origin = CurrentOrigin$.MODULE$.get();
    boolean known = origin.sqlText().isDefined() && origin.startIndex().isDefined();
    int start = known ? ((Integer) origin.startIndex().get()).intValue() : 0;
    return known ? ((String) origin.sqlText().get()).substring(0, start) : "";
  }

  // A table that is not there, where that is no error: nothing of it is cached.
  private static final class Nothing implements Table {
    private final String name;

    Nothing(String name) {
      this.name = name;
    }

    public String name() {
      return name;
    }

    public StructType schema() {
      return new StructType();
    }

    public Set capabilities() {
      return Collections.singleton(TableCapability.BATCH_READ);
    }
  }

  private Table table(Map question) {
    return (Table) relation(question);
  }

  private Object relation(Map question) {
    boolean missing = false;
    try {
      return relation(question, (Map) Bridge.ask(question, null));
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      // The statement may go on to make it.
      missing = problem instanceof NoSuchTableException && ((String) question.get(Protocol.VERB)).startsWith("load_");
      Platform.throwException(problem);
      return null;
    } finally {
      if (!missing) {
        Bridge.written();
      }
    }
  }

  // The table of an answer; LanceViewCatalog also has views.
  Object relation(Map question, Map answer) {
    return LanceTable.of(question, answer);
  }

  public Table createTable(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return created(identifier, schema, partitions, properties, Collections.EMPTY_LIST);
  }

  final Table created(
      Identifier identifier, StructType schema, Transform[] partitions, Map properties, List constraints) {
    return table(definition(Protocol.CREATE_TABLE, identifier, schema, partitions, properties, constraints));
  }

  private Map definition(
      String verb, Identifier identifier, StructType schema, Transform[] partitions, Map properties, List constraints) {
    Map question = question(verb, identifier);
    question.put(Protocol.CONSTRAINTS, constraints);
    question.put(Protocol.SCHEMA, schema.json());
    question.put(Protocol.PROPERTIES, properties);
    question.put(Protocol.DEFAULT_FORMAT, Callers.namesDefaultFormat() || identifier.equals(SAVING.get()));
    SAVING.remove();
    List transforms = new ArrayList();
    question.put(Protocol.PARTITIONS, transforms);
    for (int i = 0; i < partitions.length; i++) {
      transforms.add(partitions[i].toString());
    }
    return question;
  }

  public StagedTable stageCreate(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("create", identifier, schema, partitions, properties, Collections.EMPTY_LIST);
  }

  public StagedTable stageReplace(Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("replace", identifier, schema, partitions, properties, Collections.EMPTY_LIST);
  }

  public StagedTable stageCreateOrReplace(
      Identifier identifier, StructType schema, Transform[] partitions, Map properties) {
    return staged("create_or_replace", identifier, schema, partitions, properties, Collections.EMPTY_LIST);
  }

  final StagedTable staged(
      String mode, Identifier identifier, StructType schema, Transform[] partitions, Map properties, List constraints) {
    Map question = definition(Protocol.STAGE_TABLE, identifier, schema, partitions, properties, constraints);
    question.put(Protocol.MODE, mode);
    try {
      return new LanceTable.Staged(question, (Map) Bridge.ask(question, null));
    } finally {
      Bridge.written();
    }
  }

  public boolean dropTable(Identifier identifier) {
    return ((Boolean) Bridge.ask(question(Protocol.DROP_TABLE, identifier), null)).booleanValue();
  }

  public boolean purgeTable(Identifier identifier) {
    return dropTable(identifier);
  }

  public void renameTable(Identifier from, Identifier to) {
    Map question = question(Protocol.RENAME_TABLE, from);
    question.put(Protocol.TO, Bridge.list(parts(to)));
    Bridge.ask(question, null);
  }

  public Table alterTable(Identifier identifier, TableChange... changes) {
    Map question = question(Protocol.ALTER_TABLE, identifier);
    List list = new ArrayList();
    question.put(Protocol.CHANGES, list);
    question.put(Protocol.EVOLVES, Callers.isSchemaEvolution());
    for (int i = 0; i < changes.length; i++) {
      list.add(described(changes[i]));
    }
    return table(question);
  }

  static Map described(TableChange change) {
    Map told = new HashMap();
    describe(change, told);
    return told;
  }

  private static void describe(TableChange change, Map told) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      told.put(Protocol.KIND, "set_property");
      told.put(Protocol.PROPERTY, set.property());
      told.put(Protocol.VALUE, set.value());
    } else if (change instanceof TableChange.RemoveProperty) {
      told.put(Protocol.KIND, "remove_property");
      told.put(Protocol.PROPERTY, ((TableChange.RemoveProperty) change).property());
    } else if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      column(told, "add_column", add.fieldNames());
      told.put(Protocol.TYPE, add.dataType().json());
      told.put(Protocol.NULLABLE, Boolean.valueOf(add.isNullable()));
      told.put(Protocol.COMMENT, add.comment());
      position(told, add.position());
      ColumnDefaultValue value = add.defaultValue();
      told.put(Protocol.EXISTS_DEFAULT, value == null ? null : constant(value.getValue()));
      told.put(Protocol.DEFAULT, value == null ? null : Shim.defaultSql(value));
    } else if (change instanceof TableChange.RenameColumn) {
      TableChange.RenameColumn rename = (TableChange.RenameColumn) change;
      column(told, "rename_column", rename.fieldNames());
      told.put(Protocol.TO, rename.newName());
    } else if (change instanceof TableChange.UpdateColumnType) {
      TableChange.UpdateColumnType update = (TableChange.UpdateColumnType) change;
      column(told, "column_type", update.fieldNames());
      told.put(Protocol.TYPE, update.newDataType().json());
    } else if (change instanceof TableChange.UpdateColumnNullability) {
      TableChange.UpdateColumnNullability update = (TableChange.UpdateColumnNullability) change;
      column(told, "column_nullability", update.fieldNames());
      told.put(Protocol.NULLABLE, Boolean.valueOf(update.nullable()));
    } else if (change instanceof TableChange.UpdateColumnComment) {
      TableChange.UpdateColumnComment update = (TableChange.UpdateColumnComment) change;
      column(told, "column_comment", update.fieldNames());
      told.put(Protocol.COMMENT, update.newComment());
    } else if (change instanceof TableChange.DeleteColumn) {
      TableChange.DeleteColumn delete = (TableChange.DeleteColumn) change;
      column(told, "drop_column", delete.fieldNames());
      told.put(Protocol.IF_EXISTS, delete.ifExists());
    } else if (change instanceof TableChange.UpdateColumnDefaultValue) {
      TableChange.UpdateColumnDefaultValue update = (TableChange.UpdateColumnDefaultValue) change;
      column(told, "column_default", update.fieldNames());
      told.put(Protocol.DEFAULT, update.newDefaultValue());
    } else if (change instanceof TableChange.UpdateColumnPosition) {
      TableChange.UpdateColumnPosition update = (TableChange.UpdateColumnPosition) change;
      column(told, "column_position", update.fieldNames());
      position(told, update.position());
    } else if (change instanceof TableChange.ClusterBy) {
      told.put(Protocol.KIND, "cluster_by");
      told.put(Protocol.COLUMNS, texts(((TableChange.ClusterBy) change).clusteringColumns()));
    } else if (!isOfConstraint(change, told)) {
      told.put(Protocol.KIND, change.getClass().getSimpleName());
    }
  }

  // Describes a change of constraints, which Spark has since 4.1; returns whether it is one.
  private static boolean isOfConstraint(TableChange change, Map told) {
    OptionalUnit unit =
        OptionalUnit.find("org.lance.spark.catalog.LanceConstrainedTable", LanceTableCatalog.class.getClassLoader());
    return unit != null && ((Boolean) unit.call("describe", new Object[] {change, told})).booleanValue();
  }

  private static List texts(NamedReference[] columns) {
    List names = new ArrayList();
    for (NamedReference column : columns) {
      names.add(column.toString());
    }
    return names;
  }

  // SQL of a constant.
  private static String constant(org.apache.spark.sql.connector.expressions.Literal value) {
    return new Literal(value.value(), value.dataType()).sql();
  }

  // Nothing, "first", or "after" with the name of the column before.
  private static void position(Map told, TableChange.ColumnPosition position) {
    boolean isAfter = position instanceof TableChange.After;
    told.put(Protocol.POSITION, position == null ? null : isAfter ? "after" : "first");
    told.put(Protocol.AFTER, isAfter ? ((TableChange.After) position).column() : null);
  }

  private static void column(Map told, String kind, String[] path) {
    told.put(Protocol.KIND, kind);
    told.put(Protocol.COLUMN, Bridge.list(path));
  }

  // Functions: the transforms of partition fields. Spark looks for other names among its own, and proposes similar ones.

  public Identifier[] listFunctions(String[] namespace) {
    if (namespace.length > 1 || (namespace.length == 1 && !namespace[0].equals("system"))) {
      return new Identifier[0];
    }
    List names = LanceFunctions.names();
    Identifier[] result = new Identifier[names.size()];
    for (int i = 0; i < result.length; i++) {
      result[i] = Identifier.of(namespace, (String) names.get(i));
    }
    return result;
  }

  public UnboundFunction loadFunction(Identifier identifier) {
    String[] namespace = identifier.namespace();
    boolean isHere = namespace.length == 0 || (namespace.length == 1 && namespace[0].equals("system"));
    UnboundFunction function = isHere ? LanceFunctions.of(identifier.name(), release) : null;
    if (function == null) {
      Platform.throwException(new NoSuchFunctionException(identifier));
    }
    return function;
  }

  // Procedures: a unit of their own.

  public Identifier[] listProcedures(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals("system")) {
      return new Identifier[0];
    }
    List answer = (List) ask(Protocol.LIST_PROCEDURES, null);
    Identifier[] found = new Identifier[answer.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, (String) answer.get(i));
    }
    return found;
  }

  public UnboundProcedure loadProcedure(Identifier identifier) {
    return LanceProcedures.load(question(Protocol.LOAD_PROCEDURE, identifier));
  }
}
