package org.lance.spark.rowlevel;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;

/** The table of a DELETE, UPDATE or MERGE. It may be behind names, views and caches. */
public final class LanceTarget {
  private static final String PADDING = "readSidePadding";
  private static final Set<String> PADDING_PARTS =
      new LinkedHashSet<>(
          Arrays.asList(
              "AttributeReference", "Literal", "GetStructField", "CreateNamedStruct", "If", "IsNull", "ArrayTransform",
              "LambdaFunction", "NamedLambdaVariable", "MapFromArrays", "MapKeys", "MapValues", "KnownNotNull"));
  /** The statement: DELETE, UPDATE or MERGE. */
  public final String kind;
  // Id of a column -> its name in the table.
  public final Map<ExprId, Object> names = new HashMap<>();
  public Set<ExprId> identities;
  public DataSourceV2Relation relation;
  public Map<String, Object> options;

  public LanceTarget(String kind) {
    this.kind = kind;
  }

  /** Returns the target of a statement; null if it is neither DELETE, UPDATE nor MERGE. */
  static LogicalPlan table(LogicalPlan plan) {
    if (plan instanceof DeleteFromTable) {
      return ((DeleteFromTable) plan).table();
    }
    if (plan instanceof UpdateTable) {
      return ((UpdateTable) plan).table();
    }
    return plan instanceof MergeIntoTable ? ((MergeIntoTable) plan).targetTable() : null;
  }

  /** Returns the verb of a statement. */
  static String kind(LogicalPlan plan) {
    return plan instanceof DeleteFromTable ? "DELETE" : plan instanceof UpdateTable ? "UPDATE" : "MERGE";
  }

  /**
   * Finds the Lance table of a plan.
   *
   * @return false if it is another table
   * @throws UnsupportedOperationException if the plan is a view that does more than name columns
   */
  public boolean resolve(LogicalPlan plan) {
    if (!find(plan)) {
      return false;
    }
    identities = new LinkedHashSet<>();
    for (Attribute column : Seqs.view(plan.output())) {
      identities.add(column.exprId());
    }
    return true;
  }

  private boolean find(LogicalPlan plan) {
    if (plan instanceof DataSourceV2ScanRelation) {
      return find(((DataSourceV2ScanRelation) plan).relation());
    }
    if (plan instanceof DataSourceV2Relation) {
      return isLance((DataSourceV2Relation) plan);
    }
    if (plan instanceof InMemoryRelation) {
      LogicalPlan cachePlan = ((InMemoryRelation) plan).cacheBuilder().logicalPlan();
      boolean isFound = find(cachePlan);
      for (int i = 0; isFound && i < cachePlan.output().size(); i++) {
        alias((Attribute) plan.output().apply(i), (Attribute) cachePlan.output().apply(i));
      }
      return isFound;
    }
    if (plan.children().size() != 1 || !find((LogicalPlan) plan.children().apply(0))) {
      return false;
    }
    if (plan instanceof Project) {
      project((Project) plan);
    } else if (!(plan instanceof SubqueryAlias) && !(plan instanceof View)) {
      throw new UnsupportedOperationException(
          kind + " needs a table, or a view that only names its columns; this view has a " + plan.nodeName()
              + ": name the table itself, and write its condition into the statement");
    }
    return true;
  }

  private void project(Project plan) {
    for (NamedExpression column : Seqs.view(plan.projectList())) {
      Expression source = column instanceof Alias ? ((Alias) column).child() : null;
      if (source instanceof Cast && source.dataType().equals(((Cast) source).child().dataType())) {
        source = ((Cast) source).child();
      }
      if (source instanceof AttributeReference) {
        alias(column.toAttribute(), (Attribute) source);
      } else if (source != null && isPadding(source) && source.references().size() == 1) {
        alias(column.toAttribute(), (Attribute) source.references().iterator().next());
      }
    }
  }

  /** Returns whether an expression is only Spark's padding of a CHAR column, or of fields in it. */
  private static boolean isPadding(Expression expression) {
    return hasPaddingPartsOnly(expression) && expression.toString().contains(PADDING);
  }

  private static boolean hasPaddingPartsOnly(Expression expression) {
    boolean result = PADDING_PARTS.contains(expression.getClass().getSimpleName());
    if (expression instanceof StaticInvoke) {
      result = ((StaticInvoke) expression).functionName().equals(PADDING);
    }
    for (Expression child : Seqs.view(expression.children())) {
      result = result && hasPaddingPartsOnly(child);
    }
    return result;
  }

  private void alias(Attribute column, Attribute source) {
    if (names.containsKey(source.exprId())) {
      names.put(column.exprId(), names.get(source.exprId()));
    }
  }

  /**
   * Returns whether the table supports MERGE WITH SCHEMA EVOLUTION. Spark has then added the new columns before this
   * check.
   */
  public boolean evolves() {
    return relation.table().capabilities().contains(Shim.schemaEvolution());
  }

  /** Returns whether the table itself has a column; hidden columns of Spark do not count. */
  public boolean hasColumn(String name) {
    boolean result = false;
    for (Column column : relation.table().columns()) {
      result = result || column.name().equals(name);
    }
    return result;
  }

  private boolean isLance(DataSourceV2Relation relation) {
    Table table = relation.table();
    if (table instanceof LanceTable) {
      if (!((LanceTable) table).writable()) {
        throw new UnsupportedOperationException(
            table.name() + " cannot be changed: " + kind + " needs the table itself, not an older version or what "
                + "tells of it");
      }
      options = new HashMap<>(relation.options().asCaseSensitiveMap());
      options.putAll(((LanceTable) table).options());
    } else if (table instanceof PythonTable && "lance".equalsIgnoreCase(table.name())) {
      options = new HashMap<>(relation.options().asCaseSensitiveMap());
    } else {
      return false;
    }
    this.relation = relation;
    for (Attribute column : Seqs.view(relation.output())) {
      names.put(column.exprId(), column.name());
    }
    return true;
  }
}
