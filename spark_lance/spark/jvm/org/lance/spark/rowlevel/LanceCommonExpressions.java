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
 * Inlines the common expressions that Spark has moved into a projection.
 *
 * <p>Spark computes the values in BETWEEN, NULLIF and similar functions in a projection below the operator. The job
 * that writes a row computes random values once for the row.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceCommonExpressions extends scala.runtime.AbstractPartialFunction {
  private static final String PREFIX = "_common_expr_";
  // Id of a column that Spark has added -> its expression.
  private final Map<ExprId, Expression> commonExpressions = new HashMap<>();

  /**
   * Returns an operator with common expressions in place of the columns for them.
   *
   * @param child the child of the operator; only projections of common expressions are read
   */
  public static LogicalPlan inlineCommonExpressions(LogicalPlan operator, LogicalPlan child) {
    LanceCommonExpressions rule = new LanceCommonExpressions();
    for (LogicalPlan plan = child; plan instanceof Project; plan = ((Project) plan).child()) {
      rule.collect((Project) plan);
    }
    return rule.commonExpressions.isEmpty() ? operator : (LogicalPlan) operator.transformExpressions(Seqs.partial(rule));
  }

  private void collect(Project plan) {
    for (NamedExpression column : Seqs.view(plan.projectList())) {
      if (column instanceof Alias && column.name().startsWith(PREFIX)) {
        commonExpressions.put(column.exprId(), ((Alias) column).child());
      }
    }
  }

  public boolean isDefinedAt(Object node) {
    return node instanceof AttributeReference && commonExpressions.containsKey(((AttributeReference) node).exprId());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (!isDefinedAt(node)) {
      return otherwise.apply(node);
    }
    return ((Expression) commonExpressions.get(((AttributeReference) node).exprId())).transformDown(Seqs.partial(this));
  }
}
