"""The function of a Spark task that runs a scan which the driver itself has planned, and its shared memory.

Spark's own planner wraps a reader in a closure. This function belongs to its module, so it pickles to a few
bytes instead of its code.

A worker can place batches in shared memory, where its task reads them instead of from the socket. The
executor sends the path of a memory file after the partition that it hands over (`TaskRead`). The worker
copies batches into it, each as Arrow's encapsulated message, and sends a batch without rows to the socket for
each. Batches that are small, or find no room, go through the socket themselves. The executor's side documents
the layout, and how the file passes from task to task: `LanceRing`.

Nothing is lost if the memory is not available: another container than the executor's, a kernel that refuses,
a limit on addresses. Then all batches go through the socket.
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

_LOG = logging.getLogger(__name__)

_MAGIC = b"LANCRING"
_KEY = 8
# These count numbers of 8 bytes.
_DONE = 64 // 8
_RECORDS = 1024 // 8
_RECORD = 32 // 8
_MOST_RECORDS = 64
_COUNTS = 3072
_HEADER = 4096
_ALIGNMENT = 64
# Smaller batches cost less on the socket.
LEAST_PLACED = 128 << 10
# How many batches have room side by side: one that is read, one that is written, and two on the way.
_PIECES = 4
# How long a batch waits for room, in seconds, before it goes through the socket. That is full then, too, or
# nobody reads any more.
_PATIENCE = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.002


class SharedMemory:
    """The memory of one task.

    Args:
        file: its descriptor, locked; closed by `close`.
        memory: all of the file.
        stream: what Spark's batches are written to, and wait in.
    """

    def __init__(self, file: int, memory: mmap.mmap, stream: IO[bytes]) -> None:
        self._file = file
        self._memory = memory
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self._stream = stream
        self._size = len(memory)
        self._sent = self._done = 0
        # Number, start and end of the batches that the executor may read, the oldest first.
        self._held: deque[tuple[int, int, int]] = deque()
        self._schema: pa.Schema | None = None
        self._schema_bytes = 0
        self._mark: pa.RecordBatch | None = None

    def tell(self, counts: bytes) -> None:
        """Keep lines of text, always of the same length, for the executor."""
        self._memory[_COUNTS : _COUNTS + len(counts)] = counts

    def close(self) -> None:
        """Give the memory back; what is in it stays there for the executor."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # an error on its way holds what it was about to write
            self._memory.close()
        os.close(self._file)

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield for the socket what stands for batches, or these themselves if they have rows."""
        for batch in batches:
            for piece in self._pieces(batch):
                mark = self._placed(piece) if piece.num_columns else None
                yield piece if mark is None else mark
                if mark is not None:
                    self._stream.flush()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in pieces so small that several fit into the memory."""
        size = pa.ipc.get_record_batch_size(batch)
        count = -(-size // max(1, (self._size - _HEADER) // _PIECES))
        rows = max(1, -(-batch.num_rows // count))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Copy a batch into the memory; what goes to the socket instead, None if it goes there itself."""
        size = pa.ipc.get_record_batch_size(batch)
        if size < LEAST_PLACED or not self._fits_schema(batch.schema):
            return None
        start = self._room(self._schema_bytes + size)
        if start is None:
            return None
        end = start + self._schema_bytes + size
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(self._bytes[start:end]))
        # The message of a schema comes first, which the executor does not need.
        pa.ipc.new_stream(sink, batch.schema).write_batch(batch)
        assert sink.tell() == end - start
        self._sent += 1
        self._held.append((self._sent, start, end))
        record = _RECORDS + self._sent % _MOST_RECORDS * _RECORD
        self._words[record + 1] = start + self._schema_bytes
        self._words[record + 2] = size
        self._words[record] = self._sent
        return self._mark

    def _fits_schema(self, schema: pa.Schema) -> bool:
        if self._schema is None:
            self._schema = schema
            self._schema_bytes = schema.serialize().size
            self._mark = pa.RecordBatch.from_pylist([], schema)
        return bool(self._schema.equals(schema))

    def _room(self, size: int) -> int | None:
        """Return where so many bytes are free, perhaps after a while; None if they are not."""
        end = time.monotonic() + _PATIENCE
        pause = _FIRST_PAUSE
        while True:
            position = self._words[_DONE]
            if not self._done <= position <= self._sent:  # it cannot be; nothing says what is free
                return None
            self._done = position
            while self._held and self._held[0][0] <= position:
                self._held.popleft()
            start = self._free(-(-size // _ALIGNMENT) * _ALIGNMENT)
            if start is not None or not self._held or time.monotonic() > end:
                return start
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _free(self, size: int) -> int | None:
        if not self._held:
            return _HEADER if _HEADER + size <= self._size else None
        if len(self._held) == _MOST_RECORDS - 1:
            return None
        oldest, newest = self._held[0][1], self._held[-1][2]
        head = -(-newest // _ALIGNMENT) * _ALIGNMENT
        if newest <= oldest:  # they go on at the beginning
            return head if head + size <= oldest else None
        if head + size <= self._size:
            return head
        return _HEADER if _HEADER + size <= oldest else None


def open_shared_memory(path: str, key: bytes, stream: IO[bytes]) -> SharedMemory | None:
    """Return the memory that an executor has named; None if it is not to be had.

    Args:
        path: the executor's own descriptor of it, below /proc.
        key: what is written in it, as long as it is meant for this task.
        stream: what Spark's batches are written to.
    """
    try:
        return SharedMemory(*_opened(path, key), stream)
    except OSError as problem:
        _LOG.debug("batches go through the socket, without the memory %s: %s", path, problem)
        return None


def _opened(path: str, key: bytes) -> tuple[int, mmap.mmap]:
    """Return a file, which is locked, and what is in it; an `OSError` says why they are not to be had."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    memory = None
    try:
        # No other worker writes, and the executor gives it to nobody, as long as this is open.
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
_COUNTED = (
    ("requests", "lanceTaskRequests", "requests to the store"),
    ("bytes", "lanceTaskBytes", "bytes read from the store"),
    ("cache_hits", "lanceTaskHits", "cache hits"),
)
# The same for a plan: name, what it is called, and where it begins.
TASK_AMOUNTS = (
    *((name, called, 0) for _, name, called in _COUNTED),
    ("lanceTaskShared", "bytes handed over in shared memory", 0),
)


@dataclass(frozen=True)
class TaskRead:
    """Reads a partition.

    Attributes:
        reader: a reader that yields record batches.
    """

    reader: DataSourceReader

    def batches(self, handed_over: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition that Spark hands over: one row with one column, its pickle.

        LanceColumns may add two lines after the pickle: the path of shared memory for batches
        (`spark.scan.ring`), which takes the counters of the read, too, and its key in hexadecimal digits.
        """
        for batch in handed_over:
            payload = io.BytesIO(batch.column(0)[0].as_py())
            part, places = pickle.load(payload), payload.read().decode().split("\n")
            batches = iter(self.reader.read(part))
            if len(places) == 2:
                batches = _placed(batches, places[0], bytes.fromhex(places[1]))
            yield from batches


def _placed(batches: Iterator[pa.RecordBatch], path: str, key: bytes) -> Iterator[pa.RecordBatch]:
    """Yield what stands for batches in shared memory, or batches with rows, if it is not to be had."""
    stream = socket_stream()
    memory = None if stream is None else open_shared_memory(path, key, stream)
    if memory is None:
        yield from (batch for batch in batches if batch.num_rows)
        return
    with contextlib.closing(memory):
        yield from memory.through(_counted(batches, memory.tell))


def _counted(batches: Iterator[pa.RecordBatch], tell: Callable[[bytes], None]) -> Iterator[pa.RecordBatch]:
    """Yield batches, and tell what was read for them: lines of name and number, of one width."""
    before = read_counts()

    def lines() -> bytes:
        counts = read_counts() - before
        return "".join(f"{name} {getattr(counts, field):020d}\n" for field, name, _ in _COUNTED).encode()

    for batch in batches:
        tell(lines())
        yield batch
    tell(lines())


def pickled_read(
    reader: DataSourceReader, schema: st.StructType, partitions: Sequence[InputPartition] | None = None
) -> tuple[bytes, list[bytes]]:
    """Return what Spark's reader of partitions takes: a pickled function, and pickled partitions.

    Args:
        reader: planned.
        schema: of its rows.
        partitions: the work of the tasks; by default as the reader shares it out.
    """
    if partitions is None:
        # Without a partition, Spark runs one task without a value.
        partitions = list(reader.partitions()) or [InputPartition(None)]
    function = pickled_function(TaskRead(reader).batches, schema)
    return function, [pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL) for part in partitions]
