// A DELETE, UPDATE or MERGE in the form in which the driver's Python receives it.
//
// Expressions stay expressions, because text does not preserve Python functions, lambdas and subqueries. Only the
// columns of table and source in them are replaced, by names behind the aliases __lance_target and __lance_rows.
// Python puts the expressions into DataFrames that have these aliases.
//
// Compiled in the driver by Janino.

package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAlias;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal;
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
import org.lance.spark.load.LanceLate;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;

/** A statement in the form in which Python receives it. */
public final class LanceChange {
  private static final String TARGET = "__lance_target";
  private static final String SOURCE = "__lance_rows";
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;

  public final LanceTarget target;
  public final Map question;
  final List columns = new ArrayList();
  private final LanceQueries queries;
  // Identity of a column of the source -> its name there.
  private final Map others = new HashMap();
  LogicalPlan source = null;
  // What the statement's text names: the table, joined with the source of a MERGE.
  private LogicalPlan tables = new OneRowRelation();

  public LanceChange(LanceTarget target) {
    this.target = target;
    queries = new LanceQueries(target.names, TARGET, others, SOURCE);
    question = Bridge.question(Protocol.CHANGE_ROWS);
    question.put(Protocol.KIND, target.kind.toLowerCase());
    question.put(Protocol.DISPLAY_NAME, target.relation.table().name());
    question.put(Protocol.OPTIONS, target.options);
  }

  public String toString() {
    Object path = target.options.get("path");
    return target.kind + " " + target.relation.table().name() + (path == null ? "" : " at " + path);
  }

  public void merge(MergeIntoTable merge) {
    if (merge.withSchemaEvolution() && !target.evolves()) {
      throw new UnsupportedOperationException(
          "MERGE WITH SCHEMA EVOLUTION needs a table of a catalog, by name or path, and Spark 4.1 or newer: use "
              + "LanceTable.merge(...).withSchemaEvolution()");
    }
    source = merge.sourceTable();
    List names = new ArrayList();
    for (int i = 0; i < source.output().size(); i++) {
      names.add("c" + i);
      others.put(((Attribute) source.output().apply(i)).exprId(), "c" + i);
    }
    question.put(Protocol.SOURCE, names);
    queries.refusePaired(merge.mergeCondition());
    question.put(Protocol.CONDITION, expression(merge.mergeCondition()));
    question.put(Protocol.EQUAL, equalities(merge.mergeCondition(), new ArrayList()));
    List clauses = new ArrayList();
    question.put(Protocol.CLAUSES, clauses);
    LogicalPlan parsed = written(merge);
    MergeIntoTable written = parsed instanceof MergeIntoTable ? (MergeIntoTable) parsed : merge;
    tables = new Join(
        written.targetTable(), written.sourceTable(), Cross$.MODULE$, scala.Option.empty(), JoinHint.NONE());
    clauses("matched", merge.matchedActions(), written.matchedActions(), clauses);
    clauses("not matched", merge.notMatchedActions(), written.notMatchedActions(), clauses);
    clauses(
        "not matched by source", merge.notMatchedBySourceActions(), written.notMatchedBySourceActions(), clauses);
  }

  public void update(UpdateTable update) {
    LogicalPlan parsed = written(update);
    UpdateTable written = parsed instanceof UpdateTable ? (UpdateTable) parsed : update;
    tables = written.table();
    scala.Option condition = update.condition();
    question.put(Protocol.CONDITION, condition.isEmpty() ? null : condition((Expression) condition.get()));
    question.put(Protocol.VALUES, values(update.assignments(), written.assignments()));
  }

  private void clauses(String rows, Seq actions, Seq written, List clauses) {
    for (int i = 0; i < actions.size(); i++) {
      MergeAction action = (MergeAction) actions.apply(i);
      Map clause = new LinkedHashMap();
      clause.put(Protocol.ROWS, rows);
      scala.Option condition = action.condition();
      clause.put(Protocol.CONDITION, condition.isEmpty() ? null : expression((Expression) condition.get()));
      if (action instanceof DeleteAction) {
        clause.put(Protocol.KIND, "delete");
      } else if (action instanceof UpdateAction) {
        clause.put(Protocol.KIND, "update");
        clause.put(Protocol.VALUES, values(((UpdateAction) action).assignments(), assignments(written.apply(i))));
      } else if (action instanceof InsertAction) {
        clause.put(Protocol.KIND, "insert");
        clause.put(Protocol.VALUES, values(((InsertAction) action).assignments(), assignments(written.apply(i))));
      } else {
        throw new IllegalStateException("a clause of an unknown kind: " + action);
      }
      clauses.add(clause);
    }
  }

  // Null for one that is true for every row.
  public Map condition(Expression condition) {
    boolean all = condition instanceof Literal && Boolean.TRUE.equals(((Literal) condition).value());
    return all ? null : expression(condition);
  }

  private static Seq assignments(Object action) {
    if (action instanceof UpdateAction) {
      return ((UpdateAction) action).assignments();
    }
    return action instanceof InsertAction ? ((InsertAction) action).assignments() : NONE;
  }

  // Pairs of the path of a column or field and its value; `written` are the assignments before Spark resolved them.
  //
  // Where LanceAssignments has resolved no values (sessions older than the rule, schema evolution), they come without
  // Spark's casts, and Python puts its own around them.
  public List values(Seq assignments, Seq written) {
    List found = new ArrayList();
    for (int i = 0; i < assignments.size(); i++) {
      Assignment assignment = (Assignment) assignments.apply(i);
      boolean stored = LanceAssignments.given(assignment.value()) instanceof LanceAssignments.Value;
      Expression value = LanceAssignments.given(assignment.value());
      if (stored) {
        value = ((LanceAssignments.Value) value).child();
      } else if (hasConstantStruct(value)) {
        value = asWritten(assignment, i < written.size() ? ((Assignment) written.apply(i)).value() : null);
      }
      Object[] pair = {path(assignment.key()), expression(value)};
      found.add(Arrays.asList(pair));
    }
    return found;
  }

  private List path(Expression key) {
    if (key instanceof GetStructField) {
      List parts = path(((GetStructField) key).child());
      parts.add(LanceRenaming.field(key));
      return parts;
    }
    Object name = key instanceof AttributeReference ? target.names.get(((AttributeReference) key).exprId()) : null;
    if (name == null) {
      throw new UnsupportedOperationException(
          target.kind + " cannot set " + key.sql() + ": only columns of the table and fields of structs can be set");
    }
    List parts = new ArrayList();
    parts.add(name);
    return parts;
  }

  // Spark has cast a constant to the column's type by now, and a struct by the places of its fields: one with its
  // fields in another order would be stored in the wrong ones. So the value is taken from the statement's text, and
  // the columns in it are those of the tables that the text names.
  private Expression asWritten(Assignment assignment, Expression written) {
    try {
      if (written != null && !written.resolved()) {
        Seq one = (Seq) NONE.appended(new UnresolvedAlias(written, scala.Option.empty()));
        LogicalPlan row = new Project(one, tables);
        LogicalPlan found = Dataset$.MODULE$.ofRows(SparkSession.active(), row).queryExecution().analyzed();
        know((LogicalPlan) found.children().apply(0));
        // As far as the optimizer is by now.
        found = PullupCorrelatedPredicates.apply(RewriteWithExpression.apply(ReplaceExpressions.apply(found)));
        Project value = (Project) LanceSpelling.out(found, ((Project) found).child());
        return ((Alias) value.projectList().apply(0)).child();
      }
    } catch (Exception unresolved) {
      LoggerFactory.getLogger("spark_lance").debug("a constant was not found in its statement: " + unresolved);
    }
    throw new UnsupportedOperationException(
        target.kind + " cannot set " + assignment.key().sql() + " to this constant struct: set its fields, such as "
            + assignment.key().sql() + ".field = 1");
  }

  // Takes the columns of these tables, which were looked up once more, for those of the table and of the source.
  private void know(LogicalPlan read) {
    LogicalPlan mine = read instanceof Join ? ((Join) read).left() : read;
    LanceTarget again = new LanceTarget(target.kind);
    if (again.walk(mine)) {
      target.names.putAll(again.names);
      target.all.addAll(again.all);
    }
    Seq theirs = read instanceof Join ? ((Join) read).right().output() : NONE;
    for (int i = 0; i < theirs.size(); i++) {
      others.put(((Attribute) theirs.apply(i)).exprId(), "c" + i);
    }
  }

  private static boolean hasConstantStruct(Expression value) {
    if (value instanceof Literal) {
      return ((Literal) value).value() != null && value.dataType().existsRecursively(new IsStruct());
    }
    boolean found = false;
    for (int i = 0; i < value.children().size() && !found; i++) {
      found = hasConstantStruct((Expression) value.children().apply(i));
    }
    return found;
  }

  // An expression: its number in `columns`, the columns of the table that it needs, a text for people, and the
  // column of the source that it is, if it is nothing else.
  private Map expression(Expression expression) {
    LanceRenaming renaming = new LanceRenaming(target, TARGET, others, SOURCE, queries);
    Expression renamed = (Expression) expression.transformDown(renaming);
    Map told = new LinkedHashMap();
    told.put(Protocol.COLUMN, Integer.valueOf(columns.size()));
    told.put(Protocol.NEEDS, new ArrayList(renaming.needs));
    told.put(Protocol.TEXT, text(expression));
    told.put(Protocol.OF_SOURCE, columnOf(expression, others));
    columns.add(ExpressionUtils$.MODULE$.column(renamed));
    return told;
  }

  private List equalities(Expression condition, List found) {
    if (condition instanceof And) {
      equalities(((And) condition).left(), found);
      return equalities(((And) condition).right(), found);
    }
    if (condition instanceof EqualTo) {
      EqualTo equal = (EqualTo) condition;
      equality(equal.left(), equal.right(), found);
      equality(equal.right(), equal.left(), found);
    }
    return found;
  }

  private void equality(Expression mine, Expression theirs, List found) {
    Object[] pair = {columnOf(mine, target.names), columnOf(theirs, others)};
    if (pair[0] != null && pair[1] != null) {
      found.add(Arrays.asList(pair));
    }
  }

  // The column that an expression is, but for casts between integers that lose nothing.
  private static Object columnOf(Expression expression, Map names) {
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
      return ((Expression) expression.transformDown(new Naming())).sql();
    } catch (RuntimeException noText) {
      return expression.toString();
    }
  }

  // See LanceQueries; for Python.
  public Object attach(Object frame, String rows) {
    return queries.attach(frame, rows);
  }

  // Runs the statement.
  public void run(SparkSession session) {
    Map subject = new HashMap();
    subject.put(Protocol.SESSION, session);
    subject.put(Protocol.COLUMNS, columns);
    subject.put(Protocol.CHANGE, this);
    if (source != null) {
      subject.put(Protocol.SOURCE, Dataset$.MODULE$.ofRows(session, source));
    }
    question.put(Protocol.SESSION, session.sessionUUID());
    try {
      Bridge.ask(question, subject);
    } catch (RuntimeException problem) {
      // What Spark itself said of a job reaches the user as Spark said it.
      Object thrown = subject.get(Protocol.THROWN);
      Platform.throwException(thrown == null ? problem : (Throwable) thrown);
    }
    LanceLate.Views.mark(target.relation);
    DataSourceV2Relation relation = target.relation;
    boolean named = relation.catalog().isDefined() && relation.identifier().isDefined();
    if (!named || relation.identifier().get() instanceof Bridge.Loads) {
      session.sharedState().cacheManager().recacheByPlan(session, relation);
      return;
    }
    Identifier name = (Identifier) relation.identifier().get();
    List parts = new ArrayList();
    parts.add(((CatalogPlugin) relation.catalog().get()).name());
    parts.addAll(Arrays.asList((Object[]) name.namespace()));
    parts.add(name.name());
    Shim.recacheTable(session, parts);
  }

  // A statement as it was parsed, from its text; null if there is none.
  public static LogicalPlan written(LogicalPlan plan) {
    Origin origin = plan.origin();
    if (origin.sqlText().isEmpty() || origin.startIndex().isEmpty() || origin.stopIndex().isEmpty()) {
      return null;
    }
    String text = (String) origin.sqlText().get();
    int start = ((Integer) origin.startIndex().get()).intValue();
    int stop = ((Integer) origin.stopIndex().get()).intValue();
    try {
      return SparkSession.active().sessionState().sqlParser().parsePlan(text.substring(start, stop + 1));
    } catch (Exception noStatement) {
      LoggerFactory.getLogger("spark_lance").debug("a statement has no text of its own: " + noStatement);
      return null;
    }
  }

  private static final class IsStruct extends scala.runtime.AbstractFunction1 {
    public Object apply(Object type) {
      return Boolean.valueOf(type instanceof StructType);
    }
  }

  /** Replaces columns by their names, for a text. */
  private static final class Naming extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!(node instanceof AttributeReference)) {
        return otherwise.apply(node);
      }
      return new UnresolvedAttribute((Seq) NONE.appended(((AttributeReference) node).name()));
    }
  }
}
