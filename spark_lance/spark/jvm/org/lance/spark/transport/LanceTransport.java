// How the rows of tasks come from Python workers and go to them: as rows, which is Spark's way, or as batches of columns
// (LanceColumns, LanceRowBatches).
//
// Compiled in the driver by Janino.

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
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.slf4j.LoggerFactory;

public final class LanceTransport {
  private static final String SETTING = "spark.lance.transport";
  // Bytes of shared memory through which a worker hands batches to its task; 0: through the socket.
  private static final String MEMORY = "spark.lance.sharedMemory";
  private static final String MEMORY_DEFAULT = "8m";
  private static final long LEAST_MEMORY = 1L << 20;
  private static final long MOST_MEMORY = 1L << 30;
  private static final List KINDS = Arrays.asList((Object[]) new String[] {"rows", "columns"});
  private static final String PACKAGE = "org.lance.spark.transport.";
  // The units whose classes executors need; the first one reports what this release of Spark lacks.
  private static final String[] UNITS = {
    "org.lance.spark.shim.WorkerShim",
    PACKAGE + "LanceColumns",
    PACKAGE + "LanceHeldColumns",
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
  private static final Set TYPES =
      new HashSet(
          Arrays.asList(
              (Object[])
                  new String[] {
                    "NullType", "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType",
                    "DoubleType", "DecimalType", "StringType", "BinaryType", "DateType", "TimestampType",
                    "TimestampNTZType", "DayTimeIntervalType", "TimeType"
                  }));
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
    return isWanted(schema) && isUsable() ? "columns" : "rows";
  }

  // Whether rows of a schema may be read as batches, as far as that is known: isUsable takes its time.
  public static synchronized boolean mayUse(StructType schema) {
    boolean isKnown = SparkContext.getOrCreate().applicationId().equals(application);
    return isWanted(schema) && (!isKnown || verdict.isEmpty());
  }

  // Whether batches are what the setting says, and have types that are read.
  public static boolean isWanted(StructType schema) {
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    String asked = settings.getConfString(SETTING, "columns");
    if (!KINDS.contains(asked)) {
      throw new IllegalArgumentException(SETTING + " is rows or columns, not " + asked);
    }
    // Executors load what sessions with artifacts of their own need, as those of Connect, in another way.
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    boolean large = settings.arrowUseLargeVarTypes();
    return asked.equals("columns") && !isolated && !large && isKnown(schema);
  }

  // Whether tasks put rows of these columns into batches before Spark's writer gets them. Not for binary columns: they
  // are for large values, and to copy these once more costs far more than to measure them.
  public static boolean batches(StructType schema) {
    return isWanted(schema) && !hasBytes(schema) && isUsable() && hasWriting;
  }

  // Whether executors have the functions that cluster rows.
  public static boolean hasFunctions() {
    boolean isolated = JobArtifactSet$.MODULE$.getCurrentJobArtifactState().isDefined();
    return !isolated && isUsable() && hasFunctions;
  }

  // What they get rows as, and the factory around `own`, which is Spark's for such rows.
  public static StructType batchSchema() {
    try {
      return (StructType) loaded(WRITING).getMethod("schema", new Class[0]).invoke(null, new Object[0]);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  public static DataWriterFactory batchFactory(DataWriterFactory own, StructType schema) {
    return (DataWriterFactory) made(WRITING + "$Factory", new Object[] {own, schema});
  }

  // The factory of their readers: the given one, which makes rows, or one around it, which makes batches.
  public static PartitionReaderFactory factory(PartitionReaderFactory rows, String kind) {
    if (kind.equals("rows")) {
      return rows;
    }
    return (PartitionReaderFactory) made("LanceColumns$Factory", new Object[] {rows, Long.valueOf(memory())});
  }

  private static long memory() {
    String asked = ((SQLConf) SQLConf$.MODULE$.get()).getConfString(MEMORY, MEMORY_DEFAULT);
    long bytes = -1;
    try {
      bytes = JavaUtils.byteStringAsBytes(asked);
    } catch (NumberFormatException problem) {
      // It is none.
    }
    if (bytes != 0 && (bytes < LEAST_MEMORY || bytes > MOST_MEMORY)) {
      throw new IllegalArgumentException(MEMORY + " is 0, or a size from 1m to 1g, not " + asked);
    }
    return bytes;
  }

  // What reads rows that the driver has read, one stream of Arrow each part.
  public static PartitionReaderFactory held(StructType schema) {
    return (PartitionReaderFactory) made("LanceHeldColumns$Factory", new Object[] {schema});
  }

  public static InputPartition part(byte[] stream) {
    return (InputPartition) made("LanceHeldColumns$Part", new Object[] {stream});
  }

  private static Object made(String name, Object[] from) {
    try {
      return loaded(name).getConstructors()[0].newInstance(from);
    } catch (ReflectiveOperationException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static Class loaded(String name) throws ClassNotFoundException {
    return Class.forName(name.contains(".") ? name : PACKAGE + name, true, LanceTransport.class.getClassLoader());
  }

  private static boolean hasBytes(DataType type) {
    boolean any = type instanceof BinaryType;
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      for (int i = 0; !any && i < struct.length(); i++) {
        any = hasBytes(struct.fields()[i].dataType());
      }
    } else if (type instanceof ArrayType) {
      any = hasBytes(((ArrayType) type).elementType());
    } else if (type instanceof MapType) {
      any = hasBytes(((MapType) type).keyType()) || hasBytes(((MapType) type).valueType());
    }
    return any;
  }

  private static boolean isKnown(DataType type) {
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      boolean all = true;
      for (int i = 0; all && i < struct.length(); i++) {
        all = isKnown(struct.fields()[i].dataType());
      }
      return all;
    }
    if (type instanceof ArrayType) {
      return isKnown(((ArrayType) type).elementType());
    }
    if (type instanceof MapType) {
      return isKnown(((MapType) type).keyType()) && isKnown(((MapType) type).valueType());
    }
    String name = type.getClass().getSimpleName();
    return TYPES.contains(name.endsWith("$") ? name.substring(0, name.length() - 1) : name);
  }

  // Whether this release has what the classes need, and executors can load them.
  private static synchronized boolean isUsable() {
    SparkContext context = SparkContext.getOrCreate();
    if (!context.applicationId().equals(application)) {
      application = context.applicationId();
      verdict = problem(context);
      if (!verdict.isEmpty()) {
        LoggerFactory.getLogger("spark_lance")
            .warn("Lance tables are read row by row, as batches of columns are of no use here: " + verdict);
      }
    }
    return verdict.isEmpty();
  }

  private static String problem(SparkContext context) {
    try {
      List units = new ArrayList();
      for (int i = 0; i < UNITS.length; i++) {
        units.add(checked(UNITS[i]));
      }
      Object missing = ((Class) units.get(0)).getMethod("missing", new Class[0]).invoke(null, new Object[0]);
      if (missing != null) {
        return (String) missing;
      }
      hasWriting = false;
      try {
        List writing = new ArrayList();
        for (int i = 0; i < FILLING.length; i++) {
          writing.add(checked(FILLING[i]));
        }
        writing.add(checked(WRITING));
        units.addAll(writing);
        hasWriting = true;
      } catch (ClassNotFoundException problem) {
        // The loader of units has said so.
      }
      hasFunctions = false;
      try {
        units.add(checked(FUNCTIONS));
        hasFunctions = true;
      } catch (ClassNotFoundException problem) {
        // The loader of units has said so.
      }
      return context.isLocal() ? "" : sent(context, units);
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
  private static Class checked(String unit) throws ClassNotFoundException {
    Class found = loaded(unit);
    Class[] inner = found.getDeclaredClasses();
    for (int i = 0; i < inner.length; i++) {
      Class.forName(inner[i].getName(), true, inner[i].getClassLoader());
    }
    return found;
  }

  // Sends the classes to the executors; returns why they cannot load them, "" if they can.
  private static String sent(SparkContext context, List units) throws IOException {
    File jar = File.createTempFile("spark-lance-", ".jar");
    jar.deleteOnExit();
    ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar.toPath()));
    for (int i = 0; i < units.size(); i++) {
      add((Class) units.get(i), out);
    }
    out.close();
    context.addJar(jar.getPath());
    // A class of Spark's, which all executors have, tells whether there is another.
    String asks = "reflect('org.apache.spark.util.Utils', 'classIsLoadable', '" + ((Class) units.get(0)).getName() + "') as there";
    SparkSession session = (SparkSession) SparkSession$.MODULE$.active();
    List answers = session.range(0L, PROBES, 1L, (int) PROBES).selectExpr(new String[] {asks}).collectAsList();
    for (int i = 0; i < answers.size(); i++) {
      if (!"true".equals(((Row) answers.get(i)).getString(0))) {
        return "executors do not load the classes that the driver sends them";
      }
    }
    return "";
  }

  private static void add(Class one, ZipOutputStream out) throws IOException {
    String name = one.getName().replace('.', '/') + ".class";
    InputStream in = one.getClassLoader().getResourceAsStream(name);
    try {
      out.putNextEntry(new ZipEntry(name));
      in.transferTo(out);
      out.closeEntry();
    } finally {
      in.close();
    }
    Class[] inner = one.getDeclaredClasses();
    for (int i = 0; i < inner.length; i++) {
      add(inner[i], out);
    }
  }
}
