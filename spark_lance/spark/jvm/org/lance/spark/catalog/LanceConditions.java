// Predicates that Spark hands over, as SQL: what a write is to replace, or a DELETE to drop.
//
// Spark's own text of one has dates and moments as numbers, which mean nothing to whoever reads it.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.internal.connector.ToStringSQLBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

public final class LanceConditions extends ToStringSQLBuilder {
  private static final DateTimeFormatter MOMENT =
      DateTimeFormatter.ofPattern("uuuu-MM-dd HH:mm:ss.SSSSSS").withZone(ZoneOffset.UTC);

  // Whether Lance's own filters read it, not Spark.
  private final boolean filters;

  private LanceConditions(boolean filters) {
    this.filters = filters;
  }

  // In the words of the option replaceWhere.
  public static String filter(Expression condition) {
    return new LanceConditions(true).build(condition);
  }

  // In Spark's words.
  public static String sql(Expression condition) {
    return new LanceConditions(false).build(condition);
  }

  protected String visitStartsWith(String text, String part) {
    return filters ? "starts_with(" + text + ", " + part + ")" : super.visitStartsWith(text, part);
  }

  protected String visitEndsWith(String text, String part) {
    return filters ? "ends_with(" + text + ", " + part + ")" : super.visitEndsWith(text, part);
  }

  protected String visitContains(String text, String part) {
    return filters ? "contains(" + text + ", " + part + ")" : super.visitContains(text, part);
  }

  protected String visitLiteral(Literal literal) {
    DataType type = literal.dataType();
    Object value = literal.value();
    if (value == null) {
      return "NULL";
    }
    if (type instanceof DateType) {
      return "date '" + LocalDate.ofEpochDay(((Number) value).longValue()) + "'";
    }
    if (type instanceof TimestampType || type instanceof TimestampNTZType) {
      long micros = ((Number) value).longValue();
      Instant moment = Instant.ofEpochSecond(Math.floorDiv(micros, 1000000L), Math.floorMod(micros, 1000000L) * 1000L);
      return "timestamp '" + MOMENT.format(moment) + (type instanceof TimestampType ? "+00:00'" : "'");
    }
    if (value instanceof UTF8String) {
      return "'" + value.toString().replace("'", "''") + "'";
    }
    if (value instanceof Decimal) {
      return ((Decimal) value).toJavaBigDecimal().toPlainString();
    }
    if (value instanceof byte[]) {
      StringBuilder digits = new StringBuilder();
      byte[] bytes = (byte[]) value;
      for (int i = 0; i < bytes.length; i++) {
        digits.append(Character.forDigit((bytes[i] >> 4) & 15, 16)).append(Character.forDigit(bytes[i] & 15, 16));
      }
      return "X'" + digits + "'";
    }
    boolean isNumber = value instanceof Double || value instanceof Float;
    if (isNumber && (Double.isNaN(((Number) value).doubleValue()) || Double.isInfinite(((Number) value).doubleValue()))) {
      return "CAST('" + value + "' AS DOUBLE)";
    }
    return super.visitLiteral(literal);
  }
}
