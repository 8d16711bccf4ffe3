"""Pages encoded in threads: the same file whatever the threads, errors, batches that change later."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import spark_lance.file.writer
from spark_lance.errors import SchemaError
from spark_lance.file.base.metadata import EncodedPage
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter, PageQueue
from spark_lance.io.store import open_store
from spark_lance.proto import encodings21_pb2 as pb
from tests.strategies import tables

KIB = 1 << 10


def write(
    root: Path, name: str, batches: list[pa.RecordBatch], version: str = "2.2", **options: Any
) -> bytes:
    store, path = open_store(str(root / f"{name}.lance"))
    schema = Schema.from_arrow(batches[0].schema)
    writer = FileWriter(store, path, schema, FileVersion.parse(version), **options)
    for batch in batches:
        writer.write(batch)
    return Path(writer.finish().path).read_bytes()


def batches(seed: int, count: int = 5, rows: int = 20_000) -> list[pa.RecordBatch]:
    """Return batches of numbers, nulls, text and lists that make many pages."""
    random = np.random.default_rng(seed)
    results = []
    for _ in range(count):
        sizes = np.append(0, np.cumsum(random.integers(0, 4, rows)))
        items = pa.array(random.integers(0, 1000, int(sizes[-1])), pa.int32())
        columns = {
            "a": pa.array(random.integers(0, 1 << 40, rows)),
            "b": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.3),
            "c": pa.array([f"text {n % 977} of {n}" for n in random.integers(0, 10**6, rows).tolist()]),
            "d": pa.ListArray.from_arrays(pa.array(sizes, pa.int32()), items),
            "e": pa.array(random.integers(0, 3, rows)).cast(pa.string()),
        }
        results.append(pa.RecordBatch.from_pydict(columns))
    return results


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_files_do_not_depend_on_threads(version: str, tmp_path: Path) -> None:
    rows = batches(len(version))
    options: dict[str, Any] = {"version": version, "page_bytes": 160 * KIB}
    alone = write(tmp_path, "one", rows, threads=1, **options)
    assert write(tmp_path, "four", rows, threads=4, **options) == alone
    assert write(tmp_path, "held", rows, threads=4, is_buffered=True, **options) == alone
    store, path = open_store(str(tmp_path / "four.lance"))
    assert FileReader(store, path).read() == pa.Table.from_batches(rows)


def test_batches_may_change_once_they_were_written(tmp_path: Path) -> None:
    memory = np.zeros(100_000)
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64())])
    store, path = open_store(str(tmp_path / "x.lance"))
    writer = FileWriter(store, path, Schema.from_arrow(schema), page_bytes=300 * KIB, threads=4)
    expected = []
    for turn in range(6):
        memory[:] = np.random.default_rng(turn).random(len(memory))
        expected.append(memory.copy())
        writer.write(pa.record_batch([pa.array(memory), pa.array(memory)], schema=schema))
        memory[:] = -1
    writer.finish()
    result = FileReader(store, path).read()
    for name in "ab":
        assert np.array_equal(result[name].to_numpy(), np.concatenate(expected))


def test_an_error_of_a_thread_is_raised_and_nothing_stays(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    store, path = open_store(str(tmp_path / "x.lance"))
    good = pa.array(np.arange(100_000))
    bad = pa.array(np.arange(100_000), mask=np.arange(100_000) == 5)
    batch = pa.RecordBatch.from_arrays([good, bad], schema=schema)
    writer = FileWriter(store, path, Schema.from_arrow(schema), page_bytes=200 * KIB, threads=4)
    with pytest.raises(SchemaError, match="not nullable"):
        writer.write(batch)
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark-lance-encode")]


def page(number: int) -> EncodedPage:
    return EncodedPage(0, [], pb.PageLayout(), number, 0)


def test_order_and_limit() -> None:
    written: list[int] = []
    waiting = threading.Event()
    most, under_way, lock = 0, 0, threading.Lock()

    def encode(number: int) -> list[EncodedPage]:
        nonlocal most, under_way
        with lock:
            under_way += 1
            most = max(most, under_way)
        if number == 0:
            waiting.wait(10)
        with lock:
            under_way -= 1
        return [page(number)]

    queue = PageQueue(lambda made: written.append(made.length), 4 << 20, 8)
    for number in range(4):
        queue.put(lambda number=number: encode(number), 1 << 20)  # type: ignore[misc]
    assert not written
    waiting.set()
    for number in range(4, 40):
        queue.put(lambda number=number: encode(number), 1 << 20)  # type: ignore[misc]
        assert queue.nbytes <= 4 << 20
    queue.drain()
    queue.close()
    assert written == list(range(40))
    assert most <= 4
    assert queue.nbytes == 0


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_types(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(["2.0", "2.1", "2.2"]))
    given_batches = data.draw(tables(version)).to_batches()
    assume(given_batches)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_lance.file.writer, "_MIN_THREAD_BYTES", 0)
        one = write(Path(folder), "one", given_batches, version, threads=1, page_bytes=256)
        assert (
            write(Path(folder), "many", given_batches, version, threads=3, page_bytes=256, is_buffered=True)
            == one
        )
