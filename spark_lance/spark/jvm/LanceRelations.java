// Names of tables with options by which a read is not about the rows of a version: the changes between versions.
//
// Spark loads a table by its name and gives the options to the scan only, so the columns would be those of the rows. A
// rule that runs before Spark resolves names puts a table in place of such a name that has the columns of the changes.
//
// Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance.sql;

import java.util.HashMap;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public final class LanceRelations {
  private LanceRelations() {}

  // The relation of the changes of a Lance table; the same name where it is none.
  public static LogicalPlan changes(UnresolvedRelation named) {
    CaseInsensitiveStringMap none = new CaseInsensitiveStringMap(new HashMap());
    LogicalPlan plain = named.copy(named.multipartIdentifier(), none, named.isStreaming());
    LogicalPlan resolved = SparkSession.active().sessionState().analyzer().execute(plain);
    Replacing replacing = new Replacing(named.options(), named.isStreaming());
    LogicalPlan replaced = (LogicalPlan) resolved.transformDown(replacing);
    return replacing.replaced ? replaced : named;
  }

  /** Replaces the relation of a table by that of its changes. */
  private static final class Replacing extends scala.runtime.AbstractPartialFunction {
    private final CaseInsensitiveStringMap options;
    private final boolean streams;
    boolean replaced = false;

    Replacing(CaseInsensitiveStringMap options, boolean streams) {
      this.options = options;
      this.streams = streams;
    }

    public boolean isDefinedAt(Object node) {
      return table(node) instanceof LanceTable;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      replaced = true;
      LogicalPlan relation = (LogicalPlan) node;
      LanceTable changes = ((LanceTable) table(node)).changes(options, streams);
      Object[] parts = new Object[relation.productArity()];
      for (int i = 0; i < parts.length; i++) {
        Object part = relation.productElement(i);
        if (part instanceof Table) {
          part = changes;
        } else if (part instanceof CaseInsensitiveStringMap) {
          part = options;
        } else if (part == output(node)) {
          part = DataTypeUtils$.MODULE$.toAttributes(changes.schema());
        }
        parts[i] = part;
      }
      return relation.makeCopy(parts);
    }

    private static Object table(Object node) {
      if (node instanceof DataSourceV2Relation) {
        return ((DataSourceV2Relation) node).table();
      }
      return node instanceof StreamingRelationV2 ? ((StreamingRelationV2) node).table() : null;
    }

    private static Object output(Object node) {
      return node instanceof DataSourceV2Relation
          ? ((DataSourceV2Relation) node).output() : ((StreamingRelationV2) node).output();
    }
  }
}
