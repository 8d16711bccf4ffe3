// The function lance_blob, which Python makes when it is first used: making it takes as long as a small query.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;

public final class LanceBlobFunction extends scala.runtime.AbstractFunction1 {
  // What Python has made, and for which application.
  private static UserDefinedPythonFunction made = null;
  private static String application = null;

  public LanceBlobFunction(String name, String catalog) {}

  public Object apply(Object arguments) {
    return function().builder((scala.collection.immutable.Seq) arguments);
  }

  private static synchronized UserDefinedPythonFunction function() {
    String id = SparkContext.getOrCreate().applicationId();
    if (!id.equals(application)) {
      AtomicReference found = new AtomicReference();
      Bridge.ask(Bridge.question(Protocol.MAKE_BLOB_FUNCTION), found);
      made = (UserDefinedPythonFunction) found.get();
      application = id;
    }
    return made;
  }
}
