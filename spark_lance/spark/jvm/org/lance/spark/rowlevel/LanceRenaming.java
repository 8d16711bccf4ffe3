// The columns of table and source in an expression, replaced by names that DataFrames resolve.
//
// Compiled in the driver by Janino.

package org.lance.spark.rowlevel;

import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayStructFields;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.ScalarSubquery;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/** Replaces columns behind the aliases of table and source. */
public final class LanceRenaming extends scala.runtime.AbstractPartialFunction {
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;
  private final LanceTarget target;
  private final String ofTarget;
  private final Map others;
  private final String ofSource;
  private final LanceQueries queries;
  // The columns of the table among those that were replaced.
  public final Set needs = new LinkedHashSet();

  public LanceRenaming(LanceTarget target, String ofTarget, Map others, String ofSource, LanceQueries queries) {
    this.target = target;
    this.ofTarget = ofTarget;
    this.others = others;
    this.ofSource = ofSource;
    this.queries = queries;
  }

  public boolean isDefinedAt(Object node) {
    return node instanceof AttributeReference || node instanceof GetStructField || node instanceof GetArrayStructFields
        || (node instanceof ScalarSubquery && ((ScalarSubquery) node).isCorrelated());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (node instanceof ScalarSubquery && isDefinedAt(node)) {
      // What it names is read; it stays as it is, as it is put into a plan and not into a Column.
      needs.addAll(LanceQueries.needed((Expression) node, target.names));
      return queries.add((Expression) node);
    }
    if (node instanceof AttributeReference) {
      Object id = ((AttributeReference) node).exprId();
      Object mine = target.names.get(id);
      Object theirs = others.get(id);
      if (mine != null) {
        needs.add(mine);
        return named(ofTarget, mine);
      }
      if (theirs != null) {
        return named(ofSource, theirs);
      }
      if (target.all.contains(id)) {
        throw new UnsupportedOperationException(
            target.kind + " cannot use " + ((AttributeReference) node).name()
                + ", which the view computes: name the table itself");
      }
      return node;
    }
    if (isDefinedAt(node) && isRenamed((Expression) node)) {
      // By name, as the number of a field may be another in the version that is changed.
      Expression child = (Expression) ((Expression) node).children().apply(0);
      return new UnresolvedExtractValue(child, Literal$.MODULE$.apply(field((Expression) node)));
    }
    return otherwise.apply(node);
  }

  private boolean isRenamed(Expression expression) {
    if (expression instanceof AttributeReference) {
      Object id = ((AttributeReference) expression).exprId();
      return target.names.containsKey(id) || others.containsKey(id);
    }
    boolean found = false;
    for (int i = 0; i < expression.children().size() && !found; i++) {
      found = isRenamed((Expression) expression.children().apply(i));
    }
    return found;
  }

  private static UnresolvedAttribute named(String alias, Object name) {
    return new UnresolvedAttribute((Seq) ((Seq) NONE.appended(alias)).appended(name));
  }

  // The name of the field that an expression takes out of a struct, or out of the structs of a list.
  public static String field(Expression get) {
    if (get instanceof GetArrayStructFields) {
      return ((GetArrayStructFields) get).field().name();
    }
    GetStructField one = (GetStructField) get;
    return ((StructType) one.child().dataType()).fields()[one.ordinal()].name();
  }
}
