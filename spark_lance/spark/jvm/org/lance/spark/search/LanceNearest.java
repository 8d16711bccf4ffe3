package org.lance.spark.search;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.ml.linalg.Vector;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import scala.collection.immutable.Seq;

/**
 * Reads only the rows that an index finds for {@code ORDER BY distance(column, constant) LIMIT k}.
 *
 * <p>The table needs an index of that metric. Spark still sorts the rows by their exact distances. The rule is off
 * unless a session's setting turns it on (LanceSessionRule), because an index may miss rows.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceNearest extends Rule {
  public LanceNearest() {}

  public TreeNode apply(TreeNode plan) {
    return ((LogicalPlan) plan).transformDown(Seqs.partial(new LimitRewrite()));
  }

  /** Replaces the table under a limit and a sort by distance. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class LimitRewrite extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof GlobalLimit;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      LogicalPlan replacement = node instanceof GlobalLimit ? replace((GlobalLimit) node) : null;
      return replacement == null ? otherwise.apply(node) : replacement;
    }

    private static LogicalPlan replace(GlobalLimit limit) {
      if (!(limit.limitExpr() instanceof Literal) || !(limit.child() instanceof LocalLimit)) {
        return null;
      }
      LogicalPlan input = ((LocalLimit) limit.child()).child();
      while (input instanceof Project) {
        input = ((Project) input).child();
      }
      if (!(input instanceof Sort) || ((Sort) input).order().size() != 1) {
        return null;
      }
      Sort sort = (Sort) input;
      SortOrder order = (SortOrder) sort.order().apply(0);
      LogicalPlan leaf = sort.child();
      Expression distance = order.child();
      while (leaf instanceof Project) {
        distance = resolveAlias(distance, (Project) leaf);
        leaf = ((Project) leaf).child();
      }
      if (order.direction() != Ascending$.MODULE$ || !(leaf instanceof DataSourceV2Relation)) {
        return null;
      }
      Match match = Match.of(distance);
      DataSourceV2Relation relation = (DataSourceV2Relation) leaf;
      LogicalPlan rows =
          match == null ? null : nearestRows(relation, match, (Number) ((Literal) limit.limitExpr()).value());
      return rows == null ? null : (LogicalPlan) limit.transformDown(Seqs.partial(new PlanReplacement(relation, rows)));
    }

    /** Returns the expression that a projection computes for an attribute; otherwise the expression itself. */
    private static Expression resolveAlias(Expression expression, Project project) {
      for (int i = 0; expression instanceof Attribute && i < project.projectList().size(); i++) {
        Object column = project.projectList().apply(i);
        if (column instanceof Alias && ((Alias) column).exprId().equals(((Attribute) expression).exprId())) {
          return ((Alias) column).child();
        }
      }
      return expression;
    }

    /** Returns the rows that the index finds, with the table's column names; null if no index has the metric. */
    private static LogicalPlan nearestRows(DataSourceV2Relation relation, Match match, Number k) {
      if (!(relation.table() instanceof LanceTable) || !relation.options().isEmpty()) {
        return null;
      }
      LanceTable table = (LanceTable) relation.table();
      // Tables without hidden columns are metadata tables.
      if (table.metadataColumns().length == 0 || k.intValue() < 1) {
        return null;
      }
      Map<String, Object> question = Bridge.question(Protocol.NEAREST);
      question.put(Protocol.DISPLAY_NAME, table.name());
      question.put(Protocol.READS, table.options());
      question.put(Protocol.VERSION, table.version());
      question.put(Protocol.COLUMN, match.column.name());
      question.put(Protocol.VECTOR, match.vector);
      question.put(Protocol.METRIC, match.metric);
      question.put(Protocol.K, k);
      List<Object> names = new ArrayList<>();
      for (AttributeReference attribute : Seqs.view(relation.output())) {
        names.add(((Attribute) attribute).name());
      }
      question.put(Protocol.COLUMNS, names);
      Map<String, Object> answer = Json.object(Bridge.ask(question, null));
      if (answer == null) {
        return null;
      }
      DataSourceV2Relation rows = LanceSearch.relation(answer);
      List<NamedExpression> columns = new ArrayList<>();
      for (int i = 0; i < relation.output().size(); i++) {
        Attribute column = (Attribute) relation.output().apply(i);
        Seq<String> none = Seqs.empty();
        columns.add(
            new Alias(
                (Expression) rows.output().apply(i), column.name(), column.exprId(), column.qualifier(),
                scala.Option.empty(), none));
      }
      return new Project(Seqs.copy(columns), rows);
    }
  }

  /** Replaces one plan by another one. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class PlanReplacement extends scala.runtime.AbstractPartialFunction {
    private final LogicalPlan oldPlan;
    private final LogicalPlan newPlan;

    PlanReplacement(LogicalPlan oldPlan, LogicalPlan newPlan) {
      this.oldPlan = oldPlan;
      this.newPlan = newPlan;
    }

    public boolean isDefinedAt(Object node) {
      return node == oldPlan;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      return node == oldPlan ? newPlan : otherwise.apply(node);
    }
  }

  /** The distance of a column to a constant, as LanceDistance builds it. */
  public static final class Match {
    final String metric;
    final AttributeReference column;
    final List<Object> vector;

    private Match(String metric, AttributeReference column, List<Object> vector) {
      this.metric = metric;
      this.column = column;
      this.vector = vector;
    }

    /** Returns the match of a distance expression; null for other expressions. */
    static Match of(Expression expression) {
      Expression distance = expression;
      while (distance instanceof If || distance instanceof Cast) {
        distance = distance instanceof If ? ((If) distance).falseValue() : ((Cast) distance).child();
      }
      if (distance instanceof StaticInvoke && ((StaticInvoke) distance).functionName().equals("sqdist")) {
        StaticInvoke call = (StaticInvoke) distance;
        return of("l2", (Expression) call.arguments().apply(0), (Expression) call.arguments().apply(1));
      }
      if (!(distance instanceof Subtract)) {
        return null;
      }
      Expression product = ((Subtract) distance).right();
      boolean isCosine = product instanceof Divide;
      if (isCosine) {
        product = ((Divide) product).left();
      }
      if (!(product instanceof Invoke) || !((Invoke) product).functionName().equals("dot")) {
        return null;
      }
      Invoke call = (Invoke) product;
      return of(isCosine ? "cosine" : "dot", call.targetObject(), (Expression) call.arguments().apply(0));
    }

    private static Match of(String metric, Expression left, Expression right) {
      AttributeReference column = column(left instanceof Literal ? right : left);
      Expression constant = left instanceof Literal ? left : right;
      Object value = constant instanceof Literal ? ((Literal) constant).value() : null;
      if (column == null || !(value instanceof Vector)) {
        return null;
      }
      double[] numbers = ((Vector) value).toArray();
      List<Object> vector = new ArrayList<>();
      for (double number : numbers) {
        vector.add(number);
      }
      return new Match(metric, column, vector);
    }

    private static AttributeReference column(Expression dense) {
      if (!(dense instanceof StaticInvoke) || ((StaticInvoke) dense).arguments().size() != 1) {
        return null;
      }
      Object values = ((StaticInvoke) dense).arguments().apply(0);
      Expression array = values instanceof Invoke ? ((Invoke) values).targetObject() : null;
      if (array instanceof Cast) {
        array = ((Cast) array).child();
      }
      return array instanceof AttributeReference ? (AttributeReference) array : null;
    }
  }
}
