package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.UserDefinedGenerator;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoStatement;
import org.apache.spark.sql.catalyst.plans.logical.InsertStarAction;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UpdateStarAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Json;
import org.lance.spark.load.OptionalUnit;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;

/**
 * Rules and a planner strategy that run DELETE, UPDATE and MERGE on Lance tables, in every session of the driver.
 *
 * <p>Spark resolves these statements for every table. It then refuses them if a source has no row-level operations,
 * as Python data sources. The optimizer rule replaces such a statement by a node of this package, and the strategy
 * plans that node. Spark calls both for every query, also in sessions that are older than the rules. Spark cannot
 * remove them, so they are added once to the extensions that the sessions of a context share.
 *
 * <p>The unit LanceRowLevel does the work, and is compiled with the first such statement. Without it the plan stays
 * unchanged, and Spark refuses the statement. The strategy also calls LanceWriteRows (writes of few rows),
 * LanceWriteColumns (writes of columns) and LanceLateral (searches for each row). LanceShardDistribution plans
 * micro-batches of upserts, and LanceLocalProjection computes values over few rows in the driver.
 * LanceConstrainedTable plans ADD CONSTRAINT ... CHECK.
 */
public final class LanceStatements {
  private static final String RELATIONS = "org.lance.spark.catalog.LanceRelations";
  private static final String NEW_COLUMNS = "org.lance.spark.write.LanceNewColumns";
  private static final String MISSING_COLUMNS = "org.lance.spark.write.LanceMissingColumns";
  private static final String GENERATED = "org.lance.spark.write.LanceGeneratedColumns";
  private static final String SOURCES = "org.lance.spark.rowlevel.LanceSources";
  private static final String UNIT = "org.lance.spark.rowlevel.LanceRowLevel";
  private static final String COUNTS = "org.lance.spark.rowlevel.LanceCounts";
  private static final String ASSIGNMENTS = "org.lance.spark.rowlevel.LanceAssignments";
  private static final String SESSION_CATALOG = "org.lance.spark.catalog.LanceSessionCatalog";
  private static final String WRITE = "org.lance.spark.write.LanceWrite$PythonWrite";
  private static final String ORDERED = "org.lance.spark.write.LanceWrite$OrderedWrite";
  private static final String FEW_ROWS = "org.lance.spark.write.LanceWriteRows";
  // The column Bridge.FILE_METADATA. Bridge is compiled later than this class.
  private static final String FILE_METADATA = "_metadata";
  private static final String ROW_TRACKING = "org.lance.spark.scan.LanceRowTracking";
  private static final String COLUMNS = "org.lance.spark.write.LanceWriteColumns";
  private static final String CONSTRAINED = "org.lance.spark.catalog.LanceConstrainedTable";
  private static final String SEARCHES = "org.lance.spark.search.LanceLateral";
  private static final String STREAM = "org.lance.spark.write.LanceWrite$Stream";
  private static final String ROUTES = "org.lance.spark.write.LanceShardDistribution";
  private static final String ROWS = "org.lance.spark.scan.LanceRows";
  private static final String LOCAL = "org.lance.spark.scan.LanceLocalProjection";
  // The extensions that already have the rules. A weak map, because stopped contexts drop their extensions.
  private static final Map<SparkSessionExtensions, Boolean> EXTENSIONS = new WeakHashMap<>();

  // Lower-case names of the option that reads the change feed, from its declaration in Python.
  private static volatile List<String> changeFeed = new ArrayList<>();

  private LanceStatements() {}

  private static boolean isChange(Object plan) {
    return plan instanceof DeleteFromTable || plan instanceof UpdateTable || plan instanceof MergeIntoTable;
  }

  /** The node of a rewritten statement. */
  public interface RewrittenStatement {
    /** Returns the physical plan that runs the statement. */
    SparkPlan physicalPlan();
  }

  /** Adds the rules and the strategy to all sessions. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Start implements BiConsumer {
    public void accept(Object session, Object arguments) {
      changeFeed = Json.names(((Map<?, ?>) ((Map<?, ?>) arguments).get("options")).get("changeFeed"));
      inject(((SparkSession) session).extensions());
      // The analyzer of this session exists already, so it gets the rules directly.
      Shim.addHintResolutionRule((SparkSession) session, new NameRule());
      try {
        Shim.addResolutionRule((SparkSession) session, new AssignmentRule());
      } catch (IllegalStateException problem) {
        LoggerFactory.getLogger("spark_lance").warn("UPDATE and MERGE cast their values themselves: " + problem.getMessage());
      }
    }
  }

  private static void inject(SparkSessionExtensions extensions) {
    synchronized (LanceStatements.class) {
      if (EXTENSIONS.put(extensions, Boolean.TRUE) == null) {
        extensions.injectOptimizerRule(Seqs.function(new Rules()));
        extensions.injectPlannerStrategy(Seqs.function(new Strategies()));
        extensions.injectHintResolutionRule(Seqs.function(new NameRules()));
        extensions.injectResolutionRule(Seqs.function(new Resolutions()));
      }
    }
  }

  /** Creates the optimizer rule of a session. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Rules extends scala.runtime.AbstractFunction1 {
    public Object apply(Object session) {
      return new RewriteRule();
    }
  }

  /** Creates the analyzer rule of a session. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Resolutions extends scala.runtime.AbstractFunction1 {
    public Object apply(Object session) {
      return new AssignmentRule();
    }
  }

  /**
   * Resolves the values that UPDATE and MERGE assign to columns of Lance tables, and updates the columns of views
   * with schema evolution. Sessions that were created before {@code enable} lack the rule, except for the enabled
   * session.
   */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class AssignmentRule extends Rule {
    public TreeNode apply(TreeNode plan) {
      return statement(Shim.keepsViews() ? ((LogicalPlan) plan).transformDownWithSubqueries(Seqs.partial(new ViewEvolution())) : plan);
    }

    private static TreeNode statement(TreeNode plan) {
      String kind = plan.getClass().getSimpleName();
      if (kind.equals("ShowTables")) {
        OptionalUnit unit = OptionalUnit.ofThread(SESSION_CATALOG);
        return unit == null ? plan : (TreeNode) unit.call("showTables", new Object[] {plan});
      }
      if (plan instanceof InsertIntoStatement && !Shim.fillsMissingColumns()) {
        OptionalUnit unit = OptionalUnit.ofThread(MISSING_COLUMNS);
        return unit == null ? plan : (TreeNode) unit.call("insert", new Object[] {plan});
      }
      if (plan instanceof V2WriteCommand && hasGeneratedColumns((LogicalPlan) ((V2WriteCommand) plan).table())) {
        OptionalUnit unit = OptionalUnit.ofThread(GENERATED);
        return unit == null ? plan : (TreeNode) unit.call("compute", new Object[] {plan});
      }
      if (!isChange(plan)) {
        return plan;
      }
      return counted(plan instanceof DeleteFromTable ? plan : resolveValues(plan));
    }

    /** Returns a statement whose result are counts; the statement itself if it has them, or changes no Lance table. */
    private static TreeNode counted(TreeNode plan) {
      if (!((LogicalPlan) plan).output().isEmpty()) {
        return plan;
      }
      try {
        OptionalUnit unit = OptionalUnit.ofThread(COUNTS);
        return unit == null ? plan : (TreeNode) unit.call("counted", plan);
      } catch (Throwable problem) {
        RewriteRule.warn(problem);
        return plan;
      }
    }

    private static TreeNode resolveValues(TreeNode plan) {
      Object statement = null;
      try {
        OptionalUnit unit = OptionalUnit.ofThread(ASSIGNMENTS);
        statement = unit == null ? null : unit.call("resolveValues", plan);
      } catch (Throwable problem) {
        refuse(problem);
      }
      return statement == null ? plan : (TreeNode<?>) statement;
    }

    private static boolean hasGeneratedColumns(LogicalPlan table) {
      boolean result = false;
      for (Attribute column : Seqs.view(table.resolved() ? table.output() : Seqs.<Attribute>empty())) {
        result = result || column.metadata().contains("spark_lance.generation_expression");
      }
      return result;
    }

    /** Throws Spark's errors about a value. For other problems Spark runs the statement, after a warning. */
    private static void refuse(Throwable problem) {
      if (problem instanceof SparkThrowable) {
        Platform.throwException(problem);
      }
      RewriteRule.warn(problem);
    }
  }

  /** Updates the columns of views WITH SCHEMA EVOLUTION. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class ViewEvolution extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      if (!(node instanceof View)) {
        return false;
      }
      View view = (View) node;
      return !view.isTempView() && view.child().resolved() && view.desc().viewSchemaMode().toString().endsWith("EVOLUTION");
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      OptionalUnit unit = OptionalUnit.ofThread(RELATIONS);
      return unit == null ? node : unit.call("evolveView", node);
    }
  }

  /** Creates the planner strategy of a session. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Strategies extends scala.runtime.AbstractFunction1 {
    public Object apply(Object session) {
      return new Planner();
    }
  }

  /** Creates the rule for table names of a session. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class NameRules extends scala.runtime.AbstractFunction1 {
    public Object apply(Object session) {
      return new NameRule();
    }
  }

  /** Resolves table names whose options read something other than rows: see LanceRelations. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class NameRule extends Rule {
    public TreeNode apply(TreeNode plan) {
      return ((LogicalPlan) plan).transformDownWithSubqueries(Seqs.partial(new NameResolution()));
    }
  }

  /** Passes nodes to LanceRelations and the units of writes before Spark resolves them. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class NameResolution extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      if (node instanceof InsertIntoStatement) {
        return replaces((InsertIntoStatement) node);
      }
      if (isLike(node) || isRefusedView(node)) {
        return true;
      }
      if (node instanceof MergeIntoTable) {
        return ((MergeIntoTable) node).withSchemaEvolution() || setsAllColumns((MergeIntoTable) node);
      }
      if (node instanceof V2WriteCommand) {
        return changesColumns((LogicalPlan) node) || lacksColumns((V2WriteCommand) node);
      }
      if (!(node instanceof UnresolvedRelation)) {
        return false;
      }
      CaseInsensitiveStringMap options = ((UnresolvedRelation) node).options();
      boolean reads = false;
      for (String option : changeFeed) {
        reads = reads || isTrue(options.get(option));
      }
      return reads;
    }

    /** Returns whether an INSERT replaces rows USING columns or ON a condition, which is new in Spark 4.2. */
    private static boolean replaces(InsertIntoStatement insert) {
      return Shim.replaceCriteria(insert) != null;
    }

    /** Returns whether a node is CREATE TABLE ... LIKE, whose class depends on the release of Spark. */
    private static boolean isLike(Object node) {
      return node.getClass().getSimpleName().startsWith("CreateTableLike");
    }

    /** Returns whether a MERGE has UPDATE SET * or INSERT *. */
    private static boolean setsAllColumns(MergeIntoTable merge) {
      boolean result = false;
      for (Object action : Seqs.view(merge.matchedActions())) {
        result = result || action instanceof UpdateStarAction;
      }
      for (Object action : Seqs.view(merge.notMatchedActions())) {
        result = result || action instanceof InsertStarAction;
      }
      return result;
    }

    /** Returns whether Spark refuses a write by name with missing columns. */
    private static boolean lacksColumns(V2WriteCommand write) {
      return write.isByName() && !Shim.fillsMissingColumns();
    }

    /** Returns whether a node is a statement about views, or the name of a view, which Spark has only in its catalog. */
    private static boolean isRefusedView(Object node) {
      String kind = node.getClass().getSimpleName();
      boolean isView = kind.equals("CreateView") || kind.equals("DropView") || kind.equals("ShowViews") || kind.equals("UnresolvedView");
      boolean renames = kind.equals("RenameTable") && Boolean.TRUE.equals(((LogicalPlan) node).productElement(2));
      return (isView || renames) && !Shim.keepsViews();
    }

    private static boolean changesColumns(LogicalPlan write) {
      for (int i = 0; i < write.productArity(); i++) {
        if (write.productElementName(i).equals("writeOptions")) {
          CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(
              scala.jdk.javaapi.CollectionConverters.asJava(Seqs.<String, String>map(write.productElement(i))));
          return isTrue(options.get("mergeSchema")) || isTrue(options.get("overwriteSchema"));
        }
      }
      return false;
    }

    private static boolean isTrue(String text) {
      return text != null && (text.trim().equalsIgnoreCase("true") || text.trim().equals("1"));
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      boolean isMerge = node instanceof MergeIntoTable;
      boolean isWrite = node instanceof V2WriteCommand;
      if (isWrite && !changesColumns((LogicalPlan) node)) {
        OptionalUnit unit = OptionalUnit.ofThread(MISSING_COLUMNS);
        return unit == null ? node : unit.call("write", node);
      }
      OptionalUnit unit = OptionalUnit.ofThread(isMerge ? SOURCES : isWrite ? NEW_COLUMNS : RELATIONS);
      String reads = node instanceof UnresolvedRelation ? "changes" : "replaceRows";
      if (isRefusedView(node)) {
        return unit == null ? node : unit.call("refuseView", node);
      }
      return unit == null ? node : unit.call(isLike(node) ? "createTableLike" : isMerge ? "fitSource" : isWrite ? "addColumns" : reads, node);
    }
  }

  /**
   * The optimizer rule: replaces DELETE, UPDATE and MERGE on Lance tables by the node of LanceRowLevel, and Delta's
   * fields of row tracking in a query by columns.
   */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class RewriteRule extends Rule {
    public TreeNode apply(TreeNode plan) {
      if (!isChange(plan)) {
        OptionalUnit fields = readsFileMetadata((LogicalPlan) plan) ? OptionalUnit.ofThread(ROW_TRACKING) : null;
        return fields == null ? plan : (TreeNode) fields.call("computeFields", plan);
      }
      Object rewrittenStatement = null;
      try {
        OptionalUnit unit = OptionalUnit.ofThread(UNIT);
        rewrittenStatement = unit == null ? null : unit.call("rewrite", plan);
      } catch (UnsupportedOperationException refusal) {
        throw refusal;
      } catch (Throwable problem) {
        warn(problem);
      }
      return rewrittenStatement == null ? plan : (TreeNode<?>) rewrittenStatement;
    }

    /** Returns whether a plan reads a column with the name of Spark's file metadata from a table. */
    private static boolean readsFileMetadata(LogicalPlan plan) {
      boolean result = false;
      for (Object leaf : Seqs.view(plan.collectLeaves())) {
        if (leaf instanceof DataSourceV2Relation) {
          for (Attribute column : Seqs.view(((DataSourceV2Relation) leaf).output())) {
            result = result || column.name().equals(FILE_METADATA);
          }
        }
      }
      return result;
    }

    /** Logs why a statement was left to Spark. */
    static void warn(Throwable problem) {
      LoggerFactory.getLogger("spark_lance").warn("A statement was left to Spark: " + problem);
    }
  }

  /** The planner strategy for the nodes of this package, and for writes and projections that the driver runs itself. */
  public static final class Planner extends SparkStrategy {
    public scala.collection.immutable.Seq<SparkPlan> apply(LogicalPlan plan) {
      scala.collection.immutable.Seq<SparkPlan> none = Seqs.empty();
      SparkPlan physical = plan instanceof RewrittenStatement ? ((RewrittenStatement) plan).physicalPlan() : planWrite(plan);
      physical = physical == null ? planSearch(plan) : physical;
      physical = physical == null ? planConstraint(plan) : physical;
      physical = physical == null ? planProjection(plan) : physical;
      return physical == null ? none : Seqs.append(none, physical);
    }

    /** Returns the physical plan of ADD CONSTRAINT ... CHECK on a table with constraints; null for other plans. */
    private static SparkPlan planConstraint(LogicalPlan plan) {
      if (!plan.getClass().getSimpleName().equals("AddCheckConstraint")) {
        return null;
      }
      LogicalPlan rows = (LogicalPlan) plan.children().head();
      while (rows.children().size() == 1) {
        rows = (LogicalPlan) rows.children().head();
      }
      Object table = rows instanceof DataSourceV2ScanRelation ? ((DataSourceV2ScanRelation) rows).relation().table() : rows;
      OptionalUnit unit = OptionalUnit.find(CONSTRAINED, table.getClass().getClassLoader());
      return unit != null && unit.isClassOf(table) ? planWithUnit(CONSTRAINED, table, plan, "A constraint") : null;
    }

    /** Returns the physical plan of a search for each row of a relation; null for other plans. */
    private static SparkPlan planSearch(LogicalPlan plan) {
      LogicalPlan search = plan instanceof Project ? ((Project) plan).child() : plan;
      if (!(search instanceof Generate) || !(((Generate) search).generator() instanceof UserDefinedGenerator)) {
        return null;
      }
      Object function = ((UserDefinedGenerator) ((Generate) search).generator()).function();
      if (!function.getClass().getName().startsWith(SEARCHES)) {
        return null;
      }
      OptionalUnit unit = OptionalUnit.find(SEARCHES, function.getClass().getClassLoader());
      return unit == null ? null : (SparkPlan) unit.call("planPhysical", plan);
    }

    /** Returns the physical plan of a projection over rows that the driver has read; null for other plans. */
    private static SparkPlan planProjection(LogicalPlan plan) {
      if (!(plan instanceof Project) || !(((Project) plan).child() instanceof DataSourceV2ScanRelation)) {
        return null;
      }
      Object scan = ((DataSourceV2ScanRelation) ((Project) plan).child()).scan();
      return scan.getClass().getName().equals(ROWS) ? planWithUnit(LOCAL, scan, plan, "A projection") : null;
    }

    @SuppressWarnings("deprecation") // Spark plans micro-batches with this class.
    private static boolean isMicroBatch(LogicalPlan plan) {
      return plan instanceof WriteToDataSourceV2 && ((WriteToDataSourceV2) plan).batchWrite() instanceof MicroBatchWrite;
    }

    /**
     * Returns the physical plan of a write: of few rows, of columns, or of a micro-batch whose rows go to certain
     * tasks; null for other writes.
     */
    @SuppressWarnings("deprecation") // Spark plans micro-batches with this class.
    private static SparkPlan planWrite(LogicalPlan plan) {
      scala.Option<?> write = null;
      String kind = WRITE;
      String planner = FEW_ROWS;
      if (plan instanceof AppendData) {
        write = ((AppendData) plan).write();
      } else if (plan instanceof OverwriteByExpression) {
        write = ((OverwriteByExpression) plan).write();
      } else if (plan instanceof OverwritePartitionsDynamic) {
        write = ((OverwritePartitionsDynamic) plan).write();
      } else if (isMicroBatch(plan)) {
        write = scala.Option.apply((Object) ((MicroBatchWrite) ((WriteToDataSourceV2) plan).batchWrite()).writeSupport());
        kind = STREAM;
        planner = ROUTES;
      }
      String name = write == null || write.isEmpty() ? "" : write.get().getClass().getName();
      if (!name.equals(kind) && !(name.equals(ORDERED) && kind.equals(WRITE))) {
        return null;
      }
      SparkPlan physical = planWithUnit(planner, write.get(), plan, "A write");
      return physical == null && kind.equals(WRITE) ? planWithUnit(COLUMNS, write.get(), plan, "A write") : physical;
    }

    /**
     * Asks a unit for a physical plan.
     *
     * @param part the scan or write of the plan, whose class loader has the unit
     * @param planKind the kind of plan, for the warning
     * @return null if Spark has to plan it
     */
    private static SparkPlan planWithUnit(String planner, Object part, LogicalPlan plan, String planKind) {
      try {
        OptionalUnit unit = OptionalUnit.find(planner, part.getClass().getClassLoader());
        return unit == null ? null : (SparkPlan) unit.call("planPhysical", plan);
      } catch (Throwable problem) {
        LoggerFactory.getLogger("spark_lance").warn(planKind + " was left to Spark's own plan: " + problem);
        return null;
      }
    }
  }
}
