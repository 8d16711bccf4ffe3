// Reads and writes of format("lance") that the driver's own Python describes and plans.
//
// Compiled in the driver by Janino.

package org.lance.spark.scan;

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
import org.lance.spark.load.Bridge;
import org.lance.spark.load.LanceUnits;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

public final class LancePaths {
  private LancePaths() {}

  // What a read sees: its columns as JSON (`schema`) and its version (`ref`); null if Spark's workers are to find out.
  public static Map describe(CaseInsensitiveStringMap given) {
    CaseInsensitiveStringMap options = Bridge.zoned(given);
    if (!LanceScan.plans(false)) {
      return null;
    }
    Map question = Bridge.question(Protocol.DESCRIBE_READ);
    question.put(Protocol.READ, LanceScan.read(options, new StructType(), UUID.randomUUID().toString(), null));
    return (Map) Bridge.ask(question, null);
  }

  // For Spark's own way, too: see Bridge.
  public static CaseInsensitiveStringMap zoned(CaseInsensitiveStringMap options) {
    return Bridge.zoned(options);
  }

  public static StructType schema(Map described) {
    return (StructType) DataType.fromJson((String) described.get(Protocol.SCHEMA));
  }

  // The table of a read; null if Spark's workers are to plan it. `described` is null where the user gave the schema:
  // the version is fixed by the first plan then.
  public static Table table(PythonDataSourceV2 source, StructType schema, Map described) {
    return LanceScan.plans(false) ? new PathTable(source, schema, described) : null;
  }

  /** Spark's own table but for its scans and writes. */
  public static final class PathTable extends PythonTable {
    private final StructType schema;
    // Whether the schema is the user's, who may have any table in mind.
    private final boolean given;
    private String cacheKey = UUID.randomUUID().toString();
    private Object ref;
    // What Spark may push down; null if only options and the version of a read tell.
    private Object pushdown;
    // Spark's source, to which the version belongs.
    private Object source;

    PathTable(PythonDataSourceV2 source, StructType schema, Map described) {
      super(source, "lance", schema);
      this.schema = schema;
      this.given = described == null;
      this.ref = described == null ? null : described.get(Protocol.REF);
      this.pushdown = described == null ? null : described.get(Protocol.PUSHDOWN);
      this.source = source;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
      CaseInsensitiveStringMap options = Bridge.zoned(given);
      ScanBuilder own = super.newScanBuilder(known(options));
      if (!LanceScan.plans(false)) {
        return own;
      }
      try {
        Map read = read(options);
        return LanceScan.ofPath(String.valueOf(options.get("path")), read, schema, pushdown(), own);
      } catch (IllegalArgumentException refused) {
        // Spark's own way says what is wrong, as it does for every format of Python.
        return own;
      }
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      WriteBuilder own = super.newWriteBuilder(info);
      String displayName = String.valueOf(info.options().get("path"));
      return Bridge.writing(false, displayName, Shim.sourceOf(this), info, new Transform[0], null, own);
    }

    private synchronized Map pushdown() {
      return (Map) pushdown;
    }

    private synchronized Map read(CaseInsensitiveStringMap options) {
      Object version = pinned(options);
      return LanceScan.read(options, schema, cacheKey, version);
    }

    // Options that make Spark's own way read the known version, too. Streams take none. Nor does a read of the changes
    // between several versions, or of rows that are not in a version yet.
    private synchronized CaseInsensitiveStringMap known(CaseInsensitiveStringMap options) {
      boolean named = LanceUnits.hasOption(options, "versions");
      if (ref == null || named || Shim.sourceOf(this) != source || Callers.isMicroBatch()) {
        return options;
      }
      Map all = new HashMap(options.asCaseSensitiveMap());
      all.put("version", String.valueOf(((List) ref).get(2)));
      return new CaseInsensitiveStringMap(all);
    }

    // The version that all reads of this table see.
    private synchronized Object pinned(CaseInsensitiveStringMap options) {
      Object now = Shim.sourceOf(this);
      if (now != source) {
        // A view that shall see what was written gets another source.
        source = now;
        ref = null;
        pushdown = null;
        cacheKey = UUID.randomUUID().toString();
      }
      if (ref == null) {
        Map question = Bridge.question(Protocol.PIN_READ);
        question.put(Protocol.READ, LanceScan.read(options, schema, cacheKey, null));
        question.put(Protocol.HAS_USER_SCHEMA, Boolean.valueOf(given));
        ref = Bridge.ask(question, null);
      }
      return ref;
    }

  }
}
