// A number that a planned scan shows in Spark's UI. A class of its own, as Spark makes another one by its name.
//
// Compiled in the driver by Janino.

package org.lance.spark.scan;

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
  static LanceAmount[] of(List told) {
    LanceAmount[] amounts = new LanceAmount[told.size()];
    for (int i = 0; i < amounts.length; i++) {
      List one = (List) told.get(i);
      amounts[i] = new LanceAmount((String) one.get(0), (String) one.get(1), ((Number) one.get(2)).longValue());
    }
    return amounts;
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
    for (int i = 0; i < values.length; i++) {
      sum += values[i];
    }
    return String.format("%,d", new Object[] {Long.valueOf(sum)});
  }
}
