package lance;

import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.OptionalUnit;

/**
 * The format {@code lance} as a class, so that Spark finds it in every thread.
 *
 * <p>For a write, Spark looks for Python data sources in the active session of the thread, and only the thread that
 * created a session has one. Before that, Spark asks the class loader for this name: the format, a dot, DefaultSource.
 * Spark gives the instance its short name, which finds the source.
 *
 * <p>LancePaths describes and plans reads with the driver's Python. Without it, Spark asks Python worker processes, as
 * for every Python data source.
 */
public class DefaultSource extends PythonDataSourceV2 {
  private Map<?, ?> description = null;

  public DefaultSource() {
  }

  /**
   * Returns the format itself. By default Spark asks a Python worker for all installed formats, in a daemon of its
   * own.
   */
  public UserDefinedPythonDataSource source() {
    OptionalUnit units = OptionalUnit.find("org.lance.spark.load.LanceUnits", loader());
    Object[] id = {SparkContext.getOrCreate().applicationId()};
    Object format = units == null ? null : units.call("format", id);
    return format == null ? super.source() : (UserDefinedPythonDataSource) format;
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    try {
      description = (Map<?, ?>) call("describe", new Object[] {options});
    } catch (IllegalArgumentException problem) {
      // Spark reports the problem as for every Python data source.
      description = null;
    }
    if (description == null) {
      Object zoned = call("zoned", new Object[] {options});
      return super.inferSchema(zoned == null ? options : (CaseInsensitiveStringMap) zoned);
    }
    return (StructType) call("schema", new Object[] {description});
  }

  public Table getTable(StructType schema, Transform[] partitions, Map<String, String> properties) {
    Table table = (Table) call("table", new Object[] {this, schema, description, partitions});
    if (table == null && partitions.length > 0) {
      throw new IllegalArgumentException(
          "partitionBy does not fit this release of Spark: write option(\"partitionBy\", \"column, days(time)\") instead");
    }
    return table == null ? super.getTable(schema, partitions, properties) : table;
  }

  /**
   * Calls a static method of LancePaths.
   *
   * @return null if that class does not fit this release of Spark, or if no session has published it
   */
  private static Object call(String name, Object[] arguments) {
    OptionalUnit unit = OptionalUnit.find("org.lance.spark.scan.LancePaths", loader());
    return unit == null ? null : unit.call(name, arguments);
  }

  private static ClassLoader loader() {
    return DefaultSource.class.getClassLoader();
  }
}
