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
 * Decides how rows travel between tasks and Python workers: as rows, which is Spark's way, or as batches of columns
 * (LanceColumns, LanceRowBatches).
 */
public final class LanceTransport {
  private static final String SETTING = "spark.lance.transport";
  // Bytes of memory that a worker shares with its task; 0: batches use the socket.
  private static final String MEMORY = "spark.lance.sharedMemory";
  private static final String MEMORY_DEFAULT = "8m";
  private static final long MIN_MEMORY = 1L << 20;
  private static final long MAX_MEMORY = 1L << 30;
  private static final List<String> KINDS = Arrays.asList("rows", "columns");
  private static final String PACKAGE = "org.lance.spark.transport.";
  // The units whose classes executors need. The first one reports missing parts of this release of Spark.
  private static final String[] UNITS = {
    "org.lance.spark.shim.WorkerShim",
    PACKAGE + "LanceColumns",
    PACKAGE + "LanceInMemoryPartitions",
    PACKAGE + "LanceColumnVector",
    PACKAGE + "LanceRing",
    PACKAGE + "LanceMessage"
  };
  // The classes of tasks that write. Without one of them, tasks write Spark's way; reads do not change.
  private static final String BATCH_WRITER = "LanceRowBatches";
  private static final String[] BATCH_WRITER_CLASSES = {"LanceRowNode", "LanceRowNodes", "LanceColumnCopies", "LanceRowColumns"};
  // Spark clusters rows of partitioned tables with these functions.
  private static final String FUNCTIONS = "LanceFunctions";
  // Types whose values batches store as Spark reads them, and arrays, maps and structs of them.
  private static final Set<String> TYPES =
      new HashSet<>(
          Arrays.asList(
              "NullType", "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType",
              "DoubleType", "DecimalType", "StringType", "BinaryType", "DateType", "TimestampType",
              "TimestampNTZType", "DayTimeIntervalType", "TimeType"));
  // The number of tasks that look for the classes on executors.
  private static final long PROBES = 4;

  // The reason why this application cannot use the classes, "" if it can; null before the first check.
  private static String verdict = null;
  private static String application = null;
  private static boolean hasBatchWriter = false;
  private static boolean hasFunctions = false;

  private LanceTransport() {}

  /**
   * Returns how tasks read columns: {@code columns} if the settings, the types and the executors allow it, else
   * {@code rows}.
   */
  public static String kind(StructType schema) {
    return isColumnar(schema) && isUsable() ? "columns" : "rows";
  }

  /** Returns whether tasks may read columns, as far as is known without the slow check of the executors. */
  public static synchronized boolean mayUse(StructType schema) {
    boolean isChecked = SparkContext.getOrCreate().applicationId().equals(application);
    return isColumnar(schema) && (!isChecked || verdict.isEmpty());
  }

  /**
   * Returns whether the settings and the types allow batches.
   *
   * @throws IllegalArgumentException if the setting is neither rows nor columns
   */
  public static boolean isColumnar(StructType schema) {
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    String transport = settings.getConfString(SETTING, "columns");
    if (!KINDS.contains(transport)) {
      throw new IllegalArgumentException(SETTING + " is rows or columns, not " + transport);
    }
    // Executors load the classes of sessions with artifacts, such as those of Connect, in another way.
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    boolean large = settings.arrowUseLargeVarTypes();
    return transport.equals("columns") && !isolated && !large && isSupported(schema);
  }

  /**
   * Returns whether tasks pack rows into batches for Spark's writer. Binary columns exclude it: copying large values
   * once more costs more than measuring them.
   */
  public static boolean writesBatches(StructType schema) {
    return isColumnar(schema) && !hasBytes(schema) && isUsable() && hasBatchWriter;
  }

  /** Returns whether executors have the functions that cluster the rows of a partitioned table. */
  public static boolean hasFunctions() {
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    return !isolated && isUsable() && hasFunctions;
  }

  /** Returns the schema of the rows that Spark's writer receives if tasks write batches. */
  public static StructType batchSchema() {
    try {
      return (StructType) load(BATCH_WRITER).getMethod("schema").invoke(null);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  /**
   * Returns a factory of writers that pack rows into batches.
   *
   * @param sparkFactory Spark's factory, for rows of {@link #batchSchema}
   * @param schema the schema of the rows to write
   */
  public static DataWriterFactory batchFactory(DataWriterFactory sparkFactory, StructType schema) {
    return (DataWriterFactory) construct(BATCH_WRITER + "$Factory", sparkFactory, schema);
  }

  /**
   * Returns the factory of the readers of a scan.
   *
   * @param sparkFactory Spark's factory, which reads rows
   * @param kind the result of {@link #kind}
   */
  public static PartitionReaderFactory factory(PartitionReaderFactory sparkFactory, String kind) {
    if (kind.equals("rows")) {
      return sparkFactory;
    }
    return (PartitionReaderFactory) construct("LanceColumns$Factory", sparkFactory, memory());
  }

  private static long memory() {
    String text = ((SQLConf) SQLConf$.MODULE$.get()).getConfString(MEMORY, MEMORY_DEFAULT);
    long bytes = -1;
    try {
      bytes = JavaUtils.byteStringAsBytes(text);
    } catch (NumberFormatException problem) {
      // The check below reports it.
    }
    if (bytes != 0 && (bytes < MIN_MEMORY || bytes > MAX_MEMORY)) {
      throw new IllegalArgumentException(MEMORY + " is 0, or a size from 1m to 1g, not " + text);
    }
    return bytes;
  }

  /** Returns the factory that reads the partitions of {@link #inMemoryPartition}. */
  public static PartitionReaderFactory inMemoryFactory(StructType schema) {
    return (PartitionReaderFactory) construct("LanceInMemoryPartitions$ReaderFactory", schema);
  }

  /**
   * Returns a partition of rows that the driver has read.
   *
   * @param stream the rows as a stream of Arrow
   */
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
    boolean hasBinary = type instanceof BinaryType;
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      for (StructField field : struct.fields()) {
        hasBinary = hasBinary || hasBytes(field.dataType());
      }
    } else if (type instanceof ArrayType) {
      hasBinary = hasBytes(((ArrayType) type).elementType());
    } else if (type instanceof MapType) {
      hasBinary = hasBytes(((MapType) type).keyType()) || hasBytes(((MapType) type).valueType());
    }
    return hasBinary;
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

  /**
   * Returns whether this release of Spark fits the classes and executors can load them. The check runs once for an
   * application.
   */
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
      hasBatchWriter = false;
      try {
        List<Class<?>> writerUnits = new ArrayList<>();
        for (String unit : BATCH_WRITER_CLASSES) {
          writerUnits.add(loadChecked(unit));
        }
        writerUnits.add(loadChecked(BATCH_WRITER));
        units.addAll(writerUnits);
        hasBatchWriter = true;
      } catch (ClassNotFoundException problem) {
        // LanceUnits has logged it.
      }
      hasFunctions = false;
      try {
        units.add(loadChecked(FUNCTIONS));
        hasFunctions = true;
      } catch (ClassNotFoundException problem) {
        // LanceUnits has logged it.
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

  /** Loads a class and its nested classes, so that problems show in the driver and not in a task. */
  private static Class<?> loadChecked(String unit) throws ClassNotFoundException {
    Class<?> type = load(unit);
    Class<?>[] inner = type.getDeclaredClasses();
    for (Class<?> nested : inner) {
      Class.forName(nested.getName(), true, nested.getClassLoader());
    }
    return type;
  }

  /**
   * Sends the classes to the executors.
   *
   * @return why the executors cannot load them; "" if they can
   */
  private static String sendToExecutors(SparkContext context, List<Class<?>> units) throws IOException {
    File jar = File.createTempFile("spark-lance-", ".jar");
    jar.deleteOnExit();
    ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar.toPath()));
    for (Class<?> unit : units) {
      add(unit, out);
    }
    out.close();
    context.addJar(jar.getPath());
    // All executors have this class of Spark, which tells whether they can load another class.
    String expression = "reflect('org.apache.spark.util.Utils', 'classIsLoadable', '" + ((Class<?>) units.get(0)).getName() + "') as there";
    SparkSession session = (SparkSession) SparkSession$.MODULE$.active();
    List<Row> answers = session.range(0L, PROBES, 1L, (int) PROBES).selectExpr(new String[] {expression}).collectAsList();
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
