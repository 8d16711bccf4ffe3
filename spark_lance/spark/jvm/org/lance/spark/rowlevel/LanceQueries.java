// The subqueries of a statement that give a value and name columns of the table or of the source of a MERGE.
//
// Compiled in the driver by Janino.

package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import scala.collection.immutable.Seq;

/** The subqueries that are computed as columns of the rows whose columns they name. */
public final class LanceQueries {
  private static final String QUERY = "__lance_query_";
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;
  // Identity of a column -> its name, and the alias of these rows where both are joined.
  private final Map ofTable;
  private final String table;
  private final Map ofSource;
  private final String source;
  // The rows whose columns a subquery names, the name of its column, and the subquery.
  private final List queries = new ArrayList();

  public LanceQueries(Map ofTable, String table, Map ofSource, String source) {
    this.ofTable = ofTable;
    this.table = table;
    this.ofSource = ofSource;
    this.source = source;
  }

  // The rows of a frame of the table ("target"), of the source, or of both joined ("pairs"), with a column for each
  // subquery that gives a value and names columns of just these. Spark's analyzer does not take what its optimizer has
  // made of such a subquery, but the optimizer's next step makes joins of it, which the analyzer takes.
  public Object attach(Object frame, String rows) {
    Dataset given = (Dataset) frame;
    LogicalPlan plan = given.queryExecution().analyzed();
    Seq columns = NONE;
    Map byId = new HashMap();
    for (int i = 0; i < plan.output().size(); i++) {
      columns = (Seq) columns.appended(plan.output().apply(i));
    }
    boolean some = false;
    for (int i = 0; i < queries.size(); i++) {
      Object[] query = (Object[]) queries.get(i);
      if (!query[0].equals(rows)) {
        continue;
      }
      if (!some) {
        boolean both = rows.equals("pairs");
        if (!rows.equals("source")) {
          place(plan, ofTable, both ? table : null, byId);
        }
        if (!rows.equals("target")) {
          place(plan, ofSource, both ? source : null, byId);
        }
        some = true;
      }
      Expression placed = (Expression) ((Expression) query[2]).transformDown(new Placing(byId));
      columns = (Seq) columns.appended(
          new Alias(placed, (String) query[1], NamedExpression.newExprId(), NONE, scala.Option.empty(), NONE));
    }
    if (!some) {
      return frame;
    }
    LogicalPlan joined = RewriteCorrelatedScalarSubquery.apply(new Project(columns, plan));
    return Dataset$.MODULE$.ofRows(given.sparkSession(), joined);
  }

  // Maps identities to the columns of a plan that have these names, behind an alias if there is one.
  private static void place(LogicalPlan plan, Map names, String alias, Map byId) {
    Map byName = new HashMap();
    for (int i = 0; i < plan.output().size(); i++) {
      Attribute column = (Attribute) plan.output().apply(i);
      if (alias == null || (column.qualifier().size() == 1 && column.qualifier().apply(0).equals(alias))) {
        byName.put(column.name(), column);
      }
    }
    for (Iterator i = names.entrySet().iterator(); i.hasNext(); ) {
      Map.Entry named = (Map.Entry) i.next();
      byId.put(named.getKey(), byName.get(named.getValue()));
    }
  }

  // Adds such a subquery, and returns the name of its column.
  public UnresolvedAttribute add(Expression subquery) {
    boolean ofOne = needed(subquery, ofSource).isEmpty();
    String rows = ofOne ? "target" : needed(subquery, ofTable).isEmpty() ? "source" : "pairs";
    Object[] query = {rows, QUERY + queries.size(), subquery};
    queries.add(query);
    return new UnresolvedAttribute((Seq) NONE.appended(query[1]));
  }

  // Refuses what only joined rows could tell where it is to say which rows are joined.
  public void refusePaired(Expression condition) {
    if (condition instanceof SubqueryExpression || condition instanceof InSubquery) {
      if (!needed(condition, ofTable).isEmpty() && !needed(condition, ofSource).isEmpty()) {
        throw new UnsupportedOperationException(
            "the condition of MERGE takes no subquery that names columns of both the table and the source: write it "
                + "into WHEN MATCHED AND ..., or let the source compute its part, as in USING (SELECT s.*, (SELECT "
                + "max(x) FROM r WHERE r.k = s.k) AS m FROM s) AS s");
      }
    }
    for (int i = 0; i < condition.children().size(); i++) {
      refusePaired((Expression) condition.children().apply(i));
    }
  }

  // The names of those columns among some that an expression needs.
  public static Set needed(Expression expression, Map names) {
    Needing needing = new Needing(names);
    expression.transformDown(needing);
    return needing.needs;
  }

  /** Notes the columns in an expression that are among some, and changes nothing. */
  private static final class Needing extends scala.runtime.AbstractPartialFunction {
    private final Map names;
    final Set needs = new LinkedHashSet();

    Needing(Map names) {
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

  /** Replaces columns by those of a frame. */
  private static final class Placing extends scala.runtime.AbstractPartialFunction {
    private final Map byId;

    Placing(Map byId) {
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
