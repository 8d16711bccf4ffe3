package org.lance.spark.load;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
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
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SessionState;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/**
 * Statements of other table formats that Spark's grammar lacks, such as OPTIMIZE and VACUUM: each becomes a CALL of a
 * procedure.
 *
 * <p>The session's parser stays, and this class wraps it. The wrapper parses the CALL only after the session's parser
 * has refused the statement. If no catalog of this package has the table, the error names the CALL. DESCRIBE HISTORY t
 * is valid in Spark's grammar, as column t of a table HISTORY. It is replaced if t is in a catalog of this package. So
 * is ANALYZE TABLE, which Spark refuses for tables of catalogs, and CREATE and DROP INDEX, which Spark has for JDBC.
 * The empty name becomes the current namespace, because listTables() of spark.catalog fails otherwise at the root of a
 * catalog.
 */
@SuppressWarnings("rawtypes") // Janino makes no bridge methods.
public final class LanceParser extends scala.runtime.AbstractFunction2 implements InvocationHandler {
  private static final String NAME = LanceForms.NAME;
  private static final String NAMES = LanceForms.NAMES;
  private static final String TEXT = "('(?:[^'\\\\]|\\\\.)*'|\"(?:[^\"\\\\]|\\\\.)*\")";
  private static final String TABLE = LanceForms.TABLE;
  private static final String ALTER = LanceForms.ALTER;
  private static final String AT = "(?:\\s+AS\\s+OF\\s+VERSION\\s+(\\d+))?";
  private static final String RETAIN = "(?:\\s+RETAIN\\s+(\\d+\\s+(?:DAYS?|HOURS?|MINUTES?)))?";
  private static final String SNAPSHOT_RETENTION = "(?:\\s+WITH\\s+SNAPSHOT\\s+RETENTION\\s+(\\d+\\s+\\w+(?:\\s+\\d+\\s+\\w+)?))?";
  private static final String INDEX = "(?:\\s+USING\\s+(" + NAME + "))?\\s*\\(([^()]+)\\)(?:\\s+(?:OPTIONS|WITH)\\s*(\\(.*\\)))?";
  private static final String REF = "(IF\\s+NOT\\s+EXISTS\\s+)?(" + NAME + ")" + AT + RETAIN;
  private static final String TIME = "(?:TIMESTAMP\\s*|DATE\\s*)?(?:'[^']*'|\"[^\"]*\")|\\w+\\s*\\(.*\\)";
  private static final String CLONE = "\\s+(SHALLOW\\s+|DEEP\\s+)?CLONE\\s+"
      + NAMES + ")(?:\\s+VERSION\\s+AS\\s+OF\\s+(?:(\\d+)|" + TEXT + "))?(?:\\s+TIMESTAMP\\s+AS\\s+OF\\s+(.+?))?"
      + "(?:\\s+TBLPROPERTIES\\s*(\\(.+?\\)))?(?:\\s+LOCATION\\s+" + TEXT + ")?";
  // Each row has the pattern of a statement and its procedure. The first group is the table.
  // "procedure:parameter:number" names another parameter or group for the table. Then follow the other arguments in
  // the order of their groups: a name and a kind. The kinds are text (becomes a literal), sql (stays as it is), name
  // (an identifier), flag (true if present) and skip.
  private static final String[][] STATEMENTS = {
    {"OPTIMIZE" + TABLE + "(?:\\s+(FULL))?(?:\\s+WHERE\\s+(.+?))?\\s+ZORDER\\s+BY\\s*(?:\\(([^()]+)\\)|([^()]+))",
      "zorder", "full flag", "where text", "columns text", "columns text"},
    {"OPTIMIZE" + TABLE + "(?:\\s+(FULL))?(?:\\s+WHERE\\s+(.+))?", "compact", "full flag", "where text"},
    {"VACUUM" + TABLE + "(?:\\s+(?:FULL|LITE))?(?:\\s+RETAIN\\s+(\\d+(?:\\.\\d+)?)\\s+HOURS?)?(?:\\s+(DRY\\s+RUN))?",
      "vacuum", "retention_hours sql", "dry_run flag"},
    {"VACUUM" + TABLE + "(?:\\s+(?:FULL|LITE))?\\s+(DRY\\s+RUN)\\s+RETAIN\\s+(\\d+(?:\\.\\d+)?)\\s+HOURS?",
      "vacuum", "dry_run flag", "retention_hours sql"},
    {"RESTORE" + TABLE + "\\s+(?:TO\\s+)?VERSION\\s+AS\\s+OF\\s+(?:(\\d+)|" + TEXT + ")", "restore",
      "version text", "version sql"},
    {"RESTORE" + TABLE + "\\s+(?:TO\\s+)?TIMESTAMP\\s+AS\\s+OF\\s+(" + TIME + ")", "restore", "timestamp sql"},
    {"DESC(?:RIBE)?\\s+HISTORY" + TABLE + "(?:\\s+LIMIT\\s+(\\d+))?", "history", "limit sql"},
    {"DESC(?:RIBE)?\\s+DETAIL" + TABLE, "detail"},
    {"ANALYZE\\s+TABLE\\s+" + NAMES + ")(?:\\s+PARTITION\\s*\\((.+?)\\))?\\s+COMPUTE\\s+STATISTICS(?:\\s+NOSCAN)?"
      + "(?:\\s+FOR\\s+(?:ALL\\s+COLUMNS|COLUMNS\\s+(.+)))?", "analyze", "partition text", "columns text"},
    {"ANALYZE\\s+TABLES\\s+(?:FROM|IN)\\s+" + NAMES + ")\\s+COMPUTE\\s+STATISTICS(?:\\s+NOSCAN)?", "analyze_tables:namespace"},
    {"REORG" + TABLE + "(?:\\s+WHERE\\s+(.+?))?\\s+APPLY\\s*\\(\\s*PURGE\\s*\\)", "purge", "where text"},
    {"CREATE\\s+(OR\\s+REPLACE\\s+)?TABLE\\s+(IF\\s+NOT\\s+EXISTS\\s+)?" + NAMES + ")" + CLONE, "clone_table:target:3",
      "replace flag", "if_not_exists flag", "target skip", "kind text", "source text", "version text", "version sql",
      "timestamp sql", "properties text", "location sql"},
    {"(REPLACE)\\s+TABLE\\s+" + NAMES + ")" + CLONE, "clone_table:target:2", "must_exist flag", "target skip", "kind text",
      "source text", "version text", "version sql", "timestamp sql", "properties text", "location sql"},
    {"CONVERT\\s+TO\\s+LANCE\\s+" + NAMES + ")(?:\\s+NO\\s+STATISTICS)?(?:\\s+PARTITIONED\\s+BY\\s*\\((.+)\\))?",
      "convert:source", "partitions text"},
    {"CREATE\\s+(OR\\s+REPLACE\\s+)?INDEX\\s+(IF\\s+NOT\\s+EXISTS\\s+)?(" + NAME + ")\\s+ON\\s+(?:TABLE\\s+)?" + NAMES + ")" + INDEX,
      "add_index:table:4", "replace flag", "if_not_exists flag", "name name", "table skip", "type name", "column text",
      "options text"},
    {ALTER + "CREATE\\s+(OR\\s+REPLACE\\s+)?INDEX\\s+(IF\\s+NOT\\s+EXISTS\\s+)?(" + NAME + ")" + INDEX, "add_index",
      "replace flag", "if_not_exists flag", "name name", "type name", "column text", "options text"},
    {"DROP\\s+INDEX\\s+(IF\\s+EXISTS\\s+)?(" + NAME + ")\\s+ON\\s+(?:TABLE\\s+)?" + NAMES + ")", "drop_index:table:3",
      "if_exists flag", "name name"},
    {ALTER + "DROP\\s+INDEX\\s+(IF\\s+EXISTS\\s+)?(" + NAME + ")", "drop_index", "if_exists flag", "name name"},
    {"SHOW\\s+(?:INDEX|INDEXES|INDICES)\\s+(?:FROM|IN|ON)\\s+" + NAMES + ")", "show_indexes"},
    {ALTER + "CREATE\\s+(OR\\s+REPLACE\\s+)?TAG\\s+" + REF, "create_tag",
      "replace flag", "if_not_exists flag", "tag name", "version text", "retain text"},
    {ALTER + "REPLACE\\s+TAG\\s+(" + NAME + ")" + AT + RETAIN, "update_tag", "tag name", "version text", "retain text"},
    {ALTER + "CREATE\\s+(OR\\s+REPLACE\\s+)?BRANCH\\s+" + REF + SNAPSHOT_RETENTION, "create_branch",
      "replace flag", "if_not_exists flag", "branch name", "version text", "retain text", "retain_versions text"},
    {ALTER + "REPLACE\\s+BRANCH\\s+(" + NAME + ")" + AT + RETAIN + SNAPSHOT_RETENTION, "replace_branch", "branch name", "version text",
      "retain text", "retain_versions text"},
    {ALTER + "DROP\\s+TAG\\s+(IF\\s+EXISTS\\s+)?(" + NAME + ")", "drop_tag", "if_exists flag", "tag name"},
    {ALTER + "DROP\\s+BRANCH\\s+(IF\\s+EXISTS\\s+)?(" + NAME + ")", "drop_branch", "if_exists flag", "branch name"},
    {ALTER + "ADD\\s+CONSTRAINT\\s+(" + NAME + ")\\s+CHECK\\s*\\((.+)\\)(?:\\s+ENFORCED)?", "add_constraint", "name name",
      "expression text"},
    {ALTER + "DROP\\s+CONSTRAINT\\s+(IF\\s+EXISTS\\s+)?(" + NAME + ")", "drop_constraint", "if_exists flag", "name name"},
    {ALTER + "(?:ALTER|CHANGE)\\s+(?:COLUMN\\s+)?" + NAMES + ")\\s+TYPE\\s+(.+?)\\s+COMMENT\\s+" + TEXT, "alter_column",
      "column text", "type text", "comment sql"},
    {ALTER + "SET\\s+IDENTIFIER\\s+FIELDS\\s+(.+)", "set_identifier_fields", "columns text"},
    {ALTER + "DROP\\s+IDENTIFIER\\s+FIELDS\\s+(.+)", "drop_identifier_fields", "columns text"},
    {ALTER + "WRITE\\s+(?:LOCALLY\\s+)?ORDERED\\s+BY\\s+(.+?)\\s+(DISTRIBUTED\\s+BY\\s+PARTITION)", "set_sort_order",
      "columns text", "locally flag"},
    {ALTER + "WRITE\\s+(DISTRIBUTED\\s+BY\\s+PARTITION\\s+(?:LOCALLY\\s+)?|LOCALLY\\s+)?ORDERED\\s+BY\\s+(.+)", "set_sort_order",
      "locally flag", "columns text"},
    {ALTER + "ADD\\s+PARTITION\\s+FIELD\\s+(.+?)(?:\\s+AS\\s+(" + NAME + "))?", "add_partition_field", "field text", "name name"},
    {ALTER + "DROP\\s+PARTITION\\s+FIELD\\s+(.+)", "drop_partition_field", "field text"},
    {ALTER + "REPLACE\\s+PARTITION\\s+FIELD\\s+(.+?)\\s+WITH\\s+(.+?)(?:\\s+AS\\s+(" + NAME + "))?", "replace_partition_field",
      "old text", "field text", "name name"},
    {ALTER + "WRITE\\s+(?:UNORDERED(?:\\s+DISTRIBUTED\\s+BY\\s+PARTITION)?|DISTRIBUTED\\s+BY\\s+PARTITION(?:\\s+UNORDERED)?)",
      "set_sort_order"},
  };
  private static final String EVOLUTION = "INSERT\\s+WITH\\s+SCHEMA\\s+EVOLUTION\\s+(INTO|OVERWRITE)";
  private static final String AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled";
  // Statements without a table: ANALYZE TABLES of the current namespace, and INSERT OVERWRITE DIRECTORY.
  private static final String ANALYZE_TABLES = "ANALYZE\\s+TABLES(\\s+COMPUTE\\s+STATISTICS(?:\\s+NOSCAN)?)";
  private static final String DIRECTORY =
      "INSERT\\s+OVERWRITE\\s+(?:LOCAL\\s+)?DIRECTORY\\s+(?:" + TEXT + "\\s+)?USING\\s+`?lance`?(?!\\w)";
  private static final String OTHER_FORMAT = "\\b(?:delta|iceberg)\\.`(?=[^`]*/)";
  // The name of the table of an INSERT INTO.
  private static final String INSERT = "INSERT\\s+(?:INTO\\s+)?(?:TABLE\\s+)?" + NAMES + ")";
  private static final String CATALOG = "org.lance.spark.catalog.LanceCatalog";
  private static final String SESSION_CATALOG = "org.lance.spark.catalog.LanceSessionCatalog";
  // The catalog of sessions that are created from now on.
  private static String newSessionCatalog = null;
  private static final String COMMENT = "/" + "*";
  private static final String COMMENT_END = "*" + "/";
  // The extensions that already inject the parser.
  private static final Map<SparkSessionExtensions, Boolean> INJECTED = new WeakHashMap<>();

  private final Object parser;
  private final String catalog;

  /**
   * Creates the handler of a wrapped parser.
   *
   * @param parser the parser of the session; null in the function that wraps parsers of new sessions
   * @param catalog the catalog of the session, for errors and for tables by path
   */
  public LanceParser(Object parser, String catalog) {
    this.parser = parser;
    this.catalog = catalog;
  }

  /** Wraps the parser of the enabled session, and of sessions that are created later. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  public static final class Start implements BiConsumer {
    public void accept(Object session, Object request) {
      String catalog = (String) Json.object(request).get("catalog");
      Shim.replaceParser((SparkSession) session, new ParserReplacement(catalog));
      if ((Boolean) Json.object(request).get("newSessions")) {
        inject(((SparkSession) session).extensions(), catalog);
      }
    }
  }

  /** Wraps the parser of a session. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  private static final class ParserReplacement implements UnaryOperator {
    private final String catalog;

    ParserReplacement(String catalog) {
      this.catalog = catalog;
    }

    public Object apply(Object parser) {
      return around(parser, catalog);
    }
  }

  @SuppressWarnings("unchecked") // Janino makes no bridge methods, so the parser's types are raw.
  private static void inject(SparkSessionExtensions extensions, String catalog) {
    synchronized (LanceParser.class) {
      if (INJECTED.put(extensions, Boolean.TRUE) == null) {
        extensions.injectParser(new LanceParser(null, catalog));
      }
      newSessionCatalog = catalog;
    }
  }

  public Object apply(Object session, Object parser) {
    synchronized (LanceParser.class) {
      return around(parser, newSessionCatalog);
    }
  }

  private static Object around(Object parser, String catalog) {
    if (Proxy.isProxyClass(parser.getClass()) && Proxy.getInvocationHandler(parser) instanceof LanceParser) {
      parser = ((LanceParser) Proxy.getInvocationHandler(parser)).parser;
    }
    Class<?>[] kinds = {ParserInterface.class};
    return Proxy.newProxyInstance(ParserInterface.class.getClassLoader(), kinds, new LanceParser(parser, catalog));
  }

  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    if (method.getName().equals("parseMultipartIdentifier") && "".equals(arguments[0]) && Callers.isCatalogApi()) {
      return scala.collection.immutable.Nil$.MODULE$;
    }
    boolean isStatement = method.getName().startsWith("parsePlan") && arguments[0] instanceof String;
    String statement = isStatement ? withoutComments((String) arguments[0]) : null;
    if (isStatement) {
      if (matcher("USE\\b", statement, ".*").matches()) {
        loadSessionCatalog();
      }
      refuseDirectory(statement);
      refuseSetting(statement);
      refuseFolderOfDelta(statement);
      refuseOfCatalogs(statement);
      arguments = (Object[]) arguments.clone();
      arguments[0] = withEvolution((String) arguments[0]);
    }
    if (isStatement && isOfSpark(statement)) {
      String call = call(statement);
      if (call != null) {
        return parseCall(method, arguments, call, statement);
      }
      if (isOfOtherFormat(statement) && !hasDelta()) {
        throw new IllegalArgumentException(help(statement));
      }
    }
    try {
      return method.invoke(parser, arguments);
    } catch (InvocationTargetException problem) {
      Throwable cause = problem.getCause();
      if (cause instanceof ParseException && isStatement) {
        String call = call(statement);
        if (call != null) {
          return parseCall(method, arguments, call, statement);
        }
        String overwrite = withoutReplaceUsing(statement);
        if (overwrite != null) {
          return parseCall(method, arguments, overwrite, statement);
        }
        String help = help(statement);
        if (help != null) {
          throw new IllegalArgumentException(help, cause);
        }
      }
      throw cause;
    }
  }

  /** Returns a statement with a space instead of each comment. Hints stay. */
  private static String withoutComments(String text) {
    StringBuilder result = new StringBuilder();
    int at = 0;
    while (at < text.length()) {
      int end = endOfComment(text, at);
      if (end > at) {
        result.append(' ');
      } else {
        end = endOfQuoted(text, at);
        result.append(text, at, end);
      }
      at = end;
    }
    return result.toString();
  }

  /** Returns the end of the comment at a position; the position itself if there is none. */
  private static int endOfComment(String text, int start) {
    if (text.startsWith("--", start)) {
      int end = text.indexOf('\n', start);
      return end < 0 ? text.length() : end;
    }
    boolean isHint = text.startsWith(COMMENT + "+", start);
    if (isHint || !text.startsWith(COMMENT, start)) {
      return start;
    }
    int depth = 0;
    int at = start;
    while (at < text.length()) {
      if (text.startsWith(COMMENT, at)) {
        depth++;
        at += 2;
      } else if (text.startsWith(COMMENT_END, at)) {
        depth--;
        at += 2;
        if (depth == 0) {
          return at;
        }
      } else {
        at++;
      }
    }
    return text.length();
  }

  /** Returns the end of the quoted text at a position, or of the character there. */
  private static int endOfQuoted(String text, int start) {
    char quote = text.charAt(start);
    if (quote != '\'' && quote != '"' && quote != '`') {
      return start + 1;
    }
    int at = start + 1;
    while (at < text.length() && text.charAt(at) != quote) {
      at += quote != '`' && text.charAt(at) == '\\' ? 2 : 1;
    }
    return Math.min(at + 1, text.length());
  }

  // Loads the session's own catalog. A Thrift server opens a session with USE, under a class loader of Hive that has no
  // classes of this package.
  private static void loadSessionCatalog() {
    String configured = ((SQLConf) SQLConf$.MODULE$.get()).getConfString("spark.sql.catalog.spark_catalog", "");
    if (active() == null || !configured.equals(SESSION_CATALOG)) {
      return;
    }
    Thread thread = Thread.currentThread();
    ClassLoader context = thread.getContextClassLoader();
    thread.setContextClassLoader(LanceParser.class.getClassLoader());
    try {
      active().sessionState().catalogManager().catalog("spark_catalog");
    } finally {
      thread.setContextClassLoader(context);
    }
  }

  /** Returns whether Spark's grammar has a statement that begins like the text. */
  private static boolean isOfSpark(String text) {
    return matcher("(?:DESC|ANALYZE|(?:CREATE|DROP)\\s+INDEX)", text, ".*").matches();
  }

  private Object parseCall(Method method, Object[] arguments, String call, String statement) throws Throwable {
    Object[] callArguments = (Object[]) arguments.clone();
    callArguments[0] = call;
    try {
      return method.invoke(parser, callArguments);
    } catch (InvocationTargetException problem) {
      String help = problem.getCause() instanceof ParseException ? help(statement) : null;
      if (help != null) {
        throw new IllegalArgumentException(help, problem.getCause());
      }
      throw problem.getCause();
    }
  }

  private static Matcher matcher(String pattern, String text, String ending) {
    return Pattern.compile("\\s*" + pattern + ending, Pattern.CASE_INSENSITIVE | Pattern.DOTALL).matcher(text);
  }

  private void refuseDirectory(String text) {
    Matcher match = matcher(DIRECTORY, text, ".*");
    if (match.matches()) {
      String path = match.group(1) == null ? "/path" : unquoted(match.group(1));
      String table = catalog + ".`" + path.replace("`", "``") + "`";
      throw new IllegalArgumentException(
          "INSERT OVERWRITE DIRECTORY writes files of other formats: for a Lance table write CREATE OR REPLACE TABLE " + table
              + " AS SELECT ..., or INSERT OVERWRITE " + table + " SELECT ... if the table exists");
    }
  }

  /**
   * Adds the current namespace to ANALYZE TABLES without a name, if it is in a catalog of this package. Other
   * statements do not change.
   */
  private static String withNamespace(String text) {
    Matcher match = matcher(ANALYZE_TABLES, text, "\\s*;?\\s*");
    if (!match.matches() || active() == null) {
      return text;
    }
    CatalogManager catalogs = active().sessionState().catalogManager();
    String current = catalogs.currentCatalog().name();
    if (!isOurs(current) || current.equals("spark_catalog")) {
      return text;
    }
    StringBuilder namespace = new StringBuilder("`" + current.replace("`", "``") + "`");
    for (String part : catalogs.currentNamespace()) {
      namespace.append(".`" + part.replace("`", "``") + "`");
    }
    return "ANALYZE TABLES IN " + namespace + match.group(1);
  }

  /** Refuses Delta's settings that keep writes from being repeated, unless the session has Delta Lake. */
  private void refuseSetting(String text) {
    Matcher match = matcher("SET\\s+(spark\\.databricks\\.delta\\.write\\.txn(?:AppId|Version))\\s*=", text, ".*");
    if (match.matches() && !hasDelta()) {
      throw new IllegalArgumentException("setting " + match.group(1) + " has no effect on Lance tables: write "
          + "df.write.option('txnAppId', 'job').option('txnVersion', 1).mode('append').saveAsTable('t')");
    }
  }

  /** Refuses delta.`/path` in a query, unless the session has Delta Lake. */
  private void refuseFolderOfDelta(String text) {
    String pattern = "\\b(FROM|JOIN|INTO|OVERWRITE|TABLE|UPDATE)\\s+delta\\.`(?=[^`]*/)";
    if (!text.toLowerCase().contains("delta.`") || hasDelta()) {
      return;
    }
    Matcher match = Pattern.compile(pattern, Pattern.CASE_INSENSITIVE).matcher(text.trim());
    if (match.find() && !isOfOtherFormat(text)) {
      throw new IllegalArgumentException("a folder of Lance is named by the catalog: for a Lance table write "
          + match.replaceAll("$1 " + Matcher.quoteReplacement(catalog) + ".`"));
    }
  }

  /** Refuses statements that Spark would refuse for a Lance table without saying what to write. */
  private void refuseOfCatalogs(String text) {
    for (String[] form : LanceForms.REFUSED) {
      Matcher match = matcher(form[0], text, ".*");
      if (match.matches() && isLanceTable(unquoted(match.group(1)))) {
        if (form[1].contains("NOT NULL") && !isNullable(match.group(1), match.group(2))) {
          return;
        }
        throw new IllegalArgumentException("this statement is not for Lance tables: write "
            + String.format(form[1], match.group(1), match.groupCount() > 1 ? match.group(2) : ""));
      }
    }
  }

  private static boolean isNullable(String table, String column) {
    try {
      return active().table(table).select(column).schema().apply(0).nullable();
    } catch (Exception problem) {
      return false;
    }
  }

  private static boolean hasDelta() {
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    return settings.getConfString("spark.sql.extensions", "").contains("delta")
        || settings.getConfString("spark.sql.catalog.delta", "").length() > 0;
  }

  /** Adds WITH SCHEMA EVOLUTION to a MERGE INTO a table of this package, if Delta's setting of the session asks for it. */
  private String withEvolution(String text) {
    if (!"true".equalsIgnoreCase(((SQLConf) SQLConf$.MODULE$.get()).getConfString(AUTO_MERGE, ""))) {
      return text;
    }
    int start = 0;
    while (start < text.length() && (Character.isWhitespace(text.charAt(start)) || endOfComment(text, start) > start)) {
      start = Math.max(start + 1, endOfComment(text, start));
    }
    Matcher match = matcher("MERGE\\s+(INTO\\s+" + NAMES + ").*)", text.substring(start), "");
    return match.matches() && catalogOf(match.group(2)) != null
        ? text.substring(0, start) + "MERGE WITH SCHEMA EVOLUTION " + match.group(1) : text;
  }

  /**
   * Returns INSERT OVERWRITE with the option replaceUsing for an INSERT ... REPLACE USING, which is new in Spark 4.2.
   *
   * @return null for other statements, and for tables that are no Lance tables, whose rows it would overwrite
   */
  private static String withoutReplaceUsing(String text) {
    Matcher match = matcher(INSERT + "(\\s+BY\\s+NAME)?\\s+REPLACE\\s+USING\\s*\\(([^()]+)\\)(.+)", text, "");
    if (!match.matches() || !isLanceTable(match.group(1))) {
      return null;
    }
    StringBuilder columns = new StringBuilder();
    for (String column : match.group(3).split(",(?=(?:[^`]*`[^`]*`)*[^`]*$)")) {
      String name = column.trim();
      name = name.startsWith("`") ? name.substring(1, name.length() - 1).replace("``", "`") : name;
      columns.append(columns.length() == 0 ? "" : ", ").append('"' + name.replace("\\", "\\\\").replace("\"", "\\\"") + '"');
    }
    String byName = match.group(2) == null ? "" : " BY NAME";
    return "INSERT OVERWRITE " + match.group(1) + " WITH ('replaceUsing' = " + literal("[" + columns + "]") + ")" + byName + match.group(4);
  }

  /** Returns whether a name is certainly of a Lance table, and not of a view or a table of another format. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // The parts of a name are a raw Seq for Janino.
  private static boolean isLanceTable(String name) {
    SparkSession session = active();
    if (session == null) {
      return false;
    }
    scala.collection.immutable.Seq parts = null;
    try {
      parts = session.sessionState().sqlParser().parseMultipartIdentifier(name);
    } catch (Exception problem) {
      return false;
    }
    String current = session.sessionState().catalogManager().currentCatalog().name();
    String first = (String) parts.apply(0);
    boolean hasCatalog = parts.size() > 1 && session.sessionState().catalogManager().isCatalogRegistered(first);
    String owner = hasCatalog ? first : current;
    boolean isView = session.sessionState().catalog().isTempView(parts);
    return isOurs(owner) && !isView && (!owner.equals("spark_catalog") || isRegistered(name));
  }

  /** Returns the CALL for a statement; null if its table is in no catalog of this package. */
  private String call(String statementText) {
    if (isOfOtherFormat(statementText)) {
      return null;
    }
    String text = withNamespace(statementText);
    for (String[] statement : STATEMENTS) {
      Matcher match = matcher(statement[0], text, "\\s*;?\\s*");
      if (match.matches()) {
        String table = match.group(group(statement));
        String owner = catalogOf(table);
        boolean isOther = isOfSpark(text) && "spark_catalog".equals(owner) && !isRegistered(table);
        return owner == null || isOther ? null : call(owner, statement, match);
      }
    }
    return null;
  }

  private static String call(String owner, String[] statement, Matcher match) {
    String[] procedure = statement[1].split(":");
    StringBuilder call = new StringBuilder("CALL `" + owner.replace("`", "``") + "`.system." + procedure[0] + "(");
    call.append((procedure.length > 1 ? procedure[1] : "table") + " => " + literal(unquoted(match.group(group(statement)))));
    // The arguments are the groups after the table, unless the table has a later group.
    int before = group(statement) == 1 ? 0 : 1;
    for (int i = 2; i < statement.length; i++) {
      String value = match.group(i - before);
      String[] parameter = statement[i].split(" ");
      if (value == null || parameter[1].equals("skip")) {
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

  /** Returns the number of the group that has the table. */
  private static int group(String[] statement) {
    String[] procedure = statement[1].split(":");
    return procedure.length > 2 ? Integer.parseInt(procedure[2]) : 1;
  }

  private static boolean isQuoted(String table) {
    return table.startsWith("'") || table.startsWith("\"");
  }

  private static String unquoted(String table) {
    return isQuoted(table) ? table.substring(1, table.length() - 1) : table;
  }

  /**
   * Returns the SQL of a text. With spark.sql.parser.escapedStringLiterals a literal has no escapes, so it cannot have
   * quotes.
   */
  private static String literal(String text) {
    boolean hasEscapes = text.indexOf('\\') >= 0 || text.indexOf('\'') >= 0;
    if (hasEscapes && ((SQLConf) SQLConf$.MODULE$.get()).escapedStringLiterals()) {
      return "CAST(X'" + HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8)) + "' AS STRING)";
    }
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'";
  }

  /** Returns whether a statement of Delta Lake names a folder as Delta Lake or Iceberg do, such as delta.`/path`. */
  private static boolean isOfOtherFormat(String text) {
    for (String[] statement : STATEMENTS) {
      Matcher match = matcher(statement[0], text, "\\s*;?\\s*");
      if (match.matches()) {
        return matcher(OTHER_FORMAT, match.group(group(statement)), ".*").matches();
      }
    }
    return false;
  }

  private String help(String text) {
    if (isOfOtherFormat(text)) {
      return "a folder of Lance is named by the catalog: for a Lance table write "
          + Pattern.compile(OTHER_FORMAT, Pattern.CASE_INSENSITIVE).matcher(text.trim()).replaceAll(catalog + ".`");
    }
    for (String[] array : STATEMENTS) {
      Matcher match = matcher(array[0], text, "\\s*;?\\s*");
      if (match.matches() && catalogOf(match.group(group(array))) == null) {
        return text.trim().split("\\s+")[0].toUpperCase() + " of " + match.group(group(array)) + " is not in Spark's grammar: for a "
            + "Lance table write " + call(catalog, array, match);
      }
    }
    Matcher evolution = matcher(EVOLUTION + TABLE, text, ".*");
    if (evolution.matches() && !isParsed("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1")) {
      String verb = evolution.group(1).toUpperCase();
      String table = evolution.group(2);
      String frame = verb.equals("INTO")
          ? "; or write df.write.option(\"mergeSchema\", \"true\").mode(\"append\").saveAsTable(\"" + table + "\")" : "";
      return "WITH SCHEMA EVOLUTION of INSERT is not in the grammar of this release of Spark: write ALTER TABLE " + table
          + " ADD COLUMN name type, and then INSERT " + verb + " " + table + frame;
    }
    String replaces = replaceHelp(text);
    if (replaces != null) {
      return replaces;
    }
    for (String[] form : LanceForms.FORMS) {
      Matcher match = matcher(form[0], text, ".*");
      if (match.matches()) {
        Object[] parts = new Object[match.groupCount()];
        for (int j = 0; j < parts.length; j++) {
          parts[j] = match.group(j + 1);
        }
        String remedy = form[1];
        if (remedy.contains("FROM %s.") || remedy.contains("%1$s.`")) {
          parts[0] = fullName((String) parts[0]);
        } else if (remedy.contains("<catalog>")) {
          String owner = catalogOf((String) parts[0]);
          remedy = remedy.replace("<catalog>", (owner == null ? catalog : owner).replace("%", "%%"));
          parts[0] = unquoted((String) parts[0]);
        }
        return "this statement is not understood: for a Lance table write " + String.format(remedy, parts);
      }
    }
    return null;
  }

  /** Returns what to write instead of the forms of INSERT ... REPLACE that are new in Spark 4.2; null for others. */
  private String replaceHelp(String text) {
    String name = INSERT + "(?:\\s+(?:AS\\s+)?(?!BY\\b|REPLACE\\b)" + NAME + ")?";
    Matcher match = matcher(name + "(\\s+BY\\s+NAME)?\\s+REPLACE\\s+(ON|WHERE)\\b", text, ".*");
    if (!match.matches() || isParsed("INSERT INTO t BY NAME REPLACE USING (a) SELECT 1 AS a")) {
      return null;
    }
    String kind = match.group(3).toUpperCase();
    String byName = match.group(2) == null ? "" : "BY NAME ";
    boolean isInGrammar = kind.equals("WHERE") && byName.isEmpty();
    // The options would overwrite all rows of a table of another format.
    if (isInGrammar || !isLanceTable(match.group(1))) {
      return null;
    }
    String option = kind.equals("ON") ? "'replaceOn' = 't.column = s.column'" : "'replaceWhere' = 'condition'";
    String aliases = kind.equals("ON") ? ", where t is the table and s has the new rows" : "";
    return byName + "REPLACE " + kind + " is not in the grammar of this release of Spark: write INSERT OVERWRITE "
        + match.group(1) + " WITH (" + option + ") " + byName + "SELECT ..." + aliases;
  }

  private boolean isParsed(String text) {
    try {
      ((ParserInterface) parser).parsePlan(text);
      return true;
    } catch (Exception problem) {
      return false;
    }
  }

  /**
   * Returns the catalog of this package that a table is in: the first part of its name, or the current catalog; null
   * if there is none.
   */
  private String catalogOf(String table) {
    SparkSession session = active();
    if (isQuoted(table) || isFiles(table)) {
      String current = session == null ? "" : session.sessionState().catalogManager().currentCatalog().name();
      return isOurs(current) ? current : catalog;
    }
    String first = table.startsWith("`") ? table.substring(1, table.indexOf('`', 1)) : table.split("\\.")[0];
    SQLConf settings = (SQLConf) SQLConf$.MODULE$.get();
    String kind = settings.getConfString("spark.sql.catalog." + first, "");
    if (kind.length() > 0 || first.equalsIgnoreCase("spark_catalog")) {
      return isOurs(first) ? first : null;
    }
    if (session == null) {
      return null;
    }
    String current = session.sessionState().catalogManager().currentCatalog().name();
    return isOurs(current) ? current : null;
  }

  /** Returns the name of a table with its catalog and namespace, as names of metadata tables need them. */
  private String fullName(String table) {
    String owner = catalogOf(table);
    if (isQuoted(table)) {
      return owner + ".`" + unquoted(table) + "`";
    }
    String[] parts = table.replaceAll("`[^`]*`", "x").split("\\.");
    if (active() == null || owner == null || table.replace("`", "").startsWith(owner + ".")) {
      return table;
    }
    StringBuilder name = new StringBuilder(owner + ".");
    if (parts.length == 1) {
      for (String part : active().sessionState().catalogManager().currentNamespace()) {
        name.append("`" + part.replace("`", "``") + "`.");
      }
    }
    return name.append(table).toString();
  }

  /** Returns whether a name refers to files, such as parquet.`/path`, which are in no catalog. */
  private static boolean isFiles(String table) {
    return Pattern.compile("(?:parquet|orc|csv|json|avro|text)\\.`.*/.*`", Pattern.CASE_INSENSITIVE).matcher(table).matches();
  }

  /**
   * Returns whether spark_catalog has a Lance table of this name. If not, DESCRIBE HISTORY t may describe column t of
   * a table HISTORY.
   */
  private static boolean isRegistered(String table) {
    if (isQuoted(table)) {
      return true;
    }
    SessionState state = active().sessionState();
    scala.collection.immutable.Seq parts = null;
    try {
      parts = state.sqlParser().parseMultipartIdentifier(table);
    } catch (Exception problem) {
      return false;
    }
    int last = parts.size() - 1;
    String database = last == 0 ? state.catalog().getCurrentDatabase() : (String) parts.apply(last - 1);
    String name = ((String) parts.apply(last)).split("@")[0];
    String[] registered = Shim.registeredTable(active(), database, name);
    return registered != null && "lance".equalsIgnoreCase(registered[0]);
  }

  private static boolean isOurs(String name) {
    String kind = ((SQLConf) SQLConf$.MODULE$.get()).getConfString("spark.sql.catalog." + name, "");
    return kind.equals(CATALOG) || kind.equals(SESSION_CATALOG);
  }

  private static SparkSession active() {
    scala.Option<SparkSession> active = SparkSession.getActiveSession();
    return active.isEmpty() ? null : (SparkSession) active.get();
  }
}
