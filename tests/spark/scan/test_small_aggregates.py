"""Aggregates that the driver finds by looking through columns of few bytes: what Spark says of all rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from tests.conftest import interpreted
from tests.spark.scan.test_driver_aggregates import is_answered, plain, told
from tests.spark.scan.test_driver_planning import values
from tests.spark.scan.test_local_answers import narrow_table
from tests.spark.scan.test_pruning import scans

ANSI = "spark.sql.ansi.enabled"
WHERE = (
    "true", "i > 0", "n >= 0", "s like 'a%'", "s is null", "yes", "day = date'2024-02-29'", "f > 1", "id < 7",
    "st.x = 1", "big > 0", "i in (0, 1) or s = 'a'", "id < 0", "cast(i AS string) like '%1%'",
)  # fmt: skip
# Sums of floats, and averages of large numbers, depend on the order of rows in Spark itself.
SUMMED = ("i", "n", "id", "small", "tiny", "big", "wide", "unsigned", "uint64", "st.x")
MEANT = ("i", "n", "id", "small", "tiny", "unsigned", "st.x")
NUMBERS = (*SUMMED, "f", "d")
OTHERS = ("t", "w", "day", "s", "raw", "yes")


def rows(seed: int) -> pa.Table:
    """Rows with numbers of all widths."""
    draw = random.Random(seed)
    table = values(seed)
    extra: dict[str, tuple[pa.DataType, list[Any]]] = {
        "small": (pa.int16(), [-(2**15), 2**15 - 1, 7]),
        "tiny": (pa.int8(), [-128, 127]),
        "big": (pa.int64(), [2**52, -(2**52), 2**53 + 1, 5]),
        "wide": (pa.decimal128(38, 2), [Decimal("9" * 30 + ".99"), Decimal("-0.01")]),
        "unsigned": (pa.uint32(), [2**32 - 1, 0]),
        "uint64": (pa.uint64(), [2**64 - 1, 0, 3]),
    }
    for name, (kind, choices) in extra.items():
        drawn = [draw.choice([None, *choices]) for _ in range(table.num_rows)]
        table = table.append_column(name, pa.array(drawn, kind))
    return table


@pytest.fixture(scope="module")
def driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    session.conf.set("spark.sql.adaptive.enabled", "false")
    root = str(tmp_path_factory.mktemp("looked"))
    yield spark_lance.enable(session, root=root, catalog="looked")
    spark.newSession()


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def place(
    driver: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A table of several fragments with deleted and changed rows."""
    place = tmp_path_factory.mktemp("table") / "t.lance"
    table = rows(request.param)
    for part in range(3):
        piece = table.slice(part * table.num_rows // 3, table.num_rows // 3)
        spark_lance.write_dataset(piece, str(place), mode="append")
    spark_lance.dataset(str(place)).delete("id % 7 = 2 or raw = X'FF'")
    spark_lance.dataset(str(place)).update({"i": "77"}, where="id % 9 = 1")
    plain(driver, place).createOrReplaceTempView("all_rows")
    driver.read.format("lance").load(str(place)).createOrReplaceTempView("table_rows")
    return place


def outcome(frame: DataFrame) -> list[str]:
    """The rows, or the class of the error."""
    try:
        return told(frame)
    except PySparkException as error:
        return [str(error.getCondition())]


@pytest.mark.parametrize(
    ("ansi", "times"),
    [
        ("true", 1),
        ("false", 1),
        *(pytest.param(ansi, 3, marks=pytest.mark.slow) for ansi in ("true", "false")),
    ],
)
def test_answers_are_those_of_all_rows(driver: SparkSession, place: Path, ansi: str, times: int) -> None:
    draw = random.Random(str(place) + ansi)
    driver.conf.set(ANSI, ansi)
    try:
        answered = 0
        for condition in WHERE:
            for _ in range(times):
                one, mean, any_one = draw.choice(SUMMED), draw.choice(MEANT), draw.choice(NUMBERS)
                other = draw.choice(OTHERS)
                chosen = draw.sample(
                    [
                        f"sum({one})", f"avg({mean})", f"min({any_one})", f"max({any_one})", f"sum({mean})",
                        f"min({other})", f"max({other})", "count(*)", f"count({other})", f"try_sum({one})",
                        f"count(DISTINCT {other})" if draw.random() < 0.2 else f"count({one})",
                    ],
                    draw.randint(1, 4),
                )  # fmt: skip
                query = f"SELECT {', '.join(chosen)} FROM {{rows}} WHERE {condition}"
                frame = driver.sql(query.format(rows="table_rows"))
                assert outcome(frame) == outcome(driver.sql(query.format(rows="all_rows"))), query
                answered += is_answered(frame)
        assert answered >= 4 * times
    finally:
        driver.conf.unset(ANSI)


@pytest.mark.parametrize("column", NUMBERS)
def test_what_is_answered(driver: SparkSession, place: Path, column: str) -> None:
    total = driver.sql(f"SELECT sum({column}) FROM table_rows")
    mean = driver.sql(f"SELECT avg({column}) FROM table_rows")
    # Sums of floats, and of wide decimals, are Spark's; so are averages that are none of exact doubles.
    assert is_answered(total) == (column not in ("f", "d", "wide"))
    assert is_answered(mean) == (column not in ("f", "d", "wide", "n", "uint64", "big"))
    for frame, function in ((total, "sum"), (mean, "avg")):
        if column not in (MEANT if function == "avg" else SUMMED):
            continue
        assert told(frame) == told(driver.sql(f"SELECT {function}({column}) FROM all_rows"))


def test_what_may_overflow_is_left_to_spark(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    # Whether this overflows is up to the order.
    spark_lance.write_dataset(pa.table({"a": pa.array([2**63 - 1, 1, -5], pa.int64())}), place)
    frame = driver.read.format("lance").load(place)
    driver.conf.set(ANSI, "false")
    assert not is_answered(frame.selectExpr("sum(a)"))
    assert frame.selectExpr("sum(a)").collect() == [(2**63 - 5,)]
    assert frame.where("a > 0").selectExpr("sum(a)").collect() == [(-(2**63),)]
    driver.conf.set(ANSI, "true")
    with pytest.raises(PySparkException, match="ARITHMETIC_OVERFLOW"):
        frame.where("a > 0").selectExpr("sum(a)").collect()
    assert is_answered(frame.where("a < 2").selectExpr("sum(a)"))
    assert frame.where("a < 2").selectExpr("sum(a)", "count(*)", "min(a)").collect() == [(-4, 2, -5)]
    driver.conf.unset(ANSI)


def test_no_rows_have_no_sum(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    schema = pa.schema([("a", pa.int32()), ("n", pa.decimal128(9, 2)), ("s", pa.string())])
    request = ("sum(a)", "sum(n)", "min(s)", "max(a)", "avg(a)", "count(s)")
    empty = [(None, None, None, None, None, 0)]
    spark_lance.write_dataset(schema.empty_table(), place)
    frame = driver.read.format("lance").load(place).selectExpr(*request)
    assert is_answered(frame)
    assert frame.collect() == empty
    rows = pa.table([[1, None], [Decimal("1.50"), None], ["a", None]], schema=schema)
    spark_lance.write_dataset(rows, place, mode="append")
    assert driver.read.format("lance").load(place).where("a > 1").selectExpr(*request).collect() == empty
    assert driver.read.format("lance").load(place).where("a is null").selectExpr(*request).collect() == empty
    spark_lance.dataset(place).delete("true")
    assert driver.read.format("lance").load(place).selectExpr(*request).collect() == empty


def test_versions_bounds_and_parts(driver: SparkSession, tmp_path: Path) -> None:
    place, many = str(tmp_path / "t.lance"), 200_000
    numbers = narrow_table(place, "a", many)
    spark_lance.dataset(place).delete("id >= 100000")
    first, total = int(numbers.sum()), int(numbers[: many // 2].sum())

    def summed(**options: str) -> DataFrame:
        return driver.read.format("lance").options(**options).load(place).selectExpr("sum(a)")

    pinned = summed()
    spark_lance.write_dataset(pa.table({"a": [1], "id": [-1]}), place, mode="append")
    for frame, expected in (
        (pinned, total),
        (summed(version="1"), first),
        (summed(), total + 1),
        (summed(filter="a > 0 and id between 0 and 1999"), int(numbers[:2000].sum())),
    ):
        assert frame.collect() == [(expected,)]
        assert is_answered(frame)
    # What says what a task reads, and a limit, leave it to tasks.
    assert summed(fragments="2").collect() == [(1,)]
    assert not is_answered(summed(fragments="2"))
    assert driver.sql(f"SELECT sum(a) FROM (SELECT a FROM looked.`{place}` LIMIT 3)").collect() == [
        (int(numbers[:3].sum()),)
    ]
    # 10 bits a value are 250 kB, of two files; half of the rows are deleted.
    for name, value, answers in (
        ("localBytes", "400000", True),
        ("localBytes", "100000", False),
        ("localBytes", "3000", False),
        ("localRows", "0", False),
    ):
        driver.conf.set(f"spark.lance.{name}", value)
        try:
            frame = summed(version="1")
            assert is_answered(frame) == answers, (name, value)
            assert bool(scans(frame)) != answers
            assert frame.collect() == [(first,)]
        finally:
            driver.conf.unset(f"spark.lance.{name}")


def test_threads_ask_at_once(driver: SparkSession, place: Path) -> None:
    expected = driver.sql("SELECT sum(i), max(s), count(*) FROM all_rows WHERE id % 2 = 0 OR i > 0").collect()
    results: list[object] = []

    def ask() -> None:
        for _ in range(3):
            query = "SELECT sum(i), max(s), count(*) FROM table_rows WHERE id % 2 = 0 OR i > 0"
            results.append(driver.sql(query).collect())
            results.append(driver.read.format("lance").load(str(place)).selectExpr("sum(id)").collect())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = driver.sql("SELECT sum(id) FROM all_rows").collect()
    assert results.count(expected) == results.count(ids) == 12
