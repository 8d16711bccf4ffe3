package org.lance.spark.catalog;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.DelegatingCatalogExtension;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.V1Table;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Bridge;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;
import org.slf4j.LoggerFactory;

/**
 * The session catalog spark_catalog with Lance tables.
 *
 * <p>Spark's own catalog keeps the registry: names, formats and locations of all tables. Calls about tables of other
 * formats go to it. LanceTableCatalog handles Lance tables. Python finds their locations in the registry
 * (spark/sql/session_names.py). The class LanceSessionCatalog, which the settings name, extends this class.
 */
public class LanceSessionTableCatalog extends DelegatingCatalogExtension implements StagingTableCatalog, ProcedureCatalog {
  private static final String FORMAT = "lance";
  final LanceTableCatalog lance;

  public LanceSessionTableCatalog() {
    this(new LanceTableCatalog());
  }

  /** Creates the catalog with the catalog of its Lance tables. */
  LanceSessionTableCatalog(LanceTableCatalog lance) {
    this.lance = lance;
  }

  public void initialize(String name, CaseInsensitiveStringMap options) {
    lance.initialize(name, options);
  }

  // Generated and identity columns are for Lance tables. createTable refuses them for tables of other formats.
  public Set<TableCatalogCapability> capabilities() {
    Set<TableCatalogCapability> all = new HashSet<>(super.capabilities());
    all.addAll(lance.capabilities());
    return all;
  }

  /** Returns the catalog of Lance tables that a catalog is or contains; null if there is none. */
  public static LanceTableCatalog lanceOf(CatalogPlugin catalog) {
    if (catalog instanceof LanceSessionTableCatalog) {
      return ((LanceSessionTableCatalog) catalog).lance;
    }
    return catalog instanceof LanceTableCatalog ? (LanceTableCatalog) catalog : null;
  }

  /** Rewrites SHOW TABLES for Spark's own catalog class: only that class lists temporary views. */
  public static LogicalPlan showTables(LogicalPlan statement) {
    LogicalPlan namespace = (LogicalPlan) statement.children().apply(0);
    if (!(namespace instanceof ResolvedNamespace) || !(((ResolvedNamespace) namespace).catalog() instanceof LanceSessionTableCatalog)) {
      return statement;
    }
    LanceSessionTableCatalog catalog = (LanceSessionTableCatalog) ((ResolvedNamespace) namespace).catalog();
    LogicalPlan sparkNamespace = copyOf(namespace, catalog, catalog.delegate);
    return copyOf(statement, namespace, sparkNamespace);
  }

  private static LogicalPlan copyOf(LogicalPlan plan, Object old, Object replacement) {
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      parts[i] = plan.productElement(i) == old ? replacement : plan.productElement(i);
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }

  // Tables

  public Table loadTable(Identifier identifier) {
    Table entry = registryTable(identifier);
    if (entry == null) {
      return lance.loadTable(qualify(identifier));
    }
    if (isLance(entry)) {
      Table table = lance.loadTable(identifier);
      // The registry has the columns of the table, not those of a branch.
      return Bridge.isStaging() ? table : syncColumns(identifier, entry, table);
    }
    return entry instanceof V1Table && Callers.isSavingAsTable() && !Callers.isResolvingRelations() ? new ForeignTable(entry) : entry;
  }

  public Table loadTable(Identifier identifier, Set<TableWritePrivilege> privileges) throws NoSuchTableException {
    if (!Bridge.isStaging()) {
      return loadTable(identifier);
    }
    Table entry = registryTable(identifier);
    boolean isOther = entry != null && !isLance(entry);
    return isOther ? loadTable(identifier) : lance.loadTable(entry == null ? qualify(identifier) : identifier, privileges);
  }

  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    Table entry = registryTable(identifier);
    boolean isOther = entry != null && !isLance(entry);
    return isOther ? super.loadTable(identifier, version) : lance.loadTable(qualify(identifier), version);
  }

  public Table loadTable(Identifier identifier, long micros) throws NoSuchTableException {
    Table entry = registryTable(identifier);
    boolean isOther = entry != null && !isLance(entry);
    return isOther ? super.loadTable(identifier, micros) : lance.loadTable(qualify(identifier), micros);
  }

  /** Returns the registry's entry of a table; null if there is none. */
  private Table registryTable(Identifier identifier) {
    if (identifier.namespace().length != 1) {
      return null;
    }
    try {
      return super.loadTable(identifier);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      if (!(problem instanceof NoSuchTableException) && !(problem instanceof NoSuchNamespaceException)) {
        Platform.throwException(problem);
      }
      return null;
    }
  }

  final boolean isLance(Identifier identifier) {
    Table entry = registryTable(identifier);
    return entry != null && isLance(entry);
  }

  private static boolean isLance(Table entry) {
    return FORMAT.equalsIgnoreCase((String) entry.properties().get(TableCatalog.PROP_PROVIDER));
  }

  static boolean isLance(Map<String, String> properties) {
    return FORMAT.equalsIgnoreCase((String) properties.get(TableCatalog.PROP_PROVIDER));
  }

  /**
   * Returns the full name of a metadata table or branch of a table of the current database, such as t.history. Other
   * names are returned unchanged.
   */
  private Identifier qualify(Identifier identifier) {
    String[] namespace = identifier.namespace();
    if (namespace.length != 1 || namespaceExists(namespace)) {
      return identifier;
    }
    String[] current = SparkSession.active().sessionState().catalogManager().currentNamespace();
    boolean isCurrent = SparkSession.active().sessionState().catalogManager().currentCatalog() == this;
    if (!isCurrent || current.length != 1 || !isLance(Identifier.of(current, namespace[0]))) {
      return identifier;
    }
    return Identifier.of(new String[] {current[0], namespace[0]}, identifier.name());
  }

  /**
   * Updates the table's columns in the registry, because JDBC tools read them there.
   *
   * @return the table
   */
  @SuppressWarnings("deprecation") // Spark has no public method from columns to a schema.
  private Table syncColumns(Identifier identifier, Table entry, Table table) {
    StructType columns = Shim.registryColumns(table.schema());
    if (!columns.equals(entry.schema())) {
      try {
        Shim.changeRegisteredColumns(SparkSession.active(), identifier.namespace()[0], identifier.name(), columns.json());
      } catch (Exception problem) {
        LoggerFactory.getLogger("spark_lance").warn(
            "The session's catalog still lists the old columns of " + identifier + ": " + problem.toString().split("\n")[0]);
      }
    }
    if ("true".equals(entry.properties().get(TableCatalog.PROP_EXTERNAL))) {
      table.properties().remove(TableCatalog.PROP_IS_MANAGED_LOCATION);
      table.properties().put(TableCatalog.PROP_EXTERNAL, "true");
    }
    return table;
  }

  public Table createTable(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    if (isLance(properties)) {
      return lance.createTable(identifier, schema, partitions, properties);
    }
    try {
      return super.createTable(identifier, schema, partitions, properties);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      Platform.throwException(problem);
      return null;
    }
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public Table createTable(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    try {
      if (isLance(properties)) {
        return lance.createTable(identifier, columns, partitions, properties);
      }
      checkComputed(identifier, columns, properties);
      return super.createTable(identifier, columns, partitions, properties);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      Platform.throwException(problem);
      return null;
    }
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreate(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    if (isLance(properties)) {
      checkNotOtherFormat(identifier);
      return lance.stageCreate(identifier, schema, partitions, properties);
    }
    return new CreatedTable(this, identifier, createTable(identifier, schema, partitions, properties));
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageReplace(Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    checkReplacement(identifier, properties);
    return lance.stageReplace(identifier, schema, partitions, properties);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreateOrReplace(
      Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    if (!isLance(properties) && registryTable(identifier) == null) {
      return stageCreate(identifier, schema, partitions, properties);
    }
    checkReplacement(identifier, properties);
    return lance.stageCreateOrReplace(identifier, schema, partitions, properties);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreate(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    checkComputed(identifier, columns, properties);
    return stageCreate(identifier, LanceTableCatalog.schema(columns), partitions, properties);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageReplace(Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return stageReplace(identifier, LanceTableCatalog.schema(columns), partitions, properties);
  }

  @SuppressWarnings("deprecation") // Spark 4.0 calls this one.
  public StagedTable stageCreateOrReplace(
      Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    checkComputed(identifier, columns, properties);
    return stageCreateOrReplace(identifier, LanceTableCatalog.schema(columns), partitions, properties);
  }

  /** Refuses generated and identity columns in tables of other formats, which would not compute them. */
  private static void checkComputed(Identifier identifier, Column[] columns, Map<String, String> properties) {
    for (Column column : columns) {
      if (!isLance(properties) && (column.generationExpression() != null || column.identityColumnSpec() != null)) {
        throw new UnsupportedOperationException(
            "a table of the format " + properties.get(TableCatalog.PROP_PROVIDER) + " cannot compute column " + column.name()
                + ": write CREATE TABLE " + identifier + " (...) USING lance");
      }
    }
  }

  /** Throws TableAlreadyExistsException if the name belongs to a table of another format. */
  final void checkNotOtherFormat(Identifier identifier) {
    Table entry = registryTable(identifier);
    if (entry != null && !isLance(entry)) {
      Platform.throwException(Bridge.exists(identifier));
    }
  }

  /**
   * Refuses to replace a table of another format, or a Lance table by another format: only Lance tables are replaced
   * in one step.
   */
  final void checkReplacement(Identifier identifier, Map<String, String> properties) {
    Table entry = registryTable(identifier);
    String name = identifier.namespace().length == 1 ? identifier.namespace()[0] + "." + identifier.name() : identifier.name();
    if (entry != null && !isLance(entry)) {
      throw new UnsupportedOperationException(name + " is a table of the format "
          + entry.properties().get(TableCatalog.PROP_PROVIDER) + ", which a Lance table cannot replace: write DROP TABLE " + name
          + " first");
    }
    if (!isLance(properties)) {
      throw new UnsupportedOperationException(name + " is a Lance table, which a table of the format "
          + properties.get(TableCatalog.PROP_PROVIDER) + " cannot replace: write DROP TABLE " + name + " first");
    }
  }

  public Table alterTable(Identifier identifier, TableChange... changes) {
    Table entry = registryTable(identifier);
    if (entry != null && isLance(entry)) {
      return syncColumns(identifier, entry, lance.alterTable(identifier, changes));
    }
    try {
      return super.alterTable(identifier, changes);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      Platform.throwException(problem);
      return null;
    }
  }

  public boolean dropTable(Identifier identifier) {
    return isLance(identifier) ? lance.dropTable(identifier) : super.dropTable(identifier);
  }

  public boolean purgeTable(Identifier identifier) {
    return isLance(identifier) ? lance.dropTable(identifier) : super.purgeTable(identifier);
  }

  // Functions. Spark looks up the transforms of partition fields without a namespace, where its own catalog fails.

  public boolean functionExists(Identifier identifier) {
    return identifier.namespace().length == 0 ? lance.functionExists(identifier) : super.functionExists(identifier);
  }

  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    return identifier.namespace().length == 0 ? lance.loadFunction(identifier) : super.loadFunction(identifier);
  }

  // Procedures

  public Identifier[] listProcedures(String[] namespace) {
    return lance.listProcedures(namespace);
  }

  public UnboundProcedure loadProcedure(Identifier identifier) {
    return lance.loadProcedure(identifier);
  }

  /**
   * A table of another format, for saveAsTable with the format lance. Spark would first drop its own kind of table,
   * and then fail to write, because it cannot write such tables with Python data sources.
   */
  public static final class ForeignTable implements Table {
    private final Table table;

    ForeignTable(Table table) {
      this.table = table;
    }

    public String name() {
      return table.name();
    }

    @SuppressWarnings("deprecation") // Spark has no public method from columns to a schema.
    public StructType schema() {
      return table.schema();
    }

    public Map<String, String> properties() {
      return table.properties();
    }

    public Set<TableCapability> capabilities() {
      return table.capabilities();
    }
  }

  /** A table of another format, which is created before its rows are written, as in Spark's own catalog. */
  public static final class CreatedTable implements StagedTable, SupportsWrite {
    private final LanceSessionTableCatalog catalog;
    private final Identifier identifier;
    private final Table table;

    CreatedTable(LanceSessionTableCatalog catalog, Identifier identifier, Table table) {
      this.catalog = catalog;
      this.identifier = identifier;
      this.table = table;
    }

    public String name() {
      return table.name();
    }

    @SuppressWarnings("deprecation") // Spark has no public method from columns to a schema.
    public StructType schema() {
      return table.schema();
    }

    public Set<TableCapability> capabilities() {
      return table.capabilities();
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      if (!(table instanceof SupportsWrite)) {
        throw new UnsupportedOperationException(
            "CREATE TABLE ... AS SELECT cannot write " + table.name() + ": create the table, then INSERT INTO it");
      }
      return ((SupportsWrite) table).newWriteBuilder(info);
    }

    public void commitStagedChanges() {}

    public void abortStagedChanges() {
      catalog.dropTable(identifier);
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }
  }
}
