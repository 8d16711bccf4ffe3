package org.lance.spark.write;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;

/**
 * Adds new columns for writes by name with the options mergeSchema and overwriteSchema.
 *
 * <p>Spark compares the columns of a query with the table's columns before it tells the table of the write.
 * LanceStatements calls this class before that. It replaces the table by one that already has the new columns. Spark
 * then casts the rows as always, and the write adds the columns.
 */
public final class LanceNewColumns {
  private LanceNewColumns() {}

  /**
   * Replaces the table of a write by one with the new columns.
   *
   * @return the write itself if there are no new columns, or if it is no write by name to a Lance table
   */
  public static LogicalPlan addColumns(LogicalPlan write) {
    V2WriteCommand command = (V2WriteCommand) write;
    DataSourceV2Relation relation = relation((LogicalPlan) command.table());
    if (relation == null || relation.table() instanceof StagedTable) {
      return write;
    }
    LogicalPlan query = command.query();
    query = query.resolved() ? query : SparkSession.active().sessionState().analyzer().execute(query);
    if (!query.resolved()) {
      return write;
    }
    boolean replaces = replaces(write);
    Map<String, Object> question = ((LanceTable) relation.table()).question(Protocol.LOAD_MERGED);
    question.put(Protocol.ROWS, query.schema().json());
    question.put(Protocol.BY_NAME, command.isByName());
    question.put(Protocol.REPLACES, replaces);
    LanceTable table = LanceTable.load(question);
    if (table.schema().equals(relation.schema()) || table.schema().equals(((LanceTable) relation.table()).schema())) {
      return write; // no new columns, or the table has them already
    }
    Object[] parts = new Object[relation.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = relation.productElement(i);
      if (part instanceof Table) {
        part = table;
      } else if (part == relation.output()) {
        part = DataTypeUtils$.MODULE$.toAttributes(
            CharVarcharUtils$.MODULE$.replaceCharVarcharWithStringInSchema(table.schema()));
      }
      parts[i] = part;
    }
    LogicalPlan widenedRelation = (LogicalPlan) relation.makeCopy(parts);
    Object[] copy = new Object[write.productArity()];
    for (int i = 0; i < copy.length; i++) {
      Object part = write.productElement(i);
      copy[i] = part == command.table() ? widenedRelation : part == command.query() ? query : part;
    }
    return (LogicalPlan) write.makeCopy(copy);
  }

  /** Returns whether a write replaces all rows, and so the columns. */
  private static boolean replaces(LogicalPlan write) {
    boolean overwrites = false;
    boolean overwritesSchema = false;
    for (int i = 0; i < write.productArity(); i++) {
      Object part = write.productElement(i);
      if (write.productElementName(i).equals("deleteExpr")) {
        overwrites = part instanceof Literal && Boolean.TRUE.equals(((Literal) part).value());
      } else if (write.productElementName(i).equals("writeOptions")) {
        Map<String, String> options = scala.jdk.javaapi.CollectionConverters.asJava(Seqs.<String, String>map(part));
        overwritesSchema = Bridge.isTrue(new CaseInsensitiveStringMap(options).get("overwriteSchema"));
      }
    }
    return overwritesSchema && (overwrites || write.getClass().getSimpleName().equals("OverwritePartitionsDynamic"));
  }

  /** Returns the relation of the Lance table that a plan is or names; null if there is none. */
  static DataSourceV2Relation relation(LogicalPlan table) {
    LogicalPlan plan = table;
    if (plan instanceof UnresolvedRelation) {
      UnresolvedRelation relation = (UnresolvedRelation) plan;
      plan = SparkSession.active().sessionState().analyzer().execute(
          relation.copy(relation.multipartIdentifier(), new CaseInsensitiveStringMap(new HashMap<>()), false));
    }
    while (plan instanceof SubqueryAlias) {
      plan = ((SubqueryAlias) plan).child();
    }
    boolean isLance = plan instanceof DataSourceV2Relation && ((DataSourceV2Relation) plan).table() instanceof LanceTable;
    return isLance ? (DataSourceV2Relation) plan : null;
  }
}
