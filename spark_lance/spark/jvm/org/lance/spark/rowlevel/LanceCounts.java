package org.lance.spark.rowlevel;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * DELETE, UPDATE and MERGE on Lance tables whose result is a row with counts, as Delta Lake's.
 *
 * <p>Spark takes the columns of a command's result from the analyzed plan, and its own nodes have none. LanceStatements
 * replaces them by these subclasses, which Spark's rules treat as their own. A rule that copies a node makes Spark's
 * class again, so LanceStatements replaces nodes until the plan does not change any more. Janino compiles this source.
 * javac refuses it: see test_java_units.py.
 */
public final class LanceCounts {
  private static final String[] AFFECTED = {Protocol.NUM_AFFECTED_ROWS};
  private static final String[] OF_MERGE = {
    Protocol.NUM_AFFECTED_ROWS, Protocol.NUM_UPDATED_ROWS, Protocol.NUM_DELETED_ROWS, Protocol.NUM_INSERTED_ROWS
  };

  private LanceCounts() {}

  /**
   * Returns a statement that returns counts.
   *
   * @return the statement itself if it changes no Lance table, or if Spark has not resolved it yet
   */
  public static LogicalPlan counted(LogicalPlan plan) {
    if (!plan.resolved() || !isLance(plan)) {
      return plan;
    }
    // Errors and the text of a statement need its position.
    Origin origin = CurrentOrigin.get();
    CurrentOrigin.set(plan.origin());
    try {
      LogicalPlan statement = withCounts(plan);
      statement.copyTagsFrom(plan);
      return statement;
    } finally {
      CurrentOrigin.set(origin);
    }
  }

  private static LogicalPlan withCounts(LogicalPlan plan) {
    if (plan instanceof DeleteFromTable) {
      DeleteFromTable delete = (DeleteFromTable) plan;
      return new Delete(delete.table(), delete.condition(), columns(AFFECTED));
    }
    if (plan instanceof UpdateTable) {
      UpdateTable update = (UpdateTable) plan;
      return new Update(update.table(), update.assignments(), update.condition(), columns(AFFECTED));
    }
    MergeIntoTable merge = (MergeIntoTable) plan;
    return new Merge(
        merge.targetTable(), merge.sourceTable(), merge.mergeCondition(), merge.matchedActions(), merge.notMatchedActions(),
        merge.notMatchedBySourceActions(), merge.withSchemaEvolution(), columns(OF_MERGE));
  }

  private static boolean isLance(LogicalPlan plan) {
    try {
      return new LanceTarget(LanceTarget.kind(plan)).resolve(LanceTarget.table(plan));
    } catch (UnsupportedOperationException problem) {
      return false; // the rewrite of the statement reports it
    }
  }

  private static Seq<Attribute> columns(String[] names) {
    Seq<Attribute> result = Seqs.empty();
    for (String name : names) {
      Attribute column = new AttributeReference(
          name, DataTypes.LongType, false, Metadata.empty(), NamedExpression.newExprId(), Seqs.<String>empty());
      result = Seqs.append(result, column);
    }
    return result;
  }

  /** A DELETE that returns counts. */
  public static final class Delete extends DeleteFromTable {
    private static final long serialVersionUID = 1L;
    private final Seq<Attribute> counts;

    public Delete(LogicalPlan table, Expression condition, Seq<Attribute> counts) {
      super(table, condition);
      this.counts = counts;
    }

    public Seq<Attribute> output() {
      return counts;
    }

    public Seq<Object> otherCopyArgs() {
      return Seqs.<Object>of(counts);
    }

    public DeleteFromTable withNewChildInternal(LogicalPlan child) {
      return new Delete(child, condition(), counts);
    }

    public String nodeName() {
      return "DeleteFromTable";
    }
  }

  /** An UPDATE that returns counts. */
  public static final class Update extends UpdateTable {
    private static final long serialVersionUID = 1L;
    private final Seq<Attribute> counts;

    public Update(LogicalPlan table, Seq<Assignment> assignments, Option<Expression> condition, Seq<Attribute> counts) {
      super(table, assignments, condition);
      this.counts = counts;
    }

    public Seq<Attribute> output() {
      return counts;
    }

    public Seq<Object> otherCopyArgs() {
      return Seqs.<Object>of(counts);
    }

    public UpdateTable withNewChildInternal(LogicalPlan child) {
      return new Update(child, assignments(), condition(), counts);
    }

    public String nodeName() {
      return "UpdateTable";
    }
  }

  /** A MERGE that returns counts. */
  public static final class Merge extends MergeIntoTable {
    private static final long serialVersionUID = 1L;
    private final Seq<Attribute> counts;

    public Merge(
        LogicalPlan target, LogicalPlan source, Expression condition, Seq<MergeAction> matchedActions,
        Seq<MergeAction> notMatchedActions, Seq<MergeAction> notMatchedBySourceActions, boolean withSchemaEvolution,
        Seq<Attribute> counts) {
      super(target, source, condition, matchedActions, notMatchedActions, notMatchedBySourceActions, withSchemaEvolution);
      this.counts = counts;
    }

    public Seq<Attribute> output() {
      return counts;
    }

    public Seq<Object> otherCopyArgs() {
      return Seqs.<Object>of(counts);
    }

    public MergeIntoTable withNewChildrenInternal(LogicalPlan target, LogicalPlan source) {
      return new Merge(
          target, source, mergeCondition(), matchedActions(), notMatchedActions(), notMatchedBySourceActions(),
          withSchemaEvolution(), counts);
    }

    public String nodeName() {
      return "MergeIntoTable";
    }
  }
}
