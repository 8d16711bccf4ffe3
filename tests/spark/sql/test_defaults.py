"""Defaults of columns, and the order of columns: on every way to write, and compared with Parquet."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import IntegerType

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import LanceError, SchemaError
from tests.conftest import interpreted

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return interpreted(session)


def place(session: SparkSession, table: str) -> str:
    return str(session.sql(f"DESCRIBE DETAIL {table}").collect()[0]["location"])


def rows(session: SparkSession, table: str = "lance.t") -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in session.table(table).collect()), key=repr)


# Type -> defaults of it.
_DEFAULTS = {
    "INT": ("5", "-7", "1 + 1", "NULL"),
    "BIGINT": ("9000000000", "3L"),
    "STRING": ("'x'", "'it''s'", "concat('a', 'b')", "''"),
    "DECIMAL(10,2)": ("1.5", "-0.25BD", "7"),
    "DOUBLE": ("1.5", "2", "1e3"),
    "DATE": ("DATE '2020-02-29'", "DATE '1999-12-31' + INTERVAL 1 DAY"),
    "BOOLEAN": ("TRUE", "1 = 2"),
    "TIMESTAMP": ("TIMESTAMP '2020-01-01 10:00:00'",),
    "ARRAY<INT>": ("array(1, 2)",),
    "STRUCT<a: INT, b: STRING>": ("named_struct('a', 1, 'b', 'z')",),
    "VARCHAR(5)": ("'abc'",),
}


class _Statements:
    """Draws statements about a table `$T` that Parquet's tables take, too."""

    def __init__(self, seed: int) -> None:
        self._draw, self._next = random.Random(seed), 0
        self._types: dict[str, str] = {}
        self._rows = 0

    def _column(self) -> tuple[str, str]:
        name, kind = f"c{self._next}", self._draw.choice(list(_DEFAULTS))
        self._next += 1
        self._types[name] = kind
        default = f" DEFAULT {self._draw.choice(_DEFAULTS[kind])}" if self._draw.random() < 0.8 else ""
        return name, f"{name} {kind}{default}"

    def create(self) -> str:
        return f"CREATE TABLE $T (id INT, {', '.join(self._column()[1] for _ in range(5))})"

    def next(self) -> str:
        choice = self._draw.random()
        if choice < 0.15:
            return f"ALTER TABLE $T ADD COLUMN {self._column()[1]}"
        name = self._draw.choice(list(self._types))
        if choice < 0.3:
            default = self._draw.choice(_DEFAULTS[self._types[name]])
            return f"ALTER TABLE $T ALTER COLUMN {name} SET DEFAULT {default}"
        if choice < 0.37:
            return f"ALTER TABLE $T ALTER COLUMN {name} DROP DEFAULT"
        self._rows += 1
        if choice < 0.6:
            return f"INSERT INTO $T (id) VALUES ({self._rows})"
        if choice < 0.8:
            return f"INSERT INTO $T (id, {name}) VALUES ({self._rows}, DEFAULT)"
        if choice < 0.83:
            return f"INSERT OVERWRITE $T (id) VALUES ({self._rows})"
        values = ", ".join(self._draw.choice(("DEFAULT", "NULL")) for _ in self._types)
        return f"INSERT INTO $T VALUES ({self._rows}, {values})"


@pytest.mark.parametrize(("seed", "count"), [(1, 12), pytest.param(2, 60, marks=pytest.mark.slow)])
def test_statements_do_what_they_do_on_parquet(
    session: SparkSession, tmp_path: Path, seed: int, count: int
) -> None:
    statements = _Statements(seed)
    first = statements.create()
    name = f"defaults_{seed}"
    parquet = f"{first} USING parquet LOCATION '{tmp_path}/parquet'"
    session.sql(f"DROP TABLE IF EXISTS {name}").collect()
    try:
        for number, statement in enumerate([first, *(statements.next() for _ in range(count))]):
            session.sql((statement if number else parquet).replace("$T", name)).collect()
            session.sql(statement.replace("$T", "lance.t")).collect()
        assert rows(session) == rows(session, name)
        assert session.table("lance.t").columns == session.table(name).columns
    finally:
        session.sql(f"DROP TABLE IF EXISTS {name}").collect()


def test_every_write_fills_in_defaults(session: SparkSession, tmp_path: Path) -> None:
    session.sql("CREATE TABLE lance.t (id INT, a INT DEFAULT 5, s STRING DEFAULT 'x')").collect()
    path = place(session, "lance.t")
    ids = iter(range(1, 100))

    def frame() -> DataFrame:
        return session.createDataFrame([(next(ids),)], "id int")

    session.sql("INSERT INTO lance.t (id) VALUES (0)").collect()
    frame().writeTo("lance.t").append()
    frame().write.mode("append").format("lance").save(path)
    spark_lance.write_dataset(pa.table({"id": pa.array([next(ids)], pa.int32())}), path, mode="append")
    dataset = spark_lance.dataset(path)
    dataset.merge_insert("id").when_not_matched_insert_all().execute(
        pa.table({"id": pa.array([next(ids)], pa.int32())})
    )
    table = LanceTable.forName(session, "lance.t")
    merge = table.alias("t").merge(frame().alias("s"), "t.id = s.id")
    merge.whenNotMatchedInsert(values={"id": "s.id"}).execute()
    table.alias("t").merge(
        frame().alias("s"), "t.id = s.id"
    ).withSchemaEvolution().whenNotMatchedInsertAll().execute()
    session.sql(
        f"MERGE INTO lance.t USING (SELECT {next(ids)} AS id) AS s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    ).collect()
    if RELEASE >= (4, 1):  # Spark 4.0 writes no stream to a Python data source
        stream_once(session, frame(), path, tmp_path)
    last = next(ids)
    assert rows(session) == [(number, 5, "x") for number in range(last)]
    session.sql("UPDATE lance.t SET a = 6, s = 'y'").collect()
    session.sql("UPDATE lance.t SET a = DEFAULT WHERE id > 0").collect()
    assert rows(session) == [(0, 6, "y"), *((number, 5, "y") for number in range(1, last))]


def stream_once(session: SparkSession, frame: DataFrame, path: str, folder: Path) -> None:
    frame.write.format("parquet").save(str(folder / "source"))
    stream = session.readStream.schema("id int").parquet(str(folder / "source")).writeStream
    stream = stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    assert stream.format("lance").start(path).awaitTermination(60)


@pytest.mark.parametrize(
    ("insert", "condition"),
    [
        ("(id, v) VALUES (1, 'abc')", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_FIND_DATA"),  # n is missing
        ("(n, v) VALUES (1, 'abcd')", "EXCEED_LIMIT_LENGTH"),
        ("(n, id) VALUES (1, 'x')", "CANNOT_SAFELY_CAST"),
        ("(n, other) VALUES (1, 2)", "UNRESOLVED_COLUMN.WITH_SUGGESTION"),
        ("(n, id) VALUES (1, 2, 3)", "INSERT_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_COLUMNS"),
    ],
)
def test_an_insert_that_leaves_columns_out_is_checked(
    session: SparkSession, insert: str, condition: str
) -> None:
    session.sql("CREATE TABLE lance.t (id INT, v VARCHAR(3), n INT NOT NULL, p STRING DEFAULT 'x')").collect()
    session.sql("INSERT INTO lance.t (n, v) VALUES (1, 'abc')").collect()
    with pytest.raises(PySparkException) as failure:
        session.sql(f"INSERT INTO lance.t {insert}").collect()
    assert condition in str(failure.value)
    assert rows(session) == [(None, "abc", 1, "x")]


def test_old_rows_keep_the_default_that_they_got(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t AS SELECT 1 AS id").collect()
    session.sql("ALTER TABLE lance.t ADD COLUMN b DECIMAL(5,2) NOT NULL DEFAULT 7 COMMENT 'why'").collect()
    session.sql("ALTER TABLE lance.t ALTER COLUMN b SET DEFAULT 8").collect()
    session.sql("INSERT INTO lance.t (id) VALUES (2)").collect()
    assert rows(session) == [(1, Decimal("7.00")), (2, Decimal("8.00"))]
    field = spark_lance.dataset(place(session, "lance.t")).lance_schema.field("b")
    assert (field.nullable, field.metadata["comment"]) == (False, "why")
    assert (field.metadata["CURRENT_DEFAULT"], field.metadata["EXISTS_DEFAULT"]) == ("8", "7.00BD")
    assert "DEFAULT 8" in session.sql("SHOW CREATE TABLE lance.t").collect()[0][0]
    described = session.sql("DESCRIBE EXTENDED lance.t").collect()
    assert ("b", "decimal(5,2)", "8") in [tuple(row) for row in described]


def test_a_copy_has_no_defaults(session: SparkSession, tmp_path: Path) -> None:
    session.sql("CREATE TABLE lance.t (id INT, a INT DEFAULT 5)").collect()
    session.sql("CREATE TABLE lance.c AS SELECT * FROM lance.t").collect()
    session.table("lance.t").write.mode("append").format("lance").save(str(tmp_path / "copy"))
    for path in (place(session, "lance.c"), str(tmp_path / "copy")):
        assert all(not field.metadata for field in spark_lance.dataset(path).lance_schema.fields)


def test_defaults_that_only_spark_computes(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t (id INT, at TIMESTAMP DEFAULT current_timestamp())").collect()
    path = place(session, "lance.t")
    one = pa.table({"id": pa.array([1], pa.int32())})
    with pytest.raises(SchemaError, match="only Spark computes its DEFAULT current_timestamp"):
        spark_lance.write_dataset(one, path, mode="append")
    session.sql("INSERT INTO lance.t (id) VALUES (1)").collect()
    source = session.createDataFrame([(2,)], "id int").alias("s")
    merge = LanceTable.forName(session, "lance.t").alias("t").merge(source, "t.id = s.id")
    merge.whenNotMatchedInsert(values={"id": "s.id"}).execute()
    assert session.sql("SELECT count(at) FROM lance.t").collect()[0][0] == 2


def test_defaults_of_tables_by_path(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "built")
    builder = LanceTable.create(session).location(path).addColumn("id", "INT")
    table = builder.addColumn("a", "INT", default="5").execute()
    one = session.createDataFrame([(1,)], "id int")
    one.write.mode("append").format("lance").save(path)
    table.alterColumn("a", default="6")
    one.write.mode("append").format("lance").save(path)
    table.alterColumn("a", default="")
    one.write.mode("append").format("lance").save(path)
    assert rows(session, f"lance.`{path}`") == [(1, 5), (1, 6), (1, None)]
    for default in ("id", "'text'", "("):
        with pytest.raises((LanceError, PySparkException)):
            table.alterColumn("a", default=default)
    # A refused call changes nothing, not even the type.
    version = table.dataset().version
    with pytest.raises((LanceError, PySparkException)):
        table.alterColumn("a", type="bigint", comment="x", default="'text'")
    assert table.dataset().version == version


@pytest.mark.reference
def test_fields_in_the_values_of_maps(session: SparkSession) -> None:
    import lance

    row = "SELECT 1 AS id, map('k', named_struct('a', 1, 'b c', 2), 'n', NULL) AS m"
    rows = f"{row} UNION ALL SELECT 2, NULL UNION ALL SELECT 3, map()"
    session.sql(f"CREATE TABLE lance.t AS {rows}").collect()
    session.sql("DELETE FROM lance.t WHERE id = 3").collect()
    for change, kind, expected in (
        ("ADD COLUMN m.value.z DOUBLE COMMENT 'new' FIRST", "z:double,a:int,b c:int", (None, 1, 2)),
        ("ALTER COLUMN m.value.a TYPE BIGINT", "z:double,a:bigint,b c:int", (None, 1, 2)),
        ("RENAME COLUMN m.value.`b c` TO b2", "z:double,a:bigint,b2:int", (None, 1, 2)),
        ("ADD COLUMN m.value.l ARRAY<STRUCT<x: INT>>", None, (None, 1, 2, None)),
        ("ADD COLUMN m.value.l.element.y CHAR(3)", None, (None, 1, 2, None)),
        ("DROP COLUMN m.value.a", None, (None, 2, None)),
    ):
        session.sql(f"ALTER TABLE lance.t {change}").collect()
        table = session.table("lance.t")
        assert table.orderBy("id").collect() == [(1, {"k": expected, "n": None}), (2, None)]
        if kind is not None:
            assert table.schema["m"].dataType.simpleString() == f"map<string,struct<{kind}>>"
    session.sql(
        "INSERT INTO lance.t SELECT 4, map('q', named_struct('z', 0.5D, 'b2', 7, "
        "'l', array(named_struct('x', 1, 'y', 'a'))))"
    ).collect()
    expected_rows = [
        (1, {"k": (None, 2, None), "n": None}),
        (2, None),
        (4, {"q": (0.5, 7, [(1, "a  ")])}),
    ]
    assert session.table("lance.t").orderBy("id").collect() == expected_rows
    read = lance.dataset(LanceTable.forName(session, "lance.t").path).to_table()
    assert [dict(row or ()) for row in read.column("m").to_pylist()] == [
        {"k": {"z": None, "b2": 2, "l": None}, "n": None},
        {},
        {"q": {"z": 0.5, "b2": 7, "l": [{"x": 1, "y": "a  "}]}},
    ]
    for change in ("DROP COLUMN m.value", "RENAME COLUMN m.value TO v", "ADD COLUMN m.key.x INT"):
        with pytest.raises((PySparkException, LanceError)):
            session.sql(f"ALTER TABLE lance.t {change}").collect()


def test_keys_of_maps_change_by_the_statement_of_the_error(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t AS SELECT 1 AS id, map(2, 3) AS m").collect()
    with pytest.raises(PySparkException, match="is a part of the keys of a map") as caught:
        session.sql("ALTER TABLE lance.t ALTER COLUMN m.key TYPE BIGINT").collect()
    remedy = re.search(r"write (CREATE OR REPLACE TABLE )t( AS .* FROM )t", str(caught.value))
    assert remedy is not None
    session.sql(f"{remedy[1]}lance.t{remedy[2]}lance.t").collect()
    assert session.table("lance.t").schema["m"].dataType.simpleString() == "map<bigint,int>"
    assert session.table("lance.t").collect() == [(1, {2: 3})]


@pytest.mark.reference
def test_the_order_of_columns(session: SparkSession) -> None:
    import lance

    session.sql("CREATE TABLE lance.t AS SELECT 1 AS a, named_struct('x', 2, 'y', 3) AS st").collect()
    for change in (
        "ADD COLUMN b INT DEFAULT 4 FIRST",
        "ADD COLUMN c STRING AFTER a",
        "ALTER COLUMN st FIRST",
        "ALTER COLUMN st.y FIRST",
        "ADD COLUMN st.z INT AFTER y",
        "ALTER COLUMN c AFTER b",
    ):
        session.sql(f"ALTER TABLE lance.t {change}").collect()
    session.sql("INSERT INTO lance.t VALUES (named_struct('y', 1, 'z', 2, 'x', 3), 4, 'c', 5)").collect()
    result = [row.asDict(recursive=True) for row in session.table("lance.t").orderBy("a").collect()]
    assert list(result[0]) == ["st", "b", "c", "a"]
    assert result == [
        {"st": {"y": 3, "z": None, "x": 2}, "b": 4, "c": None, "a": 1},
        {"st": {"y": 1, "z": 2, "x": 3}, "b": 4, "c": "c", "a": 5},
    ]
    read = lance.dataset(place(session, "lance.t")).to_table()
    assert read.column_names == list(result[0])
    assert sorted(read.to_pylist(), key=lambda row: row["a"]) == result


def test_every_write_computes_generated_columns(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE lance.t (id INT, at TIMESTAMP DEFAULT TIMESTAMP '2020-01-01 10:00:00', "
        "day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), n INT GENERATED ALWAYS AS (id * 2))"
    ).collect()
    path = place(session, "lance.t")
    ids = iter(range(1, 100))

    def frame() -> DataFrame:
        return session.createDataFrame([(next(ids),)], "id int")

    session.sql("INSERT INTO lance.t (id) VALUES (0)").collect()
    session.sql("INSERT INTO lance.t VALUES (1, TIMESTAMP '2020-01-01 11:00:00', DEFAULT, NULL)").collect()
    next(ids)
    frame().writeTo("lance.t").append()
    frame().selectExpr("*", "DATE '2020-01-01' AS day").write.mode("append").saveAsTable("lance.t")
    table = LanceTable.forName(session, "lance.t")
    merge = table.alias("t").merge(frame().alias("s"), "t.id = s.id")
    merge.whenNotMatchedInsert(values={"id": "s.id", "at": "TIMESTAMP '2020-01-01 12:00:00'"}).execute()
    session.sql(
        f"MERGE INTO lance.t USING (SELECT {next(ids)} AS id, TIMESTAMP '2020-01-01 13:00:00' AS at) AS s "
        "ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, at) VALUES (s.id, s.at)"
    ).collect()
    last = next(ids)
    query = "SELECT id, CAST(day AS STRING), n FROM lance.t ORDER BY id"
    assert session.sql(query).collect() == [(i, "2020-01-01", 2 * i) for i in range(last)]
    session.sql("UPDATE lance.t SET at = at + INTERVAL 1 DAY, id = id + 10 WHERE id < 3").collect()
    table.update("id = 3", {"at": "TIMESTAMP '2020-01-02 00:00:00'"})
    source = session.sql("SELECT id, TIMESTAMP '2020-01-02 05:00:00' AS at FROM VALUES (4), (50) AS v(id)")
    merge = table.alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    session.sql("UPDATE lance.t SET id = 5, day = DATE '2020-01-01' WHERE id = 5").collect()
    expected = [(i, "2020-01-01" if i == 5 else "2020-01-02", 2 * i) for i in (3, 4, 5, 10, 11, 12, 50)]
    assert session.sql(query).collect() == expected
    for wrong in (
        "INSERT INTO lance.t VALUES (1, TIMESTAMP '2020-01-01 11:00:00', DATE '2021-01-01', NULL)",
        "INSERT INTO lance.t SELECT 1, TIMESTAMP '2020-01-01 11:00:00', NULL, 3",
        "UPDATE lance.t SET n = 3",
    ):
        with pytest.raises(
            (LanceError, PySparkException), match=r"generated column .* is violated by the row"
        ):
            session.sql(wrong).collect()
    one = pa.table({"id": pa.array([1], pa.int32()), "at": pa.array([0], pa.timestamp("us", "UTC"))})
    with pytest.raises(SchemaError, match="only Spark computes it, by"):
        spark_lance.write_dataset(one, path, mode="append")
    late = session.sql("SELECT 60 AS id, TIMESTAMP '2020-01-02 05:00:00' AS at, DATE '2020-01-02' AS day")
    with pytest.raises(PySparkException, match=r"add it, as selectExpr\('\*', 'id \* 2 AS `n`'\) does"):
        late.write.mode("append").format("lance").save(path)
    with pytest.raises(PySparkException, match="violated by the row n = NULL"):
        late.selectExpr("*", "CAST(NULL AS INT) AS n").write.mode("append").format("lance").save(path)
    late.selectExpr("*", "id * 2 AS n").write.mode("append").format("lance").save(path)
    expected.append((60, "2020-01-02", 120))
    for change in ("DROP COLUMN at", "RENAME COLUMN id TO other"):
        with pytest.raises((LanceError, PySparkException), match="is used by the generated column"):
            session.sql(f"ALTER TABLE lance.t {change}").collect()
    assert session.sql(query).collect() == expected
    session.sql("CREATE TABLE lance.c AS SELECT * FROM lance.t").collect()
    session.sql("INSERT INTO lance.c (id, n) VALUES (1, 7)").collect()
    session.sql("ALTER TABLE lance.t DROP COLUMN day").collect()
    session.sql("ALTER TABLE lance.t DROP COLUMN at").collect()


def test_merges_of_all_columns_leave_out_what_is_computed(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE lance.t (id INT, v INT, `a b` INT GENERATED ALWAYS AS (v * 2), "
        "n BIGINT GENERATED ALWAYS AS IDENTITY)"
    ).collect()
    clauses = "ON t.id = s.id WHEN MATCHED AND s.other = 0 THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    merge = f"MERGE INTO lance.t AS t USING (SELECT %s, 0 AS other FROM range(%d)) AS s {clauses}"
    session.sql(merge % ("CAST(id AS INT) AS ID, CAST(id AS INT) AS v", 2)).collect()
    session.sql(merge % ("CAST(id AS INT) AS id, IF(id = 0, NULL, 7) AS v", 3)).collect()
    assert [row[:3] for row in rows(session)] == [(0, None, None), (1, 7, 14), (2, 7, 14)]
    assert {row[3] for row in rows(session)} == {1, 2, 3}
    source = session.sql("SELECT 3 AS id, 8 AS v")
    if RELEASE >= (4, 1):
        source.mergeInto("lance.t", expr("lance.t.id = 9")).whenNotMatched().insertAll().merge()
        assert (3, 8, 16, 4) in rows(session)
    before = rows(session)
    for columns, message in (
        ("1 AS id", "`v`"),
        ("1 AS id, 2 AS v, 5 AS `a b`", "is violated by the row a b = 5"),
        ("1 AS id, 2 AS v, 5 AS n", "IDENTITY"),
        ("1 AS id, 2 AS v, 3 AS V", "`v`"),
    ):
        with pytest.raises((LanceError, PySparkException), match=message):
            session.sql(merge % (columns, 1)).collect()
    assert rows(session) == before


def test_every_write_fills_in_identity_columns(session: SparkSession, tmp_path: Path) -> None:
    session.sql(
        "CREATE TABLE lance.t (a INT, id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5))"
    ).collect()
    path = place(session, "lance.t")
    table = LanceTable.forName(session, "lance.t")

    def frame(a: int) -> DataFrame:
        return session.createDataFrame([(a,)], "a int")

    session.sql("INSERT INTO lance.t (a) VALUES (0), (0)").collect()
    session.sql("INSERT INTO lance.t VALUES (1, DEFAULT), (1, NULL)").collect()
    frame(2).writeTo("lance.t").append()
    frame(2).write.mode("append").saveAsTable("lance.t")
    frame(2).write.format("lance").mode("append").save(path)
    table.alias("t").merge(frame(3).alias("s"), "t.a = s.a").whenNotMatchedInsertAll().execute()
    session.sql(
        "MERGE INTO lance.t USING (SELECT 2 AS a UNION ALL SELECT 4) AS s ON t.a = s.a "
        "WHEN MATCHED THEN UPDATE SET a = 20 WHEN NOT MATCHED THEN INSERT (a) VALUES (s.a)"
    ).collect()
    one = pa.table({"a": pa.array([5], pa.int32())})
    spark_lance.write_dataset(one, path, mode="append")
    merge = spark_lance.dataset(path).merge_insert("a").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(pa.table({"a": pa.array([5, 6], pa.int32())}))
    if RELEASE >= (4, 1):
        frame(7).write.parquet(f"{tmp_path}/stream")
        stream = session.readStream.schema("a int").parquet(f"{tmp_path}/stream").writeStream
        stream = stream.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True)
        stream.toTable("lance.t").awaitTermination()
    else:  # streams do not write to Lance
        frame(7).writeTo("lance.t").append()
    expected = [0, 0, 1, 1, 20, 20, 20, 3, 4, 5, 6, 7]
    assert [row.a for row in session.table("lance.t").orderBy("id").collect()] == expected
    ids = [row.id for row in session.table("lance.t").orderBy("id").collect()]
    assert ids == list(range(10, 10 + 5 * len(ids), 5))
    session.sql("CALL lance.system.restore('t', '3')").collect()
    session.sql("INSERT INTO lance.t (a) VALUES (8)").collect()
    assert [row.id for row in session.table("lance.t").orderBy("id").collect()] == [10, 15, ids[-1] + 5]
    for wrong in (
        "INSERT INTO lance.t VALUES (9, 1)",
        "UPDATE lance.t SET id = 3",
        "MERGE INTO lance.t USING (SELECT 9 AS a, 1L AS id) AS s ON t.a = s.a WHEN NOT MATCHED THEN INSERT *",
        "ALTER TABLE lance.t ALTER COLUMN id SET DEFAULT 3",
        "CREATE TABLE lance.o (id BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY)",
    ):
        with pytest.raises((LanceError, PySparkException), match=r"IDENTITY|identity|generated"):
            session.sql(wrong).collect()
    assert session.table("lance.t").count() == 3
    column = LanceTable.columnBuilder("id").dataType(IntegerType).generatedByDefaultAsIdentity(-1, -2).build()
    LanceTable.create(session).tableName("lance.b").addColumn("a", "INT").addColumn(column).execute()
    session.sql("INSERT INTO lance.b VALUES (1, 7), (2, NULL), (3, NULL)").collect()
    session.sql("UPDATE lance.b SET id = 8 WHERE id = 7").collect()
    assert rows(session, "lance.b") == [(1, 8), (2, -1), (3, -3)]


def test_concurrent_writers_number_rows_differently(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t (a INT, id BIGINT GENERATED ALWAYS AS IDENTITY)").collect()
    path = place(session, "lance.t")
    rows_of_a_writer = pa.table({"a": pa.array(range(7), pa.int32())})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spark_lance.write_dataset(rows_of_a_writer, path, mode="append"), range(12)))
    ids = [row.id for row in session.table("lance.t").collect()]
    assert sorted(ids) == list(range(1, 7 * 12 + 1))


def test_generated_columns_are_computed_from_text_as_it_is_stored(session: SparkSession) -> None:
    columns = "c CHAR(4), v VARCHAR(2), g STRING GENERATED ALWAYS AS (c || v)"
    session.sql(f"CREATE TABLE lance.c ({columns})").collect()
    session.sql("INSERT INTO lance.c (c, v) VALUES ('a', 'b  ')").collect()
    table = LanceTable.forName(session, "lance.c")
    table.update(set={"c": "'x'", "v": "'y   '"})
    assert rows(session, "lance.c") == [("x   ", "y ", "x   y ")]
    more = session.sql("SELECT 'n' AS c, 'm  ' AS v")
    merge = table.alias("t").merge(more.alias("s"), "t.c = s.c")
    merge.whenNotMatchedInsert(values={"c": "s.c", "v": "s.v"}).execute()
    assert sorted(rows(session, "lance.c")) == [("n   ", "m ", "n   m "), ("x   ", "y ", "x   y ")]


def test_generated_columns_of_builders(session: SparkSession, tmp_path: Path) -> None:
    builder = LanceTable.create(session).location(tmp_path / "t").addColumn("id", "INT")
    builder.addColumn("n", "BIGINT", generatedAlwaysAs="id + 1").execute()
    session.sql(f"INSERT INTO lance.`{tmp_path}/t` (id) VALUES (1)").collect()
    assert rows(session, f"lance.`{tmp_path}/t`") == [(1, 2)]
    one = LanceTable.columnBuilder("n").dataType("INT").generatedAlwaysAs("id + 1").build()
    LanceTable.create(session).tableName("lance.b").addColumn("id", "INT").addColumn(one).execute()
    session.sql("INSERT INTO lance.b (id) VALUES (1)").collect()
    assert rows(session, "lance.b") == [(1, 2)]
    dated = LanceTable.create(session).location(tmp_path / "d").addColumn("at", "TIMESTAMP")
    dated.addColumn("year", "INT", generatedAlwaysAs="YEAR(at)").execute()
    session.sql(f"INSERT INTO lance.`{tmp_path}/d` (at) VALUES (timestamp'2026-01-02')").collect()
    assert session.table(f"lance.`{tmp_path}/d`").select("year").collect() == [(2026,)]
    for sql, message in (("rand()", "not about the row alone"), ("n + 1", "generated, too"), ("x", "x")):
        other = LanceTable.create(session).location(tmp_path / "o").addColumn("id", "INT")
        other.addColumn("n", "DOUBLE", generatedAlwaysAs=sql)
        with pytest.raises(LanceError, match=message):
            other.execute()
