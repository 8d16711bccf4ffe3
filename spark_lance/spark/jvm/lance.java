// The format `lance` for those who asked for all save modes: with it, df.write.format("lance").save(path) makes tables.
//
// Spark asks for a class of the format's own name before it asks for DefaultSource in a package of that name, so this
// one comes first once it is published. It tells Spark of a catalog, and only formats that do so may create tables by
// path. The price: Spark refuses a schema that is given to a read of such a format.
//
// Compiled in the driver by Janino.

import lance.DefaultSource;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsCatalogOptions;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.OptionalUnit;

public final class lance extends DefaultSource implements SupportsCatalogOptions {
  private static final OptionalUnit UNIT =
      OptionalUnit.find("org.lance.spark.catalog.LanceSaveModes", lance.class.getClassLoader());

  public lance() {
  }

  public Identifier extractIdentifier(CaseInsensitiveStringMap options) {
    return (Identifier) call("identifier", new Object[] {this, options});
  }

  public String extractCatalog(CaseInsensitiveStringMap options) {
    return (String) call("catalog", new Object[0]);
  }

  private static Object call(String name, Object[] arguments) {
    if (UNIT == null) {
      throw new IllegalStateException("the save modes of Lance do not fit this release of Spark");
    }
    return UNIT.call(name, arguments);
  }
}
