"""Constraints in a session: on every way to write, with Spark's own evaluation as the judge."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import ConstraintError, LanceError, OptionError
from spark_lance.table.schema.constraints import comparable, own_condition
from tests.conftest import interpreted

REFUSALS = (LanceError, PySparkException)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return interpreted(session)


def rows(session: SparkSession, table: str = "lance.t") -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in session.table(table).collect()), key=repr)


def source(session: SparkSession, key: int, v: int | None, s: str | None) -> DataFrame:
    return session.createDataFrame([(key, v, s)], "id int, v bigint, s string")


# Each writes one row with a value of v and one of s.
def _insert(session: SparkSession, path: str, v: int, s: str) -> None:
    session.sql(f"INSERT INTO lance.t VALUES (7, {v}, '{s}')").collect()


def _insert_overwrite(session: SparkSession, path: str, v: int, s: str) -> None:
    session.sql(f"INSERT OVERWRITE lance.t VALUES (7, {v}, '{s}')").collect()


def _update(session: SparkSession, path: str, v: int, s: str) -> None:
    session.sql(f"UPDATE lance.t SET v = {v}, s = '{s}' WHERE id = 1").collect()


def _merge(session: SparkSession, path: str, v: int, s: str) -> None:
    session.sql(
        f"MERGE INTO lance.t USING (SELECT 1 AS id, {v}L AS v, '{s}' AS s) AS x ON t.id = x.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()


def _by_name(session: SparkSession, path: str, v: int, s: str) -> None:
    source(session, 7, v, s).writeTo("lance.t").append()


def _by_path(session: SparkSession, path: str, v: int, s: str) -> None:
    source(session, 7, v, s).write.mode("append").format("lance").save(path)


def _many(session: SparkSession, path: str, v: int, s: str) -> None:
    frame = session.range(20_000).selectExpr("cast(id AS int) AS id", f"{v}L + id AS v", f"'{s}' AS s")
    frame.repartition(2).write.mode("append").format("lance").save(path)


def _table_update(session: SparkSession, path: str, v: int, s: str) -> None:
    LanceTable.forPath(session, path).update("id = 1", {"v": str(v), "s": f"'{s}'"})


def _table_merge(session: SparkSession, path: str, v: int, s: str) -> None:
    merge = (
        LanceTable.forPath(session, path).alias("t").merge(source(session, 1, v, s).alias("x"), "t.id = x.id")
    )
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _stream(session: SparkSession, path: str, v: int, s: str) -> None:
    place = Path(path).parent / f"stream{v}{s}"
    source(session, 7, v, s).write.format("parquet").save(str(place / "rows"))
    stream = session.readStream.schema("id int, v bigint, s string").parquet(str(place / "rows")).writeStream
    stream = stream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    stream.format("lance").start(path).awaitTermination(60)


def _dataset(session: SparkSession, path: str, v: int, s: str) -> None:
    schema = spark_lance.dataset(path).schema
    spark_lance.write_dataset(pa.table({"id": [7], "v": [v], "s": [s]}, schema), path, mode="append")


_UPDATES = (_update, _merge, _table_update, _table_merge)
_WRITES = (_by_name, _by_path, _many, _stream, *_UPDATES, _insert, _insert_overwrite)


def _violates(session: SparkSession, path: str, write: Callable[..., None], v: int, s: str) -> None:
    with pytest.raises(REFUSALS) as caught:
        write(session, path, v, s)
    message = str(caught.value)
    assert "CHECK" in message
    assert ("positive" if v < 0 else "big") in message, (write.__name__, message)


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param((_by_path, _merge, _table_merge, _stream), id="some"),
        pytest.param((*_WRITES, _dataset), id="all", marks=pytest.mark.slow),
    ],
)
def test_every_write_checks_constraints(
    session: SparkSession, writes: tuple[Callable[..., None], ...]
) -> None:
    session.sql("CREATE TABLE lance.t (id INT, v BIGINT, s STRING)").collect()
    session.sql("INSERT INTO lance.t VALUES (1, 1, 'a'), (2, NULL, NULL)").collect()
    table = LanceTable.forName(session, "lance.t")
    table.addConstraint("positive", "v > 0")
    # Only Spark knows upper.
    table.addConstraint("big", "upper(s) IN ('A', 'B')")
    before = rows(session)
    if session.version.startswith("4.0"):  # it writes no stream to a Python data source
        writes = tuple(write for write in writes if write is not _stream)
    for number, write in enumerate(writes):
        _violates(session, table.path, write, *((-1, "a") if number % 3 == 0 else (3, "c")))
        assert rows(session) == before, write.__name__
    for write in (_dataset, _table_update, *writes[:2], _insert_overwrite):
        write(session, table.path, 5, "b")
    assert rows(session) == [(7, 5, "b")]


def test_constraints_of_tables(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t AS SELECT 1 AS id, 'a' AS s").collect()
    table = LanceTable.forName(session, "lance.t")
    others = (
        "rand() > 0.5",
        "id > (SELECT 1)",
        "sum(id) > 0",
        "id > java_method('java.lang.Math', 'abs', 1)",
    )
    for expression in ("id", "missing > 1", "1 = 1", "id >", *others):
        with pytest.raises(ConstraintError):
            table.addConstraint("c", expression)
    with pytest.raises(ConstraintError, match=r"c \(length\(s\) % 2 = 0\) is violated by the row s = 'a'"):
        table.addConstraint("c", "length(s) % 2 = 0")
    table.addConstraint("c", "length(s) % 2 = 1")
    for change in ("DROP COLUMN s", "RENAME COLUMN s TO r"):
        with pytest.raises(PySparkException, match="DROP CONSTRAINT c"):
            session.sql(f"ALTER TABLE lance.t {change}").collect()
    with pytest.raises(REFUSALS, match="ADD CONSTRAINT d CHECK"):
        session.sql("ALTER TABLE lance.t SET TBLPROPERTIES ('delta.constraints.d' = 'id > 0')").collect()
    with pytest.raises(OptionError, match=r"LanceTable\.addConstraint"):
        table.setConfig({"delta.constraints.d": "id > 0"})
    table.dropConstraint("C")
    table.dropConstraint("c", ifExists=True)
    session.sql("ALTER TABLE lance.t RENAME COLUMN s TO r").collect()
    assert table.constraints == ()


def test_alter_table_adds_and_drops_constraints(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.t AS SELECT 1L AS v, 'a' AS s").collect()
    session.sql("ALTER TABLE lance.t ADD CONSTRAINT positive CHECK (v > 0 AND (s <> 'b' OR v > 9))").collect()
    session.sql("ALTER TABLE lance.t ADD CONSTRAINT up CHECK (upper(s) = 'A')").collect()
    for values in ("(-1, 'a')", "(1, 'b')", "(1, 'c')"):
        with pytest.raises(PySparkException, match="CHECK constraint"):
            session.sql(f"INSERT INTO lance.t VALUES {values}").collect()
    with pytest.raises(PySparkException, match=r"constraint more \(v > 1\) is violated by the row v = 1"):
        session.sql("ALTER TABLE lance.t ADD CONSTRAINT more CHECK (v > 1)").collect()
    session.sql("ALTER TABLE lance.t DROP CONSTRAINT IF EXISTS more").collect()
    with pytest.raises(PySparkException, match="has no constraint more; there are: positive, up"):
        session.sql("ALTER TABLE lance.t DROP CONSTRAINT more").collect()
    session.sql("ALTER TABLE lance.t DROP CONSTRAINT up").collect()
    session.sql("CALL lance.system.add_constraint('t', 'more', 'v < 5')").collect()
    session.sql("INSERT INTO lance.t VALUES (1, 'c')").collect()
    assert [one.name for one in LanceTable.forName(session, "lance.t").constraints] == ["more", "positive"]
    with pytest.raises(PySparkException, match="CHECK constraint more"):
        session.sql("INSERT INTO lance.t VALUES (7, 'c')").collect()


def test_create_table_declares_constraints(session: SparkSession) -> None:
    if session.version.startswith("4.0"):
        pytest.skip("Spark 4.0 has no constraints in CREATE TABLE")
    columns = "id INT NOT NULL PRIMARY KEY RELY, v INT CONSTRAINT small CHECK (v < 10), UNIQUE (v)"
    session.sql(
        f"CREATE TABLE lance.t ({columns}, CONSTRAINT f FOREIGN KEY (v) REFERENCES lance.o (id))"
    ).collect()
    with pytest.raises(PySparkException, match="CHECK constraint small v < 10 violated") as caught:
        session.sql("INSERT INTO lance.t VALUES (1, 10)").collect()
    assert caught.value.getCondition() == "CHECK_CONSTRAINT_VIOLATION"
    with pytest.raises(PySparkException, match="has the primary key t_pk"):
        session.sql("ALTER TABLE lance.t ADD CONSTRAINT other PRIMARY KEY (v)").collect()
    shown = session.sql("SHOW CREATE TABLE lance.t").collect()[0][0]
    described = {row[0]: row[1] for row in session.sql("DESCRIBE EXTENDED lance.t").collect()}
    # Spark 4.1 leaves NORELY out.
    assert described["small"].removesuffix(" NORELY") == "CHECK (v < 10) ENFORCED"
    assert described["t_pk"] == "PRIMARY KEY (id) NOT ENFORCED RELY"
    foreign = described["f"].removesuffix(" NORELY")
    assert foreign == "FOREIGN KEY (v) REFERENCES lance.o (id) NOT ENFORCED"
    session.sql(
        "CREATE OR REPLACE TABLE lance.t (id INT NOT NULL, v INT, CONSTRAINT big CHECK (v > 1))"
    ).collect()
    for v in (0, 11):
        with pytest.raises(PySparkException, match="CHECK constraint"):
            session.sql(f"INSERT INTO lance.t VALUES (1, {v})").collect()
    session.sql("DROP TABLE lance.t").collect()
    session.sql(shown).collect()
    assert session.sql("SHOW CREATE TABLE lance.t").collect()[0][0] == shown


_COLUMNS = ("v", "s", "f", "d", "n", "b")
_NAN = float("nan")
_VALUES: dict[str, tuple[Any, ...]] = {
    "v": (None, 0, 1, -1, 5, 2**62),
    "s": (None, "", "a", "B", "ab", "a\nb", "é", "😀"),
    "f": (None, 0.0, -0.0, 0.1, 1.0, _NAN, -_NAN, float("inf"), -1e300),
    "d": (None, datetime.date(2020, 1, 1), datetime.date(1969, 12, 31)),
    "n": (None, Decimal("1.50"), Decimal("0.00"), Decimal("-7.25")),
    "b": (None, True, False),
}
_LITERALS = {
    "v": ("0", "1", "-1", "5", "1.5", "99999999999"),
    "s": ("''", "'a'", "'ab'", "'é'"),
    "f": ("0", "0.0", "0.1", "1", "-1", "1e300"),
    "d": ("DATE '2020-01-01'", "DATE '1969-12-31'"),
    "n": ("1.5", "0", "-7.25", "1", "1.500"),
    "b": ("TRUE", "FALSE"),
}


def _condition(draw: random.Random, depth: int = 2) -> str:
    choice = draw.random()
    if depth and choice < 0.35:
        parts = (_condition(draw, depth - 1), _condition(draw, depth - 1))
        return f"({parts[0]} {draw.choice(('AND', 'OR'))} {parts[1]})"
    if depth and choice < 0.45:
        return f"NOT ({_condition(draw, depth - 1)})"
    name = draw.choice(_COLUMNS)
    literals = _LITERALS[name]
    if choice < 0.55:
        return f"{name} IS {draw.choice(('', 'NOT '))}NULL"
    if choice < 0.65:
        return f"{name} IN ({', '.join(draw.choices(literals, k=2))})"
    if choice < 0.72:
        return f"{name} BETWEEN {draw.choice(literals)} AND {draw.choice(literals)}"
    if choice < 0.8:
        pattern = draw.choice(("a%", "%b", "_", "a_b", "%", "__"))
        return f"s {draw.choice(('', 'NOT '))}LIKE '{pattern}'"
    if choice < 0.84:
        return f"length(s) {draw.choice(('<', '=', '>'))} 1"
    return f"{name} {draw.choice(('=', '<>', '<', '<=', '>', '>=', '<=>', '=='))} {draw.choice(literals)}"


@pytest.mark.parametrize(("seed", "count"), [(1, 30), pytest.param(2, 400, marks=pytest.mark.slow)])
def test_conditions_are_what_spark_says(session: SparkSession, tmp_path: Path, seed: int, count: int) -> None:
    draw = random.Random(seed)
    data = [(number, *(draw.choice(_VALUES[name]) for name in _COLUMNS)) for number in range(200)]
    schema = "id int, v bigint, s string, f double, d date, n decimal(10,2), b boolean"
    session.createDataFrame(data, schema).coalesce(1).write.parquet(str(tmp_path / "rows"))
    judge = session.read.parquet(str(tmp_path / "rows"))
    judge.write.mode("append").format("lance").save(str(tmp_path / "t"))
    dataset = spark_lance.dataset(str(tmp_path / "t"))
    table = dataset.to_table()
    own = 0
    conditions = [_condition(draw) for _ in range(count)]
    answers = judge.selectExpr("id", *(f"({text}) AS c{n}" for n, text in enumerate(conditions))).toArrow()
    for number, text in enumerate(conditions):
        condition = own_condition(text, dataset.schema)
        if condition is not None:
            own += 1
            result = dict(
                zip(table["id"].to_pylist(), condition.mask(comparable(table)).to_pylist(), strict=True)
            )
            expected = dict(zip(answers["id"].to_pylist(), answers[f"c{number}"].to_pylist(), strict=True))
            assert result == expected, text
    assert own > count // 2
