// Writes of what a scan reads as columns: they are copied as columns, and not turned into rows and back.
//
// Spark puts a node between such a scan and a write that makes rows of batches. Where nothing but that, and a choice of
// columns, is between them, the node here asks the scan itself.
//
// Compiled in the driver by Janino.

package org.lance.spark.write;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy;
import org.apache.spark.sql.execution.datasources.v2.V2ExistingTableWriteExec;
import org.lance.spark.transport.LanceColumnCopies;
import org.lance.spark.transport.LanceTransport;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

public final class LanceWriteColumns {
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;

  private LanceWriteColumns() {}

  // Spark's own plan of a write of what a scan reads, with the node below it; null for other writes. (Where there are
  // shuffles Spark looks for what the user said of them right below the write.)
  public static SparkPlan planned(LogicalPlan plan) {
    boolean appends = plan instanceof AppendData;
    LogicalPlan query = appends ? ((AppendData) plan).query() : ((OverwriteByExpression) plan).query();
    while (query instanceof Project) {
      query = ((Project) query).child();
    }
    if (!(query instanceof LogicalRelation) && !(query instanceof DataSourceV2ScanRelation)) {
      return null;
    }
    Seq own = new DataSourceV2Strategy(SparkSession.active()).apply(plan);
    if (own.size() != 1 || !(own.apply(0) instanceof V2ExistingTableWriteExec)) {
      return null;
    }
    V2ExistingTableWriteExec write = (V2ExistingTableWriteExec) own.apply(0);
    if (!(write.write() instanceof LanceWrite.Planned)) {
      return null;
    }
    return (SparkPlan) ((SparkPlan) own.apply(0)).withNewChildren((Seq) NONE.appended(new Node(write.write(), write.query())));
  }

  /** Hands on what its child has: as batches of columns, if the write takes them. */
  public static final class Node extends SparkPlan {
    private final Object write;
    private final SparkPlan child;

    public Node(Object write, SparkPlan child) {
      this.write = write;
      this.child = child;
    }

    public RDD doExecute() {
      SparkPlan below = child instanceof WholeStageCodegenExec ? ((WholeStageCodegenExec) child).child() : child;
      Seq wanted = below.output();
      if (below instanceof ProjectExec) {
        wanted = ((ProjectExec) below).projectList();
        below = ((ProjectExec) below).child();
      }
      SparkPlan scan = below instanceof ColumnarToRowExec ? ((ColumnarToRowExec) below).child() : null;
      scan = scan instanceof InputAdapter ? ((InputAdapter) scan).child() : scan;
      int[] places = scan == null || !scan.supportsColumnar() ? null : places(wanted, scan.output());
      LanceWrite.Planned planned = (LanceWrite.Planned) write;
      if (places == null || places.length == 0 || !LanceTransport.batches(planned.info().schema())) {
        return child.execute();
      }
      LanceColumnCopies.Taking taking = new LanceColumnCopies.Taking(places);
      planned.takesBatches(taking);
      return scan.executeColumnar().toJavaRDD().mapPartitions(taking).rdd();
    }

    // Where columns that are only chosen, and perhaps given names, stand in others; null if they are computed.
    private static int[] places(Seq wanted, Seq there) {
      int[] places = new int[wanted.size()];
      for (int i = 0; i < places.length; i++) {
        Expression column = (Expression) wanted.apply(i);
        while (column instanceof Alias) {
          column = ((Alias) column).child();
        }
        places[i] = -1;
        for (int j = 0; places[i] < 0 && j < there.size() && column instanceof AttributeReference; j++) {
          Object id = ((NamedExpression) there.apply(j)).exprId();
          places[i] = ((NamedExpression) column).exprId().equals(id) ? j : -1;
        }
        if (places[i] < 0) {
          return null;
        }
      }
      return places;
    }

    // What executors get where a task refers to a plan: they have no class of ours.
    public Object writeReplace() {
      return child;
    }

    public String nodeName() {
      return "LanceWriteColumns";
    }

    public String simpleString(int most) {
      return nodeName();
    }

    public Seq output() {
      return child.output();
    }

    public Partitioning outputPartitioning() {
      return child.outputPartitioning();
    }

    public Seq outputOrdering() {
      return child.outputOrdering();
    }

    public Seq children() {
      return (Seq) NONE.appended(child);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Node(write, (SparkPlan) children.apply(0));
    }

    public boolean canEqual(Object other) {
      return other instanceof Node;
    }

    // What Spark copies the node by.
    public int productArity() {
      return 2;
    }

    public Object productElement(int which) {
      return which == 0 ? write : child;
    }
  }
}
