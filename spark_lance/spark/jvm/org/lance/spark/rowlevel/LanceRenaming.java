package org.lance.spark.rowlevel;

import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayStructFields;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.ScalarSubquery;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Seqs;
import scala.collection.immutable.Seq;

/**
 * Replaces the columns of table and source in an expression by names behind their aliases, which DataFrames resolve.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceRenaming extends scala.runtime.AbstractPartialFunction {
  private final LanceTarget target;
  private final String ofTarget;
  private final Map<ExprId, Object> sourceNames;
  private final String ofSource;
  private final LanceQueries queries;
  // The columns of the table among those that were replaced.
  public final Set<Object> needs = new LinkedHashSet<>();

  public LanceRenaming(LanceTarget target, String ofTarget, Map<ExprId, Object> sourceNames, String ofSource, LanceQueries queries) {
    this.target = target;
    this.ofTarget = ofTarget;
    this.sourceNames = sourceNames;
    this.ofSource = ofSource;
    this.queries = queries;
  }

  public boolean isDefinedAt(Object node) {
    return node instanceof AttributeReference || node instanceof GetStructField || node instanceof GetArrayStructFields
        || (node instanceof ScalarSubquery && ((ScalarSubquery) node).isCorrelated());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (node instanceof ScalarSubquery && isDefinedAt(node)) {
      // What it names is read; it stays as it is, as it is put into a plan and not into a Column.
      Set<Object> names = new LinkedHashSet<>(LanceQueries.neededNames((Expression) node, target.names));
      for (Object name : names) {
        refuseFileMetadata(name);
      }
      needs.addAll(names);
      return queries.add((Expression) node);
    }
    if (node instanceof AttributeReference) {
      Object id = ((AttributeReference) node).exprId();
      Object targetName = target.names.get(id);
      Object sourceName = sourceNames.get(id);
      if (targetName != null) {
        refuseFileMetadata(targetName);
        needs.add(targetName);
        return paddedOnce((AttributeReference) node, qualified(ofTarget, targetName));
      }
      if (sourceName != null) {
        return paddedOnce((AttributeReference) node, qualified(ofSource, sourceName));
      }
      if (target.identities.contains(id)) {
        throw new UnsupportedOperationException(
            target.kind + " cannot use " + ((AttributeReference) node).name()
                + ", which the view computes: name the table itself");
      }
      return node;
    }
    if (isDefinedAt(node) && isRenamed((Expression) node)) {
      // By name, as the number of a field may be another in the version that is changed.
      Expression child = (Expression) ((Expression) node).children().apply(0);
      return new UnresolvedExtractValue(child, Literal$.MODULE$.apply(field((Expression) node)));
    }
    return otherwise.apply(node);
  }

  // Spark analyzes the expression again by its names, and would pad what is compared with a CHAR column there: after
  // BETWEEN and NULLIF have become comparisons, which it does not pad in a query. It pads next to bare columns only.
  private static Expression paddedOnce(AttributeReference column, Expression byName) {
    boolean isChar = column.dataType() instanceof StringType
        && CharVarcharUtils$.MODULE$.getRawType(column.metadata()).isDefined();
    return isChar ? new Cast(byName, column.dataType(), scala.Option.empty()) : byName;
  }

  private void refuseFileMetadata(Object name) {
    if (Bridge.FILE_METADATA.equals(name) && !target.hasColumn(Bridge.FILE_METADATA)) {
      throw Bridge.noFileMetadata();
    }
  }

  private boolean isRenamed(Expression expression) {
    if (expression instanceof AttributeReference) {
      Object id = ((AttributeReference) expression).exprId();
      return target.names.containsKey(id) || sourceNames.containsKey(id);
    }
    boolean result = false;
    for (Expression child : Seqs.view(expression.children())) {
      result = result || isRenamed(child);
    }
    return result;
  }

  private static UnresolvedAttribute qualified(String alias, Object name) {
    return new UnresolvedAttribute((Seq<String>) Seqs.of(alias).appended(name));
  }

  // The name of the field that an expression takes out of a struct, or out of the structs of a list.
  public static String field(Expression get) {
    if (get instanceof GetArrayStructFields) {
      return ((GetArrayStructFields) get).field().name();
    }
    GetStructField field = (GetStructField) get;
    return ((StructType) field.child().dataType()).fields()[field.ordinal()].name();
  }
}
