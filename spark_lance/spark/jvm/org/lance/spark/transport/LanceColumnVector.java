package org.lance.spark.transport;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.DurationVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeNanoVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal$;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of a batch, or a part of one, in Arrow's memory.
 *
 * <p>Arrow's own getters check bounds and nulls for every value. This class checks the buffers of a batch once,
 * against its number of rows, and then reads values by address. One class serves all types, so that compiled code
 * calls no method of several classes. A vector is valid until its task reads the next batch. LanceTransport sends the
 * class to executors.
 */
public final class LanceColumnVector extends ColumnVector {
  private static final LanceColumnVector[] NO_PARTS = {};
  private final FieldVector vector;
  // Bytes of a value; 0 for bits and types without a fixed width.
  private final int width;
  // Whether the values have a variable length, from one offset to the next.
  private final boolean hasOffsets;
  // Fields of a struct, items of a list, keys and values of a map.
  private final LanceColumnVector[] parts;
  // The structs of keys and values of a map; else null.
  private final FieldVector entries;
  // Whether the column has the type null: all values are null, and it has no buffers.
  private final boolean isEmpty;
  // The message whose memory the column reads; null if the vectors own the memory. The field keeps the memory mapped
  // while the column is in use.
  private LanceMessage message;
  private int nulls;
  private long validity;
  private long data;
  private long offsets;

  private LanceColumnVector(
      FieldVector vector, int width, boolean hasOffsets, FieldVector entries, LanceColumnVector[] parts) {
    super(ArrowUtils$.MODULE$.fromArrowField(vector.getField()));
    this.vector = vector;
    this.isEmpty = vector instanceof NullVector;
    this.width = width;
    this.hasOffsets = hasOffsets;
    this.entries = entries;
    this.parts = parts;
  }

  /**
   * Returns the column of an Arrow vector.
   *
   * @throws IllegalStateException if the type is not supported
   */
  static LanceColumnVector of(FieldVector vector) {
    if (vector instanceof MapVector) {
      FieldVector entries = (FieldVector) ((MapVector) vector).getDataVector();
      return new LanceColumnVector(vector, 0, true, entries, parts(entries));
    }
    if (vector.getClass() == ListVector.class) {
      return new LanceColumnVector(vector, 0, true, null, parts(vector));
    }
    if (vector instanceof StructVector) {
      return new LanceColumnVector(vector, 0, false, null, parts(vector));
    }
    if (vector instanceof VarCharVector || vector instanceof VarBinaryVector) {
      return new LanceColumnVector(vector, 1, true, null, NO_PARTS);
    }
    return new LanceColumnVector(vector, width(vector), false, null, NO_PARTS);
  }

  /**
   * Returns whether data of a type has the layout of the expected type. Names, nullability and the collation of
   * strings do not matter.
   */
  static boolean fits(DataType actual, DataType expected) {
    if (actual instanceof StructType && expected instanceof StructType) {
      StructType actualFields = (StructType) actual;
      StructType expectedFields = (StructType) expected;
      boolean all = actualFields.length() == expectedFields.length();
      for (int i = 0; all && i < actualFields.length(); i++) {
        all = fits(actualFields.fields()[i].dataType(), expectedFields.fields()[i].dataType());
      }
      return all;
    }
    if (actual instanceof ArrayType && expected instanceof ArrayType) {
      return fits(((ArrayType) actual).elementType(), ((ArrayType) expected).elementType());
    }
    if (actual instanceof MapType && expected instanceof MapType) {
      return fits(((MapType) actual).keyType(), ((MapType) expected).keyType())
          && fits(((MapType) actual).valueType(), ((MapType) expected).valueType());
    }
    // The precision of times and the units of intervals only affect how values are displayed.
    String name = actual.getClass().getSimpleName();
    boolean varies = name.equals("TimeType") || name.equals("DayTimeIntervalType");
    return actual.equals(expected)
        || (actual instanceof StringType && expected instanceof StringType)
        || (varies && actual.getClass() == expected.getClass());
  }

  /** Returns the columns of the children of a struct, list or map entry. */
  static LanceColumnVector[] parts(FieldVector parent) {
    List<FieldVector> vectors = parent.getChildrenFromFields();
    LanceColumnVector[] parts = new LanceColumnVector[vectors.size()];
    for (int i = 0; i < parts.length; i++) {
      parts[i] = of((FieldVector) vectors.get(i));
    }
    return parts;
  }

  /** Returns the bytes of a value; 0 for bits and nulls. */
  private static int width(FieldVector vector) {
    if (vector instanceof BitVector || vector instanceof NullVector) {
      return 0;
    }
    boolean hasWidth =
        vector instanceof TinyIntVector
            || vector instanceof SmallIntVector
            || vector instanceof IntVector
            || vector instanceof BigIntVector
            || vector instanceof Float4Vector
            || vector instanceof Float8Vector
            || vector instanceof DecimalVector
            || vector instanceof DateDayVector
            || vector instanceof TimeStampMicroTZVector
            || vector instanceof TimeStampMicroVector
            || vector instanceof TimeNanoVector
            || (vector instanceof DurationVector && isMicro(vector));
    if (!hasWidth) {
      throw new IllegalStateException(
          "a Python worker gave " + vector.getField() + ", which is not read here: set spark.lance.transport to rows");
    }
    return ((BaseFixedWidthVector) vector).getTypeWidth();
  }

  private static boolean isMicro(FieldVector vector) {
    ArrowType type = vector.getField().getType();
    return ((ArrowType.Duration) type).getUnit() == TimeUnit.MICROSECOND;
  }

  /**
   * Takes over the buffers of a batch, and checks their sizes.
   *
   * @param rows the number of rows of the batch
   * @param message the batch in shared memory; null if it was loaded into the vectors
   */
  void load(int rows, LanceMessage message) {
    int values = message == null ? vector.getValueCount() : message.values();
    if (values < rows) {
      throw damaged("has " + values + " values in place of " + rows);
    }
    this.message = message;
    if (isEmpty) {
      nulls = rows;
      return;
    }
    nulls = message == null ? vector.getNullCount() : message.nulls();
    long bits = nulls == 0 ? 0L : (rows + 7L) / 8;
    long buffer = message != null ? message.buffer(bits) : nulls == 0 ? 0L : address(vector.getValidityBuffer(), bits);
    validity = nulls == 0 ? 0L : buffer;
    if (hasOffsets) {
      loadOffsets(rows, message);
      return;
    }
    for (LanceColumnVector part : parts) {
      part.load(rows, message);
    }
    if (parts.length == 0 && !(vector instanceof StructVector)) {
      long bytes = width == 0 ? (rows + 7L) / 8 : (long) rows * width;
      data = message != null ? message.buffer(bytes) : address(vector.getDataBuffer(), bytes);
    }
  }

  private void loadOffsets(int rows, LanceMessage message) {
    long bytes = rows == 0 ? 0L : (rows + 1L) * 4;
    offsets = message != null ? message.buffer(bytes) : rows == 0 ? 0L : address(vector.getOffsetBuffer(), bytes);
    int last = 0;
    if (rows > 0) {
      last = Platform.getInt(null, offsets);
      boolean ascending = last >= 0;
      for (int i = 1; i <= rows; i++) {
        int next = Platform.getInt(null, offsets + 4L * i);
        ascending &= next >= last;
        last = next;
      }
      if (!ascending) {
        throw damaged("has offsets that fall");
      }
    }
    if (parts.length == 0) {
      data = message != null ? message.buffer(last) : address(vector.getDataBuffer(), last);
      return;
    }
    if (entries != null) {
      int values = message == null ? entries.getValueCount() : message.values();
      if (values < last) {
        throw damaged("has " + values + " entries in place of " + last);
      }
      if (message != null) {
        message.buffer(0L);
      }
    }
    for (LanceColumnVector part : parts) {
      part.load(last, message);
    }
  }

  /** Returns the address of a buffer that must have at least {@code bytes} bytes. */
  private long address(ArrowBuf buffer, long bytes) {
    if (buffer.capacity() < bytes) {
      throw damaged("has " + buffer.capacity() + " bytes in place of " + bytes);
    }
    return buffer.memoryAddress();
  }

  private IllegalStateException damaged(String problem) {
    return new IllegalStateException("column " + vector.getName() + " of a batch from a Python worker " + problem);
  }

  // Spark's reader or the worker frees the memory.
  public void close() {}

  public boolean hasNull() {
    return nulls > 0;
  }

  public int numNulls() {
    return nulls;
  }

  public boolean isNullAt(int row) {
    if (validity == 0L) {
      return isEmpty;
    }
    return (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
  }

  public boolean getBoolean(int row) {
    return (Platform.getByte(null, data + (row >> 3)) >> (row & 7) & 1) != 0;
  }

  public byte getByte(int row) {
    return Platform.getByte(null, data + row);
  }

  public short getShort(int row) {
    return Platform.getShort(null, data + 2L * row);
  }

  public int getInt(int row) {
    return Platform.getInt(null, data + 4L * row);
  }

  public long getLong(int row) {
    return Platform.getLong(null, data + 8L * row);
  }

  public float getFloat(int row) {
    return Platform.getFloat(null, data + 4L * row);
  }

  public double getDouble(int row) {
    return Platform.getDouble(null, data + 8L * row);
  }

  public byte[] getBytes(int row, int count) {
    byte[] values = new byte[count];
    Platform.copyMemory(null, data + row, values, Platform.BYTE_ARRAY_OFFSET, count);
    return values;
  }

  public short[] getShorts(int row, int count) {
    short[] values = new short[count];
    Platform.copyMemory(null, data + 2L * row, values, Platform.SHORT_ARRAY_OFFSET, 2L * count);
    return values;
  }

  public int[] getInts(int row, int count) {
    int[] values = new int[count];
    Platform.copyMemory(null, data + 4L * row, values, Platform.INT_ARRAY_OFFSET, 4L * count);
    return values;
  }

  public long[] getLongs(int row, int count) {
    long[] values = new long[count];
    Platform.copyMemory(null, data + 8L * row, values, Platform.LONG_ARRAY_OFFSET, 8L * count);
    return values;
  }

  public float[] getFloats(int row, int count) {
    float[] values = new float[count];
    Platform.copyMemory(null, data + 4L * row, values, Platform.FLOAT_ARRAY_OFFSET, 4L * count);
    return values;
  }

  public double[] getDoubles(int row, int count) {
    double[] values = new double[count];
    Platform.copyMemory(null, data + 8L * row, values, Platform.DOUBLE_ARRAY_OFFSET, 8L * count);
    return values;
  }

  private int start(int row) {
    return Platform.getInt(null, offsets + 4L * row);
  }

  public UTF8String getUTF8String(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = start(row);
    return UTF8String.fromAddress(null, data + start, start(row + 1) - start);
  }

  public byte[] getBinary(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = start(row);
    return getBytes(start, start(row + 1) - start);
  }

  public ColumnarArray getArray(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = start(row);
    return new ColumnarArray(parts[0], start, start(row + 1) - start);
  }

  public ColumnarMap getMap(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = start(row);
    return new ColumnarMap(parts[0], parts[1], start, start(row + 1) - start);
  }

  public ColumnVector getChild(int ordinal) {
    return parts[ordinal];
  }

  // A decimal is a little-endian number of 16 bytes.
  public Decimal getDecimal(int row, int precision, int scale) {
    if (isNullAt(row)) {
      return null;
    }
    long low = Platform.getLong(null, data + 16L * row);
    long high = Platform.getLong(null, data + 16L * row + 8);
    if (precision <= Decimal$.MODULE$.MAX_LONG_DIGITS() && high == low >> 63) {
      return Decimal$.MODULE$.apply(low, precision, scale);
    }
    byte[] digits = new byte[16];
    for (int i = 0; i < 8; i++) {
      digits[i] = (byte) (high >> (56 - 8 * i));
      digits[i + 8] = (byte) (low >> (56 - 8 * i));
    }
    return Decimal$.MODULE$.apply(new BigDecimal(new BigInteger(digits), scale), precision, scale);
  }
}
