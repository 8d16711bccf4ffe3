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

  /** Returns the catalog of the session that only has tables by path. */
  public static String catalog() {
    SQLConf conf = (SQLConf) SQLConf$.MODULE$.get();
    conf.setConfString("spark.sql.catalog." + Bridge.PATHS, Bridge.CATALOG);
    return Bridge.PATHS;
  }

  /**
   * Returns the identifier of a table by path, for a read or a write.
   *
   * @param source Spark's data source of the read or write
   * @throws IllegalArgumentException if the options have no path
   */
  public static Identifier identifier(PythonDataSourceV2 source, CaseInsensitiveStringMap options) {
    String path = options.get("path");
    if (path == null) {
      throw new IllegalArgumentException("option 'path' is missing: where is the table? Write save(path) or load(path)");
    }
    boolean writes = Callers.isWriter();
    if (writes) {
      // A write that creates a table passes only the path to the catalog, which has to open the store.
      Map<String, String> storageOptions = new HashMap<>();
      for (Map.Entry<String, String> option : options.asCaseSensitiveMap().entrySet()) {
        if (((String) option.getKey()).toLowerCase().startsWith(STORAGE)) {
          storageOptions.put(option.getKey(), option.getValue());
        }
      }
      Bridge.beginWrite(absolute(path), storageOptions);
    }
    return new PathIdentifier(source, options, absolute(path), writes);
  }

  private static String absolute(String path) {
    return path.startsWith("/") || path.indexOf(":/") > 0 ? path : new File(path).getAbsolutePath();
  }

  /** A path with the options of one read or write. */
  public static final class PathIdentifier implements Identifier, Bridge.LoadableIdentifier {
    private final PythonDataSourceV2 source;
    private final CaseInsensitiveStringMap options;
    private final String path;
    private final boolean writes;
    // All plans of a DataFrame share the table, so its version does not change.
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
