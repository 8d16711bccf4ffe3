// What Spark knows of before its classes are compiled: functions by name, and a rule of the optimizer. The first use
// compiles them.
//
// Compiled in the driver by Janino.

package org.lance.spark.load;

import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistryBase;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.command.RefreshTableCommand;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf$;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.collection.immutable.Seq;

@SuppressWarnings("rawtypes") // Janino makes no bridge methods.
public final class LanceLate extends scala.runtime.AbstractFunction1 {
  private final String unit;
  private final String function;
  private final String catalog;
  private scala.Function1<Object, Object> made = null;

  /** Makes the functions known to a session, and the rule to all sessions of the driver. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Start implements BiConsumer {
    public void accept(Object given, Object asked) {
      SparkSession session = (SparkSession) given;
      Map<String, Object> wish = (Map<String, Object>) asked;
      SparkSessionExtensions extensions = session.extensions();
      boolean later = (Boolean) wish.get("newSessions");
      scala.Option<String> none = scala.Option.apply(null);
      List<Map<String, Object>> functions = (List<Map<String, Object>>) wish.get("functions");
      for (Map<String, Object> one : functions) {
        String unit = (String) one.get("unit");
        String name = (String) one.get("name");
        boolean rows = (Boolean) one.get("rows");
        FunctionRegistryBase<?> registry =
            rows
                ? (FunctionRegistryBase<?>) session.sessionState().tableFunctionRegistry()
                : (FunctionRegistryBase<?>) session.sessionState().functionRegistry();
        // Newer releases put a catalog and a namespace before the names of functions, others nothing.
        FunctionIdentifier known = (FunctionIdentifier) registry.listFunction().head();
        ExpressionInfo about =
            new ExpressionInfo(unit, null, name, (String) one.get("usage"), "");
        LanceLate builder = new LanceLate(unit, name, (String) wish.get("catalog"));
        registry.registerFunction(known.copy(name, known.database(), known.catalog()), about, builder);
        scala.Tuple3 described = new scala.Tuple3(known.copy(name, none, none), about, builder);
        if (later && rows) {
          extensions.injectTableFunction(described);
        } else if (later) {
          extensions.injectFunction(described);
        }
      }
      new ForSessions().inject(extensions);
    }
  }

  // The builder of a function: the class of a unit, which is made of the function's name and a catalog's.
  public LanceLate(String unit, String function, String catalog) {
    this.unit = unit;
    this.function = function;
    this.catalog = catalog;
  }

  public Object apply(Object arguments) {
    return builder().apply(arguments);
  }

  private synchronized scala.Function1<Object, Object> builder() {
    if (made == null) {
      OptionalUnit found = OptionalUnit.find(unit, getClass().getClassLoader());
      if (found == null) {
        throw new UnsupportedOperationException(function + " is not there in this release of Spark");
      }
      made = (scala.Function1<Object, Object>) found.construct(function, catalog);
    }
    return made;
  }

  // Gives every session of the driver the rule, from its next query on.
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class ForSessions extends scala.runtime.AbstractFunction1 {
    // Extensions that have it: all sessions of a context share them, and they are gone with it.
    private static final Map<SparkSessionExtensions, Boolean> GIVEN = new WeakHashMap<>();

    // Gives them the rule, if they have not got it before: it cannot be taken back.
    public void inject(SparkSessionExtensions extensions) {
      synchronized (ForSessions.class) {
        if (GIVEN.put(extensions, Boolean.TRUE) == null) {
          extensions.injectOptimizerRule(this);
        }
      }
    }

    public Object apply(Object session) {
      return new LateRule();
    }
  }

  // Refuses tables that nothing could read, lets views see what was written through them, and lets the index answer
  // ORDER BY distance LIMIT k where that is wanted.
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class LateRule extends Rule {
    private static final String APPROXIMATE = "spark.lance.approximateSearch";

    public TreeNode apply(TreeNode plan) {
      refuse(plan);
      if (plan instanceof LogicalPlan) {
        Views.see((LogicalPlan) plan);
      }
      if (!SQLConf$.MODULE$.get().getConfString(APPROXIMATE, "false").equals("true")) {
        return plan;
      }
      OptionalUnit nearest = OptionalUnit.find("org.lance.spark.search.LanceNearest", getClass().getClassLoader());
      return nearest == null ? plan : ((Rule<TreeNode<?>>) nearest.construct()).apply(plan);
    }

    // Spark's own catalog hands neither options nor places of tables to formats of Python.
    private static void refuse(TreeNode<?> plan) {
      scala.Option<String> provider = Shim.tableProvider(plan);
      Object name = provider == null ? null : Shim.tableName(plan);
      if (!(name instanceof ResolvedIdentifier)) {
        return;
      }
      boolean own = ((ResolvedIdentifier) name).catalog().name().equals("spark_catalog");
      if (own && provider.isDefined() && ((String) provider.get()).equalsIgnoreCase("lance") && hasCatalog() && !isSessionCatalog()) {
        throw new IllegalArgumentException(
            "Spark's own catalog cannot keep Lance tables until spark_lance.enable(spark, catalog='spark_catalog'): call it, "
                + "or make the table in another catalog of spark_lance.enable, as in "
                + "CREATE TABLE lance.db.t or lance.`/data/t`, or CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')");
      }
    }

    // Whether the session has a catalog of Lance, as those have that were enabled.
    static boolean hasCatalog() {
      return scala.jdk.javaapi.CollectionConverters.asJava(SQLConf$.MODULE$.get().getAllConfs())
          .containsValue("org.lance.spark.catalog.LanceCatalog") || isSessionCatalog();
    }

    // Whether the session's own catalog has Lance tables.
    private static boolean isSessionCatalog() {
      return SQLConf$.MODULE$.get().getConfString("spark.sql.catalog.spark_catalog", "")
          .equals("org.lance.spark.catalog.LanceSessionCatalog");
    }
  }

  // Views of tables. Spark keeps the source of a view, with the version that the source has pinned, for as long as
  // the view lasts. After a write through the view, or REFRESH TABLE, the next query of it gets a source of its own.
  // A write by path has a source of its own anyway, so it moves nobody's version. Sessions that have not enabled Lance
  // keep to what Spark does, but for DELETE, UPDATE and MERGE, which are ours in every session of the driver.
  public static final class Views {
    // Sources with versions that are not the newest any more.
    private static final Map<PythonDataSourceV2, Boolean> STALE = new WeakHashMap<>();

    static synchronized void see(LogicalPlan plan) {
      try {
        if (!STALE.isEmpty()) {
          plan.foreach(new Visiting(false));
        }
        boolean changes = plan instanceof V2WriteCommand || plan instanceof RefreshTableCommand;
        if (!changes || !LateRule.hasCatalog()) {
          return;
        }
        if (plan instanceof V2WriteCommand) {
          mark(((V2WriteCommand) plan).table());
        } else {
          String name = ((RefreshTableCommand) plan).tableIdent().quotedString();
          SparkSession session = (SparkSession) SparkSession.active();
          session.table(name).queryExecution().analyzed().foreach(new Visiting(true));
        }
      } catch (Exception problem) {
        LoggerFactory.getLogger("spark_lance").warn("A view may show old rows of a Lance table: " + problem);
      }
    }

    // Lets the next query of a view see the newest version of the table that a node of a plan reads or writes.
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
        PythonDataSourceV2 fresh = new PythonDataSourceV2();
        fresh.setShortName(name);
        if (table.getClass() == PythonTable.class) {
          // This pins the version, for all scans of the queries to come; tables that the driver plans do it themselves.
          fresh.getOrCreateDataSourceInPython(
              name, ((DataSourceV2Relation) relation).options(), scala.Option.apply(table.schema()));
        }
        Shim.replaceSource(table, fresh);
      }
    }

    // The table of Lance that a node of a plan reads or writes, null if it is none.
    private static PythonTable table(Object node) {
      if (!(node instanceof DataSourceV2Relation)) {
        return null;
      }
      Table table = ((DataSourceV2Relation) node).table();
      boolean isLance = table instanceof PythonTable && "lance".equalsIgnoreCase(Shim.formatOf((PythonTable) table));
      return isLance ? (PythonTable) table : null;
    }
  }

  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  static final class Visiting extends scala.runtime.AbstractFunction1 {
    private final boolean marks;

    Visiting(boolean marks) {
      this.marks = marks;
    }

    public Object apply(Object node) {
      if (marks) {
        Views.mark(node);
      } else {
        Views.renew(node);
      }
      return scala.runtime.BoxedUnit.UNIT;
    }
  }
}
