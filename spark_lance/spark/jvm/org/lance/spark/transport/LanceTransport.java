package org.lance.spark.transport;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import org.apache.spark.JobArtifactSet$;
import org.apache.spark.SparkContext;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.slf4j.LoggerFactory;

/**
 * How the rows of tasks come from Python workers and go to them: as rows, which is Spark's way, or as batches of
 * columns (LanceColumns, LanceRowBatches).
 */
public final class LanceTransport {
  private static final String SETTING = "spark.lance.transport";
  // Bytes of shared memory through which a worker hands batches to its task; 0: through the socket.
  private static final String MEMORY = "spark.lance.sharedMemory";
  private static final String MEMORY_DEFAULT = "8m";
  private static final long LEAST_MEMORY = 1L << 20;
  private static final long MOST_MEMORY = 1L << 30;
  private static final List<String> KINDS = Arrays.asList("rows", "columns");
  private static final String PACKAGE = "org.lance.spark.transport.";
  // The units whose classes executors need; the first one reports what this release of Spark lacks.
  private static final String[] UNITS = {
    "org.lance.spark.shim.WorkerShim",
    PACKAGE + "LanceColumns",
    PACKAGE + "LanceInMemoryPartitions",
    PACKAGE + "LanceColumnVector",
    PACKAGE + "LanceRing",
    PACKAGE + "LanceMessage"
  };
  // The classes of tasks that write. Where one is missing they write Spark's way, and read as ever.
  private static final String WRITING = "LanceRowBatches";
  private static final String[] FILLING = {"LanceRowNode", "LanceRowNodes", "LanceColumnCopies", "LanceRowColumns"};
  // Spark clusters rows of partitioned tables with these functions.
  private static final String FUNCTIONS = "LanceFunctions";
  // Types whose values stand in a batch as Spark reads them, besides arrays, maps and structs of them.
  private static final Set<String> TYPES =
      new HashSet<>(
          Arrays.asList(
              "NullType", "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType",
              "DoubleType", "DecimalType", "StringType", "BinaryType", "DateType", "TimestampType",
              "TimestampNTZType", "DayTimeIntervalType", "TimeType"));
  // Tasks that look for the classes on executors.
  private static final long PROBES = 4;

  // Why the classes are of no use here, "" if they are; null before anybody has asked. It holds for one application.
  private static String verdict = null;
  private static String application = null;
  private static boolean hasWriting = false;
  private static boolean hasFunctions = false;

  private LanceTransport() {}

  // How the tasks of a scan of some columns shall read: what the setting says, if that is possible, otherwise rows.
  public static String kind(StructType schema) {
    return isColumnar(schema) && isUsable() ? "columns" : "rows";
  }

  // Whether rows of a schema may be read as batches, as far as that is known: isUsable takes its time.
  public static synchronized boolean mayUse(StructType schema) {
    boolean isChecked = SparkContext.getOrCreate().applicationId().equals(application);
    return isColumnar(schema) && (!isChecked || verdict.isEmpty());
  }

  // Whether batches are what the setting says, and have types that are read.
  public static boolean isColumnar(StructType schema) {
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    String transport = settings.getConfString(SETTING, "columns");
    if (!KINDS.contains(transport)) {
      throw new IllegalArgumentException(SETTING + " is rows or columns, not " + transport);
    }
    // Executors load what sessions with artifacts of their own need, as those of Connect, in another way.
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    boolean large = settings.arrowUseLargeVarTypes();
    return transport.equals("columns") && !isolated && !large && isSupported(schema);
  }

  // Whether tasks put rows of these columns into batches before Spark's writer gets them. Not for binary columns: they
  // are for large values, and to copy these once more costs far more than to measure them.
  public static boolean writesBatches(StructType schema) {
    return isColumnar(schema) && !hasBytes(schema) && isUsable() && hasWriting;
  }

  // Whether executors have the functions that cluster rows.
  public static boolean hasFunctions() {
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    return !isolated && isUsable() && hasFunctions;
  }

  // What they get rows as, and the factory around `own`, which is Spark's for such rows.
  public static StructType batchSchema() {
    try {
      return (StructType) load(WRITING).getMethod("schema").invoke(null);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  public static DataWriterFactory batchFactory(DataWriterFactory sparkFactory, StructType schema) {
    return (DataWriterFactory) construct(WRITING + "$Factory", sparkFactory, schema);
  }

  // The factory of their readers: the given one, which makes rows, or one around it, which makes batches.
  public static PartitionReaderFactory factory(PartitionReaderFactory rows, String kind) {
    if (kind.equals("rows")) {
      return rows;
    }
    return (PartitionReaderFactory) construct("LanceColumns$Factory", rows, memory());
  }

  private static long memory() {
    String text = ((SQLConf) SQLConf$.MODULE$.get()).getConfString(MEMORY, MEMORY_DEFAULT);
    long bytes = -1;
    try {
      bytes = JavaUtils.byteStringAsBytes(text);
    } catch (NumberFormatException problem) {
      // It is none.
    }
    if (bytes != 0 && (bytes < LEAST_MEMORY || bytes > MOST_MEMORY)) {
      throw new IllegalArgumentException(MEMORY + " is 0, or a size from 1m to 1g, not " + text);
    }
    return bytes;
  }

  // What reads rows that the driver has read, one stream of Arrow each part.
  public static PartitionReaderFactory inMemoryFactory(StructType schema) {
    return (PartitionReaderFactory) construct("LanceInMemoryPartitions$ReaderFactory", schema);
  }

  public static InputPartition inMemoryPartition(byte[] stream) {
    return (InputPartition) construct("LanceInMemoryPartitions$Partition", (Object) stream);
  }

  private static Object construct(String name, Object... arguments) {
    try {
      return load(name).getConstructors()[0].newInstance(arguments);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static Class<?> load(String name) throws ClassNotFoundException {
    return Class.forName(name.contains(".") ? name : PACKAGE + name, true, LanceTransport.class.getClassLoader());
  }

  private static boolean hasBytes(DataType type) {
    boolean any = type instanceof BinaryType;
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      for (StructField field : struct.fields()) {
        any = any || hasBytes(field.dataType());
      }
    } else if (type instanceof ArrayType) {
      any = hasBytes(((ArrayType) type).elementType());
    } else if (type instanceof MapType) {
      any = hasBytes(((MapType) type).keyType()) || hasBytes(((MapType) type).valueType());
    }
    return any;
  }

  private static boolean isSupported(DataType type) {
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      boolean all = true;
      for (StructField field : struct.fields()) {
        all = all && isSupported(field.dataType());
      }
      return all;
    }
    if (type instanceof ArrayType) {
      return isSupported(((ArrayType) type).elementType());
    }
    if (type instanceof MapType) {
      return isSupported(((MapType) type).keyType()) && isSupported(((MapType) type).valueType());
    }
    String name = type.getClass().getSimpleName();
    return TYPES.contains(name.endsWith("$") ? name.substring(0, name.length() - 1) : name);
  }

  // Whether this release has what the classes need, and executors can load them.
  private static synchronized boolean isUsable() {
    SparkContext context = SparkContext.getOrCreate();
    if (!context.applicationId().equals(application)) {
      application = context.applicationId();
      verdict = findProblem(context);
      if (!verdict.isEmpty()) {
        LoggerFactory.getLogger("spark_lance")
            .warn("Lance tables are read row by row, as batches of columns are of no use here: " + verdict);
      }
    }
    return verdict.isEmpty();
  }

  private static String findProblem(SparkContext context) {
    try {
      List<Class<?>> units = new ArrayList<>();
      for (String unit : UNITS) {
        units.add(loadChecked(unit));
      }
      Object missing = ((Class<?>) units.get(0)).getMethod("missing").invoke(null);
      if (missing != null) {
        return (String) missing;
      }
      hasWriting = false;
      try {
        List<Class<?>> writing = new ArrayList<>();
        for (String unit : FILLING) {
          writing.add(loadChecked(unit));
        }
        writing.add(loadChecked(WRITING));
        units.addAll(writing);
        hasWriting = true;
      } catch (ClassNotFoundException problem) {
        // The loader of units has said so.
      }
      hasFunctions = false;
      try {
        units.add(loadChecked(FUNCTIONS));
        hasFunctions = true;
      } catch (ClassNotFoundException problem) {
        // The loader of units has said so.
      }
      return context.isLocal() ? "" : sendToExecutors(context, units);
    } catch (ClassNotFoundException problem) {
      return "they do not fit this release of Spark";
    } catch (InvocationTargetException problem) {
      return String.valueOf(problem.getCause());
    } catch (ReflectiveOperationException problem) {
      return problem.toString();
    } catch (LinkageError problem) {
      return problem.toString().split("\n")[0];
    } catch (IOException problem) {
      return problem.toString();
    }
  }

  // A unit, with the code of all its classes checked now, and not in a task.
  private static Class<?> loadChecked(String unit) throws ClassNotFoundException {
    Class<?> type = load(unit);
    Class<?>[] inner = type.getDeclaredClasses();
    for (Class<?> nested : inner) {
      Class.forName(nested.getName(), true, nested.getClassLoader());
    }
    return type;
  }

  // Sends the classes to the executors; returns why they cannot load them, "" if they can.
  private static String sendToExecutors(SparkContext context, List<Class<?>> units) throws IOException {
    File jar = File.createTempFile("spark-lance-", ".jar");
    jar.deleteOnExit();
    ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar.toPath()));
    for (Class<?> unit : units) {
      add(unit, out);
    }
    out.close();
    context.addJar(jar.getPath());
    // A class of Spark's, which all executors have, tells whether there is another.
    String asks = "reflect('org.apache.spark.util.Utils', 'classIsLoadable', '" + ((Class<?>) units.get(0)).getName() + "') as there";
    SparkSession session = (SparkSession) SparkSession$.MODULE$.active();
    List<Row> answers = session.range(0L, PROBES, 1L, (int) PROBES).selectExpr(new String[] {asks}).collectAsList();
    for (Row answer : answers) {
      if (!"true".equals(answer.getString(0))) {
        return "executors do not load the classes that the driver sends them";
      }
    }
    return "";
  }

  private static void add(Class<?> type, ZipOutputStream out) throws IOException {
    String name = type.getName().replace('.', '/') + ".class";
    InputStream in = type.getClassLoader().getResourceAsStream(name);
    try {
      out.putNextEntry(new ZipEntry(name));
      in.transferTo(out);
      out.closeEntry();
    } finally {
      in.close();
    }
    Class<?>[] inner = type.getDeclaredClasses();
    for (Class<?> nested : inner) {
      add(nested, out);
    }
  }
}
