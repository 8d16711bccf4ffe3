package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.aggregate.Sum;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;

/** Converts what Spark pushes down into JSON for the driver's Python: predicates, aggregates and columns. */
public final class LancePushdown {
  // The last type of a literal and its JSON: a list of IN has thousands of literals of one type.
  private static volatile Object[] cachedType = {null, null};

  private static final List<String> TESTS =
      Arrays.asList(
          "=", "<=>", "<>", "<", "<=", ">", ">=", "IN", "STARTS_WITH", "ENDS_WITH", "CONTAINS");
  // Comparisons that Spark may pass with the literal first.
  private static final List<String> MIRRORED = Arrays.asList("=", "<=>", "<>", "<", "<=", ">", ">=");
  private static final List<String> NULL_TESTS = Arrays.asList("IS_NULL", "IS_NOT_NULL");
  // Types of literals with the same values in Python, as JSON. Decimals are added by prefix (see
  // spark/scan/predicates.py).
  private static final List<String> LITERALS =
      Arrays.asList(
          "\"boolean\"", "\"byte\"", "\"short\"", "\"integer\"", "\"long\"", "\"float\"", "\"double\"",
          "\"string\"", "\"binary\"", "\"date\"", "\"timestamp\"", "\"timestamp_ntz\"");
  // The years 1 to 9999 of Python's datetime, in days.
  private static final long FIRST_DAY = -719162L;
  private static final long LAST_DAY = 2932896L;
  private static final long MICROS_PER_DAY = 86400000000L;

  private LancePushdown() {}

  /**
   * Returns whether Python applies a predicate exactly as Spark does. The rules are those of {@code translate_predicate} in
   * spark/scan/predicates.py, which has to translate each predicate that this method accepts.
   *
   * @param pushdown the table's description
   */
  public static boolean isExact(Expression predicate, Map<String, Object> pushdown) {
    if (!(predicate instanceof Predicate)) {
      return false;
    }
    String name = ((Predicate) predicate).name();
    Expression[] args = predicate.children();
    if (name.equals("AND") || name.equals("OR") || name.equals("NOT")) {
      boolean all = true;
      for (Expression argument : args) {
        all = all && isExact(argument, pushdown);
      }
      return all;
    }
    boolean mirrored = args.length == 2 && !(args[0] instanceof NamedReference) && MIRRORED.contains(name);
    int ordinal = mirrored ? 1 : 0;
    if (args.length == 0 || !(args[ordinal] instanceof NamedReference)) {
      return false;
    }
    List<Object> path = Bridge.list(((NamedReference) args[ordinal]).fieldNames());
    boolean isCompared = Json.list(pushdown.get(Protocol.VALUES)).contains(path);
    if (NULL_TESTS.contains(name)) {
      return isCompared || Json.list(pushdown.get(Protocol.NULLS)).contains(path);
    }
    boolean all = isCompared && TESTS.contains(name) && (args.length == 2 || (name.equals("IN") && args.length > 2));
    for (int i = 0; all && i < args.length; i++) {
      all = i == ordinal || (args[i] instanceof Literal && isSame((Literal<?>) args[i]));
    }
    return all;
  }

  /** Returns whether a literal has the same value in Python. */
  private static boolean isSame(Literal<?> literal) {
    String type = json(literal.dataType());
    if (literal.value() == null || !(literal.value() instanceof Number) || !LITERALS.contains(type)) {
      return LITERALS.contains(type) || type.startsWith("\"decimal");
    }
    long value = ((Number) literal.value()).longValue();
    if (type.equals("\"date\"")) {
      return FIRST_DAY <= value && value <= LAST_DAY;
    }
    boolean isTime = type.startsWith("\"timestamp");
    return !isTime || (FIRST_DAY <= Math.floorDiv(value, MICROS_PER_DAY) && Math.floorDiv(value, MICROS_PER_DAY) <= LAST_DAY);
  }

  /** Returns predicates as JSON, in the form of spark/scan/predicates.py. */
  public static List<Object> toJson(Predicate[] predicates) {
    List<Object> result = new ArrayList<>();
    for (Predicate predicate : predicates) {
      result.add(toJson(predicate));
    }
    return result;
  }

  private static Map<String, Object> toJson(Expression expression) {
    Map<String, Object> result = new HashMap<>();
    if (expression instanceof NamedReference) {
      result.put(Protocol.PATH, Bridge.list(((NamedReference) expression).fieldNames()));
    } else if (expression instanceof Literal) {
      Literal<?> literal = (Literal<?>) expression;
      result.put(Protocol.TYPE, json(literal.dataType()));
      result.put(Protocol.VALUE, text(literal.value()));
    } else if (expression instanceof Predicate) {
      result.put(Protocol.OP, ((Predicate) expression).name());
      List<Object> args = new ArrayList<>();
      Expression[] children = expression.children();
      Map<String, Object> list = result.get(Protocol.OP).equals("IN") ? list(children) : null;
      for (int i = 0; i < (list == null ? children.length : 1); i++) {
        args.add(toJson(children[i]));
      }
      if (list != null) {
        args.add(list);
      }
      result.put(Protocol.ARGS, args);
    }
    return result;
  }

  /**
   * Returns the literals of IN as one list, which is shorter than one object for each.
   *
   * @param children the arguments of IN; the first is the column
   * @return null if an argument is no literal or the types differ
   */
  private static Map<String, Object> list(Expression[] children) {
    List<Object> values = new ArrayList<>(children.length);
    DataType type = null;
    for (int i = 1; i < children.length; i++) {
      if (!(children[i] instanceof Literal)) {
        return null;
      }
      Literal<?> literal = (Literal<?>) children[i];
      if (type != null && !type.equals(literal.dataType())) {
        return null;
      }
      type = literal.dataType();
      values.add(text(literal.value()));
    }
    if (type == null) {
      return null;
    }
    Map<String, Object> result = new HashMap<>();
    result.put(Protocol.TYPE, json(type));
    result.put(Protocol.VALUES, values);
    return result;
  }

  private static String json(DataType type) {
    Object[] pair = cachedType;
    if (pair[0] != type) {
      pair = new Object[] {type, type.json()};
      cachedType = pair;
    }
    return (String) pair[1];
  }

  /**
   * Returns an internal value of Spark as text: bytes as hexadecimal digits, a float as a double.
   *
   * @return null for null
   */
  static String text(Object value) {
    if (value instanceof byte[]) {
      byte[] bytes = (byte[]) value;
      StringBuilder digits = new StringBuilder();
      for (byte octet : bytes) {
        digits.append(Character.forDigit((octet >> 4) & 15, 16)).append(Character.forDigit(octet & 15, 16));
      }
      return digits.toString();
    }
    if (value instanceof Float) {
      return String.valueOf(((Float) value).doubleValue());
    }
    if (value instanceof Decimal) {
      return ((Decimal) value).toJavaBigDecimal().toPlainString();
    }
    return value == null ? null : value.toString();
  }

  /** Returns aggregates as JSON; null if one of them always needs tasks. */
  public static List<Object> functions(AggregateFunc[] functions) {
    List<Object> result = new ArrayList<>();
    for (AggregateFunc function : functions) {
      Map<String, Object> aggregate = new HashMap<>();
      String name = name(function);
      if (name == null) {
        return null;
      }
      aggregate.put(Protocol.FUNCTION, name);
      boolean counts = function instanceof Count && ((Count) function).isDistinct();
      boolean sums = function instanceof Sum && ((Sum) function).isDistinct();
      aggregate.put(Protocol.DISTINCT, counts || sums);
      List<Object> paths = function instanceof CountStar ? new ArrayList<>() : paths(function.children());
      if (paths == null || paths.size() > 1) {
        return null;
      }
      aggregate.put(Protocol.PATH, paths.isEmpty() ? null : paths.get(0));
      result.add(aggregate);
    }
    return result;
  }

  // Refuses an average; Spark then offers its sum and its count.
  private static String name(AggregateFunc function) {
    if (function instanceof CountStar || function instanceof Count) {
      return "count";
    }
    if (function instanceof Sum) {
      return "sum";
    }
    return function instanceof Min ? "min" : function instanceof Max ? "max" : null;
  }

  /** Returns columns as lists of names; null if one of the expressions is computed. */
  public static List<Object> paths(Expression[] expressions) {
    List<Object> paths = new ArrayList<>();
    for (Expression expression : expressions) {
      if (!(expression instanceof NamedReference)) {
        return null;
      }
      paths.add(Bridge.list(((NamedReference) expression).fieldNames()));
    }
    return paths;
  }
}
