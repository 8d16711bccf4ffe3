package org.lance.spark.load;

import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistryBase;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.classic.SparkSession;

/** SQL functions whose classes are compiled at the first call. Spark registers their names before. */
@SuppressWarnings("rawtypes") // Janino makes no bridge methods.
public final class LanceLazyFunctions extends scala.runtime.AbstractFunction1 {
  private final String unit;
  private final String function;
  private final String catalog;
  private scala.Function1<Object, Object> builder = null;

  /** Registers the functions in a session. */
  @SuppressWarnings({"rawtypes", "unchecked", "deprecation"}) // Janino makes no bridge methods. Spark 4.0 has no newer constructor.
  public static final class Start implements BiConsumer {
    public void accept(Object activeSession, Object startRequest) {
      SparkSession session = (SparkSession) activeSession;
      Map<String, Object> request = Json.object(startRequest);
      SparkSessionExtensions extensions = session.extensions();
      boolean forNewSessions = (Boolean) request.get("newSessions");
      scala.Option<String> none = scala.Option.apply(null);
      List<Map<String, Object>> functions = Json.objects(request.get("functions"));
      for (Map<String, Object> function : functions) {
        String unit = (String) function.get("unit");
        String name = (String) function.get("name");
        boolean returnsRows = (Boolean) function.get("rows");
        FunctionRegistryBase<?> registry =
            returnsRows
                ? (FunctionRegistryBase<?>) session.sessionState().tableFunctionRegistry()
                : (FunctionRegistryBase<?>) session.sessionState().functionRegistry();
        // Newer releases register functions with a catalog and a namespace, older ones without.
        FunctionIdentifier present = (FunctionIdentifier) registry.listFunction().head();
        ExpressionInfo info = new ExpressionInfo(unit, null, name, (String) function.get("usage"), "");
        LanceLazyFunctions builder = new LanceLazyFunctions(unit, name, (String) request.get("catalog"));
        registry.registerFunction(present.copy(name, present.database(), present.catalog()), info, builder);
        scala.Tuple3 description = new scala.Tuple3(present.copy(name, none, none), info, builder);
        if (forNewSessions && returnsRows) {
          extensions.injectTableFunction(description);
        } else if (forNewSessions) {
          extensions.injectFunction(description);
        }
      }
    }
  }

  /**
   * Creates the builder of a function. The first call delegates to an instance of the unit.
   *
   * @param unit the class that builds the function's expression
   * @param function the name of the function
   * @param catalog the catalog that the unit receives
   */
  public LanceLazyFunctions(String unit, String function, String catalog) {
    this.unit = unit;
    this.function = function;
    this.catalog = catalog;
  }

  public Object apply(Object arguments) {
    return builder().apply(arguments);
  }

  private synchronized scala.Function1<Object, Object> builder() {
    if (builder == null) {
      OptionalUnit optionalUnit = OptionalUnit.find(unit, getClass().getClassLoader());
      if (optionalUnit == null) {
        throw new UnsupportedOperationException(function + " is not there in this release of Spark");
      }
      builder = Seqs.function((scala.Function1<?, ?>) optionalUnit.construct(function, catalog));
    }
    return builder;
  }
}
