package org.lance.spark.transport;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * Columns of Arrow that are filled from rows in Spark's own layout (LanceRowColumns), one class for each form of
 * values.
 *
 * <pre>
 *   row      a bit for each field, set if it is null, in whole words; then a word for each field
 *   array    the number of items; a bit for each item, set if it is null, in whole words; the items, as wide as
 *            their type, words if that has no width
 *   word     a number, date and so on starts at its first byte; text, structs, arrays and maps have the offset from the
 *            start of the row or array in its upper half, and the size in its lower half
 *   map      the number of bytes of the keys, an array of keys, an array of values
 * </pre>
 *
 * <p>LanceTransport sends these classes to executors.
 */
public final class LanceRowNodes {
  private static final int DECIMAL = 16;
  // Decimals of up to this many digits are stored in a word.
  private static final int LONG_DIGITS = 18;

  // Bytes of a value by the name of its type; 0 for bits.
  private static final Map<String, Integer> WIDTHS = new HashMap<>();

  static {
    width(new String[] {"Boolean"}, 0);
    width(new String[] {"Byte"}, 1);
    width(new String[] {"Short"}, 2);
    width(new String[] {"Integer", "Float", "Date", "YearMonthInterval"}, 4);
    width(new String[] {"Long", "Double", "Timestamp", "TimestampNTZ", "DayTimeInterval", "Time"}, 8);
  }

  private static void width(String[] names, int bytes) {
    for (String name : names) {
      WIDTHS.put(name, bytes);
    }
  }

  private static String name(DataType type) {
    String name = type.getClass().getSimpleName();
    int end = name.indexOf("Type");
    return end < 0 ? name : name.substring(0, end);
  }

  private LanceRowNodes() {}

  private static LanceRowNode.GrowingBuffer[] growingBuffers(BufferAllocator memory, int count) {
    LanceRowNode.GrowingBuffer[] all = new LanceRowNode.GrowingBuffer[count];
    for (int i = 0; i < count; i++) {
      all[i] = new LanceRowNode.GrowingBuffer(memory);
    }
    return all;
  }

  /** Returns the bytes of a bit set of Spark's rows, which has whole words. */
  static int bitBytes(int bits) {
    return (bits + 63) / 64 * LanceRowNode.WORD;
  }

  /** Returns an empty column for values of a type of Spark. */
  static LanceRowNode node(DataType type, BufferAllocator memory) {
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      LanceRowNode[] parts = new LanceRowNode[struct.length()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = node(struct.fields()[i].dataType(), memory);
      }
      return new Struct(memory, parts);
    }
    if (type instanceof ArrayType) {
      return new Items(memory, node(((ArrayType) type).elementType(), memory));
    }
    if (type instanceof MapType) {
      LanceRowNode keys = node(((MapType) type).keyType(), memory);
      LanceRowNode values = node(((MapType) type).valueType(), memory);
      LanceRowNode[] parts = {keys, values};
      return new Entries(memory, new Struct(memory, parts));
    }
    if (type instanceof DecimalType) {
      return new Decimals(memory, ((DecimalType) type).precision() <= LONG_DIGITS);
    }
    String name = name(type);
    if (name.equals("Null")) {
      return new Nulls(memory);
    }
    if (name.equals("String") || name.equals("Binary")) {
      return new Bytes(memory);
    }
    Integer width = (Integer) WIDTHS.get(name);
    if (width == null) {
      throw new IllegalArgumentException("rows of " + type + " are not turned into columns");
    }
    if (width.intValue() == 0) {
      return new Bits(memory);
    }
    return new Fixed(memory, width.intValue());
  }

  /** A column of the type null, which has no bytes in Arrow. */
  static final class Nulls extends LanceRowNode {
    Nulls(BufferAllocator memory) {
      super(memory, growingBuffers(memory, 0), new LanceRowNode[0]);
    }

    void append(Object base, int count) {}

    void describe(List<ArrowFieldNode> nodes, List<ArrowBuf> all) {
      nodes.add(new ArrowFieldNode(validity.count, validity.count));
    }
  }

  /** A column of booleans. */
  static final class Bits extends LanceRowNode {
    final LanceRowNode.Flags flags;

    Bits(BufferAllocator memory) {
      this(memory, new LanceRowNode.Flags(memory));
    }

    private Bits(BufferAllocator memory, LanceRowNode.Flags values) {
      super(memory, new LanceRowNode.GrowingBuffer[] {values.bytes}, new LanceRowNode[0]);
      this.flags = values;
    }

    void append(Object base, int count) {
      boolean[] values = new boolean[count];
      for (int i = 0; i < count; i++) {
        values[i] = cells.valid[i] && Platform.getByte(base, cells.at[i]) != 0;
      }
      flags.add(values, count);
    }

    void clear() {
      super.clear();
      flags.count = 0;
    }
  }

  /** A column of values of a fixed width. */
  static final class Fixed extends LanceRowNode {
    final int width;

    Fixed(BufferAllocator memory, int width) {
      super(memory, growingBuffers(memory, 1), new LanceRowNode[0]);
      this.width = width;
    }

    void append(Object base, int count) {
      long[] at = cells.at;
      long to = buffers[0].room((long) width * count);
      if (width == 4) {
        for (int i = 0; i < count; i++) {
          Platform.putInt(null, to + 4L * i, Platform.getInt(base, at[i]));
        }
      } else if (width == 8) {
        for (int i = 0; i < count; i++) {
          Platform.putLong(null, to + 8L * i, Platform.getLong(base, at[i]));
        }
      } else if (width == 2) {
        for (int i = 0; i < count; i++) {
          Platform.putShort(null, to + 2L * i, Platform.getShort(base, at[i]));
        }
      } else {
        for (int i = 0; i < count; i++) {
          Platform.putByte(null, to + i, Platform.getByte(base, at[i]));
        }
      }
      buffers[0].size += (long) width * count;
    }

    /** Appends adjacent values without nulls. */
    void appendRun(Object base, long at, int count) {
      validity.addSet(count);
      long size = (long) width * count;
      Platform.copyMemory(base, at, null, buffers[0].room(size), size);
      buffers[0].size += size;
    }
  }

  /** A column of decimals: little-endian numbers of 16 bytes. */
  static final class Decimals extends LanceRowNode {
    private final boolean isWord;

    Decimals(BufferAllocator memory, boolean isWord) {
      super(memory, growingBuffers(memory, 1), new LanceRowNode[0]);
      this.isWord = isWord;
    }

    void append(Object base, int count) {
      long to = buffers[0].room((long) DECIMAL * count);
      for (int i = 0; i < count; i++) {
        long low = 0L;
        long high = 0L;
        if (cells.valid[i] && isWord) {
          low = Platform.getLong(base, cells.at[i]);
          high = low >> 63;
        } else if (cells.valid[i]) {
          // Big-endian, without leading sign bytes.
          long offsetAndSize = Platform.getLong(base, cells.at[i]);
          long from = cells.origin[i] + (offsetAndSize >>> 32);
          low = Platform.getByte(base, from) < 0 ? -1L : 0L;
          high = low;
          for (int b = 0; b < (int) offsetAndSize; b++) {
            high = high << 8 | low >>> 56;
            low = low << 8 | Platform.getByte(base, from + b) & 0xFFL;
          }
        }
        Platform.putLong(null, to + (long) DECIMAL * i, low);
        Platform.putLong(null, to + (long) DECIMAL * i + LanceRowNode.WORD, high);
      }
      buffers[0].size += (long) DECIMAL * count;
    }
  }

  /** A column with offsets, one more than values. */
  abstract static class Offsets extends LanceRowNode {
    private long end = 0L;

    Offsets(BufferAllocator memory, LanceRowNode.GrowingBuffer[] buffers, LanceRowNode[] parts) {
      super(memory, buffers, parts);
    }

    /** Reserves offsets for the next values, and returns their address. */
    long reserveOffsets(int count) {
      if (buffers[0].size == 0L) {
        Platform.putInt(null, buffers[0].room(4L), 0);
        buffers[0].size = 4L;
      }
      long to = buffers[0].room(4L * count);
      buffers[0].size += 4L * count;
      return to;
    }

    /**
     * Returns the offset after a value of {@code more} bytes or items.
     *
     * @throws IllegalStateException if the column exceeds 2 GiB
     */
    int extend(int more) {
      end += more;
      if (end > Integer.MAX_VALUE) {
        throw new IllegalStateException("a batch of rows has more than 2 GiB in one column");
      }
      return (int) end;
    }

    void describe(List<ArrowFieldNode> nodes, List<ArrowBuf> all) {
      reserveOffsets(0);
      super.describe(nodes, all);
    }

    void clear() {
      super.clear();
      end = 0L;
    }
  }

  /** A column of strings or bytes. */
  static final class Bytes extends Offsets {
    Bytes(BufferAllocator memory) {
      super(memory, growingBuffers(memory, 2), new LanceRowNode[0]);
    }

    void append(Object base, int count) {
      long total = 0L;
      for (int i = 0; i < count; i++) {
        total += cells.valid[i] ? (int) Platform.getLong(base, cells.at[i]) : 0;
      }
      long ends = reserveOffsets(count);
      // The copy may write one word beyond the last value.
      long to = buffers[1].room(total + LanceRowNode.WORD);
      for (int i = 0; i < count; i++) {
        int size = 0;
        if (cells.valid[i]) {
          long offsetAndSize = Platform.getLong(base, cells.at[i]);
          long from = cells.origin[i] + (offsetAndSize >>> 32);
          size = (int) offsetAndSize;
          // Rows pad each value to whole words.
          if (size > 2 * LanceRowNode.WORD) {
            Platform.copyMemory(base, from, null, to, size);
          } else if (size > 0) {
            Platform.putLong(null, to, Platform.getLong(base, from));
            if (size > LanceRowNode.WORD) {
              Platform.putLong(null, to + LanceRowNode.WORD, Platform.getLong(base, from + LanceRowNode.WORD));
            }
          }
          to += size;
        }
        Platform.putInt(null, ends + 4L * i, extend(size));
      }
      buffers[1].size += total;
    }
  }

  /** A column of structs. */
  static final class Struct extends LanceRowNode {
    Struct(BufferAllocator memory, LanceRowNode[] parts) {
      super(memory, growingBuffers(memory, 0), parts);
    }

    void append(Object base, int count) {
      int nulls = bitBytes(parts.length);
      for (int p = 0; p < parts.length; p++) {
        LanceRowNode.Cells part = parts[p].cells;
        part.reserve(count);
        for (int i = 0; i < count; i++) {
          // Any readable word serves as the value of a null.
          part.at[i] = cells.at[i];
          part.valid[i] = false;
          if (cells.valid[i]) {
            long start = cells.origin[i] + (Platform.getLong(base, cells.at[i]) >>> 32);
            part.origin[i] = start;
            part.at[i] = start + nulls + (long) LanceRowNode.WORD * p;
            part.valid[i] = (Platform.getLong(base, start + (p >> 6 << 3)) & 1L << p) == 0L;
          }
        }
        parts[p].fill(base, count);
      }
    }
  }

  /** A column of arrays. */
  static class Items extends Offsets {
    Items(BufferAllocator memory, LanceRowNode column) {
      super(memory, growingBuffers(memory, 1), new LanceRowNode[] {column});
    }

    void append(Object base, int count) {
      long ends = reserveOffsets(count);
      for (int i = 0; i < count; i++) {
        int size = 0;
        if (cells.valid[i]) {
          size = appendItems(base, cells.origin[i] + (Platform.getLong(base, cells.at[i]) >>> 32));
        }
        Platform.putInt(null, ends + 4L * i, extend(size));
      }
    }

    /**
     * Appends the items of the array at {@code start}.
     *
     * @return the number of items
     */
    int appendItems(Object base, long start) {
      return items(base, start, parts[0]);
    }

    /**
     * Appends the items of an array to a column.
     *
     * @param start the address of the array
     * @return the number of items
     */
    static int items(Object base, long start, LanceRowNode column) {
      int count = (int) Platform.getLong(base, start);
      long nulls = start + LanceRowNode.WORD;
      long first = nulls + bitBytes(count);
      boolean isRun = column instanceof Fixed;
      for (long at = nulls; isRun && at < first; at += LanceRowNode.WORD) {
        isRun = Platform.getLong(base, at) == 0L;
      }
      if (isRun) {
        ((Fixed) column).appendRun(base, first, count);
        return count;
      }
      int width = column instanceof Fixed ? ((Fixed) column).width : column instanceof Bits ? 1 : LanceRowNode.WORD;
      LanceRowNode.Cells cells = column.cells;
      cells.reserve(count);
      for (int i = 0; i < count; i++) {
        cells.origin[i] = start;
        cells.at[i] = first + (long) width * i;
        cells.valid[i] = (Platform.getLong(base, nulls + (i >> 6 << 3)) & 1L << i) == 0L;
      }
      column.fill(base, count);
      return count;
    }
  }

  /** A column of maps: arrays of structs of key and value, which are never null. */
  static final class Entries extends Items {
    Entries(BufferAllocator memory, LanceRowNode entries) {
      super(memory, entries);
    }

    int appendItems(Object base, long start) {
      int count = items(base, start + LanceRowNode.WORD, parts[0].parts[0]);
      items(base, start + LanceRowNode.WORD + Platform.getLong(base, start), parts[0].parts[1]);
      parts[0].validity.addSet(count);
      return count;
    }
  }
}
