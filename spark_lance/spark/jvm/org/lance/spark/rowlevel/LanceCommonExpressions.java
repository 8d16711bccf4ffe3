package org.lance.spark.rowlevel;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.lance.spark.load.Seqs;

/**
 * Puts the expressions of a statement back in place of the columns that Spark has made of them.
 *
 * <p>Spark computes the values in BETWEEN, NULLIF and similar in a projection below the operator that uses them.
 * Random values are computed once for each row, by the job that writes the row.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceCommonExpressions extends scala.runtime.AbstractPartialFunction {
  private static final String SHARED = "_common_expr_";
  // Identity of such a column -> its expression.
  private final Map<ExprId, Expression> shared = new HashMap<>();

  // An operator, without what it uses of the projections in `below`.
  public static LogicalPlan inlineCommonExpressions(LogicalPlan operator, LogicalPlan below) {
    LanceCommonExpressions rule = new LanceCommonExpressions();
    for (LogicalPlan plan = below; plan instanceof Project; plan = ((Project) plan).child()) {
      rule.collect((Project) plan);
    }
    return rule.shared.isEmpty() ? operator : (LogicalPlan) operator.transformExpressions(Seqs.partial(rule));
  }

  private void collect(Project plan) {
    for (NamedExpression column : Seqs.view(plan.projectList())) {
      if (column instanceof Alias && column.name().startsWith(SHARED)) {
        shared.put(column.exprId(), ((Alias) column).child());
      }
    }
  }

  public boolean isDefinedAt(Object node) {
    return node instanceof AttributeReference && shared.containsKey(((AttributeReference) node).exprId());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (!isDefinedAt(node)) {
      return otherwise.apply(node);
    }
    return ((Expression) shared.get(((AttributeReference) node).exprId())).transformDown(Seqs.partial(this));
  }
}
