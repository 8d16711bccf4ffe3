// What enable does to a session and its driver, in one call: one for each thing would be hundreds, which take most of a
// second in a JVM that has just started.
//
// Each part is in the class that it is about, as a nested class Start. A part that this release refuses is missing; the
// answer says why.
//
// Compiled in the driver by Janino, which comes with Spark.

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

public final class LanceStart {
  public LanceStart() {}

  // Starts `parts`, classes in this order, none after one of `vital` that is missing. The answer has for each that is
  // `missing` why, and the values of the `contextSettings`, as `settings`. `answers`: the driver's Python, see LanceUnits.
  public String start(SparkSession session, BiFunction<?, ?, ?> answers, String wishes) throws IOException {
    ObjectMapper mapper = new ObjectMapper();
    Map<String, Object> wish = (Map<String, Object>) mapper.readValue(wishes, Map.class);
    wish.put("answers", answers);
    SparkSession$.MODULE$.setActiveSession(session);
    Map<Object, String> missing = new LinkedHashMap<>();
    List<Object> parts = (List<Object>) wish.get("parts");
    for (Object part : parts) {
      String reason = started((String) part, session, wish);
      if (reason != null) {
        missing.put(part, reason);
        if (((List<Object>) wish.get("vital")).contains(part)) {
          break;
        }
      }
    }
    Map<Object, String> settings = new HashMap<>();
    List<Object> names = (List<Object>) wish.get("contextSettings");
    for (Object name : names) {
      settings.put(name, session.sparkContext().getConf().get((String) name, null));
    }
    Map<String, Map<Object, String>> answer = new HashMap<>();
    answer.put("missing", missing);
    answer.put("settings", settings);
    return mapper.writeValueAsString(answer);
  }

  // Why a part is missing; null if it is not.
  private String started(String part, SparkSession session, Map<String, Object> wish) {
    try {
      Class<?> found = Class.forName(part + "$Start", true, getClass().getClassLoader());
      ((BiConsumer<SparkSession, Map<String, Object>>) found.getConstructor().newInstance()).accept(session, wish);
      return null;
    } catch (Exception problem) {
      return problem.toString().split("\n")[0];
    } catch (LinkageError problem) {
      return problem.toString().split("\n")[0];
    }
  }
}
