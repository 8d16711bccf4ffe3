package org.lance.spark.shim;

import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.apache.spark.JobArtifactSet$;
import org.apache.spark.JobArtifactState;
import org.apache.spark.SparkThrowableHelper;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableOutputResolver$;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTable$;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.CatalogUtils$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateAction;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.errors.QueryCompilationErrors$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.command.RefreshTableCommand;
import org.apache.spark.sql.execution.datasources.v2.AlterTableExec;
import org.apache.spark.sql.execution.datasources.v2.PushDownUtils$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Seqs;

/**
 * Differences between releases of Spark, and Spark's private parts that the driver uses. See also Callers and
 * WorkerShim.
 *
 * <p>A method fails with an exception that names the missing part. tests/spark/driver/test_java_units.py calls all
 * methods on each release, so a missing part is known before users meet it.
 */
public final class Shim {
  private static Boolean takesCatalystFilters = null;

  private Shim() {}

  // Sessions and their rules

  /** Replaces the parser of an existing session. Extensions only change later sessions. */
  public static void replaceParser(SparkSession session, UnaryOperator<Object> change) {
    Object state = session.sessionState();
    boolean isReplaced = false;
    for (Field field : state.getClass().getDeclaredFields()) {
      if (field.getType() == ParserInterface.class) {
        write(field, state, change.apply(read(field, state)));
        isReplaced = true;
      }
    }
    if (!isReplaced) {
      throw missing("SessionState.sqlParser");
    }
  }

  /** Adds a rule to the analyzer of a session that exists, unless one of its class is there. */
  public static void addHintResolutionRule(SparkSession session, Object rule) {
    addRule(session, "hintResolutionRules", rule);
  }

  /** Adds a rule to the analyzer of a session that exists, unless one of its class is there. */
  public static void addResolutionRule(SparkSession session, Object rule) {
    addRule(session, "extendedResolutionRules", rule);
  }

  private static void addRule(SparkSession session, String name, Object rule) {
    Object analyzer = session.sessionState().analyzer();
    scala.collection.immutable.Seq<?> rules = (scala.collection.immutable.Seq<?>) call(analyzer, name);
    for (int i = 0; i < rules.size(); i++) {
      if (rules.apply(i).getClass() == rule.getClass()) {
        return;
      }
    }
    for (Class<?> type = analyzer.getClass(); type != null; type = type.getSuperclass()) {
      for (Field field : type.getDeclaredFields()) {
        if (field.getName().endsWith(name)) {
          write(field, analyzer, rules.appended(rule));
          return;
        }
      }
    }
    throw missing("Analyzer." + name);
  }

  /**
   * Recomputes the cache of a table by name at its next use. Spark 4.0 does not find cached tables of catalogs, so
   * nothing is done there.
   */
  public static void recacheTable(SparkSession session, List<?> nameParts) {
    Class<?>[] types = {SparkSession.class, scala.collection.immutable.Seq.class, boolean.class};
    Object cache = session.sharedState().cacheManager();
    try {
      Method method = cache.getClass().getMethod("recacheTableOrView", types);
      invoke(method, cache, session, sequence(nameParts), Boolean.FALSE);
    } catch (NoSuchMethodException spark40) {
      return;
    }
  }

  // Capabilities of catalogs and tables

  /**
   * Returns the capability of tables that add the new columns of MERGE WITH SCHEMA EVOLUTION; null before Spark 4.1.
   */
  public static TableCapability schemaEvolution() {
    for (TableCapability capability : TableCapability.values()) {
      if (capability.name().equals("AUTOMATIC_SCHEMA_EVOLUTION")) {
        return capability;
      }
    }
    return null;
  }

  /** Returns whether Spark asks tables which schema changes they support; true since Spark 4.2. */
  public static boolean asksForSchemaChanges() {
    return hasClass("org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution");
  }

  /** Returns whether Spark has table constraints; true since Spark 4.1. */
  public static boolean hasConstraints() {
    return hasClass("org.apache.spark.sql.connector.catalog.constraints.Constraint");
  }

  /** Returns whether this release of Spark has an error condition of this name. */
  public static boolean hasCondition(String condition) {
    return SparkThrowableHelper.getSqlState(condition) != null;
  }

  /** Returns whether Spark may still change the columns of the table of a MERGE. */
  public static boolean changesSchema(MergeIntoTable merge) {
    boolean hasSchemaChanges = asksForSchemaChanges();
    Method ready = method(MergeIntoTable.class, hasSchemaChanges ? "schemaEvolutionReady" : "canEvaluateSchemaEvolution");
    Method changes = method(MergeIntoTable.class, hasSchemaChanges ? "pendingSchemaChanges" : "needSchemaEvolution");
    if (!merge.withSchemaEvolution() || ready == null || changes == null) {
      return merge.withSchemaEvolution();
    }
    if (!Boolean.TRUE.equals(invoke(ready, merge, new Object[0]))) {
      return true;
    }
    Object pending = invoke(changes, merge, new Object[0]);
    return hasSchemaChanges ? !((scala.collection.immutable.Seq) pending).isEmpty() : Boolean.TRUE.equals(pending);
  }

  /** Returns the action of MERGE that updates columns. */
  public static MergeAction updateAction(scala.Option<?> condition, scala.collection.immutable.Seq<?> assignments) {
    List<Object> parts = new ArrayList<>(Arrays.<Object>asList(condition, assignments));
    if (UpdateAction.class.getConstructors()[0].getParameterTypes().length > parts.size()) {
      parts.add(Boolean.FALSE); // Spark 4.1: not from UPDATE SET *
    }
    return (MergeAction) construct(UpdateAction.class, parts.toArray());
  }

  /** Returns the physical plan of a change of a table. */
  public static SparkPlan alterTable(TableCatalog catalog, Identifier table, TableChange change) {
    List<Object> parts = new ArrayList<>(Arrays.<Object>asList(catalog, table, Seqs.of(change)));
    if (AlterTableExec.class.getConstructors()[0].getParameterTypes().length > parts.size()) {
      parts.add(new NoRefresh()); // newer than Spark 4.1: refreshes cached tables
    }
    return (SparkPlan) construct(AlterTableExec.class, parts.toArray());
  }

  /** Refreshes nothing, because a constraint changes no row. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  private static final class NoRefresh extends scala.runtime.AbstractFunction0 {
    public Object apply() {
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  /**
   * Returns whether catalogs can keep views; true since Spark 4.2. Statements of older releases do not use
   * ViewCatalog.
   */
  public static boolean keepsViews() {
    return hasClass("org.apache.spark.sql.connector.catalog.RelationCatalog");
  }

  /** Returns whether catalogs have CREATE TABLE LIKE. */
  public static boolean makesTablesAlike() {
    return method(TableCatalog.class, "createTableLike") != null;
  }

  /** Returns a view with other columns. */
  public static LogicalPlan withSchema(View view, StructType schema) {
    Object description = copyOf(view.desc(), Collections.singletonMap("schema", schema));
    return (LogicalPlan) copyOf(view, Collections.singletonMap("desc", description));
  }

  /** Returns whether Spark offers Catalyst expressions to any source. Spark 4.0 offers them only to file sources. */
  public static synchronized boolean takesCatalystFilters() {
    if (takesCatalystFilters == null) {
      // The interface exists in Spark 4.0, too, so the code of the class that pushes filters is searched for its
      // name.
      Class<?> pushes = PushDownUtils$.class;
      try {
        InputStream code = pushes.getResourceAsStream(pushes.getSimpleName() + ".class");
        try {
          String names = new String(code.readAllBytes(), StandardCharsets.ISO_8859_1);
          takesCatalystFilters = names.contains("SupportsPushDownCatalystFilters");
        } finally {
          code.close();
        }
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      }
    }
    return takesCatalystFilters;
  }

  // Spark's classes of Python data sources

  /**
   * Returns whether a source keeps the plan of a read. It does not in Spark 4.0, which loses the rows of a read
   * without columns.
   */
  public static boolean keepsReadPlan() {
    return method(PythonDataSourceV2.class, "setReadInfo") != null;
  }

  /**
   * Returns Spark's own factory of readers, which run a pickled function in Python workers.
   *
   * @param function the pickled function
   * @param options the options of the read, with which Spark builds a scan since 4.1
   */
  public static PartitionReaderFactory readerFactory(
      PythonDataSourceV2 source, byte[] function, StructType schema, CaseInsensitiveStringMap options) {
    Method setter = method(PythonDataSourceV2.class, "setReadInfo");
    if (setter == null) {
      scala.Option<?> artifacts = JobArtifactSet$.MODULE$.getCurrentJobArtifactState();
      scala.Option<?> id = artifacts.isEmpty() ? artifacts : scala.Option.apply(((JobArtifactState) artifacts.get()).uuid());
      return (PartitionReaderFactory)
          construct(PythonPartitionReaderFactory.class, source.source(), function, schema, id);
    }
    Object noPartitions = sequence(new ArrayList<>());
    Object plan = construct(PythonDataSourceReadInfo.class, function, noPartitions);
    invoke(setter, source, plan);
    return tableOf(source, schema).newScanBuilder(options).build().toBatch().createReaderFactory();
  }

  /**
   * Returns Spark's own factory of writers, which run a pickled function in Python workers.
   *
   * @param type PythonBatchWriterFactory or PythonStreamingWriterFactory
   * @param function the pickled function
   * @param schema the schema of the rows that the writers receive
   * @param sparkWrite Spark's own write, which has the artifacts and, since 4.1, the session
   */
  public static Object writerFactory(
      Class<?> type, PythonDataSourceV2 source, byte[] function, StructType schema, Object sparkWrite) {
    List<Object> parts = new ArrayList<>(Arrays.asList(source.source(), function, schema));
    parts.add(member(sparkWrite, "jobArtifactUUID"));
    if (type.getConstructors()[0].getParameterTypes().length > parts.size()) {
      parts.add(member(sparkWrite, "sessionUUID"));
    }
    return construct(type, parts.toArray());
  }

  /** Returns the epoch of Spark's write of a micro-batch. */
  public static long epochOf(Object microBatchWrite) {
    return (Long) member(microBatchWrite, "epochId");
  }

  /** Returns Spark's table of the format, which builds Spark's own scans and writes. */
  public static PythonTable tableOf(PythonDataSourceV2 source, StructType columns) {
    return new PythonTable(source, "lance", columns);
  }

  /**
   * Returns the source of Spark's table of a Python format. A view keeps its table, and so the version that the
   * source pinned.
   */
  public static PythonDataSourceV2 sourceOf(PythonTable table) {
    return (PythonDataSourceV2) read(field(PythonTable.class, "ds"), table);
  }

  /** Sets the source of Spark's table of a Python format. */
  public static void replaceSource(PythonTable table, PythonDataSourceV2 source) {
    write(field(PythonTable.class, "ds"), table, source);
  }

  /** Returns the short name of the format of Spark's table of a Python format. */
  public static String formatOf(PythonTable table) {
    return (String) read(field(PythonTable.class, "shortName"), table);
  }

  // Statements

  /** Returns the provider of CREATE TABLE, REPLACE TABLE and their variants; null for other plans. */
  public static scala.Option<String> tableProvider(TreeNode<?> plan) {
    String kind = plan.getClass().getSimpleName();
    if (!kind.startsWith("CreateTable") && !kind.startsWith("ReplaceTable")) {
      return null;
    }
    Method spec = method(plan.getClass(), "tableSpec");
    return spec == null ? null : Seqs.option(call(invoke(spec, plan), "provider"));
  }

  /**
   * Returns the SQL of a column default. Since Spark 4.1 the method belongs to a class that Java code cannot access.
   */
  public static String defaultSql(ColumnDefaultValue value) {
    Method method = method(value.getClass(), "getSql");
    method.setAccessible(true);
    return (String) invoke(method, value, new Object[0]);
  }

  /** Returns the table's name in a plan that {@link #tableProvider} accepts; null if there is none. */
  public static Object tableName(TreeNode<?> plan) {
    Method name = method(plan.getClass(), "name");
    return name == null ? null : invoke(name, plan);
  }

  /** Returns the table's name of a REFRESH TABLE in spark_catalog; null for other plans. */
  public static String refreshedTable(LogicalPlan plan) {
    return plan instanceof RefreshTableCommand ? ((RefreshTableCommand) plan).tableIdent().quotedString() : null;
  }

  /** Returns Spark's error for an assignment under the store assignment policy LEGACY. */
  public static Throwable legacyAssignment() {
    return QueryCompilationErrors$.MODULE$.legacyStoreAssignmentPolicyError();
  }

  /**
   * Returns Spark's error for an invalid assignment.
   *
   * @param messages the reasons
   */
  public static Throwable invalidAssignment(Assignment assignment, List<String> messages) {
    return (Throwable) QueryCompilationErrors$.MODULE$.invalidRowLevelOperationAssignments(
        Seqs.of(assignment), Seqs.copy(messages));
  }

  /**
   * Resolves a value of UPDATE or MERGE for its column, by Spark's rules of store assignment.
   *
   * @param addError receives error messages
   */
  public static Expression resolveUpdate(
      String table, Expression value, Object column, Object conf, Object addError, Object path) {
    Method method = method(TableOutputResolver$.class, "resolveUpdate");
    if (method == null) {
      throw missing("TableOutputResolver.resolveUpdate");
    }
    List<Object> arguments = new ArrayList<>(Arrays.asList(table, value, column, conf, addError, path));
    if (method.getParameterTypes().length > arguments.size()) {
      // Newer releases have a parameter for missing fields; NONE refuses them.
      arguments.add(call(object("org.apache.spark.sql.catalyst.analysis.TableOutputResolver$DefaultValueFillMode$"), "NONE"));
    }
    return (Expression) invoke(method, TableOutputResolver$.MODULE$, arguments.toArray());
  }

  /** Returns whether Spark fills the columns that a write by name leaves out, for any table; true since Spark 4.1. */
  public static boolean fillsMissingColumns() {
    return !org.apache.spark.package$.MODULE$.SPARK_VERSION().startsWith("4.0.");
  }

  /**
   * Returns rows in the schema of a table, by Spark's rules of writes by name. Missing columns get their defaults or
   * null.
   */
  public static LogicalPlan withMissingColumns(String table, Object columns, LogicalPlan rows) {
    Method method = method(TableOutputResolver$.class, "resolveOutputColumns");
    if (method == null) {
      throw missing("TableOutputResolver.resolveOutputColumns");
    }
    Object mode = Boolean.TRUE;
    if (method.getParameterTypes()[5] != boolean.class) {
      mode = call(object("org.apache.spark.sql.catalyst.analysis.TableOutputResolver$DefaultValueFillMode$"), "FILL");
    }
    Object[] arguments = {table, columns, rows, Boolean.TRUE, rows.conf(), mode};
    return (LogicalPlan) invoke(method, TableOutputResolver$.MODULE$, arguments);
  }

  /** Returns the criteria of INSERT ... REPLACE USING or ON, which are new in Spark 4.2; null for other plans. */
  public static Object replaceCriteria(LogicalPlan insert) {
    for (int i = 0; i < insert.productArity(); i++) {
      if (insert.productElementName(i).equals("replaceCriteriaOpt")) {
        scala.Option<?> criteria = (scala.Option<?>) insert.productElement(i);
        boolean replaces = criteria.isDefined() && isReplaceCriteria(criteria.get());
        return replaces ? criteria.get() : null;
      }
    }
    return null;
  }

  private static boolean isReplaceCriteria(Object criteria) {
    String kind = criteria.getClass().getSimpleName();
    return kind.equals("InsertReplaceUsing") || kind.equals("InsertReplaceOn");
  }

  /** Returns the columns of INSERT ... REPLACE USING; null for ON. */
  public static scala.collection.immutable.Seq<?> replaceColumns(Object criteria) {
    boolean isUsing = criteria.getClass().getSimpleName().equals("InsertReplaceUsing");
    return isUsing ? (scala.collection.immutable.Seq<?>) call(criteria, "cols") : null;
  }

  /** Returns the condition of INSERT ... REPLACE ON. */
  public static Expression replaceCondition(Object criteria) {
    return (Expression) call(criteria, "cond");
  }

  /** Returns the alias of the table in INSERT ... REPLACE ON, if there is one. */
  public static scala.Option<String> replaceAlias(Object criteria) {
    return Seqs.option(call(criteria, "tableAliasOpt"));
  }

  // The registry of spark_catalog: names, locations and columns of tables, in memory or in a metastore.

  /**
   * Returns provider (or null), location (or null), type and columns (as JSON) of a registered table; null if it is
   * not registered.
   */
  public static String[] registeredTable(SparkSession session, String database, String name) {
    try {
      CatalogTable table = session.sessionState().catalog().getTableMetadata(identifier(database, name));
      scala.Option<String> provider = table.provider();
      scala.Option<URI> location = table.storage().locationUri();
      return new String[] {
        provider.isEmpty() ? null : (String) provider.get(),
        location.isEmpty() ? null : CatalogUtils$.MODULE$.URIToString((URI) location.get()),
        table.tableType().name(),
        table.schema().json()
      };
    } catch (AnalysisException problem) {
      if (!(problem instanceof NoSuchTableException) && !(problem instanceof NoSuchNamespaceException)) {
        Platform.throwException(problem);
      }
      return null;
    }
  }

  /** Returns the folder of a managed table, as a URI. */
  public static String managedLocation(SparkSession session, String database, String name) {
    return CatalogUtils$.MODULE$.URIToString(session.sessionState().catalog().defaultTablePath(identifier(database, name)));
  }

  /**
   * Registers a table whose files exist.
   *
   * @param type MANAGED or EXTERNAL
   * @param schema the columns as JSON
   * @param comment null for none
   */
  public static void registerTable(
      SparkSession session, String database, String name, String location, String type, String schema, String comment) {
    Object uri = scala.Option.apply(CatalogUtils$.MODULE$.stringToURI(location));
    Object storage = copyOf(CatalogStorageFormat.empty(), Collections.singletonMap("locationUri", uri));
    CatalogTableType kind = type.equals("MANAGED") ? CatalogTableType.MANAGED() : CatalogTableType.EXTERNAL();
    List<Object> parts =
        new ArrayList<>(Arrays.<Object>asList(identifier(database, name), kind, storage, registryColumns(schema)));
    // The other parameters depend on the release.
    int count = CatalogTable.class.getConstructors()[0].getParameterTypes().length;
    while (parts.size() < count) {
      parts.add(call(CatalogTable$.MODULE$, "apply$default$" + (parts.size() + 1)));
    }
    Map<String, Object> optionalFields = new HashMap<>();
    optionalFields.put("provider", scala.Option.apply("lance"));
    optionalFields.put("comment", scala.Option.apply(comment));
    Object table = copyOf((scala.Product) construct(CatalogTable.class, parts.toArray()), optionalFields);
    // Without this flag, Spark requires the folder of a managed table to be empty, but the table is in it.
    session.sessionState().catalog().createTable((CatalogTable) table, false, false);
  }

  /** Removes a table from the registry. This also deletes the folder of a managed table. */
  public static void unregisterTable(SparkSession session, String database, String name) {
    session.sessionState().catalog().dropTable(identifier(database, name), true, false);
  }

  /** Replaces the columns of a registered table. */
  public static void changeRegisteredColumns(SparkSession session, String database, String name, String schema) {
    // SessionCatalog refuses to drop columns.
    Object registry = session.sessionState().catalog().externalCatalog();
    // Spark 4.0 only has the method for data columns, which does the same for tables without partitions.
    Method newer = method(registry.getClass(), "alterTableSchema");
    Method change = newer == null ? method(registry.getClass(), "alterTableDataSchema") : newer;
    invoke(change, registry, new Object[] {database, name, registryColumns(schema)});
  }

  /** Returns columns in the registry's form: CHAR and VARCHAR are strings with metadata. */
  public static StructType registryColumns(StructType columns) {
    return CharVarcharUtils$.MODULE$.replaceCharVarcharWithStringInSchema(columns);
  }

  /** Returns columns with their declared types: CHAR and VARCHAR instead of strings with metadata. */
  public static StructType declaredColumns(StructType columns) {
    return CharVarcharUtils$.MODULE$.getRawSchema(columns);
  }

  private static StructType registryColumns(String columns) {
    return registryColumns((StructType) DataType.fromJson(columns));
  }

  private static TableIdentifier identifier(String database, String name) {
    return new TableIdentifier(name, scala.Option.apply(database));
  }

  /** Copies an instance of a case class with other values of some fields, by name. */
  private static Object copyOf(scala.Product source, Map<String, Object> parts) {
    Object[] arguments = new Object[source.productArity()];
    for (int i = 0; i < arguments.length; i++) {
      String name = source.productElementName(i);
      arguments[i] = parts.containsKey(name) ? parts.get(name) : source.productElement(i);
    }
    return construct(source.getClass(), arguments);
  }

  // Reflection

  private static boolean hasClass(String name) {
    try {
      Class.forName(name, false, PythonTable.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException missing) {
      return false;
    }
  }

  private static Object object(String name) {
    try {
      return Class.forName(name, true, PythonTable.class.getClassLoader()).getField("MODULE$").get(null);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static Method method(Class<?> type, String name) {
    for (Method method : type.getMethods()) {
      if (method.getName().equals(name)) {
        return method;
      }
    }
    return null;
  }

  private static Object call(Object object, String name) {
    try {
      return invoke(object.getClass().getMethod(name), object);
    } catch (NoSuchMethodException problem) {
      throw missing(object.getClass().getName() + "." + name);
    }
  }

  // Throws what the method throws.
  private static Object invoke(Method method, Object object, Object... arguments) {
    try {
      return method.invoke(object, arguments);
    } catch (InvocationTargetException problem) {
      Platform.throwException(problem.getCause());
      return null;
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static Object construct(Class<?> type, Object... arguments) {
    Constructor<?> constructor = type.getConstructors()[0];
    try {
      return constructor.newInstance(arguments);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static Field field(Class<?> type, String name) {
    try {
      return type.getDeclaredField(name);
    } catch (NoSuchFieldException problem) {
      throw missing(type.getName() + "." + name);
    }
  }

  private static Object read(Field field, Object object) {
    try {
      field.setAccessible(true);
      return field.get(object);
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static void write(Field field, Object object, Object value) {
    try {
      field.setAccessible(true);
      field.set(object, value);
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
  }

  /** Returns the value of a field or a method without parameters, including private ones. */
  private static Object member(Object object, String name) {
    for (Method method : object.getClass().getDeclaredMethods()) {
      if (method.getName().equals(name) && method.getParameterTypes().length == 0) {
        method.setAccessible(true);
        return invoke(method, object);
      }
    }
    for (Field field : object.getClass().getDeclaredFields()) {
      if (field.getName().equals(name)) {
        return read(field, object);
      }
    }
    throw missing(object.getClass().getName() + "." + name);
  }

  private static scala.collection.immutable.Seq<?> sequence(List<?> values) {
    return Seqs.copy(values);
  }

  private static IllegalStateException missing(String name) {
    return new IllegalStateException("this release of Spark has no " + name);
  }
}
