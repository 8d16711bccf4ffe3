package org.lance.spark.scan;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.connector.catalog.Table;
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

  // What a read sees: its columns as JSON (`schema`) and its version (`ref`); null if Spark's workers are to find out.
  public static Map<String, Object> describe(CaseInsensitiveStringMap options) {
    CaseInsensitiveStringMap zonedOptions = Bridge.zoned(options);
    if (!LanceScan.plans(false)) {
      return null;
    }
    Map<String, Object> question = Bridge.question(Protocol.DESCRIBE_READ);
    question.put(Protocol.READ, LanceScan.read(zonedOptions, new StructType(), UUID.randomUUID().toString(), null));
    return Json.object(Bridge.ask(question, null));
  }

  // For Spark's own way, too: see Bridge.
  public static CaseInsensitiveStringMap zoned(CaseInsensitiveStringMap options) {
    return Bridge.zoned(options);
  }

  public static StructType schema(Map<String, String> described) {
    return (StructType) DataType.fromJson((String) described.get(Protocol.SCHEMA));
  }

  // The table of a read; null if Spark's workers are to plan it. `described` is null where the user gave the schema:
  // the version is fixed by the first plan then. A write with partitionBy has partitions.
  public static Table table(PythonDataSourceV2 source, StructType schema, Map<String, Object> described, Transform[] partitions) {
    return LanceScan.plans(false) || partitions.length > 0 ? new PathTable(source, schema, described, partitions) : null;
  }

  /** Spark's own table but for its scans and writes. */
  public static final class PathTable extends PythonTable {
    private final StructType schema;
    // Whether the schema is the user's, who may have any table in mind.
    private final boolean hasUserSchema;
    private String cacheKey = UUID.randomUUID().toString();
    private Object ref;
    // What Spark may push down; null if only options and the version of a read tell.
    private Object pushdown;
    // Spark's source, to which the version belongs.
    private Object source;
    private final Transform[] partitions;

    PathTable(PythonDataSourceV2 source, StructType schema, Map<String, Object> described, Transform[] partitions) {
      super(source, "lance", schema);
      this.schema = schema;
      this.hasUserSchema = described == null;
      this.ref = described == null ? null : described.get(Protocol.REF);
      this.pushdown = described == null ? null : described.get(Protocol.PUSHDOWN);
      this.source = source;
      this.partitions = partitions;
    }

    public Transform[] partitioning() {
      return (Transform[]) partitions.clone();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      CaseInsensitiveStringMap zonedOptions = Bridge.zoned(options);
      ScanBuilder sparkBuilder = super.newScanBuilder(withVersion(zonedOptions));
      if (!LanceScan.plans(false)) {
        return sparkBuilder;
      }
      try {
        Map<String, Object> read = read(zonedOptions);
        return LanceScan.ofPath(String.valueOf(zonedOptions.get("path")), read, schema, pushdown(), sparkBuilder);
      } catch (IllegalArgumentException refused) {
        // Spark's own way says what is wrong, as it does for every format of Python.
        return sparkBuilder;
      }
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      LogicalWriteInfo write = partitions.length == 0 ? info : partitioned(info);
      WriteBuilder sparkBuilder = super.newWriteBuilder(write);
      String displayName = String.valueOf(info.options().get("path"));
      return Bridge.writing(false, displayName, Shim.sourceOf(this), write, partitions, null, sparkBuilder);
    }

    // Python declares or checks the partitions.
    private LogicalWriteInfo partitioned(LogicalWriteInfo info) {
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

    // Options that make Spark's own way read the known version, too. Streams take none. Nor does a read of the changes
    // between several versions, or of rows that are not in a version yet.
    private synchronized CaseInsensitiveStringMap withVersion(CaseInsensitiveStringMap options) {
      boolean hasVersion = LanceUnits.hasOption(options, "versions");
      if (ref == null || hasVersion || Shim.sourceOf(this) != source || Callers.isMicroBatch()) {
        return options;
      }
      Map<String, String> result = new HashMap<>(options.asCaseSensitiveMap());
      result.put("version", String.valueOf((Json.list(ref)).get(2)));
      return new CaseInsensitiveStringMap(result);
    }

    // The version that all reads of this table see.
    private synchronized Object pinVersion(CaseInsensitiveStringMap options) {
      Object current = Shim.sourceOf(this);
      if (current != source) {
        // A view that shall see what was written gets another source.
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
