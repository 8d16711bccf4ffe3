package org.lance.spark.transport;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.FieldVector;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.AccumulatorV2;
import org.lance.spark.shim.WorkerShim;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * Reads batches of columns from a Python worker without turning them into rows.
 *
 * <p>Spark reads the Arrow batches of a Python data source, and splits every batch into rows before a query sees it.
 * Here the same worker, started by the same classes of Spark, gives its batches to the query. LanceColumnVector reads
 * their columns by address, in Arrow's memory or in memory shared with the worker (LanceRing). LanceTransport sends
 * these classes to executors.
 */
public final class LanceColumns {
  private LanceColumns() {}

  /** Creates readers of batches. Spark's own factory has the parameters of the worker. */
  public static final class Factory implements PartitionReaderFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final PartitionReaderFactory sparkFactory;
    // Bytes of memory that a task shares with its worker; 0 for none.
    private final long memory;

    public Factory(PartitionReaderFactory sparkFactory, long memory) {
      this.sparkFactory = sparkFactory;
      this.memory = memory;
    }

    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return sparkFactory.createReader(partition);
    }

    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      try {
        return new Batches(new WorkerShim(sparkFactory), (PythonInputPartition) partition, memory);
      } catch (ReflectiveOperationException problem) {
        // Throws what a direct call would throw.
        Platform.throwException(WorkerShim.cause(problem));
        return null;
      }
    }
  }

  /** Reads the batches of one partition. A batch is valid until the next call of next(). */
  public static final class Batches implements PartitionReader<ColumnarBatch> {
    private final UserDefinedPythonDataSource source;
    private final StructType schema;
    private final scala.collection.immutable.Map<String, SQLMetric> metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
    private final scala.collection.Iterator<ColumnarBatch> batches;
    // The memory for batches and the counters of the worker; null if the worker sends batches.
    private final LanceRing ring;
    private boolean isAtEnd = false;
    // Bytes of the batches in shared memory.
    private long sharedBytes = 0L;
    private FieldVector struct = null;
    private LanceColumnVector[] columns = null;

    Batches(WorkerShim worker, PythonInputPartition partition, long memory) throws ReflectiveOperationException {
      this.source = worker.source();
      this.schema = worker.schema();
      BasePythonRunner<Iterator<InternalRow>, ColumnarBatch> runner = worker.runner(metrics);
      ring = schema.length() == 0 ? null : LanceRing.lease(memory);
      boolean isOpen = false;
      try {
        InternalRow request = row(row(workerInput(partition.pickedPartition())));
        scala.collection.Iterator<InternalRow> input = scala.collection.Iterator$.MODULE$.single(request);
        TaskContext context = TaskContext.get();
        batches = runner.compute(scala.collection.Iterator$.MODULE$.single(input), context.partitionId(), context);
        isOpen = true;
      } finally {
        if (!isOpen) {
          close();
        }
      }
    }

    /**
     * Returns the worker's input, see spark/worker/transport.py: the pickle, and with shared memory a line with its
     * path and a line with its key.
     */
    private byte[] workerInput(byte[] pickle) {
      String text = ring != null ? ring.workerText() : "";
      byte[] lease = text.getBytes(StandardCharsets.UTF_8);
      byte[] input = Arrays.copyOf(pickle, pickle.length + lease.length);
      System.arraycopy(lease, 0, input, pickle.length, lease.length);
      return input;
    }

    private static InternalRow row(Object value) {
      return new GenericInternalRow(new Object[] {value});
    }

    public boolean next() {
      if (ring != null) {
        ring.release();
      }
      isAtEnd = !batches.hasNext();
      return !isAtEnd;
    }

    public ColumnarBatch get() {
      ColumnarBatch batch = (ColumnarBatch) batches.next();
      FieldVector next = (FieldVector) ((ArrowColumnVector) batch.column(0)).getValueVector();
      if (columns == null || next != struct) {
        struct = next;
        columns = columns(next);
      }
      // With shared memory, an empty batch on the socket means that the next batch is in the memory.
      LanceMessage message = ring != null && batch.numRows() == 0 ? ring.nextMessage() : null;
      int rows = message == null ? batch.numRows() : message.rows();
      for (LanceColumnVector vector : columns) {
        vector.load(rows, message);
      }
      if (message != null) {
        message.checkEnd();
        sharedBytes += message.bytes();
        addToMetric("pythonNumRowsReceived", rows);
        addToMetric("pythonDataReceived", message.bytes());
      }
      return new ColumnarBatch(columns, rows);
    }

    /** Adds to a metric that Spark counts only for batches on the socket. */
    private void addToMetric(String name, long value) {
      if (metrics.contains(name)) {
        ((SQLMetric) metrics.apply(name)).add(value);
      }
    }

    private LanceColumnVector[] columns(FieldVector vector) {
      DataType actual = ArrowUtils$.MODULE$.fromArrowField(vector.getField());
      if (!LanceColumnVector.fits(actual, schema)) {
        throw new IllegalStateException(
            "a Python worker gave " + actual.simpleString() + " in place of " + schema.simpleString());
      }
      return LanceColumnVector.parts(vector);
    }

    public CustomTaskMetric[] currentMetricsValues() {
      Map<String, Object> values = new HashMap<>();
      scala.collection.Iterator<Tuple2<String, SQLMetric>> entries = metrics.iterator();
      while (entries.hasNext()) {
        Tuple2<String, SQLMetric> entry = (Tuple2<String, SQLMetric>) entries.next();
        values.put(entry._1(), ((AccumulatorV2<?, ?>) entry._2()).value());
      }
      scala.collection.mutable.Map<String, Object> received = scala.jdk.javaapi.CollectionConverters.asScala(values);
      List<CustomTaskMetric> all = new ArrayList<>(
          Arrays.asList(source.createPythonTaskMetrics(received.toMap(scala.$less$colon$less$.MODULE$.refl()))));
      addReads(all);
      return (CustomTaskMetric[]) all.toArray(new CustomTaskMetric[0]);
    }

    private void addReads(List<CustomTaskMetric> all) {
      all.add(new TaskMetric("lanceTaskShared", sharedBytes));
      String text = ring == null ? "" : ring.counts();
      String[] lines = text.isEmpty() ? new String[0] : text.split("\n");
      for (String line : lines) {
        String[] words = line.split(" ");
        all.add(new TaskMetric(words[0], Long.parseLong(words[1])));
      }
    }

    @SuppressWarnings("deprecation") // The method of Spark 4.0.
    public void initMetricsValues(CustomTaskMetric[] metrics) {}

    // Spark stops the worker and frees its memory when the task ends.
    public void close() {
      if (ring != null) {
        ring.close(isAtEnd);
      }
    }
  }

  /** A metric of what a task has read so far. */
  private static final class TaskMetric implements CustomTaskMetric {
    private final String name;
    private final long value;

    TaskMetric(String name, long value) {
      this.name = name;
      this.value = value;
    }

    public String name() {
      return name;
    }

    public long value() {
      return value;
    }
  }
}
