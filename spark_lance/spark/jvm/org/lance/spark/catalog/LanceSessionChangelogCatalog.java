package org.lance.spark.catalog;

import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/** The session catalog that answers SELECT ... FROM t CHANGES FROM VERSION 1 for Lance tables (Spark 4.2 and newer). */
public class LanceSessionChangelogCatalog extends LanceSessionConstraintCatalog {
  public Changelog loadChangelog(Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options) {
    if (isLance(identifier)) {
      return new LanceChangelogCatalog.Changes((LanceTable) lance.loadTable(identifier), context, options);
    }
    try {
      return super.loadChangelog(identifier, context, options);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      Platform.throwException(problem);
      return null;
    }
  }
}
