package org.lance.spark.transport;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.time.LocalDate;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Functions of the catalog: the transforms of partition fields, with the values of Iceberg's specification, and the
 * package's version.
 *
 * <p>Spark clusters rows by the transforms before a write, so LanceTransport sends these classes to executors. Python
 * computes the same values in table/format/partitions.py.
 */
public final class LanceFunctions implements UnboundFunction {
  private static final long serialVersionUID = 1L;
  private static final List<String> NAMES =
      Arrays.asList("bucket", "days", "hours", "lance_version", "months", "truncate", "years");
  private static final long DAY = 86400000000L;
  private static final long HOUR = 3600000000L;

  private final String name;
  private final String version;

  private LanceFunctions(String name, String version) {
    this.name = name;
    this.version = version;
  }

  /** Returns the names of the functions, for SHOW FUNCTIONS. */
  public static List<String> names() {
    return NAMES;
  }

  /**
   * Returns a function of the catalog; null if there is none of that name.
   *
   * @param version the version of this package
   */
  public static UnboundFunction of(String name, String version) {
    String lower = name.toLowerCase();
    return NAMES.contains(lower) || lower.equals("iceberg_version") ? new LanceFunctions(lower, version) : null;
  }

  public String name() {
    return name;
  }

  public String description() {
    if (name.equals("lance_version")) {
      return "lance_version() - the version of spark_lance";
    }
    boolean isNumbered = name.equals("bucket") || name.equals("truncate");
    return name + (isNumbered ? "(number, column)" : "(column)") + " - the partition of a value, as in PARTITIONED BY";
  }

  public BoundFunction bind(StructType input) {
    if (name.equals("iceberg_version")) {
      throw new UnsupportedOperationException("the tables are Lance's: write system.lance_version()");
    }
    if (name.equals("lance_version")) {
      check(input.length() == 0, "takes no argument", input);
      return new Version(version);
    }
    boolean isNumbered = name.equals("bucket") || name.equals("truncate");
    check(input.length() == (isNumbered ? 2 : 1), isNumbered ? "takes a number and a column" : "takes one column", input);
    DataType type = input.fields()[input.length() - 1].dataType();
    if (isNumbered) {
      check(isInteger(input.fields()[0].dataType()), "takes a whole number first", input);
    }
    boolean isTime = type instanceof TimestampType || type instanceof TimestampNTZType;
    boolean isDay = type instanceof DateType;
    boolean isPlain = isInteger(type) || type instanceof LongType || type instanceof DecimalType
        || type instanceof StringType || type instanceof BinaryType;
    boolean fits = name.equals("hours") ? isTime
        : name.equals("truncate") ? isPlain : name.equals("bucket") ? isPlain || isTime || isDay : isTime || isDay;
    check(fits, "takes no " + type.simpleString(), input);
    return new Transform(name, input, type);
  }

  private void check(boolean fits, String problem, StructType input) {
    if (!fits) {
      // Spark turns this exception into an error about the call.
      throw new UnsupportedOperationException(name + " " + problem + ": " + description());
    }
  }

  private static boolean isInteger(DataType type) {
    return type instanceof IntegerType || type instanceof ShortType || type instanceof ByteType;
  }

  /** lance_version(). */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Version implements ScalarFunction {
    private static final long serialVersionUID = 1L;
    private final String version;

    Version(String version) {
      this.version = version;
    }

    public DataType[] inputTypes() {
      return new DataType[0];
    }

    public DataType resultType() {
      return DataTypes.StringType;
    }

    public String name() {
      return "lance_version";
    }

    public String canonicalName() {
      return "lance.lance_version";
    }

    public boolean isResultNullable() {
      return false;
    }

    public Object produceResult(InternalRow input) {
      return UTF8String.fromString(version);
    }
  }

  /** A transform of a column of one type. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Transform implements ScalarFunction {
    private static final long serialVersionUID = 1L;
    private final String name;
    private final DataType[] inputs;
    private final DataType type;

    Transform(String name, StructType input, DataType type) {
      this.name = name;
      this.inputs = new DataType[input.length()];
      for (int i = 0; i < inputs.length; i++) {
        inputs[i] = i == inputs.length - 1 ? type : DataTypes.IntegerType;
      }
      this.type = type;
    }

    public DataType[] inputTypes() {
      return inputs;
    }

    public DataType resultType() {
      return name.equals("truncate") ? truncatedType() : name.equals("days") ? DataTypes.DateType : DataTypes.IntegerType;
    }

    // Truncating a negative decimal may need one more digit.
    private DataType truncatedType() {
      if (!(type instanceof DecimalType)) {
        return type;
      }
      DecimalType decimal = (DecimalType) type;
      return new DecimalType(Math.min(decimal.precision() + 1, 38), decimal.scale());
    }

    public String name() {
      return name;
    }

    // Storage-partitioned joins compare this name: equal names compute equal values.
    public String canonicalName() {
      return "lance." + name + "(" + type.catalogString() + ")";
    }

    public Object produceResult(InternalRow input) {
      int at = inputs.length - 1;
      if (input.isNullAt(at) || (at > 0 && input.isNullAt(0))) {
        return null;
      }
      if (name.equals("bucket") || name.equals("truncate")) {
        int number = input.getInt(0);
        if (number < 1) {
          throw new IllegalArgumentException(name + " takes a number from 1 on, not " + number);
        }
        return name.equals("bucket") ? (Object) Integer.valueOf((hash(input, at) & Integer.MAX_VALUE) % number)
            : truncate(input, at, number);
      }
      long micros = type instanceof DateType ? input.getInt(at) * DAY : input.getLong(at);
      if (name.equals("hours")) {
        return Integer.valueOf((int) Math.floorDiv(micros, HOUR));
      }
      int day = (int) Math.floorDiv(micros, DAY);
      if (name.equals("days")) {
        return Integer.valueOf(day);
      }
      LocalDate date = LocalDate.ofEpochDay(day);
      int year = date.getYear() - 1970;
      return Integer.valueOf(name.equals("years") ? year : year * 12 + date.getMonthValue() - 1);
    }

    private int hash(InternalRow input, int at) {
      if (type instanceof StringType) {
        return murmur3(input.getUTF8String(at).getBytes());
      }
      if (type instanceof BinaryType) {
        return murmur3(input.getBinary(at));
      }
      if (type instanceof DecimalType) {
        DecimalType decimal = (DecimalType) type;
        Decimal value = input.getDecimal(at, decimal.precision(), decimal.scale());
        return murmur3(value.toJavaBigDecimal().setScale(decimal.scale()).unscaledValue().toByteArray());
      }
      long value = whole(input, at);
      int state = mix(mix(0, (int) value), (int) (value >>> 32));
      return finish(state, 8);
    }

    private long whole(InternalRow input, int at) {
      if (type instanceof ByteType) {
        return input.getByte(at);
      }
      if (type instanceof ShortType) {
        return input.getShort(at);
      }
      return type instanceof IntegerType || type instanceof DateType ? input.getInt(at) : input.getLong(at);
    }

    private Object truncate(InternalRow input, int at, int width) {
      if (type instanceof StringType) {
        return input.getUTF8String(at).substring(0, width);
      }
      if (type instanceof BinaryType) {
        byte[] bytes = input.getBinary(at);
        return bytes.length <= width ? bytes : Arrays.copyOf(bytes, width);
      }
      if (type instanceof DecimalType) {
        DecimalType decimal = (DecimalType) type;
        BigDecimal value = input.getDecimal(at, decimal.precision(), decimal.scale()).toJavaBigDecimal();
        BigInteger number = value.setScale(decimal.scale(), RoundingMode.UNNECESSARY).unscaledValue();
        BigInteger remainder = number.mod(BigInteger.valueOf(width));
        int precision = ((DecimalType) truncatedType()).precision();
        BigInteger minimum = BigInteger.ONE.subtract(BigInteger.TEN.pow(precision));
        BigInteger result = number.subtract(remainder).max(minimum);
        return Decimal.apply(new BigDecimal(result, decimal.scale()), precision, decimal.scale());
      }
      long value = whole(input, at);
      long result = value - Math.floorMod(value, (long) width);
      if (type instanceof ByteType) {
        return Byte.valueOf((byte) result);
      }
      if (type instanceof ShortType) {
        return Short.valueOf((short) result);
      }
      return type instanceof IntegerType ? (Object) Integer.valueOf((int) result) : (Object) Long.valueOf(result);
    }
  }

  private static int scramble(int word) {
    return Integer.rotateLeft(word * 0xCC9E2D51, 15) * 0x1B873593;
  }

  private static int mix(int state, int word) {
    return Integer.rotateLeft(state ^ scramble(word), 13) * 5 + 0xE6546B64;
  }

  private static int finish(int state, int length) {
    state ^= length;
    state = (state ^ (state >>> 16)) * 0x85EBCA6B;
    state = (state ^ (state >>> 13)) * 0xC2B2AE35;
    return state ^ (state >>> 16);
  }

  /** Returns the 32-bit Murmur3 hash with seed 0. */
  private static int murmur3(byte[] bytes) {
    int state = 0;
    int whole = bytes.length - bytes.length % 4;
    for (int i = 0; i < whole; i += 4) {
      int word = (bytes[i] & 0xFF) | (bytes[i + 1] & 0xFF) << 8 | (bytes[i + 2] & 0xFF) << 16 | (bytes[i + 3] & 0xFF) << 24;
      state = mix(state, word);
    }
    int remainder = 0;
    for (int i = whole; i < bytes.length; i++) {
      remainder |= (bytes[i] & 0xFF) << 8 * (i - whole);
    }
    return finish(whole < bytes.length ? state ^ scramble(remainder) : state, bytes.length);
  }
}
