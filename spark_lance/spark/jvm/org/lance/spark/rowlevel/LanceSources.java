package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import scala.collection.immutable.Seq;

/**
 * Sources of MERGE WITH SCHEMA EVOLUTION with columns whose types the table must not follow (Spark before 4.3).
 *
 * <p>These releases demand every difference of types between a source and a table as a change of the table.
 * LanceStatements calls this class before that check. It casts such columns of the source by store assignment, so that
 * Spark finds no difference. A column is not cast if the statement also uses it in a way in which the cast might
 * change the result.
 */
public final class LanceSources {

  private LanceSources() {}

  // The statement with a source whose columns fit; the same statement where nothing is to be cast.
  public static LogicalPlan castSource(LogicalPlan plan) {
    MergeIntoTable merge = (MergeIntoTable) plan;
    LanceTable table = table(merge.targetTable());
    if (Shim.asksForSchemaChanges() || table == null) {
      return plan;
    }
    LogicalPlan source = analyzed(merge.sourceTable());
    if (!source.resolved()) {
      return plan;
    }
    Map<String, Object> question = table.question(Protocol.FITTING_TYPES);
    question.put(Protocol.ROWS, source.schema().json());
    Map<String, DataType> casts = casts(Json.texts(Bridge.ask(question, null)), source, merge);
    if (casts.isEmpty()) {
      return plan;
    }
    boolean isAliased = source instanceof SubqueryAlias;
    Seq<NamedExpression> columns = Seqs.empty();
    for (Attribute column : Seqs.view(source.output())) {
      columns = Seqs.append(columns, cast(column, (DataType) casts.get(column.name().toLowerCase())));
    }
    LogicalPlan cast = new Project(columns, source);
    LogicalPlan newSource = isAliased ? new SubqueryAlias(((SubqueryAlias) source).identifier(), cast) : cast;
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = plan.productElement(i);
      parts[i] = part == merge.sourceTable() ? newSource : part;
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  // A column cast to a type; the column itself if there is no type.
  private static NamedExpression cast(Attribute column, DataType type) {
    if (type == null) {
      return column;
    }
    Expression value = Cast$.MODULE$.apply(column, type, true);
    return new Alias(value, column.name(), NamedExpression.newExprId(), Seqs.empty(), scala.Option.empty(), Seqs.empty());
  }

  // The types, by the names of columns in lower case, to which columns can be cast and may be.
  private static Map<String, DataType> casts(Map<String, String> types, LogicalPlan source, MergeIntoTable merge) {
    Map<String, DataType> casts = new HashMap<>();
    String target = name(merge.targetTable());
    for (Attribute column : Seqs.view(source.output())) {
      if (types.containsKey(column.name())) {
        DataType type = DataType.fromJson((String) types.get(column.name()));
        String name = column.name().toLowerCase();
        if (Cast$.MODULE$.canANSIStoreAssign(column.dataType(), type) && new Uses(name, column.dataType(), type, target).fit(merge)) {
          casts.put(name, type);
        }
      }
    }
    return casts;
  }

  private static LogicalPlan analyzed(LogicalPlan plan) {
    return plan.resolved() ? plan : SparkSession.active().sessionState().analyzer().execute(plan);
  }

  // The Lance table that a plan names; null if it is none.
  private static LanceTable table(LogicalPlan target) {
    LogicalPlan plan = target;
    while (plan instanceof SubqueryAlias) {
      plan = ((SubqueryAlias) plan).child();
    }
    if (plan instanceof UnresolvedRelation) {
      UnresolvedRelation relation = (UnresolvedRelation) plan;
      plan = SparkSession.active().sessionState().analyzer().execute(
          relation.copy(relation.multipartIdentifier(), new CaseInsensitiveStringMap(new HashMap<>()), false));
    }
    // Spark pads CHAR columns of reads in a Project.
    while (plan instanceof SubqueryAlias || plan instanceof Project) {
      plan = (LogicalPlan) plan.children().apply(0);
    }
    Object table = plan instanceof DataSourceV2Relation ? ((DataSourceV2Relation) plan).table() : null;
    return table instanceof LanceTable ? (LanceTable) table : null;
  }

  // The name that a statement has for its target.
  private static String name(LogicalPlan target) {
    if (target instanceof SubqueryAlias) {
      return ((SubqueryAlias) target).identifier().name();
    }
    if (target instanceof UnresolvedRelation) {
      Seq<String> parts = ((UnresolvedRelation) target).multipartIdentifier();
      return (String) parts.apply(parts.size() - 1);
    }
    return "";
  }

  /** How a statement uses a column of the source that is to be cast. */
  private static final class Uses {
    private final String name;
    private final DataType from;
    private final DataType to;
    private final String target;

    Uses(String name, DataType from, DataType to, String target) {
      this.name = name;
      this.from = from;
      this.to = to;
      this.target = target;
    }

    // Whether it means the same with the cast wherever it is used.
    boolean fit(MergeIntoTable merge) {
      Seq<?>[] actionLists = {merge.matchedActions(), merge.notMatchedActions(), merge.notMatchedBySourceActions()};
      List<Expression> expressions = new ArrayList<>();
      expressions.add(merge.mergeCondition());
      for (Seq<?> actions : actionLists) {
        for (Object action : Seqs.view(actions)) {
          expressions.addAll(Seqs.view(((MergeAction) action).children()));
        }
      }
      for (Expression expression : expressions) {
        if (!fits(expression)) {
          return false;
        }
      }
      return true;
    }

    private boolean fits(Expression expression) {
      if (expression instanceof SubqueryExpression) {
        return false;
      }
      if (expression instanceof UnresolvedAttribute) {
        Seq<String> parts = ((UnresolvedAttribute) expression).nameParts();
        boolean ofTarget = parts.size() > 1 && target.equalsIgnoreCase((String) parts.apply(parts.size() - 2));
        return ofTarget || !isColumn(expression);
      }
      if (expression instanceof Assignment) {
        Assignment assignment = (Assignment) expression;
        boolean copies = isColumn(assignment.key()) && isColumn(assignment.value());
        return copies || fits(assignment.value());
      }
      if (expression instanceof EqualTo || expression instanceof EqualNullSafe) {
        Seq<Expression> sides = expression.children();
        if (isColumn((Expression) sides.apply(0)) && isColumn((Expression) sides.apply(1))) {
          return comparesEqually();
        }
      }
      boolean fit = expression.children().size() > 0 || expression instanceof org.apache.spark.sql.catalyst.expressions.LeafExpression;
      for (Expression child : Seqs.view(expression.children())) {
        fit = fit && fits(child);
      }
      return fit;
    }

    private boolean isColumn(Expression expression) {
      if (!(expression instanceof UnresolvedAttribute)) {
        return false;
      }
      Seq<String> parts = ((UnresolvedAttribute) expression).nameParts();
      return name.equalsIgnoreCase((String) parts.apply(parts.size() - 1));
    }

    // Whether the table's column equals the same values before and after the cast.
    private boolean comparesEqually() {
      boolean dates = from instanceof DateType && (to instanceof TimestampType || to instanceof TimestampNTZType);
      return dates
          || (from instanceof IntegralType && to instanceof IntegralType)
          || (from instanceof NumericType && to instanceof DoubleType);
    }
  }
}
