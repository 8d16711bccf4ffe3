package org.lance.spark.shim;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource$;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.Iterator;

/**
 * Access to Spark's reader factory for Python data sources, and to the worker that the factory would start.
 *
 * <p>The driver and executors use it; LanceTransport sends it to executors. It names no other class of this package.
 */
public final class WorkerShim {
  private static final String EVALUATOR =
      "org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator";
  // Fields of Spark's factory of readers. The last one is new in Spark 4.1.
  private static final String[] FIELDS = {"source", "pickledReadFunc", "outputSchema", "jobArtifactUUID", "sessionUUID"};

  private final UserDefinedPythonDataSource source;
  private final byte[] function;
  private final StructType schema;
  private final Object artifacts;
  private final Object session;

  /** Reads the fields of Spark's own factory of readers. */
  public WorkerShim(PartitionReaderFactory factory) throws ReflectiveOperationException {
    source = (UserDefinedPythonDataSource) field(FIELDS[0]).get(factory);
    function = (byte[]) field(FIELDS[1]).get(factory);
    schema = (StructType) field(FIELDS[2]).get(factory);
    artifacts = field(FIELDS[3]).get(factory);
    session = takesSession() ? field(FIELDS[4]).get(factory) : null;
  }

  /** Returns the source of the factory. */
  public UserDefinedPythonDataSource source() {
    return source;
  }

  /** Returns the schema of the rows that the factory reads. */
  public StructType schema() {
    return schema;
  }

  /**
   * Checks that this release of Spark has all private parts. The driver calls it, so that no task fails for this
   * reason.
   *
   * @return the missing part; null if there is none
   */
  public static String missing() {
    try {
      for (int i = 0; i < (takesSession() ? FIELDS.length : FIELDS.length - 1); i++) {
        field(FIELDS[i]);
      }
      runnerConstructor(Class.forName(EVALUATOR, false, MapInBatchEvaluatorFactory.class.getClassLoader()));
      return null;
    } catch (ReflectiveOperationException problem) {
      return problem.toString();
    } catch (LinkageError problem) {
      return problem.toString();
    }
  }

  /**
   * Returns the runner of a Python worker, which yields Arrow batches. Spark's evaluator would split the batches into
   * rows.
   *
   * @param metrics Spark's metrics of the Python worker
   */
  public BasePythonRunner<Iterator<InternalRow>, ColumnarBatch> runner(Object metrics) throws ReflectiveOperationException {
    Method factory = evaluatorFactory();
    Object[] arguments = {
      function, "read_from_data_source", UserDefinedPythonDataSource$.MODULE$.readInputSchema(), schema, metrics, artifacts
    };
    if (takesSession()) {
      arguments = Arrays.copyOf(arguments, arguments.length + 1);
      arguments[arguments.length - 1] = session;
    }
    Object evaluator = ((MapInBatchEvaluatorFactory) factory.invoke(source, arguments)).createEvaluator();
    // The function takes one column, a struct with the pickled partition.
    Object[] parts = {evaluator, new int[][] {{0}}};
    @SuppressWarnings("unchecked") // A constructor does not tell the types.
    BasePythonRunner<Iterator<InternalRow>, ColumnarBatch> runner =
        (BasePythonRunner<Iterator<InternalRow>, ColumnarBatch>) runnerConstructor(evaluator.getClass()).newInstance(parts);
    return runner;
  }

  /** Returns the cause that a call by reflection wraps. */
  public static Throwable cause(ReflectiveOperationException problem) {
    return problem instanceof InvocationTargetException ? problem.getCause() : problem;
  }

  // Since Spark 4.1 the worker receives the id of its session.
  private static boolean takesSession() throws NoSuchMethodException {
    return evaluatorFactory().getParameterTypes().length == 7;
  }

  private static Method evaluatorFactory() throws NoSuchMethodException {
    for (Method method : UserDefinedPythonDataSource.class.getMethods()) {
      int parameters = method.getParameterTypes().length;
      if (method.getName().equals("createMapInBatchEvaluatorFactory") && (parameters == 6 || parameters == 7)) {
        return method;
      }
    }
    throw new NoSuchMethodException("createMapInBatchEvaluatorFactory");
  }

  // The runner is an anonymous class of the evaluator.
  private static Constructor<?> runnerConstructor(Class<?> evaluator) throws ReflectiveOperationException {
    Class<?> type = Class.forName(evaluator.getName() + "$$anon$1", true, evaluator.getClassLoader());
    if (!BasePythonRunner.class.isAssignableFrom(type)) {
      throw new ClassNotFoundException(type.getName() + " runs no Python");
    }
    Class<?>[] types = {evaluator, int[][].class};
    Constructor<?> constructor = type.getConstructor(types);
    constructor.setAccessible(true);
    return constructor;
  }

  private static Field field(String name) throws NoSuchFieldException {
    for (Field field : PythonPartitionReaderFactory.class.getDeclaredFields()) {
      if (field.getName().equals(name) || field.getName().endsWith("$$" + name)) {
        field.setAccessible(true);
        return field;
      }
    }
    throw new NoSuchFieldException(name);
  }
}
