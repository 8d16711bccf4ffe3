// Procedures of the catalog: CALL lance.system.<name>(...). The driver's Python runs them.
//
// Compiled in the driver by Janino.

package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;

public final class LanceProcedures implements UnboundProcedure, BoundProcedure {
  private final Map question;
  private final Map about;

  private LanceProcedures(Map question, Map about) {
    this.question = question;
    this.about = about;
  }

  static LanceProcedures load(Map question) {
    return new LanceProcedures(question, (Map) Bridge.ask(question, null));
  }

  public String name() {
    return (String) about.get(Protocol.NAME);
  }

  public String description() {
    return (String) about.get(Protocol.DESCRIPTION);
  }

  // Spark hides the reason where a procedure cannot be loaded, so an unknown one is refused here.
  public BoundProcedure bind(StructType input) {
    if (about.get(Protocol.PROBLEM) != null) {
      throw new IllegalArgumentException((String) about.get(Protocol.PROBLEM));
    }
    return this;
  }

  public boolean isDeterministic() {
    return false;
  }

  public ProcedureParameter[] parameters() {
    List told = (List) about.get(Protocol.PARAMETERS);
    ProcedureParameter[] found = new ProcedureParameter[told.size()];
    for (int i = 0; i < found.length; i++) {
      Map one = (Map) told.get(i);
      ProcedureParameter.Builder builder = ProcedureParameter.in((String) one.get(Protocol.NAME), type(one));
      if (one.get(Protocol.DEFAULT) != null) {
        builder = builder.defaultValue((String) one.get(Protocol.DEFAULT));
      }
      found[i] = builder.comment((String) one.get(Protocol.COMMENT)).build();
    }
    return found;
  }

  private static DataType type(Map parameter) {
    return DataType.fromJson((String) parameter.get(Protocol.TYPE));
  }

  // Arguments travel in the order of the parameters; rows come back as lists of texts, numbers and truth values.
  public Iterator call(InternalRow arguments) {
    List parameters = (List) about.get(Protocol.PARAMETERS);
    List values = new ArrayList();
    for (int i = 0; i < parameters.size(); i++) {
      DataType type = type((Map) parameters.get(i));
      values.add(arguments.isNullAt(i) ? null : told(arguments.get(i, type), type));
    }
    Map asked = new HashMap(question);
    asked.put(Protocol.VERB, Protocol.CALL_PROCEDURE);
    asked.put(Protocol.ARGUMENTS, values);
    // Spark binds procedures while it analyses, and then the session that called is the active one.
    SparkSession session = SparkSession.active();
    asked.put(Protocol.SESSION, session.sessionUUID());
    Map answer = (Map) Bridge.ask(asked, session);
    if (answer.get(Protocol.CHANGED) != null) {
      Shim.recacheTable(session, (List) answer.get(Protocol.CHANGED));
    }
    return Collections.singletonList(new Result(answer)).iterator();
  }

  // Spark's value of an argument as a text, number, truth value, list or map of texts.
  private static Object told(Object value, DataType type) {
    if (value instanceof ArrayData) {
      DataType element = ((ArrayType) type).elementType();
      ArrayData list = (ArrayData) value;
      List found = new ArrayList();
      for (int i = 0; i < list.numElements(); i++) {
        found.add(list.isNullAt(i) ? null : told(list.get(i, element), element));
      }
      return found;
    }
    if (value instanceof MapData) {
      MapData map = (MapData) value;
      Map found = new HashMap();
      for (int i = 0; i < map.numElements(); i++) {
        found.put(map.keyArray().getUTF8String(i).toString(), map.valueArray().getUTF8String(i).toString());
      }
      return found;
    }
    return value instanceof Number || value instanceof Boolean ? value : value.toString();
  }

  private static Object internal(Object value, DataType type) {
    String name = type.typeName();
    if (value == null || value instanceof Boolean) {
      return value;
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

  public static final class Result implements LocalScan {
    private final StructType schema;
    private final InternalRow[] rows;

    Result(Map answer) {
      schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
      List told = (List) answer.get(Protocol.ROWS);
      rows = new InternalRow[told.size()];
      for (int i = 0; i < rows.length; i++) {
        List row = (List) told.get(i);
        Object[] values = new Object[schema.length()];
        for (int j = 0; j < values.length; j++) {
          values[j] = internal(row.get(j), schema.fields()[j].dataType());
        }
        rows[i] = new GenericInternalRow(values);
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
