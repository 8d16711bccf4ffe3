// A table as the pipelines of Spark 4.3 see it when they check the targets of AUTO CDC flows.
//
// They take MERGE for possible only on tables with row-level operations of Spark. Ours has its own, which a rule plans in
// place of Spark's (LanceStatements), so only this check gets such a table, and no statement does.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;

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
