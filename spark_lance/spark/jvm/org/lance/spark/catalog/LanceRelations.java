package org.lance.spark.catalog;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableOrView;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.catalyst.util.QuotingUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Seqs;
import org.lance.spark.shim.Shim;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Rewrites statements that Spark cannot resolve by itself: reads of changes, INSERT ... REPLACE USING, CREATE TABLE
 * ... LIKE, and views.
 *
 * <p>Spark loads a table by its name, and passes the options only to the scan. So a read of changes would have the
 * columns of the rows. LanceStatements calls these methods before Spark resolves names; each returns a plan.
 */
public final class LanceRelations {
  private LanceRelations() {}

  /**
   * Returns the relation of the changes of a Lance table.
   *
   * @return the name itself if it belongs to another table
   */
  public static LogicalPlan changes(UnresolvedRelation tableName) {
    LogicalPlan relation = SparkSession.active().sessionState().analyzer().execute(plain(tableName));
    ChangesReplacement replacement = new ChangesReplacement(tableName.options(), tableName.isStreaming());
    LogicalPlan changes = (LogicalPlan) relation.transformDown(Seqs.partial(replacement));
    return replacement.isReplaced ? changes : tableName;
  }

  /**
   * Turns INSERT ... REPLACE USING (columns) or ON condition into an overwrite with the option replaceUsing or
   * replaceOn.
   *
   * @return the statement itself if it is about another table
   */
  public static LogicalPlan replaceRows(LogicalPlan insert) {
    Object[] parts = new Object[insert.productArity()];
    boolean isLance = false;
    for (int i = 0; i < parts.length; i++) {
      Object part = insert.productElement(i);
      if (part instanceof UnresolvedRelation) {
        UnresolvedRelation tableName = (UnresolvedRelation) part;
        isLance = isLance(tableName);
        Map<String, String> options = new HashMap<>(tableName.options().asCaseSensitiveMap());
        addReplaceOptions(Shim.replaceCriteria(insert), options);
        part = tableName.copy(tableName.multipartIdentifier(), new CaseInsensitiveStringMap(options), false);
      } else if (insert.productElementName(i).equals("replaceCriteriaOpt")) {
        part = scala.Option.empty();
      } else if (insert.productElementName(i).equals("overwrite")) {
        part = Boolean.TRUE;
      }
      parts[i] = part;
    }
    if (!isLance) {
      return insert;
    }
    return (LogicalPlan) insert.makeCopy(parts);
  }

  private static void addReplaceOptions(Object criteria, Map<String, String> options) {
    Seq<?> columns = Shim.replaceColumns(criteria);
    if (columns != null) {
      try {
        Object names = CollectionConverters.asJava(columns);
        options.put("replaceUsing", new ObjectMapper().writeValueAsString(names));
      } catch (java.io.IOException problem) {
        throw new IllegalStateException(problem);
      }
      return;
    }
    options.put("replaceOn", Shim.replaceCondition(criteria).sql());
    scala.Option<String> alias = Shim.replaceAlias(criteria);
    if (alias.isDefined()) {
      options.put("targetAlias", (String) alias.get());
    }
  }

  /**
   * Refuses CREATE TABLE ... LIKE in a catalog of this package if Spark cannot run it there. The error has the
   * statement to write instead.
   *
   * @return the statement itself if it is not refused
   */
  public static LogicalPlan createTableLike(LogicalPlan statement) {
    String[] names = new String[2];
    boolean isOurs = false;
    int count = 0;
    Seq<?>[] parts = new Seq<?>[2];
    for (int i = 0; i < statement.productArity() && count < 2; i++) {
      Object part = statement.productElement(i);
      Seq<String> name = part instanceof TableIdentifier
          ? ((TableIdentifier) part).nameParts()
          : part instanceof UnresolvedIdentifier
              ? ((UnresolvedIdentifier) part).nameParts()
              : part instanceof UnresolvedTableOrView ? ((UnresolvedTableOrView) part).multipartIdentifier() : null;
      if (name != null) {
        isOurs = count == 0 ? isOurs(name) : isOurs;
        parts[count] = name;
        names[count++] = name.mkString(".");
      }
    }
    if (count == 2 && catalogOf(parts[0]) instanceof LanceSessionTableCatalog && createsLanceTable(statement, Seqs.<String>cast(parts[1]))) {
      throw new UnsupportedOperationException("CREATE TABLE LIKE makes no Lance tables: write CREATE TABLE " + names[0]
          + " USING lance AS SELECT * FROM " + names[1] + " LIMIT 0");
    }
    if (isOurs && count == 2 && !Shim.makesTablesAlike()) {
      throw new UnsupportedOperationException("CREATE TABLE LIKE makes no Lance tables: write CREATE TABLE " + names[0]
          + " AS SELECT * FROM " + names[1] + " LIMIT 0");
    }
    return statement;
  }

  /** Returns whether CREATE TABLE LIKE names the format lance, or names no format and a Lance table. */
  private static boolean createsLanceTable(LogicalPlan statement, Seq<String> source) {
    scala.Option<String> provider = Shim.tableProvider(statement);
    for (int i = 0; i < statement.productArity(); i++) {
      if (statement.productElementName(i).equals("provider")) {
        provider = Seqs.option(statement.productElement(i));
      }
    }
    if (provider != null && provider.isDefined()) {
      return ((String) provider.get()).equalsIgnoreCase("lance");
    }
    UnresolvedRelation tableName = new UnresolvedRelation(source, new CaseInsensitiveStringMap(new HashMap<String, String>()), false);
    LogicalPlan relation = SparkSession.active().sessionState().analyzer().execute(tableName);
    // A view as source means the default format.
    while (relation.children().size() == 1 && !(relation instanceof View)) {
      relation = (LogicalPlan) relation.children().apply(0);
    }
    return relation instanceof DataSourceV2Relation
        && ((DataSourceV2Relation) relation).table() instanceof LanceTable;
  }

  /**
   * Refuses statements about views in a catalog of this package if Spark only supports views in spark_catalog. The
   * error has the statement to write instead.
   *
   * @param statement CREATE VIEW, DROP VIEW, SHOW VIEWS or ALTER VIEW ... RENAME TO, or the view's name in other
   *     forms of ALTER VIEW
   * @return the statement itself if it is not refused
   */
  public static LogicalPlan refuseView(LogicalPlan statement) {
    String kind = statement.getClass().getSimpleName();
    LogicalPlan child = kind.equals("UnresolvedView") ? statement : (LogicalPlan) statement.productElement(0);
    Object part = child.productArity() == 0 ? null : child.productElement(0);
    Seq<String> name = part instanceof Seq ? Seqs.<String>cast((Seq<?>) part) : Seqs.<String>empty();
    boolean isRefused = kind.equals("ShowViews")
        ? catalogOfNamespace(name) instanceof LanceTableCatalog
        : !name.isEmpty() && isOurs(name) && !SparkSession.active().sessionState().catalog().isTempView(name);
    if (!isRefused) {
      return statement;
    }
    String view = "spark_catalog.default." + (name.isEmpty() ? "v" : QuotingUtils.quoteIfNeeded((String) name.last()));
    String remedy = "CREATE VIEW " + view + " AS SELECT ... FROM lance.db.t";
    if (kind.equals("ShowViews")) {
      remedy = "SHOW VIEWS IN spark_catalog.default";
    } else if (kind.equals("DropView")) {
      remedy = "DROP VIEW IF EXISTS " + view;
    } else if (kind.equals("RenameTable")) {
      Seq<String> newName = Seqs.<String>cast((Seq<?>) statement.productElement(1));
      remedy = "ALTER VIEW " + view + " RENAME TO default." + QuotingUtils.quoteIfNeeded((String) newName.last());
    } else if (!kind.equals("CreateView")) {
      // A command such as "ALTER VIEW ... AS".
      remedy = ((String) child.productElement(1)).replaceFirst("\\.\\.\\.", Matcher.quoteReplacement(view)).replaceFirst("\\s*\\.*$", " ...");
    }
    throw new UnsupportedOperationException("Spark has views in other catalogs from 4.2 on: write " + remedy);
  }

  /**
   * Returns a view with the columns of its query, for views with schema evolution in a catalog of this package. If
   * the stored columns differ, Spark would store the new ones in spark_catalog, for another view of the same name.
   */
  public static LogicalPlan evolveView(LogicalPlan plan) {
    View view = (View) plan;
    StructType columns = view.child().schema();
    scala.Option<String> catalog = view.desc().identifier().catalog();
    if (columns.equals(view.desc().schema()) || catalog.isEmpty()) {
      return view;
    }
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    boolean isOurs = catalogs.isCatalogRegistered((String) catalog.get())
        && catalogs.catalog((String) catalog.get()) instanceof LanceTableCatalog;
    return isOurs ? Shim.withSchema(view, columns) : view;
  }

  /** Returns whether a name is in a catalog of this package. */
  private static boolean isOurs(Seq<?> name) {
    return catalogOf(name) instanceof LanceTableCatalog;
  }

  private static CatalogPlugin catalogOf(Seq<?> name) {
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    String first = (String) name.apply(0);
    boolean hasCatalog = name.size() > 1 && catalogs.isCatalogRegistered(first);
    return hasCatalog ? catalogs.catalog(first) : catalogs.currentCatalog();
  }

  /** Returns the catalog of a namespace, whose name can be the catalog only. */
  private static CatalogPlugin catalogOfNamespace(Seq<?> name) {
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    boolean hasCatalog = !name.isEmpty() && catalogs.isCatalogRegistered((String) name.apply(0));
    return hasCatalog ? catalogs.catalog((String) name.apply(0)) : catalogs.currentCatalog();
  }

  private static boolean isLance(UnresolvedRelation tableName) {
    LogicalPlan relation = SparkSession.active().sessionState().analyzer().execute(plain(tableName));
    while (relation.children().size() == 1) {
      relation = (LogicalPlan) relation.children().apply(0);
    }
    return relation instanceof DataSourceV2Relation
        && ((DataSourceV2Relation) relation).table() instanceof LanceTable;
  }

  private static UnresolvedRelation plain(UnresolvedRelation tableName) {
    return tableName.copy(tableName.multipartIdentifier(), new CaseInsensitiveStringMap(new HashMap<String, String>()), tableName.isStreaming());
  }

  /** Replaces the relation of a table by the relation of its changes. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods.
  private static final class ChangesReplacement extends scala.runtime.AbstractPartialFunction {
    private final CaseInsensitiveStringMap options;
    private final boolean streams;
    boolean isReplaced = false;

    ChangesReplacement(CaseInsensitiveStringMap options, boolean streams) {
      this.options = options;
      this.streams = streams;
    }

    public boolean isDefinedAt(Object node) {
      return table(node) instanceof LanceTable;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      isReplaced = true;
      LogicalPlan relation = (LogicalPlan) node;
      LanceTable changes = ((LanceTable) table(node)).changes(options, streams);
      Object[] parts = new Object[relation.productArity()];
      for (int i = 0; i < parts.length; i++) {
        Object part = relation.productElement(i);
        if (part instanceof Table) {
          part = changes;
        } else if (part instanceof CaseInsensitiveStringMap) {
          part = options;
        } else if (part == output(node)) {
          part = DataTypeUtils$.MODULE$.toAttributes(changes.schema());
        }
        parts[i] = part;
      }
      return relation.makeCopy(parts);
    }

    private static Object table(Object node) {
      if (node instanceof DataSourceV2Relation) {
        return ((DataSourceV2Relation) node).table();
      }
      return node instanceof StreamingRelationV2 ? ((StreamingRelationV2) node).table() : null;
    }

    private static Object output(Object node) {
      return node instanceof DataSourceV2Relation
          ? ((DataSourceV2Relation) node).output() : ((StreamingRelationV2) node).output();
    }
  }
}
