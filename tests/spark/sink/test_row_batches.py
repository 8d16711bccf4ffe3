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
from spark_lance.spark.worker.write import TaskWrite, pickled_write
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
    message = Told()
    answer = TaskWrite(message, packed=True).batches(
        [packed.slice(0, 7), packed.slice(7, 0), packed.slice(7)]
    )
    assert len(list(answer)) == 1
    assert pa.Table.from_batches(message.batches) == pa.Table.from_batches(rows)


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


# Texts of fewer bytes than a word of a row, of as many, and of more than two.
TEXTS = ("null", "''", "'a'", "'eight by'", "'é and ten'", "'sixteen bytes, a'", "repeat('long ', 40)")
VALUES = (
    "id % 3 = 0",
    "cast(id % 250 - 125 AS tinyint)",
    "cast(7 - id AS smallint)",
    "cast(id * 100003 AS int)",
    "id * -1000000007",
    "float(id) / 3",
    "double(id) / 7",
    "date_add(date'1969-12-30', cast(id AS int))",
    "timestamp_micros(id * 1234567 - 9000000)",
    "cast(timestamp_micros(id * 7654321) AS timestamp_ntz)",
    "make_dt_interval(0, id, 3, 0.25)",
    "cast((id - 20) / 4 AS decimal(9,2))",
    "cast((id - 20) * 12345678901234567.0123456789BD AS decimal(38,10))",
    "cast((id - 20) % 3 AS decimal(38,0))",
    f"element_at(array({', '.join(TEXTS)}), cast(id % {len(TEXTS)} AS int) + 1)",
)


def expression(draw: random.Random, depth: int) -> str:
    """A value of a random type, null in some rows, at any depth."""
    kind = draw.choice(["value", "struct", "items", "repeated", "map"]) if depth else "value"
    below = [expression(draw, depth - 1) for _ in range(3)] if depth else []
    if kind == "value":
        result = draw.choice(VALUES)
    elif kind == "struct":
        result = "named_struct(" + ", ".join(f"'f{i}', {part}" for i, part in enumerate(below)) + ")"
    elif kind == "items":
        result = f"slice(array({below[0]}, null, {below[0]}, null), 1, cast(id % 5 AS int))"
    elif kind == "repeated":
        result = f"array_repeat({below[0]}, cast(id % 67 AS int))"
    else:
        result = f"map_from_arrays(array(concat('k', id), 'other'), array({below[0]}, {below[0]}))"
    return f"if(id % {draw.randrange(2, 7)} = 1, null, {result})" if draw.random() < 0.6 else result


@pytest.mark.parametrize(
    "seed", [51, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(52, 72))]
)
def test_rows_of_any_type_are_written_as_spark_writes_them(
    session: SparkSession, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    # More than 64 columns, whose nulls take more than a word.
    columns = [f"{expression(draw, i % 3)} AS c{i}" for i in range(draw.choice([5, 70]))]
    rows = session.range(0, 3000, 1, 1).selectExpr("id", *columns)
    for name, kind in (("packed", "columns"), ("single", "rows")):
        session.conf.set(TRANSPORT, kind)
        try:
            rows.write.format("lance").mode("append").save(str(tmp_path / name))
        finally:
            session.conf.unset(TRANSPORT)
    packed, single = (lance.dataset(str(tmp_path / name)).to_table() for name in ("packed", "single"))
    assert packed.num_rows == 3000
    assert packed.equals(single)


def test_rows_longer_than_a_block_of_rows(session: SparkSession, tmp_path: Path) -> None:
    rows = session.range(0, 60, 1, 1).selectExpr(
        "id",
        "if(id % 7 = 3, repeat(string(id), 300000), string(id)) AS s",
        "array_repeat(double(id), 40000) AS v",
    )
    rows.write.format("lance").mode("append").save(str(tmp_path / "t"))
    result = lance.dataset(str(tmp_path / "t")).to_table().to_pydict()
    assert result["id"] == list(range(60))
    assert result["s"] == [str(i) * 300_000 if i % 7 == 3 else str(i) for i in range(60)]
    assert result["v"] == [[float(i)] * 40_000 for i in range(60)]


def allocated(session: SparkSession) -> int:
    """The bytes that Arrow holds outside of the JVM's heap."""
    jvm: Any = session._jvm
    return int(jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory())


def test_batches_are_used_where_no_value_is_large(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bool] = []

    def kept(writer: Any, *, batches: bool) -> bytes:
        requests.append(batches)
        return pickled_write(writer, batches=batches)

    monkeypatch.setattr("spark_lance.spark.sql.writes.pickled_write", kept)
    rows = session.range(20, numPartitions=2)
    written(session, rows.selectExpr("id", "array(float(id)) v"), tmp_path / "a.lance", "columns")
    written(
        session,
        rows.selectExpr("id", "array(encode(string(id), 'utf-8')) b"),
        tmp_path / "b.lance",
        "columns",
    )
    written(session, rows, tmp_path / "c.lance", "rows")
    assert requests == [True, False, False]


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
    result = table.to_table(filter="id = 4321")
    assert result["s"].to_pylist() == ["4321" * 5000]
