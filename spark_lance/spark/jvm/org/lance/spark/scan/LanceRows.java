package org.lance.spark.scan;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.colstats.ColumnStatistics;
import org.apache.spark.sql.connector.read.colstats.Histogram;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;

/** The scan of rows that the driver has read, with statistics of its columns for Spark's estimates. */
public final class LanceRows implements LocalScan, SupportsReportStatistics {
  private final String displayName;
  private final Map<String, Object> question;
  private final Map<String, Object> answer;
  private final StructType schema;
  private InternalRow[] rows = null;

  public LanceRows(String displayName, Map<String, Object> question, Map<String, Object> answer, StructType schema) {
    this.displayName = displayName;
    this.question = question;
    this.answer = answer;
    this.schema = schema;
  }

  public StructType readSchema() {
    return schema;
  }

  public String description() {
    return "LanceRows " + displayName + " [" + answer.get(Protocol.ROWS) + " rows, read by the driver]";
  }

  public Statistics estimateStatistics() {
    return statistics(question, answer);
  }

  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return stream(question, schema, checkpoint);
  }

  /** Returns the rows of the scan, which are decoded once. */
  public synchronized InternalRow[] rows() {
    if (rows == null) {
      rows = decode(answer, schema);
    }
    return rows;
  }

  /**
   * Returns the stream of a scan, which Spark's own reader reads: Spark builds a scan to start a stream, too. The
   * version that this package pinned is removed from the options. A version that the user set stays, and the stream
   * refuses it.
   */
  public static MicroBatchStream stream(Map<String, Object> question, StructType schema, String checkpoint) {
    Map<String, String> options = new HashMap<>(options(question).asCaseSensitiveMap());
    if (Boolean.TRUE.equals((Json.object(question.get(Protocol.READ))).get(Protocol.PINNED))) {
      options.remove("version");
    }
    CaseInsensitiveStringMap readOptions = new CaseInsensitiveStringMap(options);
    return Shim.tableOf(Bridge.source(), schema).newScanBuilder(readOptions).build().toMicroBatchStream(checkpoint);
  }

  /** Returns the options of a question's read. */
  public static CaseInsensitiveStringMap options(Map<String, Object> question) {
    return new CaseInsensitiveStringMap(Json.texts(((Map<?, ?>) question.get(Protocol.READ)).get(Protocol.OPTIONS)));
  }

  /**
   * Returns the size of a scan. Statistics of columns are included if the session uses them.
   *
   * @param question the request of {@code plan_scan}; null for no statistics of columns
   */
  public static Statistics statistics(Map<String, Object> question, Map<String, Object> answer) {
    Number rows = (Number) answer.get(Protocol.ROWS);
    Number bytes = (Number) answer.get(Protocol.BYTES);
    return new ScanStatistics(
        bytes == null ? OptionalLong.empty() : OptionalLong.of(bytes.longValue()),
        rows == null ? OptionalLong.empty() : OptionalLong.of(rows.longValue()),
        columnStatistics(question, rows));
  }

  /** Returns the statistics of columns that have an index. Python is asked only if the session uses statistics. */
  private static Map<NamedReference, ColumnStatistics> columnStatistics(Map<String, Object> question, Number rows) {
    boolean isUsed = ((SQLConf) SQLConf$.MODULE$.get()).cboEnabled() || ((SQLConf) SQLConf$.MODULE$.get()).planStatsEnabled();
    if (question == null || rows == null || !isUsed) {
      return new HashMap<>();
    }
    Map<String, Object> request = new LinkedHashMap<>(question);
    request.put(Protocol.VERB, Protocol.COLUMN_STATISTICS);
    Map<String, Object> answer = Json.object(Bridge.ask(request, null));
    StructType schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    Map<NamedReference, ColumnStatistics> statistics = new HashMap<>();
    InternalRow[] ends = decode(answer, schema);
    for (int i = 0; i < schema.length(); i++) {
      StructField field = schema.fields()[i];
      Map<String, Object> counts = Json.object(Json.object(answer.get(Protocol.COLUMNS)).get(field.name()));
      boolean bounded = !ends[0].isNullAt(i);
      statistics.put(
          FieldReference.column(field.name()),
          new ScanColumnStatistics(
              (Number) counts.get(Protocol.NULLS),
              (Number) counts.get(Protocol.DISTINCT),
              bounded ? ends[0].get(i, field.dataType()) : null,
              bounded ? ends[1].get(i, field.dataType()) : null,
              rows.longValue()));
    }
    return statistics;
  }

  /** The statistics of a scan: bytes, rows and columns. */
  public static final class ScanStatistics implements Statistics {
    private final OptionalLong bytes;
    private final OptionalLong rows;
    private final Map<NamedReference, ColumnStatistics> columns;

    ScanStatistics(OptionalLong bytes, OptionalLong rows, Map<NamedReference, ColumnStatistics> columns) {
      this.bytes = bytes;
      this.rows = rows;
      this.columns = columns;
    }

    public OptionalLong sizeInBytes() {
      return bytes;
    }

    public OptionalLong numRows() {
      return rows;
    }

    public Map<NamedReference, ColumnStatistics> columnStats() {
      return columns;
    }
  }

  /** The statistics of a column: nulls, distinct values, minimum and maximum. */
  public static final class ScanColumnStatistics implements ColumnStatistics {
    private final OptionalLong nulls;
    private final OptionalLong distinct;
    private final Object low;
    private final Object high;

    ScanColumnStatistics(Number nulls, Number distinct, Object low, Object high, long rows) {
      this.nulls = OptionalLong.of(Math.min(nulls.longValue(), rows));
      this.distinct =
          distinct == null ? OptionalLong.empty() : OptionalLong.of(Math.min(distinct.longValue(), rows));
      this.low = low;
      this.high = high;
    }

    public OptionalLong nullCount() {
      return nulls;
    }

    public OptionalLong distinctCount() {
      return distinct;
    }

    public Optional<Object> min() {
      return Optional.ofNullable(low);
    }

    public Optional<Object> max() {
      return Optional.ofNullable(high);
    }

    public OptionalLong avgLen() {
      return OptionalLong.empty();
    }

    public OptionalLong maxLen() {
      return OptionalLong.empty();
    }

    public Optional<Histogram> histogram() {
      return Optional.empty();
    }
  }

  /**
   * Reads the file of rows that Python wrote for an answer into the answer, and deletes it.
   *
   * @return false if the file cannot be read
   */
  static boolean readFile(Map<String, Object> answer) {
    if (!answer.get(Protocol.KIND).equals("rows") || answer.get(Protocol.FILE) == null) {
      return true;
    }
    Path file = Paths.get((String) answer.get(Protocol.FILE), new String[0]);
    try {
      answer.put("stream", Files.readAllBytes(file));
      return true;
    } catch (IOException missing) {
      // The file is missing if Python runs with another file system.
      return false;
    } finally {
      file.toFile().delete();
    }
  }

  private static InternalRow[] decode(Map<String, Object> answer, StructType schema) {
    byte[] stream = (byte[]) answer.get("stream");
    try {
      return decode(stream == null ? Base64.getDecoder().decode((String) answer.get(Protocol.ARROW)) : stream, schema);
    } catch (java.io.IOException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static InternalRow[] decode(byte[] stream, StructType schema) throws java.io.IOException {
    List<InternalRow> rows = new ArrayList<>();
    // Spark's local scan converts the rows itself, so flat rows need no projection.
    UnsafeProjection projection = isFlat(schema) ? null : (UnsafeProjection) UnsafeProjection$.MODULE$.create(schema);
    BufferAllocator allocator = ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("lance", 0, Long.MAX_VALUE);
    ArrowStreamReader reader = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
    try {
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      List<FieldVector> vectors = root.getFieldVectors();
      ColumnVector[] columns = new ColumnVector[vectors.size()];
      for (int i = 0; i < columns.length; i++) {
        columns[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
      }
      while (reader.loadNextBatch()) {
        if (projection == null) {
          copy(columns, schema, root.getRowCount(), rows);
          continue;
        }
        ColumnarBatch batch = new ColumnarBatch(columns, root.getRowCount());
        for (Iterator<InternalRow> iterator = batch.rowIterator(); iterator.hasNext(); ) {
          rows.add(projection.apply((InternalRow) iterator.next()).copy());
        }
      }
    } finally {
      reader.close();
      allocator.close();
    }
    return (InternalRow[]) rows.toArray(new InternalRow[0]);
  }

  /** Returns whether all columns are numbers, booleans, times, strings or bytes. */
  private static boolean isFlat(StructType schema) {
    for (StructField field : schema.fields()) {
      DataType type = field.dataType();
      boolean isPlain =
          type instanceof NumericType
              || type instanceof StringType
              || type instanceof BooleanType
              || type instanceof BinaryType
              || type instanceof DateType
              || type instanceof TimestampType
              || type instanceof TimestampNTZType;
      if (!isPlain) {
        return false;
      }
    }
    return true;
  }

  /** Appends the rows of a batch with copies of their values, because the next batch reuses the memory. */
  private static void copy(ColumnVector[] columns, StructType schema, int count, List<InternalRow> rows) {
    Object[][] values = new Object[count][columns.length];
    for (int c = 0; c < columns.length; c++) {
      DataType type = schema.fields()[c].dataType();
      for (int r = 0; r < count; r++) {
        values[r][c] = columns[c].isNullAt(r) ? null : value(columns[c], type, r);
      }
    }
    for (int r = 0; r < count; r++) {
      rows.add(new GenericInternalRow(values[r]));
    }
  }

  private static Object value(ColumnVector column, DataType type, int row) {
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) {
      return column.getLong(row);
    }
    if (type instanceof StringType) {
      return column.getUTF8String(row).copy();
    }
    if (type instanceof IntegerType || type instanceof DateType) {
      return column.getInt(row);
    }
    if (type instanceof DoubleType) {
      return column.getDouble(row);
    }
    if (type instanceof FloatType) {
      return column.getFloat(row);
    }
    if (type instanceof BooleanType) {
      return column.getBoolean(row);
    }
    if (type instanceof DecimalType) {
      return column.getDecimal(row, ((DecimalType) type).precision(), ((DecimalType) type).scale());
    }
    if (type instanceof BinaryType) {
      return column.getBinary(row);
    }
    return type instanceof ShortType ? (Object) Short.valueOf(column.getShort(row)) : Byte.valueOf(column.getByte(row));
  }
}
