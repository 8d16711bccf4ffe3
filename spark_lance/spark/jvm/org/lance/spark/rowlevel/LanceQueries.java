package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.Dataset;
import org.lance.spark.load.Seqs;
import scala.collection.immutable.Seq;

/**
 * The scalar subqueries of a statement that name columns of the table or of the source of a MERGE.
 *
 * <p>Each becomes a column of the rows whose columns it names. LanceChange collects them. Python adds their columns to
 * its DataFrames.
 */
public final class LanceQueries {
  private static final String QUERY = "__lance_query_";
  // Id of a column -> its name; and the alias of the target in the join with the source.
  private final Map<ExprId, Object> targetNames;
  private final String targetAlias;
  private final Map<ExprId, Object> sourceNames;
  private final String sourceAlias;
  // Each entry: the rows ("target", "source" or "pairs"), the name of the column, and the subquery.
  private final List<Object[]> queries = new ArrayList<>();

  public LanceQueries(Map<ExprId, Object> targetNames, String targetAlias, Map<ExprId, Object> sourceNames, String sourceAlias) {
    this.targetNames = targetNames;
    this.targetAlias = targetAlias;
    this.sourceNames = sourceNames;
    this.sourceAlias = sourceAlias;
  }

  /**
   * Adds a column for each subquery over the rows of a frame. Spark's analyzer does not accept the optimizer's form
   * of a correlated subquery. So this method applies the optimizer's next step, which makes joins that the analyzer
   * accepts.
   *
   * @param rows "target", "source", or "pairs" for both joined
   * @return the frame itself if no subquery needs these rows
   */
  public Object attach(Object frame, String rows) {
    Dataset<?> dataset = (Dataset<?>) frame;
    LogicalPlan plan = dataset.queryExecution().analyzed();
    Seq<NamedExpression> columns = Seqs.empty();
    Map<ExprId, Object> byId = new HashMap<>();
    for (Attribute column : Seqs.view(plan.output())) {
      columns = Seqs.append(columns, column);
    }
    boolean hasQueries = false;
    for (Object[] query : queries) {
      if (!query[0].equals(rows)) {
        continue;
      }
      if (!hasQueries) {
        boolean isPairs = rows.equals("pairs");
        if (!rows.equals("source")) {
          mapColumns(plan, targetNames, isPairs ? targetAlias : null, byId);
        }
        if (!rows.equals("target")) {
          mapColumns(plan, sourceNames, isPairs ? sourceAlias : null, byId);
        }
        hasQueries = true;
      }
      Expression value = (Expression) ((Expression) query[2]).transformDown(Seqs.partial(new ColumnReplacement(byId)));
      columns = Seqs.append(
          columns,
          new Alias(value, (String) query[1], NamedExpression.newExprId(), Seqs.empty(), scala.Option.empty(), Seqs.empty()));
    }
    if (!hasQueries) {
      return frame;
    }
    LogicalPlan join = RewriteCorrelatedScalarSubquery.apply(new Project(columns, plan));
    return Dataset$.MODULE$.ofRows(dataset.sparkSession(), join);
  }

  /**
   * Maps column ids to the columns of a plan with these names.
   *
   * @param alias the qualifier of the columns; null for any
   */
  private static void mapColumns(LogicalPlan plan, Map<ExprId, Object> names, String alias, Map<ExprId, Object> byId) {
    Map<String, Object> byName = new HashMap<>();
    for (Attribute column : Seqs.view(plan.output())) {
      if (alias == null || (column.qualifier().size() == 1 && column.qualifier().apply(0).equals(alias))) {
        byName.put(column.name(), column);
      }
    }
    for (Map.Entry<ExprId, Object> entry : names.entrySet()) {
      byId.put(entry.getKey(), byName.get(entry.getValue()));
    }
  }

  /** Adds a correlated scalar subquery, and returns its column. */
  public UnresolvedAttribute add(Expression subquery) {
    boolean isOfTarget = neededNames(subquery, sourceNames).isEmpty();
    String rows = isOfTarget ? "target" : neededNames(subquery, targetNames).isEmpty() ? "source" : "pairs";
    Object[] query = {rows, QUERY + queries.size(), subquery};
    queries.add(query);
    return new UnresolvedAttribute(Seqs.of((String) query[1]));
  }

  /**
   * Refuses a subquery over columns of both tables in the condition of MERGE, because the condition decides which
   * rows are joined.
   */
  public void refuseSubqueryOfBoth(Expression condition) {
    if (condition instanceof SubqueryExpression || condition instanceof InSubquery) {
      if (!neededNames(condition, targetNames).isEmpty() && !neededNames(condition, sourceNames).isEmpty()) {
        throw new UnsupportedOperationException(
            "the condition of MERGE takes no subquery that names columns of both the table and the source: write it "
                + "into WHEN MATCHED AND ..., or let the source compute its part, as in USING (SELECT s.*, (SELECT "
                + "max(x) FROM r WHERE r.k = s.k) AS m FROM s) AS s");
      }
    }
    for (Expression child : Seqs.view(condition.children())) {
      refuseSubqueryOfBoth(child);
    }
  }

  /**
   * Returns the names of the columns that an expression needs.
   *
   * @param names the columns to look for, by id
   */
  public static Set<Object> neededNames(Expression expression, Map<ExprId, Object> names) {
    NameCollector collector = new NameCollector(names);
    expression.transformDown(Seqs.partial(collector));
    return collector.needs;
  }

  /** Collects columns of an expression, and changes nothing. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class NameCollector extends scala.runtime.AbstractPartialFunction {
    private final Map<ExprId, Object> names;
    final Set<Object> needs = new LinkedHashSet<>();

    NameCollector(Map<ExprId, Object> names) {
      this.names = names;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference && names.containsKey(((AttributeReference) node).exprId());
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      needs.add(names.get(((AttributeReference) node).exprId()));
      return node;
    }
  }

  /** Replaces columns by the columns of a frame. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class ColumnReplacement extends scala.runtime.AbstractPartialFunction {
    private final Map<ExprId, Object> byId;

    ColumnReplacement(Map<ExprId, Object> byId) {
      this.byId = byId;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference && byId.get(((AttributeReference) node).exprId()) != null;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      return byId.get(((AttributeReference) node).exprId());
    }
  }
}
