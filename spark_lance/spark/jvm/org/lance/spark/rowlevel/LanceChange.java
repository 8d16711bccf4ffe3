package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAlias;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.catalyst.optimizer.PullupCorrelatedPredicates;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions;
import org.apache.spark.sql.catalyst.optimizer.RewriteWithExpression;
import org.apache.spark.sql.catalyst.plans.Cross$;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.DeleteAction;
import org.apache.spark.sql.catalyst.plans.logical.InsertAction;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UpdateAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.ExpressionUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.LanceSessionRule;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;

/**
 * A DELETE, UPDATE or MERGE in the form that the driver's Python receives. LanceRowLevel makes one for each statement.
 *
 * <p>Expressions stay expressions, because text does not preserve Python functions, lambdas and subqueries. Only
 * columns of the table and the source become names, behind the aliases __lance_target and __lance_rows. Python puts
 * the expressions into DataFrames with these aliases.
 */
public final class LanceChange {
  private static final String TARGET = "__lance_target";
  private static final String SOURCE = "__lance_rows";

  public final LanceTarget target;
  public final Map<String, Object> question;
  /** The columns of the result; empty in sessions that were created before {@code enable}. */
  public final Seq<Attribute> counts;
  final List<Column> columns = new ArrayList<>();
  private final LanceQueries queries;
  // Id of a column of the source -> its name in Python.
  private final Map<ExprId, Object> sourceNames = new HashMap<>();
  LogicalPlan source = null;
  // The tables as the text of the statement names them: the target, joined with the source of a MERGE.
  private LogicalPlan textTables = new OneRowRelation();

  public LanceChange(LanceTarget target, Seq<Attribute> counts) {
    this.target = target;
    this.counts = counts;
    queries = new LanceQueries(target.names, TARGET, sourceNames, SOURCE);
    question = Bridge.question(Protocol.CHANGE_ROWS);
    question.put(Protocol.KIND, target.kind.toLowerCase());
    question.put(Protocol.DISPLAY_NAME, target.relation.table().name());
    question.put(Protocol.OPTIONS, target.options);
  }

  public String toString() {
    Object path = target.options.get("path");
    return target.kind + " " + target.relation.table().name() + (path == null ? "" : " at " + path);
  }

  /** Adds the source, condition and clauses of a MERGE to the request. */
  public void merge(MergeIntoTable merge) {
    if (merge.withSchemaEvolution() && !target.evolves()) {
      throw new UnsupportedOperationException(
          "MERGE WITH SCHEMA EVOLUTION needs a table of a catalog, by name or path, and Spark 4.1 or newer: use "
              + "LanceTable.merge(...).withSchemaEvolution()");
    }
    source = merge.sourceTable();
    List<Object> names = new ArrayList<>();
    for (int i = 0; i < source.output().size(); i++) {
      names.add("c" + i);
      sourceNames.put(((Attribute) source.output().apply(i)).exprId(), "c" + i);
    }
    question.put(Protocol.SOURCE, names);
    queries.refuseSubqueryOfBoth(merge.mergeCondition());
    question.put(Protocol.CONDITION, expression(merge.mergeCondition()));
    question.put(Protocol.EQUAL, equalities(merge.mergeCondition(), new ArrayList<>()));
    List<Object> clauses = new ArrayList<>();
    question.put(Protocol.CLAUSES, clauses);
    LogicalPlan syntax = parseText(merge);
    MergeIntoTable mergeSyntax = syntax instanceof MergeIntoTable ? (MergeIntoTable) syntax : merge;
    textTables = new Join(
        mergeSyntax.targetTable(), mergeSyntax.sourceTable(), Cross$.MODULE$, scala.Option.empty(), JoinHint.NONE());
    clauses("matched", merge.matchedActions(), mergeSyntax.matchedActions(), clauses);
    clauses("not matched", merge.notMatchedActions(), mergeSyntax.notMatchedActions(), clauses);
    clauses(
        "not matched by source", merge.notMatchedBySourceActions(), mergeSyntax.notMatchedBySourceActions(), clauses);
  }

  /** Adds the condition and values of an UPDATE to the request. */
  public void update(UpdateTable update) {
    LogicalPlan syntax = parseText(update);
    UpdateTable updateSyntax = syntax instanceof UpdateTable ? (UpdateTable) syntax : update;
    textTables = updateSyntax.table();
    scala.Option<Expression> condition = update.condition();
    question.put(Protocol.CONDITION, condition.isEmpty() ? null : condition((Expression) condition.get()));
    question.put(Protocol.VALUES, values(update.assignments(), updateSyntax.assignments()));
  }

  private void clauses(String rows, Seq<MergeAction> actions, Seq<MergeAction> textActions, List<Object> clauses) {
    for (int i = 0; i < actions.size(); i++) {
      MergeAction action = (MergeAction) actions.apply(i);
      Map<String, Object> clause = new LinkedHashMap<>();
      clause.put(Protocol.ROWS, rows);
      scala.Option<Expression> condition = action.condition();
      clause.put(Protocol.CONDITION, condition.isEmpty() ? null : expression((Expression) condition.get()));
      if (action instanceof DeleteAction) {
        clause.put(Protocol.KIND, "delete");
      } else if (action instanceof UpdateAction) {
        clause.put(Protocol.KIND, "update");
        clause.put(Protocol.VALUES, values(((UpdateAction) action).assignments(), assignments(textActions.apply(i))));
      } else if (action instanceof InsertAction) {
        clause.put(Protocol.KIND, "insert");
        clause.put(Protocol.VALUES, values(((InsertAction) action).assignments(), assignments(textActions.apply(i))));
      } else {
        throw new IllegalStateException("a clause of an unknown kind: " + action);
      }
      clauses.add(clause);
    }
  }

  /** Returns a condition for Python; null if it is true for every row. */
  public Map<String, Object> condition(Expression condition) {
    boolean isTrue = condition instanceof Literal && Boolean.TRUE.equals(((Literal) condition).value());
    return isTrue ? null : expression(condition);
  }

  private static Seq<Assignment> assignments(Object action) {
    if (action instanceof UpdateAction) {
      return ((UpdateAction) action).assignments();
    }
    return action instanceof InsertAction ? ((InsertAction) action).assignments() : Seqs.<Assignment>empty();
  }

  /**
   * Returns pairs of the path of a column or field and its value.
   *
   * <p>LanceAssignments resolves the values. In sessions older than that rule, and with schema evolution, the values
   * come without Spark's casts, and Python casts them.
   *
   * @param textAssignments the assignments as the statement's text has them
   */
  public List<Object> values(Seq<Assignment> assignments, Seq<Assignment> textAssignments) {
    List<Object> pairs = new ArrayList<>();
    for (int i = 0; i < assignments.size(); i++) {
      Assignment assignment = (Assignment) assignments.apply(i);
      boolean isResolved = LanceAssignments.withoutCasts(assignment.value()) instanceof LanceAssignments.Value;
      Expression value = LanceAssignments.withoutCasts(assignment.value());
      if (isResolved) {
        value = ((LanceAssignments.Value) value).child();
      } else if (hasConstantStruct(value)) {
        value = valueFromText(assignment, i < textAssignments.size() ? ((Assignment) textAssignments.apply(i)).value() : null);
      }
      Object[] pair = {path(assignment.key()), expression(value)};
      pairs.add(Arrays.asList(pair));
    }
    return pairs;
  }

  private List<Object> path(Expression key) {
    if (key instanceof GetStructField) {
      List<Object> parts = path(((GetStructField) key).child());
      parts.add(LanceRenaming.field(key));
      return parts;
    }
    Object name = key instanceof AttributeReference ? target.names.get(((AttributeReference) key).exprId()) : null;
    if (name == null) {
      throw new UnsupportedOperationException(
          target.kind + " cannot set " + key.sql() + ": only columns of the table and fields of structs can be set");
    }
    List<Object> parts = new ArrayList<>();
    parts.add(name);
    return parts;
  }

  /**
   * Resolves a value again from the statement's text. Spark has cast a constant struct by position, so fields in
   * another order would be stored in the wrong places. Columns in the value belong to the tables that the text names.
   */
  private Expression valueFromText(Assignment assignment, Expression textValue) {
    try {
      if (textValue != null && !textValue.resolved()) {
        Seq<NamedExpression> projectList = Seqs.of((NamedExpression) new UnresolvedAlias(textValue, scala.Option.empty()));
        LogicalPlan row = new Project(projectList, textTables);
        LogicalPlan analyzed = Dataset$.MODULE$.ofRows(SparkSession.active(), row).queryExecution().analyzed();
        addTables((LogicalPlan) analyzed.children().apply(0));
        // Applies the optimizer's rules that the statement has passed.
        analyzed = PullupCorrelatedPredicates.apply(RewriteWithExpression.apply(ReplaceExpressions.apply(analyzed)));
        Project value = (Project) LanceCommonExpressions.inlineCommonExpressions(analyzed, ((Project) analyzed).child());
        return ((Alias) value.projectList().apply(0)).child();
      }
    } catch (Exception unresolved) {
      LoggerFactory.getLogger("spark_lance").debug("a constant was not found in its statement: " + unresolved);
    }
    throw new UnsupportedOperationException(
        target.kind + " cannot set " + assignment.key().sql() + " to this constant struct: set its fields, such as "
            + assignment.key().sql() + ".field = 1");
  }

  /** Adds the columns of tables that were resolved again to the columns of target and source. */
  private void addTables(LogicalPlan analyzed) {
    LogicalPlan targetPlan = analyzed instanceof Join ? ((Join) analyzed).left() : analyzed;
    LanceTarget textTarget = new LanceTarget(target.kind);
    if (textTarget.resolve(targetPlan)) {
      target.names.putAll(textTarget.names);
      target.identities.addAll(textTarget.identities);
    }
    Seq<Attribute> sourceOutput = analyzed instanceof Join ? ((Join) analyzed).right().output() : Seqs.<Attribute>empty();
    for (int i = 0; i < sourceOutput.size(); i++) {
      sourceNames.put(((Attribute) sourceOutput.apply(i)).exprId(), "c" + i);
    }
  }

  private static boolean hasConstantStruct(Expression value) {
    if (value instanceof Literal) {
      return ((Literal) value).value() != null && value.dataType().existsRecursively(Seqs.function(new IsStruct()));
    }
    boolean result = false;
    for (Expression child : Seqs.view(value.children())) {
      result = result || hasConstantStruct(child);
    }
    return result;
  }

  /**
   * Adds an expression to {@code columns}.
   *
   * @return its number there, the target's columns that it needs, its text, and the source's column if it is nothing
   *     else
   */
  private Map<String, Object> expression(Expression expression) {
    LanceRenaming renaming = new LanceRenaming(target, TARGET, sourceNames, SOURCE, queries);
    Expression namedExpression = (Expression) expression.transformDown(Seqs.partial(renaming));
    Map<String, Object> result = new LinkedHashMap<>();
    result.put(Protocol.COLUMN, columns.size());
    result.put(Protocol.NEEDS, new ArrayList<>(renaming.needs));
    result.put(Protocol.TEXT, text(expression));
    result.put(Protocol.OF_SOURCE, columnOf(expression, sourceNames));
    columns.add(ExpressionUtils$.MODULE$.column(namedExpression));
    return result;
  }

  private List<Object> equalities(Expression condition, List<Object> pairs) {
    if (condition instanceof And) {
      equalities(((And) condition).left(), pairs);
      return equalities(((And) condition).right(), pairs);
    }
    if (condition instanceof EqualTo) {
      EqualTo equal = (EqualTo) condition;
      equality(equal.left(), equal.right(), pairs);
      equality(equal.right(), equal.left(), pairs);
    }
    return pairs;
  }

  private void equality(Expression targetSide, Expression sourceSide, List<Object> pairs) {
    Object[] pair = {columnOf(targetSide, target.names), columnOf(sourceSide, sourceNames)};
    if (pair[0] != null && pair[1] != null) {
      pairs.add(Arrays.asList(pair));
    }
  }

  /**
   * Returns the column that an expression is, apart from NOT NULL checks and widening casts of integers; null for
   * other expressions.
   */
  private static Object columnOf(Expression expression, Map<ExprId, Object> names) {
    if (expression instanceof AssertNotNull) {
      return columnOf(((AssertNotNull) expression).child(), names);
    }
    if (expression instanceof Cast) {
      Expression child = ((Cast) expression).child();
      boolean widens = expression.dataType() instanceof IntegralType && child.dataType() instanceof IntegralType
          && expression.dataType().defaultSize() >= child.dataType().defaultSize();
      return widens ? columnOf(child, names) : null;
    }
    return expression instanceof AttributeReference ? names.get(((AttributeReference) expression).exprId()) : null;
  }

  private String text(Expression expression) {
    try {
      return ((Expression) expression.transformDown(Seqs.partial(new ColumnNames()))).sql();
    } catch (RuntimeException noText) {
      return expression.toString();
    }
  }

  /** Adds the columns of subqueries to a frame. Python calls it; see {@link LanceQueries#attach}. */
  public Object attach(Object frame, String rows) {
    return queries.attach(frame, rows);
  }

  /**
   * Runs the statement in the driver's Python, and refreshes views and caches of the table.
   *
   * @return the row of {@link #counts}, if there are any
   */
  public Seq<InternalRow> run(SparkSession session) {
    Map<String, Object> answer = ask(session);
    refresh(session);
    if (counts.isEmpty()) {
      return Seqs.empty();
    }
    Object[] values = new Object[counts.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = ((Number) answer.get(((Attribute) counts.apply(i)).name())).longValue();
    }
    return Seqs.<InternalRow>of(new GenericInternalRow(values));
  }

  private Map<String, Object> ask(SparkSession session) {
    Map<String, Object> subject = new HashMap<>();
    subject.put(Protocol.SESSION, session);
    subject.put(Protocol.COLUMNS, columns);
    subject.put(Protocol.CHANGE, this);
    if (source != null) {
      subject.put(Protocol.SOURCE, Dataset$.MODULE$.ofRows(session, source));
    }
    question.put(Protocol.SESSION, session.sessionUUID());
    try {
      return Json.object(Bridge.ask(question, subject));
    } catch (RuntimeException problem) {
      // An error of a Spark job reaches the user unchanged.
      Object thrown = subject.get(Protocol.THROWN);
      Platform.throwException(thrown == null ? problem : (Throwable) thrown);
      throw problem;
    }
  }

  private void refresh(SparkSession session) {
    LanceSessionRule.ViewRefresh.mark(target.relation);
    DataSourceV2Relation relation = target.relation;
    boolean byName = relation.catalog().isDefined() && relation.identifier().isDefined();
    if (!byName || relation.identifier().get() instanceof Bridge.LoadableIdentifier) {
      session.sharedState().cacheManager().recacheByPlan(session, relation);
      return;
    }
    Identifier name = (Identifier) relation.identifier().get();
    List<Object> parts = new ArrayList<>();
    parts.add(((CatalogPlugin) relation.catalog().get()).name());
    parts.addAll(Arrays.asList((Object[]) name.namespace()));
    parts.add(name.name());
    Shim.recacheTable(session, parts);
  }

  /**
   * Parses the text of a statement again.
   *
   * @return the unresolved plan; null if there is no text
   */
  public static LogicalPlan parseText(LogicalPlan plan) {
    Origin origin = plan.origin();
    if (origin.sqlText().isEmpty() || origin.startIndex().isEmpty() || origin.stopIndex().isEmpty()) {
      return null;
    }
    String text = (String) origin.sqlText().get();
    int start = (Integer) origin.startIndex().get();
    int stop = (Integer) origin.stopIndex().get();
    try {
      return SparkSession.active().sessionState().sqlParser().parsePlan(text.substring(start, stop + 1));
    } catch (Exception noStatement) {
      LoggerFactory.getLogger("spark_lance").debug("a statement has no text of its own: " + noStatement);
      return null;
    }
  }

  /** Accepts struct types. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  private static final class IsStruct extends scala.runtime.AbstractFunction1 {
    public Object apply(Object type) {
      return type instanceof StructType;
    }
  }

  /** Replaces columns by their names, for the text of an expression. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class ColumnNames extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!(node instanceof AttributeReference)) {
        return otherwise.apply(node);
      }
      return new UnresolvedAttribute(Seqs.of(((AttributeReference) node).name()));
    }
  }
}
