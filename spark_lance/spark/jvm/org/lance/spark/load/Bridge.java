package org.lance.spark.load;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.ViewAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/** Requests to the driver's Python and its answers, both as JSON. All other classes call Python through this one. */
public final class Bridge {
  /** The column of Spark's file sources that has the place of a row. */
  public static final String FILE_METADATA = "_metadata";
  // The class of catalogs in settings: LanceTableCatalog under a stable name (LanceUnits).
  public static final String CATALOG = "org.lance.spark.catalog.LanceCatalog";

  // The catalog of writes by path.
  public static final String PATHS = "lance_paths";

  private static final ObjectMapper MAPPER = new ObjectMapper();
  // Path and options of the store of the write that a thread has begun.
  private static final ThreadLocal<Object> WRITING = new ThreadLocal<>();

  private static final String ZONE = "timeZone";

  private Bridge() {}

  /** An identifier that knows its table, where options of a read or write belong to it. */
  public interface Loads {
    Table load();
  }

  // A path that is about to be written, and how its store is reached, until `written`.
  public static void writesTo(String path, Map<String, String> storage) {
    WRITING.set(new Object[] {path, storage});
  }

  // The write has found its table or has made it: nothing is kept of the options of its store.
  public static void written() {
    WRITING.remove();
  }

  // The options of a catalog, with those of the store of a write to a path that this thread is in. They are for the
  // call of save that told of them, in the catalog of such writes: for anybody else they are forgotten.
  public static Map<String, String> optionsFor(String catalog, String[] name, Map<String, String> options) {
    Object[] writing = (Object[]) WRITING.get();
    if (writing == null) {
      return options;
    }
    boolean isSave = catalog.equals(PATHS) && name.length == 1 && name[0].equals(writing[0]) && Callers.isSavingByPath();
    if (!isSave) {
      written();
      return options;
    }
    Map<String, String> all = new HashMap<>(options);
    all.putAll(Json.texts(writing[1]));
    return all;
  }

  public static Map<String, Object> question(String verb) {
    Map<String, Object> question = new LinkedHashMap<>();
    question.put(Protocol.VERB, verb);
    Map<String, Object> staging = staging();
    if (!staging.isEmpty()) {
      question.put(Protocol.STAGING, staging);
    }
    return question;
  }

  // Whether the session directs writes to a branch.
  public static boolean isStaging() {
    return !staging().isEmpty();
  }

  private static Map<String, Object> staging() {
    Map<String, Object> staging = new HashMap<>();
    SQLConf conf = (SQLConf) SQLConf$.MODULE$.get();
    String branch = conf.getConfString("spark.wap.branch", null);
    String id = conf.getConfString("spark.wap.id", null);
    if (branch != null) {
      staging.put(Protocol.BRANCH, branch);
    }
    if (id != null) {
      staging.put(Protocol.ID, id);
    }
    return staging;
  }

  public static String json(Object value) {
    try {
      return MAPPER.writeValueAsString(value);
    } catch (java.io.IOException problem) {
      throw new IllegalStateException(problem);
    }
  }

  public static List<Object> list(String[] texts) {
    return Arrays.asList((Object[]) texts);
  }

  public static String[] texts(Object list) {
    return (String[]) ((List<?>) list).toArray(new String[0]);
  }

  // Whether the value of an option is true.
  public static boolean isTrue(String text) {
    return text != null && (text.trim().equalsIgnoreCase("true") || text.trim().equals("1"));
  }

  // Answers, or throws what Spark expects of a missing or present name; it is not declared, as the interfaces of
  // Spark declare different ones.
  public static Object ask(Map<String, Object> question, Object subject) {
    Map<String, Object> answer;
    try {
      answer = Json.object(MAPPER.readValue(LanceUnits.ask(MAPPER.writeValueAsString(question), subject), Map.class));
    } catch (java.io.IOException problem) {
      // Its own message quotes the text, which may hold credentials.
      throw new IllegalStateException("an answer of the driver's Python is not JSON: " + problem.getClass().getName());
    }
    if (answer.containsKey(Protocol.ERROR)) {
      Object name = answer.get(Protocol.NAME);
      String condition = (String) answer.get(Protocol.CONDITION);
      if (condition != null && Shim.hasCondition(condition)) {
        throw new ConditionException(condition, Json.texts(answer.get(Protocol.PARAMETERS)), (String) answer.get(Protocol.MESSAGE));
      }
      Platform.throwException(
          problem((String) answer.get(Protocol.ERROR), (String) answer.get(Protocol.MESSAGE), name == null ? new String[0] : texts(name), (String) answer.get(Protocol.HINT)));
    }
    return answer.get(Protocol.ANSWER);
  }

  public static TableAlreadyExistsException exists(Identifier identifier) {
    return new TableAlreadyExistsException(identifier);
  }

  private static Throwable problem(String kind, String message, String[] name, String hint) {
    if (kind.equals("NoSuchNamespace") && hint != null) {
      // Spark's message has room for a reason only after the name.
      String displayName = "`" + String.join("`.`", Arrays.asList(name)) + "` (" + hint + ")";
      return new NoSuchNamespaceException(
          "SCHEMA_NOT_FOUND", new scala.collection.immutable.Map.Map1<>("schemaName", displayName));
    }
    if (kind.equals("NoSuchNamespace")) {
      return new NoSuchNamespaceException(name);
    }
    if (kind.equals("NamespaceExists")) {
      return new NamespaceAlreadyExistsException(name);
    }
    if (kind.equals("NamespaceInUse")) {
      return new NonEmptyNamespaceException(name);
    }
    if (kind.equals("NoSuchTable")) {
      return new NoSuchTableException(identifier(name));
    }
    if (kind.equals("NoSuchBranch")) {
      return new NoSuchBranchException(identifier(name), message);
    }
    if (kind.equals("NoSuchView")) {
      return new NoSuchViewException(identifier(name));
    }
    if (kind.equals("ViewExists")) {
      return new ViewAlreadyExistsException(identifier(name));
    }
    if (kind.equals("TableExists")) {
      return new TableAlreadyExistsException(identifier(name));
    }
    if (kind.equals("Unsupported")) {
      return new UnsupportedOperationException(message);
    }
    return new IllegalArgumentException(message);
  }

  /** The table exists, but not its branch in the name. Spark's message has room for that only after the name. */
  public static final class NoSuchBranchException extends NoSuchTableException {
    private static final long serialVersionUID = 1L;
    final String reason;

    NoSuchBranchException(Identifier identifier, String reason) {
      super("TABLE_OR_VIEW_NOT_FOUND", parameters(identifier, reason), scala.Option.empty());
      this.reason = reason;
    }

    private static scala.collection.immutable.Map<String, String> parameters(Identifier identifier, String reason) {
      scala.collection.immutable.Map<String, String> parameters = new NoSuchTableException(identifier).messageParameters();
      return Seqs.updated(parameters, "relationName", parameters.apply("relationName") + " (" + reason + ")");
    }
  }

  /** A missing table, with a reason in the message. */
  public static NoSuchTableException noSuchTable(Identifier identifier, String reason) {
    return new NoSuchBranchException(identifier, reason);
  }

  // The options of a read, with the session's zone for times that name none.
  public static CaseInsensitiveStringMap zoned(CaseInsensitiveStringMap options) {
    if (!LanceUnits.hasOption(options, "time") || options.containsKey(ZONE)) {
      return options;
    }
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    all.put(ZONE, ((SQLConf) SQLConf$.MODULE$.get()).sessionLocalTimeZone());
    return new CaseInsensitiveStringMap(all);
  }

  /** Rows that cannot be written: Spark's condition, and our sentence about them. */
  public static final class ConditionException extends SparkRuntimeException {
    private static final long serialVersionUID = 1L;
    private final String message;

    ConditionException(String condition, Map<String, String> parameters, String message) {
      super(condition, scalaMap(parameters), null, new QueryContext[0], "");
      this.message = "[" + condition + "] " + message + ". SQLSTATE: " + getSqlState();
    }

    public String getMessage() {
      return message == null ? super.getMessage() : message;
    }
  }

  // What an exception that Spark takes for "look elsewhere" says, with the whole name, as one that ends the statement.
  public static AnalysisException missing(NoSuchTableException problem, String catalog, Identifier identifier) {
    scala.collection.immutable.Map<String, String> parameters = problem.messageParameters();
    String displayName = quoted(catalog, identifier);
    if (problem instanceof NoSuchBranchException) {
      displayName += " (" + ((NoSuchBranchException) problem).reason + ")";
    }
    Map<String, String> whole = new LinkedHashMap<>();
    whole.put("relationName", displayName);
    whole.put("searchPath", "[`" + catalog + "`]");
    for (String name : whole.keySet()) {
      // Older releases have no search path.
      if (parameters.contains(name)) {
        parameters = Seqs.updated(parameters, name, (String) whole.get(name));
      }
    }
    return new AnalysisException("TABLE_OR_VIEW_NOT_FOUND", parameters);
  }

  /** A name as Spark's errors write it. */
  public static String quoted(String catalog, Identifier identifier) {
    String displayName = quoted(catalog);
    for (String part : identifier.namespace()) {
      displayName += "." + quoted(part);
    }
    return displayName + "." + quoted(identifier.name());
  }

  /** The parameters of an error of Spark. */
  public static scala.collection.immutable.Map<String, String> scalaMap(Map<String, String> parameters) {
    scala.collection.immutable.Map<String, String> result = scala.collection.immutable.Map$.MODULE$.empty();
    for (Map.Entry<String, String> entry : parameters.entrySet()) {
      result = Seqs.updated(result, (String) entry.getKey(), (String) entry.getValue());
    }
    return result;
  }

  private static String quoted(String part) {
    return "`" + part.replace("`", "``") + "`";
  }

  // Spark's source of the format, by whose name executors find it.
  public static PythonDataSourceV2 source() {
    PythonDataSourceV2 source;
    try {
      source = (PythonDataSourceV2) Class.forName("lance.DefaultSource", true, Bridge.class.getClassLoader()).getConstructor().newInstance();
    } catch (ReflectiveOperationException missing) {
      source = new PythonDataSourceV2();
    }
    source.setShortName("lance");
    return source;
  }

  // The builder of a write that the driver plans; `sparkBuilder` where it does not.
  //
  // byDefault: whether the driver plans where no setting tells; displayName: the table's name for EXPLAIN; transforms: the
  // table's partition fields; declaration: the setting of a table that the write makes or replaces, or null.
  public static WriteBuilder writing(
      boolean byDefault,
      String displayName,
      PythonDataSourceV2 source,
      LogicalWriteInfo info,
      Transform[] transforms,
      String declaration,
      WriteBuilder sparkBuilder) {
    OptionalUnit unit = OptionalUnit.find("org.lance.spark.write.LanceWrite", Bridge.class.getClassLoader());
    return unit == null
        ? sparkBuilder
        : (WriteBuilder) unit.call("builder", byDefault, displayName, source, info, transforms, declaration, sparkBuilder);
  }

  /** The refusal of _metadata, with the columns to use instead. */
  public static UnsupportedOperationException noFileMetadata() {
    return new UnsupportedOperationException(
        "a Lance table has no " + FILE_METADATA + ", as several files have the columns of a row: write _rowid, _rowaddr, _fragid, "
            + "_row_created_at_version or _row_last_updated_at_version; SELECT * FROM <catalog>.<namespace>.<table>.data_files lists the files");
  }

  // The columns to read: those that are required, and at least one in Spark 4.0, which loses rows without columns.
  public static StructType readable(StructType required, StructType all) {
    // LanceTable has a column of the name, so that reads of it end here.
    if (Arrays.asList((Object[]) required.fieldNames()).contains(FILE_METADATA)
        && !Arrays.asList((Object[]) all.fieldNames()).contains(FILE_METADATA)) {
      throw noFileMetadata();
    }
    if (required.length() > 0 || all.length() == 0 || Shim.keepsReadPlan()) {
      return required;
    }
    StructField best = all.fields()[0];
    for (int i = 1; i < all.length(); i++) {
      StructField next = all.fields()[i];
      if (next.dataType().defaultSize() < best.dataType().defaultSize()) {
        best = next;
      }
    }
    return new StructType(new StructField[] {best});
  }

  private static Identifier identifier(String[] name) {
    String[] namespace = new String[Math.max(0, name.length - 1)];
    System.arraycopy(name, 0, namespace, 0, namespace.length);
    return Identifier.of(namespace, name.length == 0 ? "" : name[name.length - 1]);
  }
}
