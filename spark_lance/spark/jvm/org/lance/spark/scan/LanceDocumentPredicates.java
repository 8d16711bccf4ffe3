package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetJsonObject;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.variant.VariantGet;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy$;
import org.apache.spark.sql.types.DataType;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import scala.collection.immutable.Seq;

/**
 * Conditions on values at a path of JSON documents, in the form that the driver's Python receives.
 *
 * <p>Spark's connectors have no form for get_json_object and variant_get ({@code column:path} becomes one of them). So
 * the scan gets Spark's own expressions. Python answers with a condition that skips documents which cannot match.
 * Spark applies its own condition to the rest. See spark/scan/predicates.py.
 */
public final class LanceDocumentPredicates {
  // With more values in IN, only Spark evaluates the condition.
  private static final int MOST_VALUES = 1000;

  private LanceDocumentPredicates() {}

  /**
   * Returns a condition in JSON that keeps every row the given condition keeps, to skip documents that cannot match.
   *
   * @return the condition; null if no part of it is about documents
   */
  public static Map<String, Object> candidate(Expression condition) {
    Map<String, Object> predicate = toJson(condition);
    if (predicate == null || !hasDocuments(predicate)) {
      return null;
    }
    List<Object> args = new ArrayList<>();
    args.add(predicate);
    Map<String, Object> candidate = new HashMap<>();
    candidate.put(Protocol.OP, "CANDIDATE");
    candidate.put(Protocol.ARGS, args);
    return candidate;
  }

  private static boolean hasDocuments(Map<String, Object> predicate) {
    if ("DOCUMENT".equals(predicate.get(Protocol.OP))) {
      return true;
    }
    boolean result = false;
    if ("AND".equals(predicate.get(Protocol.OP)) || "OR".equals(predicate.get(Protocol.OP))) {
      List<Object> args = Json.list(predicate.get(Protocol.ARGS));
      for (Object argument : args) {
        result = result || hasDocuments(Json.object(argument));
      }
    }
    return result;
  }

  private static Map<String, Object> toJson(Expression condition) {
    if (condition instanceof And || condition instanceof Or) {
      List<Object> args = new ArrayList<>();
      for (int i = 0; i < 2; i++) {
        Map<String, Object> part = toJson((Expression) condition.children().apply(i));
        if (part != null) {
          args.add(part);
        } else if (condition instanceof Or) {
          return null;
        }
      }
      if (args.isEmpty()) {
        return null;
      }
      Map<String, Object> conjunction = new HashMap<>();
      conjunction.put(Protocol.OP, condition instanceof And ? "AND" : "OR");
      conjunction.put(Protocol.ARGS, args);
      return conjunction;
    }
    Map<String, Object> document = documentTest(condition);
    if (document != null) {
      return document;
    }
    scala.Option<Predicate> plain = DataSourceV2Strategy$.MODULE$.translateFilterV2(condition);
    if (plain.isEmpty()) {
      return null;
    }
    return Json.object(LancePushdown.toJson(new Predicate[] {(Predicate) plain.get()}).get(0));
  }

  /** Returns the JSON form of a test of a value inside a document; null if the condition is no such test. */
  private static Map<String, Object> documentTest(Expression condition) {
    List<Object> values = new ArrayList<>();
    Expression tested = null;
    String operator = null;
    if (condition instanceof IsNotNull) {
      tested = (Expression) condition.children().apply(0);
      operator = "IS_NOT_NULL";
    } else if (condition instanceof BinaryComparison) {
      Expression left = (Expression) condition.children().apply(0);
      Expression right = (Expression) condition.children().apply(1);
      boolean mirrored = left instanceof Literal;
      if (!mirrored && !(right instanceof Literal)) {
        return null;
      }
      tested = mirrored ? right : left;
      operator = comparison(condition, mirrored);
      values.add(literal((Literal) (mirrored ? left : right)));
    } else if (condition instanceof In) {
      Seq<Expression> list = ((In) condition).list();
      tested = ((In) condition).value();
      operator = "IN";
      for (int i = 0; i < list.size(); i++) {
        if (!(list.apply(i) instanceof Literal) || i >= MOST_VALUES) {
          return null;
        }
        values.add(literal((Literal) list.apply(i)));
      }
    } else if (condition instanceof InSet) {
      tested = ((InSet) condition).child();
      operator = "IN";
      if (((InSet) condition).hset().size() > MOST_VALUES) {
        return null;
      }
      scala.collection.Iterator<Object> each = ((InSet) condition).hset().iterator();
      while (each.hasNext()) {
        values.add(literal(new Literal(each.next(), tested.dataType())));
      }
    }
    Map<String, Object> test = operator == null ? null : access(tested);
    if (test != null) {
      test.put(Protocol.OP, "DOCUMENT");
      test.put(Protocol.TEST, operator);
      test.put(Protocol.VALUES, values);
    }
    return test;
  }

  private static String comparison(Expression condition, boolean mirrored) {
    if (condition instanceof EqualTo) {
      return "=";
    }
    if (condition instanceof EqualNullSafe) {
      return "<=>";
    }
    if (condition instanceof LessThan) {
      return mirrored ? ">" : "<";
    }
    if (condition instanceof LessThanOrEqual) {
      return mirrored ? ">=" : "<=";
    }
    if (condition instanceof GreaterThan) {
      return mirrored ? "<" : ">";
    }
    return condition instanceof GreaterThanOrEqual ? (mirrored ? "<=" : ">=") : null;
  }

  private static Map<String, Object> literal(Literal literal) {
    Map<String, Object> result = new HashMap<>();
    result.put(Protocol.TYPE, literal.dataType().json());
    result.put(Protocol.VALUE, LancePushdown.text(literal.value()));
    return result;
  }

  /**
   * Returns the JSON form of a function that reads a path of a document column, with the types of casts around it.
   *
   * @return the access; null for any other expression
   */
  private static Map<String, Object> access(Expression expression) {
    List<Object> types = new ArrayList<>();
    while (expression instanceof Cast) {
      types.add(0, expression.dataType().json());
      expression = ((Cast) expression).child();
    }
    boolean plain = expression instanceof GetJsonObject;
    if (!plain && !(expression instanceof VariantGet)) {
      return null;
    }
    if (!plain) {
      types.add(0, ((DataType) ((VariantGet) expression).targetType()).json());
    }
    Expression column = (Expression) expression.children().apply(0);
    Expression path = (Expression) expression.children().apply(1);
    if (!(column instanceof AttributeReference) || !(path instanceof Literal) || ((Literal) path).value() == null) {
      return null;
    }
    Map<String, Object> result = new HashMap<>();
    result.put(Protocol.FUNCTION, plain ? "get_json_object" : "variant_get");
    result.put(Protocol.COLUMN, ((AttributeReference) column).name());
    result.put(Protocol.PATH, ((Literal) path).value().toString());
    result.put(Protocol.TYPES, types);
    return result;
  }
}
