// The table that a DELETE, UPDATE or MERGE is about, behind names, views and caches.
//
// Compiled in the driver by Janino.

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
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.shim.Shim;

/** The table of a statement, behind names, views and caches. */
public final class LanceTarget {
  private static final String PADDING = "readSidePadding";
  private static final Set PADDING_PARTS =
      new LinkedHashSet(
          Arrays.asList(
              new String[] {
                "AttributeReference", "Literal", "GetStructField", "CreateNamedStruct", "If", "IsNull", "ArrayTransform",
                "LambdaFunction", "NamedLambdaVariable", "MapFromArrays", "MapKeys", "MapValues", "KnownNotNull"
              }));
  public final String kind;
  // Identity of a column -> its name in the table.
  public final Map names = new HashMap();
  public Set all;
  public DataSourceV2Relation relation;
  public Map options;

  public LanceTarget(String kind) {
    this.kind = kind;
  }

  // Whether there is a Lance table, and it can be changed through what leads to it.
  public boolean walk(LogicalPlan plan) {
    if (!find(plan)) {
      return false;
    }
    all = new LinkedHashSet();
    for (int i = 0; i < plan.output().size(); i++) {
      all.add(((Attribute) plan.output().apply(i)).exprId());
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
      LogicalPlan cached = ((InMemoryRelation) plan).cacheBuilder().logicalPlan();
      boolean found = find(cached);
      for (int i = 0; found && i < cached.output().size(); i++) {
        alias((Attribute) plan.output().apply(i), (Attribute) cached.output().apply(i));
      }
      return found;
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
    for (int i = 0; i < plan.projectList().size(); i++) {
      NamedExpression column = (NamedExpression) plan.projectList().apply(i);
      Expression of = column instanceof Alias ? ((Alias) column).child() : null;
      if (of instanceof Cast && of.dataType().equals(((Cast) of).child().dataType())) {
        of = ((Cast) of).child();
      }
      if (of instanceof AttributeReference) {
        alias(column.toAttribute(), (Attribute) of);
      } else if (of != null && isPadding(of) && of.references().size() == 1) {
        alias(column.toAttribute(), (Attribute) of.references().iterator().next());
      }
    }
  }

  // Whether an expression is what Spark reads in place of a column with CHAR: padding, at any depth of it.
  private static boolean isPadding(Expression expression) {
    return ofPadding(expression) && expression.toString().contains(PADDING);
  }

  private static boolean ofPadding(Expression expression) {
    boolean known = PADDING_PARTS.contains(expression.getClass().getSimpleName());
    if (expression instanceof StaticInvoke) {
      known = ((StaticInvoke) expression).functionName().equals(PADDING);
    }
    for (int i = 0; known && i < expression.children().size(); i++) {
      known = ofPadding((Expression) expression.children().apply(i));
    }
    return known;
  }

  private void alias(Attribute column, Attribute of) {
    if (names.containsKey(of.exprId())) {
      names.put(column.exprId(), names.get(of.exprId()));
    }
  }

  // Whether Spark has added the columns of MERGE WITH SCHEMA EVOLUTION to the table by now.
  public boolean evolves() {
    return relation.table().capabilities().contains(Shim.schemaEvolution());
  }

  private boolean isLance(DataSourceV2Relation found) {
    Table table = found.table();
    if (table instanceof LanceTable) {
      if (!((LanceTable) table).writable()) {
        throw new UnsupportedOperationException(
            table.name() + " cannot be changed: " + kind + " needs the table itself, not an older version or what "
                + "tells of it");
      }
      options = new HashMap(found.options().asCaseSensitiveMap());
      options.putAll(((LanceTable) table).options());
    } else if (table instanceof PythonTable && "lance".equalsIgnoreCase(table.name())) {
      options = found.options().asCaseSensitiveMap();
    } else {
      return false;
    }
    relation = found;
    for (int i = 0; i < found.output().size(); i++) {
      Attribute column = (Attribute) found.output().apply(i);
      names.put(column.exprId(), column.name());
    }
    return true;
  }
}
