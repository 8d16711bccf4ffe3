// Conditions on values at a path of JSON documents, in the form in which the driver's Python receives them.
//
// Spark's connectors have no form for get_json_object and variant_get (`column:path` becomes one of them), so the scan
// gets Spark's own expressions. Python answers with a condition that leaves out documents which cannot meet them. Spark
// applies its own condition to the others. See spark/scan/predicates.py.
//
// Compiled in the driver by Janino.

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
import org.lance.spark.load.Protocol;
import scala.collection.immutable.Seq;

public final class LanceDocuments {
  // Values of IN beyond which a condition is left to Spark alone.
  private static final int MOST_VALUES = 1000;

  private LanceDocuments() {}

  // A condition with a part about documents; null if it has none.
  public static Map candidate(Expression condition) {
    Map told = described(condition);
    if (told == null || !hasDocuments(told)) {
      return null;
    }
    List args = new ArrayList();
    args.add(told);
    Map candidate = new HashMap();
    candidate.put(Protocol.OP, "CANDIDATE");
    candidate.put(Protocol.ARGS, args);
    return candidate;
  }

  private static boolean hasDocuments(Map told) {
    if ("DOCUMENT".equals(told.get(Protocol.OP))) {
      return true;
    }
    boolean found = false;
    if ("AND".equals(told.get(Protocol.OP)) || "OR".equals(told.get(Protocol.OP))) {
      List args = (List) told.get(Protocol.ARGS);
      for (int i = 0; i < args.size(); i++) {
        found = found || hasDocuments((Map) args.get(i));
      }
    }
    return found;
  }

  private static Map described(Expression condition) {
    if (condition instanceof And || condition instanceof Or) {
      List args = new ArrayList();
      for (int i = 0; i < 2; i++) {
        Map part = described((Expression) condition.children().apply(i));
        if (part != null) {
          args.add(part);
        } else if (condition instanceof Or) {
          return null;
        }
      }
      if (args.isEmpty()) {
        return null;
      }
      Map told = new HashMap();
      told.put(Protocol.OP, condition instanceof And ? "AND" : "OR");
      told.put(Protocol.ARGS, args);
      return told;
    }
    Map document = document(condition);
    if (document != null) {
      return document;
    }
    scala.Option plain = DataSourceV2Strategy$.MODULE$.translateFilterV2(condition);
    if (plain.isEmpty()) {
      return null;
    }
    return (Map) LancePushed.described(new Predicate[] {(Predicate) plain.get()}).get(0);
  }

  // A test of what stands in a document; null if it is none.
  private static Map document(Expression condition) {
    List values = new ArrayList();
    Expression tested = null;
    String test = null;
    if (condition instanceof IsNotNull) {
      tested = (Expression) condition.children().apply(0);
      test = "IS_NOT_NULL";
    } else if (condition instanceof BinaryComparison) {
      Expression left = (Expression) condition.children().apply(0);
      Expression right = (Expression) condition.children().apply(1);
      boolean mirrored = left instanceof Literal;
      if (!mirrored && !(right instanceof Literal)) {
        return null;
      }
      tested = mirrored ? right : left;
      test = comparison(condition, mirrored);
      values.add(literal((Literal) (mirrored ? left : right)));
    } else if (condition instanceof In) {
      Seq list = ((In) condition).list();
      tested = ((In) condition).value();
      test = "IN";
      for (int i = 0; i < list.size(); i++) {
        if (!(list.apply(i) instanceof Literal) || i >= MOST_VALUES) {
          return null;
        }
        values.add(literal((Literal) list.apply(i)));
      }
    } else if (condition instanceof InSet) {
      tested = ((InSet) condition).child();
      test = "IN";
      if (((InSet) condition).hset().size() > MOST_VALUES) {
        return null;
      }
      scala.collection.Iterator each = ((InSet) condition).hset().iterator();
      while (each.hasNext()) {
        values.add(literal(new Literal(each.next(), tested.dataType())));
      }
    }
    Map told = test == null ? null : access(tested);
    if (told != null) {
      told.put(Protocol.OP, "DOCUMENT");
      told.put(Protocol.TEST, test);
      told.put(Protocol.VALUES, values);
    }
    return told;
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

  private static Map literal(Literal literal) {
    Map told = new HashMap();
    told.put(Protocol.TYPE, literal.dataType().json());
    told.put(Protocol.VALUE, LancePushed.text(literal.value()));
    return told;
  }

  // What a function finds in a column, in a type perhaps; null if it is something else.
  private static Map access(Expression found) {
    List types = new ArrayList();
    while (found instanceof Cast) {
      types.add(0, found.dataType().json());
      found = ((Cast) found).child();
    }
    boolean plain = found instanceof GetJsonObject;
    if (!plain && !(found instanceof VariantGet)) {
      return null;
    }
    if (!plain) {
      types.add(0, ((DataType) ((VariantGet) found).targetType()).json());
    }
    Expression column = (Expression) found.children().apply(0);
    Expression path = (Expression) found.children().apply(1);
    if (!(column instanceof AttributeReference) || !(path instanceof Literal) || ((Literal) path).value() == null) {
      return null;
    }
    Map told = new HashMap();
    told.put(Protocol.FUNCTION, plain ? "get_json_object" : "variant_get");
    told.put(Protocol.COLUMN, ((AttributeReference) column).name());
    told.put(Protocol.PATH, ((Literal) path).value().toString());
    told.put(Protocol.TYPES, types);
    return told;
  }
}
