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
  // Bytes of a batch, which stands up to three times in memory. Spark's limit is lower only if somebody said so.
  private static final long MOST_BYTES = 16L << 20;
  private static final String RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch";
  private static final String LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch";

  private LanceRowBatches() {}

  // What the rows are that Spark's writer gets.
  public static StructType schema() {
    return new StructType().add("rows", DataTypes.BinaryType, false);
  }

  /** Makes writers of the rows of tasks. */
  public static final class Factory implements DataWriterFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final DataWriterFactory sparkFactory;
    private final StructType schema;
    private final String arrow;
    private final long mostRows;
    private final long mostBytes;

    // `own` is Spark's factory, for rows as `LanceRowBatches.schema` says; `schema` that of the rows that come.
    public Factory(DataWriterFactory sparkFactory, StructType schema) {
      SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
      this.sparkFactory = sparkFactory;
      this.schema = schema;
      ArrowWriter writer = ArrowWriter$.MODULE$.create(schema, settings.sessionLocalTimeZone(), true, false);
      this.arrow = writer.root().getSchema().toJson();
      writer.root().close();
      int rows = settings.arrowMaxRecordsPerBatch();
      this.mostRows = rows > 0 ? rows : Long.MAX_VALUE;
      long bytes = org.apache.spark.network.util.JavaUtils.byteStringAsBytes(settings.getConfString(LIMIT));
      this.mostBytes = bytes > 0 ? Math.min(bytes, MOST_BYTES) : MOST_BYTES;
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

    // Spark's writer asks for the settings when it starts, before it asks for rows. It would put as many of the batches
    // together as of rows, and hold them all; it gets one at a time.
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

  /** What Spark's writer does. */
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

  /** What it asks for: a batch, or whether there is one more. */
  private static final class BatchRequest extends AbstractFunction0<Object> {
    private final Batches batches;
    private final boolean forOne;

    BatchRequest(Batches batches, boolean forOne) {
      this.batches = batches;
      this.forOne = forOne;
    }

    public Object apply() {
      return forOne ? (Object) batches.batch() : Boolean.valueOf(batches.hasRows());
    }
  }

  /** The rows of a task, some thousands of them in each row. */
  private static final class Batches implements Iterator<InternalRow>, TaskCompletionListener {
    private final Iterator<Object> rows;
    private final Factory factory;
    // Those of the task, which what makes the rows may ask for.
    private final SQLConf settings;
    private final LanceRowColumns columns;
    private final Schema arrow;
    // Makes rows in Spark's own layout of others.
    private UnsafeProjection projection = null;
    // Columns that came in the place of rows, those that are left of them, and the bytes that a row of them took.
    private ColumnarBatch columnarBatch = null;
    private int offset = 0;
    private long rowBytes = Long.MAX_VALUE;
    private int largestBytes = 0;
    // Spark may ask in a thread of its own, which a task that fails does not wait for.
    private final ReentrantLock busy = new ReentrantLock();
    private volatile boolean ended = false;
    private boolean freed = false;

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
        if (ended) {
          throw new NoSuchElementException("the task has ended");
        }
        return (InternalRow) SQLConf$.MODULE$.withExistingConf(settings, new BatchRequest(this, true));
      } finally {
        busy.unlock();
        if (ended) {
          free();
        }
      }
    }

    public void onTaskCompletion(TaskContext context) {
      ended = true;
      free();
    }

    // Gives the memory back, or leaves that to the thread that is using it.
    private void free() {
      if (busy.tryLock()) {
        try {
          if (!freed) {
            freed = true;
            columns.close();
          }
        } finally {
          busy.unlock();
        }
      }
    }

    private boolean hasRows() {
      return !ended && (columnarBatch != null || rows.hasNext());
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
      while (count < factory.mostRows && size < factory.mostBytes && (columnarBatch != null || rows.hasNext())) {
        Object next = columnarBatch == null ? rows.next() : null;
        if (next instanceof LanceColumnCopies.Whole) {
          columnarBatch = ((LanceColumnCopies.Whole) next).batch();
          offset = 0;
        }
        if (columnarBatch == null) {
          size += add((InternalRow) next);
          count++;
        } else {
          int maxRows = (int) Math.min(factory.mostRows - count, Math.max(1L, (factory.mostBytes - size) / rowBytes));
          count += add(maxRows);
          size = columns.bytes();
        }
      }
      ArrowRecordBatch batch = columns.batch();
      // Of batches of one size, the second needs no more room than this.
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

    private long add(InternalRow some) {
      UnsafeRow row = unsafe(some);
      columns.add(row);
      return row.getSizeInBytes();
    }

    // Takes at most so many rows of the columns that are held; returns how many.
    private int add(int most) {
      int some = Math.min(most, columnarBatch.numRows() - offset);
      long before = columns.bytes();
      if (LanceColumnCopies.fits(columnarBatch, factory.schema)) {
        columns.add(columnarBatch, offset, some);
      } else {
        for (int i = 0; i < some; i++) {
          add(columnarBatch.getRow(offset + i));
        }
      }
      rowBytes = Math.max(1L, (columns.bytes() - before) / some);
      offset += some;
      columnarBatch = offset == columnarBatch.numRows() ? null : columnarBatch;
      return some;
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
