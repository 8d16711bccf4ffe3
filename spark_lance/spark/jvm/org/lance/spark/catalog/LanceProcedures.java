package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;

/**
 * A procedure of the catalog: {@code CALL lance.system.name(...)}. The driver's Python runs it when Spark plans the
 * call.
 */
public final class LanceProcedures implements UnboundProcedure, BoundProcedure {
  private final Map<String, Object> question;
  private final Map<String, Object> description;

  private LanceProcedures(Map<String, Object> question, Map<String, Object> description) {
    this.question = question;
    this.description = description;
  }

  /** Loads a procedure by a question of the catalog. An unknown name is refused by {@link #bind}. */
  static LanceProcedures load(Map<String, Object> question) {
    return new LanceProcedures(question, Json.object(Bridge.ask(question, null)));
  }

  public String name() {
    return (String) description.get(Protocol.NAME);
  }

  public String description() {
    return (String) description.get(Protocol.DESCRIPTION);
  }

  // Spark hides the reason if a procedure cannot be loaded, so an unknown one is refused here.
  public BoundProcedure bind(StructType input) {
    if (description.get(Protocol.PROBLEM) != null) {
      throw new IllegalArgumentException((String) description.get(Protocol.PROBLEM));
    }
    return this;
  }

  public boolean isDeterministic() {
    return false;
  }

  public ProcedureParameter[] parameters() {
    List<Map<String, Object>> parameters = Json.objects(description.get(Protocol.PARAMETERS));
    ProcedureParameter[] result = new ProcedureParameter[parameters.size()];
    for (int i = 0; i < result.length; i++) {
      Map<String, Object> parameter = Json.object(parameters.get(i));
      ProcedureParameter.Builder builder = ProcedureParameter.in((String) parameter.get(Protocol.NAME), type(parameter));
      if (parameter.get(Protocol.DEFAULT) != null) {
        builder = builder.defaultValue((String) parameter.get(Protocol.DEFAULT));
      }
      result[i] = builder.comment((String) parameter.get(Protocol.COMMENT)).build();
    }
    return result;
  }

  private static DataType type(Map<String, Object> parameter) {
    return DataType.fromJson((String) parameter.get(Protocol.TYPE));
  }

  // Arguments go to Python in the order of the parameters. Rows are returned as lists of strings, numbers, booleans,
  // lists (also for structs) and maps.
  public Iterator<Scan> call(InternalRow arguments) {
    List<Map<String, Object>> parameters = Json.objects(description.get(Protocol.PARAMETERS));
    List<Object> values = new ArrayList<>();
    for (int i = 0; i < parameters.size(); i++) {
      DataType type = type(Json.object(parameters.get(i)));
      values.add(arguments.isNullAt(i) ? null : toJson(arguments.get(i, type), type));
    }
    Map<String, Object> request = new HashMap<>(question);
    request.put(Protocol.VERB, Protocol.CALL_PROCEDURE);
    request.put(Protocol.ARGUMENTS, values);
    // Spark runs the call during analysis, so the active session is the caller's.
    SparkSession session = SparkSession.active();
    request.put(Protocol.SESSION, session.sessionUUID());
    Map<String, Object> answer = Json.object(Bridge.ask(request, session));
    if (answer.get(Protocol.CHANGED) != null) {
      Shim.recacheTable(session, Json.names(answer.get(Protocol.CHANGED)));
    }
    return Collections.<Scan>singletonList(new Result(answer)).iterator();
  }

  /** Returns an argument as a string, number or boolean, or as a list or map of these. */
  private static Object toJson(Object value, DataType type) {
    if (value instanceof ArrayData) {
      DataType element = ((ArrayType) type).elementType();
      ArrayData list = (ArrayData) value;
      List<Object> items = new ArrayList<>();
      for (int i = 0; i < list.numElements(); i++) {
        items.add(list.isNullAt(i) ? null : toJson(list.get(i, element), element));
      }
      return items;
    }
    if (value instanceof MapData) {
      MapData map = (MapData) value;
      Map<String, Object> entries = new HashMap<>();
      for (int i = 0; i < map.numElements(); i++) {
        entries.put(map.keyArray().getUTF8String(i).toString(), map.valueArray().getUTF8String(i).toString());
      }
      return entries;
    }
    return value instanceof Number || value instanceof Boolean ? value : value.toString();
  }

  private static Object internal(Object value, DataType type) {
    String name = type.typeName();
    if (value == null || value instanceof Boolean) {
      return value;
    }
    if (type instanceof ArrayType) {
      return items(Json.list(value), ((ArrayType) type).elementType());
    }
    if (type instanceof MapType) {
      Map<String, Object> entries = Json.object(value);
      DataType valueType = ((MapType) type).valueType();
      List<Object> keys = new ArrayList<Object>(entries.keySet());
      List<Object> values = new ArrayList<Object>(entries.values());
      return new ArrayBasedMapData(items(keys, ((MapType) type).keyType()), items(values, valueType));
    }
    if (type instanceof StructType) {
      return row(Json.list(value), (StructType) type);
    }
    if (!(value instanceof Number)) {
      return UTF8String.fromString(value.toString());
    }
    Number number = (Number) value;
    if (name.equals("integer")) {
      return Integer.valueOf(number.intValue());
    }
    if (name.equals("double")) {
      return Double.valueOf(number.doubleValue());
    }
    return Long.valueOf(number.longValue());
  }

  private static ArrayData items(List<Object> values, DataType type) {
    Object[] items = new Object[values.size()];
    for (int i = 0; i < items.length; i++) {
      items[i] = internal(values.get(i), type);
    }
    return new GenericArrayData(items);
  }

  private static InternalRow row(List<Object> values, StructType schema) {
    Object[] fields = new Object[schema.length()];
    for (int i = 0; i < fields.length; i++) {
      fields[i] = internal(values.get(i), schema.fields()[i].dataType());
    }
    return new GenericInternalRow(fields);
  }

  /** The result of a procedure: rows that the driver already has. */
  public static final class Result implements LocalScan {
    private final StructType schema;
    private final InternalRow[] rows;

    Result(Map<String, Object> answer) {
      schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
      List<List<Object>> values = Json.lists(answer.get(Protocol.ROWS));
      rows = new InternalRow[values.size()];
      for (int i = 0; i < rows.length; i++) {
        rows[i] = row(Json.list(values.get(i)), schema);
      }
    }

    public StructType readSchema() {
      return schema;
    }

    public InternalRow[] rows() {
      return rows;
    }
  }
}
