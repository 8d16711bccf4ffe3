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
 * A search for each row of another relation: {@code FROM q, LATERAL vector_search('t', 'v', q.vector, k)}.
 *
 * <p>The same holds for text_search with the words, and for hybrid_search with words, vector or both. Spark resolves
 * the call to a Generate, as for every table function in LATERAL. LanceStatements replaces the Generate by the node of
 * this class. The node hands the rows to the driver's Python as a DataFrame, and gets a DataFrame with the results.
 * The tasks are those of that DataFrame.
 */
public final class LanceLateral {

  private static final Pattern LEFT = Pattern.compile("\\bLEFT\\b", Pattern.CASE_INSENSITIVE);

  private LanceLateral() {}

  // Whether an argument is a value of the row that a function is called for, or of a query.
  public static boolean isOfRow(Expression argument) {
    boolean result = argument instanceof OuterReference || argument instanceof ScalarSubquery;
    for (Expression child : Seqs.view(argument.children())) {
      result = result || isOfRow(child);
    }
    return result;
  }

  // Whether a value can be a vector, or a list of vectors.
  public static boolean isVector(DataType type) {
    DataType of = type instanceof ArrayType ? ((ArrayType) type).elementType() : null;
    return of instanceof NumericType || (of instanceof ArrayType && ((ArrayType) of).elementType() instanceof NumericType);
  }

  // The relation of the rows that a search finds for a row.
  //
  // answer: Python's description of the search; ofRow: name of an argument -> its value; output: the columns found.
  public static LogicalPlan relation(Map<String, Object> answer, Map<String, Expression> ofRow, Seq<Attribute> output) {
    StructType schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    Seq<Expression> values = Seqs.empty();
    for (Expression value : ofRow.values()) {
      values = Seqs.append(values, value);
    }
    Search search = new Search(answer, new ArrayList<>(ofRow.keySet()));
    UserDefinedGenerator generator = new UserDefinedGenerator(schema, Seqs.function(search), values);
    LogicalPlan row = new OneRowRelation();
    if (mayBeOuter()) {
      row = new Project(Seqs.empty(), Range$.MODULE$.apply(0L, 1L, 1L, 1));
    }
    return new Generate(generator, Seqs.empty(), false, scala.Option.empty(), output, row);
  }

  // Whether the search may stand behind LEFT JOIN LATERAL. Spark's optimizer takes one with a generator over a relation
  // of one row for an inner join, and loses rows; over a range it keeps them, but sorts and joins the vectors for it.
  private static boolean mayBeOuter() {
    scala.Option<String> text = CurrentOrigin$.MODULE$.get().sqlText();
    return text.isEmpty() || LEFT.matcher((String) text.get()).find();
  }

  /** What the generator is to find. It is never called: nothing runs that the planner has not replaced. */
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

  // The node for a search, with the columns that are needed of it; null if a plan is none.
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

  /** Finds rows for the values in the last columns of its child's, and puts them behind the child's other columns. */
  public static final class Node extends SparkPlan {
    private static final long serialVersionUID = 1L;
    private final SearchInfo info;
    private final SparkPlan child;

    public Node(SearchInfo info, SparkPlan child) {
      this.info = info;
      this.child = child;
    }

    /** A search, the columns that come along, and those that are wanted. */
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
      question.put(Protocol.SEARCH, info.search.answer.get(Protocol.ALWAYS));
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

    // What executors get where a task refers to the nodes below its own, whose columns it asks for: they have no class
    // of ours, and find nothing.
    public Object writeReplace() {
      return new ProjectExec(Seqs.<NamedExpression>cast(output()), child);
    }

    public String nodeName() {
      return "LanceSearchEach";
    }

    public String simpleString(int most) {
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
