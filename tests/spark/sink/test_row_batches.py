"""Rows that tasks write: in batches that the JVM packs, or one by one as Spark hands them over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.spark.sink.task_write import TaskWrite
from tests.spark.scan.test_driver_planning import values

TRANSPORT = "spark.lance.transport"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    # All is written by tasks.
    session.conf.set("spark.lance.localRows", "0")
    yield spark_lance.enable(session)
    spark.newSession()


class Told:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> Any:
        self.batches += list(iterator)


def test_what_is_packed_comes_out() -> None:
    draw = random.Random(5)
    schema = pa.schema({"i": pa.int32(), "s": pa.string(), "v": pa.list_(pa.float32())})
    rows = [
        pa.RecordBatch.from_pylist(
            [{"i": draw.choice([None, 7]), "s": "é" * draw.randrange(9), "v": [0.5] * draw.randrange(4)}]
            * draw.randrange(1, 50),
            schema,
        )
        for _ in range(20)
    ]
    streams = []
    for batch in rows:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as out:
            out.write_batch(batch)
        streams.append(sink.getvalue().to_pybytes())
    packed = pa.record_batch({"rows": pa.array(streams, pa.binary())})
    told = Told()
    answer = TaskWrite(told, packed=True).batches([packed.slice(0, 7), packed.slice(7, 0), packed.slice(7)])
    assert len(list(answer)) == 1
    assert pa.Table.from_batches(told.batches) == pa.Table.from_batches(rows)


def frame(session: SparkSession, place: Path, seed: int) -> DataFrame:
    """Rows of the types that Spark has, some of them null."""
    spark_lance.write_dataset(values(seed), str(place))
    return session.read.format("lance").load(str(place)).repartition(3)


def written(session: SparkSession, rows: DataFrame, place: Path, kind: str) -> list[str]:
    session.conf.set(TRANSPORT, kind)
    try:
        rows.write.format("lance").mode("append").save(str(place))
    finally:
        session.conf.unset(TRANSPORT)
    assert lance.dataset(str(place)).count_rows() == spark_lance.dataset(str(place)).count_rows()
    return sorted(map(str, session.read.format("lance").load(str(place)).collect()))


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (41, {}),
        (42, {"spark.sql.execution.arrow.maxRecordsPerBatch": "7"}),
        (43, {"spark.sql.execution.arrow.maxBytesPerBatch": "900"}),
        (44, {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}),
    ],
)
def test_both_ways_write_the_same(
    session: SparkSession, tmp_path: Path, seed: int, settings: dict[str, str]
) -> None:
    rows = frame(session, tmp_path / "rows.lance", seed).drop("raw")
    rows = rows.selectExpr("*", "map('k', s) AS m", "array(named_struct('x', i, 's', s), null) AS deep")
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        packed = written(session, rows, tmp_path / "packed.lance", "columns")
        single = written(session, rows, tmp_path / "single.lance", "rows")
    finally:
        for name in settings:
            session.conf.unset(name)
    assert packed == single == sorted(map(str, rows.collect()))


def allocated(session: SparkSession) -> int:
    """The bytes that Arrow holds outside of the JVM's heap."""
    return int(session._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory())


def test_batches_are_used_where_no_value_is_large(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_lance.spark.sql import writes

    asked: list[bool] = []
    original = writes.pickled_write

    def kept(writer: Any, *, batches: bool) -> bytes:
        asked.append(batches)
        return original(writer, batches=batches)

    monkeypatch.setattr(writes, "pickled_write", kept)
    rows = session.range(20, numPartitions=2)
    written(session, rows.selectExpr("id", "array(float(id)) v"), tmp_path / "a.lance", "columns")
    written(session, rows.selectExpr("id", "array(encode(string(id), 'utf-8')) b"), tmp_path / "b.lance", "columns")
    written(session, rows, tmp_path / "c.lance", "rows")
    assert asked == [True, False, False]


def test_a_task_that_fails_leaves_neither_rows_nor_memory(session: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "t.lance"
    written(session, session.range(5).selectExpr("id", "'a' AS s"), place, "columns")
    before = allocated(session)
    broken = session.range(0, 600_000, 1, 2).selectExpr(
        "id", "if(id = 599000, raise_error('enough of it'), repeat(string(id), 10)) AS s"
    )
    with pytest.raises(PySparkException, match="enough of it"):
        broken.write.format("lance").mode("append").save(str(place))
    assert spark_lance.dataset(str(place)).count_rows() == 5
    assert spark_lance.dataset(str(place)).version == 1
    written(session, session.range(5).selectExpr("id", "'b' AS s"), place, "columns")
    # Of some 30 MB. Spark itself keeps a batch of rows of a task that fails.
    assert allocated(session) - before < 4e6


def test_rows_of_many_bytes(session: SparkSession, tmp_path: Path) -> None:
    # 100 MB in one task, of which no batch may hold more than 16.
    rows = session.range(0, 5000, 1, 1).selectExpr("id", "repeat(string(id), 20000 div length(id)) AS s")
    rows.write.format("lance").mode("append").save(str(tmp_path / "t.lance"))
    table = lance.dataset(str(tmp_path / "t.lance"))
    assert table.count_rows() == 5000
    found = table.to_table(filter="id = 4321")
    assert found["s"].to_pylist() == ["4321" * 5000]
