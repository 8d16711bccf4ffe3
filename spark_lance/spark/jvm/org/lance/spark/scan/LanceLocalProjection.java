package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Nondeterministic;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.lance.spark.load.Seqs;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;

/**
 * Projections over few rows that the driver has read, computed while the query is planned. No job starts.
 *
 * <p>Spark does the same for rows that are literals in a query. User functions and failing expressions are left to
 * Spark.
 */
public final class LanceLocalProjection {
  // For more rows, a task with compiled code is faster.
  private static final int MOST_ROWS = 1000;

  private LanceLocalProjection() {}

  /**
   * Returns the physical plan of a projection whose rows the driver has, with the computed rows in it.
   *
   * @param plan a {@code Project} over a {@code DataSourceV2ScanRelation}
   * @return null if Spark has to plan the projection
   */
  public static SparkPlan planPhysical(LogicalPlan plan) {
    Project project = (Project) plan;
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) project.child();
    if (!(relation.scan() instanceof LanceRows)) {
      return null;
    }
    InternalRow[] rows = ((LanceRows) relation.scan()).rows();
    Seq<NamedExpression> columns = project.projectList();
    if (rows.length > MOST_ROWS || !columns.forall(Seqs.function(new Plain()))) {
      return null;
    }
    try {
      List<InternalRow> results = new ArrayList<>(Arrays.asList(rows));
      if (!isSame(columns, relation.output())) {
        InterpretedMutableProjection compute = new InterpretedMutableProjection(Seqs.<Expression>cast(columns), Seqs.<Attribute>cast(relation.output()));
        compute.initialize(0);
        for (int i = 0; i < rows.length; i++) {
          results.set(i, compute.apply(rows[i]).copy());
        }
      }
      Seq<Attribute> attributes = Seqs.empty();
      for (NamedExpression column : Seqs.view(columns)) {
        attributes = Seqs.append(attributes, column.toAttribute());
      }
      return withRows(relation, attributes, Seqs.copy(results));
    } catch (Exception problem) {
      LoggerFactory.getLogger("spark_lance").debug("Spark computes what the driver could not: " + problem);
      return null;
    }
  }

  /** Returns whether the columns are the output of the scan in its order; aliases do not matter. */
  private static boolean isSame(Seq<NamedExpression> columns, Seq<AttributeReference> output) {
    boolean same = columns.length() == output.length();
    for (int i = 0; same && i < columns.length(); i++) {
      Expression column = (Expression) columns.apply(i);
      while (column instanceof Alias) {
        column = ((Alias) column).child();
      }
      same = column.semanticEquals((Expression) output.apply(i));
    }
    return same;
  }

  /** Returns Spark's own plan of the scan with other columns and rows; null if Spark plans no local scan. */
  private static SparkPlan withRows(LogicalPlan relation, Seq<?> attributes, Object rows) {
    SparkPlan scan = (SparkPlan) SparkSession$.MODULE$.active().sessionState().planner().plan(relation).next();
    if (!(scan instanceof LocalTableScanExec)) {
      return null;
    }
    Object[] parts = new Object[scan.productArity()];
    for (int i = 2; i < parts.length; i++) {
      parts[i] = scan.productElement(i);
    }
    parts[0] = attributes;
    parts[1] = rows;
    return (SparkPlan) scan.makeCopy(parts);
  }

  /** Accepts deterministic expressions that Spark can compute while it plans a query. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Plain extends scala.runtime.AbstractFunction1 {
    public Object apply(Object expression) {
      boolean plain = ((Expression) expression).deterministic();
      return plain && !((Expression) expression).exists(Seqs.function(new Special()));
    }
  }

  /** Accepts expressions that must not be computed while a query is planned. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  static final class Special extends scala.runtime.AbstractFunction1 {
    public Object apply(Object part) {
      return part instanceof UserDefinedExpression
              || (part instanceof Unevaluable && !(part instanceof AttributeReference))
              || part instanceof Nondeterministic
              || part instanceof SubqueryExpression;
    }
  }
}
