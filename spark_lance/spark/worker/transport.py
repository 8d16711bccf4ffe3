"""Runs scans that the driver has planned in Spark tasks, and passes batches through shared memory.

Spark's own planner wraps a reader in a closure. The function here belongs to its module, so it pickles to a
few bytes instead of its code.

A worker can place batches in shared memory, where its task reads them instead of from the socket. The
executor sends the path of a memory file after the partition (`TaskRead`). The worker copies batches into the
file, each as Arrow's encapsulated message, and sends a batch without rows to the socket for each. Batches
that are small, or do not fit, go through the socket. The executor's side documents the layout, and how tasks
reuse the file: `LanceRing`.

If the memory is not available, all batches go through the socket. This happens if worker and executor run in
different containers, the kernel refuses, or addresses are limited.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import mmap
import os
import pickle
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_lance.io.counters import read_counts
from spark_lance.spark.base.compat import socket_stream
from spark_lance.spark.worker.process import pickled_function

if TYPE_CHECKING:
    import pyspark.sql.types as st
    from pyspark.sql.datasource import DataSourceReader

logger = logging.getLogger(__name__)

_MAGIC = b"LANCRING"
_KEY = 8
# Positions in units of 8 bytes.
_RELEASED = 64 // 8
_RECORDS = 1024 // 8
_RECORD = 32 // 8
_MAX_RECORDS = 64
_COUNTS = 3072
_HEADER = 4096
_ALIGNMENT = 64
# Smaller batches cost less on the socket.
LEAST_PLACED = 128 << 10
# The number of batches that must fit: one that is read, one that is written, and two in between.
_PIECES = 4
# How long a batch waits for space, in seconds, before it goes through the socket. By then the socket is full,
# too, or the executor has stopped reading.
_WAIT_SECONDS = 1.0
_FIRST_PAUSE, _MAX_PAUSE = 0.0001, 0.002


class SharedMemory:
    """The memory of one task.

    Args:
        file: the locked file descriptor. `close` closes it.
        memory: the mapping of the whole file.
        stream: the buffered stream to which Spark writes batches.
    """

    def __init__(self, file: int, memory: mmap.mmap, stream: IO[bytes]) -> None:
        self._file = file
        self._memory = memory
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self._stream = stream
        self._size = len(memory)
        self._num_sent = self._num_released = 0
        # Number, start and end of the batches that the executor may read, the oldest first.
        self._unread: deque[tuple[int, int, int]] = deque()
        self._schema: pa.Schema | None = None
        self._schema_bytes = 0
        self._mark: pa.RecordBatch | None = None

    def write_counts(self, counts: bytes) -> None:
        """Write counters for the executor: lines of text, always of the same length."""
        self._memory[_COUNTS : _COUNTS + len(counts)] = counts

    def close(self) -> None:
        """Release the memory. Its content stays for the executor."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # the traceback of an error refers to the memory
            self._memory.close()
        os.close(self._file)

    def place_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches for the socket: an empty batch for each one placed in memory, or the batch itself."""
        for batch in batches:
            for piece in self._pieces(batch):
                mark = self._place(piece) if piece.num_columns else None
                yield piece if mark is None else mark
                if mark is not None:
                    self._stream.flush()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Split a batch into pieces small enough that several fit into the memory."""
        size = pa.ipc.get_record_batch_size(batch)
        count = -(-size // max(1, (self._size - _HEADER) // _PIECES))
        rows = max(1, -(-batch.num_rows // count))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _place(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Copy a batch into the memory, and return an empty batch for the socket; None if it does not fit."""
        size = pa.ipc.get_record_batch_size(batch)
        if size < LEAST_PLACED or not self._fits_schema(batch.schema):
            return None
        start = self._wait_for_space(self._schema_bytes + size)
        if start is None:
            return None
        end = start + self._schema_bytes + size
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(self._bytes[start:end]))
        # The stream begins with the message of the schema, which the executor skips.
        pa.ipc.new_stream(sink, batch.schema).write_batch(batch)
        assert sink.tell() == end - start
        self._num_sent += 1
        self._unread.append((self._num_sent, start, end))
        record = _RECORDS + self._num_sent % _MAX_RECORDS * _RECORD
        self._words[record + 1] = start + self._schema_bytes
        self._words[record + 2] = size
        self._words[record] = self._num_sent
        return self._mark

    def _fits_schema(self, schema: pa.Schema) -> bool:
        if self._schema is None:
            self._schema = schema
            self._schema_bytes = schema.serialize().size
            self._mark = pa.RecordBatch.from_pylist([], schema)
        return bool(self._schema.equals(schema))

    def _wait_for_space(self, size: int) -> int | None:
        """Return the offset of `size` free bytes, perhaps after waiting; None if there is no space."""
        end = time.monotonic() + _WAIT_SECONDS
        pause = _FIRST_PAUSE
        while True:
            position = self._words[_RELEASED]
            if (
                not self._num_released <= position <= self._num_sent
            ):  # invalid number: the free space is unknown
                return None
            self._num_released = position
            while self._unread and self._unread[0][0] <= position:
                self._unread.popleft()
            start = self._find_space(-(-size // _ALIGNMENT) * _ALIGNMENT)
            if start is not None or not self._unread or time.monotonic() > end:
                return start
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def _find_space(self, size: int) -> int | None:
        if not self._unread:
            return _HEADER if _HEADER + size <= self._size else None
        if len(self._unread) == _MAX_RECORDS - 1:
            return None
        oldest, newest = self._unread[0][1], self._unread[-1][2]
        head = -(-newest // _ALIGNMENT) * _ALIGNMENT
        if newest <= oldest:  # the batches in use wrap around to the start
            return head if head + size <= oldest else None
        if head + size <= self._size:
            return head
        return _HEADER if _HEADER + size <= oldest else None


def open_shared_memory(path: str, key: bytes, stream: IO[bytes]) -> SharedMemory | None:
    """Open the shared memory that an executor offers; return None if that fails.

    Args:
        path: path of the executor's file descriptor, below /proc.
        key: the key that the memory contains as long as it is meant for this task.
        stream: the buffered stream to which Spark writes batches.
    """
    try:
        return SharedMemory(*_open_locked(path, key), stream)
    except OSError as problem:
        logger.debug("batches go through the socket, without the memory %s: %s", path, problem)
        return None


def _open_locked(path: str, key: bytes) -> tuple[int, mmap.mmap]:
    """Open and lock a file, and map it into memory. Raises an `OSError` with the reason if that fails."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    memory = None
    try:
        # While this lock exists, no other worker writes, and the executor gives the file to no other task.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= _HEADER:
            raise OSError("it is another file")
        if os.pread(file, _KEY + len(key), 0) != _MAGIC + key:
            raise OSError("it is meant for another task")
        memory = mmap.mmap(file, status.st_size)
        return file, memory
    finally:
        if memory is None:
            os.close(file)


# Counters of a task's read: field of `ReadCounts`, name, and label in Spark's UI.
_COUNTERS = (
    ("requests", "lanceTaskRequests", "requests to the store"),
    ("bytes", "lanceTaskBytes", "bytes read from the store"),
    ("cache_hits", "lanceTaskHits", "cache hits"),
)
# The metrics of a plan: name, label, and initial value.
TASK_METRICS = (
    *((name, label, 0) for _, name, label in _COUNTERS),
    ("lanceTaskShared", "bytes handed over in shared memory", 0),
)


@dataclass(frozen=True)
class TaskRead:
    """Reads a partition.

    Attributes:
        reader: a reader that yields record batches.
    """

    reader: DataSourceReader

    def batches(self, inputs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        LanceColumns may add two lines after the pickle: the path of shared memory for batches and the
        counters of the read, and the key of the memory in hexadecimal digits.

        Args:
            inputs: batches with one row and one column: the pickled partition.
        """
        for batch in inputs:
            payload = io.BytesIO(batch.column(0)[0].as_py())
            part, lines = pickle.load(payload), payload.read().decode().split("\n")
            batches = iter(self.reader.read(part))
            if len(lines) == 2:
                batches = _place_in_memory(batches, lines[0], bytes.fromhex(lines[1]))
            yield from batches


def _place_in_memory(batches: Iterator[pa.RecordBatch], path: str, key: bytes) -> Iterator[pa.RecordBatch]:
    """Place batches in shared memory and yield batches for the socket; without memory, the batches."""
    stream = socket_stream()
    memory = None if stream is None else open_shared_memory(path, key, stream)
    if memory is None:
        yield from (batch for batch in batches if batch.num_rows)
        return
    with contextlib.closing(memory):
        yield from memory.place_batches(_count_reads(batches, memory.write_counts))


def _count_reads(
    batches: Iterator[pa.RecordBatch], tell: Callable[[bytes], None]
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and report the reads for them as lines of name and number, all of one width."""
    before = read_counts()

    def lines() -> bytes:
        counts = read_counts() - before
        return "".join(f"{name} {getattr(counts, field):020d}\n" for field, name, _ in _COUNTERS).encode()

    for batch in batches:
        tell(lines())
        yield batch
    tell(lines())


def pickled_read(
    reader: DataSourceReader, schema: st.StructType, partitions: Sequence[InputPartition] | None = None
) -> tuple[bytes, list[bytes]]:
    """Return the arguments of Spark's partition reader: a pickled function, and pickled partitions.

    Args:
        reader: the planned reader.
        schema: schema of its rows.
        partitions: the inputs of the tasks; by default the reader's own partitions.
    """
    if partitions is None:
        # Without a partition, Spark runs one task without a value.
        partitions = list(reader.partitions()) or [InputPartition(None)]
    function = pickled_function(TaskRead(reader).batches, schema)
    return function, [pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL) for part in partitions]
