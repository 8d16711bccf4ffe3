// Scala's sequences in Java's terms.
//
// Compiled in the driver by Janino.

package org.lance.spark.load;

import java.util.Collection;
import java.util.List;
import scala.collection.immutable.List$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

public final class Seqs {
  private Seqs() {}

  public static <T> Seq<T> empty() {
    return (Seq<T>) List$.MODULE$.empty();
  }

  public static <T> Seq<T> of(T element) {
    return (Seq<T>) empty().appended(element);
  }

  /** Returns a copy of a collection: Spark keeps it. */
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
}
