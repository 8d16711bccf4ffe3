"""The data source without a Spark session: light to import, small to pickle, and how a read is planned."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

import spark_lance
from spark_lance.errors import OptionError, SchemaError, TableNotFoundError, VersionNotFoundError
from spark_lance.spark.scan import changes, fresh, metadata, search
from spark_lance.spark.scan import rows as rows_kind
from spark_lance.spark.scan.kinds import READ_KINDS, ReadKind
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.read import LancePartition, TaskRows
from spark_lance.spark.worker.write import LanceCommitMessage
from spark_lance.table.reading.scan_task import ScanTask
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two versions: rows 0..9, then 10..14 with a vector and a struct besides."""
    location = str(tmp_path / "t.lance")
    for start, stop in ((0, 10), (10, 15)):
        ids = np.arange(start, stop)
        table = pa.table(
            {
                "id": ids,
                "Name": pa.array([f"n{i}" for i in ids], pa.large_string()),
                "v": pa.array([[float(i)] * 3 for i in ids], pa.list_(pa.float32(), 3)),
                "st": pa.array([{"a": int(i), "b": str(i)} for i in ids]),
            }
        )
        spark_lance.write_dataset(table, location, mode="append")
    return location


def partitions(reader: LanceReader) -> list[LancePartition]:
    result = reader.partitions()
    assert all(isinstance(partition, LancePartition) for partition in result)
    return result  # type: ignore[return-value]


def pickled(thing: Any) -> bytes:
    """Pickle the way Spark does."""
    data: bytes = dumps(thing)  # type: ignore[no-untyped-call]
    return data


def sent(thing: Any) -> Any:
    """What arrives in another process."""
    return pickle.loads(pickled(thing))


def planned(path: str, schema: StructType | None = None, **options: Any) -> LanceReader:
    """Plan a read the way Spark does: by way of a pickled source."""
    source = LanceDataSource({"path": path, **{key: str(value) for key, value in options.items()}})
    request = source.schema() if schema is None else schema
    reader = sent(source).reader(request)
    assert isinstance(reader, LanceReader)
    return reader


def batches(reader: LanceReader) -> list[pa.RecordBatch]:
    copy = sent(reader)
    return [batch for partition in reader.partitions() for batch in copy.read(sent(partition))]


def rows(reader: LanceReader) -> list[dict[str, Any]]:
    return [row for batch in batches(reader) for row in batch.to_pylist()]


def test_the_module_that_spark_imports_everywhere_is_light() -> None:
    heavy = "numpy", "pyarrow", "google.protobuf", "fsspec", "spark_lance.table", "spark_lance.file"
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_lance\n"
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_kind_of_read_has_a_module_of_that_form() -> None:
    # mypy compares the modules with `ReadKind`.
    modules: list[ReadKind] = [rows_kind, metadata, changes, changes, search, fresh]
    assert list(READ_KINDS.values()) == [getattr(module, "__name__", "") for module in modules]


def test_the_version_travels_with_the_source(path: str) -> None:
    source = LanceDataSource({"path": path})
    schema = source.schema()
    spark_lance.write_dataset(spark_lance.dataset(path).to_table().slice(0, 1), path, mode="append")
    copy = sent(source)
    assert version_of(copy.reader(schema)) == 2
    assert version_of(LanceDataSource({"path": path}).reader(schema)) == 3


def version_of(reader: Any) -> int:
    """Return the version that a reader reads."""
    return int(reader.ref.version)


def test_the_version_is_fixed_when_the_source_leaves_the_process_without_having_given_a_schema(
    path: str,
) -> None:
    copy = sent(LanceDataSource({"path": path}))
    spark_lance.write_dataset(spark_lance.dataset(path).to_table().slice(0, 1), path, mode="append")
    assert copy.reader(StructType().add("id", LongType())).ref.version == 2


def test_a_source_without_a_table_can_be_pickled_and_then_says_what_is_missing(tmp_path: Path) -> None:
    copy = sent(LanceDataSource({"path": str(tmp_path / "none")}))
    with pytest.raises(TableNotFoundError, match="no Lance table at"):
        copy.reader(StructType().add("id", LongType()))
    with pytest.raises(TableNotFoundError):
        LanceDataSource({"path": str(tmp_path / "none")}).schema()


def shared(reader: LanceReader) -> ScanTask:
    result = pickle.loads(pickle.dumps(reader))
    assert isinstance(result, TaskRows)
    assert result.shared is not None
    return result.shared


def test_an_asked_version_must_exist(path: str) -> None:
    assert len(rows(planned(path, version=1))) == 10
    with pytest.raises(VersionNotFoundError, match="version 7"):
        planned(path, version=7)


def test_small_fragments_share_a_partition_if_there_is_room(path: str) -> None:
    for reader, fragments in ((planned(path), [2]), (planned(path, partition_bytes=1), [1, 1])):
        result = partitions(reader)
        assert [len(partition.pieces) for partition in result] == fragments
        assert [row["id"] for row in rows(reader)] == list(range(15))


def test_what_crosses_processes_is_small_and_frozen(path: str) -> None:
    reader = planned(path)
    partition = reader.partitions()[0]
    assert len(pickled(reader)) < 2000
    assert len(pickled(partition)) < 2000
    message = LanceCommitMessage((b"x",), 3)
    assert sent(message) == message
    with pytest.raises(dataclasses.FrozenInstanceError):
        partition.pieces = ()  # type: ignore[attr-defined]


def test_workers_read_no_manifest(path: str) -> None:
    reader = planned(path)
    partitions = reader.partitions()
    for file in (Path(path) / "_versions").iterdir():
        file.unlink()
    assert sum(batch.num_rows for p in partitions for batch in reader.read(p)) == 15


def test_a_large_fragment_is_cut(tmp_path: Path) -> None:
    location = str(tmp_path / "large")
    ids = pa.array(range(50_000), pa.int64())
    spark_lance.write_dataset(pa.table({"id": ids, "s": [f"s{i}" for i in range(50_000)]}), location)
    spark_lance.dataset(location).delete("id % 3 = 1")
    reader = planned(location, partition_bytes=200_000, columns="id,_rowoffset")
    result = partitions(reader)
    assert len(result) >= 3
    assert {len(partition.pieces) for partition in result} == {1}
    read = pa.Table.from_batches(batches(reader))
    assert read["id"].to_pylist() == [i for i in range(50_000) if i % 3 != 1]
    assert read["_rowoffset"].to_pylist() == list(range(read.num_rows))
    some = planned(location, partition_bytes=200_000, columns="id", filter="id > 777 and s < 's5'")
    expected = [i for i in range(778, 50_000) if i % 3 != 1 and f"s{i}" < "s5"]
    assert pa.Table.from_batches(batches(some))["id"].to_pylist() == expected


@pytest.mark.parametrize(
    ("columns", "names"),
    [("v,id", ["v", "id"]), ('["Name"]', ["Name"]), ("NAME,ID", ["Name", "id"])],
)
def test_option_columns_chooses_and_orders(path: str, columns: str, names: list[str]) -> None:
    reader = planned(path, columns=columns)
    for batch in batches(reader):
        assert batch.schema.names == names


def test_only_chosen_columns_are_fetched(path: str) -> None:
    expected = {"id", "st"}
    schema = LanceDataSource({"path": path}).schema()
    part = StructType([field for field in schema if field.name in expected])
    for reader in (planned(path, columns="st,id"), planned(path, part)):
        assert {field.name for field in shared(reader).fields} == expected


def test_a_schema_may_ask_for_a_part_of_a_struct(path: str) -> None:
    schema = StructType().add("st", StructType().add("b", StringType())).add("ID", LongType())
    reader = planned(path, schema)
    (st, _) = shared(reader).fields
    assert [child.name for child in st.children] == ["b"]
    assert rows(reader)[11] == {"st": {"b": "11"}, "ID": 11}


@pytest.mark.skipif(not COUNTS_WITHOUT_COLUMNS, reason="Spark 4.0 loses such rows")
def test_reads_without_columns_count_rows(path: str) -> None:
    for reader in (planned(path, columns="[]"), planned(path, StructType())):
        result = batches(reader)
        assert sum(batch.num_rows for batch in result) == 15
        assert all(batch.num_columns == 0 for batch in result)
    assert len(batches(planned(path, columns="[]", batch_size=4))) == 1


@pytest.mark.skipif(COUNTS_WITHOUT_COLUMNS, reason="newer Spark versions keep such rows")
def test_reads_without_columns_are_refused_where_spark_would_lose_their_rows(path: str) -> None:
    with pytest.raises(SchemaError, match="without columns"):
        planned(path, columns="[]")


def test_an_empty_table_reads_as_nothing(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    spark_lance.write_dataset(empty, str(tmp_path / "e"))
    reader = planned(str(tmp_path / "e"))
    assert reader.partitions() == []
    # Spark then makes up a partition of its own.
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "messages"),
    [
        (StructType().add("x", LongType()).add("y", LongType()), ["no column x, y", "id, Name, v, st"]),
        (StructType().add("id", StringType()).add("v", LongType()), ["'id' is bigint, not string", "'v' is"]),
        (StructType().add("id", LongType(), False), ["'id' may hold nulls"]),
        (StructType().add("v", ArrayType(LongType())), ["'v' is array<float>, not array<bigint>"]),
        (StructType().add("id", LongType()).add("ID", LongType()), ["names a column twice: id"]),
        (StructType().add("st", StructType().add("c", LongType())), ["'st' is struct"]),
    ],
    ids=str,
)
def test_schemas_that_do_not_fit_are_refused_while_planning(
    path: str, schema: StructType, messages: list[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        planned(path, schema)
    for message in messages:
        assert message in str(caught.value)


def test_an_unknown_column_lists_those_that_exist(path: str) -> None:
    with pytest.raises(SchemaError, match=r"no column 'nope'.*id, Name, v, st"):
        planned(path, columns="id,nope")


def test_wide_rows_come_in_batches_of_bounded_bytes(tmp_path: Path) -> None:
    location = str(tmp_path / "wide")
    values = pa.array(np.zeros(20_000 * 768, np.float32))
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(values, 768), "n": pa.nulls(20_000, pa.int64())})
    spark_lance.write_dataset(table, location)
    sizes = [batch.nbytes for batch in batches(planned(location))]
    assert sum(sizes) > 55 * MIB
    assert max(sizes) < 12 * MIB
    assert np.median(sizes) > 4 * MIB
    smaller = [batch.nbytes for batch in batches(planned(location, batch_bytes="1m"))]
    assert max(smaller) < 2 * MIB


def test_narrow_rows_come_in_large_batches(tmp_path: Path) -> None:
    location = str(tmp_path / "narrow")
    spark_lance.write_dataset(pa.table({"n": np.arange(200_000)}), location)
    assert [batch.num_rows for batch in batches(planned(location))] == [65_536] * 3 + [3_392]
    assert max(batch.num_rows for batch in batches(planned(location, batch_size=1000))) == 1000


def test_batches_have_exactly_the_schema_that_spark_expects(path: str) -> None:
    schema = LanceDataSource({"path": path}).schema()
    for batch in batches(planned(path)):
        assert batch.schema.equals(arrow_schema(schema))


@pytest.mark.parametrize(("in_worker", "hidden"), [(False, None), (True, "1")])
def test_errors_hide_the_traceback_only_in_a_worker(in_worker: bool, hidden: str | None) -> None:
    with mock.patch.dict(os.environ):
        os.environ.pop("SPARK_HIDE_TRACEBACK", None)
        os.environ.pop("SPARK_SIMPLIFIED_TRACEBACK", None)
        if in_worker:
            os.environ["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
        with pytest.raises(SchemaError), one_line():
            raise SchemaError("x")
        assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden


def test_a_writer_can_be_pickled(path: str) -> None:
    schema = StructType().add("id", LongType())
    writer = sent(LanceDataSource({"path": path}).writer(schema, False))
    assert isinstance(writer, LanceWriter)
    batch = pa.RecordBatch.from_arrays([pa.array([100, 101])], names=["id"])
    message = sent(writer.write(iter([batch])))
    sent(writer).commit([message])
    assert spark_lance.dataset(path).count_rows() == 17


def test_chosen_fragments_are_read_whole(tmp_path: Path) -> None:
    location = str(tmp_path / "t.lance")
    for start in range(0, 60_000, 20_000):
        rows = pa.table({"id": range(start, start + 20_000)})
        spark_lance.write_dataset(rows, location, mode="append")
    reader = planned(location, partition_bytes=10_000, columns="id", fragments="0,2-7")
    request = partitions(reader)
    pieces = [[piece.task(shared(reader)) for piece in partition.pieces] for partition in request]
    assert [[task.message.id for task in some] for some in pieces] == [[0], [2]]
    assert all(task.span is None for some in pieces for task in some)
    assert len(partitions(planned(location, partition_bytes=10_000, columns="id"))) > 3
    assert partitions(planned(location, fragments="3")) == []
    for wrong in ("", "3-1", "1,0", "0-2,2-1", "x"):
        with pytest.raises(OptionError):
            planned(location, fragments=wrong)
