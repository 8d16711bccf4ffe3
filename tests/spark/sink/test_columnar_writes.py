"""Writes of what a scan reads as columns: no rows are made of them, and what is written is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from tests.spark.scan.test_driver_planning import values
from tests.spark.sink.test_row_batches import TRANSPORT, allocated, expression

MADE = "number of input batches"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    # All is written by tasks.
    session.conf.set("spark.lance.localRows", "0")
    yield spark_lance.enable(session)
    spark.newSession()


def makes_rows(session: SparkSession) -> bool:
    """Whether the last query turned batches of columns into rows."""
    java: Any = session._jsparkSession
    store = java.sharedState().statusStore()
    java.sparkContext().listenerBus().waitUntilEmpty()
    query = store.executionsList().last().executionId()
    values = store.executionMetrics(query)
    nodes = store.planGraph(query).allNodes()
    counted = []
    for i in range(nodes.size()):
        metrics = nodes.apply(i).metrics()
        for m in range(metrics.size()):
            if metrics.apply(m).name() == MADE:
                counted.append(values.get(metrics.apply(m).accumulatorId()))
    assert counted, "the plan has no batches"
    return any(result.isDefined() and result.get() != "0" for result in counted)


def written(rows: DataFrame, place: Path, kind: str = "columns") -> Any:
    session = rows.sparkSession
    session.conf.set(TRANSPORT, kind)
    try:
        rows.write.format("lance").mode("append").save(str(place))
    finally:
        session.conf.unset(TRANSPORT)
    return lance.dataset(str(place)).to_table()


def texts(table: Any) -> list[str]:
    """Rows in some order, in which NaN is what it is."""
    return sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("parquet", {}),
        pytest.param(
            "parquet", {"spark.sql.execution.arrow.maxRecordsPerBatch": "7"}, marks=pytest.mark.slow
        ),
        ("parquet", {"spark.sql.execution.arrow.maxBytesPerBatch": "900"}),
        pytest.param("parquet", {"spark.sql.columnVector.offheap.enabled": "true"}, marks=pytest.mark.slow),
        ("orc", {}),
        ("lance", {}),
    ],
)
def test_flat_columns(session: SparkSession, tmp_path: Path, source: str, settings: dict[str, str]) -> None:
    spark_lance.write_dataset(values(41), str(tmp_path / "made"))
    actual = session.read.format("lance").load(str(tmp_path / "made")).drop("raw", "st")
    actual.repartition(3).write.format(source).mode("append").save(str(tmp_path / "source"))
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        rows = session.read.format(source).load(str(tmp_path / "source"))
        # Columns that change their places and names are still columns.
        others = [name for name in rows.columns if name not in ("s", "id")]
        rows = rows.selectExpr("s", "id AS number", *others)
        result = written(rows, tmp_path / "columns")
        assert not makes_rows(session)
        single = written(rows, tmp_path / "rows", "rows")
        # Without that, our own scans read rows, too.
        assert source == "lance" or makes_rows(session)
    finally:
        for name in settings:
            session.conf.unset(name)
    assert result.num_rows == 400
    assert result.schema == single.schema
    assert texts(result) == texts(single)


@pytest.mark.parametrize(
    "seed", [81, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(82, 112))]
)
def test_columns_of_any_type(session: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    columns = [f"{expression(draw, i % 3)} AS c{i}" for i in range(draw.choice([4, 20]))]
    # More rows than one batch of Parquet's reader has.
    actual = session.range(0, 5000, 1, 1).selectExpr("id", *columns)
    actual.write.parquet(str(tmp_path / "source"))
    rows = session.read.parquet(str(tmp_path / "source"))
    result = written(rows, tmp_path / "columns")
    single = written(rows, tmp_path / "rows", "rows")
    assert result.num_rows == 5000
    assert result.schema == single.schema
    assert texts(result) == texts(single)


def test_arrays_and_structs_are_copied_as_columns(session: SparkSession, tmp_path: Path) -> None:
    actual = session.range(0, 5000, 1, 1).selectExpr(
        "id",
        "if(id % 5 = 0, null, transform(sequence(1, int(id % 9)), x -> if(x = 3, null, float(x) / id))) AS v",
        "if(id % 7 = 0, null, named_struct('a', nullif(id, 3), 'b', array(string(id), null))) AS s",
        "array_repeat(double(id), 16) AS w",
    )
    actual.write.parquet(str(tmp_path / "source"))
    rows = session.read.parquet(str(tmp_path / "source"))
    result = written(rows, tmp_path / "columns")
    assert not makes_rows(session)
    assert texts(result) == texts(written(rows, tmp_path / "rows", "rows"))
    assert [4999.0] * 16 in result["w"].to_pylist()


def test_columns_of_partitions_and_columns_that_files_lack(session: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    old = session.range(10).selectExpr("id", "string(id) AS s", "id % 3 AS part", "date'2024-02-29' AS day")
    old.write.partitionBy("part", "day").parquet(source)
    new = session.range(10, 20).selectExpr(
        "id", "id / 2D AS half", "if(id < 15, null, 1) AS part", "cast(null AS date) AS day"
    )
    new.write.mode("append").partitionBy("part", "day").parquet(source)
    rows = session.read.option("mergeSchema", "true").parquet(source)
    result = written(rows, tmp_path / "columns")
    assert not makes_rows(session)
    assert texts(result) == texts(written(rows, tmp_path / "rows", "rows"))
    assert sum(value is None for value in result["half"].to_pylist()) == 10


def test_what_is_computed_is_made_of_rows(session: SparkSession, tmp_path: Path) -> None:
    session.range(100).selectExpr("id", "string(id) AS s").write.parquet(str(tmp_path / "source"))
    rows = session.read.parquet(str(tmp_path / "source"))
    for number, some in enumerate((rows.selectExpr("id + 1 AS id"), rows.where("id > 10"))):
        result = written(some, tmp_path / f"t{number}")
        assert makes_rows(session)
        assert sorted(result["id"].to_pylist()) == sorted(row.id for row in some.collect())


def test_an_overwrite_and_a_table_by_name(session: SparkSession, tmp_path: Path) -> None:
    session.range(50).selectExpr("id", "string(id) AS s").write.parquet(str(tmp_path / "source"))
    rows = session.read.parquet(str(tmp_path / "source"))
    written(session.range(3).selectExpr("id", "'old' AS s"), tmp_path / "t")
    rows.write.format("lance").mode("overwrite").save(str(tmp_path / "t"))
    assert not makes_rows(session)
    result = lance.dataset(str(tmp_path / "t")).to_table()
    assert sorted(result["id"].to_pylist()) == list(range(50))
    empty = session.read.schema("id bigint, s string").parquet(str(tmp_path / "source")).where("false")
    empty.write.format("lance").mode("append").save(str(tmp_path / "t"))
    assert lance.dataset(str(tmp_path / "t")).count_rows() == 50


def test_a_write_that_fails_leaves_neither_rows_nor_memory(session: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    session.range(0, 300_000, 1, 2).selectExpr("id", "repeat(string(id), 10) AS s").write.parquet(str(source))
    place = tmp_path / "t"
    written(session.range(5).selectExpr("id", "'a' AS s"), place)
    before = allocated(session)
    damaged = max(source.glob("*.parquet"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    damaged.write_bytes(content)
    for sum_ in source.glob(".*.crc"):
        sum_.unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="Encountered error while reading file"):
        written(session.read.schema("id bigint, s string").parquet(str(source)), place)
    assert spark_lance.dataset(str(place)).version == 1
    assert spark_lance.dataset(str(place)).count_rows() == 5
    assert allocated(session) - before < 4e6
