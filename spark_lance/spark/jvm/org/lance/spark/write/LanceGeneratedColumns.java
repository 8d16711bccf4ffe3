package org.lance.spark.write;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.catalog.LanceTableCatalog;
import org.lance.spark.load.Seqs;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Computes generated columns. Spark parses GENERATED ALWAYS AS in CREATE TABLE, but computes no values for tables of
 * catalogs.
 *
 * <p>LanceStatements calls this class in the analyzer. A row without a value in such a column gets the value of the
 * expression. The commit checks all values, so a write that bypasses this class is refused if its values differ.
 */
public final class LanceGeneratedColumns {
  private static final String EXPRESSION = LanceTableCatalog.GENERATION_EXPRESSION;
  private static final String COMPUTED = "spark_lance.computed";

  private LanceGeneratedColumns() {}

  /**
   * Adds the values of generated columns to a write.
   *
   * @return the write itself if the table has no generated columns, or they are computed already
   */
  public static LogicalPlan compute(LogicalPlan plan) {
    V2WriteCommand command = (V2WriteCommand) plan;
    LogicalPlan table = (LogicalPlan) command.table();
    boolean isLance = table instanceof DataSourceV2Relation && ((DataSourceV2Relation) table).table() instanceof LanceTable;
    if (!isLance || !command.query().resolved() || !command.outputResolved()) {
      return plan;
    }
    List<NamedExpression> columns = new ArrayList<NamedExpression>();
    boolean computes = false;
    for (int i = 0; i < table.output().size(); i++) {
      Attribute column = (Attribute) table.output().apply(i);
      Attribute value = (Attribute) command.query().output().apply(i);
      boolean isGenerated = column.metadata().contains(EXPRESSION);
      if (isGenerated && value.metadata().contains(COMPUTED)) {
        return plan;
      }
      computes = computes || isGenerated;
      columns.add(isGenerated ? generatedValue(column, value) : value);
    }
    if (!computes) {
      return plan;
    }
    LogicalPlan rows = new Project(CollectionConverters.asScala(columns).toList(), command.query());
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = plan.productElement(i);
      parts[i] = part == command.query() ? rows : part;
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  private static NamedExpression generatedValue(Attribute column, Attribute value) {
    try {
      String sql = column.metadata().getString(EXPRESSION);
      Expression parsed = SparkSession.active().sessionState().sqlParser().parseExpression(sql);
      Expression cast = new Cast(parsed, column.dataType(), scala.Option.empty());
      Expression result = new Coalesce(Seqs.append(Seqs.<Expression>of((Expression) value), cast));
      Metadata metadata = new MetadataBuilder().putBoolean(COMPUTED, true).build();
      return new Alias(
          result, value.name(), NamedExpression.newExprId(), Seqs.<String>empty(), scala.Option.apply(metadata), Seqs.<String>empty());
    } catch (Exception problem) {
      org.apache.spark.unsafe.Platform.throwException(problem);
      return null;
    }
  }
}
