package org.lance.spark.scan;

import java.util.List;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.lance.spark.load.Json;

/** A metric of a planned scan in Spark's UI. Spark creates instances by the name of this class. */
public final class LanceMetric implements CustomMetric, CustomTaskMetric {
  private final String name;
  private final String description;
  private final long value;

  // Spark calls this constructor to aggregate the values of all tasks.
  public LanceMetric() {
    this("", "", 0);
  }

  private LanceMetric(String name, String description, long value) {
    this.name = name;
    this.description = description;
    this.value = value;
  }

  /** Returns the metrics of a plan from rows of name, description and value. */
  static LanceMetric[] of(List<Object> rows) {
    LanceMetric[] metrics = new LanceMetric[rows.size()];
    for (int i = 0; i < metrics.length; i++) {
      List<Object> row = Json.list(rows.get(i));
      metrics[i] = new LanceMetric((String) row.get(0), (String) row.get(1), ((Number) row.get(2)).longValue());
    }
    return metrics;
  }

  public String name() {
    return name;
  }

  public String description() {
    return description;
  }

  public long value() {
    return value;
  }

  public String aggregateTaskMetrics(long[] values) {
    long sum = 0;
    for (long value : values) {
      sum += value;
    }
    return String.format("%,d", sum);
  }
}
