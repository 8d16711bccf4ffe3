package org.lance.spark.catalog;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;

/**
 * A table that tells Spark which schema changes a statement WITH SCHEMA EVOLUTION may make (Spark 4.2 and newer).
 *
 * <p>Spark leaves out the changes that the table does not support, and casts the source's values as without evolution.
 */
public final class LanceEvolvableTable extends LanceConstrainedTable implements SupportsSchemaEvolution {
  public LanceEvolvableTable(Map<String, Object> question, Map<String, Object> answer) {
    super(question, answer);
  }

  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    Map<String, Object> question = question(Protocol.SUPPORTS_CHANGE);
    question.put(Protocol.CHANGE, LanceTableCatalog.toJson((TableChange) change));
    return (Boolean) Bridge.ask(question, null);
  }
}
