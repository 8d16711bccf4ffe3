// The format `lance` as a class, for Spark to find in every thread.
//
// To write, Spark looks for formats of Python in the session that is active in the thread, and a session is active only
// in the thread that made it. Before that it asks the class loader for this name: the format, a dot, DefaultSource.
// The class is what Spark takes for every format of Python: it gives it the short name, which finds the source.
//
// Reads are described and planned by the driver's own Python, where it answers (LancePaths); otherwise Spark asks
// Python worker processes, as it does for every format of Python.

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

public class DefaultSource extends PythonDataSourceV2 {
  private Map<?, ?> description = null;

  public DefaultSource() {
  }

  // The format itself. Spark would ask a Python worker for all formats that are installed, in a daemon of its own.
  public UserDefinedPythonDataSource source() {
    OptionalUnit units = OptionalUnit.find("org.lance.spark.load.LanceUnits", loader());
    Object[] id = {SparkContext.getOrCreate().applicationId()};
    Object format = units == null ? null : units.call("format", id);
    return format == null ? super.source() : (UserDefinedPythonDataSource) format;
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    try {
      description = (Map<?, ?>) call("describe", new Object[] {options});
    } catch (IllegalArgumentException refused) {
      // Spark's own way says what is wrong, as it does for every format of Python.
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

  // A static method of LancePaths; null where that class does not fit this release, or nobody has published it.
  private static Object call(String name, Object[] arguments) {
    OptionalUnit unit = OptionalUnit.find("org.lance.spark.scan.LancePaths", loader());
    return unit == null ? null : unit.call(name, arguments);
  }

  private static ClassLoader loader() {
    return DefaultSource.class.getClassLoader();
  }
}
