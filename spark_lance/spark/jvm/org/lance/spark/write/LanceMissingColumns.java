package org.lance.spark.write;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoStatement;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.lance.spark.shim.Shim;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Adds the columns that writes by name leave out, on Spark 4.0.
 *
 * <p>Later releases fill such columns with their defaults, or with null. Spark 4.0 has the code
 * (TableOutputResolver), but does not use it for tables of catalogs. LanceStatements calls this class in the
 * analyzer, before Spark refuses the write.
 */
public final class LanceMissingColumns {
  private static final Seq<String> NONE = CollectionConverters.asScala(new ArrayList<String>()).toList();

  private LanceMissingColumns() {}

  /**
   * Adds the missing columns to an INSERT by name.
   *
   * @return the INSERT itself if no column is missing, or if Spark has to refuse it
   */
  public static LogicalPlan insert(LogicalPlan plan) {
    InsertIntoStatement insert = (InsertIntoStatement) plan;
    boolean hasColumnList = !insert.userSpecifiedCols().isEmpty();
    DataSourceV2Relation relation = insert.table().resolved() ? LanceNewColumns.relation(insert.table()) : null;
    if (relation == null || !insert.query().resolved() || !insert.partitionSpec().isEmpty() || !(hasColumnList || insert.byName())) {
      return plan;
    }
    LogicalPlan rows = hasColumnList ? withNames(insert.query(), insert.userSpecifiedCols()) : insert.query();
    LogicalPlan allColumns = rows == null ? null : withAllColumns(relation, rows);
    if (allColumns == null) {
      return plan;
    }
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      String name = plan.productElementName(i);
      Object part = plan.productElement(i);
      if (name.equals("query")) {
        part = allColumns;
      } else if (name.equals("userSpecifiedCols")) {
        part = scala.collection.immutable.Nil$.MODULE$;
      } else if (name.equals("byName")) {
        part = Boolean.TRUE;
      }
      parts[i] = part;
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  /**
   * Adds the missing columns to a DataFrame's write by name.
   *
   * @return the write itself if no column is missing, or if Spark has to refuse it
   */
  public static LogicalPlan write(LogicalPlan plan) {
    V2WriteCommand command = (V2WriteCommand) plan;
    DataSourceV2Relation relation = LanceNewColumns.relation((LogicalPlan) command.table());
    LogicalPlan allColumns =
        relation == null || !command.query().resolved() ? null : withAllColumns(relation, command.query());
    if (allColumns == null) {
      return plan;
    }
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = plan.productElement(i);
      parts[i] = part == command.table() ? relation : part == command.query() ? allColumns : part;
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  /** Returns the rows of an INSERT with the names of its column list; null if the numbers of columns differ. */
  private static LogicalPlan withNames(LogicalPlan query, Seq<String> names) {
    if (names.size() != query.output().size()) {
      return null;
    }
    List<NamedExpression> columns = new ArrayList<NamedExpression>();
    for (int i = 0; i < names.size(); i++) {
      Attribute column = (Attribute) query.output().apply(i);
      columns.add(new Alias(column, (String) names.apply(i), NamedExpression.newExprId(), NONE, scala.Option.empty(), NONE));
    }
    return new Project(CollectionConverters.asScala(columns).toList(), query);
  }

  /**
   * Returns rows with the missing columns of a table; null if none is missing, or if there are unknown columns, which
   * Spark reports.
   */
  private static LogicalPlan withAllColumns(DataSourceV2Relation relation, LogicalPlan rows) {
    boolean hasAll = true;
    int count = 0;
    for (Attribute column : CollectionConverters.asJava(relation.output())) {
      int times = 0;
      for (Attribute other : CollectionConverters.asJava(rows.output())) {
        times += rows.conf().resolver().apply(column.name(), other.name()).equals(Boolean.TRUE) ? 1 : 0;
      }
      hasAll = hasAll && times > 0;
      count += times;
    }
    return hasAll || count != rows.output().size() ? null : Shim.withMissingColumns(relation.table().name(), relation.output(), rows);
  }
}
