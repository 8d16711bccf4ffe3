"""Frequent mistakes in Spark: the essential part of each message, and its grade.

The mistakes of `tests/datasets/test_mistakes.py` and these are graded. A: one line that names what is wrong,
where, and what to write. B: a message of Spark's own, or one of several lines. Nothing is worse than B.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import LanceError
from tests.datasets.test_mistakes import COMMANDS, GRADED_B
from tests.datasets.test_mistakes import MISTAKES as WITHOUT_SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Lines that begin with a SQL verb are statements, the others Python.
MISTAKES = [
    ("SELECT custmer FROM lance.orders", "B", "Did you mean one of the following? [`customer`"),
    ("SELECT address.cty FROM lance.orders", "B", "No such struct field `cty` in `city`, `zip`"),
    ("SELECT * FROM lance.order", "B", "The table or view `lance`.`order` cannot be found"),
    ("SELECT * FROM lance.orders.histry", "B", "`lance`.`orders`.`histry` cannot be found"),
    ("SELECT * FROM lance.orders VERSION AS OF 99", "A", "does not exist (available: 1, 2, 3)"),
    ("SELECT * FROM lance.orders VERSION AS OF 'cheked'", "A", "did you mean 'checked'?"),
    ("SELECT * FROM lance.orders TIMESTAMP AS OF '1999-01-01'", "A", "the first, version 1, was committed"),
    ("SELECT * FROM vector_search(table => 'lance.orders')", "A", "vector_search('db.t', ...)"),
    ("INSERT INTO lance.orders VALUES (1, 'a')", "B", "not enough data columns"),
    ("INSERT INTO lance.orders (order_id) VALUES (NULL)", "B", "order_id"),
    ("UPDATE lance.orders SET custmer = 'x'", "B", "Did you mean one of the following? [`customer`"),
    ("UPDATE lance.orders SET order_id = 'x'", "B", 'Cannot safely cast `order_id` "STRING" to "BIGINT"'),
    ("ALTER TABLE lance.orders CREATE TAG checked", "A", "update it, or delete it first"),
    ("ALTER TABLE lance.orders DROP BRANCH audt", "A", "did you mean 'audit'?"),
    (
        "ALTER TABLE lance.orders SET TBLPROPERTIES ('data_storage_versoin' = '2.1')",
        "A",
        "did you mean 'data_storage_version'?",
    ),
    ("CALL lance.system.compat('orders')", "A", "did you mean lance.system.compact?"),
    ("CALL lance.system.create_index('orders', 'ordr_id', 'BTREE')", "A", "did you mean 'order_id'?"),
    ("OPTIMIZE lance.orders ZORDER BY (custmer)", "A", "did you mean 'customer'?"),
    ("VACUUM lance.orders RETAIN 0 HOURS", "A", "pass allow_short_retention => true"),
    ("VACUUM lance.orders RETAIN x HOURS", "A", "write VACUUM lance.orders [RETAIN number HOURS]"),
    ("RESTORE TABLE lance.orders TO VERSION AS OF 99", "A", "does not exist (available: 1, 2, 3)"),
    ("read(version=99)", "A", "does not exist (available: 1, 2, 3)"),
    ("read(versoin=1)", "A", "unknown option 'versoin': did you mean 'version'?"),
    ("read(tag='cheked')", "A", "did you mean 'checked'?"),
    ("read(columns='custmer')", "A", "did you mean 'customer'?"),
    ("read(filter='custmer = 1')", "A", "did you mean 'customer'?"),
    ("read(table='histry')", "A", "did you mean 'history'?"),
    ("read(batch_size='x')", "A", "option 'batch_size' must be a number of rows, 1 or more, not 'x'"),
    ("read(timestampAsOf='yesterday')", "A", "write it as 2026-01-31 12:00:00"),
    ("session.read.format('lance').load()", "A", "option 'path' is missing: use load(path)"),
    ("session.read.format('lance').load(path + 's')", "A", "did you mean PATH?"),
    ("stream(startingVersion='x')", "A", "must be a version number, or `latest` (for a time"),
    ("append(rows, mergeSchem=True)", "A", "did you mean 'mergeSchema'?"),
    ("append(rows, txnAppId='job')", "A", "'txnAppId' and 'txnVersion' must be set together"),
    ("append(rows.withColumnRenamed('customer', 'custmer'))", "A", "did you mean 'customer'?"),
    ("append(rows.withColumn('order_id', rows.customer))", "A", "write cast(order_id AS bigint)"),
    ("append(rows.selectExpr('if(order_id > 9, 1L, NULL) AS order_id'))", "B", "1 incoming value is null"),
    ("table.delete('custmer = 1')", "A", "did you mean 'customer'?"),
    ("table.update('order_id = 1', {'custmer': '1'})", "A", "did you mean 'customer'?"),
    ("table.update('order_id = 1', {'customer': 'ship'})", "A", "write a text in quotes"),
    ("table.merge(rows, 'order_id').execute()", "A", "write .whenMatchedUpdateAll() or"),
    (
        "table.merge(rows, 'order_id').whenMatchedUpdateAll().execute()",
        "A",
        "whenMatchedUpdateAll() needs every table column, but the source has no 'address': name the columns, "
        "write whenMatchedUpdateAll(exceptCols=['address'])",
    ),
    ("table.merge(rows, 'order_id').whenMatched()", "A", "did you mean 'whenMatchedDelete'"),
    (
        "table.alias('t').merge(rows.alias('s'), 't.order_id = s.ordr_id').whenMatchedDelete().execute()",
        "A",
        "did you mean 's.order_id'?",
    ),
    ("table.create_index('v')", "A", "write 'createIndex'"),
    ("table.createIndex('order_id', 'BTREE')", "A", "write create_scalar_index(column, 'BTREE')"),
    ("table.addColumns({'x': 'custmer'})", "A", "did you mean 'customer'?"),
    ("table.history('10')", "A", "limit is a whole number, such as 10 for the newest ten versions, not '10'"),
    ("SELECT * FROM lance.`orders@audt`", "B", "did you mean 'audit'?"),
    ("SELECT * FROM lance.orders WITH (versoin = 1)", "A", "did you mean 'version'?"),
    ("SELECT * FROM vector_search('lance.orders', 'vv', array(1f), 2)", "A", "did you mean 'v'?"),
    ("SELECT * FROM vector_search('lance.orders', 'v', array(1f), 'x')", "A", "k of vector_search must be"),
    (
        "SELECT * FROM vector_search('lance.orders', 'v', array(1f), 2, map('nprobe', '1'))",
        "A",
        "did you mean 'nprobes'?",
    ),
    ("SELECT * FROM text_search('lance.orders', 'custmer', 'a', 2)", "A", "did you mean 'customer'?"),
    ("CREATE TABLE lance.orders (id INT)", "B", "already exists"),
    ("CREATE TABLE lance.nodb.t (id INT)", "B", "The schema `nodb` cannot be found"),
    ("CREATE TABLE lance.x3 (id INT) TBLPROPERTIES ('primary_key' = 'idd')", "A", "names idd; there are id"),
    ("CREATE TABLE lance.x4 (id INT) USING parquet", "A", "leave it out, write USING lance"),
    ("CREATE TABLE lance.x5 (id INT) LOCATION '/tmp/x5'", "A", "leave out LOCATION"),
    ("ALTER TABLE lance.orders DROP CONSTRAINT nope", "A", "has no constraint nope"),
    ("ALTER TABLE lance.orders SET TBLPROPERTIES ('delta.appendOnl' = '1')", "A", "'delta.appendOnly'?"),
    ("CALL lance.sytem.compact('orders')", "A", "did you mean lance.system.compact?"),
    ("CALL lance.system.compact('ordrs')", "A", "did you mean 'orders'?"),
    ("CALL lance.system.restore('orders')", "A", "needs either a version or a timestamp"),
    ("CREATE INDEX i ON lance.orders USING BTRE (order_id)", "A", "did you mean 'BTREE'?"),
    ("CREATE INDEX i ON lance.orders USING IVF_PQ (v) OPTIONS (num_partition = 1)", "A", "'num_partitions'?"),
    ("DROP INDEX order_idx ON lance.orders", "A", "did you mean 'order_id_idx'?"),
    ("OPTIMIZE lance.ordrs", "A", "did you mean 'orders'?"),
    ("OPTIMIZE lance.orders WHERE ordr_id = 1", "A", "did you mean 'order_id'?"),
    ("RESTORE TABLE lance.orders TO VERSION 1", "A", "TO VERSION AS OF number"),
    ("DELETE FROM lance.orders WHERE custmer = 'x'", "B", "[`customer`"),
    ("read(nearest='{bad')", "A", "options of searches are JSON"),
    ("read(filter='customer = 5')", "A", "write a text in quotes, '5'"),
    ("read(readChangeFeed='true')", "A", "needs one of the options startingVersion and startingTimestamp"),
    ("append(rows, compression='gzip')", "A", "must be zstd, lz4, fsst or none, not 'gzip'"),
    ("append(rows, branch='audt')", "A", "did you mean 'audit'?"),
    ("table.delete('order_id = 1 and')", "A", "the condition 'order_id = 1 and'"),
    ("table.setConfig('x')", "A", "settings are a dict from keys to texts or None"),
    ("table.compact()", "A", "write optimize().executeCompaction()"),
    ("table.createIndex('v', 'IVF_PQ', numPartition=2)", "A", "did you mean 'num_partitions'?"),
    ("table.addColumns({'customer': '1'})", "A", "choose another name, or change its values"),
    ("table.restoreToTag('cheked')", "A", "did you mean 'checked'?"),
    ("LanceTable.forName(session, 'lance.ordrs')", "A", "did you mean 'orders'?"),
    ("table.vacuum('7 days')", "A", "such as 168 for 7 days, not '7 days'"),
    ("SELECT * FROM table_changes('lance.ordrs', 1)", "A", "did you mean 'orders'?"),
    ("SELECT * FROM vector_search('lance.ordrs', 'v', array(1f), 2)", "A", "did you mean 'orders'?"),
    ("SELECT * FROM vector_search('lance.orders', 'customer', array(1f), 2)", "A", "a column of vectors"),
    ("CALL lance.system.fast_forward('orders', 'main', 'audt')", "A", "did you mean 'audit'?"),
    ("CALL lance.system.rollback_to_snapshot('orders', 99)", "A", "does not exist (available: 1, 2, 3)"),
    ("CALL lance.system.rewrite_data_files('orders', strategy => 'srt')", "A", "must be binpack or sort"),
    ("ALTER TABLE lance.orders ADD PARTITION FIELD dys(order_id)", "A", "did you mean 'days'?"),
    ("ALTER TABLE lance.orders WRITE ORDERED BY custmer", "A", "did you mean 'customer'?"),
    ("CREATE INDEX i ON lance.ordrs USING BTREE (order_id)", "A", "did you mean 'orders'?"),
    ("DESCRIBE HISTORY lance.ordrs", "A", "did you mean 'orders'?"),
    ("append(rows.selectExpr('order_id', 'array(1D) AS v'))", "A", "write cast(v AS array<float>)"),
    ("append(rows, **{'custmer.lance.encoding': 'blob'})", "A", "did you mean 'customer'?"),
    ("append(rows, partitionBy='ordr_id')", "A", "did you mean 'order_id'?"),
    ("read(readChangeFeed='true', startingVersion=3, endingVersion=1)", "A", "is after the last version, 1"),
    ("table.addColumns(fail, inputs=['order_id'], schema=schema)", "B", "in fail, called with a batch"),
    ("table.addColumns(rows, on='ordr_id')", "A", "did you mean 'order_id'?"),
    ("table.search([1.0], 'v', nprobe=2)", "A", "did you mean 'nprobes'?"),
    ("table.addConstraint('p', 'ordr_id > 0')", "A", "did you mean 'order_id'?"),
    (
        "table.alias('t').merge(rows.alias('s'), 't.order_id = s.order_id')"
        ".whenMatchedUpdate({'customer': 's.customer'})",
        "A",
        "write set= as a dict from columns to values",
    ),
    ("LanceTable.forName(session, 'orders')", "A", "such as lance.orders"),
    ("LanceTable.create(session).location('/x').addColumn('a', 'bigit')", "A", "type 'bigit' is not known"),
    ("spark_lance.enable(session, rot='/x')", "A", "did you mean 'root'?"),
    ("read(columns='address.cty')", "A", "write the whole column, 'address'"),
    ("table.update('order_id = 1', {'address.cty': '1'})", "A", "did you mean 'city'?"),
    ("table.update('order_id = 1', {'order_id': \"'x'\"})", "A", "write cast(value AS bigint)"),
    ("table.merge(rows, 'order_id = order_id').whenMatchedDelete().execute()", "A", "as in t.order_id"),
    ("table.merge('rows', 'order_id')", "A", "takes a DataFrame, such as spark.table(name), not 'rows'"),
    ("table.addColumns(['x'])", "A", "write a dict from names to SQL expressions"),
    ("table.optimizeIndices('order_idx')", "A", "did you mean 'order_id_idx'?"),
    ("append(rows, enable_stable_row_ids='true')", "A", "is only for new tables: leave it out"),
    ("session.read.format('lance').load(path + '/..')", "A", "the folder holds the tables orders.lance"),
    (
        "CALL lance.system.create_changelog_view('orders', identifier_columns => array('ordr_id'))",
        "A",
        "did you mean 'order_id'?",
    ),
    ("LanceTable.forPath(path, session)", "A", "write LanceTable.forPath(spark, path)"),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = str(tmp_path_factory.mktemp("mistakes"))
    session = spark_lance.enable(spark.newSession(), root=root)
    session.sql(
        "CREATE TABLE lance.orders (order_id BIGINT NOT NULL, customer STRING, "
        "address STRUCT<city: STRING, zip: INT>, v ARRAY<FLOAT>)"
    )
    path = f"{root}/orders.lance"
    session.sql("INSERT INTO lance.orders VALUES (1, 'a', named_struct('city', 'x', 'zip', 1), array(1f))")
    table = LanceTable.forPath(session, path)
    table.tags.create("checked")
    table.branches.create("audit")
    table.createScalarIndex("order_id", "BTREE")

    def append(frame: Any, **options: Any) -> None:
        frame.write.format("lance").mode("append").options(**options).save(path)

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("bad value 7")

    def stream(**options: Any) -> None:
        session.readStream.format("lance").options(**options).load(path)

    return {
        "session": session,
        "path": path,
        "table": table,
        "LanceTable": LanceTable,
        "spark_lance": spark_lance,
        "fail": fail,
        "schema": pa.schema([("y", pa.int32())]),
        "rows": session.createDataFrame([(3, "c")], "order_id bigint, customer string"),
        "read": lambda **options: session.read.format("lance").options(**options).load(path).collect(),
        "append": append,
        "stream": stream,
    }


@pytest.mark.slow  # Spark starts a Python process for most of them
@pytest.mark.parametrize(("mistake", "grade", "part"), MISTAKES, ids=[line[0] for line in MISTAKES])
def test_messages(mistake: str, grade: str, part: str, names: dict[str, Any]) -> None:
    is_sql = mistake.split()[0].isupper()
    call = f"session.sql({mistake!r}).collect()" if is_sql else mistake
    with pytest.raises((LanceError, PySparkException, AttributeError)) as error:
        eval(call, names)
    message = str(error.value).split("JVM stacktrace")[0].replace(names["path"], "PATH")
    lines = [
        line for line in message.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")
    ]
    assert part in message
    assert "_rowaddr" not in message
    assert "__lance" not in message
    assert grade == "B" or len(lines) == 1


def test_grades() -> None:
    mistakes = {line[0] for line in (*WITHOUT_SPARK, *COMMANDS, *MISTAKES)}
    graded_b = GRADED_B | {line[0] for line in MISTAKES if line[1] == "B"}
    assert len(mistakes) >= 100
    assert len(mistakes - graded_b) >= 0.8 * len(mistakes)


@pytest.mark.slow
def test_tables_and_merges_in_shells(names: dict[str, Any]) -> None:
    table, path = names["table"], names["path"]
    assert repr(table).startswith(f"LanceTable({path!r}, version=")
    assert "order_id" in table._repr_html_()
    assert "checked  main" in repr(table.tags)
    assert "audit  from main" in repr(table.branches)
    assert "order_id_idx  BTree  order_id" in repr(table.indexes)
    assert "order_id_idx" in table.indexes._repr_html_()
    merge = table.merge(names["rows"], "order_id").whenMatchedDelete()
    assert repr(merge).endswith("when matched then delete; not executed: call execute())")
    optimizing = table.optimize(targetRowsPerFragment=50).where("order_id > 3")
    assert repr(optimizing) == (
        f"Optimizing({path!r}, target_rows_per_fragment=50, where order_id > 3; not executed: call "
        "executeCompaction(), executeZOrderBy() or executeSortBy())"
    )
    builder = LanceTable.create(table.spark).location("/x").addColumn("id", "bigint")
    assert repr(builder) == "TableBuilder(create '/x', columns=[id]; not executed: call execute())"
    assert not [name for name in dir(table.columns) if name[0] == "_" and name[1] != "_"]
    assert "which cannot be read: no Lance table at" in repr(replace(table, path=path + "s"))
    assert "writeOptions" not in dir(table)
