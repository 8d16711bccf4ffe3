package org.lance.spark.shim;

/**
 * Decisions by the call stack. Spark makes the same call for several statements, and only the stack shows which one.
 *
 * <p>Class names here are Spark's. tests/spark/driver/test_java_units.py checks that each of them exists.
 */
public final class Callers {
  // Suffixes of the class names that decide. Packages are left out, as some classes moved between releases.
  public static final String[] CLASSES = {
    "DataFrameWriter", "DataFrameReader", "DataSourceV2Utils", "DataStreamWriter", "classic.Catalog",
    "ShowTablesExtendedExec", "MicroBatchExecution", "ResolveRelations", "SchemaEvolution", "ExplainCommand",
    "DataStreamReader", "RelationResolution"
  };
  private static final String SPARK_SQL = "org.apache.spark.sql.";

  private Callers() {}

  /** Returns whether DataFrameWriter.save is running, so the write is by path. saveAsTable does not count. */
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

  /** Returns whether DataFrameWriter.saveAsTable is running. */
  public static boolean isSavingAsTable() {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      if (caller.getClassName().endsWith("DataFrameWriter") && caller.getMethodName().startsWith("saveAsTable")) {
        return true;
      }
    }
    return false;
  }

  /** Returns whether a DataFrameWriter asks a format for a table. Spark makes the same call for a DataFrameReader. */
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

  /**
   * Returns whether spark.catalog is running. It parses the text of a namespace, which is empty for the root of a
   * catalog.
   */
  public static boolean isCatalogApi() {
    return isCalledBy("classic.Catalog");
  }

  /**
   * Returns whether a writer or spark.catalog creates a table. They pass Spark's default format if the user gave
   * none.
   */
  public static boolean namesDefaultFormat() {
    return isCalledBy("DataFrameWriter") || isCalledBy("DataStreamWriter") || isCatalogApi();
  }

  /** Returns whether SHOW TABLE EXTENDED is running, which asks each table for its partitions. */
  public static boolean isShowTableExtended() {
    return isCalledBy("ShowTablesExtendedExec");
  }

  /**
   * Returns whether the analyzer looks up the name of a relation. A command that may create the table does not count.
   */
  public static boolean isResolvingRelations() {
    return isCalledBy("ResolveRelations");
  }

  /** Returns whether the analyzer looks up a relation to read it. Commands such as DESCRIBE do not count. */
  public static boolean isReadingRelations() {
    return isCalledBy("RelationResolution");
  }

  /** Returns whether Spark changes a table for a statement WITH SCHEMA EVOLUTION. ALTER TABLE does not count. */
  public static boolean isSchemaEvolution() {
    return isCalledBy("SchemaEvolution");
  }

  /** Returns whether EXPLAIN is running. It plans a statement that it must not execute. */
  public static boolean isExplaining() {
    return isCalledBy("ExplainCommand");
  }

  /** Returns whether readStream loads a table by name. */
  public static boolean isStreamReader() {
    return isCalledBy("DataStreamReader");
  }

  /** Returns whether a stream plans its read: the nearest class of Spark SQL on the stack is MicroBatchExecution. */
  public static boolean isMicroBatch() {
    for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
      // ChangelogTable only passes the call on.
      if (caller.getClassName().startsWith(SPARK_SQL) && !isClass(caller.getClassName(), "ChangelogTable")) {
        return isClass(caller.getClassName(), "MicroBatchExecution");
      }
    }
    return false;
  }

  /** Returns whether the write of a stream is planned. */
  public static boolean isStreaming() {
    return isCalledBy("MicroBatchExecution");
  }

  /** Returns whether a pipeline prepares its tables. It checks there whether MERGE can change them. */
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

  /** Returns whether a name is that of the class, of its Scala object, or of a nested class. */
  private static boolean isClass(String name, String suffix) {
    return name.endsWith(suffix) || name.contains(suffix + "$");
  }
}
