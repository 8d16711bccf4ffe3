package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.NullOrdering;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownOffset;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy$;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.SupportsPushDownCatalystFilters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import org.lance.spark.transport.LanceTransport;
import scala.collection.immutable.Seq;

/**
 * Builds the scan of a table, planned by the driver's Python. LanceTable and LancePaths make a builder for each scan.
 *
 * <p>The description of a table (pushdown_description in spark/scan/predicates.py) says which predicates and limits Spark may
 * push down. When Spark builds the scan, they go to Python as JSON. The answer is rows, if there is little to read, or
 * tasks. Few rows become a local scan (LanceRows): Spark runs no job, or one without Python. Many rows stay columns,
 * which tasks without Python read (LanceColumnScan). Tasks go to Spark's own reader of Python data sources, which
 * LanceTransport may wrap (LanceTaskScan).
 */
public final class LanceScan {
  // Whether the driver plans the reads of the session. The default is true for tables by name and false for paths.
  private static final String PLAN_IN_DRIVER = "spark.lance.planInDriver";
  // Up to this limit one task reads the rows, and stops at the limit.
  private static final int MAX_LIMIT_OF_ONE_TASK = 100000;
  // Whether a file of Python's was not found: its file system is another one, so Python writes no more files.
  private static volatile boolean hasOtherFileSystem = false;

  private LanceScan() {}

  /**
   * Returns the builder of a scan. It is {@code sparkBuilder} if Spark's worker processes plan the reads of the
   * session.
   *
   * @param byDefault whether the driver plans reads if no setting says so
   * @param options the options of the read
   * @param pinned whether the version among the options is the table's and not the user's
   * @param schema the columns of the table
   * @param cacheKey identifies the table in Python's cache
   * @param hidden further columns, each with the option that reads it in its metadata
   * @param pushdown what Spark may push down; null if it depends on the options
   * @param sparkBuilder Spark's builder, which streams use
   */
  public static ScanBuilder builder(
      Boolean byDefault,
      String displayName,
      CaseInsensitiveStringMap options,
      Boolean pinned,
      StructType schema,
      String cacheKey,
      StructType hidden,
      Map<String, Object> pushdown,
      ScanBuilder sparkBuilder) {
    if (!plansInDriver(byDefault.booleanValue())) {
      return sparkBuilder;
    }
    Map<String, Object> read = read(options, schema, cacheKey, null);
    read.put(Protocol.PINNED, pinned);
    return create(displayName, read, schema, hidden, pushdown, sparkBuilder);
  }

  /** Returns the builder of a scan of a table by path, which has no hidden columns. */
  public static ScanBuilder ofPath(String displayName, Map<String, Object> read, StructType schema, Map<String, Object> pushdown, ScanBuilder sparkBuilder) {
    return create(displayName, read, schema, new StructType(), pushdown, sparkBuilder);
  }

  private static ScanBuilder create(
      String displayName, Map<String, Object> read, StructType schema, StructType hidden, Map<String, Object> pushdown, ScanBuilder sparkBuilder) {
    return Shim.takesCatalystFilters()
        ? (ScanBuilder) new ExpressionBuilder(displayName, read, schema, hidden, pushdown, sparkBuilder)
        : new PredicateBuilder(displayName, read, schema, hidden, pushdown, sparkBuilder);
  }

  /** Returns whether the driver plans the reads of the session. */
  public static boolean plansInDriver(boolean byDefault) {
    return Boolean.parseBoolean(setting(PLAN_IN_DRIVER, String.valueOf(byDefault)));
  }

  private static String setting(String name, String otherwise) {
    return ((SQLConf) SQLConf$.MODULE$.get()).getConfString(name, otherwise);
  }

  /**
   * Returns the table of a question to Python.
   *
   * @param cacheKey identifies the table in Python's cache
   * @param ref the version; null if it is not pinned yet
   */
  public static Map<String, Object> read(CaseInsensitiveStringMap options, StructType schema, String cacheKey, Object ref) {
    Map<String, Object> read = new LinkedHashMap<>();
    read.put(Protocol.OPTIONS, new HashMap<>(options.asCaseSensitiveMap()));
    read.put(Protocol.SCHEMA, schema.json());
    read.put(Protocol.CACHE_KEY, cacheKey);
    read.put(Protocol.REF, ref);
    return read;
  }

  /** Collects what Spark pushes down, and asks Python for the scan. */
  public abstract static class Builder
      implements ScanBuilder,
          SupportsPushDownRequiredColumns,
          SupportsPushDownAggregates,
          SupportsPushDownLimit,
          SupportsPushDownTopN,
          SupportsPushDownOffset {
    private final String displayName;
    private final Map<String, Object> read;
    // Hidden columns, each with the option that reads it in its metadata.
    private final StructType hidden;
    // Spark's own builder, for streams.
    private final ScanBuilder sparkBuilder;
    private final StructType tableSchema;
    private StructType readSchema;
    private boolean isBatch = false;
    private Map<String, Object> pushdown;
    private Predicate[] pushed = new Predicate[0];
    // Conditions that only skip rows; Spark filters the rest.
    private List<Object> candidates = new ArrayList<>();
    private int limit = -1;
    private boolean byOneTask = false;
    private int offset = 0;
    // The order of a top-n query; null for none.
    private Map<String, Object> order = null;
    // The last request for aggregates, and its answer: if it has rows, nothing else is read.
    private Map<String, Object> aggregateRequest = null;
    private Map<String, Object> aggregateAnswer = null;

    Builder(String displayName, Map<String, Object> read, StructType schema, StructType hidden, Map<String, Object> pushdown, ScanBuilder sparkBuilder) {
      this.displayName = displayName;
      this.read = read;
      this.tableSchema = schema;
      this.readSchema = schema;
      this.hidden = hidden;
      this.pushdown = pushdown;
      this.sparkBuilder = sparkBuilder;
    }

    /**
     * Pushes the predicates that Python applies exactly as Spark does, and returns them.
     *
     * @param candidates conditions that only skip rows; Spark applies its own filter to the rest
     */
    List<Object> push(List<Object> predicates, List<Object> candidates) {
      isBatch = true;
      List<Object> exact = new ArrayList<>();
      for (Object predicate : predicates) {
        if (LancePushdown.isExact((Predicate) predicate, pushdown())) {
          exact.add(predicate);
        }
      }
      this.candidates = candidates;
      pushed = (Predicate[]) exact.toArray(new Predicate[0]);
      return exact;
    }

    // A read by name with options of its own is described here.
    private Map<String, Object> pushdown() {
      if (pushdown == null) {
        Map<String, Object> question = Bridge.question(Protocol.DESCRIBE_PUSHDOWN);
        question.put(Protocol.READ, read);
        pushdown = Json.object(Bridge.ask(question, null));
      }
      return pushdown;
    }

    Predicate[] pushed() {
      return pushed;
    }

    public boolean supportCompletePushDown(Aggregation aggregation) {
      return pushAggregates(aggregation);
    }

    public boolean pushAggregation(Aggregation aggregation) {
      return pushAggregates(aggregation);
    }

    private boolean pushAggregates(Aggregation aggregation) {
      isBatch = true;
      List<Object> functions = LancePushdown.functions(aggregation.aggregateExpressions());
      List<Object> groups = LancePushdown.paths(aggregation.groupByExpressions());
      if (functions == null || groups == null || (functions.isEmpty() && groups.isEmpty())) {
        aggregateRequest = null;
        aggregateAnswer = null;
        return false;
      }
      Map<String, Object> question = question(Protocol.PUSH_AGGREGATES);
      question.put(Protocol.AGGREGATES, functions);
      question.put(Protocol.GROUPS, groups);
      // Spark calls this twice: in supportCompletePushDown and in pushAggregation.
      if (!question.equals(aggregateRequest)) {
        aggregateRequest = question;
        aggregateAnswer = Json.object(Bridge.ask(question, null));
      }
      return aggregateAnswer != null;
    }

    // Python reads only the first rows if an index has their order. Spark still sorts them.
    public boolean pushTopN(SortOrder[] orders, int limit) {
      isBatch = true;
      if (aggregateAnswer != null || orders.length != 1 || !(orders[0].expression() instanceof NamedReference)) {
        return false;
      }
      Map<String, Object> firstRows = new LinkedHashMap<>();
      firstRows.put(Protocol.PATH, Bridge.list(((NamedReference) orders[0].expression()).fieldNames()));
      firstRows.put(Protocol.DESCENDING, orders[0].direction() == SortDirection.DESCENDING);
      firstRows.put(Protocol.NULLS, orders[0].nullOrdering() == NullOrdering.NULLS_FIRST ? "first" : "last");
      firstRows.put(Protocol.ROWS, limit);
      order = firstRows;
      return true;
    }

    public boolean pushLimit(int limit) {
      isBatch = true;
      if (aggregateAnswer != null) {
        return false;
      }
      this.limit = limit;
      // With a condition, one task might have to read the whole table.
      boolean readsAll = pushed.length == 0 && candidates.isEmpty() && (Boolean) pushdown().get(Protocol.WHOLE);
      byOneTask = readsAll && limit <= MAX_LIMIT_OF_ONE_TASK;
      return true;
    }

    public boolean isPartiallyPushed() {
      return order != null || !byOneTask;
    }

    public boolean pushOffset(int offset) {
      if (!byOneTask || offset > limit) {
        return false;
      }
      this.offset = offset;
      limit -= offset;
      return true;
    }

    public void pruneColumns(StructType required) {
      isBatch = true;
      readSchema = Bridge.readable(required, tableSchema);
    }

    private Map<String, Object> question(String verb) {
      Map<String, Object> question = Bridge.question(verb);
      Map<String, Object> table = new LinkedHashMap<>(read);
      Map<String, Object> options = new HashMap<>(Json.object(read.get(Protocol.OPTIONS)));
      table.put(Protocol.OPTIONS, options);
      for (StructField column : hidden.fields()) {
        if (Arrays.asList((Object[]) readSchema.fieldNames()).contains(column.name())) {
          options.put(column.metadata().getString("lance.option"), "true");
        }
      }
      question.put(Protocol.READ, table);
      question.put(Protocol.COLUMNS, readSchema.equals(tableSchema) ? read.get(Protocol.SCHEMA) : readSchema.json());
      question.put(Protocol.PREDICATES, LancePushdown.toJson(pushed));
      question.put(Protocol.CANDIDATES, candidates);
      question.put(Protocol.LIMIT, limit < 0 ? null : Integer.valueOf(limit));
      question.put(Protocol.BY_ONE_TASK, byOneTask);
      question.put(Protocol.OFFSET, offset);
      question.put(Protocol.TOP, order);
      question.put(Protocol.CORES, SparkContext.getOrCreate().defaultParallelism());
      question.put(Protocol.LOCAL_ROWS, setting("spark.lance.localRows", "10000"));
      question.put(Protocol.LOCAL_BYTES, setting("spark.lance.localBytes", "8388608"));
      return question;
    }

    public Scan build() {
      if (!isBatch) {
        return sparkBuilder.build();
      }
      if (aggregateAnswer != null) {
        return new LanceRows(displayName, null, aggregateAnswer, (StructType) DataType.fromJson((String) aggregateAnswer.get(Protocol.SCHEMA)));
      }
      Map<String, Object> question = question(Protocol.PLAN_SCAN);
      question.put(Protocol.FILES, !hasOtherFileSystem);
      // Only if the session asks for it: one task reads a whole partition then, however large it is.
      question.put(Protocol.GROUPED, Boolean.parseBoolean(setting("spark.sql.sources.v2.bucketing.enabled", "false")));
      question.put(Protocol.COLUMNAR, !hasOtherFileSystem && LanceTransport.mayUse(readSchema));
      Map<String, Object> answer;
      try {
        answer = Json.object(Bridge.ask(question, null));
        Scan columns = LanceColumnScan.of(displayName, question, answer, readSchema);
        if (columns != null) {
          return columns;
        }
        boolean isColumns = answer.get(Protocol.KIND).equals("columns");
        if (isColumns || !LanceRows.readFile(answer)) {
          // The file was not found, or executors take no columns: ask again without both.
          hasOtherFileSystem = hasOtherFileSystem || !isColumns || LanceTransport.mayUse(readSchema);
          question.put(Protocol.FILES, Boolean.FALSE);
          question.put(Protocol.COLUMNAR, Boolean.FALSE);
          answer = Json.object(Bridge.ask(question, null));
        }
      } catch (IllegalArgumentException problem) {
        if (pushed.length > 0 || limit >= 0) {
          throw problem;
        }
        // A stream has options that no other read takes. Spark's reader reports other problems.
        return buildBySpark();
      }
      if (answer.get(Protocol.KIND).equals("rows")) {
        return new LanceRows(displayName, question, answer, readSchema);
      }
      return new LanceTaskScan(displayName, question, answer, readSchema);
    }

    private Scan buildBySpark() {
      if (sparkBuilder instanceof SupportsPushDownRequiredColumns) {
        ((SupportsPushDownRequiredColumns) sparkBuilder).pruneColumns(readSchema);
      }
      return sparkBuilder.build();
    }
  }

  /** Takes Catalyst expressions, so conditions on JSON documents can skip rows. */
  public static final class ExpressionBuilder extends Builder implements SupportsPushDownCatalystFilters {
    ExpressionBuilder(String displayName, Map<String, Object> read, StructType schema, StructType hidden, Map<String, Object> pushdown, ScanBuilder sparkBuilder) {
      super(displayName, read, schema, hidden, pushdown, sparkBuilder);
    }

    public Seq<Expression> pushFilters(Seq<Expression> filters) {
      List<Object> predicates = new ArrayList<>();
      Object[] translated = new Object[filters.size()];
      List<Object> candidates = new ArrayList<>();
      for (int i = 0; i < translated.length; i++) {
        scala.Option<Predicate> predicate = DataSourceV2Strategy$.MODULE$.translateFilterV2((Expression) filters.apply(i));
        Map<String, Object> candidate = predicate.isEmpty() ? LanceDocumentPredicates.candidate((Expression) filters.apply(i)) : null;
        if (!predicate.isEmpty()) {
          translated[i] = predicate.get();
          predicates.add(translated[i]);
        } else if (candidate != null) {
          candidates.add(candidate);
        }
      }
      List<Object> exact = push(predicates, candidates);
      Seq<Expression> remaining = Seqs.empty();
      for (int i = 0; i < translated.length; i++) {
        if (translated[i] == null || !exact.contains(translated[i])) {
          remaining = Seqs.append(remaining, filters.apply(i));
        }
      }
      return remaining;
    }

    public Predicate[] pushedFilters() {
      return pushed();
    }
  }

  /** Takes connector predicates, for releases of Spark that offer no expressions. */
  public static final class PredicateBuilder extends Builder implements SupportsPushDownV2Filters {
    PredicateBuilder(String displayName, Map<String, Object> read, StructType schema, StructType hidden, Map<String, Object> pushdown, ScanBuilder sparkBuilder) {
      super(displayName, read, schema, hidden, pushdown, sparkBuilder);
    }

    public Predicate[] pushPredicates(Predicate[] predicates) {
      List<Object> remaining = new ArrayList<>(Arrays.asList((Object[]) predicates));
      remaining.removeAll(push(Arrays.asList((Object[]) predicates), new ArrayList<>()));
      return (Predicate[]) remaining.toArray(new Predicate[0]);
    }

    public Predicate[] pushedPredicates() {
      return pushed();
    }
  }
}
