package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.connector.catalog.Dependency;
import org.apache.spark.sql.connector.catalog.DependencyList;
import org.apache.spark.sql.connector.catalog.FunctionDependency;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Relation;
import org.apache.spark.sql.connector.catalog.RelationCatalog;
import org.apache.spark.sql.connector.catalog.TableDependency;
import org.apache.spark.sql.connector.catalog.TableSummary;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Callers;
import org.lance.spark.shim.Shim;

/**
 * The catalog of releases that keep views in catalogs (Spark 4.2 and newer). Tables and views share their names.
 */
public class LanceViewCatalog extends LanceConstraintCatalog implements RelationCatalog {
  private static final String TABLE = "table";
  private static final String FUNCTION = "function";

  // Tables and views

  public Relation loadRelation(Identifier identifier) {
    if (identifier instanceof Bridge.LoadableIdentifier) {
      return loadTable(identifier);
    }
    return (Relation) load(identifier, question(Protocol.LOAD_RELATION, identifier));
  }

  Object relation(Map<String, Object> question, Map<String, Object> answer) {
    return answer.containsKey(Protocol.VIEW) ? view(Json.object(answer.get(Protocol.VIEW))) : super.relation(question, answer);
  }

  /**
   * Loads a table or view. A statement that needs a table, such as INSERT or VERSION AS OF, gets an error that names
   * the view, and not a missing table.
   */
  Object load(Identifier identifier, Map<String, Object> question) {
    try {
      return super.load(identifier, question);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      boolean isView = problem instanceof NoSuchTableException
          && question.get(Protocol.VERB).equals(Protocol.LOAD_TABLE)
          && Callers.isResolvingRelations()
          && viewExists(identifier);
      Platform.throwException(isView ? refusal(identifier, question) : problem);
      return null;
    }
  }

  private AnalysisException refusal(Identifier identifier, Map<String, Object> question) {
    String name = Bridge.quoted(name(), identifier);
    Map<String, String> parameters = new HashMap<>();
    if (question.containsKey(Protocol.VERSION) || question.containsKey(Protocol.ASOF)) {
      parameters.put("relationId", name);
      return new AnalysisException("UNSUPPORTED_FEATURE.TIME_TRAVEL", Bridge.scalaMap(parameters));
    }
    parameters.put("viewName", name);
    parameters.put("operation", "a write");
    return new AnalysisException("EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE", Bridge.scalaMap(parameters));
  }

  // The default implementation loads every table to find its type.
  public TableSummary[] listTableSummaries(String[] namespace) {
    Identifier[] tables = listTables(namespace);
    TableSummary[] summaries = new TableSummary[tables.length];
    for (int i = 0; i < tables.length; i++) {
      summaries[i] = TableSummary.of(tables[i], TableSummary.MANAGED_TABLE_TYPE);
    }
    return summaries;
  }

  // Views

  public Identifier[] listViews(String[] namespace) {
    List<Object> names = Json.list(Bridge.ask(question(Protocol.LIST_VIEWS, namespace), null));
    Identifier[] views = new Identifier[names.size()];
    for (int i = 0; i < views.length; i++) {
      views[i] = Identifier.of(namespace, (String) names.get(i));
    }
    return views;
  }

  public View loadView(Identifier identifier) {
    Map<String, Object> answer = Json.object(Bridge.ask(question(Protocol.LOAD_VIEW, identifier), null));
    return view(Json.object(answer.get(Protocol.VIEW)));
  }

  public boolean viewExists(Identifier identifier) {
    try {
      return loadView(identifier) != null;
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      if (!(problem instanceof NoSuchViewException)) {
        Platform.throwException(problem);
      }
      return false;
    }
  }

  public View createView(Identifier identifier, View view) {
    return write(question(Protocol.CREATE_VIEW, identifier), view);
  }

  public View replaceView(Identifier identifier, View view) {
    Map<String, Object> question = question(Protocol.REPLACE_VIEW, identifier);
    question.put(Protocol.CREATES, Boolean.FALSE);
    return write(question, view);
  }

  public View createOrReplaceView(Identifier identifier, View view) {
    Map<String, Object> question = question(Protocol.REPLACE_VIEW, identifier);
    question.put(Protocol.CREATES, Boolean.TRUE);
    return write(question, view);
  }

  private static View write(Map<String, Object> question, View view) {
    question.put(Protocol.VIEW, toJson(view));
    Bridge.ask(question, null);
    return view;
  }

  public boolean dropView(Identifier identifier) {
    return (Boolean) Bridge.ask(question(Protocol.DROP_VIEW, identifier), null);
  }

  public void renameView(Identifier from, Identifier to) {
    Map<String, Object> question = question(Protocol.RENAME_VIEW, from);
    question.put(Protocol.TO, Bridge.list(parts(to)));
    Bridge.ask(question, null);
  }

  // Members of a view as requests and answers have them

  private static Map<String, Object> toJson(View view) {
    Map<String, Object> members = new HashMap<>();
    members.put(Protocol.QUERY, view.queryText());
    members.put(Protocol.SCHEMA, view.schema().json());
    members.put(Protocol.QUERY_COLUMN_NAMES, Bridge.list(view.queryColumnNames()));
    members.put(Protocol.SCHEMA_MODE, view.schemaMode());
    members.put(Protocol.CURRENT_CATALOG, view.currentCatalog());
    members.put(Protocol.CURRENT_NAMESPACE, Bridge.list(view.currentNamespace()));
    members.put(Protocol.SQL_CONFIGS, view.sqlConfigs());
    members.put(Protocol.PROPERTIES, view.properties());
    DependencyList dependencies = view.viewDependencies();
    members.put(Protocol.DEPENDENCIES, dependencies == null ? null : toJson(dependencies.dependencies()));
    return members;
  }

  private static List<Object> toJson(Dependency[] dependencies) {
    List<Object> list = new ArrayList<>();
    for (Dependency dependency : dependencies) {
      Map<String, Object> description = new HashMap<>();
      boolean isTable = dependency instanceof TableDependency;
      description.put(Protocol.KIND, isTable ? TABLE : FUNCTION);
      description.put(
          Protocol.NAME,
          Bridge.list(isTable ? ((TableDependency) dependency).nameParts() : ((FunctionDependency) dependency).nameParts()));
      list.add(description);
    }
    return list;
  }

  private static View view(Map<String, Object> members) {
    View.Builder builder = new View.Builder();
    StructType declared = (StructType) DataType.fromJson((String) members.get(Protocol.SCHEMA));
    // Spark pads CHAR in comparisons only where it is a string with metadata. DESCRIBE prints the declared type.
    builder.withSchema(Callers.isReadingRelations() ? Shim.registryColumns(declared) : Shim.declaredColumns(declared));
    builder.withProperties(Json.texts(members.get(Protocol.PROPERTIES)));
    builder.withQueryText((String) members.get(Protocol.QUERY));
    builder.withCurrentCatalog((String) members.get(Protocol.CURRENT_CATALOG));
    builder.withCurrentNamespace(Bridge.texts(members.get(Protocol.CURRENT_NAMESPACE)));
    builder.withSqlConfigs(Json.texts(members.get(Protocol.SQL_CONFIGS)));
    builder.withSchemaMode((String) members.get(Protocol.SCHEMA_MODE));
    builder.withQueryColumnNames(Bridge.texts(members.get(Protocol.QUERY_COLUMN_NAMES)));
    List<Map<String, Object>> dependencies = Json.objects(members.get(Protocol.DEPENDENCIES));
    if (dependencies != null) {
      builder.withViewDependencies(DependencyList.of(dependencies(dependencies)));
    }
    return builder.build();
  }

  private static Dependency[] dependencies(List<Map<String, Object>> list) {
    Dependency[] dependencies = new Dependency[list.size()];
    for (int i = 0; i < dependencies.length; i++) {
      Map<String, Object> description = Json.object(list.get(i));
      String[] name = Bridge.texts(description.get(Protocol.NAME));
      dependencies[i] = (Dependency)
          (description.get(Protocol.KIND).equals(TABLE) ? (Object) new TableDependency(name) : new FunctionDependency(name));
    }
    return dependencies;
  }
}
