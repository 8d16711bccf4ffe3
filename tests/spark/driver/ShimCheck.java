// Calls every method of org.lance.spark.shim in a session of the release that is on the class path, without Python.
//
// Compiled by test_java_units.py, which compares the answers with what it knows of the release.

package org.lance.spark.tests;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.command.RefreshTableCommand;
import org.apache.spark.sql.execution.datasources.v2.AlterTableExec;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;
import org.lance.spark.shim.WorkerShim;

public final class ShimCheck implements Callable {
  private static final StructType SCHEMA = new StructType().add("a", "long");
  private static final byte[] FUNCTION = {1};

  public ShimCheck() {}

  /** A source that needs no Python to be known. */
  public static final class Source extends PythonDataSourceV2 {
    public UserDefinedPythonDataSource source() {
      return new UserDefinedPythonDataSource(null);
    }
  }

  /** A rule that no analyzer has. */
  public static final class Nothing extends Rule {
    public TreeNode apply(TreeNode plan) {
      return plan;
    }
  }

  /** Counts the parsers that it is given. */
  private static final class Counting implements UnaryOperator {
    int count = 0;

    public Object apply(Object parser) {
      count++;
      return parser;
    }
  }

  /** Collects the errors of an assignment. */
  public static final class Errors extends scala.runtime.AbstractFunction1 {
    final List all = new ArrayList();

    public Object apply(Object error) {
      all.add(error);
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new IllegalStateException(what);
    }
  }

  /** The answers of methods that depend on the release, by name. Fails if another method does. */
  public Object call() throws Exception {
    SparkSession session = (SparkSession)
        SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1").config("spark.sql.catalogImplementation", "in-memory").getOrCreate();
    try {
      callers();
      columns();
      changes(session);
      session(session);
      source();
      worker();
      statements(session);
      registry(session);
      Map answers = new HashMap();
      answers.put("schemaEvolution", Shim.schemaEvolution() != null);
      answers.put("asksForSchemaChanges", Shim.asksForSchemaChanges());
      answers.put("hasConstraints", Shim.hasConstraints());
      answers.put("hasCondition", Shim.hasCondition("CHECK_CONSTRAINT_VIOLATION") && !Shim.hasCondition("NOPE"));
      answers.put("keepsViews", Shim.keepsViews());
      answers.put("makesTablesAlike", Shim.makesTablesAlike());
      answers.put("takesCatalystFilters", Shim.takesCatalystFilters());
      answers.put("keepsReadPlan", Shim.keepsReadPlan());
      answers.put("replaceCriteria", replaces(session));
      answers.put("changesSchema", evolves(session));
      return answers;
    } finally {
      session.stop();
    }
  }

  private static void callers() {
    check(!Callers.isSavingAsTable() && !Callers.isSavingByPath() && !Callers.isWriter() && !Callers.isCatalogApi(), "nobody writes");
    check(!Callers.isPipeline() && !Callers.namesDefaultFormat() && !Callers.isShowTableExtended(), "nobody creates or shows a table");
    check(!Callers.isResolvingRelations() && !Callers.isReadingRelations() && !Callers.isSchemaEvolution(), "nobody analyzes");
    check(!Callers.isMicroBatch() && !Callers.isStreaming() && !Callers.isStreamReader(), "nobody streams");
    check(!Callers.isExplaining(), "nobody explains");
  }

  private static void changes(SparkSession session) {
    TableCatalog catalog = (TableCatalog) session.sessionState().catalogManager().currentCatalog();
    Identifier table = Identifier.of(new String[] {"default"}, "t");
    check(Shim.alterTable(catalog, table, TableChange.setProperty("a", "b")) instanceof AlterTableExec, "a change of a table");
  }

  private static void columns() {
    ColumnDefaultValue value = new ColumnDefaultValue("1 + 1", new LiteralValue(2, DataTypes.IntegerType));
    check(Shim.defaultSql(value).equals("1 + 1"), "the SQL of a default");
  }

  private static void session(SparkSession session) {
    Counting counting = new Counting();
    Shim.replaceParser(session, counting);
    check(counting.count == 1, "a session has one parser");
    Nothing rule = new Nothing();
    for (int i = 0; i < 2; i++) {
      Shim.addHintResolutionRule(session, rule);
      Shim.addResolutionRule(session, rule);
    }
    check(session.sessionState().analyzer().hintResolutionRules().contains(rule), "the hint rule is missing");
    check(session.sessionState().analyzer().extendedResolutionRules().contains(rule), "the rule is missing");
    check(session.sql("SELECT 1").count() == 1L, "the session works");
    Shim.recacheTable(session, Arrays.asList(new Object[] {"spark_catalog", "default", "no_table"}));
  }

  private static void source() {
    PythonDataSourceV2 source = new Source();
    source.setShortName("lance");
    PythonTable table = Shim.tableOf(source, SCHEMA);
    check(Shim.sourceOf(table) == source && Shim.formatOf(table).equals("lance"), "the table of the source");
    PythonDataSourceV2 other = new Source();
    Shim.replaceSource(table, other);
    check(Shim.sourceOf(table) == other, "the other source");
    LogicalWriteInfo info = new LogicalWriteInfoImpl(
        "q", SCHEMA, CaseInsensitiveStringMap.empty(), Optional.empty(), Optional.empty());
    Write write = table.newWriteBuilder(info).build();
    check(Shim.writerFactory(PythonBatchWriterFactory.class, source, FUNCTION, SCHEMA, write.toBatch())
        instanceof PythonBatchWriterFactory, "writers of batches");
    check(Shim.writerFactory(PythonStreamingWriterFactory.class, source, FUNCTION, SCHEMA, write.toStreaming())
        instanceof PythonStreamingWriterFactory, "writers of streams");
    check(Shim.epochOf(new MicroBatchWrite(7L, write.toStreaming())) == 7L, "the epoch");
  }

  private static void worker() throws Exception {
    check(WorkerShim.missing() == null, "workers lack " + WorkerShim.missing());
    PythonDataSourceV2 source = new Source();
    source.setShortName("lance");
    PartitionReaderFactory factory = Shim.readerFactory(source, FUNCTION, SCHEMA, CaseInsensitiveStringMap.empty());
    WorkerShim worker = new WorkerShim(factory);
    check(worker.source() != null && worker.schema().equals(SCHEMA), "the parts of the factory");
    Exception problem = new Exception("x");
    check(WorkerShim.cause(new java.lang.reflect.InvocationTargetException(problem)) == problem, "the cause");
  }

  private static void statements(SparkSession session) throws Exception {
    LogicalPlan create = session.sessionState().sqlParser().parsePlan("CREATE TABLE t (a INT) USING lance");
    check("lance".equals(Shim.tableProvider(create).get()) && Shim.tableName(create) != null, "the parts of CREATE TABLE");
    LogicalPlan refresh = new RefreshTableCommand(new TableIdentifier("t"));
    check("`t`".equals(Shim.refreshedTable(refresh)) && Shim.refreshedTable(create) == null, "the table of REFRESH TABLE");
    check(Shim.legacyAssignment().getMessage().contains("LEGACY"), "the error of the policy LEGACY");
    Assignment assignment = new Assignment(Literal$.MODULE$.apply(1), Literal$.MODULE$.apply(2));
    check(Shim.invalidAssignment(assignment, Arrays.asList("refused")).getMessage().contains("refused"), "the error of an assignment");
    Object assignments = scala.collection.immutable.Nil$.MODULE$.appended(assignment);
    check(Shim.updateAction(scala.Option.empty(), (scala.collection.immutable.Seq) assignments).children().contains(assignment), "an update");
    LogicalPlan select = session.sessionState().sqlParser().parsePlan("SELECT 1");
    check(Shim.tableProvider(select) == null && Shim.tableName(select) == null, "SELECT creates nothing");
    AttributeReference column = new AttributeReference(
        "a", DataTypes.LongType, true, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$);
    Errors errors = new Errors();
    Object path = scala.collection.immutable.Nil$.MODULE$.appended("a");
    Object conf = SQLConf$.MODULE$.get();
    Expression stored = Shim.resolveUpdate("t", Literal$.MODULE$.apply(Integer.valueOf(1)), column, conf, errors, path);
    check(stored.dataType().equals(DataTypes.LongType) && errors.all.isEmpty(), "an INT is stored as a BIGINT");
    check(Shim.fillsMissingColumns() != session.version().startsWith("4.0."), "who fills missing columns");
    LogicalPlan rows = session.sql("SELECT 1L AS a").queryExecution().analyzed();
    Object columns = scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(column, column.withName("b").newInstance())).toList();
    LogicalPlan filled = Shim.withMissingColumns("t", columns, rows);
    check(filled.output().size() == 2 && filled.resolved(), "a missing column is filled");
    session.sql("CREATE VIEW one AS SELECT 1 AS a");
    View view = (View) session.table("one").queryExecution().analyzed().children().apply(0);
    View wide = (View) Shim.withSchema(view, SCHEMA.add("b", "string"));
    check(wide.desc().schema().size() == 2 && wide.child() == view.child(), "a view has other columns");
    session.sql("DROP VIEW one");
  }

  private static void registry(SparkSession session) {
    check(Shim.registeredTable(session, "default", "no_table") == null, "no table of the name");
    check(Shim.registeredTable(session, "no_database", "no_table") == null, "no database of the name");
    String place = Shim.managedLocation(session, "default", "registered");
    check(place.endsWith("/registered"), "the place of a managed table");
    StructType wide = SCHEMA.add("b", "string").add("c", "char(3)");
    check(Shim.registryColumns(wide).apply("c").dataType().equals(DataTypes.StringType), "CHAR as the registry keeps it");
    StructType declared = Shim.declaredColumns(Shim.registryColumns(wide));
    check(declared.apply("c").dataType().equals(wide.apply("c").dataType()), "CHAR as it was declared");
    Shim.registerTable(session, "default", "registered", place, "MANAGED", wide.json(), "words");
    Shim.changeRegisteredColumns(session, "default", "registered", SCHEMA.json());
    String[] table = Shim.registeredTable(session, "default", "registered");
    check(table[0].equals("lance") && table[2].equals("MANAGED"), "the registered table");
    check(table[1].endsWith("/registered") && table[3].equals(SCHEMA.json()), "its place and its changed columns");
    Shim.unregisterTable(session, "default", "registered");
    check(Shim.registeredTable(session, "default", "registered") == null, "the table is not registered any more");
    Shim.registerTable(session, "default", "registered", place, "EXTERNAL", SCHEMA.json(), null);
    check(Shim.registeredTable(session, "default", "registered")[2].equals("EXTERNAL"), "an external table");
    Shim.unregisterTable(session, "default", "registered");
  }

  // Whether this release parses MERGE WITH SCHEMA EVOLUTION. Before its tables are resolved the schema may change.
  private static boolean evolves(SparkSession session) throws Exception {
    String text = "INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE";
    check(!Shim.changesSchema((MergeIntoTable) session.sessionState().sqlParser().parsePlan("MERGE " + text)), "no evolution");
    LogicalPlan merge = session.sessionState().sqlParser().parsePlan("MERGE WITH SCHEMA EVOLUTION " + text);
    return Shim.changesSchema((MergeIntoTable) merge);
  }

  // Whether this release parses INSERT ... REPLACE USING and ON.
  private static boolean replaces(SparkSession session) throws Exception {
    LogicalPlan using;
    try {
      using = session.sessionState().sqlParser().parsePlan("INSERT INTO t REPLACE USING (a) SELECT 1 AS a");
    } catch (Exception refused) {
      return false;
    }
    Object criteria = Shim.replaceCriteria(using);
    check(Shim.replaceColumns(criteria).head().equals("a"), "the columns of USING");
    String text = "INSERT INTO t AS x REPLACE ON x.a = 1 SELECT 1 AS a";
    Object on = Shim.replaceCriteria(session.sessionState().sqlParser().parsePlan(text));
    check(Shim.replaceColumns(on) == null && Shim.replaceCondition(on).sql().contains("1"), "the condition of ON");
    check("x".equals(Shim.replaceAlias(on).get()), "the alias of ON");
    return true;
  }
}
