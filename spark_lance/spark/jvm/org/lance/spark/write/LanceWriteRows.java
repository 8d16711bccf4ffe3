package org.lance.spark.write;

import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.rdd.MapPartitionsRDD;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CreateArray;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.LocalLimitExec;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import org.apache.spark.sql.execution.datasources.v2.V2ExistingTableWriteExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics$;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.rowlevel.LanceLocalRows;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * Plans writes of few rows that the driver runs itself.
 *
 * <p>If the rows are few and their inputs small, Spark collects them in one job, or in none if the driver already has
 * them. Python then writes and commits them, and no task runs Python. LanceStatements calls it when Spark plans the
 * write.
 */
public final class LanceWriteRows {
  // How many times larger the rows of a file or cache may be than its size.
  private static final int MAX_COMPRESSION = 16;
  // The largest size in bytes of a constant in each row.
  private static final int MAX_CONSTANT = 4096;

  private LanceWriteRows() {}

  /** Returns the plan of a write that the driver runs itself; null if tasks have to run it. */
  public static SparkPlan planPhysical(LogicalPlan plan) {
    scala.Option<Write> write = null;
    LogicalPlan query = null;
    if (plan instanceof AppendData) {
      write = ((AppendData) plan).write();
      query = ((AppendData) plan).query();
    } else if (plan instanceof OverwriteByExpression) {
      write = ((OverwriteByExpression) plan).write();
      query = ((OverwriteByExpression) plan).query();
    } else if (plan instanceof OverwritePartitionsDynamic) {
      write = ((OverwritePartitionsDynamic) plan).write();
      query = ((OverwritePartitionsDynamic) plan).query();
    }
    if (write == null || write.isEmpty() || !(write.get() instanceof LanceWrite.PythonWrite)) {
      return null;
    }
    LanceWrite.OrderedWrite ordered = write.get() instanceof LanceWrite.OrderedWrite ? (LanceWrite.OrderedWrite) write.get() : null;
    // Few rows go into one file, so they need no clustering. Only tasks sort rows by the table's own order.
    LogicalPlan rows = ordered == null ? query : withoutClustering(query);
    if ((ordered != null && ordered.isSorted()) || !isSmall(rows)) {
      return null;
    }
    Seq<SparkPlan> plans = new DataSourceV2Strategy(SparkSession.active()).apply(plan);
    if (plans.size() != 1 || !(plans.apply(0) instanceof V2ExistingTableWriteExec)) {
      return null;
    }
    return new Command((SparkPlan) plans.apply(0), new PlanLater(rows), rows == query ? null : new PlanLater(query), null);
  }

  /** Returns a query without the nodes that cluster its rows for a partitioned table. */
  private static LogicalPlan withoutClustering(LogicalPlan query) {
    boolean isSorted = query instanceof Sort && !((Sort) query).global();
    LogicalPlan inner = isSorted ? ((Sort) query).child() : query;
    return inner instanceof RebalancePartitions ? ((RebalancePartitions) inner).child() : query;
  }

  private static long bound(String name, String otherwise) {
    return Long.parseLong(((SQLConf) SQLConf$.MODULE$.get()).getConfString("spark.lance." + name, otherwise).trim());
  }

  private static long maxRows() {
    return Math.min(bound("localRows", "10000"), (long) Integer.MAX_VALUE - 1);
  }

  private static long maxBytes() {
    return bound("localBytes", "8388608");
  }

  /** Returns whether a query has few rows, each about as large as its inputs, as far as statistics show. */
  private static boolean isSmall(LogicalPlan query) {
    try {
      long rows = maxRows();
      scala.Option<Object> bound = query.maxRows();
      boolean fits = rows > 0 && (bound.isEmpty() || (Long) bound.get() <= rows);
      return fits && isSmall(query, maxBytes());
    } catch (NumberFormatException noNumber) {
      // A read reports the wrong setting.
      return false;
    }
  }

  private static boolean isSmall(LogicalPlan plan, long bytes) {
    if (plan instanceof LocalRelation || plan instanceof Range || plan instanceof OneRowRelation) {
      return plan.stats().sizeInBytes().$less$eq(scala.math.BigInt.apply(bytes));
    }
    if (plan instanceof LogicalRDD) {
      return isPickled(((LogicalRDD) plan).rdd(), bytes);
    }
    if (plan instanceof LogicalRelation || plan instanceof DataSourceV2ScanRelation || plan instanceof InMemoryRelation) {
      return plan.stats().sizeInBytes().$less$eq(scala.math.BigInt.apply(bytes / MAX_COMPRESSION));
    }
    if (plan instanceof Project) {
      Seq<NamedExpression> columns = ((Project) plan).projectList();
      for (NamedExpression column : Seqs.view(columns)) {
        if (!isPlain((Expression) column)) {
          return false;
        }
      }
    } else if (!(plan instanceof Filter) && !(plan instanceof GlobalLimit) && !(plan instanceof LocalLimit)) {
      return false;
    }
    return isSmall((LogicalPlan) plan.children().apply(0), bytes);
  }

  /** Returns whether the rows are objects that Python has pickled for the driver, as for a DataFrame from a list. */
  @SuppressWarnings("unchecked") // Spark does not declare the types of dependencies and partitions.
  private static boolean isPickled(RDD<InternalRow> rdd, long bytes) {
    while (rdd instanceof MapPartitionsRDD && rdd.dependencies().size() == 1) {
      rdd = ((Dependency<InternalRow>) rdd.dependencies().apply(0)).rdd();
    }
    if (!(rdd instanceof ParallelCollectionRDD)) {
      return false;
    }
    long total = 0;
    Partition[] partitions = rdd.partitions();
    for (Partition partition : partitions) {
      scala.collection.Iterator<Object> objects = ((ParallelCollectionPartition<Object>) partition).iterator();
      while (objects.hasNext()) {
        Object pickled = objects.next();
        if (!(pickled instanceof byte[])) {
          return false;
        }
        total += ((byte[]) pickled).length;
      }
    }
    return total <= bytes;
  }

  /** Returns whether values are about as large as their inputs; constants may add a few bytes. */
  private static boolean isPlain(Expression value) {
    DataType type = value.dataType();
    boolean varies = type instanceof StringType || type instanceof BinaryType || !(type instanceof AtomicType);
    if (!varies || value instanceof Attribute) {
      return true;
    }
    if (value instanceof Literal) {
      Object literal = ((Literal) value).value();
      boolean isShort = literal instanceof UTF8String && ((UTF8String) literal).numBytes() <= MAX_CONSTANT;
      boolean isFew = literal instanceof ArrayData && ((ArrayData) literal).numElements() <= MAX_CONSTANT / 8
          && ((ArrayType) type).elementType() instanceof NumericType;
      return literal == null || isShort || isFew || (literal instanceof byte[] && ((byte[]) literal).length <= MAX_CONSTANT);
    }
    boolean isPlain = value instanceof Alias || value instanceof Cast || value instanceof CreateArray
        || value instanceof CreateNamedStruct;
    for (Expression child : Seqs.view(value.children())) {
      isPlain = isPlain && isPlain(child);
    }
    return isPlain;
  }

  /** Writes rows in the driver. If there are more rows than expected, tasks write them. */
  public static final class Command extends V2CommandExec {
    private static final long serialVersionUID = 1L;
    // Spark's own node for the write.
    private final SparkPlan sparkWrite;
    private final SparkPlan rows;
    // The same rows, clustered for the tasks of a partitioned table; null for other tables.
    private final SparkPlan clustered;
    private final scala.collection.immutable.Map<String, SQLMetric> metrics;

    public Command(
        SparkPlan sparkWrite, SparkPlan rows, SparkPlan clustered, scala.collection.immutable.Map<String, SQLMetric> metrics) {
      this.sparkWrite = sparkWrite;
      this.rows = rows;
      this.clustered = clustered;
      this.metrics = metrics != null
          ? metrics
          : new scala.collection.immutable.Map.Map1<>(
              "numOutputRows", SQLMetrics$.MODULE$.createMetric(sparkWrite.session().sparkContext(), "number of output rows"));
    }

    public Seq<InternalRow> run() {
      LanceWrite.PythonWrite write = (LanceWrite.PythonWrite) ((V2ExistingTableWriteExec) sparkWrite).write();
      String stream = stream(write.info().schema());
      Map<String, Object> answer = null;
      if (stream != null) {
        Map<String, Object> question = write.question(Protocol.WRITE_ROWS);
        question.put(Protocol.ARROW, stream);
        answer = Json.object(Bridge.ask(question, null));
      }
      if (answer == null) {
        return ((V2CommandExec) sparkWrite.withNewChildren(Seqs.of(clustered == null ? rows : clustered))).run();
      }
      reportRows(((Number) answer.get(Protocol.ROWS)).longValue());
      ((V2ExistingTableWriteExec) sparkWrite).refreshCache().apply();
      return Seqs.empty();
    }

    /** Returns the rows as a stream of Arrow in base64; null if there are too many. */
    private String stream(StructType schema) {
      long limit = maxRows();
      InternalRow[] internalRows = rows instanceof LocalTableScanExec
          ? rows.executeCollect()
          : new LocalLimitExec((int) limit + 1, rows).executeCollect();
      if (internalRows.length > limit) {
        return null;
      }
      byte[] bytes = LanceLocalRows.stream(internalRows, schema, conf());
      return bytes.length > maxBytes() ? null : LanceWrite.text(bytes);
    }

    private void reportRows(long count) {
      ((SQLMetric) metrics.apply("numOutputRows")).add(count);
      String id = sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
      SQLMetrics$.MODULE$.postDriverMetricUpdates(
          sparkContext(), id, Seqs.of(metrics.apply("numOutputRows")));
    }

    public scala.collection.immutable.Map<String, SQLMetric> metrics() {
      return metrics;
    }

    public String nodeName() {
      return "LanceWriteRows";
    }

    public String simpleString(int maxFields) {
      return "LanceWriteRows " + ((V2ExistingTableWriteExec) sparkWrite).write() + " [by the driver]";
    }

    public Seq<Attribute> output() {
      return Seqs.empty();
    }

    public Seq<SparkPlan> children() {
      Seq<SparkPlan> children = Seqs.of(rows);
      return clustered == null ? children : Seqs.append(children, clustered);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      SparkPlan second = clustered == null ? null : (SparkPlan) children.apply(1);
      return new Command(sparkWrite, (SparkPlan) children.apply(0), second, metrics);
    }

    public boolean canEqual(Object other) {
      return other instanceof Command;
    }

    // Spark copies the node from these values.
    public int productArity() {
      return 4;
    }

    public Object productElement(int which) {
      return which == 0 ? sparkWrite : which == 1 ? (Object) rows : which == 2 ? clustered : metrics;
    }
  }
}
