package org.lance.spark.catalog;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;

/**
 * A table as the pipelines of Spark 4.3 see it when they check the targets of AUTO CDC flows.
 *
 * <p>The pipelines allow MERGE only on tables with Spark's row-level operations. Lance tables have their own, which
 * the rule of LanceStatements plans. So only this check gets such a table, and no statement does.
 */
public final class LanceMergeTarget extends LanceConstrainedTable implements SupportsSchemaEvolution, SupportsRowLevelOperations {
  public LanceMergeTarget(Map<String, Object> question, Map<String, Object> answer) {
    super(question, answer);
  }

  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    Map<String, Object> question = question(Protocol.SUPPORTS_CHANGE);
    question.put(Protocol.CHANGE, LanceTableCatalog.toJson((TableChange) change));
    return (Boolean) Bridge.ask(question, null);
  }

  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    throw new UnsupportedOperationException(name() + " plans its own " + info.command());
  }
}
