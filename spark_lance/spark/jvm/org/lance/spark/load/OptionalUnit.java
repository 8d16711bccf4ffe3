package org.lance.spark.load;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.spark.unsafe.Platform;

/**
 * A unit that a release of Spark may refuse.
 *
 * <p>Callers look it up by name and continue without it: a class that names it in its code would be refused, too.
 * LanceUnits logs why the unit is missing.
 */
public final class OptionalUnit {
  private final Class<?> type;

  private OptionalUnit(Class<?> type) {
    this.type = type;
  }

  /** Returns a unit; null if it is missing. */
  public static OptionalUnit find(String name, ClassLoader loader) {
    try {
      return new OptionalUnit(Class.forName(name, true, loader));
    } catch (ClassNotFoundException missing) {
      return null;
    }
  }

  /**
   * Returns a unit for callers that the analyzer of any session uses; null if it is missing. The class loader of the
   * calling thread has the session's units.
   */
  public static OptionalUnit ofThread(String name) {
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    return find(name, loader == null ? OptionalUnit.class.getClassLoader() : loader);
  }

  /** Returns whether an object is an instance of the unit. */
  public boolean isClassOf(Object object) {
    return type.isInstance(object);
  }

  /** Calls a static method, whose name must be unique, and throws what it throws. */
  public Object call(String method, Object... arguments) {
    for (Method each : type.getMethods()) {
      if (each.getName().equals(method)) {
        try {
          return each.invoke(null, arguments);
        } catch (InvocationTargetException problem) {
          Platform.throwException(problem.getCause());
        } catch (IllegalAccessException problem) {
          throw new IllegalStateException(problem);
        }
      }
    }
    throw new IllegalStateException(type.getName() + " has no method " + method);
  }

  /** Calls the only constructor, and throws what it throws. */
  public Object construct(Object... arguments) {
    try {
      return type.getConstructors()[0].newInstance(arguments);
    } catch (InvocationTargetException problem) {
      Platform.throwException(problem.getCause());
      return null;
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }
}
