package org.lance.spark.write;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.scan.LanceScan;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;
import org.lance.spark.transport.LanceTransport;

/**
 * Writes that the driver's Python plans and commits. LanceTable and LancePaths make a builder for each write.
 *
 * <p>Spark runs Python worker processes to plan a write and to commit it. Here the driver's Python does both. Tasks
 * run Spark's own writer of Python data sources, which may get rows in batches (LanceRowBatches). The driver writes
 * few rows by itself: see LanceWriteRows.
 */
public final class LanceWrite {
  private LanceWrite() {}

  /**
   * Returns the builder of a write. It is {@code sparkBuilder} if Spark's worker processes plan the writes of the
   * session.
   *
   * @param byDefault whether the driver plans writes if no setting says so
   * @param displayName the table's name for EXPLAIN
   * @param source Spark's data source, which the tasks' writers use
   * @param transforms the table's partition fields
   * @param order the order of rows in each file; empty for none
   * @param isDistributed whether tasks get ranges of rows in this order
   * @param declaration the declaration of a table that the write creates or replaces; null for an existing table
   */
  public static WriteBuilder builder(
      Boolean byDefault,
      String displayName,
      PythonDataSourceV2 source,
      LogicalWriteInfo info,
      Transform[] transforms,
      SortOrder[] order,
      Boolean isDistributed,
      String declaration,
      WriteBuilder sparkBuilder) {
    return LanceScan.plansInDriver(byDefault.booleanValue()) 
        ? new Builder(displayName, source, info, transforms, order, isDistributed.booleanValue(), declaration, sparkBuilder)
        : sparkBuilder;
  }

  /**
   * Returns the transforms by whose values Spark can cluster rows. Without the functions on executors, these are the
   * columns.
   */
  private static Transform[] clustering(Transform[] transforms) {
    boolean needsFunctions = false;
    List<Transform> identities = new ArrayList<>();
    for (Transform transform : transforms) {
      if (transform.name().equals("identity")) {
        identities.add(transform);
      } else {
        needsFunctions = true;
      }
    }
    return needsFunctions && !LanceTransport.hasFunctions() ? (Transform[]) identities.toArray(new Transform[0]) : transforms;
  }

  /** Builds a write that appends rows or, after truncate(), replaces all rows. */
  public static final class Builder implements WriteBuilder, SupportsTruncate {
    private final String displayName;
    private final PythonDataSourceV2 source;
    private final LogicalWriteInfo info;
    private final Transform[] transforms;
    private final SortOrder[] order;
    private final boolean isDistributed;
    private final String declaration;
    private WriteBuilder sparkBuilder;
    private boolean truncates = false;

    Builder(
        String displayName,
        PythonDataSourceV2 source,
        LogicalWriteInfo info,
        Transform[] transforms,
        SortOrder[] order,
        boolean isDistributed,
        String declaration,
        WriteBuilder sparkBuilder) {
      this.displayName = displayName;
      this.source = source;
      this.info = info;
      this.transforms = transforms;
      this.order = order;
      this.isDistributed = isDistributed;
      this.declaration = declaration;
      this.sparkBuilder = sparkBuilder;
    }

    public WriteBuilder truncate() {
      truncates = true;
      sparkBuilder = ((SupportsTruncate) sparkBuilder).truncate();
      return this;
    }

    public Write build() {
      Write write = sparkBuilder.build();
      // Shuffling every micro-batch would cost more than it saves. Compaction sorts the rows of streams.
      if ((transforms.length > 0 || order.length > 0) && !Callers.isStreaming()) {
        Transform[] clustering = clustering(transforms);
        return new OrderedWrite(
            displayName, source, info, truncates, declaration, distribution(clustering), ordering(clustering), order.length > 0, write);
      }
      return new PythonWrite(displayName, source, info, truncates, declaration, write);
    }

    private Distribution distribution(Transform[] clustering) {
      if (clustering.length > 0) {
        return Distributions.clustered(clustering);
      }
      return isDistributed && order.length > 0 ? Distributions.ordered(order) : Distributions.unspecified();
    }

    private SortOrder[] ordering(Transform[] clustering) {
      List<SortOrder> ordering = new ArrayList<>();
      for (Transform transform : clustering) {
        ordering.add(Expressions.sort(transform, SortDirection.ASCENDING));
      }
      ordering.addAll(Arrays.asList(order));
      return (SortOrder[]) ordering.toArray(new SortOrder[0]);
    }
  }

  /** A write for which Spark distributes and sorts the rows, by partition and by the table's order. */
  public static final class OrderedWrite extends PythonWrite implements RequiresDistributionAndOrdering {
    private final Distribution distribution;
    private final SortOrder[] ordering;
    private final boolean isSorted;

    OrderedWrite(
        String displayName,
        PythonDataSourceV2 source,
        LogicalWriteInfo info,
        boolean truncates,
        String declaration,
        Distribution distribution,
        SortOrder[] ordering,
        boolean isSorted,
        Write sparkWrite) {
      super(displayName, source, info, truncates, declaration, sparkWrite);
      this.distribution = distribution;
      this.ordering = ordering;
      this.isSorted = isSorted;
    }

    /** Returns whether the table has an order of its own, beyond that of partitions. */
    boolean isSorted() {
      return isSorted;
    }

    public Distribution requiredDistribution() {
      return distribution;
    }

    // Spark may split the rows of a large partition, and merge small ones.
    public boolean distributionStrictlyRequired() {
      return false;
    }

    public SortOrder[] requiredOrdering() {
      return ordering;
    }
  }

  /** A write to a table. */
  public static class PythonWrite implements Write {
    private final String displayName;
    private final PythonDataSourceV2 source;
    private final LogicalWriteInfo info;
    private final boolean truncates;
    private final String declaration;
    private final Write sparkWrite;
    // Makes the child of the write return batches of columns; null if it can only return rows.
    private Runnable batchSwitch = null;

    PythonWrite(
        String displayName, PythonDataSourceV2 source, LogicalWriteInfo info, boolean truncates, String declaration, Write sparkWrite) {
      this.displayName = displayName;
      this.source = source;
      this.info = info;
      this.truncates = truncates;
      this.declaration = declaration;
      this.sparkWrite = sparkWrite;
    }

    public String description() {
      return "LanceWrite " + displayName;
    }

    public String toString() {
      return description();
    }

    public CustomMetric[] supportedCustomMetrics() {
      return sparkWrite.supportedCustomMetrics();
    }

    public BatchWrite toBatch() {
      return new Batch(this, sparkWrite.toBatch());
    }

    public StreamingWrite toStreaming() {
      return new Stream(this, sparkWrite.toStreaming());
    }

    /** Sets the action that makes the child of the write return batches of columns. */
    void setBatchSwitch(Runnable batchSwitch) {
      this.batchSwitch = batchSwitch;
    }

    /** Returns Spark's description of the write. */
    LogicalWriteInfo info() {
      return info;
    }

    /** Returns a request about the write. */
    Map<String, Object> question(String verb) {
      Map<String, Object> write = new HashMap<>();
      write.put(Protocol.OPTIONS, new HashMap<>(info.options().asCaseSensitiveMap()));
      write.put(Protocol.SCHEMA, info.schema().json());
      write.put(Protocol.OVERWRITE, truncates);
      write.put(Protocol.DECLARATION, declaration);
      Map<String, Object> question = Bridge.question(verb);
      question.put(Protocol.WRITE, write);
      return question;
    }

    /**
     * Asks Python for the plan of the write: the function of the tasks, and the writer that commits.
     *
     * @return null if Spark's own write has to report a problem
     */
    Map<String, Object> plan(boolean streams, boolean batches) {
      Map<String, Object> question = question(Protocol.PLAN_WRITE);
      question.put(Protocol.STREAMS, streams);
      question.put(Protocol.BATCHES, batches);
      return Json.object(Bridge.ask(question, null));
    }

    /**
     * Returns Spark's factory of the tasks' writers.
     *
     * @param kind the class of the factory
     * @param schema the schema of the rows that the writers receive
     */
    Object factory(Class<?> kind, Map<String, Object> plan, StructType schema, Object sparkWrite) {
      return Shim.writerFactory(kind, source, bytes(plan.get(Protocol.FUNCTION)), schema, sparkWrite);
    }

    /**
     * Commits or aborts the write of the tasks.
     *
     * @param epoch the epoch of a micro-batch; null for a batch write
     */
    static void finish(Map<String, Object> plan, WriterCommitMessage[] messages, Long epoch, boolean aborts) {
      List<Object> texts = new ArrayList<>();
      for (WriterCommitMessage message : messages) {
        texts.add(message == null ? null : text(((PythonWriterCommitMessage) message).pickledMessage()));
      }
      Map<String, Object> question = Bridge.question(Protocol.FINISH_WRITE);
      question.put(Protocol.WRITE, new HashMap<>());
      question.put(Protocol.WRITER, plan.get(Protocol.WRITER));
      question.put(Protocol.MESSAGES, texts);
      question.put(Protocol.EPOCH, epoch);
      question.put(Protocol.ABORTS, aborts);
      question.put(Protocol.EXECUTION, SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY()));
      Bridge.ask(question, null);
    }
  }

  private static byte[] bytes(Object text) {
    return Base64.getDecoder().decode((String) text);
  }

  /** Returns bytes as base64. */
  static String text(byte[] bytes) {
    return Base64.getEncoder().encodeToString(bytes);
  }

  /** A write by tasks. */
  public static final class Batch implements BatchWrite {
    private final PythonWrite write;
    private final BatchWrite sparkWrite;
    // Null before planning, and if Spark's own write runs.
    private Map<String, Object> plan = null;

    Batch(PythonWrite write, BatchWrite sparkWrite) {
      this.write = write;
      this.sparkWrite = sparkWrite;
    }

    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      StructType schema = write.info().schema();
      boolean batches = LanceTransport.writesBatches(schema);
      plan = write.plan(false, batches);
      if (plan == null) {
        return sparkWrite.createBatchWriterFactory(physical);
      }
      if (!batches) {
        return (DataWriterFactory) write.factory(PythonBatchWriterFactory.class, plan, schema, sparkWrite);
      }
      Object factory = write.factory(PythonBatchWriterFactory.class, plan, LanceTransport.batchSchema(), sparkWrite);
      if (write.batchSwitch != null) {
        write.batchSwitch.run();
      }
      return LanceTransport.batchFactory((DataWriterFactory) factory, schema);
    }

    public boolean useCommitCoordinator() {
      return sparkWrite.useCommitCoordinator();
    }

    public void commit(WriterCommitMessage[] messages) {
      if (plan == null) {
        sparkWrite.commit(messages);
      } else {
        PythonWrite.finish(plan, messages, null, false);
      }
    }

    public void abort(WriterCommitMessage[] messages) {
      if (plan == null) {
        sparkWrite.abort(messages);
      } else {
        PythonWrite.finish(plan, messages, null, true);
      }
    }
  }

  /** The micro-batches of a stream. */
  public static final class Stream implements StreamingWrite {
    private final PythonWrite write;
    private final StreamingWrite sparkWrite;
    private Map<String, Object> plan = null;

    Stream(PythonWrite write, StreamingWrite sparkWrite) {
      this.write = write;
      this.sparkWrite = sparkWrite;
    }

    /**
     * Plans a micro-batch of upserts before Spark plans its rows.
     *
     * @return the route of the rows to the tasks; null if any task may write any row
     */
    Map<String, Object> route(Object epoch) {
      if (plan != null || !(epoch instanceof Long) || !"upsert".equalsIgnoreCase(write.info.options().get(Protocol.MODE))) {
        return null;
      }
      Map<String, Object> question = write.question(Protocol.PLAN_UPSERTS);
      question.put(Protocol.EPOCH, epoch);
      question.put(Protocol.PARTITIONS, ((SQLConf) SQLConf$.MODULE$.get()).numShufflePartitions());
      plan = Json.object(Bridge.ask(question, null));
      return plan == null ? null : Json.object(plan.get(Protocol.ROUTE));
    }

    /** Drops the plan, so that the write is planned again without a route. */
    void forget() {
      plan = null;
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
      plan = plan == null ? write.plan(true, false) : plan;
      if (plan == null) {
        return sparkWrite.createStreamingWriterFactory(physical);
      }
      return (StreamingDataWriterFactory) write.factory(PythonStreamingWriterFactory.class, plan, write.info().schema(), sparkWrite);
    }

    public boolean useCommitCoordinator() {
      return sparkWrite.useCommitCoordinator();
    }

    public void commit(long epoch, WriterCommitMessage[] messages) {
      if (plan == null) {
        sparkWrite.commit(epoch, messages);
      } else {
        PythonWrite.finish(plan, messages, Long.valueOf(epoch), false);
      }
    }

    public void abort(long epoch, WriterCommitMessage[] messages) {
      if (plan == null) {
        sparkWrite.abort(epoch, messages);
      } else {
        PythonWrite.finish(plan, messages, Long.valueOf(epoch), true);
      }
    }
  }
}
