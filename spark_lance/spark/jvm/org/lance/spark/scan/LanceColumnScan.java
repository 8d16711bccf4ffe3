package org.lance.spark.scan;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.transport.LanceTransport;

/**
 * The scan of rows that the driver has read, if they are too many for a local scan. Tasks without Python read them as
 * columns.
 */
public final class LanceColumnScan implements Scan, Batch, SupportsReportStatistics {
  private final String displayName;
  private final Map<String, Object> question;
  private final Map<String, Object> answer;
  private final StructType schema;
  private final InputPartition[] partitions;

  private LanceColumnScan(String displayName, Map<String, Object> question, Map<String, Object> answer, StructType schema, InputPartition[] partitions) {
    this.displayName = displayName;
    this.question = question;
    this.answer = answer;
    this.schema = schema;
    this.partitions = partitions;
  }

  /**
   * Returns the scan of an answer of {@code plan_scan}; null if the answer has no columns or its file cannot be read.
   */
  static Scan of(String displayName, Map<String, Object> question, Map<String, Object> answer, StructType schema) {
    InputPartition[] partitions = readPartitions(answer, schema);
    return partitions == null ? null : new LanceColumnScan(displayName, question, answer, schema, partitions);
  }

  /**
   * Reads the file of columns that Python wrote for an answer, and deletes it.
   *
   * @return the partitions; null if the answer has no columns or the file cannot be read
   */
  private static InputPartition[] readPartitions(Map<String, Object> answer, StructType schema) {
    if (!answer.get(Protocol.KIND).equals("columns")) {
      return null;
    }
    Path file = Paths.get((String) answer.get(Protocol.FILE), new String[0]);
    try {
      byte[] bytes = Files.readAllBytes(file);
      if (LanceTransport.kind(schema).equals("rows")) {
        return null;
      }
      List<Object> lengths = Json.list(answer.get(Protocol.PARTS));
      InputPartition[] partitions = new InputPartition[lengths.size()];
      int end = 0;
      for (int i = 0; i < partitions.length; i++) {
        int start = end;
        end += ((Number) lengths.get(i)).intValue();
        partitions[i] = LanceTransport.inMemoryPartition(Arrays.copyOfRange(bytes, start, end));
      }
      return partitions;
    } catch (IOException missing) {
      // The file is missing if Python runs with another file system.
      return null;
    } finally {
      file.toFile().delete();
    }
  }

  public StructType readSchema() {
    return schema;
  }

  public String description() {
    String read = "; " + answer.get(Protocol.ROWS) + " rows, read by the driver]";
    return "LanceColumns " + displayName + " [" + answer.get(Protocol.EXPLANATION) + read;
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return Scan.ColumnarSupportMode.SUPPORTED;
  }

  public Statistics estimateStatistics() {
    return LanceRows.statistics(question, answer);
  }

  public CustomMetric[] supportedCustomMetrics() {
    return (CustomMetric[]) LanceMetric.of(Json.list(answer.get(Protocol.METRICS)));
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return LanceMetric.of(Json.list(answer.get(Protocol.METRICS)));
  }

  public Batch toBatch() {
    return this;
  }

  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return LanceRows.stream(question, schema, checkpoint);
  }

  public InputPartition[] planInputPartitions() {
    return partitions;
  }

  public PartitionReaderFactory createReaderFactory() {
    return LanceTransport.inMemoryFactory(schema);
  }

  // Equal scans let Spark read both sides of a self-join once.
  public boolean equals(Object other) {
    return other instanceof LanceColumnScan && question.equals(((LanceColumnScan) other).question);
  }

  public int hashCode() {
    return question.hashCode();
  }
}
