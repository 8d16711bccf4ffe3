package org.lance.spark.transport;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;

/**
 * Turns rows in Spark's own layout into columns of Arrow, thousands at a time.
 *
 * <p>Spark's ArrowWriter asks each field of each row for its value, and puts it into a vector that checks its bounds.
 * This class copies some thousands of rows, and then fills one column after the other in a loop. Each task has its
 * own; it is not safe for threads. LanceTransport sends these classes to executors.
 */
public final class LanceRowColumns {
  // Rows are copied into blocks that fit the processor's cache before the columns are filled.
  private static final int BLOCK_ROWS = 2048;
  private static final int BLOCK_BYTES = 256 << 10;

  private final StructType schema;
  private final LanceRowNode[] columns;
  private final int nullBytes;
  private byte[] block = new byte[BLOCK_BYTES + LanceRowNode.WORD];
  private int blockSize = 0;
  private final long[] starts = new long[BLOCK_ROWS];
  private int blockRows = 0;
  private int count = 0;

  /**
   * Creates empty columns.
   *
   * @param memory allocates their buffers, which {@link #close} frees
   */
  public LanceRowColumns(StructType schema, BufferAllocator memory) {
    this.schema = schema;
    this.columns = new LanceRowNode[schema.length()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = LanceRowNodes.node(schema.fields()[i].dataType(), memory);
    }
    this.nullBytes = LanceRowNodes.bitBytes(columns.length);
  }

  /** Adds a copy of a row. */
  public void add(UnsafeRow row) {
    int size = row.getSizeInBytes();
    if (blockRows == BLOCK_ROWS || blockSize + size > BLOCK_BYTES) {
      flush();
    }
    if (size > BLOCK_BYTES) {
      starts[0] = row.getBaseOffset();
      fill(row.getBaseObject(), 1);
      return;
    }
    starts[blockRows] = Platform.BYTE_ARRAY_OFFSET + blockSize;
    Platform.copyMemory(row.getBaseObject(), row.getBaseOffset(), block, starts[blockRows], size);
    blockSize += size;
    blockRows++;
  }

  /** Adds rows of a batch whose columns {@link LanceColumnCopies#fits} accepts. */
  public void add(ColumnarBatch batch, int from, int rows) {
    flush();
    for (int c = 0; c < columns.length; c++) {
      LanceColumnCopies.copy(columns[c], batch.column(c), schema.fields()[c].dataType(), null, from, rows);
    }
    count += rows;
  }

  /** Returns the bytes of the columns since the last batch. */
  public long bytes() {
    long all = 0L;
    for (LanceRowNode column : columns) {
      all += column.bytes();
    }
    return all;
  }

  /** Returns the rows since the last call as a batch. Close it before the next call of any method. */
  public ArrowRecordBatch batch() {
    flush();
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    for (LanceRowNode column : columns) {
      column.describe(nodes, buffers);
    }
    ArrowRecordBatch batch = new ArrowRecordBatch(count, nodes, buffers);
    for (LanceRowNode column : columns) {
      column.clear();
    }
    count = 0;
    return batch;
  }

  public void close() {
    for (LanceRowNode column : columns) {
      column.close();
    }
  }

  private void flush() {
    fill(block, blockRows);
    blockRows = 0;
    blockSize = 0;
  }

  private void fill(Object base, int rows) {
    for (int c = 0; c < columns.length && rows > 0; c++) {
      LanceRowNode.Cells cells = columns[c].cells;
      cells.reserve(rows);
      int word = c >> 6 << 3;
      long bit = 1L << c;
      long slot = nullBytes + (long) LanceRowNode.WORD * c;
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
}
