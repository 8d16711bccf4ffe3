package org.lance.spark.rowlevel;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * DELETE, UPDATE and MERGE on Lance tables: the node of such a statement, and the command that runs it in the driver.
 *
 * <p>LanceStatements calls {@code rewrite} in the optimizer. LanceTarget has the table, LanceChange the form for
 * Python.
 */
public final class LanceRowLevel {

  private LanceRowLevel() {}

  /** Returns the node of a statement; null if it does not change a Lance table. */
  public static LogicalPlan rewrite(LogicalPlan plan) {
    LogicalPlan table = LanceTarget.table(plan);
    LanceTarget target = table == null ? null : new LanceTarget(LanceTarget.kind(plan));
    if (target == null || !target.resolve(table)) {
      return null;
    }
    LanceChange change = new LanceChange(target, plan.output());
    LogicalPlan statement = LanceCommonExpressions.inlineCommonExpressions(plan, table);
    if (statement instanceof DeleteFromTable) {
      change.question.put(Protocol.CONDITION, change.condition(((DeleteFromTable) statement).condition()));
    } else if (statement instanceof UpdateTable) {
      change.update((UpdateTable) statement);
    } else {
      change.merge((MergeIntoTable) statement);
    }
    return new StatementNode(change);
  }

  /** The node of a statement on a Lance table. */
  public static final class StatementNode extends LogicalPlan implements LanceStatements.RewrittenStatement {
    private final LanceChange change;

    public StatementNode(LanceChange change) {
      this.change = change;
    }

    public SparkPlan physicalPlan() {
      return new Command(change);
    }

    public Seq<Attribute> output() {
      return change.counts;
    }

    public Seq<LogicalPlan> children() {
      return Seqs.empty();
    }

    public LogicalPlan withNewChildrenInternal(IndexedSeq<LogicalPlan> children) {
      return this;
    }

    public boolean canEqual(Object other) {
      return other instanceof StatementNode;
    }

    public int productArity() {
      return 1;
    }

    public Object productElement(int which) {
      return change;
    }
  }

  /** The command that runs a statement on a Lance table. */
  public static final class Command extends V2CommandExec {
    private static final long serialVersionUID = 1L;
    private final LanceChange change;

    public Command(LanceChange change) {
      this.change = change;
    }

    public Seq<InternalRow> run() {
      return change.run((SparkSession) session());
    }

    public String nodeName() {
      return "LanceRowLevel";
    }

    public Seq<Attribute> output() {
      return change.counts;
    }

    public Seq<SparkPlan> children() {
      return Seqs.empty();
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return this;
    }

    public boolean canEqual(Object other) {
      return other instanceof Command;
    }

    public int productArity() {
      return 1;
    }

    public Object productElement(int which) {
      return change;
    }
  }
}
