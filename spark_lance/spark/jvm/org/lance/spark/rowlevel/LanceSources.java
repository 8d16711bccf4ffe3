package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
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
import org.apache.spark.sql.catalyst.plans.logical.InsertAction;
import org.apache.spark.sql.catalyst.plans.logical.InsertStarAction;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UpdateStarAction;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.catalog.LanceTableCatalog;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import scala.collection.immutable.Seq;

/**
 * Rewrites the source of MERGE: computed columns that it lacks, and columns whose types the table must not take over.
 *
 * <p>LanceStatements calls this class before Spark resolves the statement. UPDATE SET * and INSERT * leave out generated
 * and identity columns that the source lacks. Spark would require them; the commit computes them.
 *
 * <p>Before 4.2, WITH SCHEMA EVOLUTION turns every difference of types between source and table into a change of the
 * table. This class casts such columns by store assignment, so that Spark finds no difference. It does not cast a column
 * if the cast might change the result of another part of the statement.
 */
public final class LanceSources {

  private LanceSources() {}

  /**
   * Returns a MERGE that Spark can resolve.
   *
   * @return the statement itself if no source column has to be cast or left out
   */
  public static LogicalPlan fitSource(LogicalPlan plan) {
    MergeIntoTable merge = (MergeIntoTable) plan;
    return merge.withSchemaEvolution() ? castSource(merge) : expandWithoutComputed(merge);
  }

  /**
   * Expands UPDATE SET * and INSERT * if the source lacks generated or identity columns, and leaves these out.
   *
   * @return the statement itself if there are no such columns
   */
  @SuppressWarnings("deprecation") // Columns have no public way to a schema.
  private static LogicalPlan expandWithoutComputed(MergeIntoTable merge) {
    LanceTable table = table(merge.targetTable());
    if (table == null || computedColumns(table.schema()).isEmpty()) {
      return merge;
    }
    LogicalPlan source = analyzed(merge.sourceTable());
    Map<String, Attribute> values = source.resolved() ? values(table.schema(), source) : null;
    if (values == null || values.size() == table.schema().length()) {
      return merge; // Spark refuses the statement, or needs no help
    }
    Map<Object, Object> replacements = new IdentityHashMap<>();
    replacements.put(merge.sourceTable(), source);
    for (Seq<?> actions : Arrays.<Seq<?>>asList(merge.matchedActions(), merge.notMatchedActions())) {
      Seq<Object> expandedActions = Seqs.empty();
      for (Object action : Seqs.view(actions)) {
        expandedActions = Seqs.append(expandedActions, expand(action, table.schema(), values));
      }
      replacements.put(actions, expandedActions);
    }
    return copyOf(merge, replacements);
  }

  /** Expands an action for all columns; returns any other action unchanged. */
  private static Object expand(Object action, StructType columns, Map<String, Attribute> values) {
    Seq<Assignment> assignments = Seqs.empty();
    for (StructField column : columns.fields()) {
      if (values.containsKey(column.name())) {
        Expression key = new UnresolvedAttribute(Seqs.<String>of(column.name()));
        assignments = Seqs.append(assignments, new Assignment(key, (Expression) values.get(column.name())));
      }
    }
    if (action instanceof UpdateStarAction) {
      return Shim.updateAction(((UpdateStarAction) action).condition(), assignments);
    }
    return action instanceof InsertStarAction ? new InsertAction(((InsertStarAction) action).condition(), assignments) : action;
  }

  /**
   * Returns the source's columns by the table's columns, without computed columns that the source lacks.
   *
   * @return null if another column is missing, or if a name is ambiguous
   */
  private static Map<String, Attribute> values(StructType columns, LogicalPlan source) {
    boolean isCaseSensitive = ((SQLConf) SQLConf$.MODULE$.get()).caseSensitiveAnalysis();
    List<String> computed = computedColumns(columns);
    Map<String, Attribute> values = new HashMap<>();
    for (StructField column : columns.fields()) {
      for (Attribute value : Seqs.view(source.output())) {
        boolean isNamed = isCaseSensitive ? value.name().equals(column.name()) : value.name().equalsIgnoreCase(column.name());
        if (isNamed && values.put(column.name(), value) != null) {
          return null;
        }
      }
      if (!values.containsKey(column.name()) && !computed.contains(column.name())) {
        return null;
      }
    }
    return values;
  }

  /** Returns the names of the generated and identity columns of a table. */
  private static List<String> computedColumns(StructType columns) {
    List<String> names = new ArrayList<>();
    for (StructField column : columns.fields()) {
      if (column.metadata().contains(LanceTableCatalog.GENERATION_EXPRESSION) || column.metadata().contains(LanceTableCatalog.IDENTITY)) {
        names.add(column.name());
      }
    }
    return names;
  }

  private static LogicalPlan copyOf(LogicalPlan plan, Map<Object, Object> replacements) {
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = plan.productElement(i);
      parts[i] = replacements.containsKey(part) ? replacements.get(part) : part;
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  /**
   * Returns a MERGE whose source columns have the types of the target, as far as casts cannot change its result.
   *
   * @return the statement itself if no column has to be cast
   */
  private static LogicalPlan castSource(MergeIntoTable merge) {
    LanceTable table = table(merge.targetTable());
    if (Shim.asksForSchemaChanges() || table == null) {
      return merge;
    }
    LogicalPlan source = analyzed(merge.sourceTable());
    if (!source.resolved()) {
      return merge;
    }
    Map<String, Object> question = table.question(Protocol.FITTING_TYPES);
    question.put(Protocol.ROWS, source.schema().json());
    Map<String, DataType> casts = casts(Json.texts(Bridge.ask(question, null)), source, merge);
    if (casts.isEmpty()) {
      return merge;
    }
    boolean isAliased = source instanceof SubqueryAlias;
    Seq<NamedExpression> columns = Seqs.empty();
    for (Attribute column : Seqs.view(source.output())) {
      columns = Seqs.append(columns, cast(column, (DataType) casts.get(column.name().toLowerCase())));
    }
    LogicalPlan cast = new Project(columns, source);
    LogicalPlan newSource = isAliased ? new SubqueryAlias(((SubqueryAlias) source).identifier(), cast) : cast;
    Map<Object, Object> replacements = new IdentityHashMap<>();
    replacements.put(merge.sourceTable(), newSource);
    return copyOf(merge, replacements);
  }

  /** Returns a column cast to a type; the column itself if the type is null. */
  private static NamedExpression cast(Attribute column, DataType type) {
    if (type == null) {
      return column;
    }
    Expression value = Cast$.MODULE$.apply(column, type, true);
    return new Alias(value, column.name(), NamedExpression.newExprId(), Seqs.empty(), scala.Option.empty(), Seqs.empty());
  }

  /** Returns the types to which columns can be cast without a change of the result, by column name in lower case. */
  private static Map<String, DataType> casts(Map<String, String> types, LogicalPlan source, MergeIntoTable merge) {
    Map<String, DataType> casts = new HashMap<>();
    String target = name(merge.targetTable());
    for (Attribute column : Seqs.view(source.output())) {
      if (types.containsKey(column.name())) {
        DataType type = DataType.fromJson((String) types.get(column.name()));
        String name = column.name().toLowerCase();
        if (Cast$.MODULE$.canANSIStoreAssign(column.dataType(), type) && new ColumnUses(name, column.dataType(), type, target).fit(merge)) {
          casts.put(name, type);
        }
      }
    }
    return casts;
  }

  private static LogicalPlan analyzed(LogicalPlan plan) {
    return plan.resolved() ? plan : SparkSession.active().sessionState().analyzer().execute(plan);
  }

  /** Returns the Lance table that a plan names; null if there is none. */
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

  /** Returns the name or alias of the target in the statement. */
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

  /** Finds out whether a statement allows a cast of a source column. */
  private static final class ColumnUses {
    private final String name;
    private final DataType from;
    private final DataType to;
    private final String target;

    ColumnUses(String name, DataType from, DataType to, String target) {
      this.name = name;
      this.from = from;
      this.to = to;
      this.target = target;
    }

    /** Returns whether the cast of the column does not change the result of the statement. */
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

    /** Returns whether comparisons with the target's column give the same results before and after the cast. */
    private boolean comparesEqually() {
      boolean dates = from instanceof DateType && (to instanceof TimestampType || to instanceof TimestampNTZType);
      return dates
          || (from instanceof IntegralType && to instanceof IntegralType)
          || (from instanceof NumericType && to instanceof DoubleType);
    }
  }
}
