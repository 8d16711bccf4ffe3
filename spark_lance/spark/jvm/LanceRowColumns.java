// Rows in Spark's own layout, turned into the columns of Arrow many at a time.
//
//   row      a bit for each field, set if it is null, in whole words; then a word for each field
//   array    the number of items; a bit for each item, set if it is null, in whole words; the items, as wide as
//            their type, words if that has no width
//   word     numbers, dates and so on stand in it from its first byte on; of text, structs, arrays and maps it has
//            the place, counted from where the row or array starts, in its upper half, and the size in its lower one
//   map      the bytes that the keys take, an array of keys, an array of values
//
// Spark's ArrowWriter asks each field of each row for its value, and puts it into a vector that checks its bounds. Here
// rows are copied until there are some thousands of them, and then one column after the other is filled in a loop.
//
// Executors get these classes (LanceTransport). Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance.sql;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

public final class LanceRowColumns {
  // Rows that are copied before columns are filled: few enough for a processor's cache.
  private static final int BLOCK_ROWS = 2048;
  private static final int BLOCK_BYTES = 256 << 10;
  private static final int WORD = 8;
  private static final int DECIMAL = 16;
  // Decimals of as many digits stand in a word.
  private static final int LONG_DIGITS = 18;

  // Bytes of a value by the name of its type; 0: bits.
  private static final Map WIDTHS = new HashMap();

  static {
    width(new String[] {"Boolean"}, 0);
    width(new String[] {"Byte"}, 1);
    width(new String[] {"Short"}, 2);
    width(new String[] {"Integer", "Float", "Date", "YearMonthInterval"}, 4);
    width(new String[] {"Long", "Double", "Timestamp", "TimestampNTZ", "DayTimeInterval", "Time"}, 8);
  }

  private final Node[] columns;
  private final int nullBytes;
  private byte[] block = new byte[BLOCK_BYTES + WORD];
  private int used = 0;
  private final long[] starts = new long[BLOCK_ROWS];
  private int staged = 0;
  private int count = 0;

  private static void width(String[] names, int bytes) {
    for (int i = 0; i < names.length; i++) {
      WIDTHS.put(names[i], new Integer(bytes));
    }
  }

  private static String name(DataType type) {
    String name = type.getClass().getSimpleName();
    int end = name.indexOf("Type");
    return end < 0 ? name : name.substring(0, end);
  }

  // `memory` is where columns are held until `close`.
  public LanceRowColumns(StructType schema, BufferAllocator memory) {
    this.columns = new Node[schema.length()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = node(schema.fields()[i].dataType(), memory);
    }
    this.nullBytes = bitBytes(columns.length);
  }

  // Takes a row, which may change afterwards.
  public void add(UnsafeRow row) {
    int size = row.getSizeInBytes();
    if (staged == BLOCK_ROWS || used + size > BLOCK_BYTES) {
      flush();
    }
    if (size > BLOCK_BYTES) {
      starts[0] = row.getBaseOffset();
      fill(row.getBaseObject(), 1);
      return;
    }
    starts[staged] = Platform.BYTE_ARRAY_OFFSET + used;
    Platform.copyMemory(row.getBaseObject(), row.getBaseOffset(), block, starts[staged], size);
    used += size;
    staged++;
  }

  // The rows since the last call. It is to be closed, and this must not be used before.
  public ArrowRecordBatch batch() {
    flush();
    List nodes = new ArrayList();
    List buffers = new ArrayList();
    for (int i = 0; i < columns.length; i++) {
      columns[i].describe(nodes, buffers);
    }
    ArrowRecordBatch batch = new ArrowRecordBatch(count, nodes, buffers);
    for (int i = 0; i < columns.length; i++) {
      columns[i].clear();
    }
    count = 0;
    return batch;
  }

  public void close() {
    for (int i = 0; i < columns.length; i++) {
      columns[i].close();
    }
  }

  private void flush() {
    fill(block, staged);
    staged = 0;
    used = 0;
  }

  private void fill(Object base, int rows) {
    for (int c = 0; c < columns.length && rows > 0; c++) {
      Cells cells = columns[c].cells;
      cells.reserve(rows);
      int word = c >> 6 << 3;
      long bit = 1L << c;
      long slot = nullBytes + (long) WORD * c;
      for (int r = 0; r < rows; r++) {
        long start = starts[r];
        cells.origin[r] = start;
        cells.at[r] = start + slot;
        cells.valid[r] = (Platform.getLong(base, start + word) & bit) == 0L;
      }
      columns[c].fill(base, rows);
    }
    count += rows;
  }

  private static int bitBytes(int bits) {
    return (bits + 63) / 64 * WORD;
  }

  private static Node node(DataType type, BufferAllocator memory) {
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      Node[] parts = new Node[struct.length()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = node(struct.fields()[i].dataType(), memory);
      }
      return new Struct(memory, parts);
    }
    if (type instanceof ArrayType) {
      return new Items(memory, node(((ArrayType) type).elementType(), memory));
    }
    if (type instanceof MapType) {
      Node[] parts = new Node[] {node(((MapType) type).keyType(), memory), node(((MapType) type).valueType(), memory)};
      return new Entries(memory, new Struct(memory, parts));
    }
    if (type instanceof DecimalType) {
      return new Decimals(memory, ((DecimalType) type).precision() <= LONG_DIGITS);
    }
    String name = name(type);
    if (name.equals("Null")) {
      return new Nothing(memory);
    }
    if (name.equals("String") || name.equals("Binary")) {
      return new Bytes(memory);
    }
    Integer width = (Integer) WIDTHS.get(name);
    if (width == null) {
      throw new IllegalArgumentException("rows of " + type + " are not turned into columns");
    }
    return width.intValue() == 0 ? (Node) new Bits(memory) : (Node) new Fixed(memory, width.intValue());
  }

  /** Where values stand that a column takes next. */
  private static final class Cells {
    // The first byte of the value, or the word that tells its place, counted from the origin.
    long[] at = new long[0];
    long[] origin = new long[0];
    boolean[] valid = new boolean[0];

    void reserve(int cells) {
      if (at.length < cells) {
        int room = Math.max(cells, 2 * at.length);
        at = new long[room];
        origin = new long[room];
        valid = new boolean[room];
      }
    }
  }

  /** Bytes that grow. */
  private static final class Growing {
    private final BufferAllocator memory;
    private ArrowBuf bytes = null;
    long used = 0L;

    Growing(BufferAllocator memory) {
      this.memory = memory;
    }

    // The address behind what is there, where `more` bytes, and a word beyond them, can be written.
    long room(long more) {
      long least = used + more + WORD;
      if (bytes == null || bytes.capacity() < least) {
        ArrowBuf grown = memory.buffer(Math.max(least, bytes == null ? 1024L : 2L * bytes.capacity()));
        if (bytes != null) {
          Platform.copyMemory(null, bytes.memoryAddress(), null, grown.memoryAddress(), used);
        }
        close();
        bytes = grown;
      }
      return bytes.memoryAddress() + used;
    }

    ArrowBuf written() {
      room(0L);
      bytes.writerIndex(used);
      return bytes;
    }

    void close() {
      if (bytes != null) {
        bytes.close();
        bytes = null;
      }
    }
  }

  /** A bit for each value, least significant first. */
  private static final class Flags {
    final Growing bytes;
    int count = 0;
    int set = 0;

    Flags(BufferAllocator memory) {
      this.bytes = new Growing(memory);
    }

    void add(boolean[] flags, int more) {
      int position = count & 7;
      // The last byte may be begun.
      long at = bytes.room(more / 8 + 1) - (position == 0 ? 0 : 1);
      int begun = position == 0 ? 0 : Platform.getByte(null, at) & 0xFF;
      for (int i = 0; i < more; i++) {
        if (flags[i]) {
          begun |= 1 << position;
          set++;
        }
        if (++position == 8) {
          Platform.putByte(null, at++, (byte) begun);
          position = 0;
          begun = 0;
        }
      }
      if (position != 0) {
        Platform.putByte(null, at, (byte) begun);
      }
      count += more;
      bytes.used = (count + 7) / 8;
    }

    void addSet(int more) {
      boolean[] all = new boolean[Math.min(more, BLOCK_ROWS)];
      Arrays.fill(all, true);
      for (int left = more; left > 0; left -= all.length) {
        add(all, Math.min(left, all.length));
      }
    }
  }

  /** A column that is being filled. */
  private abstract static class Node {
    final Cells cells = new Cells();
    final Flags validity;
    // What Arrow has behind the validity, and the columns below this one.
    final Growing[] buffers;
    final Node[] parts;

    Node(BufferAllocator memory, Growing[] buffers, Node[] parts) {
      this.validity = new Flags(memory);
      this.buffers = buffers;
      this.parts = parts;
    }

    // Takes as many values as `cells` tells the places of. What stands for a null does not matter.
    void fill(Object base, int count) {
      validity.add(cells.valid, count);
      take(base, count);
    }

    // Takes the values, or what stands for a null.
    abstract void take(Object base, int count);

    void describe(List nodes, List all) {
      nodes.add(new ArrowFieldNode(validity.count, validity.count - validity.set));
      all.add(validity.bytes.written());
      for (int i = 0; i < buffers.length; i++) {
        all.add(buffers[i].written());
      }
      for (int i = 0; i < parts.length; i++) {
        parts[i].describe(nodes, all);
      }
    }

    void clear() {
      validity.count = 0;
      validity.set = 0;
      validity.bytes.used = 0L;
      for (int i = 0; i < buffers.length; i++) {
        buffers[i].used = 0L;
      }
      for (int i = 0; i < parts.length; i++) {
        parts[i].clear();
      }
    }

    void close() {
      validity.bytes.close();
      for (int i = 0; i < buffers.length; i++) {
        buffers[i].close();
      }
      for (int i = 0; i < parts.length; i++) {
        parts[i].close();
      }
    }
  }

  /** Nulls, of which Arrow has no bytes. */
  private static final class Nothing extends Node {
    Nothing(BufferAllocator memory) {
      super(memory, new Growing[0], new Node[0]);
    }

    void take(Object base, int count) {}

    void describe(List nodes, List all) {
      nodes.add(new ArrowFieldNode(validity.count, validity.count));
    }
  }

  private static final class Bits extends Node {
    private Flags values;

    Bits(BufferAllocator memory) {
      this(memory, new Flags(memory));
    }

    private Bits(BufferAllocator memory, Flags values) {
      super(memory, new Growing[] {values.bytes}, new Node[0]);
      this.values = values;
    }

    void take(Object base, int count) {
      boolean[] found = new boolean[count];
      for (int i = 0; i < count; i++) {
        found[i] = cells.valid[i] && Platform.getByte(base, cells.at[i]) != 0;
      }
      values.add(found, count);
    }

    void clear() {
      super.clear();
      values.count = 0;
    }
  }

  /** Values of one width. */
  private static final class Fixed extends Node {
    final int width;

    Fixed(BufferAllocator memory, int width) {
      super(memory, new Growing[] {new Growing(memory)}, new Node[0]);
      this.width = width;
    }

    void take(Object base, int count) {
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
      buffers[0].used += (long) width * count;
    }

    // Takes values that stand side by side, none of them null.
    void fillRun(Object base, long at, int count) {
      validity.addSet(count);
      long size = (long) width * count;
      Platform.copyMemory(base, at, null, buffers[0].room(size), size);
      buffers[0].used += size;
    }
  }

  /** Decimals of 16 bytes, least significant first. */
  private static final class Decimals extends Node {
    private final boolean words;

    Decimals(BufferAllocator memory, boolean words) {
      super(memory, new Growing[] {new Growing(memory)}, new Node[0]);
      this.words = words;
    }

    void take(Object base, int count) {
      long to = buffers[0].room((long) DECIMAL * count);
      for (int i = 0; i < count; i++) {
        long low = 0L;
        long high = 0L;
        if (cells.valid[i] && words) {
          low = Platform.getLong(base, cells.at[i]);
          high = low >> 63;
        } else if (cells.valid[i]) {
          // Most significant byte first, and no more bytes than it takes.
          long place = Platform.getLong(base, cells.at[i]);
          long from = cells.origin[i] + (place >>> 32);
          low = Platform.getByte(base, from) < 0 ? -1L : 0L;
          high = low;
          for (int b = 0; b < (int) place; b++) {
            high = high << 8 | low >>> 56;
            low = low << 8 | Platform.getByte(base, from + b) & 0xFFL;
          }
        }
        Platform.putLong(null, to + (long) DECIMAL * i, low);
        Platform.putLong(null, to + (long) DECIMAL * i + WORD, high);
      }
      buffers[0].used += (long) DECIMAL * count;
    }
  }

  /** Columns with offsets, of which there is one more than values. */
  private abstract static class Offsets extends Node {
    private long end = 0L;

    Offsets(BufferAllocator memory, Growing[] buffers, Node[] parts) {
      super(memory, buffers, parts);
    }

    // Where the offsets behind the next values go.
    long next(int count) {
      if (buffers[0].used == 0L) {
        Platform.putInt(null, buffers[0].room(4L), 0);
        buffers[0].used = 4L;
      }
      long to = buffers[0].room(4L * count);
      buffers[0].used += 4L * count;
      return to;
    }

    int grown(int more) {
      end += more;
      if (end > Integer.MAX_VALUE) {
        throw new IllegalStateException("a batch of rows has more than 2 GiB in one column");
      }
      return (int) end;
    }

    void describe(List nodes, List all) {
      next(0);
      super.describe(nodes, all);
    }

    void clear() {
      super.clear();
      end = 0L;
    }
  }

  /** Text and bytes. */
  private static final class Bytes extends Offsets {
    Bytes(BufferAllocator memory) {
      super(memory, new Growing[] {new Growing(memory), new Growing(memory)}, new Node[0]);
    }

    void take(Object base, int count) {
      long total = 0L;
      for (int i = 0; i < count; i++) {
        total += cells.valid[i] ? (int) Platform.getLong(base, cells.at[i]) : 0;
      }
      long ends = next(count);
      // A word beyond the last value may be written.
      long to = buffers[1].room(total + WORD);
      for (int i = 0; i < count; i++) {
        int size = 0;
        if (cells.valid[i]) {
          long place = Platform.getLong(base, cells.at[i]);
          long from = cells.origin[i] + (place >>> 32);
          size = (int) place;
          // Rows fill the last word of each value up.
          if (size > 2 * WORD) {
            Platform.copyMemory(base, from, null, to, size);
          } else if (size > 0) {
            Platform.putLong(null, to, Platform.getLong(base, from));
            if (size > WORD) {
              Platform.putLong(null, to + WORD, Platform.getLong(base, from + WORD));
            }
          }
          to += size;
        }
        Platform.putInt(null, ends + 4L * i, grown(size));
      }
      buffers[1].used += total;
    }
  }

  private static final class Struct extends Node {
    Struct(BufferAllocator memory, Node[] parts) {
      super(memory, new Growing[0], parts);
    }

    void take(Object base, int count) {
      int nulls = bitBytes(parts.length);
      for (int p = 0; p < parts.length; p++) {
        Cells part = parts[p].cells;
        part.reserve(count);
        for (int i = 0; i < count; i++) {
          // In the place of a null any word can be read.
          part.at[i] = cells.at[i];
          part.valid[i] = false;
          if (cells.valid[i]) {
            long start = cells.origin[i] + (Platform.getLong(base, cells.at[i]) >>> 32);
            part.origin[i] = start;
            part.at[i] = start + nulls + (long) WORD * p;
            part.valid[i] = (Platform.getLong(base, start + (p >> 6 << 3)) & 1L << p) == 0L;
          }
        }
        parts[p].fill(base, count);
      }
    }
  }

  /** Arrays. */
  private static class Items extends Offsets {
    Items(BufferAllocator memory, Node column) {
      super(memory, new Growing[] {new Growing(memory)}, new Node[] {column});
    }

    void take(Object base, int count) {
      long ends = next(count);
      for (int i = 0; i < count; i++) {
        int size = 0;
        if (cells.valid[i]) {
          size = takeAll(base, cells.origin[i] + (Platform.getLong(base, cells.at[i]) >>> 32));
        }
        Platform.putInt(null, ends + 4L * i, grown(size));
      }
    }

    // Takes what stands at `start`; returns how many items that are.
    int takeAll(Object base, long start) {
      return items(base, start, parts[0]);
    }

    static int items(Object base, long start, Node column) {
      int count = (int) Platform.getLong(base, start);
      long nulls = start + WORD;
      long first = nulls + bitBytes(count);
      boolean whole = column instanceof Fixed;
      for (long at = nulls; whole && at < first; at += WORD) {
        whole = Platform.getLong(base, at) == 0L;
      }
      if (whole) {
        ((Fixed) column).fillRun(base, first, count);
        return count;
      }
      int width = column instanceof Fixed ? ((Fixed) column).width : column instanceof Bits ? 1 : WORD;
      Cells cells = column.cells;
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

  /** Maps: arrays of structs, none of them null, of a key and a value. */
  private static final class Entries extends Items {
    Entries(BufferAllocator memory, Node entries) {
      super(memory, entries);
    }

    int takeAll(Object base, long start) {
      int count = items(base, start + WORD, parts[0].parts[0]);
      items(base, start + WORD + Platform.getLong(base, start), parts[0].parts[1]);
      parts[0].validity.addSet(count);
      return count;
    }
  }
}
