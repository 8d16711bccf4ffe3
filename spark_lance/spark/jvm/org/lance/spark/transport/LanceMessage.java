// A batch of columns as an encapsulated message of Arrow's, where a Python worker has placed it in shared memory (LanceRing).
//
// All of it is checked before any of it is read: the metadata is copied, and columns and buffers are asked for in the
// order in which Arrow writes them, each with what it must have.
//
// Executors get this class (LanceTransport). Compiled in the driver by Janino.

package org.lance.spark.transport;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.unsafe.Platform;

public final class LanceMessage {
  // What keeps the memory.
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

  int rows() {
    return rows;
  }

  long bytes() {
    return bytes;
  }

  // Goes on to the next column, or part of one; its number of values.
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

  // How many of these values are null.
  int nulls() {
    return (int) node.nullCount();
  }

  // The address of the next buffer, which must have so many bytes at least.
  long buffer(long least) {
    if (nextBuffer >= head.buffersLength()) {
      throw damaged("has no more than " + nextBuffer + " buffers");
    }
    Buffer next = head.buffers(nextBuffer++);
    long start = next.offset();
    if (start < 0 || start % 8 != 0 || next.length() < least || start > bytes || next.length() > bytes - start) {
      throw damaged("has " + next.length() + " bytes at " + start + " of " + bytes + " in place of " + least);
    }
    return body + start;
  }

  // All of it has been asked for.
  void checkEnd() {
    if (nextNode != head.nodesLength() || nextBuffer != head.buffersLength()) {
      throw damaged("has more columns than its type");
    }
  }

  static IllegalStateException damaged(String problem) {
    return new IllegalStateException("a batch that a Python worker has placed in shared memory " + problem);
  }
}
