// The format `lance` as a class, for Spark to find in every thread.
//
// To write, Spark looks for formats of Python in the session that is active in the thread, and a session is active in
// the thread only that made it. Before that it asks the class loader for this name: the format, a dot, DefaultSource.
// The class is what Spark takes for every format of Python: it gives it the short name, by which it finds the source.

package lance;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;

public final class DefaultSource extends PythonDataSourceV2 {
  public DefaultSource() {
  }
}
