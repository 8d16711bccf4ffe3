import lance.DefaultSource;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsCatalogOptions;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.OptionalUnit;

/**
 * The format {@code lance} for sessions with all save modes: {@code df.write.format("lance").save(path)} creates tables.
 *
 * <p>Spark looks for a class with the format's name before it looks for DefaultSource, so a published class of this name
 * comes first. It names a catalog, because only formats with a catalog may create tables by path. The price: Spark
 * refuses a user's schema for reads of such a format.
 */
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
