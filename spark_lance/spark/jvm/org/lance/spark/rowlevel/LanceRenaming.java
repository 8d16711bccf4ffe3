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

/** Replaces the columns of target and source in an expression by qualified names, which DataFrames resolve. */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceRenaming extends scala.runtime.AbstractPartialFunction {
  private final LanceTarget target;
  private final String targetAlias;
  private final Map<ExprId, Object> sourceNames;
  private final String sourceAlias;
  private final LanceQueries queries;
  // The columns of the target that the expression needs.
  public final Set<Object> needs = new LinkedHashSet<>();

  public LanceRenaming(LanceTarget target, String targetAlias, Map<ExprId, Object> sourceNames, String sourceAlias, LanceQueries queries) {
    this.target = target;
    this.targetAlias = targetAlias;
    this.sourceNames = sourceNames;
    this.sourceAlias = sourceAlias;
    this.queries = queries;
  }

  public boolean isDefinedAt(Object node) {
    return node instanceof AttributeReference || node instanceof GetStructField || node instanceof GetArrayStructFields
        || (node instanceof ScalarSubquery && ((ScalarSubquery) node).isCorrelated());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (node instanceof ScalarSubquery && isDefinedAt(node)) {
      // A subquery stays unchanged: it becomes part of a plan and not of a Column. Its columns must be read.
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
        return withoutSecondPadding((AttributeReference) node, qualify(targetAlias, targetName));
      }
      if (sourceName != null) {
        return withoutSecondPadding((AttributeReference) node, qualify(sourceAlias, sourceName));
      }
      if (target.identities.contains(id)) {
        throw new UnsupportedOperationException(
            target.kind + " cannot use " + ((AttributeReference) node).name()
                + ", which the view computes: name the table itself");
      }
      return node;
    }
    if (isDefinedAt(node) && isRenamed((Expression) node)) {
      // Fields are taken by name, as their positions may differ in the version that is changed.
      Expression child = (Expression) ((Expression) node).children().apply(0);
      return new UnresolvedExtractValue(child, Literal$.MODULE$.apply(field((Expression) node)));
    }
    return otherwise.apply(node);
  }

  /**
   * Casts a CHAR column to its own type. Spark analyzes the expression again by its names, and would pad values next
   * to a bare CHAR column. By then BETWEEN and NULLIF are comparisons, which Spark does not pad in a query.
   */
  private static Expression withoutSecondPadding(AttributeReference column, Expression byName) {
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

  private static UnresolvedAttribute qualify(String alias, Object name) {
    return new UnresolvedAttribute((Seq<String>) Seqs.of(alias).appended(name));
  }

  /** Returns the name of the field that an expression extracts from a struct, or from the structs of an array. */
  public static String field(Expression get) {
    if (get instanceof GetArrayStructFields) {
      return ((GetArrayStructFields) get).field().name();
    }
    GetStructField field = (GetStructField) get;
    return ((StructType) field.child().dataType()).fields()[field.ordinal()].name();
  }
}
