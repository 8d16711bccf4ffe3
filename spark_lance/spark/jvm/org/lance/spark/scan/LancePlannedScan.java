// A scan that the rule of LancePruning has made, which knows how much it reads.
//
// Compiled in the driver by Janino, before the rule; hence no generics, no lambdas.

package org.lance.spark.scan;

import java.lang.reflect.Field;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.StructType;
import org.slf4j.LoggerFactory;

public final class LancePlannedScan implements Scan, SupportsReportStatistics {
  private final PythonScan scan;
  private final StructType schema;
  private Batch batch = null;

  public LancePlannedScan(PythonScan scan, StructType schema) {
    this.scan = scan;
    this.schema = schema;
  }

  // Without marks: the schema of a plan may find its way into files that a query writes.
  public StructType readSchema() {
    return schema;
  }

  public String description() {
    return scan.description();
  }

  public synchronized Batch toBatch() {
    if (batch == null) {
      batch = scan.toBatch();
    }
    return batch;
  }

  public CustomMetric[] supportedCustomMetrics() {
    return scan.supportedCustomMetrics();
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return scan.reportDriverMetrics();
  }

  // A scan of unknown size is read like any other; what is really wrong with it shows when it is read.
  public Statistics estimateStatistics() {
    try {
      return new Size(toBatch().planInputPartitions());
    } catch (Throwable problem) {
      LoggerFactory.getLogger("spark_lance").warn("The size of a Lance table is not known: " + problem);
      return new Size(null);
    }
  }

  // Rows and bytes of a scan, which the reader has written into its pickled partitions as text:
  // "lance-size:" rows ":" bytes ";".
  public static final class Size implements Statistics {
    private static final byte[] MARK = "lance-size:".getBytes();
    private long rows = 0;
    private long bytes = 0;
    private boolean known = true;

    Size(Object[] partitions) {
      if (partitions == null) {
        known = false;
        return;
      }
      for (int i = 0; i < partitions.length; i++) {
        add((byte[]) get(partitions[i], "pickedPartition"));
      }
    }

    private void add(byte[] pickled) {
      int start = find(pickled, MARK);
      if (start < 0) {
        known = known && pickled.length < 8;
        return;
      }
      long[] numbers = new long[2];
      int which = 0;
      for (int i = start + MARK.length; i < pickled.length && pickled[i] != ';'; i++) {
        if (pickled[i] == ':') {
          which++;
        } else {
          numbers[which] = 10 * numbers[which] + (pickled[i] - '0');
        }
      }
      rows += numbers[0];
      bytes += numbers[1];
    }

    private static int find(byte[] where, byte[] what) {
      for (int start = 0; start + what.length <= where.length; start++) {
        int same = 0;
        while (same < what.length && where[start + same] == what[same]) {
          same++;
        }
        if (same == what.length) {
          return start;
        }
      }
      return -1;
    }

    public OptionalLong sizeInBytes() {
      return known ? OptionalLong.of(bytes) : OptionalLong.empty();
    }

    public OptionalLong numRows() {
      return known ? OptionalLong.of(rows) : OptionalLong.empty();
    }
  }

  // What a field of Spark's own holds.
  public static Object get(Object object, String field) {
    try {
      Field found = object.getClass().getDeclaredField(field);
      found.setAccessible(true);
      return found.get(object);
    } catch (Exception problem) {
      throw new IllegalStateException("no field " + field + " in " + object.getClass().getName(), problem);
    }
  }
}
