package org.lance.spark.catalog;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.CreateTable;
import org.apache.spark.sql.catalyst.plans.logical.CreateTableAsSelect;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin$;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.util.GeneratedColumn;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.IdentityColumnSpec;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.OptionalUnit;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;
import org.lance.spark.transport.LanceFunctions;

/**
 * The catalog of tables and namespaces. Spark makes one per session and catalog name, and may call it from any thread.
 *
 * <p>The driver's Python answers every call. Tables are of the class LanceTable.
 */
public class LanceTableCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  // Metadata keys of identity columns and of generated columns, as in Python.
  public static final String IDENTITY = "spark_lance.identity";
  public static final String GENERATION_EXPRESSION = "spark_lance.generation_expression";

  // The text before the name in a statement that accepts a missing table, although Spark looks the name up.
  private static final Pattern UNCACHE_IF_EXISTS =
      Pattern.compile("UNCACHE\\s+TABLE\\s+IF\\s+EXISTS\\s+$", Pattern.CASE_INSENSITIVE);
  private String name;
  // The settings of the catalog when Spark initialized it.
  private Map<String, String> options;
  // The version of spark_lance.
  private String release;

  private static final String CASE_SENSITIVE = "case_sensitive";
  // Names of catalogs that a session of the driver has told to ignore case. All sessions share the cache of tables.
  private static final Set<String> IGNORE_CASE = ConcurrentHashMap.newKeySet();

  // The name that saveAsTable looked up last. Spark Connect creates the table later, when no writer is on the stack.
  private static final ThreadLocal<Identifier> SAVED_NAME = new ThreadLocal<>();

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = options.asCaseSensitiveMap();
    this.release = (String) ask(Protocol.OPEN_CATALOG, null);
  }

  public String name() {
    return name;
  }

  public Set<TableCatalogCapability> capabilities() {
    Set<TableCatalogCapability> all = new HashSet<>();
    all.add(TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
    all.add(TableCatalogCapability.SUPPORTS_CREATE_TABLE_WITH_GENERATED_COLUMNS);
    all.add(TableCatalogCapability.SUPPORTS_CREATE_TABLE_WITH_IDENTITY_COLUMNS);
    return all;
  }

  public String[] defaultNamespace() {
    return new String[0];
  }

  /** Returns the session's current settings of the catalog: a session can set a root after the first use. */
  private Map<String, String> options() {
    Map<String, String> current = currentOptions();
    for (Map.Entry<String, String> option : current.entrySet()) {
      if (((String) option.getKey()).equalsIgnoreCase(CASE_SENSITIVE) && ((String) option.getValue()).equalsIgnoreCase("false")) {
        IGNORE_CASE.add(name);
      }
    }
    if (IGNORE_CASE.contains(name) && ((SQLConf) SQLConf$.MODULE$.get()).caseSensitiveAnalysis()) {
      throw new IllegalArgumentException(
          "spark.sql.catalog." + name + "." + CASE_SENSITIVE + "=false, which a session of this driver has set, needs"
              + " spark.sql.caseSensitive=false in every session: Spark finds cached tables by that setting");
    }
    return current;
  }

  private Map<String, String> currentOptions() {
    String prefix = "spark.sql.catalog." + name;
    Map<String, String> settings = settings((SQLConf) SQLConf$.MODULE$.get());
    if (!settings.containsKey(prefix)) {
      // Spark resolves a view with the settings that the view has captured, which have no catalogs.
      settings = settings(SparkSession.active().sessionState().conf());
    }
    if (!settings.containsKey(prefix)) {
      return options; // another session's
    }
    Map<String, String> current = new HashMap<>();
    for (Map.Entry<String, String> setting : settings.entrySet()) {
      String key = (String) setting.getKey();
      if (key.startsWith(prefix + ".")) {
        current.put(key.substring(prefix.length() + 1), setting.getValue());
      }
    }
    return current;
  }

  private static Map<String, String> settings(SQLConf conf) {
    return scala.jdk.javaapi.CollectionConverters.asJava(conf.getAllConfs());
  }

  /** Returns a request with the name and the options of the catalog. */
  public Map<String, Object> question(String verb) {
    Map<String, Object> question = Bridge.question(verb);
    question.put(Protocol.CATALOG, name);
    question.put(Protocol.OPTIONS, options());
    return question;
  }

  /**
   * Returns a request about a table or namespace.
   *
   * @param parts the parts of its name, without the catalog
   */
  public Map<String, Object> question(String verb, String[] parts) {
    Map<String, Object> question = question(verb);
    question.put(Protocol.NAME, Bridge.list(parts));
    question.put(Protocol.OPTIONS, Bridge.optionsFor(name, parts, options()));
    return question;
  }

  Map<String, Object> question(String verb, Identifier identifier) {
    return question(verb, parts(identifier));
  }

  private Object ask(String verb, String[] parts) {
    return Bridge.ask(parts == null ? question(verb) : question(verb, parts), null);
  }

  /** Returns the namespace and the name of an identifier as one array. */
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
    List<Object> answer = Json.list(ask(Protocol.LIST_NAMESPACES, namespace));
    String[][] namespaces = new String[answer.size()][];
    for (int i = 0; i < namespaces.length; i++) {
      namespaces[i] = Bridge.texts(answer.get(i));
    }
    return namespaces;
  }

  public Map<String, String> loadNamespaceMetadata(String[] namespace) {
    return namespace.length == 0 ? new HashMap<String, String>() : Json.texts(ask(Protocol.LOAD_NAMESPACE, namespace));
  }

  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    Map<String, Object> question = question(Protocol.CREATE_NAMESPACE, namespace);
    question.put(Protocol.PROPERTIES, metadata);
    Bridge.ask(question, null);
  }

  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    Map<String, Object> question = question(Protocol.ALTER_NAMESPACE, namespace);
    Map<String, Object> set = new HashMap<>();
    question.put(Protocol.SET, set);
    List<Object> removed = new ArrayList<>();
    question.put(Protocol.REMOVED, removed);
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty) {
        NamespaceChange.SetProperty property = (NamespaceChange.SetProperty) change;
        set.put(property.property(), property.value());
      } else {
        removed.add(((NamespaceChange.RemoveProperty) change).property());
      }
    }
    Bridge.ask(question, null);
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) {
    Map<String, Object> question = question(Protocol.DROP_NAMESPACE, namespace);
    question.put(Protocol.CASCADE, Boolean.valueOf(cascade));
    Bridge.ask(question, null);
    return true;
  }

  // Tables

  public Identifier[] listTables(String[] namespace) {
    List<Object> answer = Json.list(ask(Protocol.LIST_TABLES, namespace));
    Identifier[] identifiers = new Identifier[answer.size()];
    for (int i = 0; i < identifiers.length; i++) {
      identifiers[i] = Identifier.of(namespace, (String) answer.get(i));
    }
    return identifiers;
  }

  public Table loadTable(Identifier identifier) {
    if (identifier instanceof Bridge.LoadableIdentifier) {
      return ((Bridge.LoadableIdentifier) identifier).load();
    }
    return (Table) load(identifier, question(Protocol.LOAD_TABLE, identifier));
  }

  /**
   * Returns whether a table exists. Statements that create a table ask this first. Their error has the name as written,
   * so this method throws one with the name of the catalog if the two names differ in case.
   */
  public boolean tableExists(Identifier identifier) {
    try {
      Table table = loadTable(identifier);
      if (table instanceof LanceTable) {
        refuseOtherSpelling(identifier, (LanceTable) table);
      }
      return true;
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      if (!(problem instanceof NoSuchTableException)) {
        Platform.throwException(problem);
      }
      return false;
    }
  }

  private static void refuseOtherSpelling(Identifier identifier, LanceTable table) {
    String[] name = Bridge.texts(table.question(Protocol.LOAD_TABLE).get(Protocol.NAME));
    String[] parts = parts(identifier);
    boolean isOther = parts.length == name.length && !Arrays.equals(parts, name);
    String execution = SparkSession.active().sparkContext().getLocalProperty("spark.sql.execution.id");
    if (!isOther || execution == null) {
      return;
    }
    QueryExecution query = SQLExecution.getQueryExecution(Long.parseLong(execution));
    Object plan = query == null ? null : query.analyzed();
    boolean creates = plan instanceof CreateTable && !((CreateTable) plan).ignoreIfExists();
    if (creates || (plan instanceof CreateTableAsSelect && !((CreateTableAsSelect) plan).ignoreIfExists())) {
      String[] namespace = (String[]) Arrays.copyOf(name, name.length - 1);
      Platform.throwException(Bridge.exists(Identifier.of(namespace, name[name.length - 1])));
    }
  }

  /** Loads the table of a statement that writes to it. The default implementation loads it as for a read. */
  public Table loadTable(Identifier identifier, Set<TableWritePrivilege> privileges) {
    if (identifier instanceof Bridge.LoadableIdentifier) {
      return ((Bridge.LoadableIdentifier) identifier).load();
    }
    Map<String, Object> question = question(Protocol.LOAD_TABLE, identifier);
    // A statement that writes creates a missing branch of spark.wap.branch, and EXPLAIN must not change anything.
    question.put(Protocol.WRITES, Boolean.valueOf(!Callers.isExplaining()));
    return (Table) load(identifier, question);
  }

  public Table loadTable(Identifier identifier, String version) {
    refuseStreamOfVersion("versionAsOf", "startingVersion", identifier, version.matches("\\d+") ? version : "1");
    Map<String, Object> question = question(Protocol.LOAD_TABLE, identifier);
    question.put(Protocol.VERSION, version);
    return (Table) load(identifier, question);
  }

  /** Throws an error if a stream reads a single version. Spark itself only fails an assertion. */
  private static void refuseStreamOfVersion(String option, String start, Identifier identifier, String value) {
    if (Callers.isStreamReader()) {
      throw new IllegalArgumentException("option '" + option + "' chooses one version, and a stream reads versions as they "
          + "are committed: write spark.readStream.option(\"" + start + "\", \"" + value + "\").table(...) to begin with a "
          + "version of " + identifier.name());
    }
  }

  public Table loadTable(Identifier identifier, long micros) {
    refuseStreamOfVersion("timestampAsOf", "startingTimestamp", identifier, Instant.EPOCH.plus(micros, ChronoUnit.MICROS).toString());
    Map<String, Object> question = question(Protocol.LOAD_TABLE, identifier);
    question.put(Protocol.ASOF, Long.valueOf(micros));
    return (Table) load(identifier, question);
  }

  /**
   * Loads a table or view.
   *
   * <p>If the catalog has the name of the format, "lance", the analyzer takes a missing name of two parts for a file
   * of this format. That error would not mention a table. So the analyzer gets an error that ends the statement.
   * Other callers, such as writers that create a missing table, get NoSuchTableException. A missing branch also ends
   * the statement, because the analyzer would not report the reason.
   */
  Object load(Identifier identifier, Map<String, Object> question) {
    if (Callers.isSavingAsTable()) {
      SAVED_NAME.set(identifier);
    }
    try {
      return relation(question);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      boolean endsStatement = problem instanceof Bridge.NoSuchBranchException
          || (name.equalsIgnoreCase("lance") && identifier.namespace().length == 0);
      if (endsStatement && problem instanceof NoSuchTableException && Callers.isResolvingRelations()) {
        if (UNCACHE_IF_EXISTS.matcher(textBeforeName()).find()) {
          return new MissingTable(identifier.name());
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

  /**
   * Refuses t.history if t is a table of the current namespace, with the whole name in the error. Spark takes it for
   * table history of namespace t. It cannot be loaded by the short name, which Spark may look up again later from
   * another namespace.
   */
  private void refuseMetadataTable(Identifier identifier) {
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    String[] current = catalogs.currentNamespace();
    if (identifier.namespace().length != 1 || current.length == 0 || catalogs.currentCatalog() != this
        || !Callers.isResolvingRelations() || UNCACHE_IF_EXISTS.matcher(textBeforeName()).find()) {
      return;
    }
    String[] namespace = (String[]) Arrays.copyOf(current, current.length + 1);
    namespace[current.length] = identifier.namespace()[0];
    Identifier fullName = Identifier.of(namespace, identifier.name());
    try {
      Bridge.ask(question(Protocol.LOAD_TABLE, fullName), null);
    } catch (Exception problem) {
      if (!(problem instanceof NoSuchTableException || problem instanceof NoSuchNamespaceException)) {
        Platform.throwException(problem);
      }
      return;
    }
    Platform.throwException(
        Bridge.missing(Bridge.noSuchTable(identifier, "write " + Bridge.quoted(name, fullName)), name, identifier));
  }

  /** Returns the text of a statement before the name that the analyzer looks up; empty if there is no text. */
  private static String textBeforeName() {
    Origin origin = CurrentOrigin$.MODULE$.get();
    boolean hasText = origin.sqlText().isDefined() && origin.startIndex().isDefined();
    int start = hasText ? ((Integer) origin.startIndex().get()).intValue() : 0;
    return hasText ? ((String) origin.sqlText().get()).substring(0, start) : "";
  }

  /** Stands for a missing table in a statement that accepts it. Spark finds no cache of it. */
  private static final class MissingTable implements Table {
    private final String name;

    MissingTable(String name) {
      this.name = name;
    }

    public String name() {
      return name;
    }

    @SuppressWarnings("deprecation") // Table declares it without a default in Spark 4.0.
    public StructType schema() {
      return new StructType();
    }

    public Set<TableCapability> capabilities() {
      return Collections.singleton(TableCapability.BATCH_READ);
    }
  }

  private Table table(Map<String, Object> question) {
    return (Table) relation(question);
  }

  private Object relation(Map<String, Object> question) {
    boolean missing = false;
    try {
      return relation(question, Json.object(Bridge.ask(question, null)));
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      // The statement may create the table next, and needs the options of its store.
      missing = problem instanceof NoSuchTableException && ((String) question.get(Protocol.VERB)).startsWith("load_");
      Platform.throwException(problem);
      return null;
    } finally {
      if (!missing) {
        Bridge.endWrite();
      }
    }
  }

  /** Returns the table of an answer. LanceViewCatalog overrides it for views. */
  Object relation(Map<String, Object> question, Map<String, Object> answer) {
    return LanceTable.of(question, answer);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public Table createTable(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    return createWithConstraints(identifier, schema, partitions, properties, Collections.emptyList());
  }

  /**
   * Creates a table.
   *
   * @param constraints as JSON, see LanceConstrainedTable; empty before Spark 4.1
   */
  final Table createWithConstraints(
      Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties, List<Object> constraints) {
    return table(definition(Protocol.CREATE_TABLE, identifier, schema, partitions, properties, constraints));
  }

  private Map<String, Object> definition(
      String verb, Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties, List<Object> constraints) {
    Map<String, Object> question = question(verb, identifier);
    question.put(Protocol.CONSTRAINTS, constraints);
    question.put(Protocol.SCHEMA, schema.json());
    question.put(Protocol.PROPERTIES, properties);
    question.put(Protocol.DEFAULT_FORMAT, Callers.namesDefaultFormat() || identifier.equals(SAVED_NAME.get()));
    SAVED_NAME.remove();
    List<Object> transforms = new ArrayList<>();
    question.put(Protocol.PARTITIONS, transforms);
    for (Transform transform : partitions) {
      transforms.add(transform.toString());
    }
    return question;
  }

  // The schema of the other method lacks the expressions of generated columns.
  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public Table createTable(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return createWithConstraints(identifier, schema(columns), partitions, properties, Collections.emptyList());
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreate(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return stage("create", identifier, schema(columns), partitions, properties, Collections.emptyList());
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageReplace(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return stage("replace", identifier, schema(columns), partitions, properties, Collections.emptyList());
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreateOrReplace(
      Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return stage("create_or_replace", identifier, schema(columns), partitions, properties, Collections.emptyList());
  }

  /**
   * Returns the schema of columns, with the expressions of generated columns and the declarations of identity
   * columns.
   */
  static StructType schema(Column[] columns) {
    StructField[] fields = CatalogV2Util.v2ColumnsToStructType(columns).fields();
    for (int i = 0; i < fields.length; i++) {
      String expression = columns[i].generationExpression();
      if (expression != null) {
        MetadataBuilder metadata = new MetadataBuilder().withMetadata(fields[i].metadata());
        metadata.remove(GeneratedColumn.GENERATION_EXPRESSION_METADATA_KEY());
        metadata.putString(GENERATION_EXPRESSION, expression);
        fields[i] = new StructField(fields[i].name(), fields[i].dataType(), fields[i].nullable(), metadata.build());
      }
      IdentityColumnSpec identity = columns[i].identityColumnSpec();
      if (identity != null) {
        MetadataBuilder metadata = new MetadataBuilder().withMetadata(fields[i].metadata());
        metadata.remove("identity.start");
        metadata.remove("identity.step");
        metadata.remove("identity.allowExplicitInsert");
        metadata.putString(IDENTITY, "{\"start\": " + identity.getStart() + ", \"step\": " + identity.getStep()
            + ", \"always\": " + !identity.isAllowExplicitInsert() + "}");
        fields[i] = new StructField(fields[i].name(), fields[i].dataType(), fields[i].nullable(), metadata.build());
      }
    }
    return new StructType(fields);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreate(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    return stage("create", identifier, schema, partitions, properties, Collections.emptyList());
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageReplace(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    return stage("replace", identifier, schema, partitions, properties, Collections.emptyList());
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreateOrReplace(
      Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    return stage("create_or_replace", identifier, schema, partitions, properties, Collections.emptyList());
  }

  /**
   * Stages a new or replaced table.
   *
   * @param mode "create", "replace" or "create_or_replace"
   * @param constraints as JSON, see LanceConstrainedTable; empty before Spark 4.1
   */
  final StagedTable stage(
      String mode, Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties, List<Object> constraints) {
    Map<String, Object> question = definition(Protocol.STAGE_TABLE, identifier, schema, partitions, properties, constraints);
    question.put(Protocol.MODE, mode);
    try {
      return new LanceTable.Staged(question, Json.object(Bridge.ask(question, null)));
    } finally {
      Bridge.endWrite();
    }
  }

  public boolean dropTable(Identifier identifier) {
    return (Boolean) Bridge.ask(question(Protocol.DROP_TABLE, identifier), null);
  }

  public boolean purgeTable(Identifier identifier) {
    return dropTable(identifier);
  }

  public void renameTable(Identifier from, Identifier to) {
    Map<String, Object> question = question(Protocol.RENAME_TABLE, from);
    question.put(Protocol.TO, Bridge.list(parts(to)));
    Bridge.ask(question, null);
  }

  public Table alterTable(Identifier identifier, TableChange... changes) {
    Map<String, Object> question = question(Protocol.ALTER_TABLE, identifier);
    List<Object> list = new ArrayList<>();
    question.put(Protocol.CHANGES, list);
    question.put(Protocol.EVOLVES, Callers.isSchemaEvolution());
    for (TableChange change : changes) {
      list.add(toJson(change));
    }
    return table(question);
  }

  /** Returns a change of a table as JSON. */
  static Map<String, Object> toJson(TableChange change) {
    Map<String, Object> description = new HashMap<>();
    describe(change, description);
    return description;
  }

  @SuppressWarnings("deprecation") // Spark 4.0 has no other method for defaults.
  private static void describe(TableChange change, Map<String, Object> description) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      description.put(Protocol.KIND, "set_property");
      description.put(Protocol.PROPERTY, set.property());
      description.put(Protocol.VALUE, set.value());
    } else if (change instanceof TableChange.RemoveProperty) {
      description.put(Protocol.KIND, "remove_property");
      description.put(Protocol.PROPERTY, ((TableChange.RemoveProperty) change).property());
    } else if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      column(description, "add_column", add.fieldNames());
      description.put(Protocol.TYPE, add.dataType().json());
      description.put(Protocol.NULLABLE, Boolean.valueOf(add.isNullable()));
      description.put(Protocol.COMMENT, add.comment());
      position(description, add.position());
      ColumnDefaultValue value = add.defaultValue();
      description.put(Protocol.EXISTS_DEFAULT, value == null ? null : constant(value.getValue()));
      description.put(Protocol.DEFAULT, value == null ? null : Shim.defaultSql(value));
    } else if (change instanceof TableChange.RenameColumn) {
      TableChange.RenameColumn rename = (TableChange.RenameColumn) change;
      column(description, "rename_column", rename.fieldNames());
      description.put(Protocol.TO, rename.newName());
    } else if (change instanceof TableChange.UpdateColumnType) {
      TableChange.UpdateColumnType update = (TableChange.UpdateColumnType) change;
      column(description, "column_type", update.fieldNames());
      description.put(Protocol.TYPE, update.newDataType().json());
    } else if (change instanceof TableChange.UpdateColumnNullability) {
      TableChange.UpdateColumnNullability update = (TableChange.UpdateColumnNullability) change;
      column(description, "column_nullability", update.fieldNames());
      description.put(Protocol.NULLABLE, Boolean.valueOf(update.nullable()));
    } else if (change instanceof TableChange.UpdateColumnComment) {
      TableChange.UpdateColumnComment update = (TableChange.UpdateColumnComment) change;
      column(description, "column_comment", update.fieldNames());
      description.put(Protocol.COMMENT, update.newComment());
    } else if (change instanceof TableChange.DeleteColumn) {
      TableChange.DeleteColumn delete = (TableChange.DeleteColumn) change;
      column(description, "drop_column", delete.fieldNames());
      description.put(Protocol.IF_EXISTS, delete.ifExists());
    } else if (change instanceof TableChange.UpdateColumnDefaultValue) {
      TableChange.UpdateColumnDefaultValue update = (TableChange.UpdateColumnDefaultValue) change;
      column(description, "column_default", update.fieldNames());
      description.put(Protocol.DEFAULT, update.newDefaultValue());
    } else if (change instanceof TableChange.UpdateColumnPosition) {
      TableChange.UpdateColumnPosition update = (TableChange.UpdateColumnPosition) change;
      column(description, "column_position", update.fieldNames());
      position(description, update.position());
    } else if (change instanceof TableChange.ClusterBy) {
      description.put(Protocol.KIND, "cluster_by");
      description.put(Protocol.COLUMNS, texts(((TableChange.ClusterBy) change).clusteringColumns()));
    } else if (!describeConstraint(change, description)) {
      description.put(Protocol.KIND, change.getClass().getSimpleName());
    }
  }

  /**
   * Describes a change of constraints, which are new in Spark 4.1.
   *
   * @return whether the change is one of constraints
   */
  private static boolean describeConstraint(TableChange change, Map<String, Object> description) {
    OptionalUnit unit =
        OptionalUnit.find("org.lance.spark.catalog.LanceConstrainedTable", LanceTableCatalog.class.getClassLoader());
    return unit != null && (Boolean) unit.call("describe", change, description);
  }

  private static List<Object> texts(NamedReference[] columns) {
    List<Object> names = new ArrayList<>();
    for (NamedReference column : columns) {
      names.add(column.toString());
    }
    return names;
  }

  /** Returns the SQL of a constant. */
  private static String constant(org.apache.spark.sql.connector.expressions.Literal<?> value) {
    return new Literal(value.value(), value.dataType()).sql();
  }

  /** Adds the position of a column: null, "first", or "after" with the name of the column before. */
  private static void position(Map<String, Object> description, TableChange.ColumnPosition position) {
    boolean isAfter = position instanceof TableChange.After;
    description.put(Protocol.POSITION, position == null ? null : isAfter ? "after" : "first");
    description.put(Protocol.AFTER, isAfter ? ((TableChange.After) position).column() : null);
  }

  private static void column(Map<String, Object> description, String kind, String[] path) {
    description.put(Protocol.KIND, kind);
    description.put(Protocol.COLUMN, Bridge.list(path));
  }

  // Functions: the transforms of partition fields. For other names Spark searches its own functions, and proposes
  // similar ones.

  public Identifier[] listFunctions(String[] namespace) {
    if (namespace.length > 1 || (namespace.length == 1 && !namespace[0].equals("system"))) {
      return new Identifier[0];
    }
    List<String> names = LanceFunctions.names();
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

  // Procedures

  public Identifier[] listProcedures(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals("system")) {
      return new Identifier[0];
    }
    List<Object> answer = Json.list(ask(Protocol.LIST_PROCEDURES, null));
    Identifier[] identifiers = new Identifier[answer.size()];
    for (int i = 0; i < identifiers.length; i++) {
      identifiers[i] = Identifier.of(namespace, (String) answer.get(i));
    }
    return identifiers;
  }

  public UnboundProcedure loadProcedure(Identifier identifier) {
    return LanceProcedures.load(question(Protocol.LOAD_PROCEDURE, identifier));
  }
}
