// Writes of few rows, which the driver does itself.
//
// Where the rows are few and what they are made of is small, Spark collects them in one job, or in none if the driver
// has them already, and Python writes and commits them: no task runs Python.
//
// Compiled in the driver by Janino.

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
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;
import org.lance.spark.rowlevel.LanceAtHand;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

public final class LanceWriteRows {
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;
  // How many times larger the rows of a file or of a cache may be than it is.
  private static final int COMPRESSED = 16;
  // Bytes of a constant that may be in every row.
  private static final int SHORT = 4096;

  private LanceWriteRows() {}

  // The plan of a write that the driver does itself; null if tasks are to do it, or it is not ours.
  public static SparkPlan planned(LogicalPlan plan) {
    scala.Option write = null;
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
    if (write == null || write.isEmpty() || !(write.get() instanceof LanceWrite.Planned)) {
      return null;
    }
    // Few rows are in one file, whose name has the range of their partitions: nothing needs a shuffle.
    LogicalPlan rows = write.get() instanceof LanceWrite.Clustered ? unclustered(query) : query;
    if (!isSmall(rows)) {
      return null;
    }
    Seq own = new DataSourceV2Strategy(SparkSession.active()).apply(plan);
    if (own.size() != 1 || !(own.apply(0) instanceof V2ExistingTableWriteExec)) {
      return null;
    }
    return new Command((SparkPlan) own.apply(0), new PlanLater(rows), rows == query ? null : new PlanLater(query), null);
  }

  // A query without the nodes that cluster its rows for a partitioned table.
  private static LogicalPlan unclustered(LogicalPlan query) {
    boolean isSorted = query instanceof Sort && !((Sort) query).global();
    LogicalPlan inner = isSorted ? ((Sort) query).child() : query;
    return inner instanceof RebalancePartitions ? ((RebalancePartitions) inner).child() : query;
  }

  private static long bound(String name, String otherwise) {
    return Long.parseLong(((SQLConf) SQLConf$.MODULE$.get()).getConfString("spark.lance." + name, otherwise).trim());
  }

  private static long mostRows() {
    return Math.min(bound("localRows", "10000"), (long) Integer.MAX_VALUE - 1);
  }

  private static long mostBytes() {
    return bound("localBytes", "8388608");
  }

  // Whether rows are few, by what is known of them, and each about as large as what it is made of.
  private static boolean isSmall(LogicalPlan query) {
    try {
      long rows = mostRows();
      scala.Option most = query.maxRows();
      boolean fits = rows > 0 && (most.isEmpty() || ((Long) most.get()).longValue() <= rows);
      return fits && isSmall(query, mostBytes());
    } catch (NumberFormatException noNumber) {
      // What is wrong with the setting, a read says.
      return false;
    }
  }

  private static boolean isSmall(LogicalPlan plan, long bytes) {
    if (plan instanceof LocalRelation || plan instanceof Range || plan instanceof OneRowRelation) {
      return plan.stats().sizeInBytes().$less$eq(scala.math.BigInt.apply(bytes));
    }
    if (plan instanceof LogicalRDD) {
      return isHandedOver(((LogicalRDD) plan).rdd(), bytes);
    }
    if (plan instanceof LogicalRelation || plan instanceof DataSourceV2ScanRelation || plan instanceof InMemoryRelation) {
      return plan.stats().sizeInBytes().$less$eq(scala.math.BigInt.apply(bytes / COMPRESSED));
    }
    if (plan instanceof Project) {
      Seq columns = ((Project) plan).projectList();
      for (int i = 0; i < columns.size(); i++) {
        if (!isPlain((Expression) columns.apply(i))) {
          return false;
        }
      }
    } else if (!(plan instanceof Filter) && !(plan instanceof GlobalLimit) && !(plan instanceof LocalLimit)) {
      return false;
    }
    return isSmall((LogicalPlan) plan.children().apply(0), bytes);
  }

  // Whether the rows are objects that Python has pickled for the driver, as for a DataFrame that is made of a list.
  private static boolean isHandedOver(RDD rdd, long bytes) {
    while (rdd instanceof MapPartitionsRDD && rdd.dependencies().size() == 1) {
      rdd = ((Dependency) rdd.dependencies().apply(0)).rdd();
    }
    if (!(rdd instanceof ParallelCollectionRDD)) {
      return false;
    }
    long found = 0;
    Partition[] partitions = rdd.partitions();
    for (int i = 0; i < partitions.length; i++) {
      scala.collection.Iterator objects = ((ParallelCollectionPartition) partitions[i]).iterator();
      while (objects.hasNext()) {
        Object pickled = objects.next();
        if (!(pickled instanceof byte[])) {
          return false;
        }
        found += ((byte[]) pickled).length;
      }
    }
    return found <= bytes;
  }

  // Whether values are not larger than what they are made of, but for some bytes.
  private static boolean isPlain(Expression value) {
    DataType type = value.dataType();
    boolean varies = type instanceof StringType || type instanceof BinaryType || !(type instanceof AtomicType);
    if (!varies || value instanceof Attribute) {
      return true;
    }
    if (value instanceof Literal) {
      Object held = ((Literal) value).value();
      boolean isShort = held instanceof UTF8String && ((UTF8String) held).numBytes() <= SHORT;
      boolean isFew = held instanceof ArrayData && ((ArrayData) held).numElements() <= SHORT / 8
          && ((ArrayType) type).elementType() instanceof NumericType;
      return held == null || isShort || isFew || (held instanceof byte[] && ((byte[]) held).length <= SHORT);
    }
    boolean keeps = value instanceof Alias || value instanceof Cast || value instanceof CreateArray
        || value instanceof CreateNamedStruct;
    for (int i = 0; keeps && i < value.children().size(); i++) {
      keeps = isPlain((Expression) value.children().apply(i));
    }
    return keeps;
  }

  /** Writes rows in the driver, and leaves to tasks what turns out to be more. */
  public static final class Command extends V2CommandExec {
    // Spark's own node for the write.
    private final SparkPlan own;
    private final SparkPlan rows;
    // The same rows as a partitioned table wants them for tasks; null for other tables.
    private final SparkPlan clustered;
    private final scala.collection.immutable.Map metrics;

    public Command(SparkPlan own, SparkPlan rows, SparkPlan clustered, scala.collection.immutable.Map metrics) {
      this.own = own;
      this.rows = rows;
      this.clustered = clustered;
      this.metrics = metrics != null
          ? metrics
          : new scala.collection.immutable.Map.Map1(
              "numOutputRows", SQLMetrics$.MODULE$.createMetric(own.session().sparkContext(), "number of output rows"));
    }

    public Seq run() {
      LanceWrite.Planned write = (LanceWrite.Planned) ((V2ExistingTableWriteExec) own).write();
      String stream = stream(write.info().schema());
      Map answer = null;
      if (stream != null) {
        Map question = write.question(Protocol.WRITE_ROWS);
        question.put(Protocol.ARROW, stream);
        answer = (Map) Bridge.ask(question, null);
      }
      if (answer == null) {
        return ((V2CommandExec) own.withNewChildren((Seq) NONE.appended(clustered == null ? rows : clustered))).run();
      }
      tell(((Number) answer.get(Protocol.ROWS)).longValue());
      ((V2ExistingTableWriteExec) own).refreshCache().apply();
      return NONE;
    }

    // The rows as a stream of Arrow, as tasks get them; null if they are too many.
    private String stream(StructType schema) {
      long most = mostRows();
      InternalRow[] found = rows instanceof LocalTableScanExec
          ? rows.executeCollect()
          : new LocalLimitExec((int) most + 1, rows).executeCollect();
      if (found.length > most) {
        return null;
      }
      byte[] bytes = LanceAtHand.stream(found, schema, conf());
      return bytes.length > mostBytes() ? null : LanceWrite.text(bytes);
    }

    private void tell(long count) {
      ((SQLMetric) metrics.apply("numOutputRows")).add(count);
      String id = sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
      SQLMetrics$.MODULE$.postDriverMetricUpdates(
          sparkContext(), id, (Seq) NONE.appended(metrics.apply("numOutputRows")));
    }

    public scala.collection.immutable.Map metrics() {
      return metrics;
    }

    public String nodeName() {
      return "LanceWriteRows";
    }

    public String simpleString(int most) {
      return "LanceWriteRows " + ((V2ExistingTableWriteExec) own).write() + " [by the driver]";
    }

    public Seq output() {
      return NONE;
    }

    public Seq children() {
      Seq first = (Seq) NONE.appended(rows);
      return clustered == null ? first : (Seq) first.appended(clustered);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Command(own, (SparkPlan) children.apply(0), clustered == null ? null : (SparkPlan) children.apply(1), metrics);
    }

    public boolean canEqual(Object other) {
      return other instanceof Command;
    }

    // What Spark copies the node by.
    public int productArity() {
      return 4;
    }

    public Object productElement(int which) {
      return which == 0 ? own : which == 1 ? (Object) rows : which == 2 ? clustered : metrics;
    }
  }
}
