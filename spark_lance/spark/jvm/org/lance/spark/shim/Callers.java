package org.lance.spark.shim;

/**
 * Decisions by the call stack. Spark makes the same call for several statements, and only the stack shows which one.
 *
 * <p>Class names here are Spark's. tests/spark/driver/test_java_units.py checks that each of them exists.
 */
public final class Callers {
  // Suffixes of class names in decisions. Only suffixes, as some classes moved between releases.
  public static final String[] CLASSES = {
    "DataFrameWriter", "DataFrameReader", "DataSourceV2Utils", "DataStreamWriter", "classic.Catalog",
    "ShowTablesExtendedExec", "MicroBatchExecution", "ResolveRelations", "SchemaEvolution"
  };
  private static final String SPARK_SQL = "org.apache.spark.sql.";

  private Callers() {}

  /** Whether DataFrameWriter.save is running, and not saveAsTable: the write is by path. */
  public static boolean isSavingByPath() {
    boolean isSave = false;
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      if (caller.getClassName().endsWith("DataFrameWriter")) {
        isSave = isSave || caller.getMethodName().startsWith("save");
        if (caller.getMethodName().startsWith("saveAsTable")) {
          return false;
        }
      }
    }
    return isSave;
  }

  /** Whether DataFrameWriter.saveAsTable is running. */
  public static boolean isSavingAsTable() {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      if (caller.getClassName().endsWith("DataFrameWriter") && caller.getMethodName().startsWith("saveAsTable")) {
        return true;
      }
    }
    return false;
  }

  /** Whether a DataFrameWriter, and not a DataFrameReader, asks a format for a table. Spark uses the same call for both. */
  public static boolean isWriter() {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      String name = caller.getClassName();
      if (name.contains("DataFrameWriter")) {
        return true;
      }
      if (name.contains("DataFrameReader") || name.contains("DataSourceV2Utils")) {
        return false;
      }
    }
    return false;
  }

  /** Whether spark.catalog is running. It parses the text of a namespace, which is empty for the root of a catalog. */
  public static boolean isCatalogApi() {
    return isCalledBy("classic.Catalog");
  }

  /** Whether a writer or spark.catalog creates a table: these name a format where the user did not. */
  public static boolean namesDefaultFormat() {
    return isCalledBy("DataFrameWriter") || isCalledBy("DataStreamWriter") || isCatalogApi();
  }

  /** Whether SHOW TABLE EXTENDED is running, which asks each table for its partitions. */
  public static boolean isShowTableExtended() {
    return isCalledBy("ShowTablesExtendedExec");
  }

  /** Whether the analyzer looks up the name of a relation, and not a command that may create the table. */
  public static boolean isResolvingRelations() {
    return isCalledBy("ResolveRelations");
  }

  /** Whether Spark changes a table for a statement WITH SCHEMA EVOLUTION, and not for ALTER TABLE. */
  public static boolean isSchemaEvolution() {
    return isCalledBy("SchemaEvolution");
  }

  /** Whether a stream plans its read: the nearest class of Spark SQL is MicroBatchExecution. */
  public static boolean isMicroBatch() {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      // The table of changes passes the call on.
      if (caller.getClassName().startsWith(SPARK_SQL) && !isClass(caller.getClassName(), "ChangelogTable")) {
        return isClass(caller.getClassName(), "MicroBatchExecution");
      }
    }
    return false;
  }

  /** Whether a stream runs, whose write is planned. */
  public static boolean isStreaming() {
    return isCalledBy("MicroBatchExecution");
  }

  /** Whether a pipeline prepares its tables: it checks there whether MERGE can change them. */
  public static boolean isPipeline() {
    return isCalledBy("DatasetManager");
  }

  private static boolean isCalledBy(String suffix) {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      if (caller.getClassName().startsWith(SPARK_SQL) && isClass(caller.getClassName(), suffix)) {
        return true;
      }
    }
    return false;
  }

  // Whether it is the class, its Scala object, or a class in it.
  private static boolean isClass(String name, String suffix) {
    return name.endsWith(suffix) || name.contains(suffix + "$");
  }
}
