package org.lance.spark.transport;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.unsafe.Platform;

/**
 * A batch of columns as Arrow's encapsulated message, which a Python worker has written into shared memory
 * (LanceRing).
 *
 * <p>The whole message is checked before any value is read. The metadata is copied first. Columns and buffers are read
 * in the order in which Arrow writes them, and each is checked against its expected size. LanceTransport sends the
 * class to executors.
 */
public final class LanceMessage {
  // Keeps the memory mapped while the message is in use.
  private final Object owner;
  private final RecordBatch head;
  private final long body;
  private final long bytes;
  private final int rows;
  private int nextNode = 0;
  private int nextBuffer = 0;
  private FieldNode node = null;

  LanceMessage(Object owner, long address, long bytes) {
    this.owner = owner;
    int length = Platform.getInt(null, address + 4);
    if (Platform.getInt(null, address) != -1 || length < 8 || length % 8 != 0 || length > bytes - 8) {
      throw damaged("has no metadata");
    }
    byte[] metadata = new byte[length];
    Platform.copyMemory(null, address + 8, metadata, Platform.BYTE_ARRAY_OFFSET, length);
    Message message = Message.getRootAsMessage(ByteBuffer.wrap(metadata).order(ByteOrder.LITTLE_ENDIAN));
    this.body = address + 8 + length;
    this.bytes = bytes - 8 - length;
    if (message.headerType() != MessageHeader.RecordBatch || message.bodyLength() != this.bytes) {
      throw damaged("is another message than its record says");
    }
    this.head = (RecordBatch) message.header(new RecordBatch());
    if (head.compression() != null || head.length() < 0 || head.length() > Integer.MAX_VALUE - 8) {
      throw damaged("has " + head.length() + " rows, or is compressed");
    }
    this.rows = (int) head.length();
  }

  /** Returns the number of rows. */
  int rows() {
    return rows;
  }

  /** Returns the bytes of the buffers. */
  long bytes() {
    return bytes;
  }

  /** Advances to the next column or part of a column, and returns its number of values. */
  int values() {
    if (nextNode >= head.nodesLength()) {
      throw damaged("has no more than " + nextNode + " columns");
    }
    node = head.nodes(nextNode++);
    boolean possible = node.length() >= 0 && node.length() < Integer.MAX_VALUE;
    if (!possible || node.nullCount() < 0 || node.nullCount() > node.length()) {
      throw damaged("has " + node.nullCount() + " nulls in " + node.length() + " values");
    }
    return (int) node.length();
  }

  /** Returns the number of nulls of the current column. */
  int nulls() {
    return (int) node.nullCount();
  }

  /** Returns the address of the next buffer, which must have at least {@code minBytes} bytes. */
  long buffer(long minBytes) {
    if (nextBuffer >= head.buffersLength()) {
      throw damaged("has no more than " + nextBuffer + " buffers");
    }
    Buffer next = head.buffers(nextBuffer++);
    long start = next.offset();
    if (start < 0 || start % 8 != 0 || next.length() < minBytes || start > bytes || next.length() > bytes - start) {
      throw damaged("has " + next.length() + " bytes at " + start + " of " + bytes + " in place of " + minBytes);
    }
    return body + start;
  }

  /** Checks that all columns and buffers were read. */
  void checkEnd() {
    if (nextNode != head.nodesLength() || nextBuffer != head.buffersLength()) {
      throw damaged("has more columns than its type");
    }
  }

  /** Returns the error for a damaged message. */
  static IllegalStateException damaged(String problem) {
    return new IllegalStateException("a batch that a Python worker has placed in shared memory " + problem);
  }
}
