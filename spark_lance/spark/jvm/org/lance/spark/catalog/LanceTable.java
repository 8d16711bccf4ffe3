// The table behind a name of the catalog: it knows its path, schema and version.
//
// The driver's Python plans its reads and writes (LanceScan, LanceWrite). Where it does not, they end in Spark's own
// classes for Python data sources, with the columns that Spark asks for. Nothing of this is sent to executors.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
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
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.LanceUnits;
import org.lance.spark.load.OptionalUnit;
import org.lance.spark.load.Protocol;
import org.lance.spark.scan.LancePushdown;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/** A table, at the version that was the newest when its name was resolved, or the one asked for. */
public class LanceTable
    implements Table, SupportsRead, SupportsWrite, SupportsMetadataColumns, SupportsDeleteV2, SupportsAtomicPartitionManagement {
  private static final TableCapability[] ABILITIES = {
    TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE,
    TableCapability.OVERWRITE_BY_FILTER, TableCapability.OVERWRITE_DYNAMIC, TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE
  };
  // What file sources and Delta have in _metadata. Reads of it are refused, with the columns to use instead.
  private static final StructType FILE = StructType.fromDDL(
      "file_path STRING, file_name STRING, file_size BIGINT, file_block_start BIGINT, file_block_length BIGINT, "
          + "file_modification_time TIMESTAMP, row_index BIGINT, row_id BIGINT, row_commit_version BIGINT");
  // What questions about the table have in common: the catalog, its options and the table's name.
  private final Map place;
  private final String displayName;
  private final StructType schema;
  // With CHAR and VARCHAR where the columns were declared so; Spark replaces them by strings itself.
  private final StructType declared;
  private final Map properties;
  // Options of every read and write (the path, those of the store), and of reads only (what pins the version).
  private final Map storeOptions;
  private final Map versionOptions;
  private final StructType hidden;
  // What Spark may push down into reads without options of their own; null if only such options tell.
  private final Map pushdown;
  private final boolean writable;
  private final LancePartitions partitions;

  // By it Python tells this table from one that takes its place.
  private final String cacheKey = java.util.UUID.randomUUID().toString();

  // The table of a question and its answer.
  public static LanceTable of(Map asked, Map answer) {
    OptionalUnit kind = null;
    if (Shim.hasConstraints()) {
      String evolving = Callers.isPipeline() ? "LanceMergeTarget" : "LanceEvolvableTable";
      String name = Shim.asksForSchemaChanges() ? evolving : "LanceConstrainedTable";
      kind = OptionalUnit.find("org.lance.spark.catalog." + name, LanceTable.class.getClassLoader());
    }
    return kind == null
        ? new LanceTable(asked, answer) : (LanceTable) kind.construct(new Object[] {asked, answer});
  }

  public LanceTable(Map asked, Map answer) {
    this.place = new HashMap();
    this.place.put(Protocol.CATALOG, asked.get(Protocol.CATALOG));
    this.place.put(Protocol.OPTIONS, asked.get(Protocol.OPTIONS));
    this.place.put(Protocol.NAME, asked.get(Protocol.NAME));
    this.displayName = (String) answer.get(Protocol.DISPLAY_NAME);
    this.schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    this.declared = (StructType) DataType.fromJson((String) answer.get(Protocol.DECLARED));
    this.hidden = (StructType) DataType.fromJson((String) answer.get(Protocol.HIDDEN));
    this.properties = (Map) answer.get(Protocol.PROPERTIES);
    this.storeOptions = (Map) answer.get(Protocol.ALWAYS);
    this.versionOptions = (Map) answer.get(Protocol.PINNED);
    this.pushdown = (Map) answer.get(Protocol.PUSHDOWN);
    this.writable = ((Boolean) answer.get(Protocol.WRITABLE)).booleanValue();
    this.partitions = new LancePartitions((List) answer.get(Protocol.PARTITION_FIELDS));
  }

  // The table of the changes that a read with these options is about.
  LanceTable changes(CaseInsensitiveStringMap given, boolean streams) {
    Map question = question(Protocol.LOAD_CHANGES);
    question.put(Protocol.USER_OPTIONS, new HashMap(Bridge.zoned(given).asCaseSensitiveMap()));
    question.put(Protocol.STREAMS, Boolean.valueOf(streams));
    return new LanceTable(question, (Map) Bridge.ask(question, null));
  }

  // The table that answers a question.
  public static LanceTable answered(Map question) {
    return of(question, (Map) Bridge.ask(question, null));
  }

  public final Map question(String verb) {
    Map question = Bridge.question(verb);
    question.putAll(place);
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

  // A statement WITH SCHEMA EVOLUTION sees CHAR and VARCHAR as strings with metadata. Spark replaces these types in every
  // other statement, but not there, and its rules for the columns of a write would never end.
  public StructType schema() {
    return Callers.isSchemaEvolution()
        ? CharVarcharUtils$.MODULE$.replaceCharVarcharWithStringInSchema(declared) : declared;
  }

  public Map properties() {
    return properties;
  }

  // For statements that change rows: the path and the options of the store.
  public Map options() {
    return storeOptions;
  }

  public boolean writable() {
    return writable;
  }

  public Transform[] partitioning() {
    return partitions.transforms();
  }

  public Set capabilities() {
    Set found = new HashSet();
    for (int i = 0; i < ABILITIES.length; i++) {
      if (writable || ABILITIES[i] == TableCapability.BATCH_READ || ABILITIES[i] == TableCapability.MICRO_BATCH_READ) {
        found.add(ABILITIES[i]);
      }
    }
    // Spark adds the columns of MERGE WITH SCHEMA EVOLUTION by alterTable.
    TableCapability evolution = Shim.schemaEvolution();
    if (writable && evolution != null) {
      found.add(evolution);
    }
    return found;
  }

  public MetadataColumn[] metadataColumns() {
    MetadataColumn[] columns = new MetadataColumn[hidden.length() == 0 ? 0 : hidden.length() + 1];
    for (int i = 0; i < hidden.length(); i++) {
      columns[i] = new Hidden(hidden.fields()[i]);
    }
    if (columns.length > 0) {
      columns[hidden.length()] = new Hidden(new StructField(Bridge.FILE_METADATA, FILE, true, Metadata.empty()));
    }
    return columns;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    CaseInsensitiveStringMap options = Bridge.zoned(given);
    check(options, "read");
    ScanBuilder own = new Reading(this, options);
    OptionalUnit planner = OptionalUnit.find("org.lance.spark.scan.LanceScan", LanceTable.class.getClassLoader());
    if (planner == null) {
      return own;
    }
    CaseInsensitiveStringMap all = options(options.asCaseSensitiveMap(), true);
    boolean named = writable && LanceUnits.hasOption(options, "version");
    return (ScanBuilder)
        planner.call("builder", new Object[] {true, displayName, all, !named, schema, cacheKey, hidden, options.isEmpty() ? pushdown : null, own});
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    check(info.options(), "write");
    return new Writing(this, info, false);
  }

  // Refuses options of a statement that mean nothing, or lead to another table.
  final void check(CaseInsensitiveStringMap options, String use) {
    if (options.isEmpty()) {
      return;
    }
    Map question = question(Protocol.CHECK_OPTIONS);
    question.put(Protocol.PATH, storeOptions.get(Protocol.PATH));
    question.put(Protocol.USER_OPTIONS, options.asCaseSensitiveMap());
    question.put(Protocol.USE, use);
    Bridge.ask(question, null);
  }

  CaseInsensitiveStringMap options(Map asked, boolean pinning) {
    Map all = new HashMap(storeOptions);
    Map rest = new CaseInsensitiveStringMap(asked).asCaseSensitiveMap();
    if (!writable) {
      // Spark has loaded the version that these name, and it is pinned.
      rest = without(rest);
    }
    if (pinning) {
      all.putAll(versionOptions);
      if (LanceUnits.hasOption(rest, "version")) {
        all.remove("version");
      }
    }
    all.putAll(rest);
    return new CaseInsensitiveStringMap(all);
  }

  private static Map without(Map options) {
    Map rest = new HashMap();
    for (Iterator i = options.entrySet().iterator(); i.hasNext(); ) {
      Map.Entry option = (Map.Entry) i.next();
      if (!LanceUnits.isOption((String) option.getKey(), "timeTravel")) {
        rest.put(option.getKey(), option.getValue());
      }
    }
    return rest;
  }

  public boolean truncateTable() {
    Map question = question(Protocol.TRUNCATE_TABLE);
    return ((Boolean) Bridge.ask(question, null)).booleanValue();
  }

  // Partitions: groups of rows, which appear and disappear with their rows.

  public StructType partitionSchema() {
    if (partitions.isEmpty() && !Callers.isShowTableExtended()) {
      throw new UnsupportedOperationException(
          displayName + " declares no partitions: write CREATE TABLE ... PARTITIONED BY (column), or ALTER TABLE "
              + displayName + " ADD PARTITION FIELD column");
    }
    return partitions.schema();
  }

  public void createPartitions(InternalRow[] added, Map[] properties) {
    partitionSchema();
    for (int i = 0; i < properties.length; i++) {
      if (properties[i].containsKey("location")) {
        throw new UnsupportedOperationException(
            "partitions of " + displayName + " have no LOCATION: INSERT INTO " + displayName + " SELECT the rows of the files");
      }
    }
    // A partition exists as long as it has rows.
  }

  public boolean dropPartition(InternalRow partition) {
    return dropPartitions(new InternalRow[] {partition});
  }

  public boolean dropPartitions(InternalRow[] dropped) {
    partitionSchema();
    Map question = question(Protocol.DELETE_PARTITIONS);
    question.put(Protocol.PARTITION_VALUES, partitions.described(dropped));
    return ((Boolean) Bridge.ask(question, null)).booleanValue();
  }

  public boolean purgePartition(InternalRow partition) {
    return dropPartition(partition);
  }

  public boolean purgePartitions(InternalRow[] dropped) {
    return dropPartitions(dropped);
  }

  public boolean truncatePartition(InternalRow partition) {
    return dropPartition(partition);
  }

  public boolean truncatePartitions(InternalRow[] truncated) {
    return dropPartitions(truncated);
  }

  public boolean renamePartition(InternalRow from, InternalRow to) {
    throw new UnsupportedOperationException(
        "partitions of " + displayName + " are named by their rows: write UPDATE " + displayName + " SET ... WHERE ...");
  }

  public void replacePartitionMetadata(InternalRow partition, Map properties) {
    throw new UnsupportedOperationException("partitions of " + displayName + " have no properties: set those of the table");
  }

  public Map loadPartitionMetadata(InternalRow partition) {
    return new HashMap();
  }

  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow partition) {
    partitionSchema();
    List answer = (List) Bridge.ask(question(Protocol.LIST_PARTITIONS), null);
    return partitions.matching(answer, names, partition);
  }

  public boolean canDeleteWhere(Predicate[] predicates) {
    return writable && areExact(predicates);
  }

  public void deleteWhere(Predicate[] predicates) {
    Map question = question(Protocol.DELETE_WHERE);
    question.put(Protocol.PREDICATES, LancePushdown.toJson(restricting(predicates)));
    Bridge.ask(question, null);
  }

  // Whether Python finds the rows of predicates as Spark would; it does so for all that it takes in scans.
  final boolean areExact(Predicate[] predicates) {
    Predicate[] some = restricting(predicates);
    boolean all = true;
    for (int i = 0; all && i < some.length; i++) {
      all = pushdown != null && LancePushdown.isExact(some[i], pushdown);
    }
    return all;
  }

  // The predicates but for those that are always true.
  static Predicate[] restricting(Predicate[] predicates) {
    List some = new ArrayList();
    for (int i = 0; i < predicates.length; i++) {
      if (!predicates[i].name().equals("ALWAYS_TRUE")) {
        some.add(predicates[i]);
      }
    }
    return (Predicate[]) some.toArray(new Predicate[0]);
  }

  public static final class Hidden implements MetadataColumn {
    private final StructField field;

    Hidden(StructField field) {
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

  /** Builds Spark's own scan of the columns that are needed. */
  public static final class Reading implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final LanceTable table;
    private final CaseInsensitiveStringMap options;
    private StructType wanted;

    Reading(LanceTable table, CaseInsensitiveStringMap options) {
      this.table = table;
      this.options = options;
      this.wanted = table.schema;
    }

    public void pruneColumns(StructType required) {
      wanted = Bridge.readable(required, table.schema);
    }

    public Scan build() {
      Map asked = new HashMap(options.asCaseSensitiveMap());
      for (int i = 0; i < table.hidden.length(); i++) {
        StructField column = table.hidden.fields()[i];
        if (Arrays.asList(wanted.fieldNames()).contains(column.name())) {
          asked.put((String) column.metadata().getString("lance.option"), "true");
        }
      }
      // A stream begins before the version that the table has pinned, and goes on behind it.
      return scan(table.options(asked, !Callers.isMicroBatch()));
    }

    private Scan scan(CaseInsensitiveStringMap all) {
      return new PythonTable(Bridge.source(), "lance", wanted).newScanBuilder(all).build();
    }
  }

  /** Builds Spark's own write to the table's path. */
  public static final class Writing
      implements WriteBuilder, SupportsTruncate, SupportsOverwriteV2, SupportsDynamicOverwrite {
    private final LanceTable table;
    private final LogicalWriteInfo info;
    private final Map more = new HashMap();
    private boolean truncates;
    // The declaration of a table that the write makes or replaces; null for other writes.
    private String setting = null;

    Writing(LanceTable table, LogicalWriteInfo info, boolean truncates) {
      this.table = table;
      this.info = info;
      this.truncates = truncates;
    }

    Writing with(String option, String value) {
      more.put(option, value);
      return this;
    }

    Writing declaring(String setting) {
      this.setting = setting;
      return this;
    }

    public WriteBuilder truncate() {
      truncates = true;
      return this;
    }

    // A table without partitions is one partition.
    public WriteBuilder overwriteDynamicPartitions() {
      if (!table.partitions.isEmpty()) {
        more.put("partitionOverwriteMode", "dynamic");
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
      Predicate[] some = restricting(predicates);
      if (some.length > 0) {
        // A list of predicates as JSON in place of SQL: see spark/sink/write_schema.py.
        more.put("replaceWhere", Bridge.json(LancePushdown.toJson(some)));
      }
      return this;
    }

    public Write build() {
      Map all = new HashMap(info.options().asCaseSensitiveMap());
      all.putAll(more);
      CaseInsensitiveStringMap options = table.options(all, false);
      PythonDataSourceV2 source = Bridge.source();
      LogicalWriteInfo told = new Info(info, options);
      WriteBuilder own = new PythonTable(source, "lance", info.schema()).newWriteBuilder(told);
      WriteBuilder builder = Bridge.writing(true, table.displayName, source, told, table.partitions.transforms(), setting, own);
      return (truncates ? ((SupportsTruncate) builder).truncate() : builder).build();
    }
  }

  public static final class Info implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    public Info(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
      this.info = info;
      this.options = options;
    }

    public CaseInsensitiveStringMap options() {
      return options;
    }

    public String queryId() {
      return info.queryId();
    }

    public StructType schema() {
      return info.schema();
    }
  }

  /** A table that appears, or changes, with the rows that a statement writes into it. */
  public static final class Staged extends LanceTable implements StagedTable {
    private final Map question;
    private final Map staged;
    private boolean written = false;

    public Staged(Map question, Map answer) {
      super(question, answer);
      this.question = question;
      this.staged = (Map) answer.get(Protocol.STAGED);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      check(info.options(), "write");
      written = true;
      Writing writing = new Writing(this, info, ((Boolean) staged.get(Protocol.TRUNCATES)).booleanValue());
      if (LanceUnits.hasOption(info.options(), "replacement")
          || (((Boolean) staged.get(Protocol.TRUNCATES)).booleanValue() && keepsColumns(info.options()))) {
        return writing; // saveAsTable: the other rows stay, and so does the schema
      }
      writing.declaring((String) staged.get(Protocol.DECLARATION));
      for (Iterator i = ((Map) staged.get(Protocol.OPTIONS)).entrySet().iterator(); i.hasNext(); ) {
        Map.Entry option = (Map.Entry) i.next();
        writing.with((String) option.getKey(), (String) option.getValue());
      }
      return writing;
    }

    // Whether the columns of the table that is replaced stay.
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
      Map told = new HashMap(question);
      told.put(Protocol.VERB, verb);
      told.put(Protocol.WRITTEN, Boolean.valueOf(written));
      told.put(Protocol.STAGED, staged);
      Bridge.ask(told, null);
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }
  }
}
