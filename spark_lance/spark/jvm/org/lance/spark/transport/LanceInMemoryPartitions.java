package org.lance.spark.transport;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Partitions of rows that the driver has read, if they are too many for a local scan. Tasks read them without Python,
 * from streams of Arrow.
 *
 * <p>LanceColumnScan creates them. LanceTransport sends these classes to executors.
 */
public final class LanceInMemoryPartitions {
  private LanceInMemoryPartitions() {}

  /** A partition: some of the rows as a stream of Arrow. */
  public static final class Partition implements InputPartition, Serializable {
    private static final long serialVersionUID = 1L;
    private final byte[] stream;

    public Partition(byte[] stream) {
      this.stream = stream;
    }
  }

  /** Creates readers of partitions. */
  public static final class ReaderFactory implements PartitionReaderFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final StructType schema;

    public ReaderFactory(StructType schema) {
      this.schema = schema;
    }

    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("read as columns only");
    }

    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new BatchReader(((Partition) partition).stream, schema);
    }
  }

  /** Reads the batches of a stream. A batch is valid until the next call of next(). */
  public static final class BatchReader implements PartitionReader<ColumnarBatch> {
    private final BufferAllocator allocator =
        ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("lance", 0L, Long.MAX_VALUE);
    private final StructType schema;
    private final ArrowStreamReader reader;
    private LanceColumnVector[] columns = null;

    BatchReader(byte[] stream, StructType schema) {
      this.schema = schema;
      this.reader = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
    }

    public boolean next() throws IOException {
      return reader.loadNextBatch();
    }

    public ColumnarBatch get() {
      try {
        VectorSchemaRoot root = reader.getVectorSchemaRoot();
        if (columns == null) {
          columns = columns(root.getFieldVectors());
        }
        for (LanceColumnVector column : columns) {
          column.load(root.getRowCount(), null);
        }
        return new ColumnarBatch(columns, root.getRowCount());
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      }
    }

    private LanceColumnVector[] columns(List<FieldVector> vectors) {
      LanceColumnVector[] columns = new LanceColumnVector[vectors.size()];
      for (int i = 0; i < columns.length; i++) {
        FieldVector vector = (FieldVector) vectors.get(i);
        DataType actual = ArrowUtils$.MODULE$.fromArrowField(vector.getField());
        if (!LanceColumnVector.fits(actual, schema.fields()[i].dataType())) {
          throw new IllegalStateException(
              "the driver gave " + actual.simpleString() + " in place of " + schema.fields()[i]);
        }
        columns[i] = LanceColumnVector.of(vector);
      }
      return columns;
    }

    public void close() throws IOException {
      reader.close();
      allocator.close();
    }

    public CustomTaskMetric[] currentMetricsValues() {
      return new CustomTaskMetric[0];
    }
  }
}
