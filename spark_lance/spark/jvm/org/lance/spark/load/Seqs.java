package org.lance.spark.load;

import java.util.Collection;
import java.util.List;
import scala.Function1;
import scala.Option;
import scala.PartialFunction;
import scala.collection.immutable.List$;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Scala's sequences and functions in Java's terms.
 *
 * <p>Scala's collections are covariant and its functions contravariant. Java's types are neither, so the casts are
 * here.
 */
@SuppressWarnings("unchecked") // Janino and the JVM do not check type arguments.
public final class Seqs {
  private Seqs() {}

  /** Returns an empty sequence. */
  public static <T> Seq<T> empty() {
    return (Seq<T>) List$.MODULE$.empty();
  }

  /** Returns a sequence of one element. */
  public static <T> Seq<T> of(T element) {
    return (Seq<T>) empty().appended(element);
  }

  /** Returns a sequence with one more element. */
  public static <T> Seq<T> append(Seq<T> elements, T element) {
    return (Seq<T>) elements.appended(element);
  }

  /** Returns a copy of a collection, which does not change with it. */
  public static <T> Seq<T> copy(Collection<? extends T> elements) {
    return ((scala.collection.Iterable<T>) CollectionConverters.asScala((Iterable<T>) elements)).toList();
  }

  /** Returns a view of a sequence, for loops. */
  public static <T> List<T> view(scala.collection.Seq<T> elements) {
    return CollectionConverters.asJava(elements);
  }

  /** Returns a sequence by another type of its elements: Scala's sequences are covariant, Java's types are not. */
  public static <T> Seq<T> cast(Seq<?> elements) {
    return (Seq<T>) elements;
  }

  /** Returns a map by the types of its keys and values. */
  public static <K, V> scala.collection.Map<K, V> map(Object map) {
    return (scala.collection.Map<K, V>) map;
  }

  /** Returns a map with another value of a key. */
  public static <K, V> Map<K, V> updated(Map<K, V> map, K key, V value) {
    return (Map<K, V>) map.updated(key, value);
  }

  /** Returns a function by the types that a method of Spark declares. */
  public static <A, B> Function1<A, B> function(Function1<?, ?> function) {
    return (Function1<A, B>) function;
  }

  /** Returns a partial function by the types that a method of Spark declares. */
  public static <A, B> PartialFunction<A, B> partial(PartialFunction<?, ?> function) {
    return (PartialFunction<A, B>) function;
  }

  /** Returns an option by another type of its value. */
  public static <T> Option<T> option(Object option) {
    return (Option<T>) option;
  }
}
