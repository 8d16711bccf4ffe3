package org.lance.spark.search;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.OuterReference;
import org.apache.spark.sql.catalyst.expressions.ScalarSubquery;
import org.apache.spark.sql.catalyst.expressions.UserDefinedGenerator;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range$;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Protocol;
import org.lance.spark.load.Seqs;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * Plans a search for each row of another relation: {@code FROM q, LATERAL vector_search('t', 'v', q.vector, k)}.
 *
 * <p>The same holds for text_search with the words, and for hybrid_search with words, vector or both. Spark resolves
 * the call to a Generate, as for every table function in LATERAL. LanceStatements replaces the Generate by the node
 * of this class. The node passes the rows to the driver's Python as a DataFrame, and receives a DataFrame with the
 * results, whose tasks it runs.
 */
public final class LanceLateral {

  private static final Pattern LEFT = Pattern.compile("\\bLEFT\\b", Pattern.CASE_INSENSITIVE);

  private LanceLateral() {}

  /** Returns whether an argument comes from the outer row, or from a subquery. */
  public static boolean isOfRow(Expression argument) {
    boolean result = argument instanceof OuterReference || argument instanceof ScalarSubquery;
    for (Expression child : Seqs.view(argument.children())) {
      result = result || isOfRow(child);
    }
    return result;
  }

  /** Returns whether a type is a vector or a list of vectors. */
  public static boolean isVector(DataType type) {
    DataType element = type instanceof ArrayType ? ((ArrayType) type).elementType() : null;
    return element instanceof NumericType
        || (element instanceof ArrayType && ((ArrayType) element).elementType() instanceof NumericType);
  }

  /**
   * Returns the relation of the results of a search for each outer row.
   *
   * @param answer Python's description of the search
   * @param outerArguments name of an argument -> its value from the outer row
   * @param output the columns of the results
   */
  public static LogicalPlan relation(Map<String, Object> answer, Map<String, Expression> outerArguments, Seq<Attribute> output) {
    StructType schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    Seq<Expression> values = Seqs.empty();
    for (Expression value : outerArguments.values()) {
      values = Seqs.append(values, value);
    }
    Search search = new Search(answer, new ArrayList<>(outerArguments.keySet()));
    UserDefinedGenerator generator = new UserDefinedGenerator(schema, Seqs.function(search), values);
    LogicalPlan row = new OneRowRelation();
    if (mayBeOuter()) {
      row = new Project(Seqs.empty(), Range$.MODULE$.apply(0L, 1L, 1L, 1));
    }
    return new Generate(generator, Seqs.empty(), false, scala.Option.empty(), output, row);
  }

  /**
   * Returns whether the search may be the right side of LEFT JOIN LATERAL. Spark's optimizer takes a generator over a
   * relation of one row for an inner join, and loses rows. Over a range it keeps them, but sorts and joins the
   * vectors.
   */
  private static boolean mayBeOuter() {
    scala.Option<String> text = CurrentOrigin$.MODULE$.get().sqlText();
    return text.isEmpty() || LEFT.matcher((String) text.get()).find();
  }

  /** The search of a generator. It is never called, because the planner replaces the generator. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Search extends scala.runtime.AbstractFunction1 implements Serializable {
    private static final long serialVersionUID = 1L;
    final transient Map<String, Object> answer;
    final transient List<String> argumentNames;

    Search(Map<String, Object> answer, List<String> argumentNames) {
      this.answer = answer;
      this.argumentNames = argumentNames;
    }

    public Object apply(Object row) {
      throw new UnsupportedOperationException("a search for each row was not planned; use LanceTable.searchBatch");
    }
  }

  /** Returns the physical node of a search, with the columns that the plan needs; null for other plans. */
  public static SparkPlan planPhysical(LogicalPlan plan) {
    if (search(plan) != null) {
      Generate generate = (Generate) plan;
      return node(generate, generate.generatorOutput());
    }
    if (!(plan instanceof Project) || search(((Project) plan).child()) == null) {
      return null;
    }
    Generate generate = (Generate) ((Project) plan).child();
    AttributeSet references = ((Project) plan).references();
    Seq<Attribute> columns = Seqs.empty();
    for (Attribute column : Seqs.view(generate.generatorOutput())) {
      if (references.contains((NamedExpression) column)) {
        columns = Seqs.append(columns, column);
      }
    }
    return new ProjectExec(((Project) plan).projectList(), node(generate, columns));
  }

  private static Search search(LogicalPlan plan) {
    if (!(plan instanceof Generate) || !(((Generate) plan).generator() instanceof UserDefinedGenerator)) {
      return null;
    }
    Object function = ((UserDefinedGenerator) ((Generate) plan).generator()).function();
    return function instanceof Search && !((Generate) plan).outer() ? (Search) function : null;
  }

  private static SparkPlan node(Generate generate, Seq<Attribute> resultColumns) {
    Search search = search(generate);
    Seq<Expression> values = ((UserDefinedGenerator) generate.generator()).children();
    Seq<Attribute> childColumns = generate.requiredChildOutput();
    Seq<NamedExpression> projectList = Seqs.cast(childColumns);
    for (int i = 0; i < values.size(); i++) {
      String name = (String) search.argumentNames.get(i);
      Expression value = (Expression) values.apply(i);
      projectList = Seqs.append(
          projectList,
          new Alias(value, name, NamedExpression.newExprId(), Seqs.empty(), scala.Option.empty(), Seqs.empty()));
    }
    return new Node(new Node.SearchInfo(search, childColumns, resultColumns), new PlanLater(new Project(projectList, generate.child())));
  }

  /**
   * Searches for the values in the last columns of its child, and appends the results to the child's other columns.
   */
  public static final class Node extends SparkPlan {
    private static final long serialVersionUID = 1L;
    private final SearchInfo info;
    private final SparkPlan child;

    public Node(SearchInfo info, SparkPlan child) {
      this.info = info;
      this.child = child;
    }

    /** A search, the columns of the child that are passed on, and the columns of the results that are needed. */
    public static final class SearchInfo {
      final Search search;
      final Seq<Attribute> childColumns;
      final Seq<Attribute> resultColumns;

      SearchInfo(Search search, Seq<Attribute> childColumns, Seq<Attribute> resultColumns) {
        this.search = search;
        this.childColumns = childColumns;
        this.resultColumns = resultColumns;
      }

      public String toString() {
        return (String) search.answer.get(Protocol.PLAN);
      }
    }

    public RDD<InternalRow> doExecute() {
      SparkSession session = (SparkSession) session();
      StructField[] fields = new StructField[child.output().size()];
      for (int i = 0; i < fields.length; i++) {
        Attribute column = (Attribute) child.output().apply(i);
        fields[i] = new StructField("c" + i, column.dataType(), true, column.metadata());
      }
      Map<String, Object> question = Bridge.question(Protocol.SEARCH_EACH);
      question.put(Protocol.SEARCH, info.search.answer.get(Protocol.OPTIONS));
      question.put(Protocol.ARGUMENTS, info.search.argumentNames);
      List<Object> columns = new ArrayList<>();
      for (Attribute attribute : Seqs.view(info.resultColumns)) {
        columns.add(attribute.name());
      }
      question.put(Protocol.COLUMNS, columns);
      Map<String, Serializable> subject = new HashMap<>();
      subject.put(Protocol.SESSION, session);
      subject.put(Protocol.ROWS, session.internalCreateDataFrame(child.execute(), new StructType(fields), false));
      Bridge.ask(question, subject);
      return ((Dataset<?>) subject.get(Protocol.RESULT)).queryExecution().toRdd();
    }

    // Tasks that refer to this node for its columns are sent a projection, because executors have no class of this
    // package.
    public Object writeReplace() {
      return new ProjectExec(Seqs.<NamedExpression>cast(output()), child);
    }

    public String nodeName() {
      return "LanceSearchEach";
    }

    public String simpleString(int maxFields) {
      return "LanceSearchEach [" + info + "]";
    }

    public Seq<Attribute> output() {
      return Seqs.cast((Seq<?>) info.childColumns.appendedAll(info.resultColumns));
    }

    public Seq<SparkPlan> children() {
      return Seqs.of(child);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Node(info, (SparkPlan) children.apply(0));
    }

    public boolean canEqual(Object other) {
      return other instanceof Node;
    }

    public int productArity() {
      return 2;
    }

    public Object productElement(int which) {
      return which == 0 ? (Object) info : child;
    }
  }
}
