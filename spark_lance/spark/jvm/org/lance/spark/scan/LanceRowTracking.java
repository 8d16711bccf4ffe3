package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Seqs;

/**
 * Reads Delta's fields {@code _metadata.row_id} and {@code _metadata.row_commit_version} from columns of Lance.
 *
 * <p>LanceTable declares {@code _metadata}, and a scan refuses it. If a query reads only these two fields, this class
 * computes the column above the table, as a struct of {@code _rowid} and {@code _row_last_updated_at_version}. Spark's
 * optimizer then replaces the fields of the struct by the columns.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceRowTracking extends scala.runtime.AbstractPartialFunction {
  // Ids of columns _metadata. Removed: columns with reads of other fields.
  private final Set<ExprId> columns = new HashSet<>();

  /** Returns a plan that computes the fields of row tracking. */
  public static LogicalPlan computeFields(LogicalPlan plan) {
    LanceRowTracking rule = new LanceRowTracking();
    for (Object leaf : Seqs.view(plan.collectLeaves())) {
      Attribute column = fileMetadata(leaf);
      if (column != null) {
        rule.columns.add(column.exprId());
      }
    }
    for (Attribute column : Seqs.view(plan.output())) {
      rule.columns.remove(column.exprId());
    }
    rule.removeOtherReads(plan);
    return rule.columns.isEmpty() ? plan : (LogicalPlan) plan.transformDown(Seqs.partial(rule));
  }

  /** Returns the column _metadata that a plan reads from a Lance table; null if there is none. */
  public static Attribute fileMetadata(Object plan) {
    if (!(plan instanceof DataSourceV2Relation) || !(((DataSourceV2Relation) plan).table() instanceof LanceTable)) {
      return null;
    }
    for (Column column : ((DataSourceV2Relation) plan).table().columns()) {
      if (column.name().equals(Bridge.FILE_METADATA)) {
        return null;
      }
    }
    return find(((DataSourceV2Relation) plan).output(), Bridge.FILE_METADATA);
  }

  private static Attribute find(scala.collection.immutable.Seq<?> columns, String name) {
    for (Object column : Seqs.view(columns)) {
      if (((Attribute) column).name().equals(name)) {
        return (Attribute) column;
      }
    }
    return null;
  }

  private void removeOtherReads(LogicalPlan plan) {
    if (plan instanceof DataSourceV2Relation) {
      return;
    }
    for (Expression expression : Seqs.view(plan.expressions())) {
      // A projection can pass the column on.
      if (!(plan instanceof Project) || !(expression instanceof AttributeReference)) {
        removeOtherReads(expression);
      }
    }
    for (Object child : Seqs.view(plan.children())) {
      removeOtherReads((LogicalPlan) child);
    }
  }

  private void removeOtherReads(Expression expression) {
    if (expression instanceof AttributeReference) {
      columns.remove(((AttributeReference) expression).exprId());
    }
    boolean isTracked = expression instanceof GetStructField
        && ((GetStructField) expression).child() instanceof AttributeReference
        && columnOf(((GetStructField) expression).childSchema().fields()[((GetStructField) expression).ordinal()].name()) != null;
    if (!isTracked) {
      for (Expression child : Seqs.view(expression.children())) {
        removeOtherReads(child);
      }
    }
  }

  /** Returns the column of Lance with the values of a field; null for other fields. */
  private static String columnOf(String field) {
    if (field.equals("row_id")) {
      return "_rowid";
    }
    return field.equals("row_commit_version") ? "_row_last_updated_at_version" : null;
  }

  public boolean isDefinedAt(Object node) {
    Attribute column = fileMetadata(node);
    return column != null && columns.contains(column.exprId());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (!isDefinedAt(node)) {
      return otherwise.apply(node);
    }
    DataSourceV2Relation relation = (DataSourceV2Relation) node;
    Attribute column = fileMetadata(relation);
    List<Attribute> output = new ArrayList<>(Seqs.view(relation.output()));
    output.remove(column);
    List<Expression> values = new ArrayList<>();
    for (StructField field : ((StructType) column.dataType()).fields()) {
      String name = columnOf(field.name());
      Attribute value = name == null ? null : find(relation.output(), name);
      if (name != null && value == null) {
        value = find(relation.metadataOutput(), name);
        output.add(value);
      }
      values.add(Literal$.MODULE$.create(field.name(), DataTypes.StringType));
      values.add(value == null ? new Literal(null, field.dataType()) : value);
    }
    List<NamedExpression> projection = new ArrayList<>();
    for (Attribute each : Seqs.view(relation.output())) {
      projection.add(each.exprId().equals(column.exprId())
          ? new Alias(new CreateNamedStruct(Seqs.copy(values)), column.name(), column.exprId(), column.qualifier(), scala.Option.empty(), Seqs.empty())
          : each);
    }
    Object[] parts = new Object[relation.productArity()];
    for (int i = 0; i < parts.length; i++) {
      parts[i] = relation.productElement(i) == relation.output() ? Seqs.copy(output) : relation.productElement(i);
    }
    return new Project(Seqs.copy(projection), (LogicalPlan) relation.makeCopy(parts));
  }
}
