package org.lance.spark.rowlevel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.ArrayTransform;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LambdaFunction;
import org.apache.spark.sql.catalyst.expressions.MapFromArrays;
import org.apache.spark.sql.catalyst.expressions.MapKeys;
import org.apache.spark.sql.catalyst.expressions.MapValues;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.InsertAction;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.CharType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.VarcharType;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import scala.Option;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * The values that UPDATE and MERGE assign, by Spark's own rules of store assignment.
 *
 * <p>These rules match structs by the names of their fields, allow the casts of INSERT, and check NOT NULL. For a
 * table without row-level operations Spark casts any value to the column's type, and a struct by position.
 * LanceStatements calls this class in the analyzer. It removes that cast, and lets Spark resolve the value as for a
 * table with row-level operations.
 */
public final class LanceAssignments {
  private LanceAssignments() {}

  /**
   * Resolves the values of UPDATE or MERGE by store assignment.
   *
   * @return the statement itself if Spark has not resolved its children yet, or if it changes no Lance table
   */
  public static LogicalPlan resolveValues(LogicalPlan plan) {
    boolean isMerge = plan instanceof MergeIntoTable;
    LogicalPlan table = isMerge ? ((MergeIntoTable) plan).targetTable() : ((UpdateTable) plan).table();
    if (!plan.childrenResolved()) {
      return plan;
    }
    LanceTarget target = new LanceTarget(isMerge ? "MERGE" : "UPDATE");
    try {
      if (!target.resolve(table)) {
        return plan;
      }
    } catch (UnsupportedOperationException problem) {
      return plan; // the rewrite of the statement reports it
    }
    if (!isReady(plan, target) || (isMerge && changesSchema((MergeIntoTable) plan, target))) {
      return plan;
    }
    return (LogicalPlan) plan.transformExpressions(Seqs.partial(new ValueResolution(target, false)));
  }

  /**
   * Returns whether Spark may still add columns to the table. It asks about the statement without Spark's casts,
   * because a cast that fails would hide the answer.
   */
  private static boolean changesSchema(MergeIntoTable merge, LanceTarget target) {
    return merge.withSchemaEvolution()
        && Shim.changesSchema((MergeIntoTable) merge.transformExpressions(Seqs.partial(new ValueResolution(target, true))));
  }

  /** Returns whether Spark has resolved all values; casts that fail do not count. */
  private static boolean isReady(LogicalPlan plan, LanceTarget target) {
    List<Assignment> assignments = new ArrayList<>();
    if (plan instanceof UpdateTable) {
      add(((UpdateTable) plan).assignments(), assignments);
    } else {
      MergeIntoTable merge = (MergeIntoTable) plan;
      Seq<?>[] actionLists = {merge.matchedActions(), merge.notMatchedActions(), merge.notMatchedBySourceActions()};
      for (Seq<?> actions : actionLists) {
        for (Object action : Seqs.view(actions)) {
          if (action instanceof UpdateAction) {
            add(((UpdateAction) action).assignments(), assignments);
          } else if (action instanceof InsertAction) {
            add(((InsertAction) action).assignments(), assignments);
          }
        }
      }
    }
    for (Assignment assignment : assignments) {
      if (!assignment.key().resolved()) {
        return false; // it has no type yet
      }
      Expression value = withoutCasts(withoutLengthChecks(assignment.value(), rawType(assignment.key(), target)));
      if (!value.resolved()) {
        return false;
      }
      // Spark has not cast this value yet.
      if (value == assignment.value() && !(value instanceof Value) && !value.dataType().equals(assignment.key().dataType())) {
        return false;
      }
    }
    return true;
  }

  private static void add(Seq<Assignment> assignments, List<Assignment> result) {
    for (Assignment assignment : Seqs.view(assignments)) {
      result.add(assignment);
    }
  }

  /** Returns a value without the casts and NOT NULL checks that Spark has put around it. */
  public static Expression withoutCasts(Expression value) {
    if (value instanceof AssertNotNull) {
      return withoutCasts(((AssertNotNull) value).child());
    }
    if (value instanceof Cast && value.getTagValue(Cast.BY_TABLE_INSERTION()).isDefined()) {
      return withoutCasts(((Cast) value).child());
    }
    return value;
  }

  /**
   * Returns the declared type of a column or field, with CHAR and VARCHAR. Spark has replaced these by STRING in the
   * plan.
   */
  @SuppressWarnings("deprecation") // Spark has no public method from columns to a schema.
  private static DataType rawType(Expression key, LanceTarget target) {
    DataType declaredType = key.dataType();
    if (key instanceof GetStructField) {
      DataType parent = rawType(((GetStructField) key).child(), target);
      declaredType = parent instanceof StructType ? ((StructType) parent).fields()[((GetStructField) key).ordinal()].dataType() : declaredType;
    } else if (key instanceof Attribute && target.names.containsKey(((Attribute) key).exprId())) {
      StructField field = target.relation.table().schema().apply((String) target.names.get(((Attribute) key).exprId()));
      Option<DataType> rawDeclaration = CharVarcharUtils$.MODULE$.getRawType(field.metadata());
      declaredType = rawDeclaration.isDefined() ? (DataType) rawDeclaration.get() : field.dataType();
    }
    // Blobs have another type in the plan: they are read as descriptions.
    return CharVarcharUtils$.MODULE$.replaceCharVarcharWithString(declaredType).equals(key.dataType()) ? declaredType : key.dataType();
  }

  /**
   * Returns a value without Spark's length checks of CHAR and VARCHAR (CharVarcharUtils.stringLengthCheck). They
   * rebuild structs, arrays and maps, and so would keep a cast of a struct by position.
   */
  private static Expression withoutLengthChecks(Expression value, DataType type) {
    if (type instanceof CharType || type instanceof VarcharType) {
      boolean checks = value instanceof StaticInvoke && ((StaticInvoke) value).functionName().endsWith("TypeWriteSideCheck");
      return checks ? (Expression) ((StaticInvoke) value).arguments().apply(0) : value;
    }
    if (type instanceof StructType) {
      return structWithoutLengthChecks(value, (StructType) type);
    }
    if (type instanceof ArrayType && value instanceof ArrayTransform
        && ((ArrayTransform) value).function() instanceof LambdaFunction) {
      LambdaFunction function = (LambdaFunction) ((ArrayTransform) value).function();
      Expression item = withoutLengthChecks(function.function(), ((ArrayType) type).elementType());
      return item.equals(function.arguments().apply(0)) ? ((ArrayTransform) value).argument() : value;
    }
    if (type instanceof MapType && value instanceof MapFromArrays) {
      MapType map = (MapType) type;
      Expression keys = withoutLengthChecks(((MapFromArrays) value).left(), new ArrayType(map.keyType(), false));
      Expression values = withoutLengthChecks(((MapFromArrays) value).right(), new ArrayType(map.valueType(), true));
      boolean same = keys instanceof MapKeys && values instanceof MapValues
          && ((MapKeys) keys).child().equals(((MapValues) values).child());
      return same ? ((MapKeys) keys).child() : value;
    }
    return value;
  }

  /** Returns the struct that a value rebuilds field by field, in the same order; otherwise the value. */
  private static Expression structWithoutLengthChecks(Expression value, StructType type) {
    Expression constructor = value instanceof If ? ((If) value).falseValue() : value;
    if (!(constructor instanceof CreateNamedStruct) || (constructor != value && !(((If) value).predicate() instanceof IsNull))) {
      return value;
    }
    Seq<Expression> fields = ((CreateNamedStruct) constructor).valExprs();
    Expression struct = null;
    boolean checks = false;
    for (int i = 0; i < fields.size() && fields.size() <= type.length(); i++) {
      Expression field = withoutLengthChecks((Expression) fields.apply(i), type.fields()[i].dataType());
      checks = checks || field != fields.apply(i);
      boolean isOfStruct = field instanceof GetStructField && ((GetStructField) field).ordinal() == i
          && (struct == null || ((GetStructField) field).child().equals(struct));
      if (!isOfStruct) {
        return value;
      }
      struct = ((GetStructField) field).child();
    }
    if (struct == null) {
      return value;
    }
    String[] names = ((StructType) struct.dataType()).fieldNames();
    // Spark checks the fields that a column had before its evolution, and drops those that were added.
    int count = checks ? Math.min(fields.size(), names.length) : names.length;
    return Arrays.equals(Arrays.copyOf(names, count), ((StructType) constructor.dataType()).fieldNames()) ? struct : value;
  }

  private static Expression resolveValue(Assignment assignment, LanceTarget target) {
    Expression key = assignment.key();
    DataType declaredType = rawType(key, target);
    Expression value = withoutCasts(withoutLengthChecks(assignment.value(), declaredType));
    // Blobs are read as descriptions and written as bytes.
    boolean isBlob = key.dataType() instanceof StructType && value.dataType() instanceof BinaryType;
    if (value instanceof Value || isBlob) {
      return value instanceof Value ? value : assignment.value();
    }
    SQLConf conf = (SQLConf) SQLConf$.MODULE$.get();
    if (conf.storeAssignmentPolicy().toString().equals("LEGACY")) {
      Platform.throwException(Shim.legacyAssignment());
    }
    // The declared type makes Spark check the lengths of CHAR and VARCHAR in structs, arrays and maps, too.
    Attribute column = DataTypeUtils$.MODULE$.toAttribute(
        new StructField(name(key), declaredType, key.nullable(), org.apache.spark.sql.types.Metadata.empty()));
    Problems problems = new Problems();
    Expression result = Shim.resolveUpdate(target.relation.table().name(), value, column, conf, problems, path(key));
    if (!problems.messages.isEmpty()) {
      Platform.throwException(Shim.invalidAssignment(assignment, problems.messages));
    }
    while (result instanceof Alias) {
      result = ((Alias) result).child();
    }
    return new Value(result, key.dataType(), key.nullable() && result.nullable());
  }

  private static String name(Expression key) {
    return key instanceof Attribute ? ((Attribute) key).name() : LanceRenaming.field(key).toString();
  }

  private static Seq<String> path(Expression key) {
    Seq<String> parents = key instanceof GetStructField ? path(((GetStructField) key).child()) : Seqs.<String>empty();
    return Seqs.append(parents, name(key));
  }

  /** Collects Spark's error messages about a value. */
  @SuppressWarnings("rawtypes") // Janino makes no bridge methods.
  public static final class Problems extends scala.runtime.AbstractFunction1 {
    final List<String> messages = new ArrayList<>();

    public Object apply(Object problem) {
      messages.add((String) problem);
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  /** Replaces the values of assignments by resolved values, or only removes Spark's casts. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class ValueResolution extends scala.runtime.AbstractPartialFunction {
    private final LanceTarget target;
    private final boolean strips;

    ValueResolution(LanceTarget target, boolean strips) {
      this.target = target;
      this.strips = strips;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof Assignment;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      Assignment assignment = (Assignment) node;
      Expression value = strips
          ? withoutCasts(withoutLengthChecks(assignment.value(), rawType(assignment.key(), target))) : resolveValue(assignment, target);
      return value == assignment.value() ? assignment : new Assignment(assignment.key(), value);
    }
  }

  /**
   * A resolved value in the type of its column. Spark sees it as deterministic, because Spark refuses rand() in
   * statements that it may partly repeat. Here the job that writes a value computes it once.
   */
  public static final class Value extends Expression {
    private final Expression child;
    private final DataType type;
    private final boolean nullable;

    public Value(Expression child, DataType type, boolean nullable) {
      this.child = child;
      this.type = type;
      this.nullable = nullable;
    }

    public Expression child() {
      return child;
    }

    public DataType dataType() {
      return type;
    }

    public boolean nullable() {
      return nullable;
    }

    public boolean foldable() {
      return false;
    }

    public boolean deterministic() {
      return true;
    }

    public Object eval(InternalRow row) {
      return child.eval(row);
    }

    public ExprCode doGenCode(CodegenContext context, ExprCode code) {
      return child.genCode(context);
    }

    public Seq<Expression> children() {
      return Seqs.of(child);
    }

    public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
      return new Value((Expression) children.apply(0), type, nullable);
    }

    public boolean canEqual(Object other) {
      return other instanceof Value;
    }

    public boolean equals(Object other) {
      return other instanceof Value && ((Value) other).child.equals(child) && ((Value) other).type.equals(type);
    }

    public int hashCode() {
      return child.hashCode();
    }

    public int productArity() {
      return 3;
    }

    public Object productElement(int which) {
      return which == 0 ? (Object) child : which == 1 ? (Object) type : Boolean.valueOf(nullable);
    }
  }
}
