// Spark's push-down in the form in which the driver's Python receives it: conditions, aggregates and columns as JSON.
//
// Compiled in the driver by Janino.

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
import org.lance.spark.load.Protocol;

public final class LancePushed {
  // The type of the literals that were last described, and its JSON: lists have thousands of one type.
  private static volatile Object[] known = {null, null};

  private static final List TESTS =
      Arrays.asList(
          new Object[] {"=", "<=>", "<>", "<", "<=", ">", ">=", "IN", "STARTS_WITH", "ENDS_WITH", "CONTAINS"});
  // Tests whose literal may come first.
  private static final List MIRRORED = Arrays.asList(new Object[] {"=", "<=>", "<>", "<", "<=", ">", ">="});
  private static final List NULL_TESTS = Arrays.asList(new Object[] {"IS_NULL", "IS_NOT_NULL"});
  // Types of literals with the same values in Python, as JSON; decimals are further ones (see spark/scan/predicates.py).
  private static final List LITERALS =
      Arrays.asList(
          new Object[] {
            "\"boolean\"", "\"byte\"", "\"short\"", "\"integer\"", "\"long\"", "\"float\"", "\"double\"",
            "\"string\"", "\"binary\"", "\"date\"", "\"timestamp\"", "\"timestamp_ntz\""
          });
  // The years 1 to 9999, which Python's times have: in days, and in microseconds.
  private static final long FIRST_DAY = -719162L;
  private static final long LAST_DAY = 2932896L;
  private static final long MICROS = 86400000000L;

  private LancePushed() {}

  // Whether Python makes an expression of a predicate that keeps the same rows as in Spark. `pushdown` is the table's
  // description; the rules are those of `expression_of` (spark/scan/predicates.py), which has to make one then.
  public static boolean isExact(Expression predicate, Map pushdown) {
    if (!(predicate instanceof Predicate)) {
      return false;
    }
    String name = ((Predicate) predicate).name();
    Expression[] args = predicate.children();
    if (name.equals("AND") || name.equals("OR") || name.equals("NOT")) {
      boolean all = true;
      for (int i = 0; all && i < args.length; i++) {
        all = isExact(args[i], pushdown);
      }
      return all;
    }
    boolean mirrored = args.length == 2 && !(args[0] instanceof NamedReference) && MIRRORED.contains(name);
    int place = mirrored ? 1 : 0;
    if (args.length == 0 || !(args[place] instanceof NamedReference)) {
      return false;
    }
    List path = Bridge.list(((NamedReference) args[place]).fieldNames());
    boolean isCompared = ((List) pushdown.get(Protocol.VALUES)).contains(path);
    if (NULL_TESTS.contains(name)) {
      return isCompared || ((List) pushdown.get(Protocol.NULLS)).contains(path);
    }
    boolean all = isCompared && TESTS.contains(name) && (args.length == 2 || (name.equals("IN") && args.length > 2));
    for (int i = 0; all && i < args.length; i++) {
      all = i == place || (args[i] instanceof Literal && isSame((Literal) args[i]));
    }
    return all;
  }

  // Whether a literal has the same value in Python.
  private static boolean isSame(Literal literal) {
    String type = json(literal.dataType());
    if (literal.value() == null || !(literal.value() instanceof Number) || !LITERALS.contains(type)) {
      return LITERALS.contains(type) || type.startsWith("\"decimal");
    }
    long value = ((Number) literal.value()).longValue();
    if (type.equals("\"date\"")) {
      return FIRST_DAY <= value && value <= LAST_DAY;
    }
    boolean isTime = type.startsWith("\"timestamp");
    return !isTime || (FIRST_DAY <= Math.floorDiv(value, MICROS) && Math.floorDiv(value, MICROS) <= LAST_DAY);
  }

  // Predicates as JSON; see spark/scan/predicates.py.
  public static List described(Predicate[] predicates) {
    List found = new ArrayList();
    for (int i = 0; i < predicates.length; i++) {
      found.add(described(predicates[i]));
    }
    return found;
  }

  private static Map described(Expression expression) {
    Map told = new HashMap();
    if (expression instanceof NamedReference) {
      told.put(Protocol.PATH, Bridge.list(((NamedReference) expression).fieldNames()));
    } else if (expression instanceof Literal) {
      Literal literal = (Literal) expression;
      told.put(Protocol.TYPE, json(literal.dataType()));
      told.put(Protocol.VALUE, text(literal.value()));
    } else if (expression instanceof Predicate) {
      told.put(Protocol.OP, ((Predicate) expression).name());
      List args = new ArrayList();
      Expression[] children = expression.children();
      Map list = told.get(Protocol.OP).equals("IN") ? list(children) : null;
      for (int i = 0; i < (list == null ? children.length : 1); i++) {
        args.add(described(children[i]));
      }
      if (list != null) {
        args.add(list);
      }
      told.put(Protocol.ARGS, args);
    }
    return told;
  }

  // All but the first of some expressions together, if they are literals of one type; null if not.
  private static Map list(Expression[] children) {
    List values = new ArrayList(children.length);
    DataType type = null;
    for (int i = 1; i < children.length; i++) {
      if (!(children[i] instanceof Literal)) {
        return null;
      }
      Literal literal = (Literal) children[i];
      if (type != null && !type.equals(literal.dataType())) {
        return null;
      }
      type = literal.dataType();
      values.add(text(literal.value()));
    }
    if (type == null) {
      return null;
    }
    Map told = new HashMap();
    told.put(Protocol.TYPE, json(type));
    told.put(Protocol.VALUES, values);
    return told;
  }

  private static String json(DataType type) {
    Object[] last = known;
    if (last[0] != type) {
      last = new Object[] {type, type.json()};
      known = last;
    }
    return (String) last[1];
  }

  // A value of Spark's as text.
  static String text(Object value) {
    if (value instanceof byte[]) {
      byte[] bytes = (byte[]) value;
      StringBuilder digits = new StringBuilder();
      for (int i = 0; i < bytes.length; i++) {
        digits.append(Character.forDigit((bytes[i] >> 4) & 15, 16)).append(Character.forDigit(bytes[i] & 15, 16));
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

  // Aggregates as JSON; null if there is one that is never answered without tasks.
  public static List functions(AggregateFunc[] asked) {
    List found = new ArrayList();
    for (int i = 0; i < asked.length; i++) {
      Map one = new HashMap();
      String name = name(asked[i]);
      if (name == null) {
        return null;
      }
      one.put(Protocol.FUNCTION, name);
      boolean counts = asked[i] instanceof Count && ((Count) asked[i]).isDistinct();
      boolean sums = asked[i] instanceof Sum && ((Sum) asked[i]).isDistinct();
      one.put(Protocol.DISTINCT, Boolean.valueOf(counts || sums));
      List paths = asked[i] instanceof CountStar ? new ArrayList() : paths(asked[i].children());
      if (paths == null || paths.size() > 1) {
        return null;
      }
      one.put(Protocol.PATH, paths.isEmpty() ? null : paths.get(0));
      found.add(one);
    }
    return found;
  }

  // An average has no name here; then Spark asks again, for the sum and the count.
  private static String name(AggregateFunc asked) {
    if (asked instanceof CountStar || asked instanceof Count) {
      return "count";
    }
    if (asked instanceof Sum) {
      return "sum";
    }
    return asked instanceof Min ? "min" : asked instanceof Max ? "max" : null;
  }

  // Columns as lists of names; null if there is one that is computed.
  public static List paths(Expression[] expressions) {
    List found = new ArrayList();
    for (int i = 0; i < expressions.length; i++) {
      if (!(expressions[i] instanceof NamedReference)) {
        return null;
      }
      found.add(Bridge.list(((NamedReference) expressions[i]).fieldNames()));
    }
    return found;
  }
}
