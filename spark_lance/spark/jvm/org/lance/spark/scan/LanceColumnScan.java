// The scan of rows that the driver has read, too many for a local scan: tasks without Python read them as columns.
//
// Compiled in the driver by Janino.

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
import org.lance.spark.load.Protocol;
import org.lance.spark.transport.LanceTransport;

public final class LanceColumnScan implements Scan, Batch, SupportsReportStatistics {
  private final String displayName;
  private final Map question;
  private final Map answer;
  private final StructType schema;
  private final InputPartition[] parts;

  private LanceColumnScan(String displayName, Map question, Map answer, StructType schema, InputPartition[] parts) {
    this.displayName = displayName;
    this.question = question;
    this.answer = answer;
    this.schema = schema;
    this.parts = parts;
  }

  // The scan of an answer; null if it has no columns, or they cannot be read.
  static Scan of(String displayName, Map question, Map answer, StructType schema) {
    InputPartition[] parts = parts(answer, schema);
    return parts == null ? null : new LanceColumnScan(displayName, question, answer, schema, parts);
  }

  // The parts of rows that Python has left in a file, which is deleted; null if it has not, or they cannot be read.
  private static InputPartition[] parts(Map answer, StructType schema) {
    if (!answer.get(Protocol.KIND).equals("columns")) {
      return null;
    }
    Path file = Paths.get((String) answer.get(Protocol.FILE), new String[0]);
    try {
      byte[] all = Files.readAllBytes(file);
      if (LanceTransport.kind(schema).equals("rows")) {
        return null;
      }
      List lengths = (List) answer.get(Protocol.PARTS);
      InputPartition[] parts = new InputPartition[lengths.size()];
      int end = 0;
      for (int i = 0; i < parts.length; i++) {
        int start = end;
        end += ((Number) lengths.get(i)).intValue();
        parts[i] = LanceTransport.part(Arrays.copyOfRange(all, start, end));
      }
      return parts;
    } catch (IOException apart) {
      // Python has another file system.
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
    return "LanceColumns " + displayName + " [" + answer.get(Protocol.ABOUT) + read;
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return Scan.ColumnarSupportMode.SUPPORTED;
  }

  public Statistics estimateStatistics() {
    return LanceRows.statistics(question, answer);
  }

  public CustomMetric[] supportedCustomMetrics() {
    return (CustomMetric[]) LanceAmount.of((List) answer.get(Protocol.AMOUNTS));
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return LanceAmount.of((List) answer.get(Protocol.AMOUNTS));
  }

  public Batch toBatch() {
    return this;
  }

  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return LanceRows.stream(question, schema, checkpoint);
  }

  public InputPartition[] planInputPartitions() {
    return parts;
  }

  public PartitionReaderFactory createReaderFactory() {
    return LanceTransport.held(schema);
  }

  // Both sides of a self-join may be read once.
  public boolean equals(Object other) {
    return other instanceof LanceColumnScan && question.equals(((LanceColumnScan) other).question);
  }

  public int hashCode() {
    return question.hashCode();
  }
}
