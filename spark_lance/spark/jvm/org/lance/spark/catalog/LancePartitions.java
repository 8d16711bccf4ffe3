package org.lance.spark.catalog;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;

/** The partition fields of a table as Spark's transforms, and conversions of partition values. */
public final class LancePartitions {
  private final Transform[] transforms;
  private final StructType schema;

  /**
   * Creates the partition fields of an answer.
   *
   * @param fields see PartitionFieldAnswer in spark/sql/protocol.py; null for none
   */
  public LancePartitions(List<Object> fields) {
    int count = fields == null ? 0 : fields.size();
    this.transforms = new Transform[count];
    StructField[] columns = new StructField[count];
    for (int i = 0; i < count; i++) {
      Map<String, Object> field = Json.object(fields.get(i));
      transforms[i] = transform(field);
      DataType type = DataType.fromJson((String) field.get(Protocol.TYPE));
      columns[i] = new StructField((String) field.get(Protocol.NAME), type, true, Metadata.empty());
    }
    this.schema = new StructType(columns);
  }

  private static Transform transform(Map<String, Object> field) {
    String column = "`" + ((String) field.get(Protocol.SOURCE)).replace("`", "``") + "`";
    String kind = (String) field.get(Protocol.TRANSFORM);
    int width = ((Number) field.get(Protocol.WIDTH)).intValue();
    if (kind.equals("identity")) {
      return Expressions.identity(column);
    }
    if (kind.equals("bucket")) {
      return Expressions.bucket(width, new String[] {column});
    }
    if (kind.equals("truncate")) {
      Expression[] arguments = {Expressions.literal(Integer.valueOf(width)), Expressions.column(column)};
      return Expressions.apply(kind, arguments);
    }
    if (kind.equals("year")) {
      return Expressions.years(column);
    }
    if (kind.equals("month")) {
      return Expressions.months(column);
    }
    return kind.equals("day") ? Expressions.days(column) : Expressions.hours(column);
  }

  /** Returns whether the table has no partition fields. */
  public boolean isEmpty() {
    return transforms.length == 0;
  }

  /** Returns the partition fields as transforms of columns. */
  public Transform[] transforms() {
    return (Transform[]) transforms.clone();
  }

  /** Returns the types of the partition values by name of field. */
  public StructType schema() {
    return schema;
  }

  /** Returns partitions as lists of strings, for Python. */
  List<Object> toJson(InternalRow[] partitions) {
    List<Object> result = new ArrayList<>();
    for (InternalRow partition : partitions) {
      List<Object> values = new ArrayList<>();
      for (int j = 0; j < schema.length(); j++) {
        DataType type = schema.fields()[j].dataType();
        values.add(partition.isNullAt(j) ? null : text(partition.get(j, type), type));
      }
      result.add(values);
    }
    return result;
  }

  /**
   * Returns the partitions whose fields equal the values of a row.
   *
   * @param partitions the partitions of an answer as lists of strings
   * @param names the names of the fields to compare
   * @param values the values of these fields
   */
  InternalRow[] matching(List<List<Object>> partitions, String[] names, InternalRow values) {
    List<InternalRow> result = new ArrayList<>();
    for (List<Object> texts : partitions) {
      boolean matches = true;
      for (int j = 0; matches && j < names.length; j++) {
        int ordinal = schema.fieldIndex(names[j]);
        DataType type = schema.fields()[ordinal].dataType();
        matches = isEqual((String) texts.get(ordinal), values.isNullAt(j) ? null : values.get(j, type), type);
      }
      if (matches) {
        result.add(row(texts));
      }
    }
    return (InternalRow[]) result.toArray(new InternalRow[0]);
  }

  /** Returns whether a text of Python is a value, or both are null. Floats are compared as SQL compares them. */
  private static boolean isEqual(String text, Object value, DataType type) {
    if (text == null || value == null) {
      return text == null && value == null;
    }
    if (type instanceof DoubleType || type instanceof FloatType) {
      return Double.compare(Double.parseDouble(text) + 0.0, ((Number) value).doubleValue() + 0.0) == 0;
    }
    return text.equals(text(value, type));
  }

  /** Returns the partition values from an answer of Python as a row of {@link #schema}. */
  public InternalRow row(List<Object> texts) {
    Object[] values = new Object[schema.length()];
    for (int i = 0; i < values.length; i++) {
      values[i] = texts.get(i) == null ? null : value((String) texts.get(i), schema.fields()[i].dataType());
    }
    return new GenericInternalRow(values);
  }

  private static String text(Object value, DataType type) {
    if (type instanceof BinaryType) {
      return Base64.getEncoder().encodeToString((byte[]) value);
    }
    if (type instanceof DecimalType) {
      return ((Decimal) value).toJavaBigDecimal().setScale(((DecimalType) type).scale()).toPlainString();
    }
    if (type instanceof FloatType) {
      return Double.toString(((Float) value).floatValue());
    }
    return value.toString();
  }

  private static Object value(String text, DataType type) {
    if (type instanceof StringType) {
      return UTF8String.fromString(text);
    }
    if (type instanceof BinaryType) {
      return Base64.getDecoder().decode(text);
    }
    if (type instanceof DecimalType) {
      DecimalType decimal = (DecimalType) type;
      return Decimal.apply(new BigDecimal(text), decimal.precision(), decimal.scale());
    }
    if (type instanceof BooleanType) {
      return Boolean.valueOf(text);
    }
    if (type instanceof DoubleType) {
      return Double.valueOf(text);
    }
    if (type instanceof FloatType) {
      return Float.valueOf(text);
    }
    if (type instanceof ByteType) {
      return Byte.valueOf(text);
    }
    if (type instanceof ShortType) {
      return Short.valueOf(text);
    }
    boolean isInteger = type instanceof IntegerType || type instanceof DateType;
    return isInteger ? (Object) Integer.valueOf(text) : (Object) Long.valueOf(text);
  }
}
