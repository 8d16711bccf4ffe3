package org.lance.spark.catalog;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableInfo;

/** The catalog that takes constraints in CREATE TABLE and REPLACE TABLE (Spark 4.1 and newer). */
public class LanceConstraintCatalog extends LanceTableCatalog {
  public Set<TableCatalogCapability> capabilities() {
    Set<TableCatalogCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
    return all;
  }

  public Table createTable(Identifier identifier, TableInfo info) {
    return createWithConstraints(
        identifier, schema(info.columns()), info.partitions(), info.properties(), LanceConstrainedTable.toJson(info.constraints()));
  }

  /**
   * Creates a table for CREATE TABLE LIKE (Spark 4.2 and newer). It gets the properties of a Lance table, except for
   * those that the statement sets.
   */
  public Table createTableLike(Identifier identifier, TableInfo info, Table source) {
    Map<String, String> properties = new HashMap<>();
    if (source instanceof LanceTable) {
      properties.putAll(source.properties());
      properties.remove(TableCatalog.PROP_LOCATION);
      properties.remove(TableCatalog.PROP_IS_MANAGED_LOCATION);
    }
    properties.putAll(info.properties());
    return createWithConstraints(
        identifier, schema(info.columns()), info.partitions(), properties, LanceConstrainedTable.toJson(info.constraints()));
  }

  public StagedTable stageCreate(Identifier identifier, TableInfo info) {
    return stage("create", identifier, info);
  }

  public StagedTable stageReplace(Identifier identifier, TableInfo info) {
    return stage("replace", identifier, info);
  }

  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info) {
    return stage("create_or_replace", identifier, info);
  }

  private StagedTable stage(String mode, Identifier identifier, TableInfo info) {
    return stage(
        mode, identifier, schema(info.columns()), info.partitions(), info.properties(), LanceConstrainedTable.toJson(info.constraints()));
  }
}
