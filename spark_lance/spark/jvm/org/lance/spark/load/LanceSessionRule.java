package org.lance.spark.load;

import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf$;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;

/** The optimizer rule of every session of the driver. */
public final class LanceSessionRule {
  private LanceSessionRule() {}

  /** Adds the rule to all sessions of the driver. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Start implements BiConsumer {
    public void accept(Object session, Object request) {
      new RuleBuilder().inject(((SparkSession) session).extensions());
    }
  }

  /** Creates the rule of a session. Every session of the driver has it, from its next query on. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class RuleBuilder extends scala.runtime.AbstractFunction1 {
    // Extensions with the rule. All sessions of a context share them.
    private static final Map<SparkSessionExtensions, Boolean> EXTENSIONS = new WeakHashMap<>();

    /** Injects the rule into the extensions of a context, once. Spark cannot remove it again. */
    public void inject(SparkSessionExtensions extensions) {
      synchronized (RuleBuilder.class) {
        if (EXTENSIONS.put(extensions, Boolean.TRUE) == null) {
          extensions.injectOptimizerRule(Seqs.function(this));
        }
      }
    }

    public Object apply(Object session) {
      return new SessionRule();
    }
  }

  /** The rule. Spark calls it for every plan, so it checks classes first. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class SessionRule extends Rule {
    private static final String APPROXIMATE = "spark.lance.approximateSearch";
    private static final String RECURSION = "org.apache.spark.sql.catalyst.plans.logical.UnionLoop";
    // Whether the plan that this thread optimizes has a recursive query.
    private static final ThreadLocal<Boolean> IS_RECURSIVE = new ThreadLocal<>();

    /**
     * Returns whether the plan that this thread optimizes has a recursive query. Spark analyzes the optimized plan
     * again for each iteration, and fails if the plan has runtime filters.
     */
    public static boolean isRecursive() {
      return Boolean.TRUE.equals(IS_RECURSIVE.get());
    }

    private static boolean hasLoop(TreeNode<?> plan) {
      boolean isLoop = plan.getClass().getName().equals(RECURSION);
      for (int i = 0; i < plan.children().size() && !isLoop; i++) {
        isLoop = hasLoop((TreeNode<?>) plan.children().apply(i));
      }
      return isLoop;
    }

    public TreeNode apply(TreeNode plan) {
      IS_RECURSIVE.set(hasLoop(plan));
      refuseTable(plan);
      if (plan instanceof LogicalPlan) {
        ViewRefresh.refresh((LogicalPlan) plan);
      }
      if (!SQLConf$.MODULE$.get().getConfString(APPROXIMATE, "false").equals("true")) {
        return plan;
      }
      OptionalUnit nearest = OptionalUnit.find("org.lance.spark.search.LanceNearest", getClass().getClassLoader());
      return nearest == null ? plan : ((Rule<TreeNode<?>>) nearest.construct()).apply(plan);
    }

    // Spark's own catalog passes neither options nor locations of tables to Python data sources.
    private static void refuseTable(TreeNode<?> plan) {
      scala.Option<String> provider = Shim.tableProvider(plan);
      Object name = provider == null ? null : Shim.tableName(plan);
      if (!(name instanceof ResolvedIdentifier)) {
        return;
      }
      boolean isSparkCatalog = ((ResolvedIdentifier) name).catalog().name().equals("spark_catalog");
      if (isSparkCatalog && provider.isDefined() && ((String) provider.get()).equalsIgnoreCase("lance") && hasCatalog() && !isSessionCatalog()) {
        throw new IllegalArgumentException(
            "Spark's own catalog cannot keep Lance tables until spark_lance.enable(spark, catalog='spark_catalog'): call it, "
                + "or make the table in another catalog of spark_lance.enable, as in "
                + "CREATE TABLE lance.db.t or lance.`/data/t`, or CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')");
      }
    }

    /** Returns whether the session has a catalog of this package, as every enabled session. */
    static boolean hasCatalog() {
      return scala.jdk.javaapi.CollectionConverters.asJava(SQLConf$.MODULE$.get().getAllConfs())
          .containsValue("org.lance.spark.catalog.LanceCatalog") || isSessionCatalog();
    }

    /** Returns whether spark_catalog has Lance tables. */
    private static boolean isSessionCatalog() {
      return SQLConf$.MODULE$.get().getConfString("spark.sql.catalog.spark_catalog", "")
          .equals("org.lance.spark.catalog.LanceSessionCatalog");
    }
  }

  /**
   * Refreshes views after writes. Spark keeps the source of a view, with the version that the source has pinned, as
   * long as the view exists. After a write through the view, or REFRESH TABLE, the next query of the view gets a new
   * source. A write by path has its own source, so it changes no other reader's version. Sessions that have not
   * enabled Lance keep Spark's behaviour. DELETE, UPDATE and MERGE are an exception, as this package runs them in
   * every session of the driver.
   */
  public static final class ViewRefresh {
    // Sources whose versions are no longer the newest.
    private static final Map<PythonDataSourceV2, Boolean> STALE = new WeakHashMap<>();

    /** Renews the stale tables of a plan, and marks the table that the plan changes. It runs before the plan does. */
    static synchronized void refresh(LogicalPlan plan) {
      try {
        if (!STALE.isEmpty()) {
          plan.foreach(Seqs.function(new PlanVisitor(false)));
        }
        String name = Shim.refreshedTable(plan);
        boolean changes = plan instanceof V2WriteCommand || name != null;
        if (!changes || !SessionRule.hasCatalog()) {
          return;
        }
        if (plan instanceof V2WriteCommand) {
          mark(((V2WriteCommand) plan).table());
        } else {
          SparkSession session = (SparkSession) SparkSession.active();
          session.table(name).queryExecution().analyzed().foreach(Seqs.function(new PlanVisitor(true)));
        }
      } catch (Exception problem) {
        LoggerFactory.getLogger("spark_lance").warn("A view may show old rows of a Lance table: " + problem);
      }
    }

    /** Marks the table of a node of a plan as changed, so that the next query of a view reads the newest version. */
    public static synchronized void mark(Object relation) {
      PythonTable table = table(relation);
      if (table != null) {
        STALE.put(Shim.sourceOf(table), Boolean.TRUE);
      }
    }

    private static void renew(Object relation) {
      PythonTable table = table(relation);
      if (table != null && STALE.containsKey(Shim.sourceOf(table))) {
        String name = Shim.formatOf(table);
        PythonDataSourceV2 newSource = new PythonDataSourceV2();
        newSource.setShortName(name);
        if (table.getClass() == PythonTable.class) {
          // This pins the version for later scans. Tables that the driver plans pin it themselves.
          newSource.getOrCreateDataSourceInPython(
              name, ((DataSourceV2Relation) relation).options(), scala.Option.apply(table.schema()));
        }
        Shim.replaceSource(table, newSource);
      }
    }

    /** Returns the Lance table that a node of a plan reads or writes; null if it reads none. */
    private static PythonTable table(Object node) {
      if (!(node instanceof DataSourceV2Relation)) {
        return null;
      }
      Table table = ((DataSourceV2Relation) node).table();
      boolean isLance = table instanceof PythonTable && "lance".equalsIgnoreCase(Shim.formatOf((PythonTable) table));
      return isLance ? (PythonTable) table : null;
    }
  }

  /** Marks the tables of a plan as stale, or gives stale tables a new source. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  static final class PlanVisitor extends scala.runtime.AbstractFunction1 {
    private final boolean marks;

    PlanVisitor(boolean marks) {
      this.marks = marks;
    }

    public Object apply(Object node) {
      if (marks) {
        ViewRefresh.mark(node);
      } else {
        ViewRefresh.renew(node);
      }
      return scala.runtime.BoxedUnit.UNIT;
    }
  }
}
