"""The function of a Spark task that runs a scan which the driver itself has planned.

Spark's own planner wraps a reader in a closure. This function belongs to its module, so it pickles to a few
bytes instead of its code.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_lance.io.counters import read_counts
from spark_lance.spark.compat import socket_stream
from spark_lance.spark.scan.ring import open_shared_memory
from spark_lance.spark.workers import pickled_function

if TYPE_CHECKING:
    import pyspark.sql.types as st
    from pyspark.sql.datasource import DataSourceReader

__all__ = ["TASK_AMOUNTS", "TaskRead", "pickled_read"]

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
            handed = io.BytesIO(batch.column(0)[0].as_py())
            part, places = pickle.load(handed), handed.read().decode().split("\n")
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


def pickled_read(reader: DataSourceReader, schema: st.StructType) -> tuple[bytes, list[bytes]]:
    """Return what Spark's reader of partitions takes: a pickled function, and pickled partitions."""
    # Without a partition, Spark runs one task without a value.
    partitions = list(reader.partitions()) or [InputPartition(None)]
    function = pickled_function(TaskRead(reader).batches, schema)
    return function, [pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL) for part in partitions]
