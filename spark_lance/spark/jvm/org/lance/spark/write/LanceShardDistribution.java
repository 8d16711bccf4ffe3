package org.lance.spark.write;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.BitwiseAnd;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayItem;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Murmur3Hash;
import org.apache.spark.sql.catalyst.expressions.Pmod;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType$;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import scala.collection.immutable.Seq;

/**
 * Plans micro-batches of upserts so that one task gets all rows of a shard, and writes them to the shard's log.
 *
 * <p>Python chooses the value that decides the task of a row (spark/streaming/upsert.py). LanceStatements calls this
 * class, which puts a repartition by that value under Spark's own node for the write. Without it, any task may get
 * any row, and the driver writes the logs.
 */
@SuppressWarnings("deprecation") // Spark plans micro-batches with WriteToDataSourceV2.
public final class LanceShardDistribution {

  private LanceShardDistribution() {}

  /**
   * Returns the plan of a micro-batch of upserts that repartitions the rows by shard; null if Python gives no route.
   */
  public static SparkPlan planPhysical(LogicalPlan write) {
    WriteToDataSourceV2 plan = (WriteToDataSourceV2) write;
    MicroBatchWrite batch = (MicroBatchWrite) plan.batchWrite();
    LanceWrite.Stream stream = (LanceWrite.Stream) batch.writeSupport();
    Map<String, Object> route = stream.route(Shim.epochOf(batch));
    if (route == null) {
      return null;
    }
    try {
      return planRepartitioned(plan, batch, route);
    } catch (RuntimeException problem) {
      stream.forget();
      throw problem;
    }
  }

  private static SparkPlan planRepartitioned(WriteToDataSourceV2 plan, MicroBatchWrite batch, Map<String, Object> route) {
    LogicalPlan repartitioned = new RepartitionByExpression(
        Seqs.of(partitionValue(route, plan.query())),
        plan.query(),
        scala.Option.apply(Integer.valueOf(((Number) route.get(Protocol.PARTITIONS)).intValue())),
        scala.Option.empty());
    LogicalPlan repartitionedWrite = new WriteToDataSourceV2(plan.relation(), batch, repartitioned, plan.customMetrics());
    return (SparkPlan) new DataSourceV2Strategy(SparkSession.active()).apply(repartitionedWrite).apply(0);
  }

  /** Returns the value that determines the partition of a row; see spark/streaming/upsert.py. */
  private static Expression partitionValue(Map<String, Object> route, LogicalPlan query) {
    if (route.get(Protocol.COLUMN) == null) {
      return new Literal(Integer.valueOf(0), DataTypes.IntegerType);
    }
    Expression column = (Expression) query.output().apply(((Number) route.get(Protocol.COLUMN)).intValue());
    List<Object> values = Json.list(route.get(Protocol.VALUES));
    if (values.isEmpty()) {
      return column;
    }
    int[] numbers = new int[values.size()];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = ((Number) values.get(i)).intValue();
    }
    Expression hash = new Murmur3Hash(Seqs.of(column), 0);
    Expression positive = new BitwiseAnd(hash, new Literal(Integer.valueOf(Integer.MAX_VALUE), DataTypes.IntegerType));
    Expression bucket = new Pmod(positive, new Literal(Integer.valueOf(numbers.length), DataTypes.IntegerType));
    ArrayType type = new ArrayType(IntegerType$.MODULE$, false);
    return new GetArrayItem(new Literal(UnsafeArrayData.fromPrimitiveArray(numbers), type), bucket, false);
  }
}
