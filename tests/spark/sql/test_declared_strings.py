"""CHAR(n), VARCHAR(n), collations, TIME(p), intervals: declared, stored, checked, compared as Spark does."""

from __future__ import annotations

import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pyspark.sql.types as st
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance

COLUMNS = """
    id INT, a CHAR(5), v VARCHAR(3), n STRUCT<x: CHAR(2), y: ARRAY<VARCHAR(2)>>, m MAP<STRING, CHAR(3)>,
    s STRING COLLATE UTF8_LCASE, l ARRAY<STRING COLLATE UNICODE_CI>
"""
ROWS = """
    (1, 'ab', 'xyz', named_struct('x', 'q', 'y', array('zz')), map('k', 'v'), 'Hello', array('A', 'b')),
    (2, 'abc', 'xy ', NULL, NULL, 'HELLO', NULL),
    (3, NULL, NULL, NULL, NULL, 'other', array())
"""
# Each is run over Lance and over Parquet.
QUERIES = (
    "SELECT * FROM t",
    "SELECT id, length(a), length(n.x), length(m['k']), length(v) FROM t",
    "SELECT id FROM t WHERE a = 'abc'",
    "SELECT id FROM t WHERE a IN ('ab', 'x')",
    "SELECT id FROM t WHERE a > 'ab'",
    "SELECT id FROM t WHERE v = 'xy'",
    "SELECT id FROM t WHERE s = 'hello'",
    "SELECT id FROM t WHERE s IN ('HELLO', 'x')",
    "SELECT id FROM t WHERE s <=> 'hELLO' OR s > 'OTHEQ'",
    "SELECT id FROM t WHERE startswith(s, 'HE') AND contains(s, 'LL') AND s LIKE 'he%'",
    "SELECT count(*), min(s) = 'hello', max(s) = 'OTHER', count(DISTINCT s) FROM t",
    "SELECT lower(s), count(*) FROM t GROUP BY s",
    "SELECT id FROM t WHERE array_contains(l, 'a')",
    "SELECT l.id, r.id FROM t AS l JOIN t AS r ON l.s = r.s WHERE l.id < r.id",
    "SELECT id FROM t ORDER BY s, id LIMIT 2",
    "SELECT id FROM t WHERE s = (SELECT upper(max(s)) FROM t)",
)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.sql("CREATE NAMESPACE lance.d").collect()
    session.sql("USE lance.d").collect()
    session.sql(f"CREATE TABLE t ({COLUMNS})").collect()
    session.sql(f"INSERT INTO t VALUES {ROWS}").collect()
    return session


def path_of(session: SparkSession, table: str) -> str:
    rows = session.sql(f"DESCRIBE EXTENDED {table}").collect()
    return next(str(row.data_type) for row in rows if row.col_name == "Location")


@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
def test_answers_are_those_of_parquet(session: SparkSession, tmp_path: Path, indexed: bool) -> None:
    if indexed:
        for column, kind in (("s", "BTREE"), ("a", "BTREE"), ("v", "BITMAP")):
            session.sql(f"CALL lance.system.create_index('d.t', '{column}', '{kind}')").collect()
    control = session.newSession()
    table = f"spark_catalog.default.control_{tmp_path.name.replace('-', '_')}"
    control.sql(f"CREATE TABLE {table} ({COLUMNS}) USING parquet LOCATION '{tmp_path / 'parquet'}'").collect()
    try:
        control.sql(f"INSERT INTO {table} VALUES {ROWS}").collect()
        control.table(table).createOrReplaceTempView("t")
        for query in QUERIES:
            ours, theirs = session.sql(query), control.sql(query)
            assert ours.schema.simpleString() == theirs.schema.simpleString(), query
            assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect())), query
    finally:
        control.sql(f"DROP TABLE {table}").collect()


def test_types_are_described_and_copied(session: SparkSession) -> None:
    expected = {
        "a": "char(5)",
        "v": "varchar(3)",
        "n": "struct<x:char(2),y:array<varchar(2)>>",
        "m": "map<string,char(3)>",
        "s": "string collate UTF8_LCASE",
        "l": "array<string collate UNICODE_CI>",
    }
    session.sql("CREATE TABLE by_select AS SELECT * FROM t").collect()
    session.read.format("lance").load(path_of(session, "t")).writeTo("lance.d.by_frame").create()
    for table in ("t", "by_select", "by_frame"):
        rows = session.sql(f"DESCRIBE {table}").collect()
        assert {row.col_name: row.data_type for row in rows if row.col_name != "id"} == expected


LONG = (
    "INSERT INTO t (id, a) VALUES (4, 'abcdef')",
    "INSERT INTO t (id, v) VALUES (4, 'abcd')",
    "INSERT INTO t (id, n) VALUES (4, named_struct('x', 'abc', 'y', array('a')))",
    "UPDATE t SET v = 'abcd' WHERE id = 1",
    "UPDATE t SET a = 'abcdef' WHERE id = 1",
    "UPDATE t SET n.x = 'abc' WHERE id = 1",
    "MERGE INTO t USING (SELECT 1 AS id, 'abcd' AS v) AS s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET v = s.v",
    "MERGE INTO t USING (SELECT 9 AS id, 'abcdef' AS a) AS s ON t.id = s.id"
    " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a)",
)


@pytest.mark.parametrize("statement", LONG)
def test_text_that_is_too_long_is_refused(session: SparkSession, statement: str) -> None:
    before = session.table("t").collect()
    with pytest.raises(PySparkException, match="EXCEED_LIMIT_LENGTH"):
        session.sql(statement).collect()
    assert session.table("t").collect() == before


def test_fields_in_another_order_are_stored_by_name(session: SparkSession) -> None:
    # CHAR and VARCHAR make Spark put checks around the values, which kept a cast by position below them.
    session.sql(
        "CREATE TABLE o (id INT, s STRUCT<n: INT, v: VARCHAR(3)>, l ARRAY<STRUCT<n: INT, c: CHAR(2)>>, "
        "m MAP<CHAR(2), STRUCT<v: VARCHAR(3), n: INT>>)"
    ).collect()
    session.sql("INSERT INTO o VALUES (1, NULL, NULL, NULL)").collect()
    values = {
        "s": "struct(7 AS v, 8 AS n)",
        "l": "array(struct('5' AS c, 6 AS n))",
        "m": "map('k', struct(1 AS n, '2' AS v))",
    }
    assigned = ", ".join(f"{name} = {value}" for name, value in values.items())
    session.sql(f"UPDATE o SET {assigned}").collect()
    session.sql(
        "MERGE INTO o USING (SELECT 2 AS id) AS q ON o.id = q.id WHEN NOT MATCHED THEN INSERT (id, s, l, m) "
        f"VALUES (q.id, {', '.join(values.values())})"
    ).collect()
    stored = "Row(n=8, v='7') [Row(n=6, c='5 ')] {'k ': Row(v='2', n=1)}"
    rows = session.sql("SELECT id, s, l, m FROM o ORDER BY id").collect()
    assert [" ".join(map(str, row)) for row in rows] == [f"1 {stored}", f"2 {stored}"]
    for value, condition in (
        ("struct('x' AS n, 'a' AS v)", "CANNOT_SAFELY_CAST"),
        ("struct('abcd' AS v, 1 AS n)", "EXCEED_LIMIT_LENGTH"),
    ):
        with pytest.raises(PySparkException, match=condition):
            session.sql(f"UPDATE o SET s = {value}").collect()
    assert [str(row.s) for row in session.table("o").collect()] == ["Row(n=8, v='7')"] * 2


def test_lengths_are_checked_by_lance_table(session: SparkSession) -> None:
    session.sql("CREATE TABLE u (id INT, v VARCHAR(3), l ARRAY<STRUCT<c: CHAR(2)>>)").collect()
    session.sql("INSERT INTO u VALUES (1, 'a', NULL)").collect()
    table = spark_lance.LanceTable.forName(session, "lance.d.u")
    for name, text in (("v", "'abcd'"), ("l", "array(struct('abc' AS c))")):
        with pytest.raises(spark_lance.errors.SchemaError, match="characters at most"):
            table.update("id = 1", {name: text})
    table.update("id = 1", {"v": "'ab   '", "l": "array(struct('a' AS c))"})
    assert [str(row) for row in table.toDF().collect()] == ["Row(id=1, v='ab ', l=[Row(c='a ')])"]


def test_defaults_of_columns_with_collations(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE w (id INT, s STRING COLLATE UTF8_LCASE DEFAULT 'X', "
        "l ARRAY<STRING COLLATE UTF8_LCASE> DEFAULT array('Y'))"
    ).collect()
    session.sql("INSERT OVERWRITE w VALUES (1, 'a', array('b'))").collect()
    session.sql(
        "MERGE INTO w USING (SELECT explode(array(1, 2)) AS k, array('A') AS a) AS q ON w.id = q.k "
        "WHEN MATCHED THEN UPDATE SET l = q.a WHEN NOT MATCHED THEN INSERT (id) VALUES (q.k)"
    ).collect()
    rows = session.sql("SELECT * FROM w WHERE s = 'x' OR array_contains(l, 'a') ORDER BY id").collect()
    assert rows == [(1, "a", ["A"]), (2, "X", ["Y"])]


def test_changes_pad_and_compare_as_spark_does(session: SparkSession) -> None:
    session.sql("UPDATE t SET a = 'z', n.x = 'w' WHERE a = 'ab'").collect()
    session.sql(
        "MERGE INTO t USING (SELECT 'OTHER' AS s, 'p' AS a) AS c ON t.s = c.s COLLATE UTF8_LCASE"
        " WHEN MATCHED THEN UPDATE SET a = c.a WHEN NOT MATCHED THEN INSERT (id, a) VALUES (7, c.a)"
    ).collect()
    rows = session.sql("SELECT id, a, n.x FROM t ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "z    ", "w "), (2, "abc  ", None), (3, "p    ", None)]
    session.sql("DELETE FROM t WHERE s = 'hello'").collect()
    assert [row.id for row in session.table("t").collect()] == [3]


def test_changes_compare_between_and_nullif_as_queries_do(session: SparkSession) -> None:
    # Spark pads what it compares with a CHAR column, but not inside of these.
    condition = "a NOT BETWEEN 'ab' AND 'ab' AND nullif(a, 'ab') IS NOT NULL"
    expected = [row.id for row in session.sql(f"SELECT id FROM t WHERE {condition}").collect()]
    assert 1 in expected
    session.sql(f"UPDATE t SET n.x = 'up' WHERE {condition}").collect()
    assert [row.id for row in session.sql("SELECT id FROM t WHERE n.x = 'up'").collect()] == expected
    session.sql(
        "MERGE INTO t USING (SELECT explode(array(1, 2)) AS k, cast('ab' AS CHAR(5)) AS c) AS q ON t.id = q.k"
        f" WHEN MATCHED AND {condition} AND c BETWEEN 'ab' AND 'ab   ' THEN UPDATE SET n.x = 'mg'"
    ).collect()
    assert [row.id for row in session.sql("SELECT id FROM t WHERE n.x = 'mg'").collect()] == expected
    session.sql(f"DELETE FROM t WHERE {condition}").collect()
    assert session.sql(f"SELECT id FROM t WHERE {condition}").collect() == []


def test_writes_by_path_pad_and_refuse(session: SparkSession) -> None:
    path = path_of(session, "t")
    frame = session.sql("SELECT 8 AS id, 'x' AS a, 'ab   ' AS v")
    frame.write.format("lance").mode("append").save(path)
    row = session.sql("SELECT a, v FROM t WHERE id = 8").collect()[0]
    assert tuple(row) == ("x    ", "ab ")
    with pytest.raises(PySparkException, match="column 'v' takes 3 characters at most"):
        session.sql("SELECT 9 AS id, 'abcd' AS v").write.format("lance").mode("append").save(path)
    assert session.sql("SELECT id FROM t WHERE id = 9").collect() == []


def test_reads_by_path_have_the_types(session: SparkSession, spark: SparkSession) -> None:
    path = path_of(session, "t")
    for reader in (session, spark.newSession()):
        frame = reader.read.format("lance").load(path)
        assert frame.schema["s"].dataType.simpleString() == "string collate UTF8_LCASE"
        assert sorted(row.id for row in frame.where("s = 'hello'").collect()) == [1, 2]
        assert [row[0] for row in frame.where("a = 'ab'").selectExpr("length(a)").collect()] == [5]


def test_types_widen(session: SparkSession) -> None:
    session.sql("ALTER TABLE t ALTER COLUMN v TYPE VARCHAR(10)").collect()
    session.sql("UPDATE t SET v = 'abcdefgh' WHERE id = 1").collect()
    session.sql("ALTER TABLE t ALTER COLUMN s TYPE STRING COLLATE UNICODE").collect()
    described = {row.col_name: row.data_type for row in session.sql("DESCRIBE t").collect()}
    assert (described["v"], described["s"]) == ("varchar(10)", "string collate UNICODE")
    assert session.sql("SELECT id FROM t WHERE s = 'hello'").collect() == []


def test_other_writers_and_readers_see_text(session: SparkSession) -> None:
    path = path_of(session, "t")
    reference = lance.dataset(path)
    assert reference.schema.field("a").type == pa.string()
    lance.write_dataset(reference.to_table().slice(0, 1), path, mode="append")
    assert session.sql("SELECT count(*) FROM t WHERE s = 'HELLO'").collect()[0][0] == 3
    described = {row.col_name: row.data_type for row in session.sql("DESCRIBE t").collect()}
    assert described["a"] == "char(5)"


def test_a_replaced_range_of_collated_text_is_refused(session: SparkSession) -> None:
    before = session.table("t").collect()
    with pytest.raises(
        Exception, match=r"columns without a collation, .*: run DELETE with the condition, then append"
    ):
        session.sql(
            "INSERT INTO t REPLACE WHERE s = 'hello' SELECT 5, 'a', 'b', NULL, NULL, 'hello', NULL"
        ).collect()
    assert session.table("t").collect() == before
    session.sql("DELETE FROM t WHERE s = 'hello'").collect()
    session.sql("INSERT INTO t (id, s) VALUES (5, 'hello')").collect()
    assert sorted(row.id for row in session.table("t").collect()) == [3, 5]


def test_merges_prune_no_rows_that_a_collation_makes_equal(session: SparkSession) -> None:
    session.sql("CREATE TABLE keys (k STRING COLLATE UTF8_LCASE, n INT)").collect()
    for number, text in enumerate(["Alpha", "beta", "GAMMA"]):
        session.sql(f"INSERT INTO keys VALUES ('{text}', {number})").collect()
    session.sql("CREATE TABLE changes AS SELECT upper(k) AS k, n + 10 AS n FROM keys").collect()
    session.sql(
        "MERGE INTO keys USING changes ON keys.k = changes.k WHEN MATCHED THEN UPDATE SET n = changes.n"
        " WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    assert sorted(map(tuple, session.table("keys").collect())) == [("Alpha", 10), ("GAMMA", 12), ("beta", 11)]


PRECISE = """
    id INT, d INTERVAL DAY, h INTERVAL HOUR TO SECOND, n STRUCT<m: INTERVAL DAY TO MINUTE>,
    l ARRAY<INTERVAL HOUR>
"""
PRECISE_ROWS = """
    (1, INTERVAL '3' DAY, INTERVAL '77:05:06.123' HOUR TO SECOND,
     named_struct('m', INTERVAL '3 04:05' DAY TO MINUTE), array(INTERVAL '7' HOUR)),
    (2, NULL, INTERVAL '-1:00:00' HOUR TO SECOND, NULL, NULL)
"""
PRECISE_QUERIES = (
    "SELECT * FROM p",
    "SELECT id, CAST(d AS STRING), CAST(h AS STRING), CAST(n AS STRING), CAST(l AS STRING) FROM p",
    "SELECT id FROM p WHERE d = INTERVAL '3' DAY",
    "SELECT id FROM p WHERE h < INTERVAL '1' DAY AND d IS NULL",
    "SELECT sum(d), max(h), min(n.m) FROM p",
)
NEEDS_TIME = pytest.mark.skipif(not hasattr(st, "TimeType"), reason="TIME came with Spark 4.1")


def compare_with_parquet(session: SparkSession, columns: str, rows: str, queries: tuple[str, ...]) -> None:
    name = f"spark_catalog.default.precise_{uuid.uuid4().hex}"
    session.sql(f"CREATE TABLE {name} ({columns}) USING parquet").collect()
    try:
        session.sql(f"CREATE TABLE p ({columns})").collect()
        for table in ("p", name):
            session.sql(f"INSERT INTO {table} VALUES {rows}").collect()
        for query in queries:
            ours, theirs = session.sql(query), session.sql(query.replace("FROM p", f"FROM {name}"))
            assert ours.schema.simpleString() == theirs.schema.simpleString(), query
            expected = sorted(map(str, theirs.collect()))
            assert sorted(map(str, ours.collect())) == expected, query
            session.conf.set("spark.lance.localRows", "0")
            assert sorted(map(str, session.sql(query).collect())) == expected, query
            session.conf.unset("spark.lance.localRows")
        described = [session.sql(f"DESCRIBE {table}").collect() for table in ("p", name)]
        assert described[0] == described[1]
    finally:
        session.sql(f"DROP TABLE {name}").collect()


def test_intervals_keep_their_fields(session: SparkSession) -> None:
    compare_with_parquet(session, PRECISE, PRECISE_ROWS, PRECISE_QUERIES)
    session.sql("CREATE TABLE copy AS SELECT * FROM p").collect()
    session.sql("UPDATE p SET d = INTERVAL '4' DAY WHERE id = 2").collect()
    session.sql("ALTER TABLE p ADD COLUMN more INTERVAL MINUTE").collect()
    path = path_of(session, "p")
    types = "id:int,d:interval day,h:interval hour to second,n:struct<m:interval day to minute>"
    types += ",l:array<interval hour>"
    assert session.table("copy").schema.simpleString() == f"struct<{types}>"
    frame = session.read.format("lance").load(path)
    assert frame.schema.simpleString() == f"struct<{types},more:interval minute>"
    frame.limit(0).write.format("lance").mode("append").save(path)
    finer = session.sql("SELECT 3 AS id, INTERVAL '3 04:05:06' DAY TO SECOND AS d")
    with pytest.raises(PySparkException, match="write cast\\(\\.\\.\\. AS interval day\\)"):
        finer.write.format("lance").mode("append").save(path)
    finer.selectExpr("id", "cast(d AS interval day)").write.format("lance").mode("append").save(path)
    assert session.sql("SELECT CAST(d AS STRING) FROM p WHERE id = 3").collect() == [("INTERVAL '3' DAY",)]
    assert lance.dataset(path).schema.field("d").type == pa.duration("us")


@NEEDS_TIME
def test_times_keep_their_digits(session: SparkSession) -> None:
    session.conf.set("spark.sql.timeType.enabled", "true")
    rows = "(1, TIME'10:11:12', CAST(TIME'10:11:12.345' AS TIME(3)), TIME'10:11:12.123456')"
    compare_with_parquet(
        session,
        "id INT, s TIME(0), m TIME(3), u TIME",
        rows.replace("TIME'10:11:12',", "CAST(TIME'10:11:12' AS TIME(0)),"),
        (
            "SELECT * FROM p",
            "SELECT id FROM p WHERE m > CAST(TIME'10:11:12' AS TIME(3))",
            "SELECT max(s), max(m), max(u) FROM p",
        ),
    )
    table = spark_lance.LanceTable.forPath(session, path_of(session, "p"))
    with pytest.raises(spark_lance.errors.SchemaError, match="more digits than time\\(0\\)"):
        table.alterColumn("m", type="TIME(0)")
    table.alterColumn("m", type="TIME(4)")
    assert table.toDF().schema.simpleString() == "struct<id:int,s:time(0),m:time(4),u:time(6)>"
    frame = session.sql("SELECT 2 AS id, TIME'10:11:12.5' AS s")
    with pytest.raises(PySparkException, match="column 's' is time\\(0\\), but a batch has values with more"):
        frame.write.format("lance").mode("append").save(path_of(session, "p"))
