"""Rows that the driver reads, among what else Spark does: adaptive plans, caches, metrics, sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import spark_lance
from tests.spark.sink.test_driver_writes import jobs


@pytest.fixture(scope="module")
def driver(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"
    yield spark_lance.enable(session)
    spark.newSession()


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"id": range(100), "part": [i % 5 for i in range(100)]}), place)
    spark_lance.dataset(place).delete("id % 10 = 3")
    return place


def load(session: SparkSession, path: str) -> DataFrame:
    return session.read.format("lance").load(path)


def nodes(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_joins_and_aggregates_over_them_under_adaptive_execution(driver: SparkSession, path: str) -> None:
    few = load(driver, path).where("id < 20")
    counted = few.join(load(driver, path).hint("merge"), "part").groupBy("part").count()
    result = dict(map(tuple, counted.collect()))
    left = [i for i in range(20) if i % 10 != 3]
    right = [i for i in range(100) if i % 10 != 3]
    expected = {p: sum(i % 5 == p for i in left) * sum(i % 5 == p for i in right) for p in range(5)}
    assert result == expected
    plan = nodes(counted)
    assert "AdaptiveSparkPlan isFinalPlan=true" in plan
    assert "LocalTableScan" in plan
    assert "BatchScan" not in plan


def test_a_cache_keeps_its_rows_until_it_is_dropped(driver: SparkSession, path: str) -> None:
    frame = load(driver, path).where("id < 10").cache()
    assert frame.count() == 9
    assert "InMemoryTableScan" in nodes(frame.select("id"))
    spark_lance.dataset(path).delete("id = 5")
    assert frame.count() == 9
    # Another read of the newest version is not that of the cache.
    assert load(driver, path).where("id < 10").count() == 8
    frame.unpersist()
    assert frame.count() == 9  # its version


def test_the_rows_are_counted_in_the_metrics(driver: SparkSession, path: str) -> None:
    frame = load(driver, path).where("part = 1")
    assert len(frame.collect()) == 20
    plan = frame._jdf.queryExecution().executedPlan()
    assert "LocalTableScan" in plan.toString()
    assert int(plan.metrics().apply("numOutputRows").value()) == 20


def test_views_and_their_conditions(driver: SparkSession, path: str) -> None:
    driver.conf.set("spark.sql.session.timeZone", "UTC")
    load(driver, path).createOrReplaceTempView("all_rows")
    driver.sql(
        "CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT id, part FROM all_rows WHERE part = 2 AND id > 50"
    )
    expected = [i for i in range(100) if i % 5 == 2 and i > 50]
    assert [row.id for row in driver.sql("SELECT id FROM mine ORDER BY id").collect()] == expected
    assert driver.sql("SELECT count(*) FROM mine").head() == (len(expected),)
    assert [row.id for row in driver.sql("SELECT id FROM mine LIMIT 3").collect()] == expected[:3]
    assert driver.sql("SELECT id FROM mine WHERE id = 53").collect() == []
    assert driver.sql("SELECT id FROM mine WHERE id = 51 OR id = 52").collect() == [(52,)]


def test_sessions_of_one_driver_have_bounds_of_their_own(driver: SparkSession, path: str) -> None:
    other = spark_lance.enable(driver.newSession())
    other.conf.set("spark.lance.localRows", "5")
    assert "LocalTableScan" in nodes(load(driver, path))
    assert "BatchScan" in nodes(load(other, path))
    assert load(other, path).count() == load(driver, path).count() == 90
    off = spark_lance.enable(driver.newSession())
    off.conf.set("spark.lance.planInDriver", "false")
    assert "BatchScan" in nodes(load(off, path).where("id < 7"))
    assert load(off, path).where("id < 7").count() == 6


def narrow_table(place: str, name: str, rows: int) -> npt.NDArray[np.int64]:
    """Write numbers below 1000 beside ids, in two fragments; return the numbers, by id."""
    numbers = np.random.default_rng(1).integers(0, 1000, rows)
    table = pa.table({name: numbers, "id": range(rows)})
    spark_lance.write_dataset(table, place, max_rows_per_file=rows // 2)
    return numbers


def test_what_a_filter_looks_through_counts_as_it_is_stored(driver: SparkSession, tmp_path: Path) -> None:
    place, rows = str(tmp_path / "t.lance"), 200_000
    numbers = narrow_table(place, "n", rows)
    spark_lance.dataset(place).delete("id % 10 = 3")
    expected = [i for i in range(rows) if numbers[i] == 5 and i % 10 != 3]
    # 1.6 MB in memory; 10 bits a value are 250 kB.
    for bytes_read, reads in ((300_000, True), (200_000, False), (90_000, False)):
        driver.conf.set("spark.lance.localBytes", bytes_read)
        try:
            result = load(driver, place).where("n = 5")
            assert ("LocalTableScan" in nodes(result.select("n"))) == reads
            assert result.select("n").collect() == [(5,)] * len(expected)
            # Without a filter all of it would be held, and another column is more to read.
            assert "LocalTableScan" not in nodes(load(driver, place).select("n"))
            assert "LocalTableScan" not in nodes(result.select("id"))
            assert sorted(row.id for row in result.select("id").collect()) == expected
        finally:
            driver.conf.unset("spark.lance.localBytes")


COMPUTED = [
    "count(*)",
    "max(id) AS most, min(id) AS least",
    "sum(part) + 1",
    "cast(count(*) AS string) || '!'",
]
OF_ROWS = [
    "id AS number, part",
    "part, id",
    "part",
    "id * 2 + part AS x, 'a' || id, struct(id, part) AS s, array(part, null, 1) AS l",
    "cast(id AS timestamp) AS t, cast(id AS decimal(20, 3)) AS d, if(id > 5, null, part) AS n",
]


@pytest.mark.parametrize("columns", [*COMPUTED, *OF_ROWS])
def test_what_is_computed_of_few_rows_takes_no_job(driver: SparkSession, path: str, columns: str) -> None:
    load(driver, path).createOrReplaceTempView("t")
    query = f"SELECT {columns} FROM t" + (" WHERE id < 30 AND part <> 2" if columns in OF_ROWS else "")
    results: list[Any] = []
    assert jobs(driver, lambda: results.extend(driver.sql(query).collect())) == 0
    driver.conf.set("spark.lance.planInDriver", "false")
    try:
        assert results == driver.sql(query).collect()
    finally:
        driver.conf.set("spark.lance.planInDriver", "true")
    shown = driver.sql(query)
    assert jobs(driver, shown.show) == 0
    plan = shown._jdf.queryExecution().executedPlan()
    shown.collect()
    assert int(plan.metrics().apply("numOutputRows").value()) == len(results)


def test_what_cannot_be_computed_before_a_query_runs_is_left_to_it(driver: SparkSession, path: str) -> None:
    few = load(driver, path).where("id < 30")
    driver.conf.set("spark.sql.ansi.enabled", "true")
    failing = few.selectExpr("1 / (id - 20) AS x")
    assert "Project" in nodes(failing)  # EXPLAIN does not fail
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        failing.collect()
    following = udf(lambda number: number + 1, "long")
    python = few.select(following("id").alias("x"))
    assert sorted(row.x for row in python.collect()) == [i + 1 for i in range(30) if i % 10 != 3]
    assert "Project" in nodes(few.selectExpr("rand(3) AS r"))
    assert len({row.r for row in few.selectExpr("rand() AS r").collect()}) == 27
    subquery = "(SELECT max(part) FROM t) AS m"
    load(driver, path).createOrReplaceTempView("t")
    assert {row.m for row in few.selectExpr(subquery).collect()} == {4}
