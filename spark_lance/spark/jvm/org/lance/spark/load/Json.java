package org.lance.spark.load;

import java.util.List;
import java.util.Map;

/** Casts for the parts of requests and answers (spark/sql/protocol.py), which Jackson reads as Object. */
@SuppressWarnings("unchecked") // Types of members exist for the compiler only; Protocol has them.
public final class Json {
  private Json() {}

  /** Returns a JSON object. */
  public static Map<String, Object> object(Object value) {
    return (Map<String, Object>) value;
  }

  /** Returns an object whose values are strings, such as options and properties. */
  public static Map<String, String> texts(Object value) {
    return (Map<String, String>) value;
  }

  /** Returns a JSON array. */
  public static List<Object> list(Object value) {
    return (List<Object>) value;
  }

  /** Returns an array of objects. */
  public static List<Map<String, Object>> objects(Object value) {
    return (List<Map<String, Object>>) value;
  }

  /** Returns an array of arrays, such as rows. */
  public static List<List<Object>> lists(Object value) {
    return (List<List<Object>>) value;
  }

  /** Returns an array of strings. */
  public static List<String> names(Object value) {
    return (List<String>) value;
  }
}
