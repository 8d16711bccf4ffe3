package org.lance.spark.transport;

import java.io.Serializable;
import java.math.BigInteger;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Copies Spark's columns into the columns of Arrow that LanceRowColumns fills. A write of a columnar scan makes no
 * rows.
 *
 * <p>It runs in the tasks of a write, one thread each. LanceTransport sends it to executors.
 */
public final class LanceColumnCopies {
  private LanceColumnCopies() {}

  /** A batch of columns that is handed over as one row. Its columns are valid until the next batch is read. */
  public static final class BatchRow extends GenericInternalRow {
    private static final long serialVersionUID = 1L;
    private final ColumnarBatch batch;

    BatchRow(ColumnarBatch batch) {
      super(new Object[0]);
      this.batch = batch;
    }

    /** Returns the batch. */
    ColumnarBatch batch() {
      return batch;
    }
  }

  /**
   * Turns the batches of a scan into the input of a write: rows, or batches after {@code run()} was called in the
   * driver.
   */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class BatchFunction implements FlatMapFunction, Runnable, Serializable {
    private static final long serialVersionUID = 1L;
    // The positions of the columns to write, in the order of the table.
    private final int[] ordinals;
    private volatile boolean asBatches = false;

    public BatchFunction(int[] ordinals) {
      this.ordinals = ordinals;
    }

    public void run() {
      asBatches = true;
    }

    public Iterator<?> call(Object batches) {
      return new RowsOrBatches((Iterator<ColumnarBatch>) batches, ordinals, asBatches);
    }
  }

  /** Iterates over the rows of batches, or over the batches themselves. */
  private static final class RowsOrBatches implements Iterator<Object> {
    private final Iterator<ColumnarBatch> batches;
    private final int[] ordinals;
    private final boolean asBatches;
    private ColumnarBatch next = null;
    private Iterator<?> rows = null;

    RowsOrBatches(Iterator<ColumnarBatch> batches, int[] ordinals, boolean asBatches) {
      this.batches = batches;
      this.ordinals = ordinals;
      this.asBatches = asBatches;
    }

    public boolean hasNext() {
      if (rows != null && rows.hasNext()) {
        return true;
      }
      while (next == null && batches.hasNext()) {
        ColumnarBatch batch = (ColumnarBatch) batches.next();
        next = batch.numRows() == 0 ? null : project(batch);
      }
      return next != null;
    }

    public Object next() {
      if (!hasNext()) {
        throw new NoSuchElementException("no row is left");
      }
      if (rows != null && rows.hasNext()) {
        return rows.next();
      }
      ColumnarBatch batch = next;
      next = null;
      if (asBatches) {
        return new BatchRow(batch);
      }
      rows = batch.rowIterator();
      return rows.next();
    }

    private ColumnarBatch project(ColumnarBatch batch) {
      ColumnVector[] columns = new ColumnVector[ordinals.length];
      for (int i = 0; i < ordinals.length; i++) {
        columns[i] = batch.column(ordinals[i]);
      }
      return new ColumnarBatch(columns, batch.numRows());
    }
  }

  /** Returns whether the columns of a batch can be copied without rows. */
  static boolean fits(ColumnarBatch batch, StructType schema) {
    boolean fits = batch.numCols() == schema.length();
    for (int i = 0; fits && i < schema.length(); i++) {
      fits = fits(batch.column(i), schema.fields()[i].dataType());
    }
    return fits;
  }

  private static boolean fits(ColumnVector vector, DataType type) {
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      boolean fits = vector != null;
      for (int i = 0; fits && i < struct.length(); i++) {
        fits = fits(vector.getChild(i), struct.fields()[i].dataType());
      }
      return fits;
    }
    if (type instanceof ArrayType) {
      // Other vectors do not say where the items of an array are.
      return vector instanceof WritableColumnVector && fits(vector.getChild(0), ((ArrayType) type).elementType());
    }
    return vector != null && !(type instanceof MapType);
  }

  /**
   * Appends values of a vector to a column of Arrow.
   *
   * @param parentValid whether the parent of each value is not null; null if all parents are valid. Values below a
   *     null are null.
   * @param from the first value's position in the vector
   * @param count the number of values
   */
  static void copy(LanceRowNode to, ColumnVector vector, DataType type, boolean[] parentValid, int from, int count) {
    boolean[] valid = null;
    if (to instanceof LanceRowNodes.Nulls) {
      valid = new boolean[count];
    } else if (parentValid != null || vector.hasNull()) {
      valid = new boolean[count];
      for (int i = 0; i < count; i++) {
        valid[i] = (parentValid == null || parentValid[i]) && !vector.isNullAt(from + i);
      }
    }
    if (valid == null) {
      to.validity.addSet(count);
    } else {
      to.validity.add(valid, count);
    }
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      for (int i = 0; i < struct.length(); i++) {
        copy(to.parts[i], vector.getChild(i), struct.fields()[i].dataType(), valid, from, count);
      }
    } else if (type instanceof ArrayType) {
      arrays((LanceRowNodes.Items) to, (WritableColumnVector) vector, ((ArrayType) type).elementType(), valid, from, count);
    } else if (to instanceof LanceRowNodes.Fixed) {
      fixed((LanceRowNodes.Fixed) to, vector, type, valid, from, count);
    } else if (to instanceof LanceRowNodes.Bytes) {
      texts((LanceRowNodes.Bytes) to, vector, valid, from, count);
    } else if (to instanceof LanceRowNodes.Bits) {
      boolean[] values = new boolean[count];
      for (int i = 0; i < count; i++) {
        values[i] = (valid == null || valid[i]) && vector.getBoolean(from + i);
      }
      ((LanceRowNodes.Bits) to).flags.add(values, count);
    } else if (to instanceof LanceRowNodes.Decimals) {
      decimals(to, vector, (DecimalType) type, valid, from, count);
    }
  }

  private static void fixed(
      LanceRowNodes.Fixed to, ColumnVector vector, DataType type, boolean[] valid, int from, int count) {
    int width = to.width;
    long size = (long) width * count;
    long at = to.buffers[0].room(size);
    if (valid == null) {
      if (type instanceof FloatType) {
        Platform.copyMemory(vector.getFloats(from, count), Platform.FLOAT_ARRAY_OFFSET, null, at, size);
      } else if (type instanceof DoubleType) {
        Platform.copyMemory(vector.getDoubles(from, count), Platform.DOUBLE_ARRAY_OFFSET, null, at, size);
      } else if (width == 8) {
        Platform.copyMemory(vector.getLongs(from, count), Platform.LONG_ARRAY_OFFSET, null, at, size);
      } else if (width == 4) {
        Platform.copyMemory(vector.getInts(from, count), Platform.INT_ARRAY_OFFSET, null, at, size);
      } else if (width == 2) {
        Platform.copyMemory(vector.getShorts(from, count), Platform.SHORT_ARRAY_OFFSET, null, at, size);
      } else {
        Platform.copyMemory(vector.getBytes(from, count), Platform.BYTE_ARRAY_OFFSET, null, at, size);
      }
    } else if (type instanceof FloatType) {
      for (int i = 0; i < count; i++) {
        Platform.putFloat(null, at + 4L * i, valid[i] ? vector.getFloat(from + i) : 0F);
      }
    } else if (type instanceof DoubleType) {
      for (int i = 0; i < count; i++) {
        Platform.putDouble(null, at + 8L * i, valid[i] ? vector.getDouble(from + i) : 0D);
      }
    } else if (width == 8) {
      for (int i = 0; i < count; i++) {
        Platform.putLong(null, at + 8L * i, valid[i] ? vector.getLong(from + i) : 0L);
      }
    } else if (width == 4) {
      for (int i = 0; i < count; i++) {
        Platform.putInt(null, at + 4L * i, valid[i] ? vector.getInt(from + i) : 0);
      }
    } else if (width == 2) {
      for (int i = 0; i < count; i++) {
        Platform.putShort(null, at + 2L * i, valid[i] ? vector.getShort(from + i) : (short) 0);
      }
    } else {
      for (int i = 0; i < count; i++) {
        Platform.putByte(null, at + i, valid[i] ? vector.getByte(from + i) : (byte) 0);
      }
    }
    to.buffers[0].size += size;
  }

  private static void texts(LanceRowNodes.Bytes to, ColumnVector vector, boolean[] valid, int from, int count) {
    long ends = to.reserveOffsets(count);
    LanceRowNode.GrowingBuffer bytes = to.buffers[1];
    for (int i = 0; i < count; i++) {
      int size = 0;
      if (valid == null || valid[i]) {
        UTF8String text = vector.getUTF8String(from + i);
        size = text.numBytes();
        copyBytes(text.getBaseObject(), text.getBaseOffset(), bytes.room(size), size);
        bytes.size += size;
      }
      Platform.putInt(null, ends + 4L * i, to.extend(size));
    }
  }

  // Avoids a call of copyMemory for short values.
  private static void copyBytes(Object base, long from, long to, int size) {
    if (size > 16) {
      Platform.copyMemory(base, from, null, to, size);
    } else if (size >= 8) {
      Platform.putLong(null, to, Platform.getLong(base, from));
      Platform.putLong(null, to + size - 8, Platform.getLong(base, from + size - 8));
    } else if (size >= 4) {
      Platform.putInt(null, to, Platform.getInt(base, from));
      Platform.putInt(null, to + size - 4, Platform.getInt(base, from + size - 4));
    } else {
      for (int i = 0; i < size; i++) {
        Platform.putByte(null, to + i, Platform.getByte(base, from + i));
      }
    }
  }

  private static void decimals(
      LanceRowNode to, ColumnVector vector, DecimalType type, boolean[] valid, int from, int count) {
    long at = to.buffers[0].room(16L * count);
    for (int i = 0; i < count; i++) {
      long low = 0L;
      long high = 0L;
      if (valid == null || valid[i]) {
        BigInteger value = vector.getDecimal(from + i, type.precision(), type.scale()).toJavaBigDecimal().unscaledValue();
        low = value.longValue();
        high = value.shiftRight(64).longValue();
      }
      Platform.putLong(null, at + 16L * i, low);
      Platform.putLong(null, at + 16L * i + 8, high);
    }
    to.buffers[0].size += 16L * count;
  }

  // Copies the items of adjacent arrays in one call.
  private static void arrays(
      LanceRowNodes.Items to, WritableColumnVector vector, DataType item, boolean[] valid, int from, int count) {
    ColumnVector items = vector.getChild(0);
    long ends = to.reserveOffsets(count);
    int start = 0;
    int end = 0;
    for (int i = 0; i < count; i++) {
      int size = valid == null || valid[i] ? vector.getArrayLength(from + i) : 0;
      if (size > 0) {
        int first = vector.getArrayOffset(from + i);
        if (first != end) {
          copy(to.parts[0], items, item, null, start, end - start);
          start = first;
        }
        end = first + size;
      }
      Platform.putInt(null, ends + 4L * i, to.extend(size));
    }
    copy(to.parts[0], items, item, null, start, end - start);
  }
}
