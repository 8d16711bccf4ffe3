"""A statement means the same on every face: SQL, DataFrames by name and by path, `LanceTable`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import (
    ConstraintViolationError,
    LanceError,
    NullValueError,
    OptionError,
    SchemaError,
    TextLengthError,
    UnsupportedFormatError,
)
from tests.conftest import interpreted

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    root = tmp_path_factory.mktemp("faces")
    session = spark_lance.enable(interpreted(spark.newSession()), root=str(root))
    session.sql("CREATE NAMESPACE lance.d").collect()
    session.sql("USE lance.d").collect()
    return session


@pytest.fixture
def run(session: SparkSession) -> Callable[[str], list[tuple[Any, ...]]]:
    return lambda sql: [tuple(row) for row in session.sql(sql).collect()]


Run = Callable[[str], list[tuple[Any, ...]]]


def path_of(run: Run, table: str) -> str:
    return next(str(row[1]) for row in run(f"DESCRIBE EXTENDED {table}") if row[0] == "Location")


def writers(frame: DataFrame, table: str, path: str, options: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """Return the ways to append rows of a DataFrame to a table."""
    plain = frame.write.options(**options)
    return {
        "save": lambda: plain.format("lance").mode("append").save(path),
        "saveAsTable": lambda: frame.write.options(**options).mode("append").saveAsTable(table),
        "insertInto": lambda: frame.write.options(**options).insertInto(table),
        "writeTo": lambda: frame.writeTo(table).options(**options).append(),
    }


def outcome(action: Callable[[], Any]) -> str:
    """Return "done", or what the error says."""
    try:
        action()
    except (PySparkException, LanceError) as error:
        return str(error)
    return "done"


# Option, its value, and a part of the answer of every face.
WRITE_OPTIONS = (
    ("dataChange", "false", "'dataChange' is not supported"),
    ("dataChange", "true", "done"),
    ("bogus", "1", "option 'bogus'"),
    ("max_rows_per_fil", "3", "did you mean 'max_rows_per_file'"),
    ("lance.foo", "1", "option 'lance.foo'"),
    ("partitionOverwriteMode", "dynamic", "done"),
    ("partitionOverwriteMode", "sideways", "static or dynamic"),
    ("overwrite-mode", "static", "done"),
    ("owner", "me", "done"),
    ("check-nullability", "false", "done"),
    ("isolation-level", "snapshot", "only changes of the same rows are conflicts"),
    ("compression-codec", "zstd", "done"),
    ("delta.appendOnly", "true", "ALTER TABLE t SET TBLPROPERTIES ('delta.appendOnly' = 'true')"),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "value", "answer"), WRITE_OPTIONS)
def test_unknown_options_of_writes(
    session: SparkSession, run: Run, name: str, value: str, answer: str
) -> None:
    run("CREATE OR REPLACE TABLE o (id INT, v STRING)")
    frame = session.sql("SELECT 1 AS id, 'a' AS v")
    for face, write in writers(frame, "o", path_of(run, "o"), {name: value}).items():
        assert answer.lower() in outcome(write).lower(), face


READ_OPTIONS = (
    ("bogus", "1", "option 'bogus'"),
    ("dataChange", "false", "'dataChange' is not supported"),
    ("batchsize", "3", "did you mean 'batch_size'"),
    ("owner", "me", "done"),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "value", "answer"), READ_OPTIONS)
def test_unknown_options_of_reads(
    session: SparkSession, run: Run, name: str, value: str, answer: str
) -> None:
    run("CREATE OR REPLACE TABLE o (id INT, v STRING)")
    path = path_of(run, "o")
    faces = {
        "load": lambda: session.read.format("lance").option(name, value).load(path).collect(),
        "table": lambda: session.read.option(name, value).table("o").collect(),
        "with": lambda: run(f"SELECT * FROM o WITH ('{name}' = '{value}')"),
        "stream": lambda: session.readStream.format("lance").option(name, value).load(path).schema,
    }
    for face, read in faces.items():
        assert answer.lower() in outcome(read).lower(), face


@pytest.mark.parametrize(
    ("name", "value"),
    [("with_row_id", "true"), ("columns", "id"), ("table", "history"), ("with_row_offset", "true")],
)
def test_options_that_change_columns_are_refused_by_name(
    session: SparkSession, run: Run, name: str, value: str
) -> None:
    run("CREATE OR REPLACE TABLE o AS SELECT 1 AS id, 'a' AS v")
    for read in (
        lambda: session.read.option(name, value).table("o").collect(),
        lambda: run(f"SELECT * FROM o WITH ('{name}' = '{value}')"),
    ):
        assert f"option {name!r} does nothing for a table by name" in outcome(read)
    assert len(run("SELECT id, _rowid FROM o")[0]) == 2
    assert len(run("SELECT * FROM lance.d.o.history")) > 0


def test_times_and_versions_by_name(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE o (id INT)")
    run("INSERT INTO o VALUES (1)")
    version = run("SELECT max(version) FROM lance.d.o.history")[0][0]
    run("INSERT INTO o VALUES (2)")
    run("ALTER TABLE o ADD COLUMN v STRING")
    moment = run(f"SELECT timestamp FROM lance.d.o.history WHERE version = {version}")[0][0]
    for name, value in (("versionAsOf", str(version)), ("timestampAsOf", str(moment))):
        rows = session.read.option(name, value).table("o")
        assert rows.columns == ["id"]
        assert [row.id for row in rows.collect()] == [1]
    assert run(f"SELECT * FROM o WITH ('versionAsOf' = '{version}')") == [(1,)]


PROPERTIES = (
    ("primary_kye", "id", "did you mean 'primary_key'"),
    ("primaryKey", "id", "did you mean 'primary_key'"),
    ("enable_stable_rowids", "true", "did you mean 'enable_stable_row_ids'"),
    ("v.lance.compresion", "zstd", "did you mean 'v.lance.compression'"),
    ("nope.lance.compression", "zstd", "no column 'nope'"),
    ("delta.apendOnly", "true", "did you mean 'delta.appendOnly'"),
    ("write.data.path", "/data/t", "CREATE TABLE lance.`/path`"),
)


@pytest.mark.parametrize(("name", "value", "answer"), PROPERTIES)
def test_table_properties_that_are_misspelt(
    session: SparkSession, run: Run, tmp_path: Path, name: str, value: str, answer: str
) -> None:
    properties = f"TBLPROPERTIES ('{name}' = '{value}')"
    for sql in (
        f"CREATE TABLE wrong (id INT, v STRING) {properties}",
        f"CREATE TABLE wrong {properties} AS SELECT 1 AS id, 'a' AS v",
        f"CREATE OR REPLACE TABLE wrong {properties} AS SELECT 1 AS id, 'a' AS v",
    ):
        with pytest.raises(PySparkException, match=answer):
            run(sql)
        assert run("SHOW TABLES LIKE 'wrong'") == []
    run("CREATE OR REPLACE TABLE right (id INT, v STRING)")
    with pytest.raises(PySparkException):
        run(f"ALTER TABLE right SET {properties}")
    builder = LanceTable.create(session).location(str(tmp_path / "b")).addColumn("id", "int")
    with pytest.raises(OptionError):
        builder.property(name, value).execute()
    with pytest.raises(OptionError):
        builder.option("nope.lance.compression", "zstd").execute()


def test_other_settings_stay_free(run: Run) -> None:
    run(
        "CREATE OR REPLACE TABLE s (id INT) TBLPROPERTIES ('team' = 'x', 'lance.auto_cleanup.interval' = '9')"
    )
    run("ALTER TABLE s SET TBLPROPERTIES ('delta.appendOnly' = 'true', 'note' = 'a')")
    shown: dict[Any, Any] = dict(run("SHOW TBLPROPERTIES s"))
    assert (shown["team"], shown["delta.appendOnly"], shown["note"]) == ("x", "true", "a")


def test_row_tracking_is_stable_row_ids(session: SparkSession, run: Run, tmp_path: Path) -> None:
    for columns in ("(id INT)", "AS SELECT 1 AS id"):
        head, query = ("", columns) if columns.startswith("AS") else (columns, "")
        properties = "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
        run(f"CREATE OR REPLACE TABLE tracked {head} {properties} {query}")
        shown: dict[Any, Any] = dict(run("SHOW TBLPROPERTIES tracked"))
        assert shown["enable_stable_row_ids"] == "true"
        run("DROP TABLE tracked")
    builder = LanceTable.create(session).location(str(tmp_path / "b")).addColumn("id", "int")
    assert builder.property("delta.enableChangeDataFeed", "true").execute().dataset().has_stable_row_ids
    run("CREATE OR REPLACE TABLE untracked AS SELECT 1 AS id")
    with pytest.raises(PySparkException) as caught:
        run("ALTER TABLE untracked SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    remedy = str(caught.value).split("gets: write ")[1].splitlines()[0]
    run(remedy.replace(" new ", " tracked ").replace("FROM t", "FROM untracked"))
    shown = dict(run("SHOW TBLPROPERTIES tracked"))
    assert shown["enable_stable_row_ids"] == "true"


def test_nothing_is_deleted_while_gc_is_disabled(run: Run) -> None:
    run("CREATE OR REPLACE TABLE whole (id INT) TBLPROPERTIES ('gc.enabled' = 'false')")
    for sql in ("VACUUM whole", "CALL lance.system.expire_snapshots('whole')"):
        with pytest.raises(PySparkException, match="UNSET") as caught:
            run(sql)
    run("VACUUM whole DRY RUN")
    remedy = re.search(r"ALTER TABLE t (UNSET [^:]*?) allows", str(caught.value))
    assert remedy is not None
    run(f"ALTER TABLE whole {remedy[1]}")
    run("VACUUM whole")


def test_a_location_stays(run: Run) -> None:
    run("DROP TABLE IF EXISTS s")
    run("CREATE TABLE s (id INT)")
    with pytest.raises(PySparkException, match="SET LOCATION cannot move a Lance table"):
        run("ALTER TABLE s SET LOCATION '/tmp/elsewhere'")


def test_columns_of_the_primary_key_are_dropped_after_the_key(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE k (id INT NOT NULL, v STRING, w INT) TBLPROPERTIES (primary_key = 'id')")
    path = path_of(run, "k")
    with pytest.raises(PySparkException, match="a part of the primary key"):
        run("ALTER TABLE k DROP COLUMNS (w, id)")
    with pytest.raises(SchemaError, match="unsetPrimaryKey"):
        LanceTable.forPath(session, path).dropColumns("ID")
    assert [row[0] for row in run("DESCRIBE k")] == ["id", "v", "w"]
    run("ALTER TABLE k UNSET TBLPROPERTIES ('primary_key')")
    assert "primary_key" not in str(run("SHOW TBLPROPERTIES k"))
    run("ALTER TABLE k DROP COLUMNS (w, id)")
    assert [row[0] for row in run("DESCRIBE k")] == ["v"]
    with pytest.raises(SchemaError, match="no primary key"):
        LanceTable.forPath(session, path).unsetPrimaryKey()


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        ("INT", "5, 5"),
        ("STRING", "'a', 'a'"),
        ("DATE", "DATE'2020-01-01', DATE'2020-01-01'"),
        ("BIGINT", "1, 2"),
    ],
)
def test_a_merge_inserts_a_primary_key_once(session: SparkSession, run: Run, column: str, keys: str) -> None:
    unique = column == "BIGINT"
    run(f"CREATE OR REPLACE TABLE k (id {column} NOT NULL, v INT) TBLPROPERTIES (primary_key = 'id')")
    source = f"SELECT explode(array({keys})) AS id, 1 AS v"
    merge = f"MERGE INTO k USING ({source}) s ON k.id = s.id WHEN NOT MATCHED THEN INSERT *"
    table = LanceTable.forPath(session, path_of(run, "k")).alias("t")
    builder = table.merge(session.sql(source).alias("s"), "t.id = s.id").whenNotMatchedInsertAll()
    if unique:
        builder.execute()
        assert run("SELECT count(*) FROM k") == [(2,)]
        return
    with pytest.raises(PySparkException, match="with one primary key"):
        run(merge)
    with pytest.raises(LanceError, match="with one primary key"):
        builder.execute()
    assert run("SELECT count(*) FROM k") == [(0,)]
    run(f"CREATE OR REPLACE TABLE k2 (id {column}, v INT)")
    run(merge.replace("INTO k ", "INTO k2 ").replace("k.id", "k2.id"))
    assert run("SELECT count(*) FROM k2") == [(2,)]


def test_a_table_is_one_partition(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE o AS SELECT 1 AS id")
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        run("INSERT OVERWRITE o VALUES (2)")
        assert run("SELECT * FROM o") == [(2,)]
        session.sql("SELECT 3 AS id").write.insertInto("o", overwrite=True)
        assert run("SELECT * FROM o") == [(3,)]
    finally:
        session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    session.sql("SELECT 4 AS id").writeTo("o").overwritePartitions()
    assert run("SELECT * FROM o") == [(4,)]


def test_functions_that_do_not_exist(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE o AS SELECT 'a' AS s")
    for sql in ("SELECT uper(s) FROM o", "SELECT lance.d.upper('a')", "UPDATE o SET s = uper(s)"):
        with pytest.raises(AnalysisException) as error:
            run(sql)
        assert error.value.getCondition() == "UNRESOLVED_ROUTINE"
    assert ("upper",) in run("SHOW FUNCTIONS")
    assert ("upper",) not in run("SHOW USER FUNCTIONS IN lance.d")
    assert run("SELECT upper(s) FROM o") == [("A",)]


PAIR = "named_struct('b', {b}, 'a', {a})"
ORDERED = {
    "p": PAIR,
    "l": f"array({PAIR})",
    "m": f"map('k', {PAIR})",
    "n": "named_struct('y', {b}, 'x', " + PAIR + ")",
}


def columns_of(a: object, b: object) -> dict[str, str]:
    """Return values whose structs have their fields in another order than the columns of `structs`."""
    return {name: text.format(a=a, b=b) for name, text in ORDERED.items()}


@pytest.fixture
def structs(run: Run) -> str:
    pair = "STRUCT<a: INT, b: INT>"
    run(
        f"CREATE OR REPLACE TABLE st (id INT, p {pair}, l ARRAY<{pair}>, m MAP<STRING, {pair}>, "
        f"n STRUCT<x: {pair}, y: INT>)"
    )
    run("INSERT INTO st VALUES (1, NULL, NULL, NULL, NULL)")
    return path_of(run, "st")


def stored(run: Run, key: int) -> tuple[Any, ...]:
    return run(
        f"SELECT p.a, p.b, l[0].a, l[0].b, m['k'].a, m['k'].b, n.x.a, n.x.b, n.y FROM st WHERE id = {key}"
    )[0]


def test_fields_of_structs_are_stored_by_name(session: SparkSession, structs: str, run: Run) -> None:
    def row(a: int, b: int) -> tuple[Any, ...]:
        return (a, b, a, b, a, b, a, b, b)

    def source(key: int, a: int, b: int) -> str:
        return f"SELECT {key} AS id, " + ", ".join(
            f"{text} AS {name}" for name, text in columns_of(a, b).items()
        )

    def sets(a: object, b: object) -> str:
        return ", ".join(f"{name} = {text}" for name, text in columns_of(a, b).items())

    run(f"UPDATE st SET {sets(1, 2)}")
    assert stored(run, 1) == row(1, 2)
    run(f"UPDATE st SET {sets('id + 2', 'id + 3')}")
    assert stored(run, 1) == row(3, 4)
    run("UPDATE st SET n.x = named_struct('b', 6, 'a', 5), n.y = 6, p = NULL")
    assert stored(run, 1)[6:] == (5, 6, 6)
    merge = (
        "MERGE INTO st USING ({}) s ON st.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    for key in (1, 2):
        run(merge.format(source(key, 7, 8)))
        assert stored(run, key) == row(7, 8)
    run(f"INSERT INTO st BY NAME {source(3, 9, 10)}")
    assert stored(run, 3) == row(9, 10)
    for key, (face, write) in enumerate(
        writers(session.sql(source(0, 11, 12)), "st", structs, {}).items(), 4
    ):
        if face != "insertInto":  # by place, as Spark documents it
            write()
            run(f"UPDATE st SET id = {key} WHERE id = 0")
            assert stored(run, key) == row(11, 12), face
    table = LanceTable.forPath(session, structs).alias("t")
    table.update("id = 1", columns_of(13, 14))
    assert stored(run, 1) == row(13, 14)
    frame = session.sql(source(1, 15, 16) + " UNION ALL " + source(20, 15, 16)).alias("s")
    table.merge(frame, "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert stored(run, 1) == stored(run, 20) == row(15, 16)


VALUES = (
    ("i", "'12'", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ("b", "1", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ("ts", "12345", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ("i", "b", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ("l", "array('1')", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ("ti", "i + 300", "CAST_OVERFLOW_IN_TABLE_INSERT"),
    ("c", "'abcd'", "EXCEED_LIMIT_LENGTH"),
    ("k", "NULL", "NOT_NULL_ASSERT_VIOLATION"),
    ("k", "nullif(k, 1)", "NOT_NULL_ASSERT_VIOLATION"),
    ("l", "array(2L)", None),
    ("s", "5", None),
    ("ts", "DATE'2020-01-01'", None),
    ("i", "2.0D", None),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("column", "value", "condition"), VALUES)
def test_assignments_follow_insert(run: Run, column: str, value: str, condition: str | None) -> None:
    run(
        "CREATE OR REPLACE TABLE v (k INT NOT NULL, i INT, b BOOLEAN, ts TIMESTAMP, s STRING, ti TINYINT, "
        "l ARRAY<INT>, c VARCHAR(3))"
    )
    run("INSERT INTO v VALUES (1, 1, true, NULL, NULL, NULL, NULL, NULL)")
    for sql in (
        f"UPDATE v SET {column} = {value}",
        f"MERGE INTO v USING (SELECT 1 AS one) ON k = one WHEN MATCHED THEN UPDATE SET {column} = {value}",
    ):
        if condition is None:
            run(sql)
            continue
        with pytest.raises(PySparkException) as error:
            run(sql)
        assert error.value.getCondition() == condition, sql


def test_random_values(run: Run) -> None:
    run("CREATE OR REPLACE TABLE r AS SELECT id, CAST(NULL AS DOUBLE) AS d, '' AS s FROM range(20)")
    run("UPDATE r SET d = rand(), s = uuid()")
    assert run("SELECT count(DISTINCT d), count(DISTINCT s), min(length(s)) FROM r") == [(20, 20, 36)]
    run(
        "MERGE INTO r USING (SELECT id FROM range(10, 40)) q ON r.id = q.id "
        "WHEN MATCHED THEN UPDATE SET s = uuid() "
        "WHEN NOT MATCHED THEN INSERT (id, d, s) VALUES (q.id, rand(7), uuid())"
    )
    assert run("SELECT count(DISTINCT d), count(DISTINCT s), count(*) FROM r") == [(40, 40, 40)]
    with pytest.raises(AnalysisException) as error:
        run("DELETE FROM r WHERE rand() < 2")
    assert error.value.getCondition() == "INVALID_NON_DETERMINISTIC_EXPRESSIONS"


def test_several_rows_for_one(run: Run) -> None:
    run("CREATE OR REPLACE TABLE c AS SELECT 1 AS id, 0 AS v")
    with pytest.raises(PySparkException, match="row 0 of fragment 0") as error:
        run(
            "MERGE INTO c USING (SELECT explode(array(1, 1)) AS id, 2 AS v) s ON c.id = s.id "
            "WHEN MATCHED THEN UPDATE SET *"
        )
    assert (error.value.getCondition(), error.value.getSqlState()) == ("MERGE_CARDINALITY_VIOLATION", "23K01")
    assert run("SELECT * FROM c") == [(1, 0)]


# Values of (id, c) that the table cannot hold, Spark's condition for them, and our class.
REFUSED_ROWS = (
    ("CAST(null AS INT)", "'a'", "NOT_NULL_ASSERT_VIOLATION", NullValueError),
    ("2", "'abcd'", "EXCEED_LIMIT_LENGTH", TextLengthError),
    ("20", "'a'", "CHECK_CONSTRAINT_VIOLATION", ConstraintViolationError),
)


@pytest.mark.parametrize(("key", "text", "condition", "error_class"), REFUSED_ROWS)
def test_conditions_of_rows_that_are_refused(
    session: SparkSession, run: Run, key: str, text: str, condition: str, error_class: type[LanceError]
) -> None:
    run("DROP TABLE IF EXISTS con")
    run("CREATE TABLE con (id INT NOT NULL, c CHAR(2))")
    run("INSERT INTO con VALUES (1, 'a')")
    run("ALTER TABLE con ADD CONSTRAINT small CHECK (id < 10)")
    frame = session.sql(f"SELECT {key} AS id, {text} AS c")
    frame.createOrReplaceTempView("con_rows")
    table = LanceTable.forName(session, "lance.d.con")
    statements = (
        "INSERT INTO con SELECT * FROM con_rows",
        f"UPDATE con SET id = {key}, c = {text}",
        "MERGE INTO con t USING con_rows s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    )
    writes: list[Callable[[], Any]] = [
        *writers(frame, "con", path_of(run, "con"), {}).values(),
        *(partial(run, statement) for statement in statements),
    ]
    for write in writes:
        with pytest.raises(PySparkException) as refused:
            write()
        if condition != "CHECK_CONSTRAINT_VIOLATION" or RELEASE >= (4, 1):
            assert refused.value.getCondition() == condition, str(refused.value)
            assert len(str(refused.value.getSqlState())) == 5
    changes: list[Callable[[], Any]] = [
        lambda: table.update(set={"id": key, "c": text}),
        table.alias("t").merge(frame.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute,
    ]
    for change in changes:
        with pytest.raises(error_class) as raised:
            change()
        assert "Traceback" not in str(raised.value)
    assert run("SELECT id, trim(c) FROM con") == [(1, "a")]


# Options, rows of a DataFrame, the columns of the table after the write, and its rows after an append.
SCHEMA_OPTIONS = (
    (
        {"mergeSchema": "true"},
        "SELECT 3 AS a, 'z' AS b, named_struct('x', 1, 'y', 'new') AS n, 1.5D AS c",
        "struct<a:bigint,b:string,n:struct<x:int,y:string>,c:double>",
        ["1 x None None", "3 z Row(x=1, y='new') 1.5"],
    ),
    (
        {"overwriteSchema": "true"},
        "SELECT 'q' AS a, 7 AS d",
        "struct<a:string,d:int>",
        None,
    ),
    (
        {"overwriteSchema": "false"},
        "SELECT 3 AS a, 'z' AS b, named_struct('x', 1) AS n",
        "struct<a:bigint,b:string,n:struct<x:int>>",
        ["1 x None", "3 z Row(x=1)"],
    ),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("options", "query", "schema", "rows"), SCHEMA_OPTIONS, ids=str)
def test_options_about_columns_by_name(
    session: SparkSession, run: Run, options: dict[str, str], query: str, schema: str, rows: list[str] | None
) -> None:
    frame = session.sql(query)
    appends: list[Callable[[], Any]] = [
        lambda: frame.write.options(**options).mode("append").saveAsTable("o"),
        lambda: frame.writeTo("o").options(**options).append(),
        lambda: frame.write.options(**options).insertInto("o"),
    ]
    overwrites: list[Callable[[], Any]] = [
        lambda: frame.write.options(**options).mode("overwrite").saveAsTable("o"),
        lambda: frame.writeTo("o").options(**options).overwrite(functions.lit(True)),
        lambda: frame.writeTo("o").options(**options).overwritePartitions(),
        lambda: frame.writeTo("o").options(**options).replace(),
        lambda: frame.write.options(**options).insertInto("o", overwrite=True),
    ]
    for write, expected in [(w, rows) for w in appends if rows] + [
        (w, rows[1:] if rows else ["q 7"]) for w in overwrites
    ]:
        run("CREATE OR REPLACE TABLE o (a BIGINT, b STRING, n STRUCT<x: INT>)")
        run("INSERT INTO o VALUES (1, 'x', NULL)")
        write()
        assert session.table("o").schema.simpleString() == schema
        assert sorted(" ".join(map(str, row)) for row in run("SELECT * FROM o")) == expected


VIEWS = "Spark has views in other catalogs from 4.2 on: write "
# Statements about views in a catalog of Spark 4.0 and 4.1, as in HINTS.
VIEW_HINTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "CREATE VIEW hv AS SELECT * FROM h",
        f"{VIEWS}CREATE VIEW spark_catalog.default.hv AS SELECT ... FROM lance.db.t",
        (
            "CREATE VIEW spark_catalog.default.hv AS SELECT id FROM lance.d.h",
            "SELECT id FROM spark_catalog.default.hv",
        ),
    ),
    (
        "ALTER VIEW lance.d.hv AS SELECT id FROM h",
        f"{VIEWS}ALTER VIEW spark_catalog.default.hv AS ...",
        ("ALTER VIEW spark_catalog.default.hv AS SELECT v FROM lance.d.h",),
    ),
    (
        "ALTER VIEW hv SET TBLPROPERTIES ('a' = 'b')",
        f"{VIEWS}ALTER VIEW spark_catalog.default.hv SET TBLPROPERTIES ...",
        ("ALTER VIEW spark_catalog.default.hv SET TBLPROPERTIES ('a' = 'b')",),
    ),
    (
        "ALTER VIEW hv UNSET TBLPROPERTIES ('a')",
        f"{VIEWS}ALTER VIEW spark_catalog.default.hv UNSET TBLPROPERTIES ...",
        ("ALTER VIEW spark_catalog.default.hv UNSET TBLPROPERTIES ('a')",),
    ),
    (
        "ALTER VIEW hv RENAME TO `h v`",
        f"{VIEWS}ALTER VIEW spark_catalog.default.hv RENAME TO default.`h v`",
        ("ALTER VIEW spark_catalog.default.hv RENAME TO default.other_hv",),
    ),
    (
        "ALTER VIEW lance.d.other_hv WITH SCHEMA BINDING",
        f"{VIEWS}ALTER VIEW spark_catalog.default.other_hv WITH SCHEMA ...",
        ("ALTER VIEW spark_catalog.default.other_hv WITH SCHEMA BINDING",),
    ),
    ("SHOW VIEWS", f"{VIEWS}SHOW VIEWS IN spark_catalog.default", ("SHOW VIEWS IN spark_catalog.default",)),
    ("SHOW VIEWS IN lance.d LIKE 'h*'", f"{VIEWS}SHOW VIEWS IN spark_catalog.default", ()),
    ("SHOW VIEWS IN lance", f"{VIEWS}SHOW VIEWS IN spark_catalog.default", ()),
    (
        "DROP VIEW IF EXISTS other_hv",
        f"{VIEWS}DROP VIEW IF EXISTS spark_catalog.default.other_hv",
        (
            "DROP VIEW IF EXISTS spark_catalog.default.other_hv",
            "DROP VIEW IF EXISTS spark_catalog.default.hv",
        ),
    ),
    ("DROP VIEW lance.d.`h v`", f"{VIEWS}DROP VIEW IF EXISTS spark_catalog.default.`h v`", ()),
)
# What is refused, a part of the error, and what the error says to write. {other} is a path.
HINTS: tuple[Any, ...] = (
    (
        "CREATE TABLE h2 (a INT) LOCATION '{other}'",
        "leave out LOCATION, or name the path itself, lance.`file:{other}`",
        ("CREATE TABLE h2 (a INT)", "CREATE TABLE lance.`file:{other}` (a INT)"),
    ),
    (
        "CREATE TABLE h2 (a INT) USING parquet",
        "leave it out, write USING lance",
        ("CREATE TABLE h2 (a INT)", "CREATE OR REPLACE TABLE h2 (a INT) USING lance"),
    ),
    (
        "CREATE TABLE h2 (a INT, b INT) PARTITIONED BY (weeks(a))",
        "write a column, or years, months, days, hours, bucket or truncate of one",
        ("CREATE TABLE h2 (a INT, b INT) PARTITIONED BY (bucket(4, a))", "OPTIMIZE h2 FULL"),
    ),
    (
        "CREATE TABLE h2 (a INT) CLUSTER BY AUTO",
        "write CREATE TABLE h2 ... CLUSTER BY (columns)",
        ("CREATE TABLE h2 (a INT) CLUSTER BY (a)",),
    ),
    (
        "alter table lance.d.h cluster by auto;",
        "write ALTER TABLE lance.d.h CLUSTER BY (columns), or CLUSTER BY NONE",
        ("ALTER TABLE lance.d.h CLUSTER BY (id)", "ALTER TABLE lance.d.h CLUSTER BY NONE"),
    ),
    (
        "REPLACE TABLE h2 SHALLOW CLONE h",
        "no table h2 to replace: write CREATE OR REPLACE TABLE",
        ("CREATE OR REPLACE TABLE h2 SHALLOW CLONE h", "REPLACE TABLE h2 DEEP CLONE h VERSION AS OF 1"),
    ),
    (
        "CREATE OR REPLACE TABLE IF NOT EXISTS h2 CLONE h",
        "exclude each other: leave out one of them",
        ("CREATE TABLE IF NOT EXISTS h2 CLONE h", "CREATE OR REPLACE TABLE h2 CLONE h"),
    ),
    (
        "ALTER TABLE h CREATE OR REPLACE TAG IF NOT EXISTS checked",
        "exclude each other: leave out one of them",
        ("ALTER TABLE h CREATE OR REPLACE TAG checked", "ALTER TABLE h DROP TAG checked"),
    ),
    (
        "ALTER TABLE h CREATE OR REPLACE INDEX IF NOT EXISTS i (id)",
        "exclude each other: leave out one of them",
        ("ALTER TABLE h CREATE OR REPLACE INDEX i (id)",),
    ),
    (
        "ALTER TABLE h WRITE ORDERED BY bucket(4, id), truncate(v, 2) DESC",
        "by columns, not by transforms: write ORDERED BY id, v DESC",
        ("ALTER TABLE h WRITE ORDERED BY id, v DESC", "ALTER TABLE h WRITE ORDERED BY (id, `v`)"),
    ),
    (
        "ALTER TABLE lance.`{path}` WRITE DISTRIBUTED BY HASH",
        "WRITE [LOCALLY] ORDERED BY columns, WRITE DISTRIBUTED BY PARTITION, or WRITE UNORDERED",
        (
            "ALTER TABLE lance.`{path}` WRITE LOCALLY ORDERED BY id DISTRIBUTED BY PARTITION",
            "ALTER TABLE lance.`{path}` WRITE DISTRIBUTED BY PARTITION UNORDERED",
            "ALTER TABLE lance.`{path}` WRITE UNORDERED",
        ),
    ),
    (
        "ALTER TABLE h SET IDENTIFIER FIELDS",
        "write ALTER TABLE h SET | DROP IDENTIFIER FIELDS column, ...",
        ("ALTER TABLE h SET IDENTIFIER FIELDS id", "ALTER TABLE h DROP IDENTIFIER FIELDS id"),
    ),
    (
        "DESCRIBE HISTORY h WHERE version = 1",
        "write SELECT * FROM lance.`d`.h.history [WHERE condition] [LIMIT number]",
        ("SELECT * FROM lance.`d`.h.history WHERE version = 1 LIMIT 2", "DESCRIBE HISTORY h LIMIT 2"),
    ),
    (
        "DESCRIBE DETAIL lance.d.h VERSION AS OF 1",
        "write DESCRIBE DETAIL lance.d.h",
        ("DESCRIBE DETAIL lance.d.h",),
    ),
    (
        "OPTIMIZE delta.`{path}` ZORDER BY (id)",
        "write OPTIMIZE lance.`{path}` ZORDER BY (id)",
        ("OPTIMIZE lance.`{path}` ZORDER BY (id)",),
    ),
    (
        "describe history delta.`{path}`",
        "write describe history lance.`{path}`",
        ("describe history lance.`{path}`",),
    ),
    (
        "RESTORE TABLE h TO TIMESTAMP AS OF '2999-01-01' + INTERVAL 1 DAY",
        "RESTORE TABLE h TO VERSION AS OF number or 'tag', or TIMESTAMP AS OF 'time'",
        (
            "RESTORE TABLE h TO TIMESTAMP AS OF '2999-01-01'",
            "RESTORE TABLE h TO TIMESTAMP AS OF timestamp'2999-01-01 00:00:00'",
            "RESTORE TABLE h TO TIMESTAMP AS OF date_add(current_date(), 2)",
        ),
    ),
    (
        "CONVERT TO DELTA parquet.`{other}`",
        "write CONVERT TO LANCE parquet.`{other}`",
        (
            "INSERT OVERWRITE DIRECTORY '{other}' USING parquet SELECT 1 AS id",
            "CONVERT TO LANCE parquet.`{other}`",
        ),
    ),
    (
        "CONVERT TO LANCE '{other}'",
        "write CONVERT TO LANCE parquet.`{other}`",
        (
            "INSERT OVERWRITE DIRECTORY '{other}' USING parquet SELECT 1 AS id",
            "CONVERT TO LANCE parquet.`{other}`",
        ),
    ),
    (
        "COPY INTO h FROM '{other}' FILEFORMAT = PARQUET",
        "write INSERT INTO h SELECT * FROM parquet.`/path`",
        (
            "INSERT OVERWRITE DIRECTORY '{other}' USING parquet SELECT 1 AS id, 'a' AS v, 2 AS k",
            "INSERT INTO h SELECT * FROM parquet.`{other}`",
        ),
    ),
    (
        "FSCK REPAIR TABLE d.h",
        "write CALL lance.system.verify('d.h')",
        ("CALL lance.system.verify('d.h')",),
    ),
    (
        "SHOW PARTITIONS h",
        "ALTER TABLE lance.d.h ADD PARTITION FIELD column",
        ("ALTER TABLE lance.d.h ADD PARTITION FIELD id",),
    ),
    (
        "CREATE TABLE `h@dev` (a INT)",
        "write CALL lance.system.create_branch('d.h', 'dev')",
        ("CALL lance.system.create_branch('d.h', 'dev')",),
    ),
    (
        "DROP TABLE `h@other`",
        "write CALL lance.system.drop_branch('d.h', 'other')",
        ("CALL lance.system.drop_branch('d.h', 'other')",),
    ),
    (
        "DROP TABLE lance.`{path}`",
        "delete its folder, or delete its rows with TRUNCATE TABLE",
        ("TRUNCATE TABLE lance.`{path}`",),
    ),
    (
        "ALTER TABLE h SET LOCATION '{path}'",
        "name the other place itself, as in SELECT * FROM lance.`{path}`",
        ("SELECT * FROM lance.`{path}`",),
    ),
    (
        "ALTER TABLE h SET TBLPROPERTIES ('enable_stable_row_ids' = 'false')",
        "by CREATE TABLE ... TBLPROPERTIES (...) AS SELECT",
        ("CREATE TABLE h2 TBLPROPERTIES ('enable_stable_row_ids' = 'false') AS SELECT * FROM h",),
    ),
    (
        "ALTER TABLE h DROP COLUMNS (id, v, k)",
        "by CREATE OR REPLACE TABLE ... AS SELECT",
        ("CREATE OR REPLACE TABLE h AS SELECT 1 AS other",),
    ),
    (
        "ALTER TABLE h ADD COLUMN w INT NOT NULL",
        "drop NOT NULL, or add DEFAULT",
        ("ALTER TABLE h ADD COLUMN w INT NOT NULL DEFAULT 1",),
    ),
    (
        "ALTER TABLE keyed DROP COLUMN id",
        "unset the key first, by ALTER TABLE t UNSET TBLPROPERTIES ('primary_key')",
        ("ALTER TABLE keyed UNSET TBLPROPERTIES ('primary_key')", "ALTER TABLE keyed DROP COLUMN id"),
    ),
    pytest.param(
        "CREATE TABLE h2 LIKE h",
        "write CREATE TABLE h2 AS SELECT * FROM h LIMIT 0",
        ("CREATE TABLE h2 AS SELECT * FROM h LIMIT 0",),
        marks=pytest.mark.skipif(RELEASE >= (4, 2), reason="Spark makes the table"),
    ),
    (
        "CREATE TABLE h2 (a INT) TBLPROPERTIES ('partition-fields' = 'a')",
        "write CREATE TABLE ... PARTITIONED BY (column), or ALTER TABLE ... ADD PARTITION FIELD column",
        ("CREATE TABLE h2 (a INT, b INT) PARTITIONED BY (a)", "ALTER TABLE h2 ADD PARTITION FIELD b"),
    ),
    (
        "ALTER TABLE parted DROP COLUMN k",
        "run ALTER TABLE ... DROP PARTITION FIELD k first",
        ("ALTER TABLE parted DROP PARTITION FIELD k", "ALTER TABLE parted DROP COLUMN k"),
    ),
    (
        "ALTER TABLE parted PARTITION (k = 2) RENAME TO PARTITION (k = 3)",
        "write UPDATE lance.d.parted SET ... WHERE ...",
        ("UPDATE lance.d.parted SET k = 3 WHERE k = 2",),
    ),
    (
        "CREATE TABLE spark_catalog.default.h2 (id INT) USING lance",
        "or make the table in another catalog of spark_lance.enable, as in CREATE TABLE lance.db.t or "
        "lance.`/data/t`, or CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')",
        (
            "CREATE TABLE lance.d.h2 (id INT)",
            "CREATE OR REPLACE TABLE lance.`{other}` (id INT)",
            "CREATE OR REPLACE TEMPORARY VIEW v USING lance OPTIONS (path '{other}')",
        ),
    ),
    (
        "CREATE TABLE h2 (id INT) TBLPROPERTIES ('primary_kye' = 'id')",
        "did you mean 'primary_key'",
        ("CREATE TABLE h2 (id INT) TBLPROPERTIES ('primary_key' = 'id')",),
    ),
    (
        "SELECT system.iceberg_version()",
        "write system.lance_version()",
        ("SELECT lance.system.lance_version()",),
    ),
    (
        "CALL lance.system.cherrypick_snapshot('d.h', 1)",
        "CALL lance.system.rollback_to_snapshot('d.h', 1)",
        ("CALL lance.system.rollback_to_snapshot('d.h', 1)",),
    ),
    (
        "CALL lance.system.register_table('d.h', '{path}')",
        "already: use another name, or DROP TABLE lance.d.h first",
        ("DROP TABLE lance.d.h",),
    ),
    (
        "CALL lance.system.rewrite_data_files('d.h', options => map('rewrite-all', 'true'))",
        "strategy => 'sort' rewrites all files",
        ("CALL lance.system.rewrite_data_files('d.h', strategy => 'sort', sort_order => 'id')",),
    ),
    (
        "CALL lance.system.add_files('d.h', 'lance.d.h', check_duplicate_files => true)",
        "leave out check_duplicate_files",
        ("CALL lance.system.add_files('d.h', 'lance.d.h')",),
    ),
    (
        "CALL lance.system.publish_changes('d.h', '3')",
        "or ALTER TABLE t CREATE BRANCH `wap-3`, and INSERT INTO db.t.`branch_wap-3`",
        (
            "ALTER TABLE h CREATE BRANCH `wap-3`",
            "INSERT INTO lance.d.h.`branch_wap-3` VALUES (2, 'b', 3)",
            "CALL lance.system.publish_changes('d.h', '3')",
        ),
    ),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("statement", "hint", "remedies"), HINTS, ids=lambda value: str(value)[:40])
def test_what_errors_say_to_write_works(
    session: SparkSession, run: Run, tmp_path: Path, statement: str, hint: str, remedies: tuple[str, ...]
) -> None:
    run("DROP TABLE IF EXISTS h2")
    run("CREATE OR REPLACE TABLE h AS SELECT 1 AS id, 'a' AS v, 2 AS k")
    run("ALTER TABLE h WRITE UNORDERED")  # a remedy may have set an order
    if "keyed" in statement:
        run("CREATE OR REPLACE TABLE keyed (id INT NOT NULL, v INT) TBLPROPERTIES ('primary_key' = 'id')")
    if "parted" in statement:
        run("CREATE OR REPLACE TABLE parted PARTITIONED BY (k) AS SELECT 1 AS id, 2 AS k")
    if "h@other" in statement:
        run("CALL lance.system.create_branch('d.h', 'other')")
    places = {"{other}": str(tmp_path / "other"), "{path}": path_of(run, "h")}

    def placed(text: str) -> str:
        for mark, place in places.items():
            text = text.replace(mark, place)
        return text

    answer = outcome(lambda: run(placed(statement)))
    assert answer != "done"
    assert placed(hint) in answer, answer
    for remedy in remedies:
        run(placed(remedy))


@pytest.mark.skipif(RELEASE >= (4, 2), reason="Spark has views in all catalogs")
def test_statements_about_views_before_spark_4_2(run: Run) -> None:
    run("CREATE OR REPLACE TABLE h AS SELECT 1 AS id, 'a' AS v")
    for statement, hint, remedies in VIEW_HINTS:
        assert hint in outcome(lambda statement=statement: run(statement)), statement  # type: ignore[misc]
        for remedy in remedies:
            run(remedy)
    run("CREATE TEMPORARY VIEW hv AS SELECT 1 AS id")
    run("ALTER VIEW hv AS SELECT 2 AS id")
    assert run("SELECT id FROM hv") == [(2,)]
    run("DROP VIEW hv")


# Forms of INSERT that are new in Spark 4.2, a part of the error, what to write, and the rows then.
REPLACES: tuple[tuple[str, str, str], ...] = (
    (
        "INSERT INTO r AS x REPLACE ON x.id = s.id (SELECT 2 AS id, 'new' AS v) AS s",
        "write INSERT OVERWRITE r WITH ('replaceOn' = 't.column = s.column') SELECT ..., where t is",
        "INSERT OVERWRITE r WITH ('replaceOn' = 't.id = s.id') SELECT 2 AS id, 'new' AS v",
    ),
    (
        "INSERT INTO lance.d.r BY NAME REPLACE WHERE id = 2 SELECT 'new' AS v, 2 AS id",
        "write INSERT OVERWRITE lance.d.r WITH ('replaceWhere' = 'condition') BY NAME SELECT ...",
        "INSERT OVERWRITE lance.d.r WITH ('replaceWhere' = 'id = 2') BY NAME SELECT 'new' AS v, 2 AS id",
    ),
)


@pytest.mark.parametrize(("statement", "hint", "remedy"), REPLACES)
def test_inserts_that_replace_rows(run: Run, statement: str, hint: str, remedy: str) -> None:
    for sql in (statement, remedy):
        run("CREATE OR REPLACE TABLE r AS SELECT id, 'old' AS v FROM VALUES (1), (2), (3) AS t(id)")
        answer = outcome(lambda sql=sql: run(sql))  # type: ignore[misc]
        is_refused = sql == statement and RELEASE < (4, 2)
        assert hint in answer if is_refused else answer == "done", answer
        rows = [(1, "old"), (2, "old" if is_refused else "new"), (3, "old")]
        assert run("SELECT * FROM r ORDER BY id") == rows


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO r REPLACE USING (id) VALUES (2, 'new')",
        "insert into table lance.`d`.r replace using (`id`)\n with s as (select 2, 'new') select * from s;",
        "INSERT INTO lance.`{path}` BY NAME /* a */ REPLACE USING (id) SELECT 'new' AS v, 2 AS id -- last",
    ],
)
def test_inserts_that_replace_using_columns(session: SparkSession, run: Run, statement: str) -> None:
    """They work before Spark 4.2, too, for Lance tables only."""
    run("CREATE OR REPLACE TABLE r AS SELECT id, 'old' AS v FROM VALUES (1), (2), (3) AS t(id)")
    run(statement.replace("{path}", path_of(run, "r")))
    assert run("SELECT * FROM r ORDER BY id") == [(1, "old"), (2, "new"), (3, "old")]
    session.sql("SELECT 1 AS id, 'a' AS v").createOrReplaceTempView("r")
    try:
        assert outcome(lambda: run("INSERT INTO r REPLACE USING (id) VALUES (2, 'new')")) != "done"
    finally:
        session.catalog.dropTempView("r")


def test_results_of_statements_have_the_columns_of_delta(session: SparkSession, run: Run) -> None:
    run("DROP TABLE IF EXISTS answered")
    run("CREATE OR REPLACE TABLE answers AS SELECT 1 AS id")
    run("INSERT INTO answers VALUES (2)")

    def rows(statement: str, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in session.sql(statement).selectExpr(*columns).collect()]

    path = path_of(run, "answers")
    metrics = ("metrics.numFilesRemoved", "metrics.filesAdded.totalFiles")
    assert rows("OPTIMIZE answers", "path", *metrics) == [(path, 2, 1)]
    assert rows("REORG TABLE answers APPLY (PURGE)", *metrics) == [(0, 0)]
    assert rows("VACUUM answers", "path") == [(path,)]
    last = rows("DESCRIBE HISTORY answers LIMIT 1", "operation", "operationMetrics.numRemovedFiles")
    assert last == [("OPTIMIZE", "2")]
    assert rows("DESCRIBE DETAIL answers", "size(partitionColumns)", "numFiles") == [(0, 1)]
    files = ("source_num_of_files", "num_removed_files", "num_copied_files")
    assert rows("CREATE TABLE answered SHALLOW CLONE answers", *files) == [(1, 0, 0)]
    assert rows("CREATE TABLE IF NOT EXISTS answered CLONE answers", *files) == []
    assert rows("CREATE OR REPLACE TABLE answered DEEP CLONE answers", *files) == [(1, 1, 1)]
    newest = run("SELECT max(version) FROM lance.d.answers.history")[0][0]
    older = f"CREATE OR REPLACE TABLE answered CLONE answers VERSION AS OF {newest - 1}"
    assert rows(older, *files, "source_table_size > 0") == [(2, 1, 1, True)]


def test_methods_of_delta_that_mean_nothing_here(session: SparkSession, run: Run, tmp_path: Path) -> None:
    run("CREATE OR REPLACE TABLE h AS SELECT 1 AS id")
    path = path_of(run, "h")
    table = LanceTable.forPath(path)
    with pytest.raises(UnsupportedFormatError, match=r"write a copy, toDF\(\).write.parquet\('/data/copy'\)"):
        table.generate("symlink_format_manifest")
    table.toDF().write.parquet(str(tmp_path / "copy"))
    with pytest.raises(UnsupportedFormatError, match="leave out upgradeTableProtocol"):
        table.upgradeTableProtocol(1, 3)
    assert table.detail().select("tableFeatures").first() is not None
    with pytest.raises(PySparkException, match="for a time use option 'startingTimestamp'"):
        session.read.format("lance").options(readChangeFeed=True, startingVersion="2020-01-01").load(path)


def test_advice_about_options_works(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE h AS SELECT 1 AS id")
    run("INSERT INTO h VALUES (2)")
    path = path_of(run, "h")
    newest = run("SELECT max(version) FROM lance.d.h.history")[0][0]

    def read(place: str, **options: str | int) -> str:
        return outcome(session.read.format("lance").options(**options).load(place).collect)

    def stream(place: str, **options: str | int) -> str:
        return outcome(lambda: session.readStream.format("lance").options(**options).load(place))

    by_name = "read a table by name: .table('d.h')"
    assert by_name in outcome(lambda: session.read.format("lance").option("snapshot-id", 1).load("d.h"))
    assert session.read.option("snapshot-id", 1).table("d.h").count() == 1
    assert by_name in stream("d.h", maxFilesPerTrigger=1)
    assert session.readStream.option("maxFilesPerTrigger", 1).table("d.h").isStreaming
    assert "leave it out: batches have the rows" in stream(path, withEventTimeOrder="true")
    rewrite = session.table("h").write.format("lance").option("dataChange", "false").mode("overwrite")
    assert "LanceTable.forPath(spark, path).optimize().executeCompaction()" in outcome(
        lambda: rewrite.save(path)
    )
    (rewritten,) = LanceTable.forPath(session, path).optimize().executeCompaction().collect()
    assert rewritten.fragments_removed == 2
    assert "leave it out, and start the stream again" in stream(path, schemaTrackingLocation="/tmp/x")
    assert stream(path) == "done"
    assert "read the table by path" in outcome(
        lambda: session.read.option("start-snapshot-id", 1).table("h").collect()
    )
    assert session.read.format("lance").option("start-snapshot-id", newest - 1).load(path).collect() == [(2,)]
    assert read(path, readChangeFeed=True, startingVersion=2) == "done"


def test_direct_writes_past_the_branch_of_a_session_are_refused(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE staged (id INT) TBLPROPERTIES ('write.wap.enabled' = 'true')")
    path, frame = path_of(run, "staged"), session.sql("SELECT 1 AS id")
    session.conf.set("spark.wap.branch", "audit")
    try:
        refusal = outcome(lambda: frame.write.format("lance").mode("append").save(path))
        assert f"INSERT INTO <catalog>.`{path}`, or RESET spark.wap.branch" in refusal
        table, source = LanceTable.forPath(session, path), frame.withColumnRenamed("id", "key")
        for change in (
            table.delete,
            lambda: table.update(set={"id": "2"}),
            table.merge(source, "id = key").whenMatchedDelete().execute,
        ):
            assert "spark.wap.branch directs writes to branch 'audit'" in outcome(change)
        run(f"INSERT INTO lance.`{path}` VALUES (1)")
        frame.write.format("lance").option("branch", "audit").mode("append").save(path)
        frame.writeTo("staged").append()
        frame.write.mode("append").saveAsTable("staged")
        assert run("SELECT count(*) FROM staged") == [(4,)]
    finally:
        session.conf.unset("spark.wap.branch")
    assert run("SELECT count(*) FROM staged") == [(0,)]


@pytest.mark.skipif(RELEASE < (4, 1), reason="catalogs evolve schemas from Spark 4.1 on")
def test_schema_evolution_past_the_branch_of_a_session_is_refused(session: SparkSession, run: Run) -> None:
    run("CREATE OR REPLACE TABLE evolved (id INT) TBLPROPERTIES ('write.wap.enabled' = 'true')")
    merge = (
        "MERGE WITH SCHEMA EVOLUTION INTO evolved t USING (SELECT 3 AS id, 9 AS extra) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    run("ALTER TABLE evolved CREATE BRANCH audit")
    session.conf.set("spark.wap.branch", "audit")
    try:
        assert "run ALTER TABLE t.`branch_audit` ADD COLUMN name type" in outcome(lambda: run(merge))
    finally:
        session.conf.unset("spark.wap.branch")
    assert session.table("evolved").columns == ["id"]
    run("ALTER TABLE lance.d.evolved.`branch_audit` ADD COLUMN extra INT")
    session.conf.set("spark.wap.branch", "audit")
    try:
        run(merge)
    finally:
        session.conf.unset("spark.wap.branch")
    assert run("SELECT * FROM lance.d.evolved.branch_audit") == [(3, 9)]
