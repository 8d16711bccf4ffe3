// What to write in place of statements of other table formats that are not in Spark's grammar, such as OPTIMIZE and VACUUM.
//
// The parser of a session stays what it is; only where it refuses such a statement, the error says what does the same
// for a Lance table. A format that brings a grammar of its own is asked before. And the empty name is the current
// namespace for spark.catalog, whose listTables() fails otherwise at the root of a catalog.
//
// Compiled in the driver by Janino; hence no generics, no lambdas.

package spark_lance;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

public final class LanceParser extends scala.runtime.AbstractFunction2 implements InvocationHandler {
  private static final String TABLE = "\\s+(?:TABLE\\s+)?(`[^`]+`(?:\\.(?:`[^`]+`|\\w+))*|[\\w.]+)";
  // How a statement begins, with its table, and what does the same.
  private static final String[][] KNOWN = {
    {"OPTIMIZE" + TABLE + "\\s+(?:.*\\s)?ZORDER\\b", "CALL %1$s.system.zorder('%2$s', 'column, ...')"},
    {"OPTIMIZE" + TABLE, "CALL %1$s.system.compact('%2$s')"},
    {"VACUUM" + TABLE, "CALL %1$s.system.vacuum('%2$s')"},
    {"RESTORE" + TABLE, "CALL %1$s.system.restore('%2$s', version)"},
    {"ALTER\\s+TABLE" + TABLE + "\\s+CREATE\\s+(?:OR\\s+REPLACE\\s+)?BRANCH\\b",
      "CALL %1$s.system.create_branch('%2$s', 'branch')"},
    {"ALTER\\s+TABLE" + TABLE + "\\s+CREATE\\s+(?:OR\\s+REPLACE\\s+)?TAG\\b",
      "CALL %1$s.system.create_tag('%2$s', 'tag', 'version')"},
  };
  private static final String CATALOG = "spark_lance.sql.LanceCatalog";
  // The catalog of sessions that are made from now on.
  private static String later = null;
  // Extensions that give it to them.
  private static final Map INJECTED = new WeakHashMap();

  private final Object parser;
  private final String catalog;

  public LanceParser(Object parser, String catalog) {
    this.parser = parser;
    this.catalog = catalog;
  }

  // Lets a session that is there say it, and those that are made from now on.
  public static final class Start implements BiConsumer {
    public void accept(Object session, Object asked) {
      String catalog = (String) ((Map) asked).get("catalog");
      Object state = ((SparkSession) session).sessionState();
      Field[] fields = state.getClass().getDeclaredFields();
      try {
        for (int i = 0; i < fields.length; i++) {
          if (fields[i].getType() == ParserInterface.class) {
            fields[i].setAccessible(true);
            fields[i].set(state, around(fields[i].get(state), catalog));
          }
        }
      } catch (IllegalAccessException problem) {
        throw new IllegalStateException(problem);
      }
      if (((Boolean) ((Map) asked).get("newSessions")).booleanValue()) {
        inject(((SparkSession) session).extensions(), catalog);
      }
    }
  }

  private static void inject(SparkSessionExtensions extensions, String catalog) {
    synchronized (LanceParser.class) {
      if (INJECTED.put(extensions, Boolean.TRUE) == null) {
        extensions.injectParser(new LanceParser(null, catalog));
      }
      later = catalog;
    }
  }

  public Object apply(Object session, Object parser) {
    synchronized (LanceParser.class) {
      return around(parser, later);
    }
  }

  private static Object around(Object parser, String catalog) {
    if (Proxy.isProxyClass(parser.getClass()) && Proxy.getInvocationHandler(parser) instanceof LanceParser) {
      parser = ((LanceParser) Proxy.getInvocationHandler(parser)).parser;
    }
    Class[] kinds = {ParserInterface.class};
    return Proxy.newProxyInstance(ParserInterface.class.getClassLoader(), kinds, new LanceParser(parser, catalog));
  }

  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    if (method.getName().equals("parseMultipartIdentifier") && "".equals(arguments[0]) && isForCatalog()) {
      return scala.collection.immutable.Nil$.MODULE$;
    }
    try {
      return method.invoke(parser, arguments);
    } catch (InvocationTargetException problem) {
      Throwable cause = problem.getCause();
      if (cause instanceof ParseException && arguments[0] instanceof String) {
        String help = help((String) arguments[0]);
        if (help != null) {
          throw new IllegalArgumentException(help, cause);
        }
      }
      throw cause;
    }
  }

  // Whether spark.catalog asks: it has the text of a namespace parsed, which is empty for the root of a catalog.
  private static boolean isForCatalog() {
    StackTraceElement[] callers = Thread.currentThread().getStackTrace();
    for (int i = 0; i < callers.length; i++) {
      if (callers[i].getClassName().equals("org.apache.spark.sql.classic.Catalog")) {
        return true;
      }
    }
    return false;
  }

  private String help(String text) {
    for (int i = 0; i < KNOWN.length; i++) {
      Matcher found = Pattern.compile("\\s*(" + KNOWN[i][0] + ").*", Pattern.CASE_INSENSITIVE | Pattern.DOTALL).matcher(text);
      if (found.matches()) {
        String table = found.group(2);
        String said = text.trim().split("\\s+")[0].toUpperCase();
        Object[] parts = {catalogOf(table), table};
        return said + " of " + table + " is not in Spark's grammar: for a Lance table write "
            + String.format(KNOWN[i][1], parts);
      }
    }
    return null;
  }

  // The catalog whose procedures change a table: its own if that is one of ours, and otherwise that of the session.
  private String catalogOf(String table) {
    String first = table.startsWith("`") ? table.substring(1, table.indexOf('`', 1)) : table.split("\\.")[0];
    String kind = ((SQLConf) SQLConf$.MODULE$.get()).getConfString("spark.sql.catalog." + first, "");
    return kind.equals(CATALOG) ? first : catalog;
  }
}
