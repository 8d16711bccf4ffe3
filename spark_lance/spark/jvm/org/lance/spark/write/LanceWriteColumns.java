package org.lance.spark.write;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
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
import org.lance.spark.load.Seqs;
import org.lance.spark.transport.LanceColumnCopies;
import org.lance.spark.transport.LanceTransport;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * Plans writes of a columnar scan that copy columns, and make no rows.
 *
 * <p>Spark puts a node that converts batches to rows between such a scan and a write. If there is only this node and
 * a projection of plain columns between them, the node of this class reads the scan directly. LanceStatements calls
 * it when Spark plans the write.
 */
public final class LanceWriteColumns {

  private LanceWriteColumns() {}

  /**
   * Returns Spark's own plan of a write directly from a scan, with a node of this class as child; null for other
   * writes. Plans with shuffles are excluded, because Spark looks for hints of the user in the write's child.
   */
  public static SparkPlan planPhysical(LogicalPlan plan) {
    boolean appends = plan instanceof AppendData;
    LogicalPlan query = appends ? ((AppendData) plan).query() : ((OverwriteByExpression) plan).query();
    while (query instanceof Project) {
      query = ((Project) query).child();
    }
    if (!(query instanceof LogicalRelation) && !(query instanceof DataSourceV2ScanRelation)) {
      return null;
    }
    Seq<SparkPlan> plans = new DataSourceV2Strategy(SparkSession.active()).apply(plan);
    if (plans.size() != 1 || !(plans.apply(0) instanceof V2ExistingTableWriteExec)) {
      return null;
    }
    V2ExistingTableWriteExec write = (V2ExistingTableWriteExec) plans.apply(0);
    if (!(write.write() instanceof LanceWrite.PythonWrite)) {
      return null;
    }
    return (SparkPlan) ((SparkPlan) plans.apply(0)).withNewChildren(Seqs.of(new Node(write.write(), write.query())));
  }

  /** Passes on the rows of its child, as batches of columns if the write accepts them. */
  public static final class Node extends SparkPlan {
    private static final long serialVersionUID = 1L;
    private final Object write;
    private final SparkPlan child;

    public Node(Object write, SparkPlan child) {
      this.write = write;
      this.child = child;
    }

    @SuppressWarnings("unchecked") // Batches are in the places of rows.
    public RDD<InternalRow> doExecute() {
      SparkPlan node = child instanceof WholeStageCodegenExec ? ((WholeStageCodegenExec) child).child() : child;
      Seq<? extends NamedExpression> columns = node.output();
      if (node instanceof ProjectExec) {
        columns = ((ProjectExec) node).projectList();
        node = ((ProjectExec) node).child();
      }
      SparkPlan scan = node instanceof ColumnarToRowExec ? ((ColumnarToRowExec) node).child() : null;
      scan = scan instanceof InputAdapter ? ((InputAdapter) scan).child() : scan;
      int[] ordinals = scan == null || !scan.supportsColumnar() ? null : ordinals(columns, scan.output());
      LanceWrite.PythonWrite pythonWrite = (LanceWrite.PythonWrite) write;
      if (ordinals == null || ordinals.length == 0 || !LanceTransport.writesBatches(pythonWrite.info().schema())) {
        return child.execute();
      }
      LanceColumnCopies.BatchFunction function = new LanceColumnCopies.BatchFunction(ordinals);
      pythonWrite.setBatchSwitch(function);
      return scan.executeColumnar().toJavaRDD().mapPartitions(function).rdd();
    }

    /** Returns the positions of columns in the output of the scan; null if one of the columns is computed. */
    private static int[] ordinals(Seq<? extends NamedExpression> columns, Seq<Attribute> scanOutput) {
      int[] ordinals = new int[columns.size()];
      for (int i = 0; i < ordinals.length; i++) {
        Expression column = (Expression) columns.apply(i);
        while (column instanceof Alias) {
          column = ((Alias) column).child();
        }
        ordinals[i] = -1;
        for (int j = 0; ordinals[i] < 0 && j < scanOutput.size() && column instanceof AttributeReference; j++) {
          Object id = ((NamedExpression) scanOutput.apply(j)).exprId();
          ordinals[i] = ((NamedExpression) column).exprId().equals(id) ? j : -1;
        }
        if (ordinals[i] < 0) {
          return null;
        }
      }
      return ordinals;
    }

    // Tasks that refer to the plan are sent the child, because executors have no class of this package.
    public Object writeReplace() {
      return child;
    }

    public String nodeName() {
      return "LanceWriteColumns";
    }

    public String simpleString(int maxFields) {
      return nodeName();
    }

    public Seq<Attribute> output() {
      return child.output();
    }

    public Partitioning outputPartitioning() {
      return child.outputPartitioning();
    }

    public Seq<SortOrder> outputOrdering() {
      return child.outputOrdering();
    }

    public Seq<SparkPlan> children() {
      return Seqs.of(child);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Node(write, (SparkPlan) children.apply(0));
    }

    public boolean canEqual(Object other) {
      return other instanceof Node;
    }

    // Spark copies the node from these values.
    public int productArity() {
      return 2;
    }

    public Object productElement(int which) {
      return which == 0 ? write : child;
    }
  }
}
