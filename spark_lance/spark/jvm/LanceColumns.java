// Batches of columns from a Python worker, as they come.
//
// Spark reads what a Python data source yields as Arrow batches, and takes every batch apart into rows before a query
// sees it. Here the same worker, started and watched by the same classes of Spark's, gives its batches to the query.
// Their columns are read where Arrow keeps them, by address: see Column.
//
// Executors need these classes, so nothing here rests on another unit. Compiled in the driver by Janino; hence no
// generics, no lambdas.

package spark_lance.sql;

import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.DurationVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeNanoVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource$;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.Decimal$;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.AccumulatorV2;

public final class LanceColumns {
  private LanceColumns() {}

  // What this release of Spark lacks of what is used here; null if nothing. Asked in the driver, which then does not
  // send tasks that would fail.
  public static String missing() {
    try {
      for (int i = 0; i < evaluator().getParameterTypes().length - 2; i++) {
        Parts.field(Parts.NAMES[i]);
      }
      runner(Class.forName(EVALUATOR, false, MapInBatchEvaluatorFactory.class.getClassLoader()));
      return null;
    } catch (ReflectiveOperationException lacking) {
      return lacking.toString();
    } catch (LinkageError lacking) {
      return lacking.toString();
    }
  }

  private static final String EVALUATOR =
      "org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator";

  // The method that makes what runs a function over batches in a Python worker. It has a parameter more since 4.1.
  private static Method evaluator() throws NoSuchMethodException {
    Method[] methods = UserDefinedPythonDataSource.class.getMethods();
    for (int i = 0; i < methods.length; i++) {
      int parameters = methods[i].getParameterTypes().length;
      if (methods[i].getName().equals("createMapInBatchEvaluatorFactory") && (parameters == 6 || parameters == 7)) {
        return methods[i];
      }
    }
    throw new NoSuchMethodException("createMapInBatchEvaluatorFactory");
  }

  // What the evaluator takes its batches from, and then cuts into rows: a class without a name within it, made from it
  // and from which columns the function takes.
  private static Constructor runner(Class evaluator) throws ReflectiveOperationException {
    Class found = Class.forName(evaluator.getName() + "$$anon$1", true, evaluator.getClassLoader());
    Class[] types = {evaluator, int[][].class};
    if (!BasePythonRunner.class.isAssignableFrom(found)) {
      throw new ClassNotFoundException(found.getName() + " runs no Python");
    }
    Constructor constructor = found.getConstructor(types);
    constructor.setAccessible(true);
    return constructor;
  }

  /** What Spark's own factory of readers is made of. */
  private static final class Parts {
    static final String[] NAMES = {"source", "pickledReadFunc", "outputSchema", "jobArtifactUUID", "sessionUUID"};
    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType schema;
    private final Object artifacts;
    // None before 4.1.
    private final Object session;

    Parts(PartitionReaderFactory rows) throws ReflectiveOperationException {
      source = (UserDefinedPythonDataSource) field(NAMES[0]).get(rows);
      function = (byte[]) field(NAMES[1]).get(rows);
      schema = (StructType) field(NAMES[2]).get(rows);
      artifacts = field(NAMES[3]).get(rows);
      session = evaluator().getParameterTypes().length == 7 ? field(NAMES[4]).get(rows) : null;
    }

    static Field field(String name) throws NoSuchFieldException {
      Field[] fields = PythonPartitionReaderFactory.class.getDeclaredFields();
      for (int i = 0; i < fields.length; i++) {
        if (fields[i].getName().equals(name) || fields[i].getName().endsWith("$$" + name)) {
          fields[i].setAccessible(true);
          return fields[i];
        }
      }
      throw new NoSuchFieldException(name);
    }
  }

  /** Makes readers of batches; Spark's own factory knows how a worker is started. */
  public static final class Factory implements PartitionReaderFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final PartitionReaderFactory rows;

    public Factory(PartitionReaderFactory rows) {
      this.rows = rows;
    }

    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    public PartitionReader createReader(InputPartition partition) {
      return rows.createReader(partition);
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
      try {
        return new Batches(new Parts(rows), (PythonInputPartition) partition);
      } catch (ReflectiveOperationException problem) {
        // As it would be without the detour.
        boolean thrown = problem instanceof InvocationTargetException;
        Platform.throwException(thrown ? problem.getCause() : problem);
        return null;
      }
    }
  }

  /** Reads the batches of one partition. The contents of one are valid until the next is asked for. */
  public static final class Batches implements PartitionReader {
    private final UserDefinedPythonDataSource source;
    private final StructType schema;
    private final scala.collection.immutable.Map metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
    private final scala.collection.Iterator batches;
    // Where the worker says what it reads; null if there is no place for a file.
    private final File told;
    private FieldVector given = null;
    private Column[] columns = null;

    Batches(Parts parts, PythonInputPartition partition) throws ReflectiveOperationException {
      this.source = parts.source;
      this.schema = parts.schema;
      Method making = evaluator();
      Object[] some = {
        parts.function,
        "read_from_data_source",
        UserDefinedPythonDataSource$.MODULE$.readInputSchema(),
        parts.schema,
        metrics,
        parts.artifacts
      };
      Object[] all = Arrays.copyOf(some, making.getParameterTypes().length);
      if (all.length > some.length) {
        all[some.length] = parts.session;
      }
      Object evaluator = ((MapInBatchEvaluatorFactory) making.invoke(source, all)).createEvaluator();
      // The function takes one column, a struct with the pickled partition.
      Object[] chosen = {evaluator, new int[][] {{0}}};
      BasePythonRunner runner = (BasePythonRunner) runner(evaluator.getClass()).newInstance(chosen);
      told = file();
      InternalRow asked = row(row(handed(partition.pickedPartition())));
      scala.collection.Iterator input = scala.collection.Iterator$.MODULE$.single(asked);
      TaskContext context = TaskContext.get();
      batches = runner.compute(scala.collection.Iterator$.MODULE$.single(input), context.partitionId(), context);
    }

    private static File file() {
      try {
        return File.createTempFile("spark-lance-", ".reads");
      } catch (IOException full) {
        return null;
      }
    }

    // What the worker takes, see spark/scan/task_read.py: the pickle, and behind it the path of the file.
    private byte[] handed(byte[] pickle) {
      if (told == null) {
        return pickle;
      }
      byte[] path = told.getPath().getBytes(StandardCharsets.UTF_8);
      byte[] both = Arrays.copyOf(pickle, pickle.length + path.length);
      System.arraycopy(path, 0, both, pickle.length, path.length);
      return both;
    }

    private static InternalRow row(Object value) {
      return new GenericInternalRow(new Object[] {value});
    }

    public boolean next() {
      return batches.hasNext();
    }

    public Object get() {
      ColumnarBatch batch = (ColumnarBatch) batches.next();
      FieldVector next = (FieldVector) ((ArrowColumnVector) batch.column(0)).getValueVector();
      if (columns == null || next != given) {
        given = next;
        columns = columns(next);
      }
      for (int i = 0; i < columns.length; i++) {
        columns[i].loaded(batch.numRows());
      }
      return new ColumnarBatch(columns, batch.numRows());
    }

    private Column[] columns(FieldVector struct) {
      DataType actual = ArrowUtils$.MODULE$.fromArrowField(struct.getField());
      if (!fits(actual, schema)) {
        throw new IllegalStateException(
            "a Python worker gave " + actual.simpleString() + " in place of " + schema.simpleString());
      }
      return Column.parts(struct);
    }

    public CustomTaskMetric[] currentMetricsValues() {
      Map values = new HashMap();
      scala.collection.Iterator now = metrics.iterator();
      while (now.hasNext()) {
        scala.Tuple2 entry = (scala.Tuple2) now.next();
        values.put(entry._1(), ((AccumulatorV2) entry._2()).value());
      }
      scala.collection.mutable.Map sent = scala.jdk.javaapi.CollectionConverters.asScala(values);
      List all = new ArrayList(
          Arrays.asList((Object[]) source.createPythonTaskMetrics(sent.toMap(scala.$less$colon$less$.MODULE$.refl()))));
      addReads(all);
      return (CustomTaskMetric[]) all.toArray(new CustomTaskMetric[0]);
    }

    private void addReads(List all) {
      try {
        List lines = told == null ? new ArrayList() : Files.readAllLines(told.toPath());
        for (int i = 0; i < lines.size(); i++) {
          String[] words = ((String) lines.get(i)).split(" ");
          all.add(new Amount(words[0], Long.parseLong(words[1])));
        }
      } catch (IOException gone) {
        // The numbers are for show.
      }
    }

    public void initMetricsValues(CustomTaskMetric[] metrics) {}

    // Spark ends the worker and frees its memory with the task.
    public void close() {
      if (told != null) {
        told.delete();
      }
    }
  }

  /** What a task has read so far. */
  private static final class Amount implements CustomTaskMetric {
    private final String name;
    private final long value;

    Amount(String name, long value) {
      this.name = name;
      this.value = value;
    }

    public String name() {
      return name;
    }

    public long value() {
      return value;
    }
  }

  /** A part of the rows that the driver has read: a stream of Arrow. */
  public static final class Held implements InputPartition, Serializable {
    private static final long serialVersionUID = 1L;
    private final byte[] stream;

    public Held(byte[] stream) {
      this.stream = stream;
    }
  }

  /** Makes readers of such parts. */
  public static final class HeldFactory implements PartitionReaderFactory, Serializable {
    private static final long serialVersionUID = 1L;
    private final StructType schema;

    public HeldFactory(StructType schema) {
      this.schema = schema;
    }

    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    public PartitionReader createReader(InputPartition partition) {
      throw new UnsupportedOperationException("read as columns only");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
      return new HeldBatches(((Held) partition).stream, schema);
    }
  }

  /** Reads the batches of a stream. The contents of one are valid until the next is asked for. */
  public static final class HeldBatches implements PartitionReader {
    private final BufferAllocator allocator =
        ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("lance", 0L, Long.MAX_VALUE);
    private final StructType schema;
    private final ArrowStreamReader reader;
    private Column[] columns = null;

    HeldBatches(byte[] stream, StructType schema) {
      this.schema = schema;
      this.reader = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
    }

    public boolean next() throws IOException {
      return reader.loadNextBatch();
    }

    public Object get() {
      try {
        VectorSchemaRoot root = reader.getVectorSchemaRoot();
        if (columns == null) {
          columns = columns(root.getFieldVectors());
        }
        for (int i = 0; i < columns.length; i++) {
          columns[i].loaded(root.getRowCount());
        }
        return new ColumnarBatch(columns, root.getRowCount());
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      }
    }

    private Column[] columns(List vectors) {
      Column[] found = new Column[vectors.size()];
      for (int i = 0; i < found.length; i++) {
        FieldVector vector = (FieldVector) vectors.get(i);
        DataType actual = ArrowUtils$.MODULE$.fromArrowField(vector.getField());
        if (!fits(actual, schema.fields()[i].dataType())) {
          throw new IllegalStateException(
              "the driver gave " + actual.simpleString() + " in place of " + schema.fields()[i]);
        }
        found[i] = Column.of(vector);
      }
      return found;
    }

    public void close() throws IOException {
      reader.close();
      allocator.close();
    }

    public CustomTaskMetric[] currentMetricsValues() {
      return new CustomTaskMetric[0];
    }
  }

  // Whether data of a type has the layout that a wanted type is read by. Names and nullability tell nothing of it, nor
  // does the collation of strings.
  private static boolean fits(DataType actual, DataType wanted) {
    if (actual instanceof StructType && wanted instanceof StructType) {
      StructType parts = (StructType) actual;
      StructType others = (StructType) wanted;
      boolean all = parts.length() == others.length();
      for (int i = 0; all && i < parts.length(); i++) {
        all = fits(parts.fields()[i].dataType(), others.fields()[i].dataType());
      }
      return all;
    }
    if (actual instanceof ArrayType && wanted instanceof ArrayType) {
      return fits(((ArrayType) actual).elementType(), ((ArrayType) wanted).elementType());
    }
    if (actual instanceof MapType && wanted instanceof MapType) {
      return fits(((MapType) actual).keyType(), ((MapType) wanted).keyType())
          && fits(((MapType) actual).valueType(), ((MapType) wanted).valueType());
    }
    // Times have a precision, and intervals units, that say how they are shown.
    String name = actual.getClass().getSimpleName();
    boolean varies = name.equals("TimeType") || name.equals("DayTimeIntervalType");
    return actual.equals(wanted)
        || (actual instanceof StringType && wanted instanceof StringType)
        || (varies && actual.getClass() == wanted.getClass());
  }

  /**
   * A column, or a part of one, in Arrow's memory.
   *
   * Arrow's own getters check bounds and nulls for every value. Here the buffers of a batch are checked once, when it
   * is loaded, against its number of rows; then values are read by address. One class for all types, so that what the
   * JVM compiles for them calls no method that may be of several classes.
   */
  public static final class Column extends ColumnVector {
    private static final Column[] NONE = {};
    private final FieldVector vector;
    // Bytes of a value; 0 without values of one width.
    private final int width;
    // Whether values are runs of bytes, or of items, from one offset to the next.
    private final boolean runs;
    // Fields of a struct, items of a list, keys and values of a map.
    private final Column[] parts;
    // What holds the keys and values.
    private final FieldVector entries;
    // Whether all is null, and there is no memory at all.
    private final boolean isEmpty;
    private int nulls;
    private long validity;
    private long data;
    private long offsets;

    private Column(FieldVector vector, int width, boolean runs, FieldVector entries, Column[] parts) {
      super(ArrowUtils$.MODULE$.fromArrowField(vector.getField()));
      this.vector = vector;
      this.isEmpty = vector instanceof NullVector;
      this.width = width;
      this.runs = runs;
      this.entries = entries;
      this.parts = parts;
    }

    private static Column of(FieldVector vector) {
      if (vector instanceof MapVector) {
        FieldVector entries = (FieldVector) ((MapVector) vector).getDataVector();
        return new Column(vector, 0, true, entries, parts(entries));
      }
      if (vector.getClass() == ListVector.class) {
        return new Column(vector, 0, true, null, parts(vector));
      }
      if (vector instanceof StructVector) {
        return new Column(vector, 0, false, null, parts(vector));
      }
      if (vector instanceof VarCharVector || vector instanceof VarBinaryVector) {
        return new Column(vector, 1, true, null, NONE);
      }
      return new Column(vector, width(vector), false, null, NONE);
    }

    static Column[] parts(FieldVector of) {
      List vectors = of.getChildrenFromFields();
      Column[] parts = new Column[vectors.size()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = of((FieldVector) vectors.get(i));
      }
      return parts;
    }

    // Bytes of a value; 0 for bits, and where there are none.
    private static int width(FieldVector vector) {
      if (vector instanceof BitVector || vector instanceof NullVector) {
        return 0;
      }
      boolean known =
          vector instanceof TinyIntVector
              || vector instanceof SmallIntVector
              || vector instanceof IntVector
              || vector instanceof BigIntVector
              || vector instanceof Float4Vector
              || vector instanceof Float8Vector
              || vector instanceof DecimalVector
              || vector instanceof DateDayVector
              || vector instanceof TimeStampMicroTZVector
              || vector instanceof TimeStampMicroVector
              || vector instanceof TimeNanoVector
              || (vector instanceof DurationVector && isMicro(vector));
      if (!known) {
        throw new IllegalStateException(
            "a Python worker gave " + vector.getField() + ", which is not read here: set spark.lance.transport to rows");
      }
      return ((BaseFixedWidthVector) vector).getTypeWidth();
    }

    private static boolean isMicro(FieldVector vector) {
      ArrowType type = vector.getField().getType();
      return ((ArrowType.Duration) type).getUnit() == TimeUnit.MICROSECOND;
    }

    // Takes the buffers of a batch that has been loaded.
    void loaded(int rows) {
      if (vector.getValueCount() < rows) {
        throw damaged("has " + vector.getValueCount() + " values in place of " + rows);
      }
      if (isEmpty) {
        nulls = rows;
        return;
      }
      nulls = vector.getNullCount();
      validity = nulls == 0 ? 0L : held(vector.getValidityBuffer(), (rows + 7L) / 8);
      if (runs) {
        loadedRuns(rows);
        return;
      }
      for (int i = 0; i < parts.length; i++) {
        parts[i].loaded(rows);
      }
      if (parts.length == 0 && !(vector instanceof StructVector)) {
        data = held(vector.getDataBuffer(), width == 0 ? (rows + 7L) / 8 : (long) rows * width);
      }
    }

    private void loadedRuns(int rows) {
      int last = 0;
      if (rows > 0) {
        offsets = held(vector.getOffsetBuffer(), (rows + 1L) * 4);
        last = Platform.getInt(null, offsets);
        boolean rising = last >= 0;
        for (int i = 1; i <= rows; i++) {
          int next = Platform.getInt(null, offsets + 4L * i);
          rising &= next >= last;
          last = next;
        }
        if (!rising) {
          throw damaged("has offsets that fall");
        }
      }
      if (parts.length == 0) {
        data = held(vector.getDataBuffer(), last);
        return;
      }
      if (entries != null && entries.getValueCount() < last) {
        throw damaged("has " + entries.getValueCount() + " entries in place of " + last);
      }
      for (int i = 0; i < parts.length; i++) {
        parts[i].loaded(last);
      }
    }

    // The address of a buffer that must have so many bytes.
    private long held(ArrowBuf buffer, long bytes) {
      if (buffer.capacity() < bytes) {
        throw damaged("has " + buffer.capacity() + " bytes in place of " + bytes);
      }
      return buffer.memoryAddress();
    }

    private IllegalStateException damaged(String problem) {
      return new IllegalStateException("column " + vector.getName() + " of a batch from a Python worker " + problem);
    }

    // Its memory is that of the vectors that Spark's reader of the worker loads.
    public void close() {}

    public boolean hasNull() {
      return nulls > 0;
    }

    public int numNulls() {
      return nulls;
    }

    public boolean isNullAt(int row) {
      if (validity == 0L) {
        return isEmpty;
      }
      return (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
    }

    public boolean getBoolean(int row) {
      return (Platform.getByte(null, data + (row >> 3)) >> (row & 7) & 1) != 0;
    }

    public byte getByte(int row) {
      return Platform.getByte(null, data + row);
    }

    public short getShort(int row) {
      return Platform.getShort(null, data + 2L * row);
    }

    public int getInt(int row) {
      return Platform.getInt(null, data + 4L * row);
    }

    public long getLong(int row) {
      return Platform.getLong(null, data + 8L * row);
    }

    public float getFloat(int row) {
      return Platform.getFloat(null, data + 4L * row);
    }

    public double getDouble(int row) {
      return Platform.getDouble(null, data + 8L * row);
    }

    public byte[] getBytes(int row, int count) {
      byte[] values = new byte[count];
      Platform.copyMemory(null, data + row, values, Platform.BYTE_ARRAY_OFFSET, count);
      return values;
    }

    public short[] getShorts(int row, int count) {
      short[] values = new short[count];
      Platform.copyMemory(null, data + 2L * row, values, Platform.SHORT_ARRAY_OFFSET, 2L * count);
      return values;
    }

    public int[] getInts(int row, int count) {
      int[] values = new int[count];
      Platform.copyMemory(null, data + 4L * row, values, Platform.INT_ARRAY_OFFSET, 4L * count);
      return values;
    }

    public long[] getLongs(int row, int count) {
      long[] values = new long[count];
      Platform.copyMemory(null, data + 8L * row, values, Platform.LONG_ARRAY_OFFSET, 8L * count);
      return values;
    }

    public float[] getFloats(int row, int count) {
      float[] values = new float[count];
      Platform.copyMemory(null, data + 4L * row, values, Platform.FLOAT_ARRAY_OFFSET, 4L * count);
      return values;
    }

    public double[] getDoubles(int row, int count) {
      double[] values = new double[count];
      Platform.copyMemory(null, data + 8L * row, values, Platform.DOUBLE_ARRAY_OFFSET, 8L * count);
      return values;
    }

    private int start(int row) {
      return Platform.getInt(null, offsets + 4L * row);
    }

    public UTF8String getUTF8String(int row) {
      if (isNullAt(row)) {
        return null;
      }
      int start = start(row);
      return UTF8String.fromAddress(null, data + start, start(row + 1) - start);
    }

    public byte[] getBinary(int row) {
      if (isNullAt(row)) {
        return null;
      }
      int start = start(row);
      return getBytes(start, start(row + 1) - start);
    }

    public ColumnarArray getArray(int row) {
      if (isNullAt(row)) {
        return null;
      }
      int start = start(row);
      return new ColumnarArray(parts[0], start, start(row + 1) - start);
    }

    public ColumnarMap getMap(int row) {
      if (isNullAt(row)) {
        return null;
      }
      int start = start(row);
      return new ColumnarMap(parts[0], parts[1], start, start(row + 1) - start);
    }

    public ColumnVector getChild(int ordinal) {
      return parts[ordinal];
    }

    // 16 bytes, the lowest first.
    public Decimal getDecimal(int row, int precision, int scale) {
      if (isNullAt(row)) {
        return null;
      }
      long low = Platform.getLong(null, data + 16L * row);
      long high = Platform.getLong(null, data + 16L * row + 8);
      if (precision <= Decimal$.MODULE$.MAX_LONG_DIGITS() && high == low >> 63) {
        return Decimal$.MODULE$.apply(low, precision, scale);
      }
      byte[] digits = new byte[16];
      for (int i = 0; i < 8; i++) {
        digits[i] = (byte) (high >> (56 - 8 * i));
        digits[i + 8] = (byte) (low >> (56 - 8 * i));
      }
      return Decimal$.MODULE$.apply(new BigDecimal(new BigInteger(digits), scale), precision, scale);
    }
  }
}
