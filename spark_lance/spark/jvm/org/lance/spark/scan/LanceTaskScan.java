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

/** The scan of a table by tasks, for Spark's own reader of Python data sources. LanceScan makes it. */
public final class LanceTaskScan
    implements Scan, Batch, SupportsReportStatistics, SupportsRuntimeV2Filtering, SupportsReportPartitioning {
  // Keys of a join beyond which they do not narrow a scan.
  private static final int MOST_KEYS = 10000;
  private final String displayName;
  private final Map<String, Object> question;
  private final Map<String, Object> initialPlan;
  private final StructType schema;
  private final PythonDataSourceV2 source = Bridge.source();
  private final boolean isRecursive = LanceSessionRule.SessionRule.isRecursive();
  // Several executions may share a scan, each with keys of its own, or none. Spark hands over the keys, and then asks for a
  // batch and its partitions. It also asks for batches that it only compares, so toBatch() alone changes nothing.
  //
  // The plan with the keys that were handed over last, until its batch is asked for; null without keys.
  private Map<String, Object> filteredPlan = null;
  // The plan whose partitions were asked for last; the reader goes with it.
  private Map<String, Object> plan;
  // How rows come from the workers, once somebody has asked: see LanceTransport.
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
    return "LanceScan " + displayName + " [" + plan.get(Protocol.ABOUT) + order + "]";
  }

  // Spark would plan all partitions to find out by itself.
  public Scan.ColumnarSupportMode columnarSupportMode() {
    return transport().equals("rows") ? Scan.ColumnarSupportMode.UNSUPPORTED : Scan.ColumnarSupportMode.SUPPORTED;
  }

  // It stays what it was when the query was planned.
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
    metrics.addAll(Arrays.asList(LanceMetric.of(Json.list(initialPlan.get(Protocol.AMOUNTS)))));
    if (!transport().equals("rows")) {
      metrics.addAll(Arrays.asList(LanceMetric.of(Json.list(initialPlan.get(Protocol.TASK_AMOUNTS)))));
    }
    return (CustomMetric[]) metrics.toArray(new CustomMetric[0]);
  }

  // What the plan says. Tasks tell what they read where LanceColumns runs in executors, which have no other class.
  public synchronized CustomTaskMetric[] reportDriverMetrics() {
    return LanceMetric.of(Json.list(plan.get(Protocol.AMOUNTS)));
  }

  public synchronized Batch toBatch() {
    Map<String, Object> ofKeys = filteredPlan;
    filteredPlan = null;
    return ofKeys == null ? this : new FilteredBatch(this, ofKeys);
  }

  /** The partitions of one execution, with the keys of its joins. */
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
    // It is read by Spark's own reader.
    transport = "rows";
    return LanceRows.stream(question, schema, checkpoint);
  }

  // Whether only the first rows of an order are read.
  private boolean isOrdered() {
    return Boolean.TRUE.equals(initialPlan.get(Protocol.ORDERED));
  }

  public NamedReference[] filterAttributes() {
    List<NamedReference> names = new ArrayList<>();
    // What a limit leaves must not depend on a join.
    boolean isFilterable = question.get(Protocol.LIMIT) == null && !isOrdered() && !isRecursive;
    for (int i = 0; isFilterable && i < schema.length(); i++) {
      names.add(FieldReference.column(schema.fields()[i].name()));
    }
    return (NamedReference[]) names.toArray(new NamedReference[0]);
  }

  // The keys of all joins of one execution. Keys that cannot be compared here are left to the join, and so are too many
  // keys.
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
      partitions[i] = fields == null ? new PythonInputPartition(i, bytes) : new Keyed(i, bytes, fields.row(Json.list(values.get(i))));
    }
    return partitions;
  }

  // The fields if each task reads one partition; null otherwise. A join does not change it.
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

  /** Work on one partition of the table. Executors get it without the partition, for which they have no class. */
  public static final class Keyed extends PythonInputPartition implements HasPartitionKey {
    private static final long serialVersionUID = 1L;
    private final transient InternalRow key;

    Keyed(int index, byte[] pickled, InternalRow key) {
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
    return LanceTransport.factory(rows(), transport());
  }

  private synchronized PartitionReaderFactory rows() {
    return Shim.readerFactory(source, bytes(plan.get(Protocol.FUNCTION)), schema, LanceRows.options(question));
  }

  private static byte[] bytes(Object text) {
    return Base64.getDecoder().decode((String) text);
  }

  // Both sides of a self-join may be read once.
  public boolean equals(Object other) {
    return other instanceof LanceTaskScan && question.equals(((LanceTaskScan) other).question);
  }

  public int hashCode() {
    return question.hashCode();
  }
}
