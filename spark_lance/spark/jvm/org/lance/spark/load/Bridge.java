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
import org.apache.spark.sql.connector.expressions.SortOrder;
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
  /** The column of Spark's file sources with the file of each row. */
  public static final String FILE_METADATA = "_metadata";
  // The class of catalogs in settings. LanceUnits derives it from LanceTableCatalog under this stable name.
  public static final String CATALOG = "org.lance.spark.catalog.LanceCatalog";

  /** The catalog of writes by path. */
  public static final String PATHS = "lance_paths";

  private static final ObjectMapper MAPPER = new ObjectMapper();
  // Path and storage options of the write by path that a thread has begun.
  private static final ThreadLocal<Object> CURRENT_WRITE = new ThreadLocal<>();

  private static final String ZONE = "timeZone";
  // Delta's setting against repeated writes. It has no effect here, so writes are refused.
  private static final String DELTA_JOB = "spark.databricks.delta.write.txnAppId";

  private Bridge() {}

  /** An identifier with its table, for reads and writes whose options belong to the identifier. */
  public interface LoadableIdentifier {
    /** Returns the table. */
    Table load();
  }

  /**
   * Starts a write by path in this thread, until {@link #endWrite}.
   *
   * @param storage the storage options of the path
   */
  public static void beginWrite(String path, Map<String, String> storage) {
    CURRENT_WRITE.set(new Object[] {path, storage});
  }

  /** Ends the write by path of this thread, so that no later call gets its storage options. */
  public static void endWrite() {
    CURRENT_WRITE.remove();
  }

  /**
   * Returns the options of a catalog, with the storage options of this thread's write by path. They apply only within
   * the call of save that began the write, and only in the catalog of writes by path; any other call ends the write.
   */
  public static Map<String, String> optionsFor(String catalog, String[] name, Map<String, String> options) {
    Object[] writing = (Object[]) CURRENT_WRITE.get();
    if (writing == null) {
      return options;
    }
    boolean isSave = catalog.equals(PATHS) && name.length == 1 && name[0].equals(writing[0]) && Callers.isSavingByPath();
    if (!isSave) {
      endWrite();
      return options;
    }
    Map<String, String> all = new HashMap<>(options);
    all.putAll(Json.texts(writing[1]));
    return all;
  }

  /**
   * Returns a new request to Python. It has the session's settings that concern writes.
   *
   * @param verb a verb of {@link Protocol}
   */
  public static Map<String, Object> question(String verb) {
    Map<String, Object> question = new LinkedHashMap<>();
    question.put(Protocol.VERB, verb);
    Map<String, Object> staging = staging();
    if (!staging.isEmpty()) {
      question.put(Protocol.STAGING, staging);
    }
    SQLConf conf = (SQLConf) SQLConf$.MODULE$.get();
    if (conf.contains(DELTA_JOB) && !conf.getConfString("spark.sql.extensions", "").contains("delta")) {
      question.put(Protocol.IGNORED_SETTING, DELTA_JOB);
    }
    return question;
  }

  /**
   * Returns whether the session directs writes to a branch, with {@code spark.wap.branch} or {@code spark.wap.id}.
   */
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

  /** Returns a value as JSON. */
  public static String json(Object value) {
    try {
      return MAPPER.writeValueAsString(value);
    } catch (java.io.IOException problem) {
      throw new IllegalStateException(problem);
    }
  }

  /** Returns strings as a list for a request. */
  public static List<Object> list(String[] texts) {
    return Arrays.asList((Object[]) texts);
  }

  /** Returns a list of an answer as strings. */
  public static String[] texts(Object list) {
    return (String[]) ((List<?>) list).toArray(new String[0]);
  }

  /**
   * Returns whether the value of an option is true.
   *
   * @param text the value; null is false
   */
  public static boolean isTrue(String text) {
    return text != null && (text.trim().equalsIgnoreCase("true") || text.trim().equals("1"));
  }

  /**
   * Asks the driver's Python. It throws the exceptions that Spark expects for missing and existing names. They are
   * not declared, because the interfaces of Spark declare different ones.
   *
   * @param subject an object of the JVM that the request is about; null for none
   * @return the answer: a map, list, string, number, boolean or null
   */
  public static Object ask(Map<String, Object> question, Object subject) {
    Map<String, Object> answer;
    try {
      answer = Json.object(MAPPER.readValue(LanceUnits.ask(MAPPER.writeValueAsString(question), subject), Map.class));
    } catch (java.io.IOException problem) {
      // The message of Jackson quotes the text, which may hold credentials.
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

  /** Returns the exception for a table that exists. */
  public static TableAlreadyExistsException exists(Identifier identifier) {
    return new TableAlreadyExistsException(identifier);
  }

  private static Throwable problem(String kind, String message, String[] name, String hint) {
    if (kind.equals("NoSuchNamespace") && hint != null) {
      // In Spark's message, a reason can only follow the name.
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

  /**
   * The table exists, but not the branch in its name. The reason follows the name, as Spark's message has no other
   * place for it.
   */
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

  /** Returns the exception for a missing table, with a reason in the message. */
  public static NoSuchTableException noSuchTable(Identifier identifier, String reason) {
    return new NoSuchBranchException(identifier, reason);
  }

  /**
   * Returns the options of a read. If they have a time, the session's time zone is added for times without a zone.
   */
  public static CaseInsensitiveStringMap zoned(CaseInsensitiveStringMap options) {
    if (!LanceUnits.hasOption(options, "time") || options.containsKey(ZONE)) {
      return options;
    }
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    all.put(ZONE, ((SQLConf) SQLConf$.MODULE$.get()).sessionLocalTimeZone());
    return new CaseInsensitiveStringMap(all);
  }

  /** The error for rows that cannot be written, with Spark's error condition and the message of this package. */
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

  /**
   * Returns the error for a missing table that ends the statement. Spark takes NoSuchTableException as a sign to look
   * elsewhere. The message has the whole name.
   */
  public static AnalysisException missing(NoSuchTableException problem, String catalog, Identifier identifier) {
    scala.collection.immutable.Map<String, String> parameters = problem.messageParameters();
    String displayName = quoted(catalog, identifier);
    if (problem instanceof NoSuchBranchException) {
      displayName += " (" + ((NoSuchBranchException) problem).reason + ")";
    }
    Map<String, String> nameParameters = new LinkedHashMap<>();
    nameParameters.put("relationName", displayName);
    nameParameters.put("searchPath", "[`" + catalog + "`]");
    for (String name : nameParameters.keySet()) {
      // Older releases of Spark have no search path.
      if (parameters.contains(name)) {
        parameters = Seqs.updated(parameters, name, (String) nameParameters.get(name));
      }
    }
    return new AnalysisException("TABLE_OR_VIEW_NOT_FOUND", parameters);
  }

  /** Returns a name as Spark's errors write it. */
  public static String quoted(String catalog, Identifier identifier) {
    String displayName = quoted(catalog);
    for (String part : identifier.namespace()) {
      displayName += "." + quoted(part);
    }
    return displayName + "." + quoted(identifier.name());
  }

  /** Returns the parameters of an error of Spark as a map of Scala. */
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

  /** Returns Spark's data source of the format. Executors find it by its short name. */
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

  /**
   * Returns the builder of a write that the driver plans; {@code sparkBuilder} if Spark plans it.
   *
   * @param byDefault whether the driver plans writes if no setting says so
   * @param displayName the table's name for EXPLAIN
   * @param transforms the table's partition fields
   * @param order the order of rows in each file; empty for none
   * @param isDistributed whether tasks get ranges of rows in this order
   * @param declaration the declaration of a table that the write creates or replaces; null for an existing table
   * @param sparkBuilder Spark's own builder
   */
  public static WriteBuilder writing(
      boolean byDefault,
      String displayName,
      PythonDataSourceV2 source,
      LogicalWriteInfo info,
      Transform[] transforms,
      SortOrder[] order,
      boolean isDistributed,
      String declaration,
      WriteBuilder sparkBuilder) {
    OptionalUnit unit = OptionalUnit.find("org.lance.spark.write.LanceWrite", Bridge.class.getClassLoader());
    return unit == null
        ? sparkBuilder
        : (WriteBuilder) unit.call("builder", byDefault, displayName, source, info, transforms, order, isDistributed, declaration, sparkBuilder);
  }

  /** Returns the error for the column _metadata, with the columns to use instead. */
  public static UnsupportedOperationException noFileMetadata() {
    return new UnsupportedOperationException(
        "a Lance table has no " + FILE_METADATA + ", as several files have the columns of a row: write _rowid, _rowaddr, _fragid, "
            + "_row_created_at_version or _row_last_updated_at_version; SELECT * FROM <catalog>.<namespace>.<table>.data_files lists the files");
  }

  /**
   * Returns the columns to read: the required ones, and at least one in Spark 4.0, which loses rows without columns.
   *
   * @throws UnsupportedOperationException if {@code _metadata} of Spark's file sources is required
   */
  public static StructType readable(StructType required, StructType all) {
    // LanceTable declares _metadata, so that reads of it end here.
    if (Arrays.asList((Object[]) required.fieldNames()).contains(FILE_METADATA)
        && !Arrays.asList((Object[]) all.fieldNames()).contains(FILE_METADATA)) {
      throw noFileMetadata();
    }
    if (required.length() > 0 || all.length() == 0 || Shim.keepsReadPlan()) {
      return required;
    }
    StructField smallest = all.fields()[0];
    for (int i = 1; i < all.length(); i++) {
      StructField next = all.fields()[i];
      if (next.dataType().defaultSize() < smallest.dataType().defaultSize()) {
        smallest = next;
      }
    }
    return new StructType(new StructField[] {smallest});
  }

  private static Identifier identifier(String[] name) {
    String[] namespace = new String[Math.max(0, name.length - 1)];
    System.arraycopy(name, 0, namespace, 0, namespace.length);
    return Identifier.of(namespace, name.length == 0 ? "" : name[name.length - 1]);
  }
}
