"""`replaceUsing`, `replaceOn` and REPLACE: one commit deletes the rows that match a new row, and appends."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.table.inserts.replace_rows import KeyMatch

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
SQL = pytest.mark.skipif(RELEASE < (4, 2), reason="REPLACE USING is in Spark's grammar from 4.2 on")
OLD = "VALUES (1, 'a', 1.0D), (2, 'b', 2.0D), (2, 'c', -0.0D), (NULL, 'n', 3.0D) AS v(id, v, x)"
NEW = "SELECT * FROM VALUES (2, 'B', 9.0D), (NULL, 'N', 9.0D), (5, 'e', 9.0D) AS v(id, v, x)"
# Null equals nothing, so the row with it stays.
REPLACED = {(1, "a", 1.0), (2, "B", 9.0), (5, "e", 9.0), (None, "N", 9.0), (None, "n", 3.0)}

Write = Callable[[SparkSession, str], None]


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.sql(f"CREATE TABLE lance.t AS SELECT * FROM {OLD}").collect()
    return session


@pytest.fixture
def path(session: SparkSession) -> str:
    rows = session.sql("DESCRIBE EXTENDED lance.t").collect()
    return next(str(row.data_type) for row in rows if row.col_name == "Location")


def stored(session: SparkSession) -> set[tuple[object, ...]]:
    rows = [tuple(row) for row in session.table("lance.t").collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


def by_path(session: SparkSession, path: str) -> None:
    frame = session.sql(NEW)
    frame.write.format("lance").mode("overwrite").option("replaceUsing", "id").save(path)


def by_tasks(session: SparkSession, path: str) -> None:
    session.conf.set("spark.lance.localRows", "0")
    by_path(session, path)


def save_as_table(session: SparkSession, path: str) -> None:
    session.sql(NEW).write.mode("overwrite").option("replaceUsing", "ID").saveAsTable("lance.t")


def insert_into(session: SparkSession, path: str) -> None:
    session.sql(NEW).write.mode("overwrite").option("replaceUsing", "id").insertInto("lance.t")


def write_to(session: SparkSession, path: str) -> None:
    session.sql(NEW).writeTo("lance.t").option("replaceUsing", '["id"]').overwrite(F.lit(True))


def sql(statement: str) -> Write:
    def write(session: SparkSession, path: str) -> None:
        session.sql(statement.format(path=path)).collect()

    return write


WRITES = [
    pytest.param(by_path, id="path"),
    pytest.param(by_tasks, id="tasks"),
    pytest.param(save_as_table, id="saveAsTable"),
    pytest.param(insert_into, id="insertInto"),
    pytest.param(write_to, id="writeTo"),
    pytest.param(sql(f"INSERT INTO lance.t REPLACE USING (id) {NEW}"), id="sql", marks=SQL),
    pytest.param(
        sql(
            "INSERT INTO lance.t BY NAME REPLACE USING (ID) SELECT x, v, id FROM "
            "VALUES (2, 'B', 9.0D), (NULL, 'N', 9.0D), (5, 'e', 9.0D) AS v(id, v, x)"
        ),
        id="sql by name",
        marks=SQL,
    ),
    pytest.param(sql(f"INSERT INTO lance.`{{path}}` REPLACE USING (id) {NEW}"), id="sql path", marks=SQL),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
def test_all_faces_replace_in_one_commit(
    session: SparkSession, path: str, write: Write, indexed: bool
) -> None:
    if indexed:
        session.sql("CALL lance.system.create_index('t', 'id', 'BTREE')").collect()
    before = spark_lance.dataset(path).version
    write(session, path)
    assert stored(session) == REPLACED
    assert spark_lance.dataset(path).version == before + 1


@pytest.mark.parametrize(
    ("using", "gone"),
    [("id, v", set()), ("x", {(2, "c", -0.0)}), ("v", {(1, "a", 1.0)}), ("id,x", set())],
)
def test_columns(session: SparkSession, path: str, using: str, gone: set[tuple[object, ...]]) -> None:
    before = stored(session)
    frame = session.sql("SELECT 3 AS id, 'a' AS v, 0.0D AS x")
    frame.write.format("lance").mode("overwrite").option("replaceUsing", using).save(path)
    assert stored(session) == before - gone | {(3, "a", 0.0)}


def test_no_new_rows_replace_nothing(session: SparkSession, path: str) -> None:
    before = stored(session)
    frame = session.sql(NEW).where("id > 100")
    frame.write.format("lance").mode("overwrite").option("replaceUsing", "id").save(path)
    assert stored(session) == before


def test_a_missing_table_is_created(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    session.sql(NEW).write.format("lance").mode("overwrite").option("replaceUsing", "id").save(path)
    assert session.read.format("lance").load(path).count() == 3


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("append", {"replaceUsing": "id"}, "is for mode overwrite"),
        ("overwrite", {"replaceUsing": "nope"}, "write one of id, v, x"),
        ("overwrite", {"replaceUsing": "id,ID"}, "twice: write it once"),
        ("overwrite", {"replaceUsing": ""}, "must be names separated by commas"),
        ("overwrite", {"replaceUsing": "id", "replaceWhere": "id = 2"}, "give one of the options"),
        ("overwrite", {"replaceUsing": "id", "overwriteSchema": "true"}, "keeps the other rows"),
        ("overwrite", {"replaceOn": "id = s.id"}, "write each column with the alias of its side"),
        ("overwrite", {"replaceOn": "t.id = s.id AND z.v = 'a'"}, "write each column with the alias"),
        ("overwrite", {"replaceOn": "t.nope = s.id"}, "there is no column 'nope'; there are id, v, x"),
        ("overwrite", {"replaceOn": "true"}, "write a condition on columns"),
        ("overwrite", {"replaceOn": "t.id = s.id", "replaceUsing": "id"}, "give one of the options"),
        ("append", {"replaceOn": "t.id = s.id"}, "is for mode overwrite"),
    ],
)
def test_refusals(session: SparkSession, path: str, mode: str, options: dict[str, str], message: str) -> None:
    before = spark_lance.dataset(path).version
    with pytest.raises(PySparkException, match=message) as refused:
        session.sql(NEW).write.format("lance").mode(mode).options(**options).save(path)
    assert "leave it out" not in str(refused.value)
    assert spark_lance.dataset(path).version == before


@SQL
def test_sql_refuses_what_it_cannot_do(session: SparkSession, path: str) -> None:
    before = spark_lance.dataset(path).version
    with pytest.raises(PySparkException, match="write one of"):
        session.sql(f"INSERT INTO lance.t REPLACE USING (nope) {NEW}").collect()
    with pytest.raises(PySparkException, match="there is no column 'nope'"):
        session.sql(f"INSERT INTO lance.t AS t REPLACE ON t.nope = s.id SELECT * FROM ({NEW}) AS s").collect()
    assert spark_lance.dataset(path).version == before


@pytest.mark.parametrize(
    ("condition", "alias", "gone"),
    [
        ("t.id = s.id", None, {2}),
        ("t.id <=> s.id", None, {2, None}),
        ("q.ID = s.id AND s.x > 100", "q", set()),
        ("t.id = s.id AND t.x < s.x AND t.v = 'b'", None, {"b"}),
        ("lower(s.v) = t.v", None, {"b", "n"}),
        ("t.id < s.id", None, {1, 2}),
        ("t.id > 1", None, {2}),
    ],
)
def test_conditions(
    session: SparkSession, path: str, condition: str, alias: str | None, gone: set[object]
) -> None:
    before = stored(session)
    version = spark_lance.dataset(path).version
    options = {"replaceOn": condition, **({"targetAlias": alias} if alias else {})}
    session.sql(NEW).write.format("lance").mode("overwrite").options(**options).save(path)
    remaining = {row for row in before if not gone & set(row[:2])}
    assert stored(session) == remaining | {(2, "B", 9.0), (None, "N", 9.0), (5, "e", 9.0)}
    assert spark_lance.dataset(path).version == version + 1


@SQL
@pytest.mark.parametrize("table", ["lance.t AS t", "lance.t AS o"])
def test_sql_conditions(session: SparkSession, table: str) -> None:
    alias = table[-1]
    session.sql(
        f"INSERT INTO {table} REPLACE ON {alias}.id <=> s.id AND {alias}.x < 5 SELECT * FROM ({NEW}) AS s"
    ).collect()
    assert stored(session) == {(1, "a", 1.0), (2, "B", 9.0), (5, "e", 9.0), (None, "N", 9.0)}


def test_writers_of_one_key_do_not_both_add_it(session: SparkSession, path: str) -> None:
    def write(number: int) -> None:
        frame = session.sql(f"SELECT 77 AS id, 'w{number}' AS v, 0.5D AS x")
        frame.write.format("lance").mode("overwrite").option("replaceUsing", "id").save(path)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, number) for number in range(4)]:
            done.result()
    assert session.table("lance.t").where("id = 77").count() == 1
    assert session.table("lance.t").count() == 5


def test_random_rows_against_a_model(session: SparkSession, path: str) -> None:
    chance = random.Random(7)
    for _ in range(6):
        old = stored(session)
        new = {
            (chance.choice([1, 2, 3, None]), chance.choice("ab"), chance.choice([0.0, 1.0, float("inf")]))
            for _ in range(chance.randrange(4))
        }
        using = chance.sample(["id", "v", "x"], chance.randrange(1, 3))
        places = [["id", "v", "x"].index(name) for name in using]
        keys = {tuple(row[place] for place in places) for row in new}
        remaining = {row for row in old if None in (key := tuple(row[p] for p in places)) or key not in keys}
        frame = session.createDataFrame(sorted(new, key=str), "id INT, v STRING, x DOUBLE")
        frame.write.format("lance").mode("overwrite").option("replaceUsing", ",".join(using)).save(path)
        rows = sorted(map(str, map(tuple, session.table("lance.t").collect())))
        assert rows == sorted([*map(str, remaining), *map(str, new)])
        session.sql("DELETE FROM lance.t").collect()
        session.createDataFrame(sorted(remaining | new, key=str), frame.schema).writeTo("lance.t").append()


def test_names_and_types(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.u (a INT, l ARRAY<INT>)").collect()
    rows = session.sql("DESCRIBE EXTENDED lance.u").collect()
    path = next(str(row.data_type) for row in rows if row.col_name == "Location")
    schema = spark_lance.dataset(path).lance_schema
    assert KeyMatch.of(["A"], schema, ["a", "l"]).columns == ("a",)
    with pytest.raises(SchemaError, match="cannot be a key"):
        KeyMatch.of(["l"], schema, ["a", "l"])
    with pytest.raises(OptionError, match="write one of l"):
        KeyMatch.of(["a"], schema, ["l"])
