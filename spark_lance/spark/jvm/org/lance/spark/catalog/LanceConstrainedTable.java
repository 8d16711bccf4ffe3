package org.lance.spark.catalog;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.CheckConstraint;
import org.apache.spark.sql.catalyst.plans.logical.AddCheckConstraint;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.constraints.Check;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.ForeignKey;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.constraints.Unique;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.lance.spark.load.Bridge;
import org.lance.spark.load.Json;
import org.lance.spark.load.Protocol;
import org.lance.spark.shim.Shim;

/**
 * A table with constraints (Spark 4.1 and newer).
 *
 * <p>Spark shows the constraints, and checks them where its own plan writes the rows. The commit checks them again,
 * because Spark does not plan every write.
 */
public class LanceConstrainedTable extends LanceTable {
  private static final String CHECK = "check";
  private static final String PRIMARY_KEY = "primary_key";
  private static final String UNIQUE = "unique";
  private static final String FOREIGN_KEY = "foreign_key";

  private final Constraint[] constraints;

  public LanceConstrainedTable(Map<String, Object> question, Map<String, Object> answer) {
    super(question, answer);
    List<Map<String, Object>> descriptions = Json.objects(answer.get(Protocol.CONSTRAINTS));
    this.constraints = new Constraint[descriptions == null ? 0 : descriptions.size()];
    for (int i = 0; i < constraints.length; i++) {
      this.constraints[i] = constraint(Json.object(descriptions.get(i)));
    }
  }

  public Constraint[] constraints() {
    return constraints;
  }

  /**
   * Returns the physical plan of ALTER TABLE ... ADD CONSTRAINT ... CHECK. The catalog checks the rows of the table,
   * and its error names the constraint and a row. Spark's own plan reads the rows, too, and its error names neither.
   *
   * @param statement an AddCheckConstraint over a scan of the table
   */
  public static SparkPlan planPhysical(LogicalPlan statement) {
    LogicalPlan rows = statement;
    while (rows.children().size() == 1) {
      rows = (LogicalPlan) rows.children().head();
    }
    DataSourceV2Relation relation = ((DataSourceV2ScanRelation) rows).relation();
    CheckConstraint check = ((AddCheckConstraint) statement).checkConstraint();
    return Shim.alterTable(
        (TableCatalog) relation.catalog().get(), (Identifier) relation.identifier().get(), TableChange.addConstraint(check.toV2Constraint(), null));
  }

  private static Constraint constraint(Map<String, Object> values) {
    String name = (String) values.get(Protocol.NAME);
    String type = (String) values.get(Protocol.TYPE);
    boolean enforced = Boolean.TRUE.equals(values.get(Protocol.ENFORCED));
    boolean rely = Boolean.TRUE.equals(values.get(Protocol.RELY));
    Constraint.ValidationStatus status =
        enforced ? Constraint.ValidationStatus.VALID : Constraint.ValidationStatus.UNVALIDATED;
    if (type.equals(CHECK)) {
      Check.Builder check = Constraint.check(name);
      check.predicateSql((String) values.get(Protocol.EXPRESSION));
      check.enforced(enforced);
      check.rely(rely);
      check.validationStatus(status);
      return check.build();
    }
    NamedReference[] columns = columns(values.get(Protocol.COLUMNS));
    if (type.equals(PRIMARY_KEY)) {
      PrimaryKey.Builder key = Constraint.primaryKey(name, columns);
      key.enforced(false);
      key.rely(rely);
      return key.build();
    }
    if (type.equals(UNIQUE)) {
      Unique.Builder key = Constraint.unique(name, columns);
      key.enforced(false);
      key.rely(rely);
      return key.build();
    }
    String[] table = Bridge.texts(values.get(Protocol.TABLE));
    String[] namespace = new String[table.length - 1];
    System.arraycopy(table, 0, namespace, 0, namespace.length);
    Identifier other = Identifier.of(namespace, table[namespace.length]);
    ForeignKey.Builder key = Constraint.foreignKey(name, columns, other, columns(values.get(Protocol.REFERENCES)));
    key.enforced(false);
    key.rely(rely);
    return key.build();
  }

  private static NamedReference[] columns(Object names) {
    String[] texts = Bridge.texts(names);
    NamedReference[] columns = new NamedReference[texts.length];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = Expressions.column("`" + texts[i].replace("`", "``") + "`");
    }
    return columns;
  }

  /**
   * Describes a change of constraints for Python.
   *
   * @param description receives the description
   * @return whether the change is one of constraints
   */
  public static Boolean describe(TableChange change, Map<String, Object> description) {
    if (change instanceof TableChange.AddConstraint) {
      description.put(Protocol.KIND, "add_constraint");
      description.put(Protocol.CONSTRAINT, toJson(((TableChange.AddConstraint) change).constraint()));
      return Boolean.TRUE;
    }
    if (change instanceof TableChange.DropConstraint) {
      TableChange.DropConstraint drop = (TableChange.DropConstraint) change;
      Map<String, Object> constraint = new HashMap<>();
      constraint.put(Protocol.NAME, drop.name());
      description.put(Protocol.KIND, "drop_constraint");
      description.put(Protocol.CONSTRAINT, constraint);
      description.put(Protocol.IF_EXISTS, Boolean.valueOf(drop.ifExists()));
      return Boolean.TRUE;
    }
    return Boolean.FALSE;
  }

  /** Returns constraints as JSON. */
  static List<Object> toJson(Constraint[] constraints) {
    List<Object> list = new ArrayList<>();
    for (Constraint constraint : constraints) {
      list.add(toJson(constraint));
    }
    return list;
  }

  private static Map<String, Object> toJson(Constraint constraint) {
    Map<String, Object> values = new HashMap<>();
    values.put(Protocol.NAME, constraint.name());
    values.put(Protocol.ENFORCED, Boolean.valueOf(constraint.enforced()));
    values.put(Protocol.RELY, Boolean.valueOf(constraint.rely()));
    if (constraint instanceof Check) {
      values.put(Protocol.TYPE, CHECK);
      values.put(Protocol.EXPRESSION, ((Check) constraint).predicateSql());
    } else if (constraint instanceof PrimaryKey) {
      values.put(Protocol.TYPE, PRIMARY_KEY);
      values.put(Protocol.COLUMNS, names(((PrimaryKey) constraint).columns()));
    } else if (constraint instanceof Unique) {
      values.put(Protocol.TYPE, UNIQUE);
      values.put(Protocol.COLUMNS, names(((Unique) constraint).columns()));
    } else if (constraint instanceof ForeignKey) {
      ForeignKey key = (ForeignKey) constraint;
      values.put(Protocol.TYPE, FOREIGN_KEY);
      values.put(Protocol.COLUMNS, names(key.columns()));
      values.put(Protocol.REFERENCES, names(key.referencedColumns()));
      values.put(Protocol.TABLE, Bridge.list(LanceTableCatalog.parts(key.referencedTable())));
    } else {
      throw new UnsupportedOperationException("a constraint of the kind " + constraint.getClass().getSimpleName());
    }
    return values;
  }

  private static List<Object> names(NamedReference[] columns) {
    List<Object> names = new ArrayList<>();
    for (NamedReference column : columns) {
      names.add(String.join(".", column.fieldNames()));
    }
    return names;
  }
}
