// A number that a planned scan shows in Spark's UI. A class of its own, as Spark makes another one by its name.
//
// Compiled in the driver by Janino.

package org.lance.spark.scan;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

public final class LanceAmount implements CustomMetric, CustomTaskMetric {
  private final String name;
  private final String description;
  private final long value;

  // Spark needs this constructor to add up the values of all tasks.
  public LanceAmount() {
    this("", "", 0);
  }

  private LanceAmount(String name, String description, long value) {
    this.name = name;
    this.description = description;
    this.value = value;
  }

  // The amounts of a plan: a list of name, what people read, and number for each.
  static LanceAmount[] of(List<Object> rows) {
    LanceAmount[] metrics = new LanceAmount[rows.size()];
    for (int i = 0; i < metrics.length; i++) {
      List<Serializable> row = (List<Serializable>) rows.get(i);
      metrics[i] = new LanceAmount((String) row.get(0), (String) row.get(1), ((Number) row.get(2)).longValue());
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
