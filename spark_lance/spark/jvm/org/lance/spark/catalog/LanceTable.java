package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsAtomicPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NullOrdering;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.LanceUnits;
import org.lance.spark.load.OptionalUnit;
import org.lance.spark.load.Protocol;
import org.lance.spark.scan.LancePushdown;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/**
 * A table at one version: the newest when Spark resolved the name, or the requested one.
 *
 * <p>A catalog makes one for each name in a statement. The driver's Python plans its reads and writes (LanceScan,
 * LanceWrite). Otherwise Spark's own classes for Python data sources run them, with the columns that Spark needs.
 * Executors never get this class.
 */
public class LanceTable
    implements Table, SupportsRead, SupportsWrite, SupportsMetadataColumns, SupportsDeleteV2, SupportsAtomicPartitionManagement {
  private static final TableCapability[] ALL_CAPABILITIES = {
    TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE,
    TableCapability.OVERWRITE_BY_FILTER, TableCapability.OVERWRITE_DYNAMIC, TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE
  };
  // The columns of _metadata in file sources and Delta. Reads are refused, with the columns to use instead.
  private static final StructType FILE = StructType.fromDDL(
      "file_path STRING, file_name STRING, file_size BIGINT, file_block_start BIGINT, file_block_length BIGINT, "
          + "file_modification_time TIMESTAMP, row_index BIGINT, row_id BIGINT, row_commit_version BIGINT");
  // Members of all requests about the table: the catalog, its options and the table's name.
  private final Map<String, Object> requestBase;
  private final String displayName;
  private final StructType schema;
  // The schema with CHAR and VARCHAR as declared; Spark replaces them by strings.
  private final StructType declaredSchema;
  private final Map<String, String> properties;
  // Options of every read and write (path and storage), and of reads only (the pinned version).
  private final Map<String, String> storeOptions;
  private final Map<String, String> versionOptions;
  private final StructType hidden;
  // What Spark may push down into reads without options; null if it depends on options.
  private final Map<String, Object> pushdown;
  private final boolean writable;
  private final LancePartitions partitions;
  private final Map<String, Object> writeOrder;

  // Identifies this table in Python's cache; a table that replaces it has another key.
  private final String cacheKey = java.util.UUID.randomUUID().toString();

  /** Returns the table of an answer. Its class depends on the release of Spark. */
  public static LanceTable of(Map<String, Object> question, Map<String, Object> answer) {
    OptionalUnit kind = null;
    if (Shim.hasConstraints()) {
      String evolving = Callers.isPipeline() ? "LanceMergeTarget" : "LanceEvolvableTable";
      String name = Shim.asksForSchemaChanges() ? evolving : "LanceConstrainedTable";
      kind = OptionalUnit.find("org.lance.spark.catalog." + name, LanceTable.class.getClassLoader());
    }
    return kind == null
        ? new LanceTable(question, answer)
        : (LanceTable) kind.construct(question, answer);
  }

  public LanceTable(Map<String, Object> question, Map<String, Object> answer) {
    this.requestBase = new HashMap<>();
    this.requestBase.put(Protocol.CATALOG, question.get(Protocol.CATALOG));
    this.requestBase.put(Protocol.OPTIONS, question.get(Protocol.OPTIONS));
    // The answer has the name of the branch that the session directs the statement to.
    this.requestBase.put(Protocol.NAME, answer.getOrDefault(Protocol.NAME, question.get(Protocol.NAME)));
    this.displayName = (String) answer.get(Protocol.DISPLAY_NAME);
    this.schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    this.declaredSchema = (StructType) DataType.fromJson((String) answer.get(Protocol.DECLARED));
    this.hidden = (StructType) DataType.fromJson((String) answer.get(Protocol.HIDDEN));
    this.properties = Json.texts(answer.get(Protocol.PROPERTIES));
    this.storeOptions = Json.texts(answer.get(Protocol.STORE_OPTIONS));
    this.versionOptions = Json.texts(answer.get(Protocol.VERSION_OPTIONS));
    this.pushdown = Json.object(answer.get(Protocol.PUSHDOWN));
    this.writable = (Boolean) answer.get(Protocol.WRITABLE);
    this.partitions = new LancePartitions(Json.list(answer.get(Protocol.PARTITION_FIELDS)));
    this.writeOrder = Json.object(answer.get(Protocol.WRITE_ORDER));
  }

  /** Returns the order of written rows, as far as the rows have the columns. */
  private SortOrder[] order(StructType rows) {
    List<SortOrder> order = new ArrayList<>();
    for (Object item : writeOrder == null ? new ArrayList<>() : Json.list(writeOrder.get(Protocol.KEYS))) {
      Map<String, Object> key = Json.object(item);
      List<String> path = Json.names(key.get(Protocol.PATH));
      if (!Arrays.asList(rows.fieldNames()).contains(path.get(0))) {
        break;
      }
      StringBuilder column = new StringBuilder();
      for (String name : path) {
        column.append(column.length() == 0 ? "`" : ".`").append(name.replace("`", "``")).append("`");
      }
      boolean descends = (Boolean) key.get(Protocol.DESCENDING);
      boolean nullsFirst = key.get(Protocol.NULLS).equals("first");
      order.add(
          Expressions.sort(
              Expressions.column(column.toString()),
              descends ? SortDirection.DESCENDING : SortDirection.ASCENDING,
              nullsFirst ? NullOrdering.NULLS_FIRST : NullOrdering.NULLS_LAST));
    }
    return (SortOrder[]) order.toArray(new SortOrder[0]);
  }

  /**
   * Returns the table of the changes that a read with these options returns.
   *
   * @param streams whether a stream reads them
   */
  LanceTable changes(CaseInsensitiveStringMap options, boolean streams) {
    Map<String, Object> question = question(Protocol.LOAD_CHANGES);
    question.put(Protocol.USER_OPTIONS, new HashMap<>(Bridge.zoned(options).asCaseSensitiveMap()));
    question.put(Protocol.STREAMS, Boolean.valueOf(streams));
    return new LanceTable(question, Json.object(Bridge.ask(question, null)));
  }

  /** Asks Python for a table. */
  public static LanceTable load(Map<String, Object> question) {
    return of(question, Json.object(Bridge.ask(question, null)));
  }

  /** Returns a request about the table. */
  public final Map<String, Object> question(String verb) {
    Map<String, Object> question = Bridge.question(verb);
    question.putAll(requestBase);
    return question;
  }

  public String name() {
    return displayName;
  }

  public String id() {
    return (String) storeOptions.get(Protocol.PATH);
  }

  public String version() {
    return (String) versionOptions.get(Protocol.VERSION);
  }

  // In a statement WITH SCHEMA EVOLUTION, CHAR and VARCHAR are strings with metadata. Spark replaces them in every
  // other statement, but not there, and its rules for the columns of a write would not terminate.
  @SuppressWarnings("deprecation") // The columns with CHAR and VARCHAR, as Spark compares them.
  public StructType schema() {
    return Callers.isSchemaEvolution()
        ? CharVarcharUtils$.MODULE$.replaceCharVarcharWithStringInSchema(declaredSchema) : declaredSchema;
  }

  public Map<String, String> properties() {
    return properties;
  }

  /** Returns the path and the storage options, for statements that change rows. */
  public Map<String, String> options() {
    return storeOptions;
  }

  /** Returns whether the table can be changed: it is neither an older version nor a metadata table. */
  public boolean writable() {
    return writable;
  }

  public Transform[] partitioning() {
    return partitions.transforms();
  }

  public Set<TableCapability> capabilities() {
    Set<TableCapability> capabilities = new HashSet<>();
    for (TableCapability capability : ALL_CAPABILITIES) {
      if (writable || capability == TableCapability.BATCH_READ || capability == TableCapability.MICRO_BATCH_READ) {
        capabilities.add(capability);
      }
    }
    // Spark adds the columns of MERGE WITH SCHEMA EVOLUTION with alterTable.
    TableCapability evolution = Shim.schemaEvolution();
    if (writable && evolution != null) {
      capabilities.add(evolution);
    }
    return capabilities;
  }

  public MetadataColumn[] metadataColumns() {
    MetadataColumn[] columns = new MetadataColumn[hidden.length() == 0 ? 0 : hidden.length() + 1];
    for (int i = 0; i < hidden.length(); i++) {
      columns[i] = new HiddenColumn(hidden.fields()[i]);
    }
    if (columns.length > 0) {
      columns[hidden.length()] = new HiddenColumn(new StructField(Bridge.FILE_METADATA, FILE, true, Metadata.empty()));
    }
    return columns;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap userOptions) {
    CaseInsensitiveStringMap options = Bridge.zoned(userOptions);
    check(options, "read");
    ScanBuilder sparkBuilder = new SparkScanBuilder(this, options);
    OptionalUnit planner = OptionalUnit.find("org.lance.spark.scan.LanceScan", LanceTable.class.getClassLoader());
    if (planner == null) {
      return sparkBuilder;
    }
    CaseInsensitiveStringMap all = options(options.asCaseSensitiveMap(), true);
    boolean choosesVersion = writable && LanceUnits.hasOption(options, "version");
    return (ScanBuilder)
        planner.call(
            "builder", true, displayName, all, !choosesVersion, schema, cacheKey, hidden, options.isEmpty() ? pushdown : null, sparkBuilder);
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    check(info.options(), "write");
    return new SparkWriteBuilder(this, info, false);
  }

  /**
   * Refuses options of a statement that have no effect, or that name another table.
   *
   * @param use "read" or "write"
   */
  final void check(CaseInsensitiveStringMap options, String use) {
    if (options.isEmpty()) {
      return;
    }
    Map<String, Object> question = question(Protocol.CHECK_OPTIONS);
    question.put(Protocol.PATH, storeOptions.get(Protocol.PATH));
    question.put(Protocol.USER_OPTIONS, options.asCaseSensitiveMap());
    question.put(Protocol.USE, use);
    Bridge.ask(question, null);
  }

  /**
   * Returns the options of a read or write: the user's and the table's.
   *
   * @param pinning whether the table's version is added, unless the user chooses one
   */
  CaseInsensitiveStringMap options(Map<String, String> userOptions, boolean pinning) {
    Map<String, String> all = new HashMap<>(storeOptions);
    Map<String, String> otherOptions = new CaseInsensitiveStringMap(userOptions).asCaseSensitiveMap();
    if (!writable) {
      // Spark has loaded the version of these options, and the table pins it.
      otherOptions = withoutTimeTravel(otherOptions);
    }
    if (pinning) {
      all.putAll(versionOptions);
      if (LanceUnits.hasOption(otherOptions, "version")) {
        all.remove("version");
      }
    }
    all.putAll(otherOptions);
    return new CaseInsensitiveStringMap(all);
  }

  private static Map<String, String> withoutTimeTravel(Map<String, String> options) {
    Map<String, String> otherOptions = new HashMap<>();
    for (Map.Entry<String, String> option : options.entrySet()) {
      if (!LanceUnits.isOption((String) option.getKey(), "timeTravel")) {
        otherOptions.put(option.getKey(), option.getValue());
      }
    }
    return otherOptions;
  }

  public boolean truncateTable() {
    Map<String, Object> question = question(Protocol.TRUNCATE_TABLE);
    return (Boolean) Bridge.ask(question, null);
  }

  // Partitions exist as long as they have rows.

  public StructType partitionSchema() {
    if (partitions.isEmpty() && !Callers.isShowTableExtended()) {
      throw new UnsupportedOperationException(
          displayName + " declares no partitions: write CREATE TABLE ... PARTITIONED BY (column), or ALTER TABLE "
              + displayName + " ADD PARTITION FIELD column");
    }
    return partitions.schema();
  }

  public void createPartitions(InternalRow[] identifiers, Map<String, String>[] properties) {
    partitionSchema();
    for (Map<String, String> partitionProperties : properties) {
      if (partitionProperties.containsKey("location")) {
        throw new UnsupportedOperationException(
            "partitions of " + displayName + " have no LOCATION: INSERT INTO " + displayName + " SELECT the rows of the files");
      }
    }
  }

  public boolean dropPartition(InternalRow partition) {
    return dropPartitions(new InternalRow[] {partition});
  }

  public boolean dropPartitions(InternalRow[] identifiers) {
    partitionSchema();
    Map<String, Object> question = question(Protocol.DELETE_PARTITIONS);
    question.put(Protocol.PARTITION_VALUES, partitions.toJson(identifiers));
    return (Boolean) Bridge.ask(question, null);
  }

  public boolean purgePartition(InternalRow partition) {
    return dropPartition(partition);
  }

  public boolean purgePartitions(InternalRow[] identifiers) {
    return dropPartitions(identifiers);
  }

  public boolean truncatePartition(InternalRow partition) {
    return dropPartition(partition);
  }

  public boolean truncatePartitions(InternalRow[] identifiers) {
    return dropPartitions(identifiers);
  }

  public boolean renamePartition(InternalRow from, InternalRow to) {
    throw new UnsupportedOperationException(
        "partitions of " + displayName + " are named by their rows: write UPDATE " + displayName + " SET ... WHERE ...");
  }

  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw new UnsupportedOperationException("partitions of " + displayName + " have no properties: set those of the table");
  }

  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return new HashMap<>();
  }

  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow partition) {
    partitionSchema();
    List<List<Object>> answer = Json.lists(Bridge.ask(question(Protocol.LIST_PARTITIONS), null));
    return partitions.matching(answer, names, partition);
  }

  public boolean canDeleteWhere(Predicate[] predicates) {
    return writable && areExact(predicates);
  }

  public void deleteWhere(Predicate[] predicates) {
    Map<String, Object> question = question(Protocol.DELETE_WHERE);
    question.put(Protocol.PREDICATES, LancePushdown.toJson(withoutAlwaysTrue(predicates)));
    Bridge.ask(question, null);
  }

  /** Returns whether Python applies predicates exactly as Spark does. */
  final boolean areExact(Predicate[] predicates) {
    Predicate[] remaining = withoutAlwaysTrue(predicates);
    boolean all = true;
    for (int i = 0; all && i < remaining.length; i++) {
      all = pushdown != null && LancePushdown.isExact(remaining[i], pushdown);
    }
    return all;
  }

  /** Returns the predicates that are not always true. */
  static Predicate[] withoutAlwaysTrue(Predicate[] predicates) {
    List<Predicate> remaining = new ArrayList<>();
    for (Predicate predicate : predicates) {
      if (!predicate.name().equals("ALWAYS_TRUE")) {
        remaining.add(predicate);
      }
    }
    return (Predicate[]) remaining.toArray(new Predicate[0]);
  }

  /** A hidden column, such as _rowid: selected only by name. */
  public static final class HiddenColumn implements MetadataColumn {
    private final StructField field;

    HiddenColumn(StructField field) {
      this.field = field;
    }

    public String name() {
      return field.name();
    }

    public DataType dataType() {
      return field.dataType();
    }

    public boolean isNullable() {
      return field.nullable();
    }

    public String comment() {
      return field.getComment().isEmpty() ? null : (String) field.getComment().get();
    }
  }

  /** Builds Spark's own scan with the required columns. */
  public static final class SparkScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final LanceTable table;
    private final CaseInsensitiveStringMap options;
    private StructType columns;

    SparkScanBuilder(LanceTable table, CaseInsensitiveStringMap options) {
      this.table = table;
      this.options = options;
      this.columns = table.schema;
    }

    public void pruneColumns(StructType required) {
      columns = Bridge.readable(required, table.schema);
    }

    public Scan build() {
      Map<String, String> scanOptions = new HashMap<>(options.asCaseSensitiveMap());
      for (int i = 0; i < table.hidden.length(); i++) {
        StructField column = table.hidden.fields()[i];
        if (Arrays.asList(columns.fieldNames()).contains(column.name())) {
          scanOptions.put((String) column.metadata().getString("lance.option"), "true");
        }
      }
      // A stream reads versions before and after the pinned one.
      return scan(table.options(scanOptions, !Callers.isMicroBatch()));
    }

    private Scan scan(CaseInsensitiveStringMap all) {
      return Shim.tableOf(Bridge.source(), columns).newScanBuilder(all).build();
    }
  }

  /** Builds Spark's own write to the table's path. */
  public static final class SparkWriteBuilder
      implements WriteBuilder, SupportsTruncate, SupportsOverwriteV2, SupportsDynamicOverwrite {
    private final LanceTable table;
    private final LogicalWriteInfo info;
    private final Map<String, String> moreOptions = new HashMap<>();
    private boolean truncates;
    // The declaration of a table that the write creates or replaces; null for other writes.
    private String declaration = null;

    SparkWriteBuilder(LanceTable table, LogicalWriteInfo info, boolean truncates) {
      this.table = table;
      this.info = info;
      this.truncates = truncates;
    }

    /** Adds an option. */
    SparkWriteBuilder with(String option, String value) {
      moreOptions.put(option, value);
      return this;
    }

    /** Sets the declaration of a table that the write creates or replaces. */
    SparkWriteBuilder withDeclaration(String declaration) {
      this.declaration = declaration;
      return this;
    }

    public WriteBuilder truncate() {
      truncates = true;
      return this;
    }

    // A table without partitions counts as one partition.
    public WriteBuilder overwriteDynamicPartitions() {
      if (!table.partitions.isEmpty()) {
        moreOptions.put("partitionOverwriteMode", "dynamic");
      }
      return truncate();
    }

    public boolean canOverwrite(Predicate[] predicates) {
      if (!table.areExact(predicates)) {
        throw new UnsupportedOperationException(
            table.displayName + " cannot replace the rows of this condition: REPLACE WHERE takes comparisons, IN, LIKE 'a%' and"
                + " null tests of columns without a collation, with AND, OR and NOT: run DELETE with the condition, then append");
      }
      return true;
    }

    public WriteBuilder overwrite(Predicate[] predicates) {
      truncates = true;
      Predicate[] remaining = withoutAlwaysTrue(predicates);
      if (remaining.length > 0) {
        // Predicates as a JSON list instead of SQL: see spark/sink/write_schema.py.
        moreOptions.put("replaceWhere", Bridge.json(LancePushdown.toJson(remaining)));
      }
      return this;
    }

    public Write build() {
      Map<String, String> all = new HashMap<>(info.options().asCaseSensitiveMap());
      all.putAll(moreOptions);
      CaseInsensitiveStringMap options = table.options(all, false);
      PythonDataSourceV2 source = Bridge.source();
      LogicalWriteInfo writeInfo = new WriteInfo(info, options);
      WriteBuilder sparkBuilder = Shim.tableOf(source, info.schema()).newWriteBuilder(writeInfo);
      SortOrder[] order = table.order(info.schema());
      boolean isDistributed = order.length > 0 && (Boolean) table.writeOrder.get(Protocol.DISTRIBUTED);
      WriteBuilder builder = Bridge.writing(
          true, table.displayName, source, writeInfo, table.partitions.transforms(), order, isDistributed, declaration, sparkBuilder);
      return (truncates ? ((SupportsTruncate) builder).truncate() : builder).build();
    }
  }

  /** Spark's description of a write, with the table's options. */
  public static final class WriteInfo implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    public WriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
      this.info = info;
      this.options = options;
    }

    public CaseInsensitiveStringMap options() {
      return options;
    }

    public String queryId() {
      return info.queryId();
    }

    @SuppressWarnings("deprecation") // The columns with CHAR and VARCHAR, as Spark compares them.
    public StructType schema() {
      return info.schema();
    }
  }

  /** A table that a statement creates or replaces together with its rows. */
  public static final class Staged extends LanceTable implements StagedTable {
    private final Map<String, Object> question;
    private final Map<String, Object> staged;
    private boolean hasWrite = false;

    public Staged(Map<String, Object> question, Map<String, Object> answer) {
      super(question, answer);
      this.question = question;
      this.staged = Json.object(answer.get(Protocol.STAGED));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      check(info.options(), "write");
      hasWrite = true;
      SparkWriteBuilder builder = new SparkWriteBuilder(this, info, (Boolean) staged.get(Protocol.TRUNCATES));
      if (LanceUnits.hasOption(info.options(), "replacement")
          || ((Boolean) staged.get(Protocol.TRUNCATES) && keepsColumns(info.options()))) {
        return builder; // saveAsTable: the other rows stay, and so does the schema
      }
      builder.withDeclaration((String) staged.get(Protocol.DECLARATION));
      for (Map.Entry<String, String> option : Json.texts(staged.get(Protocol.OPTIONS)).entrySet()) {
        builder.with((String) option.getKey(), (String) option.getValue());
      }
      return builder;
    }

    /** Returns whether the replaced table keeps its columns. */
    private static boolean keepsColumns(CaseInsensitiveStringMap options) {
      String replaces = options.get("overwriteSchema");
      return replaces == null ? Bridge.isTrue(options.get("mergeSchema")) : !Bridge.isTrue(replaces);
    }

    public void commitStagedChanges() {
      finish(Protocol.COMMIT_STAGED);
    }

    public void abortStagedChanges() {
      finish(Protocol.ABORT_STAGED);
    }

    private void finish(String verb) {
      Map<String, Object> request = new HashMap<>(question);
      request.put(Protocol.VERB, verb);
      request.put(Protocol.WRITTEN, Boolean.valueOf(hasWrite));
      request.put(Protocol.STAGED, staged);
      Bridge.ask(request, null);
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }
  }
}
