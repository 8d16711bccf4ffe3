"""How a read is planned and what tasks get, without a Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.types import LongType, StructType

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.io.cache import CACHE
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan.partitions import split_row_count
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.worker.read import LancePartition, TaskRows
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.versions import versions
from tests.wrapped_store import replace_request


def plan(
    path: str, schema: StructType | None = None, limit: int | None = None, **options: Any
) -> tuple[TaskRows, list[LancePartition]]:
    """Plan a read as Spark does: the reader of the tasks, and their partitions."""
    source = LanceDataSource({"path": path, **{name: str(value) for name, value in options.items()}})
    result = source.schema()
    copy = pickle.loads(dumps(source))  # type: ignore[no-untyped-call]
    reader = copy.reader(result if schema is None else schema)
    reader.set_filters([], limit)
    sent = pickle.loads(dumps(reader))  # type: ignore[no-untyped-call]
    return sent, [pickle.loads(pickle.dumps(partition)) for partition in reader.partitions()]


def ids(reader: TaskRows, partitions: list[LancePartition]) -> list[int]:
    """The column id of all rows."""
    return [i for p in partitions for batch in reader.read(p) for i in batch.column("id").to_pylist()]


@pytest.fixture(params=["local", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Eight fragments of 5,000 rows; of the third, some are deleted."""
    location = str(tmp_path / "t") if request.param == "local" else "memory://planning/t"
    table = pa.table({"id": range(40_000), "s": [f"s{i % 97}" for i in range(40_000)]})
    spark_lance.write_dataset(table, location, max_rows_per_file=5_000)
    spark_lance.dataset(location).delete("id > 12000 and id < 12500")
    yield location
    memory = fsspec.filesystem("memory")
    if memory.exists("/planning"):
        memory.rm("/planning", recursive=True)


def test_tasks_ask_for_no_sizes_and_no_listings(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [plan(path), plan(path, columns="s,id"), plan(path, filter="id % 1000 = 7 and s > 's5'")]

    def refused(*_: Any) -> Any:
        raise AssertionError("a task asked the store for what the manifest tells")

    for name in ("size", "exists", "list"):
        replace_request(monkeypatch, name, lambda _: refused)
    results = [ids(*one) for one in plans]
    assert [len(rows) for rows in results[:2]] == [40_000 - 499] * 2
    assert results[2] == [
        i for i in range(7, 40_000, 1000) if f"s{i % 97}" > "s5" and not 12_000 < i < 12_500
    ]


def test_the_manifest_is_read_once_for_the_schema_and_once_for_the_plan(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    original = read_manifest

    def counted(*arguments: Any, **named: Any) -> Any:
        read.append(arguments[1])
        return original(*arguments, **named)

    monkeypatch.setattr(versions, "read_manifest", counted)
    CACHE.clear()
    reader, partitions = plan(path, partition_bytes=100_000)
    # A file of the same bytes is not taken apart twice.
    times = 2 if path.startswith("memory") else 1
    assert len(read) == times
    assert len(ids(reader, partitions)) == 40_000 - 499
    assert len(read) == times


def test_partitions_do_not_carry_what_tasks_share(tmp_path: Path) -> None:
    location = str(tmp_path / "wide")
    columns = {f"column number {i}": range(10) for i in range(200)}
    for _ in range(3):
        spark_lance.write_dataset(pa.table(columns), location, mode="append")
    _, wide = plan(location, partition_bytes=1)
    assert len(wide) == 3
    # The fragment's message lists its fields; there are no names and types.
    assert all(len(pickle.dumps(partition)) < 1_500 for partition in wide)


def test_partitions_suit_the_cores_of_the_session(path: str) -> None:
    _, few = plan(path, partition_bytes=10_000_000)
    assert len(few) == 1
    schema = StructType().add("id", LongType()).add("s", "string")
    many = [len(LanceReader(read_options({"path": path}), schema, cores=n).partitions()) for n in (1, 1000)]
    # No partition is smaller than some megabytes.
    assert many == [1, 1]


def test_a_limit_plans_and_reads_no_more_than_it_needs(path: str) -> None:
    schema = StructType().add("id", LongType())
    for limit in (1, 4_999, 5_000, 5_001, 12_000, 13_000, 14_600, 39_501, 39_502, 10**6):
        reader, partitions = plan(path, schema, limit, partition_bytes=1)
        result = ids(reader, partitions)
        live = [i for i in range(40_000) if not 12_000 < i < 12_500]
        assert result == live[: len(result)]
        assert min(limit, len(live)) <= len(result)
        # Fragments with deleted rows are read as a whole, but by no partition beyond the limit.
        assert len(result) <= limit + 5_000
    reader, partitions = plan(path, schema, 7)
    assert ids(reader, partitions) == list(range(7))


def test_a_limit_counts_the_rows_that_meet_a_condition(path: str) -> None:
    schema = StructType().add("id", LongType())
    reader, partitions = plan(path, schema, 3, filter="id > 100")
    assert ids(reader, partitions)[:3] == [101, 102, 103]


def test_json_columns_are_text(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    texts = ['{"a": 1, "b": [null, "x"]}', None, "7"]
    rows = pa.table({"j": pa.array(texts, pa.json_()), "id": range(3)})
    lance.write_dataset(rows, location)
    schema = LanceDataSource({"path": location}).schema()
    assert schema.simpleString() == "struct<j:string,id:bigint>"
    for request, first in ((None, '{"a":1,"b":[null,"x"]}'), (schema["j"], '{"a":1,"b":[null,"x"]}')):
        reader, partitions = plan(location, None if request is None else StructType([request]))
        results = [value for p in partitions for batch in reader.read(p) for value in batch["j"].to_pylist()]
        assert results == [first, None, "7"]
    stored = StructType().add("j", "binary")
    reader, partitions = plan(location, stored)
    assert next(iter(reader.read(partitions[0])))["j"].type == pa.binary()


def test_rows_without_columns_are_shared_by_cores_if_there_are_many() -> None:
    assert split_row_count(0) == []
    assert [part.rows for part in split_row_count(5, 4)] == [5]
    parts = split_row_count(10**9, 4)
    assert len(parts) == 4
    assert sum(part.rows for part in parts) == 10**9


def test_counting_opens_no_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        reader, partitions = plan(path, columns="[]")
    except SchemaError:
        pytest.skip("Spark 4.0 loses rows without columns")
    replace_request(monkeypatch, "read_ranges", lambda _: None)
    assert sum(batch.num_rows for p in partitions for batch in reader.read(p)) == 40_000 - 499
    assert len(partitions) == 1
