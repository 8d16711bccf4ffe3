package org.lance.spark.transport;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import scala.Tuple2;
import scala.runtime.AbstractFunction0;

/**
 * A writer factory that packs a task's rows into batches of Arrow, and hands each batch to Spark's writer as one row.
 *
 * <p>Spark's writer of Python data sources adds up the sizes of all columns after each row, to bound its batches. This
 * takes a third of the processor time of a write of many columns, but rows know their own size. With this class the
 * writer's rows have one column, {@code rows}, whose values are streams of Arrow (LanceRowColumns). TaskWrite, in
 * Python, unpacks them. LanceTransport sends these classes to executors.
 */
public final class LanceRowBatches {
  // Bytes of a batch, of up to three copies in memory. A lower limit of Spark's settings wins.
  private static final long MAX_BYTES = 16L << 20;
  private static final String RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch";
  private static final String LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch";

  private LanceRowBatches() {}

  /** Returns the schema of the rows that Spark's writer receives: one batch in each. */
  public static StructType schema() {
    return new StructType().add("rows", DataTypes.BinaryType, false);
  }

  /** Creates writers for tasks. */
  public static final class Factory implements DataWriterFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final DataWriterFactory sparkFactory;
    private final StructType schema;
    private final String arrow;
    private final long maxRows;
    private final long maxBytes;

    /**
     * Creates the factory.
     *
     * @param sparkFactory Spark's factory, for rows of {@link LanceRowBatches#schema}
     * @param schema the schema of the rows to write
     */
    public Factory(DataWriterFactory sparkFactory, StructType schema) {
      SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
      this.sparkFactory = sparkFactory;
      this.schema = schema;
      ArrowWriter writer = ArrowWriter$.MODULE$.create(schema, settings.sessionLocalTimeZone(), true, false);
      this.arrow = writer.root().getSchema().toJson();
      writer.root().close();
      int rows = settings.arrowMaxRecordsPerBatch();
      this.maxRows = rows > 0 ? rows : Long.MAX_VALUE;
      long bytes = org.apache.spark.network.util.JavaUtils.byteStringAsBytes(settings.getConfString(LIMIT));
      this.maxBytes = bytes > 0 ? Math.min(bytes, MAX_BYTES) : MAX_BYTES;
    }

    @SuppressWarnings("unchecked") // Spark declares the factory without types.
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new Writer(sparkFactory.createWriter(partition, task), this);
    }
  }

  /** Writes the rows of a task. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class Writer implements DataWriter {
    private final DataWriter<InternalRow> sparkWriter;
    private final Factory factory;

    Writer(DataWriter<InternalRow> sparkWriter, Factory factory) {
      this.sparkWriter = sparkWriter;
      this.factory = factory;
    }

    public void write(Object row) {
      throw new UnsupportedOperationException("rows are written all at once");
    }

    // Spark's writer reads the settings when it starts. It would collect as many batches as rows in memory, so the
    // settings limit it to one batch at a time.
    public void writeAll(Iterator rows) {
      SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
      SQLConf single = new SQLConf();
      scala.collection.Iterator<Tuple2<String, String>> settingsIterator = settings.getAllConfs().iterator();
      while (settingsIterator.hasNext()) {
        scala.Tuple2<String, String> setting = (scala.Tuple2<String, String>) settingsIterator.next();
        single.setConfString((String) setting._1(), (String) setting._2());
      }
      single.setConfString(RECORDS, "1");
      SQLConf$.MODULE$.withExistingConf(single, new WriteAll(sparkWriter, new Batches(rows, factory, settings)));
    }

    public WriterCommitMessage commit() throws IOException {
      return sparkWriter.commit();
    }

    public void abort() throws IOException {
      sparkWriter.abort();
    }

    public void close() throws IOException {
      sparkWriter.close();
    }

    public CustomTaskMetric[] currentMetricsValues() {
      return sparkWriter.currentMetricsValues();
    }
  }

  /** Runs Spark's writer over batches. */
  private static final class WriteAll extends AbstractFunction0<Object> {
    private final DataWriter<InternalRow> writer;
    private final Batches batches;

    WriteAll(DataWriter<InternalRow> writer, Batches batches) {
      this.writer = writer;
      this.batches = batches;
    }

    public Object apply() {
      try {
        writer.writeAll(batches);
      } catch (IOException problem) {
        throw new UncheckedIOException(problem);
      }
      return null;
    }
  }

  /** Reads the next batch, or asks whether there is one, with the task's settings. */
  private static final class BatchRequest extends AbstractFunction0<Object> {
    private final Batches batches;
    private final boolean isNext;

    BatchRequest(Batches batches, boolean isNext) {
      this.batches = batches;
      this.isNext = isNext;
    }

    public Object apply() {
      return isNext ? (Object) batches.batch() : Boolean.valueOf(batches.hasRows());
    }
  }

  /** The rows of a task as batches of some thousand rows, one batch in each row. */
  private static final class Batches implements Iterator<InternalRow>, TaskCompletionListener {
    private final Iterator<Object> rows;
    private final Factory factory;
    // The settings of the task, which its iterators of rows may read.
    private final SQLConf settings;
    private final LanceRowColumns columns;
    private final Schema arrow;
    // Converts other rows into UnsafeRow.
    private UnsafeProjection projection = null;
    // The batch that the task reads now instead of rows, the position of its next row, and the average bytes of a
    // row.
    private ColumnarBatch columnarBatch = null;
    private int offset = 0;
    private long rowBytes = Long.MAX_VALUE;
    private int largestBytes = 0;
    // Spark may read in another thread, and a task that fails does not wait for it.
    private final ReentrantLock busy = new ReentrantLock();
    private volatile boolean hasEnded = false;
    private boolean isFreed = false;

    Batches(Iterator<Object> rows, Factory factory, SQLConf settings) {
      this.rows = rows;
      this.factory = factory;
      this.settings = settings;
      this.columns = new LanceRowColumns(factory.schema, ArrowUtils.rootAllocator());
      this.arrow = schema(factory.arrow);
      TaskContext.get().addTaskCompletionListener((TaskCompletionListener) this);
    }

    public boolean hasNext() {
      return (Boolean) SQLConf$.MODULE$.withExistingConf(settings, new BatchRequest(this, false));
    }

    public InternalRow next() {
      busy.lock();
      try {
        if (hasEnded) {
          throw new NoSuchElementException("the task has ended");
        }
        return (InternalRow) SQLConf$.MODULE$.withExistingConf(settings, new BatchRequest(this, true));
      } finally {
        busy.unlock();
        if (hasEnded) {
          free();
        }
      }
    }

    public void onTaskCompletion(TaskContext context) {
      hasEnded = true;
      free();
    }

    /** Frees the memory, or leaves it to the thread that is using it. */
    private void free() {
      if (busy.tryLock()) {
        try {
          if (!isFreed) {
            isFreed = true;
            columns.close();
          }
        } finally {
          busy.unlock();
        }
      }
    }

    private boolean hasRows() {
      return !hasEnded && (columnarBatch != null || rows.hasNext());
    }

    private static Schema schema(String text) {
      try {
        return Schema.fromJSON(text);
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      }
    }

    private InternalRow batch() {
      long count = 0L;
      long size = 0L;
      while (count < factory.maxRows && size < factory.maxBytes && (columnarBatch != null || rows.hasNext())) {
        Object next = columnarBatch == null ? rows.next() : null;
        if (next instanceof LanceColumnCopies.BatchRow) {
          columnarBatch = ((LanceColumnCopies.BatchRow) next).batch();
          offset = 0;
        }
        if (columnarBatch == null) {
          size += add((InternalRow) next);
          count++;
        } else {
          int limit = (int) Math.min(factory.maxRows - count, Math.max(1L, (factory.maxBytes - size) / rowBytes));
          count += add(limit);
          size = columns.bytes();
        }
      }
      ArrowRecordBatch batch = columns.batch();
      // The next batch of the same size needs no reallocation.
      ByteArrayOutputStream bytes = new ByteArrayOutputStream(largestBytes);
      try {
        WriteChannel out = new WriteChannel(Channels.newChannel(bytes));
        MessageSerializer.serialize(out, arrow);
        MessageSerializer.serialize(out, batch);
        ArrowStreamWriter.writeEndOfStream(out, IpcOption.DEFAULT);
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      } finally {
        batch.close();
      }
      largestBytes = Math.max(largestBytes, bytes.size());
      return new GenericInternalRow(new Object[] {bytes.toByteArray()});
    }

    private long add(InternalRow input) {
      UnsafeRow row = unsafe(input);
      columns.add(row);
      return row.getSizeInBytes();
    }

    /**
     * Adds up to {@code limit} rows of the current batch.
     *
     * @return the number of rows that were added
     */
    private int add(int limit) {
      int rowCount = Math.min(limit, columnarBatch.numRows() - offset);
      long before = columns.bytes();
      if (LanceColumnCopies.fits(columnarBatch, factory.schema)) {
        columns.add(columnarBatch, offset, rowCount);
      } else {
        for (int i = 0; i < rowCount; i++) {
          add(columnarBatch.getRow(offset + i));
        }
      }
      rowBytes = Math.max(1L, (columns.bytes() - before) / rowCount);
      offset += rowCount;
      columnarBatch = offset == columnarBatch.numRows() ? null : columnarBatch;
      return rowCount;
    }

    private UnsafeRow unsafe(InternalRow row) {
      if (row instanceof UnsafeRow) {
        return (UnsafeRow) row;
      }
      if (projection == null) {
        projection = UnsafeProjection.create(factory.schema);
      }
      return projection.apply(row);
    }
  }
}
