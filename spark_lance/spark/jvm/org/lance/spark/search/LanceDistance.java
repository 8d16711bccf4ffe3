package org.lance.spark.search;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.ml.linalg.Vector;
import org.apache.spark.ml.linalg.Vectors;
import org.apache.spark.sql.catalyst.expressions.ArrayContains;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.ObjectType;
import org.lance.spark.load.Seqs;

/**
 * The functions l2_distance, cosine_distance and dot_distance of two arrays of numbers.
 *
 * <pre>
 *     l2        sum (a - b)^2, not its root
 *     cosine    1 - (a, b) / (|a| |b|), 1 where a length is 0
 *     dot       1 - (a, b)
 * </pre>
 *
 * <p>A call becomes Spark's own expressions on Spark's own vectors (org.apache.spark.ml.linalg), so executors need no
 * class of this package. Sums are of doubles. The result is a float, as the column _distance of a search. An array
 * that is null, or contains a null, has no distance. A constant array becomes a vector once.
 */
@SuppressWarnings("rawtypes") // Janino makes no bridge methods.
public final class LanceDistance extends scala.runtime.AbstractFunction1 {
  private static final DataType VECTOR = new ObjectType(Vector.class);
  private static final DataType DOUBLES = DataTypes.createArrayType(DataTypes.DoubleType);

  private final String function;

  /**
   * Creates the builder of a function.
   *
   * @param function the name of the function
   * @param catalog not used; LanceLazyFunctions passes the same parameters to all functions
   */
  public LanceDistance(String function, String catalog) {
    this.function = function;
  }

  /**
   * Returns the distance of two arguments.
   *
   * @param expressions a sequence of two expressions
   */
  public Object apply(Object expressions) {
    scala.collection.immutable.Seq<Expression> arguments = Seqs.cast((scala.collection.immutable.Seq<?>) expressions);
    if (arguments.size() != 2) {
      throw new IllegalArgumentException(function + " takes two arrays of numbers, not " + arguments.size() + " values");
    }
    Expression left = doubles((Expression) arguments.apply(0));
    Expression right = doubles((Expression) arguments.apply(1));
    Expression distance = new Cast(distance(vector(left), vector(right)), DataTypes.FloatType, scala.Option.empty());
    return nullIfNullInside(left, nullIfNullInside(right, distance));
  }

  private Expression distance(Expression left, Expression right) {
    Expression[] vectors = {left, right};
    if (function.equals("l2_distance")) {
      return call(Vectors.class, "sqdist", DataTypes.DoubleType, vectors);
    }
    Expression product =
        new Invoke(left, "dot", DataTypes.DoubleType, seq(new Expression[] {right}), none(), true, false, true);
    if (function.equals("cosine_distance")) {
      // Never 0, so the division is defined.
      Expression[] lengths = {new Multiply(length(left), length(right)), number(Double.MIN_VALUE)};
      product = new Divide(product, call(Math.class, "max", DataTypes.DoubleType, lengths));
    }
    return new Subtract(number(1), product);
  }

  private static Expression length(Expression vector) {
    return call(Vectors.class, "norm", DataTypes.DoubleType, new Expression[] {vector, number(2)});
  }

  private Expression doubles(Expression array) {
    DataType type = array.dataType();
    DataType element = type instanceof ArrayType ? ((ArrayType) type).elementType() : type;
    if (type instanceof NullType) {
      return new Cast(array, DOUBLES, scala.Option.empty());
    }
    if (!(type instanceof ArrayType) || !(element instanceof NumericType)) {
      throw new IllegalArgumentException(function + " takes two arrays of numbers, not " + type.sql());
    }
    boolean nulls = ((ArrayType) type).containsNull();
    DataType doublesType = DataTypes.createArrayType(DataTypes.DoubleType, nulls);
    return element == DataTypes.DoubleType ? array : new Cast(array, doublesType, scala.Option.empty());
  }

  private static Expression vector(Expression doubles) {
    if (doubles.foldable()) {
      ArrayData list = (ArrayData) doubles.eval(null);
      return new Literal(list == null ? null : Vectors.dense(list.toDoubleArray()), VECTOR);
    }
    DataType plain = new ObjectType(double[].class);
    Expression values =
        new Invoke(doubles, "toDoubleArray", plain, seq(new Expression[0]), none(), true, false, true);
    return call(Vectors.class, "dense", VECTOR, new Expression[] {values});
  }

  // If the array contains a null, array_contains is null and not false. If it finds a NaN before, the distance is NaN
  // in any case.
  private static Expression nullIfNullInside(Expression array, Expression distance) {
    if (!((ArrayType) array.dataType()).containsNull()) {
      return distance;
    }
    Expression containsNaN = new ArrayContains(array, number(Double.NaN));
    return new If(new IsNull(containsNaN), new Literal(null, DataTypes.FloatType), distance);
  }

  private static Expression number(double value) {
    return new Literal(Double.valueOf(value), DataTypes.DoubleType);
  }

  private static Expression call(Class<?> owner, String name, DataType type, Expression[] arguments) {
    return new StaticInvoke(owner, type, name, seq(arguments), none(), true, false, true, scala.Option.empty());
  }

  private static scala.collection.immutable.Seq<AbstractDataType> none() {
    return Seqs.empty();
  }

  private static scala.collection.immutable.Seq<Expression> seq(Expression[] expressions) {
    return Seqs.copy(Arrays.asList(expressions));
  }
}
