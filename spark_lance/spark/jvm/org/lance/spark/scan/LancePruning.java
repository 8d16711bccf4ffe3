// The optimizer rule that reads from Lance tables only the columns and rows that a query needs.
//
// Spark plans a scan of a Python data source with all columns. This rule runs after Spark's own push-down. It returns
// each such scan to Spark's column pruning, which then builds a scan of the needed columns, nested fields included. The
// rule also offers the filters above the scan to the table, to skip rows; Spark still applies them. If a limit is above
// the scan, or above its filters, the rule passes it to the scan, and Spark applies it, too. The data source in Python
// stays the same instance, with the version that it has pinned.
//
// The rule does not rely on Spark's own push-down. That keeps the plan of a Python data source for one query of a
// DataFrame, filters included, and uses it for the next query. Every scan made here has a plan of its own, and marks in
// its schema say so to the reader (spark/session/planner_marks.py).
//
// Compiled in the driver by Janino, which comes with Spark; hence no generics, no lambdas. What differs between
// Spark versions is reached by reflection. Whatever goes wrong leaves the plan as it was.

package org.lance.spark.scan;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.ScanBuilderHolder;
import org.apache.spark.sql.execution.datasources.v2.V2ScanRelationPushDown$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.LoggerFactory;

public final class LancePruning extends Rule {
  private static final String MARK = "lance.planned.";
  private static final String PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled";
  private static final int NO_LIMIT = -1;
  // Stands among the scans of a data source whose schema may not fit the table.
  private static final String UNCHECKED = "unchecked";

  // From Spark 4.1 on a batch without columns keeps its number of rows.
  private final boolean keepsRowsWithoutColumns;
  // How many tasks the session runs at a time.
  private final int cores;
  // Scans made so far: the data source of the original scan -> what is wanted of it -> scan. Both sides of a
  // self-join get one scan, so that Spark can read the table once.
  private final Map scans = new WeakHashMap();

  public LancePruning(boolean keepsRowsWithoutColumns, int cores) {
    this.keepsRowsWithoutColumns = keepsRowsWithoutColumns;
    this.cores = cores;
  }

  public TreeNode apply(TreeNode plan) {
    try {
      Opening opening = new Opening(this);
      LogicalPlan opened = (LogicalPlan) plan.transformDown(opening);
      if (!opening.found) {
        return plan;
      }
      return V2ScanRelationPushDown$.MODULE$.pruneColumns(opened);
    } catch (Throwable problem) {
      LoggerFactory.getLogger("spark_lance").warn("Columns of a Lance table were not pruned: " + problem);
      return plan;
    }
  }

  // Gives a session the rule, unless it has it.
  public static final class Start implements BiConsumer {
    public void accept(Object given, Object asked) {
      SparkSession session = (SparkSession) given;
      boolean keeps = ((Boolean) ((Map) asked).get("keepsRowsWithoutColumns")).booleanValue();
      ForSessions rule = new ForSessions(keeps, session.sparkContext().defaultParallelism());
      rule.give(session);
      if (((Boolean) ((Map) asked).get("newSessions")).booleanValue()) {
        session.extensions().injectPreCBORule(rule);
      }
    }
  }

  // Gives every session that the driver makes from now on this rule, when the session plans its first query. Spark
  // asks for the rules of extensions before it looks at those of the session, to which this adds itself. (Rules that
  // extensions have themselves would run before scans are planned.)
  public static final class ForSessions extends scala.runtime.AbstractFunction1 {
    private final boolean keepsRowsWithoutColumns;
    private final int cores;

    public ForSessions(boolean keepsRowsWithoutColumns, int cores) {
      this.keepsRowsWithoutColumns = keepsRowsWithoutColumns;
      this.cores = cores;
    }

    public Object apply(Object session) {
      try {
        give((SparkSession) session);
      } catch (Throwable problem) {
        LoggerFactory.getLogger("spark_lance").warn("Lance tables are read with all columns: " + problem);
      }
      return new Nothing();
    }

    void give(SparkSession session) {
      ExperimentalMethods methods = session.experimental();
      scala.collection.immutable.Seq rules = (scala.collection.immutable.Seq) methods.extraOptimizations();
      boolean there = false;
      for (int i = 0; i < rules.size(); i++) {
        there = there || rules.apply(i).getClass().getName().equals(LancePruning.class.getName());
      }
      if (!there) {
        Object added = rules.appended(new LancePruning(keepsRowsWithoutColumns, cores));
        methods.extraOptimizations_$eq((scala.collection.immutable.Seq) added);
      }
    }
  }

  // A rule that changes nothing.
  public static final class Nothing extends Rule {
    public TreeNode apply(TreeNode plan) {
      return plan;
    }
  }

  // What a query wants of a scan besides columns.
  public static final class Wish {
    // The parts of the filter above the scan that have a form for data sources, and how many parts there are.
    final List filters = new ArrayList();
    int conditions = 0;
    // How many of the rows that meet all conditions are enough.
    int limit = NO_LIMIT;

    // Reads a condition.
    void meet(Expression condition) {
      if (condition instanceof And) {
        meet(((And) condition).left());
        meet(((And) condition).right());
        return;
      }
      conditions++;
      scala.Option filter = DataSourceStrategy$.MODULE$.translateFilter(condition, true);
      if (filter.isDefined()) {
        filters.add(filter.get());
      }
    }
  }

  // Gives the scans of Lance tables back to Spark as builders, which know the filters and limits above them.
  public static final class Opening extends scala.runtime.AbstractPartialFunction {
    private final LancePruning rule;
    boolean found = false;

    Opening(LancePruning rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      return opened(node) != null;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      LogicalPlan opened = opened(node);
      return opened == null ? otherwise.apply(node) : opened;
    }

    // A node with the scan under it opened, if it is one of those that say what is wanted of the scan.
    private LogicalPlan opened(Object node) {
      Wish wish = new Wish();
      if (!(node instanceof LocalLimit)) {
        return under(node, wish);
      }
      LocalLimit limit = (LocalLimit) node;
      if (!(limit.limitExpr() instanceof Literal) || !(((Literal) limit.limitExpr()).value() instanceof Integer)) {
        return null;
      }
      wish.limit = ((Integer) ((Literal) limit.limitExpr()).value()).intValue();
      LogicalPlan below = wish.limit < 1 ? null : projected(limit.child(), wish);
      return below == null ? null : new LocalLimit(limit.limitExpr(), below);
    }

    // Columns may be chosen and computed between a limit and a scan: that leaves as many rows.
    private LogicalPlan projected(LogicalPlan node, Wish wish) {
      if (!(node instanceof Project)) {
        return under(node, wish);
      }
      LogicalPlan below = node.deterministic() ? projected(((Project) node).child(), wish) : null;
      return below == null ? null : new Project(((Project) node).projectList(), below);
    }

    // A scan, or a filter on one.
    private LogicalPlan under(Object node, Wish wish) {
      if (isLance(node)) {
        return open((DataSourceV2ScanRelation) node, wish);
      }
      if (!isFilter(node)) {
        return null;
      }
      org.apache.spark.sql.catalyst.plans.logical.Filter above =
          (org.apache.spark.sql.catalyst.plans.logical.Filter) node;
      if (!isLance(above.child())) {
        return null;
      }
      wish.meet(above.condition());
      LogicalPlan holder = open((DataSourceV2ScanRelation) above.child(), wish);
      return new org.apache.spark.sql.catalyst.plans.logical.Filter(above.condition(), holder);
    }

    private LogicalPlan open(DataSourceV2ScanRelation relation, Wish wish) {
      found = true;
      Builder builder = new Builder(rule, (PythonScan) relation.scan(), wish);
      return new ScanBuilderHolder(relation.output(), relation.relation(), builder);
    }

    private static boolean isFilter(Object node) {
      return node instanceof org.apache.spark.sql.catalyst.plans.logical.Filter;
    }

    private static boolean isLance(Object node) {
      if (!(node instanceof DataSourceV2ScanRelation)) {
        return false;
      }
      Scan scan = ((DataSourceV2ScanRelation) node).scan();
      return scan instanceof PythonScan && "lance".equalsIgnoreCase((String) LancePlannedScan.get(scan, "shortName"));
    }
  }

  // Takes the needed columns from Spark's pruning and builds the scan of them.
  public static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final LancePruning rule;
    private final PythonScan scan;
    private final Wish wish;
    private StructType schema;

    Builder(LancePruning rule, PythonScan scan, Wish wish) {
      this.rule = rule;
      this.scan = scan;
      this.wish = wish;
      this.schema = scan.readSchema();
    }

    public void pruneColumns(StructType required) {
      if (required.length() > 0 || rule.keepsRowsWithoutColumns) {
        schema = required;
      } else if (schema.length() > 0) {
        schema = new StructType(new StructField[] {narrowest(schema)});
      }
    }

    public Scan build() {
      return rule.scan(scan, schema, wish);
    }

    private static StructField narrowest(StructType schema) {
      StructField best = schema.fields()[0];
      for (int i = 1; i < schema.length(); i++) {
        StructField next = schema.fields()[i];
        if (next.dataType().defaultSize() < best.dataType().defaultSize()) {
          best = next;
        }
      }
      return best;
    }
  }

  synchronized Scan scan(PythonScan original, StructType schema, Wish wish) {
    PythonDataSourceV2 source = (PythonDataSourceV2) LancePlannedScan.get(original, "ds");
    Map known = known(original, source);
    Object[] parts = {schema.json(), wish.filters, new Integer(wish.conditions), new Integer(wish.limit)};
    List key = Arrays.asList(parts);
    Object scan = known.get(key);
    if (scan == null) {
      scan = prune(original, source, schema, wish);
      known.put(key, scan);
    }
    return (Scan) scan;
  }

  // The scans of a data source that were made so far.
  private Map known(PythonScan original, PythonDataSourceV2 source) {
    String name = (String) LancePlannedScan.get(original, "shortName");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) LancePlannedScan.get(original, "options");
    Map known = (Map) scans.get(source);
    if (known == null) {
      known = new HashMap();
      scans.put(source, known);
      if (isUnasked(source)) {
        known.put(UNCHECKED, Boolean.TRUE);
      }
      // With a schema of the user's own the table was not asked for anything yet: that pins its version, and the twins
      // of all later scans take it from here.
      source.getOrCreateDataSourceInPython(name, options, new scala.Some(original.readSchema()));
    }
    if (known.containsKey(UNCHECKED)) {
      // The whole of such a schema must fit the table, however little of it is read.
      new PythonScanBuilder(twin(source), name, original.readSchema(), options).build().toBatch().planInputPartitions();
      known.remove(UNCHECKED);
    }
    return known;
  }

  // Whether nothing in Python knows of a data source yet.
  private static boolean isUnasked(PythonDataSourceV2 source) {
    Field[] fields = PythonDataSourceV2.class.getDeclaredFields();
    try {
      for (int i = 0; i < fields.length; i++) {
        if (fields[i].getType().getSimpleName().equals("PythonDataSourceCreationResult")) {
          fields[i].setAccessible(true);
          return fields[i].get(source) == null;
        }
      }
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
    return false;
  }

  private Scan prune(PythonScan original, PythonDataSourceV2 source, StructType schema, Wish wish) {
    String name = (String) LancePlannedScan.get(original, "shortName");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) LancePlannedScan.get(original, "options");
    PythonDataSourceV2 twin = twin(source);
    PythonScanBuilder builder = new PythonScanBuilder(twin, name, marked(schema, wish), options);
    if (!wish.filters.isEmpty() && schema.length() > 0) {
      // Those that the table leaves to Spark are applied by Spark, and so are the others.
      Filter[] offered = (Filter[]) wish.filters.toArray(new Filter[wish.filters.size()]);
      push(builder, offered);
    }
    return new LancePlannedScan((PythonScan) builder.build(), schema);
  }

  // The schema, with marks that tell the reader what the plan is for.
  private StructType marked(StructType schema, Wish wish) {
    StructField[] fields = schema.fields();
    if (fields.length == 0) {
      return schema;
    }
    StructField[] copies = new StructField[fields.length];
    System.arraycopy(fields, 0, copies, 0, fields.length);
    MetadataBuilder marks = new MetadataBuilder().withMetadata(fields[0].metadata());
    marks.putBoolean(MARK + "alone", true).putLong(MARK + "cores", cores);
    if (wish.limit != NO_LIMIT) {
      marks.putLong(MARK + "limit", wish.limit).putLong(MARK + "filters", wish.conditions);
    }
    copies[0] = new StructField(fields[0].name(), fields[0].dataType(), fields[0].nullable(), marks.build());
    return new StructType(copies);
  }

  // Offers filters, as if the setting that makes Spark do so were on.
  private static void push(PythonScanBuilder builder, Filter[] filters) {
    try {
      Method method = builder.getClass().getMethod("pushFilters", new Class[] {Filter[].class});
      SQLConf settings = (SQLConf) SQLConf$.MODULE$.get().clone();
      settings.setConfString(PUSH_FILTERS, "true");
      SQLConf$.MODULE$.withExistingConf(settings, new Pushing(method, builder, filters));
    } catch (NoSuchMethodException spark40) {
      return;
    }
  }

  public static final class Pushing extends scala.runtime.AbstractFunction0 {
    private final Method method;
    private final Object builder;
    private final Filter[] filters;

    Pushing(Method method, Object builder, Filter[] filters) {
      this.method = method;
      this.builder = builder;
      this.filters = filters;
    }

    public Object apply() {
      return call(method, builder, filters);
    }
  }

  private static Object call(Method method, Object builder, Filter[] filters) {
    try {
      return method.invoke(builder, new Object[] {filters});
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    } catch (java.lang.reflect.InvocationTargetException problem) {
      throw new IllegalStateException(String.valueOf(problem.getCause()), problem);
    }
  }

  // The same data source, but without a plan for reading.
  private static PythonDataSourceV2 twin(PythonDataSourceV2 source) {
    PythonDataSourceV2 twin = new PythonDataSourceV2();
    try {
      Field[] fields = PythonDataSourceV2.class.getDeclaredFields();
      for (int i = 0; i < fields.length; i++) {
        Field field = fields[i];
        if (!field.getName().equals("readInfo") && !java.lang.reflect.Modifier.isStatic(field.getModifiers())) {
          field.setAccessible(true);
          field.set(twin, field.get(source));
        }
      }
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
    return twin;
  }
}
