// Statements of other table formats that are not in Spark's grammar, such as OPTIMIZE and VACUUM: each is the CALL of a
// procedure of the table's catalog.
//
// The parser of a session stays what it is, and a format that brings a grammar of its own is asked before. Only where it
// refuses such a statement, the CALL is parsed in its place; where the table is of no catalog of ours, the error says the
// CALL. DESCRIBE HISTORY t is in Spark's grammar, as column t of a table HISTORY: it is taken if t is in a catalog of ours.
// And the empty name is the current namespace for spark.catalog, whose listTables() fails otherwise at the root of a catalog.
//
// Compiled in the driver by Janino.

package org.lance.spark.load;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiConsumer;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

public final class LanceParser extends scala.runtime.AbstractFunction2 implements InvocationHandler {
  private static final String NAME = "(?:`(?:[^`]|``)+`|\\w+)";
  private static final String TABLE = "\\s+(?:TABLE\\s+)?(" + NAME + "(?:\\." + NAME + ")*)";
  private static final String ALTER = "ALTER\\s+TABLE\\s+(" + NAME + "(?:\\." + NAME + ")*)\\s+";
  private static final String AT = "(?:\\s+AS\\s+OF\\s+VERSION\\s+(\\d+))?";
  private static final String TEXT = "('(?:[^'\\\\]|\\\\.)*'|\"(?:[^\"\\\\]|\\\\.)*\")";
  // A statement, whose first group is the table; its procedure; and the arguments behind the table: the name, what the
  // group is (a text, SQL as it stands, or a flag), by the number of the group.
  private static final String[][] STATEMENTS = {
    {"OPTIMIZE" + TABLE + "(?:\\s+FULL)?(?:\\s+WHERE\\s+(.+?))?\\s+ZORDER\\s+BY\\s*(?:\\(([^()]+)\\)|([^()]+))", "zorder",
      "where text", "columns text", "columns text"},
    {"OPTIMIZE" + TABLE + "(?:\\s+FULL)?(?:\\s+WHERE\\s+(.+))?", "compact", "where text"},
    {"VACUUM" + TABLE + "(?:\\s+FULL)?(?:\\s+RETAIN\\s+(\\d+(?:\\.\\d+)?)\\s+HOURS?)?(?:\\s+(DRY\\s+RUN))?", "vacuum",
      "retention_hours sql", "dry_run flag"},
    {"RESTORE" + TABLE + "\\s+(?:TO\\s+)?VERSION\\s+AS\\s+OF\\s+(?:(\\d+)|" + TEXT + ")", "restore",
      "version text", "version sql"},
    {"RESTORE" + TABLE + "\\s+(?:TO\\s+)?TIMESTAMP\\s+AS\\s+OF\\s+" + TEXT, "restore", "timestamp sql"},
    {"DESC(?:RIBE)?\\s+HISTORY" + TABLE + "(?:\\s+LIMIT\\s+(\\d+))?", "history", "limit sql"},
    {"DESC(?:RIBE)?\\s+DETAIL" + TABLE, "detail"},
    {ALTER + "CREATE\\s+(OR\\s+REPLACE\\s+)?TAG\\s+(" + NAME + ")" + AT, "create_tag",
      "replace flag", "tag name", "version text"},
    {ALTER + "CREATE\\s+BRANCH\\s+(" + NAME + ")" + AT, "create_branch", "branch name", "version text"},
    {ALTER + "DROP\\s+TAG\\s+(" + NAME + ")", "drop_tag", "tag name"},
    {ALTER + "DROP\\s+BRANCH\\s+(" + NAME + ")", "drop_branch", "branch name"},
  };
  // How a statement begins that was not understood as a whole, and its form.
  private static final String[][] FORMS = {
    {"OPTIMIZE" + TABLE, "OPTIMIZE %s [WHERE condition] [ZORDER BY (columns)]"},
    {"VACUUM" + TABLE, "VACUUM %s [RETAIN number HOURS] [DRY RUN]"},
    {"RESTORE" + TABLE, "RESTORE TABLE %s TO VERSION AS OF number, or TIMESTAMP AS OF 'time'"},
    {ALTER + "CREATE\\s+OR\\s+REPLACE\\s+BRANCH\\b", "ALTER TABLE %s DROP BRANCH name, and then CREATE BRANCH name"},
    {ALTER + "(?:CREATE|DROP|REPLACE)\\s+(?:OR\\s+REPLACE\\s+)?(?:TAG|BRANCH)\\b",
      "ALTER TABLE %s CREATE [OR REPLACE] TAG | CREATE BRANCH name [AS OF VERSION number], or DROP TAG | BRANCH name"},
  };
  private static final String CATALOG = "org.lance.spark.catalog.LanceCatalog";
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
      Shim.replaceParser((SparkSession) session, new Around(catalog));
      if (((Boolean) ((Map) asked).get("newSessions")).booleanValue()) {
        inject(((SparkSession) session).extensions(), catalog);
      }
    }
  }

  private static final class Around implements UnaryOperator {
    private final String catalog;

    Around(String catalog) {
      this.catalog = catalog;
    }

    public Object apply(Object parser) {
      return around(parser, catalog);
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
    if (method.getName().equals("parseMultipartIdentifier") && "".equals(arguments[0]) && Callers.isCatalogApi()) {
      return scala.collection.immutable.Nil$.MODULE$;
    }
    boolean isStatement = method.getName().startsWith("parsePlan") && arguments[0] instanceof String;
    if (isStatement && ((String) arguments[0]).trim().toUpperCase().startsWith("DESC")) {
      String call = call((String) arguments[0]);
      if (call != null) {
        return parsed(method, arguments, call);
      }
    }
    try {
      return method.invoke(parser, arguments);
    } catch (InvocationTargetException problem) {
      Throwable cause = problem.getCause();
      if (cause instanceof ParseException && isStatement) {
        String call = call((String) arguments[0]);
        if (call != null) {
          return parsed(method, arguments, call);
        }
        String help = help((String) arguments[0]);
        if (help != null) {
          throw new IllegalArgumentException(help, cause);
        }
      }
      throw cause;
    }
  }

  private Object parsed(Method method, Object[] arguments, String call) throws Throwable {
    Object[] changed = (Object[]) arguments.clone();
    changed[0] = call;
    try {
      return method.invoke(parser, changed);
    } catch (InvocationTargetException problem) {
      throw problem.getCause();
    }
  }

  private static Matcher matcher(String pattern, String text, String rest) {
    return Pattern.compile("\\s*" + pattern + rest, Pattern.CASE_INSENSITIVE | Pattern.DOTALL).matcher(text);
  }

  // The CALL that does what a statement says, if its table is in a catalog of ours; null if not.
  private static String call(String text) {
    for (int i = 0; i < STATEMENTS.length; i++) {
      Matcher found = matcher(STATEMENTS[i][0], text, "\\s*;?\\s*");
      if (found.matches()) {
        String owner = catalogOf(found.group(1));
        return owner == null ? null : call(owner, STATEMENTS[i], found);
      }
    }
    return null;
  }

  private static String call(String owner, String[] statement, Matcher found) {
    StringBuilder call = new StringBuilder("CALL `" + owner.replace("`", "``") + "`.system." + statement[1] + "(");
    call.append("table => " + literal(found.group(1)));
    for (int i = 2; i < statement.length; i++) {
      String value = found.group(i);
      String[] parameter = statement[i].split(" ");
      if (value == null) {
        continue;
      }
      if (parameter[1].equals("flag")) {
        value = "true";
      } else if (parameter[1].equals("text")) {
        value = literal(value);
      } else if (parameter[1].equals("name")) {
        value = literal(value.startsWith("`") ? value.substring(1, value.length() - 1).replace("``", "`") : value);
      }
      call.append(", " + parameter[0] + " => " + value);
    }
    return call.append(")").toString();
  }

  private static String literal(String text) {
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'";
  }

  private String help(String text) {
    for (int i = 0; i < STATEMENTS.length; i++) {
      Matcher found = matcher(STATEMENTS[i][0], text, "\\s*;?\\s*");
      if (found.matches() && catalogOf(found.group(1)) == null) {
        return text.trim().split("\\s+")[0].toUpperCase() + " of " + found.group(1) + " is not in Spark's grammar: for a "
            + "Lance table write " + call(catalog, STATEMENTS[i], found);
      }
    }
    for (int i = 0; i < FORMS.length; i++) {
      Matcher found = matcher(FORMS[i][0], text, ".*");
      if (found.matches()) {
        Object[] parts = {found.group(1)};
        return "this statement is not understood: for a Lance table write " + String.format(FORMS[i][1], parts);
      }
    }
    return null;
  }

  // The catalog of ours that a table is in: the one that its name begins with, or the current one; null if there is none.
  private static String catalogOf(String table) {
    String first = table.startsWith("`") ? table.substring(1, table.indexOf('`', 1)) : table.split("\\.")[0];
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    String kind = settings.getConfString("spark.sql.catalog." + first, "");
    if (kind.length() > 0 || first.equalsIgnoreCase("spark_catalog")) {
      return kind.equals(CATALOG) ? first : null;
    }
    scala.Option active = SparkSession.getActiveSession();
    if (active.isEmpty()) {
      return null;
    }
    SparkSession session = (SparkSession) active.get();
    String current = session.sessionState().catalogManager().currentCatalog().name();
    return settings.getConfString("spark.sql.catalog." + current, "").equals(CATALOG) ? current : null;
  }
}
