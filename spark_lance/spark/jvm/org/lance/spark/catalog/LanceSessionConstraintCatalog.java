package org.lance.spark.catalog;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableInfo;

/** The session catalog that takes constraints of Lance tables in CREATE TABLE and REPLACE TABLE (Spark 4.1 and newer). */
public class LanceSessionConstraintCatalog extends LanceSessionTableCatalog {
  final LanceConstraintCatalog constrained;

  public LanceSessionConstraintCatalog() {
    this(new LanceConstraintCatalog());
  }

  /** Creates the catalog with the catalog of its Lance tables. */
  LanceSessionConstraintCatalog(LanceConstraintCatalog lance) {
    super(lance);
    this.constrained = lance;
  }

  @SuppressWarnings("deprecation") // Tables of other formats are created as in Spark 4.0.
  public Table createTable(Identifier identifier, TableInfo info) {
    if (isLance(info.properties())) {
      return constrained.createTable(identifier, info);
    }
    checkConstraints(identifier, info);
    return createTable(identifier, info.columns(), info.partitions(), info.properties());
  }

  @SuppressWarnings("deprecation") // Tables of other formats are created as in Spark 4.0.
  public StagedTable stageCreate(Identifier identifier, TableInfo info) {
    if (isLance(info.properties())) {
      checkNotOtherFormat(identifier);
      return constrained.stageCreate(identifier, info);
    }
    checkConstraints(identifier, info);
    return stageCreate(identifier, info.columns(), info.partitions(), info.properties());
  }

  public StagedTable stageReplace(Identifier identifier, TableInfo info) {
    checkReplacement(identifier, info.properties());
    return constrained.stageReplace(identifier, info);
  }

  @SuppressWarnings("deprecation") // Tables of other formats are created as in Spark 4.0.
  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info) {
    if (isLance(info.properties())) {
      checkReplacement(identifier, info.properties());
      return constrained.stageCreateOrReplace(identifier, info);
    }
    checkConstraints(identifier, info);
    return stageCreateOrReplace(identifier, info.columns(), info.partitions(), info.properties());
  }

  /** Refuses constraints of tables of other formats, which would not keep them. */
  private static void checkConstraints(Identifier identifier, TableInfo info) {
    Map<String, String> properties = info.properties();
    if (info.constraints().length > 0) {
      throw new UnsupportedOperationException(
          "a table of the format " + properties.get(TableCatalog.PROP_PROVIDER) + " has no constraints: leave them out, or write CREATE TABLE "
              + identifier + " (...) USING lance");
    }
  }
}
