package org.lance.spark.search;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogNotFoundException;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DatetimeType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.catalog.LanceSessionTableCatalog;
import org.lance.spark.catalog.LanceTableCatalog;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;

/**
 * The table functions vector_search, text_search and hybrid_search: a call becomes a relation of the results.
 *
 * <p>Arguments are constants; LanceLateral handles vectors and words of another table's rows. The driver's Python
 * interprets them. It answers with the schema, the options of the read, and a line that describes the search. Spark's
 * own classes for Python data sources read the results, so executors get no class of this package. Filters above the
 * relation apply to the results.
 */
@SuppressWarnings("rawtypes") // Janino makes no bridge methods.
public final class LanceSearch extends scala.runtime.AbstractFunction1 {
  private final String function;
  // The catalog of tables by path, and of names if the current catalog has no Lance tables.
  private final String catalog;

  /**
   * Creates the builder of a function.
   *
   * @param function the name of the table function
   * @param catalog the catalog of the enabled session
   */
  public LanceSearch(String function, String catalog) {
    this.function = function;
    this.catalog = catalog;
  }

  /**
   * Returns the relation of a call.
   *
   * @param arguments a sequence of expressions
   */
  public Object apply(Object arguments) {
    scala.collection.immutable.Seq<Expression> expressions = Seqs.cast((scala.collection.immutable.Seq<?>) arguments);
    List<Object> values = new ArrayList<>();
    Map<String, Object> argumentsByName = new HashMap<>();
    // Name of an argument -> its value from the outer row.
    Map<String, Expression> outerArguments = new LinkedHashMap<>();
    for (int i = 0; i < expressions.size(); i++) {
      Expression expression = (Expression) expressions.apply(i);
      NamedArgumentExpression namedArgument =
          expression instanceof NamedArgumentExpression ? (NamedArgumentExpression) expression : null;
      Expression value = namedArgument == null ? expression : namedArgument.value();
      String target = searchArgument(namedArgument == null ? null : namedArgument.key(), i);
      boolean isOfRow = target != null && LanceLateral.isOfRow(value);
      if (isOfRow) {
        outerArguments.put(target, checkType(target, value));
      }
      Object constant = isOfRow ? null : constant(value);
      if (namedArgument == null) {
        values.add(constant);
      } else {
        argumentsByName.put(namedArgument.key(), constant);
      }
    }
    if (values.isEmpty() || !(values.get(0) instanceof String)) {
      throw new IllegalArgumentException(
          function + " takes the name or the path of a table first, as text: " + function + "('db.t', ...)");
    }
    Map<String, Object> question = question(function, (String) values.get(0));
    question.put(Protocol.FUNCTION, function);
    question.put(Protocol.ARGUMENTS, values);
    question.put(Protocol.NAMED, argumentsByName);
    question.put(Protocol.EACH, new ArrayList<>(outerArguments.keySet()));
    Map<String, Object> answer = Json.object(Bridge.ask(question, null));
    DataSourceV2Relation relation = relation(answer);
    return outerArguments.isEmpty() ? relation : (Object) LanceLateral.relation(answer, outerArguments, Seqs.<Attribute>cast(relation.output()));
  }

  /**
   * Returns the name of an argument by its name or position if it is the search's subject: "vector" or "query"; null
   * for other arguments.
   */
  private String searchArgument(String name, int ordinal) {
    if (function.startsWith("table_changes")) {
      return null;
    }
    boolean hybrid = function.equals("hybrid_search");
    String first = function.equals("text_search") ? "query" : "vector";
    if (name == null ? ordinal == 2 : name.equalsIgnoreCase(first)) {
      return first;
    }
    return hybrid && (name == null ? ordinal == 4 : name.equalsIgnoreCase("query")) ? "query" : null;
  }

  private Expression checkType(String name, Expression value) {
    if (!value.resolved()) {
      return value;
    }
    if (name.equals("vector") && !LanceLateral.isVector(value.dataType())) {
      throw new IllegalArgumentException(
          "the vector of " + function + " is an array of numbers, not " + value.dataType().sql());
    }
    if (name.equals("query") && !(value.dataType() instanceof StringType)) {
      throw new IllegalArgumentException("the query of " + function + " is a text, not " + value.dataType().sql());
    }
    return value;
  }

  /**
   * Returns the relation of the results of a search.
   *
   * @param answer Python's description of the search
   */
  static DataSourceV2Relation relation(Map<String, Object> answer) {
    return DataSourceV2Relation.create(new ResultTable(answer), scala.Option.empty(), scala.Option.empty());
  }

  private Map<String, Object> question(String function, String table) {
    SessionState session = ((SparkSession) SparkSession.active()).sessionState();
    CatalogManager catalogs = session.catalogManager();
    LanceTableCatalog current = LanceSessionTableCatalog.lanceOf(catalogs.currentCatalog());
    boolean isPath = table.startsWith("/") || table.contains("://");
    List<Object> parts = isPath ? new ArrayList<>(Collections.singletonList(table)) : parts(session, table);
    CatalogPlugin first = parts.size() > 1 ? catalog(catalogs, (String) parts.get(0)) : null;
    LanceTableCatalog lanceCatalog = LanceSessionTableCatalog.lanceOf(first);
    if (lanceCatalog != null) {
      return lanceCatalog.question(Protocol.SEARCH, texts(parts.subList(1, parts.size())));
    }
    if (current == null) {
      return LanceSessionTableCatalog.lanceOf(catalogs.catalog(catalog)).question(Protocol.SEARCH, texts(parts));
    }
    if (!isPath && parts.size() == 1) {
      parts.addAll(0, Arrays.asList((Object[]) catalogs.currentNamespace()));
    }
    return current.question(Protocol.SEARCH, texts(parts));
  }

  private List<Object> parts(SessionState session, String table) {
    List<Object> parts = new ArrayList<>();
    try {
      scala.collection.immutable.Seq<String> nameParts = session.sqlParser().parseMultipartIdentifier(table);
      for (String part : Seqs.view(nameParts)) {
        parts.add(part);
      }
    } catch (ParseException problem) {
      throw new IllegalArgumentException(
          function + " takes the name or the path of a table first, such as 'db.t', not '" + table + "'");
    }
    return parts;
  }

  /** Returns the catalog of a name; null if there is none, so the name is a namespace. */
  private static CatalogPlugin catalog(CatalogManager catalogs, String name) {
    try {
      return catalogs.catalog(name);
    } catch (Throwable problem) {
      // The exception is not declared, so Java allows no catch clause for it.
      if (!(problem instanceof CatalogNotFoundException)) {
        Platform.throwException(problem);
      }
      return null;
    }
  }

  private static String[] texts(List<Object> parts) {
    return (String[]) parts.toArray(new String[0]);
  }

  /** Returns a constant as a string, number, boolean, list of numbers, or map of strings. */
  private Object constant(Expression expression) {
    if (!expression.foldable()) {
      throw new IllegalArgumentException(
          function + " takes constants, not " + expression.sql()
              + ": only a vector or a query may be of another table's rows, as in FROM q, LATERAL "
              + "vector_search('t', 'v', q.v, 5)");
    }
    DataType type = expression.dataType();
    if (type instanceof ArrayType && ((ArrayType) type).elementType() instanceof NumericType) {
      DataType doubles = DataTypes.createArrayType(DataTypes.DoubleType);
      ArrayData list = (ArrayData) new Cast(expression, doubles, scala.Option.empty()).eval(null);
      List<Double> numbers = new ArrayList<>();
      for (int i = 0; list != null && i < list.numElements(); i++) {
        numbers.add(list.isNullAt(i) ? null : Double.valueOf(list.getDouble(i)));
      }
      return list == null ? null : numbers;
    }
    if (function.startsWith("table_changes") && type instanceof DatetimeType) {
      scala.Option<String> zone = scala.Option.apply(SQLConf$.MODULE$.get().sessionLocalTimeZone());
      Object time = new Cast(expression, DataTypes.StringType, zone).eval(null);
      return time == null ? null : time.toString();
    }
    Object value = expression.eval(null);
    if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long) {
      return value;
    }
    if (type instanceof MapType) {
      DataType plain = DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType);
      MapData map = (MapData) new Cast(expression, plain, scala.Option.empty()).eval(null);
      Map<String, Object> texts = new HashMap<>();
      for (int i = 0; i < map.numElements(); i++) {
        Object text = map.valueArray().isNullAt(i) ? null : map.valueArray().getUTF8String(i).toString();
        texts.put(map.keyArray().getUTF8String(i).toString(), text);
      }
      return texts;
    }
    if (type instanceof StringType) {
      return value.toString();
    }
    if (type instanceof NumericType) {
      return ((Number) new Cast(expression, DataTypes.DoubleType, scala.Option.empty()).eval(null));
    }
    throw new IllegalArgumentException(function + " takes no value of the type " + type.sql());
  }

  /** The results of a search as a table. */
  public static final class ResultTable implements Table, SupportsRead {
    private final Map<String, Object> answer;
    private final StructType schema;

    ResultTable(Map<String, Object> answer) {
      this.answer = answer;
      this.schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    }

    public String name() {
      return (String) answer.get(Protocol.DISPLAY_NAME);
    }

    @SuppressWarnings("deprecation") // Table declares it without a default in Spark 4.0.
    public StructType schema() {
      return schema;
    }

    public Set<TableCapability> capabilities() {
      return new HashSet<>(Collections.singletonList(TableCapability.BATCH_READ));
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new ResultScanBuilder(this);
    }
  }

  /** Builds Spark's own scan with the required columns, and at least one, so that rows can be counted. */
  public static final class ResultScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final ResultTable table;
    private StructType readSchema;

    ResultScanBuilder(ResultTable table) {
      this.table = table;
      this.readSchema = table.schema;
    }

    public void pruneColumns(StructType required) {
      StructField[] fields = table.schema.fields();
      readSchema = required.length() > 0 ? required : new StructType(new StructField[] {fields[fields.length - 1]});
    }

    public Scan build() {
      CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(Json.texts(table.answer.get(Protocol.OPTIONS)));
      Scan scan = Shim.tableOf(Bridge.source(), readSchema).newScanBuilder(options).build();
      return new ResultScan(scan, readSchema, table.answer);
    }
  }

  /** A scan that describes the search, and estimates its number of rows. */
  public static final class ResultScan implements Scan, SupportsReportStatistics {
    private final Scan scan;
    private final StructType schema;
    private final Map<String, Object> answer;

    ResultScan(Scan scan, StructType schema, Map<String, Object> answer) {
      this.scan = scan;
      this.schema = schema;
      this.answer = answer;
    }

    public StructType readSchema() {
      return schema;
    }

    public String description() {
      return (String) answer.get(Protocol.PLAN);
    }

    public Batch toBatch() {
      return scan.toBatch();
    }

    public CustomMetric[] supportedCustomMetrics() {
      return scan.supportedCustomMetrics();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return scan.reportDriverMetrics();
    }

    public Statistics estimateStatistics() {
      Number rows = (Number) answer.get(Protocol.ROWS);
      return rows == null ? new RowEstimate(-1, 0) : new RowEstimate(rows.longValue(), schema.defaultSize());
    }
  }

  /** The number of rows of a search; unknown if negative. */
  public static final class RowEstimate implements Statistics {
    private final long rows;
    private final long width;

    RowEstimate(long rows, long width) {
      this.rows = rows;
      this.width = width;
    }

    public OptionalLong sizeInBytes() {
      return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows * width);
    }

    public OptionalLong numRows() {
      return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows);
    }
  }
}
