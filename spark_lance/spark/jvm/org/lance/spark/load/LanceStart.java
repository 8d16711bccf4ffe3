package org.lance.spark.load;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.classic.SparkSession;

/**
 * Starts all parts in one call from {@code enable}. Hundreds of calls from Python would take most of a second in a new
 * JVM.
 *
 * <p>A part is a class with a nested class Start. If this release refuses a part, the answer names the part and the
 * reason.
 */
public final class LanceStart {
  public LanceStart() {}

  /**
   * Starts the parts of a request in their order, and stops at a missing part that is vital.
   *
   * @param answers the driver's Python, see {@link LanceUnits}
   * @param json the request: names of classes in {@code parts} and {@code vital}, names of settings in {@code
   *     contextSettings}, and what the parts need
   * @return as JSON: the reason of each {@code missing} part, and the values of the {@code settings}
   */
  public String start(SparkSession session, BiFunction<?, ?, ?> answers, String json) throws IOException {
    ObjectMapper mapper = new ObjectMapper();
    Map<String, Object> request = Json.object(mapper.readValue(json, Map.class));
    request.put("answers", answers);
    SparkSession$.MODULE$.setActiveSession(session);
    Map<String, String> missing = new LinkedHashMap<>();
    List<String> parts = Json.names(request.get("parts"));
    for (String part : parts) {
      String reason = start(part, session, request);
      if (reason != null) {
        missing.put(part, reason);
        if (Json.list(request.get("vital")).contains(part)) {
          break;
        }
      }
    }
    Map<String, String> settings = new HashMap<>();
    List<String> names = Json.names(request.get("contextSettings"));
    for (String name : names) {
      settings.put(name, session.sparkContext().getConf().get(name, null));
    }
    Map<String, Map<String, String>> answer = new HashMap<>();
    answer.put("missing", missing);
    answer.put("settings", settings);
    return mapper.writeValueAsString(answer);
  }

  /**
   * Starts a part.
   *
   * @return why it is missing; null if it started
   */
  @SuppressWarnings("unchecked") // Each class Start takes a session and a request.
  private String start(String part, SparkSession session, Map<String, Object> request) {
    try {
      Class<?> type = Class.forName(part + "$Start", true, getClass().getClassLoader());
      ((BiConsumer<SparkSession, Map<String, Object>>) type.getConstructor().newInstance()).accept(session, request);
      return null;
    } catch (Exception problem) {
      return problem.toString().split("\n")[0];
    } catch (LinkageError problem) {
      return problem.toString().split("\n")[0];
    }
  }
}
