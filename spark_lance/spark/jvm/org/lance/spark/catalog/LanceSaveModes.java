package org.lance.spark.catalog;

import java.io.File;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Bridge;
import org.lance.spark.shim.Callers;

/**
 * Tables by path for {@code df.write.format("lance")} in the modes that create tables, and for reads of this format.
 *
 * <p>A read gets the table that it would get without a catalog, with all options. So does a write in the modes append
 * and overwrite, which create a missing table. The other modes become CREATE TABLE ... AS SELECT, in a catalog that
 * has tables by path only.
 */
public final class LanceSaveModes {
  private static final String STORAGE = "storage.";

  private LanceSaveModes() {}

  // The catalog of the session that has tables by path, and no others.
  public static String catalog() {
    SQLConf conf = (SQLConf) SQLConf$.MODULE$.get();
    conf.setConfString("spark.sql.catalog." + Bridge.PATHS, Bridge.CATALOG);
    return Bridge.PATHS;
  }

  public static Identifier identifier(PythonDataSourceV2 source, CaseInsensitiveStringMap options) {
    String path = options.get("path");
    if (path == null) {
      throw new IllegalArgumentException("option 'path' is missing: where is the table? Write save(path) or load(path)");
    }
    boolean writes = Callers.isWriter();
    if (writes) {
      // Only the path reaches the catalog from a write that makes a table, and it has to find out what is there.
      Map<String, String> store = new HashMap<>();
      for (Map.Entry<String, String> option : options.asCaseSensitiveMap().entrySet()) {
        if (((String) option.getKey()).toLowerCase().startsWith(STORAGE)) {
          store.put(option.getKey(), option.getValue());
        }
      }
      Bridge.beginWrite(absolute(path), store);
    }
    return new PathIdentifier(source, options, absolute(path), writes);
  }

  private static String absolute(String path) {
    return path.startsWith("/") || path.indexOf(":/") > 0 ? path : new File(path).getAbsolutePath();
  }

  /** A path with the options of one read or write. */
  public static final class PathIdentifier implements Identifier, Bridge.Loads {
    private final PythonDataSourceV2 source;
    private final CaseInsensitiveStringMap options;
    private final String path;
    private final boolean writes;
    // One for all plans of a DataFrame, so that its version stays what it was.
    private Table table = null;

    PathIdentifier(PythonDataSourceV2 source, CaseInsensitiveStringMap options, String path, boolean writes) {
      this.source = source;
      this.options = options;
      this.path = path;
      this.writes = writes;
    }

    public String[] namespace() {
      return new String[0];
    }

    public String name() {
      return path;
    }

    public String toString() {
      return path;
    }

    public synchronized Table load() {
      if (writes) {
        Bridge.endWrite();
      }
      if (table == null && writes) {
        table = new AnySchemaTable(source);
      } else if (table == null) {
        table = source.getTable(source.inferSchema(options), new Transform[0], options.asCaseSensitiveMap());
      }
      return table;
    }
  }

  /** A table that accepts rows of any schema: the write checks them. */
  public static final class AnySchemaTable extends PythonTable {
    AnySchemaTable(PythonDataSourceV2 source) {
      super(source, "lance", new StructType());
    }

    public Set<TableCapability> capabilities() {
      Set<TableCapability> capabilities = new HashSet<>(super.capabilities());
      capabilities.add(TableCapability.ACCEPT_ANY_SCHEMA);
      return capabilities;
    }
  }
}
