package org.lance.spark.catalog;

import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;

/**
 * The builder of the SQL function lance_blob.
 *
 * <p>LanceLazyFunctions creates it at the first call of the function. Python then creates the function itself, once
 * per application, because this takes as long as a small query.
 */
@SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
public final class LanceBlobFunction extends scala.runtime.AbstractFunction1 {
  // Python's function, and the id of the application that it belongs to.
  private static UserDefinedPythonFunction function = null;
  private static String application = null;

  /** Creates the builder. LanceLazyFunctions passes the same parameters to all functions; this one needs none. */
  public LanceBlobFunction(String name, String catalog) {}

  public Object apply(Object arguments) {
    return function().builder((scala.collection.immutable.Seq<Expression>) arguments);
  }

  private static synchronized UserDefinedPythonFunction function() {
    String id = SparkContext.getOrCreate().applicationId();
    if (!id.equals(application)) {
      AtomicReference<Object> reference = new AtomicReference<>();
      Bridge.ask(Bridge.question(Protocol.MAKE_BLOB_FUNCTION), reference);
      function = (UserDefinedPythonFunction) reference.get();
      application = id;
    }
    return function;
  }
}
