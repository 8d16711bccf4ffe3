// Functions that Spark knows by name before their classes are compiled: the first call compiles them.
//
// Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance;

import java.lang.reflect.InvocationTargetException;
import org.apache.spark.unsafe.Platform;

public final class LanceLate extends scala.runtime.AbstractFunction1 {
  private final String unit;
  private final String function;
  private final String catalog;
  private scala.Function1 made = null;

  // The builder of a function: the class of a unit, which is made of the function's name and a catalog's.
  public LanceLate(String unit, String function, String catalog) {
    this.unit = unit;
    this.function = function;
    this.catalog = catalog;
  }

  public Object apply(Object arguments) {
    return builder().apply(arguments);
  }

  private synchronized scala.Function1 builder() {
    if (made == null) {
      try {
        Class found = getClass().getClassLoader().loadClass("spark_lance.sql." + unit);
        Class[] kinds = {String.class, String.class};
        made = (scala.Function1) found.getConstructor(kinds).newInstance(new Object[] {function, catalog});
      } catch (ClassNotFoundException missing) {
        throw new UnsupportedOperationException(function + " is not there in this release of Spark");
      } catch (InvocationTargetException problem) {
        Platform.throwException(problem.getCause());
      } catch (ReflectiveOperationException problem) {
        throw new IllegalStateException(problem);
      }
    }
    return made;
  }
}
