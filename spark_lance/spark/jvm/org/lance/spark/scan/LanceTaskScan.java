package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.catalog.LancePartitions;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.LanceSessionRule;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;
import org.lance.spark.transport.LanceTransport;

/** The scan of a table by tasks, which Spark's own reader of Python data sources runs. */
public final class LanceTaskScan
    implements Scan, Batch, SupportsReportStatistics, SupportsRuntimeV2Filtering, SupportsReportPartitioning {
  // With more keys, a join does not narrow the scan.
  private static final int MOST_KEYS = 10000;
  private final String displayName;
  private final Map<String, Object> question;
  private final Map<String, Object> initialPlan;
  private final StructType schema;
  private final PythonDataSourceV2 source = Bridge.source();
  private final boolean isRecursive = LanceSessionRule.SessionRule.isRecursive();
  // Several executions may share a scan, each with its own join keys or none. Spark calls filter() with the keys,
  // then toBatch(), then planInputPartitions(). Spark also calls toBatch() to compare batches, so the call itself
  // must not plan. The plan with the keys of the last filter() until toBatch(); null without keys.
  private Map<String, Object> filteredPlan = null;
  // The plan whose partitions Spark planned last; the reader factory uses it.
  private Map<String, Object> plan;
  // How workers hand over rows, see LanceTransport; null until it is needed first.
  private String transport = null;

  LanceTaskScan(String displayName, Map<String, Object> question, Map<String, Object> answer, StructType schema) {
    this.displayName = displayName;
    this.question = question;
    this.initialPlan = answer;
    this.plan = answer;
    this.schema = schema;
  }

  public StructType readSchema() {
    return schema;
  }

  public synchronized String description() {
    String order = isOrdered() ? "; order: " + question.get(Protocol.TOP) : "";
    return "LanceScan " + displayName + " [" + plan.get(Protocol.EXPLANATION) + order + "]";
  }

  // By default, Spark would plan all partitions to find out.
  public Scan.ColumnarSupportMode columnarSupportMode() {
    return transport().equals("rows") ? Scan.ColumnarSupportMode.UNSUPPORTED : Scan.ColumnarSupportMode.SUPPORTED;
  }

  // The value must not change after the query was planned.
  private synchronized String transport() {
    if (transport == null) {
      transport = LanceTransport.kind(schema);
    }
    return transport;
  }

  public Statistics estimateStatistics() {
    return LanceRows.statistics(question, initialPlan);
  }

  public CustomMetric[] supportedCustomMetrics() {
    List<CustomMetric> metrics = new ArrayList<>(Arrays.asList(source.source().createPythonMetrics()));
    metrics.addAll(Arrays.asList(LanceMetric.of(Json.list(initialPlan.get(Protocol.METRICS)))));
    if (!transport().equals("rows")) {
      metrics.addAll(Arrays.asList(LanceMetric.of(Json.list(initialPlan.get(Protocol.TASK_METRICS)))));
    }
    return (CustomMetric[]) metrics.toArray(new CustomMetric[0]);
  }

  /** Returns the metrics of the plan. Tasks report their own only where LanceColumns runs. */
  public synchronized CustomTaskMetric[] reportDriverMetrics() {
    return LanceMetric.of(Json.list(plan.get(Protocol.METRICS)));
  }

  public synchronized Batch toBatch() {
    Map<String, Object> keyedPlan = filteredPlan;
    filteredPlan = null;
    return keyedPlan == null ? this : new FilteredBatch(this, keyedPlan);
  }

  /** The batch of one execution, which the keys of its joins narrow. */
  private static final class FilteredBatch implements Batch {
    private final LanceTaskScan scan;
    private final Map<String, Object> plan;

    FilteredBatch(LanceTaskScan scan, Map<String, Object> plan) {
      this.scan = scan;
      this.plan = plan;
    }

    public InputPartition[] planInputPartitions() {
      return scan.partitionsOf(plan);
    }

    public PartitionReaderFactory createReaderFactory() {
      return scan.createReaderFactory();
    }
  }

  public synchronized MicroBatchStream toMicroBatchStream(String checkpoint) {
    // Spark's own reader reads the stream.
    transport = "rows";
    return LanceRows.stream(question, schema, checkpoint);
  }

  // A scan with an order reads only its first rows.
  private boolean isOrdered() {
    return Boolean.TRUE.equals(initialPlan.get(Protocol.ORDERED));
  }

  public NamedReference[] filterAttributes() {
    List<NamedReference> names = new ArrayList<>();
    // The rows within a limit must not depend on a join.
    boolean isFilterable = question.get(Protocol.LIMIT) == null && !isOrdered() && !isRecursive;
    for (int i = 0; isFilterable && i < schema.length(); i++) {
      names.add(FieldReference.column(schema.fields()[i].name()));
    }
    return (NamedReference[]) names.toArray(new NamedReference[0]);
  }

  /**
   * Narrows the next batch to the keys of all joins of one execution. Python skips keys that it cannot compare. Lists
   * of more than MOST_KEYS keys are left to the join.
   */
  public synchronized void filter(Predicate[] predicates) {
    filteredPlan = null;
    List<Predicate> few = new ArrayList<>();
    for (Predicate predicate : predicates) {
      if (predicate.children().length <= MOST_KEYS) {
        few.add(predicate);
      }
    }
    List<Object> keys = LancePushdown.toJson((Predicate[]) few.toArray(new Predicate[0]));
    if (question.get(Protocol.LIMIT) != null || isOrdered() || keys.isEmpty()) {
      return;
    }
    Map<String, Object> request = new LinkedHashMap<>(question);
    request.put(Protocol.RUNTIME, keys);
    filteredPlan = Json.object(Bridge.ask(request, null));
  }

  public Predicate[] pushedPredicates() {
    return new Predicate[0];
  }

  public boolean supportsIterativePushdown() {
    return false;
  }

  public InputPartition[] planInputPartitions() {
    return partitionsOf(initialPlan);
  }

  private synchronized InputPartition[] partitionsOf(Map<String, Object> plan) {
    this.plan = plan;
    List<Object> pickled = Json.list(plan.get(Protocol.PARTITIONS));
    InputPartition[] partitions = new InputPartition[pickled.size()];
    LancePartitions fields = partitionFields();
    List<Object> values = Json.list(plan.get(Protocol.PARTITION_VALUES));
    for (int i = 0; i < partitions.length; i++) {
      byte[] bytes = bytes(pickled.get(i));
      partitions[i] = fields == null ? new PythonInputPartition(i, bytes) : new KeyedPartition(i, bytes, fields.row(Json.list(values.get(i))));
    }
    return partitions;
  }

  /** Returns the partition fields if each task reads one partition; null otherwise. */
  private LancePartitions partitionFields() {
    List<Object> fields = Json.list(initialPlan.get(Protocol.PARTITION_FIELDS));
    return fields == null || fields.isEmpty() ? null : new LancePartitions(fields);
  }

  public Partitioning outputPartitioning() {
    LancePartitions fields = partitionFields();
    List<Object> values = Json.list(initialPlan.get(Protocol.PARTITION_VALUES));
    return fields == null
        ? (Partitioning) new UnknownPartitioning(0)
        : new KeyGroupedPartitioning(fields.transforms(), new HashSet<>(values).size());
  }

  /**
   * The work of a task on one partition of the table. Executors receive it without the key, whose class they lack.
   */
  public static final class KeyedPartition extends PythonInputPartition implements HasPartitionKey {
    private static final long serialVersionUID = 1L;
    private final transient InternalRow key;

    KeyedPartition(int index, byte[] pickled, InternalRow key) {
      super(index, pickled);
      this.key = key;
    }

    public InternalRow partitionKey() {
      return key;
    }

    private Object writeReplace() {
      return new PythonInputPartition(index(), pickedPartition());
    }
  }

  public PartitionReaderFactory createReaderFactory() {
    return LanceTransport.factory(rowReaderFactory(), transport());
  }

  private synchronized PartitionReaderFactory rowReaderFactory() {
    return Shim.readerFactory(source, bytes(plan.get(Protocol.FUNCTION)), schema, LanceRows.options(question));
  }

  private static byte[] bytes(Object text) {
    return Base64.getDecoder().decode((String) text);
  }

  // Equal scans let Spark read both sides of a self-join once.
  public boolean equals(Object other) {
    return other instanceof LanceTaskScan && question.equals(((LanceTaskScan) other).question);
  }

  public int hashCode() {
    return question.hashCode();
  }
}
