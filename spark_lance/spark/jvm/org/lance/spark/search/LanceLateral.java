// A search for each row of another relation: FROM q, LATERAL vector_search('t', 'v', q.vector, k), and so with the words
// of text_search, and words, vector or both of hybrid_search.
//
// Spark resolves the call to a Generate, as it does with every table function in LATERAL, which its optimizer puts on
// top of the rows that it is called for. The generator stands only for the search: the planner puts a node in its
// place that hands the rows, with what is searched for, to the driver's Python as a DataFrame, and gets one of the rows
// that are found. Tasks are those of that DataFrame.
//
// Compiled in the driver by Janino.

package org.lance.spark.search;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.rdd.RDD;
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
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

public final class LanceLateral {
  private static final Seq NONE = (Seq) scala.collection.immutable.Nil$.MODULE$;

  private static final Pattern LEFT = Pattern.compile("\\bLEFT\\b", Pattern.CASE_INSENSITIVE);

  private LanceLateral() {}

  // Whether an argument is a value of the row that a function is called for, or of a query.
  public static boolean isOfRow(Expression argument) {
    boolean found = argument instanceof OuterReference || argument instanceof ScalarSubquery;
    for (int i = 0; i < argument.children().size() && !found; i++) {
      found = isOfRow((Expression) argument.children().apply(i));
    }
    return found;
  }

  // Whether a value can be a vector, or a list of vectors.
  public static boolean isVector(DataType type) {
    DataType of = type instanceof ArrayType ? ((ArrayType) type).elementType() : null;
    return of instanceof NumericType || (of instanceof ArrayType && ((ArrayType) of).elementType() instanceof NumericType);
  }

  // The relation of the rows that a search finds for a row.
  //
  // answer: Python's description of the search; ofRow: name of an argument -> its value; output: the columns found.
  public static LogicalPlan relation(Map answer, Map ofRow, Seq output) {
    StructType schema = (StructType) DataType.fromJson((String) answer.get(Protocol.SCHEMA));
    Seq values = NONE;
    for (Iterator i = ofRow.values().iterator(); i.hasNext(); ) {
      values = (Seq) values.appended(i.next());
    }
    Search search = new Search(answer, new ArrayList(ofRow.keySet()));
    UserDefinedGenerator generator = new UserDefinedGenerator(schema, search, values);
    LogicalPlan one = new OneRowRelation();
    if (mayBeOuter()) {
      one = new Project(NONE, Range$.MODULE$.apply(0L, 1L, 1L, 1));
    }
    return new Generate(generator, NONE, false, scala.Option.empty(), output, one);
  }

  // Whether the search may stand behind LEFT JOIN LATERAL. Spark's optimizer takes one with a generator over a relation
  // of one row for an inner join, and loses rows; over a range it keeps them, but sorts and joins the vectors for it.
  private static boolean mayBeOuter() {
    scala.Option text = CurrentOrigin$.MODULE$.get().sqlText();
    return text.isEmpty() || LEFT.matcher((String) text.get()).find();
  }

  /** What the generator is to find. It is never called: nothing runs that the planner has not replaced. */
  public static final class Search extends scala.runtime.AbstractFunction1 implements Serializable {
    final transient Map answer;
    final transient List given;

    Search(Map answer, List given) {
      this.answer = answer;
      this.given = given;
    }

    public Object apply(Object row) {
      throw new UnsupportedOperationException("a search for each row was not planned; use LanceTable.searchBatch");
    }
  }

  // The node for a search, with the columns that are needed of it; null if a plan is none.
  public static SparkPlan planned(LogicalPlan plan) {
    if (search(plan) != null) {
      Generate generate = (Generate) plan;
      return node(generate, generate.generatorOutput());
    }
    if (!(plan instanceof Project) || search(((Project) plan).child()) == null) {
      return null;
    }
    Generate generate = (Generate) ((Project) plan).child();
    AttributeSet used = ((Project) plan).references();
    Seq wanted = NONE;
    for (int i = 0; i < generate.generatorOutput().size(); i++) {
      if (used.contains((NamedExpression) generate.generatorOutput().apply(i))) {
        wanted = (Seq) wanted.appended(generate.generatorOutput().apply(i));
      }
    }
    return new ProjectExec(((Project) plan).projectList(), node(generate, wanted));
  }

  private static Search search(LogicalPlan plan) {
    if (!(plan instanceof Generate) || !(((Generate) plan).generator() instanceof UserDefinedGenerator)) {
      return null;
    }
    Object function = ((UserDefinedGenerator) ((Generate) plan).generator()).function();
    return function instanceof Search && !((Generate) plan).outer() ? (Search) function : null;
  }

  private static SparkPlan node(Generate generate, Seq wanted) {
    Search search = search(generate);
    Seq values = ((UserDefinedGenerator) generate.generator()).children();
    Seq kept = generate.requiredChildOutput();
    Seq asked = kept;
    for (int i = 0; i < values.size(); i++) {
      String name = (String) search.given.get(i);
      Expression value = (Expression) values.apply(i);
      asked = (Seq) asked.appended(
          new Alias(value, name, NamedExpression.newExprId(), NONE, scala.Option.empty(), NONE));
    }
    return new Node(new Node.About(search, kept, wanted), new PlanLater(new Project(asked, generate.child())));
  }

  /** Finds rows for the values in the last columns of its child's, and puts them behind the child's other columns. */
  public static final class Node extends SparkPlan {
    private final About about;
    private final SparkPlan child;

    public Node(About about, SparkPlan child) {
      this.about = about;
      this.child = child;
    }

    /** A search, the columns that come along, and those that are wanted. */
    public static final class About {
      final Search search;
      final Seq kept;
      final Seq wanted;

      About(Search search, Seq kept, Seq wanted) {
        this.search = search;
        this.kept = kept;
        this.wanted = wanted;
      }

      public String toString() {
        return (String) search.answer.get(Protocol.PLAN);
      }
    }

    public RDD doExecute() {
      SparkSession session = (SparkSession) session();
      StructField[] fields = new StructField[child.output().size()];
      for (int i = 0; i < fields.length; i++) {
        Attribute column = (Attribute) child.output().apply(i);
        fields[i] = new StructField("c" + i, column.dataType(), true, column.metadata());
      }
      Map question = Bridge.question(Protocol.SEARCH_EACH);
      question.put(Protocol.SEARCH, about.search.answer.get(Protocol.ALWAYS));
      question.put(Protocol.ARGUMENTS, about.search.given);
      List columns = new ArrayList();
      for (int i = 0; i < about.wanted.size(); i++) {
        columns.add(((Attribute) about.wanted.apply(i)).name());
      }
      question.put(Protocol.COLUMNS, columns);
      Map subject = new HashMap();
      subject.put(Protocol.SESSION, session);
      subject.put(Protocol.ROWS, session.internalCreateDataFrame(child.execute(), new StructType(fields), false));
      Bridge.ask(question, subject);
      return ((Dataset) subject.get(Protocol.RESULT)).queryExecution().toRdd();
    }

    // What executors get where a task refers to the nodes below its own, whose columns it asks for: they have no class
    // of ours, and find nothing.
    public Object writeReplace() {
      return new ProjectExec(output(), child);
    }

    public String nodeName() {
      return "LanceSearchEach";
    }

    public String simpleString(int most) {
      return "LanceSearchEach [" + about + "]";
    }

    public Seq output() {
      return (Seq) about.kept.appendedAll(about.wanted);
    }

    public Seq children() {
      return (Seq) NONE.appended(child);
    }

    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Node(about, (SparkPlan) children.apply(0));
    }

    public boolean canEqual(Object other) {
      return other instanceof Node;
    }

    public int productArity() {
      return 2;
    }

    public Object productElement(int which) {
      return which == 0 ? (Object) about : child;
    }
  }
}
