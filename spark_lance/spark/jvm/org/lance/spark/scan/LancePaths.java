package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.catalog.LanceTable;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.LanceUnits;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/** Reads and writes of {@code format("lance")} that the driver's Python describes and plans. */
public final class LancePaths {
  private LancePaths() {}

  /**
   * Describes the table of a read.
   *
   * @return the columns as JSON ({@code schema}), the version ({@code ref}) and what Spark may push down; null if
   *     Spark's workers describe the table
   */
  public static Map<String, Object> describe(CaseInsensitiveStringMap options) {
    CaseInsensitiveStringMap zonedOptions = Bridge.zoned(options);
    if (!LanceScan.plansInDriver(false)) {
      return null;
    }
    Map<String, Object> question = Bridge.question(Protocol.DESCRIBE_READ);
    question.put(Protocol.READ, LanceScan.read(zonedOptions, new StructType(), UUID.randomUUID().toString(), null));
    return Json.object(Bridge.ask(question, null));
  }

  /**
   * Returns the options with the session's time zone. Reads that Spark's workers plan need it, too; see {@link
   * Bridge}.
   */
  public static CaseInsensitiveStringMap zoned(CaseInsensitiveStringMap options) {
    return Bridge.zoned(options);
  }

  /** Returns the columns of a description that {@link #describe} returned. */
  public static StructType schema(Map<String, String> description) {
    return (StructType) DataType.fromJson((String) description.get(Protocol.SCHEMA));
  }

  /**
   * Returns the table of a read or write by path.
   *
   * @param description the answer of {@link #describe}; null if the user gave the schema: the first plan fixes the
   *     version then
   * @param partitions the partitions of a write with partitionBy; else empty
   * @return null if Spark's workers plan the read
   */
  public static Table table(PythonDataSourceV2 source, StructType schema, Map<String, Object> description, Transform[] partitions) {
    return LanceScan.plansInDriver(false) || partitions.length > 0 ? new PathTable(source, schema, description, partitions) : null;
  }

  /** Spark's table of a Python data source, with the scans and writes of this package. */
  public static final class PathTable extends PythonTable {
    private final StructType schema;
    // Whether the user gave the schema, which any table may have.
    private final boolean hasUserSchema;
    private String cacheKey = UUID.randomUUID().toString();
    private Object ref;
    // What Spark may push down; null if it depends on the options and the version of a read.
    private Object pushdown;
    // The Python data source whose version ref is.
    private Object source;
    private final Transform[] partitions;

    PathTable(PythonDataSourceV2 source, StructType schema, Map<String, Object> description, Transform[] partitions) {
      super(source, "lance", schema);
      this.schema = schema;
      this.hasUserSchema = description == null;
      this.ref = description == null ? null : description.get(Protocol.REF);
      this.pushdown = description == null ? null : description.get(Protocol.PUSHDOWN);
      this.source = source;
      this.partitions = partitions;
    }

    public Transform[] partitioning() {
      return (Transform[]) partitions.clone();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      CaseInsensitiveStringMap zonedOptions = Bridge.zoned(options);
      ScanBuilder sparkBuilder = super.newScanBuilder(withVersion(zonedOptions));
      if (!LanceScan.plansInDriver(false)) {
        return sparkBuilder;
      }
      try {
        Map<String, Object> read = read(zonedOptions);
        return LanceScan.ofPath(String.valueOf(zonedOptions.get("path")), read, schema, pushdown(), sparkBuilder);
      } catch (IllegalArgumentException problem) {
        // Spark's reader reports the problem as for every Python data source.
        return sparkBuilder;
      }
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      LogicalWriteInfo write = partitions.length == 0 ? info : withPartitionOption(info);
      WriteBuilder sparkBuilder = super.newWriteBuilder(write);
      String displayName = String.valueOf(info.options().get("path"));
      return Bridge.writing(false, displayName, Shim.sourceOf(this), write, partitions, new SortOrder[0], false, null, sparkBuilder);
    }

    /**
     * Adds the option {@code partitionBy}. Python declares the partitions of a new table by it, and checks those of
     * an existing one.
     */
    private LogicalWriteInfo withPartitionOption(LogicalWriteInfo info) {
      List<Object> texts = new ArrayList<>();
      for (Transform partition : partitions) {
        texts.add(partition.toString());
      }
      Map<String, String> options = new HashMap<>(info.options().asCaseSensitiveMap());
      options.put("partitionBy", Bridge.json(texts));
      return new LanceTable.WriteInfo(info, new CaseInsensitiveStringMap(options));
    }

    private synchronized Map<String, Object> pushdown() {
      return Json.object(pushdown);
    }

    private synchronized Map<String, Object> read(CaseInsensitiveStringMap options) {
      Object version = pinVersion(options);
      return LanceScan.read(options, schema, cacheKey, version);
    }

    /**
     * Adds the pinned version to the options, so that Spark's own reader reads it, too. Streams have no version, and
     * neither has a read of the changes between versions or of rows that no version has yet.
     */
    private synchronized CaseInsensitiveStringMap withVersion(CaseInsensitiveStringMap options) {
      boolean hasVersion = LanceUnits.hasOption(options, "versions");
      if (ref == null || hasVersion || Shim.sourceOf(this) != source || Callers.isMicroBatch()) {
        return options;
      }
      Map<String, String> result = new HashMap<>(options.asCaseSensitiveMap());
      result.put("version", String.valueOf((Json.list(ref)).get(2)));
      return new CaseInsensitiveStringMap(result);
    }

    /** Returns the version that all reads of this table see, and asks Python for it before the first read. */
    private synchronized Object pinVersion(CaseInsensitiveStringMap options) {
      Object current = Shim.sourceOf(this);
      if (current != source) {
        // A refreshed view has another source, which must see newer versions.
        source = current;
        ref = null;
        pushdown = null;
        cacheKey = UUID.randomUUID().toString();
      }
      if (ref == null) {
        Map<String, Object> question = Bridge.question(Protocol.PIN_READ);
        question.put(Protocol.READ, LanceScan.read(options, schema, cacheKey, null));
        question.put(Protocol.HAS_USER_SCHEMA, hasUserSchema);
        ref = Bridge.ask(question, null);
      }
      return ref;
    }

  }
}
