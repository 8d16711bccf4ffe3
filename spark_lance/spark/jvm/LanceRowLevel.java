// DELETE, UPDATE and MERGE on Lance tables: the node that stands for such a statement, and the command that runs it.
// What it is about is in LanceTarget, what Python is told of it in LanceChange.
//
// Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance.sql;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import spark_lance.LanceStatements;

public final class LanceRowLevel {
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;

  private LanceRowLevel() {}

  // The node that stands for a statement; null if it is not about a Lance table.
  public static LogicalPlan take(LogicalPlan plan) {
    LanceTarget target = target(plan);
    if (target == null) {
      return null;
    }
    LanceChange change = new LanceChange(target);
    LogicalPlan statement = target.spelledOut(plan);
    if (statement instanceof DeleteFromTable) {
      change.question.put("condition", change.condition(((DeleteFromTable) statement).condition()));
    } else if (statement instanceof UpdateTable) {
      UpdateTable update = (UpdateTable) statement;
      LogicalPlan written = LanceChange.written(plan);
      scala.Option condition = update.condition();
      change.question.put("condition", condition.isEmpty() ? null : change.condition((Expression) condition.get()));
      Seq values = written instanceof UpdateTable ? ((UpdateTable) written).assignments() : NONE;
      change.question.put("values", change.values(update.assignments(), values));
    } else {
      change.merge((MergeIntoTable) statement);
    }
    return new Pending(change);
  }

  // What a DELETE, UPDATE or MERGE is about; null for another statement, and for other tables.
  private static LanceTarget target(LogicalPlan plan) {
    LanceTarget target = null;
    LogicalPlan table = null;
    if (plan instanceof DeleteFromTable) {
      target = new LanceTarget("DELETE");
      table = ((DeleteFromTable) plan).table();
    } else if (plan instanceof UpdateTable) {
      target = new LanceTarget("UPDATE");
      table = ((UpdateTable) plan).table();
    } else if (plan instanceof MergeIntoTable) {
      target = new LanceTarget("MERGE");
      table = ((MergeIntoTable) plan).targetTable();
    }
    return target != null && target.walk(table) ? target : null;
  }

  /** Stands in a plan for a statement on a Lance table. */
  public static final class Pending extends LogicalPlan implements LanceStatements.Taken {
    private final LanceChange change;

    public Pending(LanceChange change) {
      this.change = change;
    }

    public SparkPlan planned() {
      return new Command(change);
    }

    public Seq output() {
      return NONE;
    }

    public Seq children() {
      return NONE;
    }

    public TreeNode withNewChildrenInternal(IndexedSeq children) {
      return this;
    }

    public boolean canEqual(Object other) {
      return other instanceof Pending;
    }

    public int productArity() {
      return 1;
    }

    public Object productElement(int which) {
      return change;
    }
  }

  /** Runs a statement on a Lance table, when Spark runs the command. */
  public static final class Command extends V2CommandExec {
    private final LanceChange change;

    public Command(LanceChange change) {
      this.change = change;
    }

    public Seq run() {
      change.run((SparkSession) session());
      return NONE;
    }

    public String nodeName() {
      return "LanceRowLevel";
    }

    public Seq output() {
      return NONE;
    }

    public Seq children() {
      return NONE;
    }

    public TreeNode withNewChildrenInternal(IndexedSeq children) {
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
