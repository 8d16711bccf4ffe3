"""The worker's side of shared memory, beside an executor in Python: what is written is what is read."""

from __future__ import annotations

import io
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.spark.base.compat import socket_stream
from spark_lance.spark.worker import transport
from spark_lance.spark.worker.transport import SharedMemory, open_shared_memory
from tests.strategies import random_array

KEY = bytes(range(16))
SCHEMA = pa.schema({"id": pa.int64(), "s": pa.string(), "ids": pa.list_(pa.int32()), "yes": pa.bool_()})


class Stream(io.BytesIO):
    """What Spark's batches are written to."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


class Executor:
    """Reads what a worker places, and says so."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        path.write_bytes(b"LANCRING" + KEY + bytes(size - 24))
        self.file = os.open(path, os.O_RDWR)
        self.taken = 0

    def take(self) -> bytes:
        """The message of the next batch."""
        self.taken += 1
        number, offset, size, rest = struct.unpack("4q", os.pread(self.file, 32, 1024 + self.taken % 64 * 32))
        assert (number, rest) == (self.taken, 0)
        assert offset >= 4096
        assert offset % 8 == 0
        assert offset + size <= os.fstat(self.file).st_size
        return os.pread(self.file, size, offset)

    def say(self, done: int) -> None:
        os.pwrite(self.file, struct.pack("q", done), 64)

    def is_locked(self) -> bool:
        """Whether a process holds the lock, as another one sees it."""
        code = f"import fcntl; fcntl.lockf(open({str(self.path)!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    result = Executor(tmp_path / "memory", 1 << 20)
    yield result
    os.close(result.file)


def opened(executor: Executor, stream: Any = None) -> SharedMemory:
    memory = open_shared_memory(str(executor.path), KEY, stream or Stream())
    assert memory is not None
    return memory


def batch(seed: int, rows: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    columns = [random_array(rng, field, rows + 3) for field in SCHEMA]
    # As parts of others they begin anywhere.
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(seed % 4, rows)


@pytest.mark.parametrize(
    ("seed", "least"), [(seed, least) for seed in range(3) for least in (1, transport.LEAST_PLACED)]
)
def test_what_is_read_is_what_was_written(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, seed: int, least: int
) -> None:
    """The executor is done with batches at any time; until then they are what they were."""
    monkeypatch.setattr(transport, "LEAST_PLACED", least)
    monkeypatch.setattr(transport, "_WAIT_SECONDS", 0.002)
    draw = random.Random(seed)
    given = [batch(number, draw.choice((0, 1, 50, 1000, 9_000))) for number in range(25)]
    held: list[tuple[int, bytes]] = []
    results: list[pa.RecordBatch] = []
    inline = 0
    stream = Stream()
    memory = opened(executor, stream)
    for piece in memory.place_batches(iter(given)):
        if piece.num_rows:
            results.append(piece)
            inline += 1
            continue
        assert piece.schema == SCHEMA
        message = executor.take()
        results.append(pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA))
        offset = struct.unpack("q", os.pread(executor.file, 8, 1024 + executor.taken % 64 * 32 + 8))[0]
        held.append((offset, message))
        for place, content in held:
            assert os.pread(executor.file, len(content), place) == content
        while held and draw.random() < 0.55:
            held.pop(0)
        executor.say(executor.taken - len(held))
    memory.close()
    assert executor.taken > 3
    assert inline > 0 or least == 1
    assert stream.flushes == executor.taken
    assert sum(one.num_rows for one in results) == sum(one.num_rows for one in given)
    whole, expected = pa.Table.from_batches(results), pa.Table.from_batches(given)
    assert whole.equals(expected)


@pytest.mark.parametrize("done", [-1, 2, 1 << 60])
def test_an_executor_that_cannot_be_right_gets_the_socket(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    monkeypatch.setattr(transport, "LEAST_PLACED", 1)
    memory = opened(executor)
    through = memory.place_batches(batch(number, 4000) for number in range(3))
    assert next(through).num_rows == 0
    executor.say(done)
    assert [piece.num_rows for piece in through] == [4000, 4000]
    memory.close()


def test_a_row_larger_than_the_memory_goes_through_the_socket(executor: Executor) -> None:
    rows = pa.RecordBatch.from_pydict({"s": ["x" * (2 << 20), "y"]})
    memory = opened(executor)
    pieces = list(memory.place_batches(iter([rows])))
    memory.close()
    assert [piece["s"].to_pylist() for piece in pieces] == [["x" * (2 << 20)], ["y"]]


def test_rows_without_columns_go_through_the_socket(executor: Executor) -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    memory = opened(executor)
    assert [piece.num_rows for piece in memory.place_batches(iter([rows]))] == [5]
    memory.close()


def test_counts_are_told(executor: Executor) -> None:
    memory = opened(executor)
    memory.write_counts(b"reads 7\n")
    assert os.pread(executor.file, 9, 3072) == b"reads 7\n\0"
    memory.close()


def test_memory_is_locked_until_it_is_given_back(executor: Executor) -> None:
    memory = opened(executor)
    assert executor.is_locked()
    next(memory.place_batches(batch(number, 10_000) for number in range(3)))
    memory.close()
    assert not executor.is_locked()


def test_memory_of_another_worker_is_left_alone(executor: Executor) -> None:
    code = (
        f"import fcntl, sys; file = open({str(executor.path)!r}, 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        assert open_shared_memory(str(executor.path), KEY, Stream()) is None
        other.kill()
    opened(executor).close()


def test_memory_that_is_not_the_tasks_is_left_alone(executor: Executor, tmp_path: Path) -> None:
    before = executor.path.read_bytes()
    assert open_shared_memory(str(executor.path), bytes(16), Stream()) is None
    assert open_shared_memory(str(tmp_path / "missing"), KEY, Stream()) is None
    assert open_shared_memory(str(tmp_path), KEY, Stream()) is None
    assert open_shared_memory(os.devnull, KEY, Stream()) is None
    short = tmp_path / "short"
    short.write_bytes(before[:4096])
    assert open_shared_memory(str(short), KEY, Stream()) is None
    other = tmp_path / "other"
    other.write_bytes(b"LANCFILE" + before[8:])
    assert open_shared_memory(str(other), KEY, Stream()) is None
    assert executor.path.read_bytes() == before
    assert not executor.is_locked()


def test_a_process_without_room_for_addresses(executor: Executor) -> None:
    code = f"""
import resource
from spark_lance.spark.worker.transport import open_shared_memory
import os
os.truncate({str(executor.path)!r}, 1 << 40)
resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
print(open_shared_memory({str(executor.path)!r}, {KEY!r}, None))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr


def test_the_stream_is_that_of_the_serializer() -> None:
    def dump_stream(stream: object) -> object:
        return next(result for result in (socket_stream() for _ in range(1)))

    stream = Stream()
    assert dump_stream(stream) is stream
    assert dump_stream("no stream") is None
    assert socket_stream() is None
