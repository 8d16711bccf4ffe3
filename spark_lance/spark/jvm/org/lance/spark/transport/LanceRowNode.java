package org.lance.spark.transport;

import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.spark.unsafe.Platform;

/**
 * A column of Arrow that is being filled, with its buffers. LanceRowNodes has a subclass for each form of values.
 *
 * <p>Each task has its own. LanceTransport sends these classes to executors.
 */
public abstract class LanceRowNode {
  public static final int WORD = 8;
  private static final boolean[] ALL_SET = {true, true, true, true, true, true, true, true};

  final Cells cells = new Cells();
  final Flags validity;
  // The buffers that follow the validity buffer in Arrow's format, and the child columns.
  final GrowingBuffer[] buffers;
  final LanceRowNode[] parts;

  LanceRowNode(BufferAllocator memory, GrowingBuffer[] buffers, LanceRowNode[] parts) {
    this.validity = new Flags(memory);
    this.buffers = buffers;
    this.parts = parts;
  }

  /**
   * Appends the values at the places in {@code cells}. The value at the place of a null does not matter.
   *
   * @param base the array of Spark's rows, as for {@code Platform}
   * @param count the number of values
   */
  void fill(Object base, int count) {
    validity.add(cells.valid, count);
    append(base, count);
  }

  /** Appends values, with a placeholder for each null. */
  abstract void append(Object base, int count);

  /** Appends the nodes and buffers of this column and its children, in Arrow's order. */
  void describe(List<ArrowFieldNode> nodes, List<ArrowBuf> all) {
    nodes.add(new ArrowFieldNode(validity.count, validity.count - validity.set));
    all.add(validity.bytes.content());
    for (LanceRowNode.GrowingBuffer buffer : buffers) {
      all.add(buffer.content());
    }
    for (LanceRowNode part : parts) {
      part.describe(nodes, all);
    }
  }

  /** Returns the bytes of the column and its children. */
  long bytes() {
    long all = validity.bytes.size;
    for (LanceRowNode.GrowingBuffer buffer : buffers) {
      all += buffer.size;
    }
    for (LanceRowNode part : parts) {
      all += part.bytes();
    }
    return all;
  }

  /** Removes all values, and keeps the memory. */
  void clear() {
    validity.count = 0;
    validity.set = 0;
    validity.bytes.size = 0L;
    for (LanceRowNode.GrowingBuffer buffer : buffers) {
      buffer.size = 0L;
    }
    for (LanceRowNode part : parts) {
      part.clear();
    }
  }

  /** Frees the memory of the column and its children. */
  void close() {
    validity.bytes.close();
    for (LanceRowNode.GrowingBuffer buffer : buffers) {
      buffer.close();
    }
    for (LanceRowNode part : parts) {
      part.close();
    }
  }

  /** The places of the values that a column appends next. */
  static final class Cells {
    // Addresses of the values, or of the words with their offset from the origin and size.
    long[] at = new long[0];
    long[] origin = new long[0];
    boolean[] valid = new boolean[0];

    /** Makes room for this number of places. */
    void reserve(int cells) {
      if (at.length < cells) {
        int room = Math.max(cells, 2 * at.length);
        at = new long[room];
        origin = new long[room];
        valid = new boolean[room];
      }
    }
  }

  /** A buffer that grows. */
  static final class GrowingBuffer {
    private final BufferAllocator memory;
    private ArrowBuf bytes = null;
    long size = 0L;

    GrowingBuffer(BufferAllocator memory) {
      this.memory = memory;
    }

    /** Returns the address of the end, with room for {@code more} bytes and one word. */
    long room(long more) {
      long minCapacity = size + more + WORD;
      if (bytes == null || bytes.capacity() < minCapacity) {
        ArrowBuf larger = memory.buffer(Math.max(minCapacity, bytes == null ? 1024L : 2L * bytes.capacity()));
        if (bytes != null) {
          Platform.copyMemory(null, bytes.memoryAddress(), null, larger.memoryAddress(), size);
        }
        close();
        bytes = larger;
      }
      return bytes.memoryAddress() + size;
    }

    /** Returns the bytes so far as a buffer of Arrow. */
    ArrowBuf content() {
      room(0L);
      bytes.writerIndex(size);
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
  static final class Flags {
    final GrowingBuffer bytes;
    int count = 0;
    int set = 0;

    Flags(BufferAllocator memory) {
      this.bytes = new GrowingBuffer(memory);
    }

    /** Appends the first {@code more} flags. */
    void add(boolean[] flags, int more) {
      int position = count & 7;
      // The last byte may be filled in part.
      long at = bytes.room(more / 8 + 1) - (position == 0 ? 0 : 1);
      int octet = position == 0 ? 0 : Platform.getByte(null, at) & 0xFF;
      for (int i = 0; i < more; i++) {
        if (flags[i]) {
          octet |= 1 << position;
          set++;
        }
        if (++position == 8) {
          Platform.putByte(null, at++, (byte) octet);
          position = 0;
          octet = 0;
        }
      }
      if (position != 0) {
        Platform.putByte(null, at, (byte) octet);
      }
      count += more;
      bytes.size = (count + 7) / 8;
    }

    /** Appends {@code more} flags that are set. */
    void addSet(int more) {
      boolean[] flags = ALL_SET;
      int head = Math.min(more, -count & 7);
      add(flags, head);
      // Only whole bytes follow, up to the last few flags.
      int wholeBytes = more - head >> 3;
      Platform.setMemory(bytes.room(wholeBytes), (byte) -1, wholeBytes);
      bytes.size += wholeBytes;
      count += 8 * wholeBytes;
      set += 8 * wholeBytes;
      add(flags, more - head - 8 * wholeBytes);
    }
  }
}
