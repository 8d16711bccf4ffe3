"""What a Spark task runs for a scan that the driver itself has planned.

Spark's own planner wraps a reader in a function of its own. This one is named by its module, so that it
pickles to a few bytes and not to its code.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_lance.io.counters import read_counts

if TYPE_CHECKING:
    import pyspark.sql.types as st
    from pyspark.sql.datasource import DataSourceReader

__all__ = ["TASK_AMOUNTS", "TaskRead", "pickled_read"]

# What tasks read: field of `ReadCounts`, name, and what Spark's UI calls it.
_COUNTED = (
    ("requests", "lanceTaskRequests", "requests to the store"),
    ("bytes", "lanceTaskBytes", "bytes read from the store"),
    ("cache_hits", "lanceTaskHits", "cache hits"),
    ("pages", "lanceTaskPages", "pages read"),
    ("pages_skipped", "lanceTaskPagesSkipped", "pages skipped in these fragments"),
)
# The same for a plan: name, what it is called, and where it begins.
TASK_AMOUNTS = tuple((name, called, 0) for _, name, called in _COUNTED)


@dataclass(frozen=True)
class TaskRead:
    """Reads a partition.

    Attributes:
        reader: a reader that yields record batches.
    """

    reader: DataSourceReader

    def batches(self, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition that Spark hands over: one row with one column, its pickle.

        LanceColumns adds the path of a file behind the pickle, in which it looks for what has been read.
        """
        for batch in given:
            handed = io.BytesIO(batch.column(0)[0].as_py())
            part, path = pickle.load(handed), handed.read().decode()
            found = self.reader.read(part)
            yield from _told(found, path) if path else found


def _told(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Yield batches, and keep in a file what was read for them: lines of name and number, of one width."""
    before = read_counts()
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:  # the executor has files of its own: nothing can be told
        yield from batches
        return

    def tell() -> None:
        counts = read_counts() - before
        lines = [f"{name} {getattr(counts, field):020d}\n" for field, name, _ in _COUNTED]
        with contextlib.suppress(OSError):  # the numbers are for show; a full disk must not end the task
            os.pwrite(file, "".join(lines).encode(), 0)

    try:
        for batch in batches:
            tell()
            yield batch
        tell()
    finally:
        os.close(file)


def pickled_read(reader: DataSourceReader, schema: st.StructType) -> tuple[bytes, list[bytes]]:
    """Return what Spark's reader of partitions takes: a pickled function, and pickled partitions."""
    # Without a partition, Spark runs one task without a value.
    partitions = list(reader.partitions()) or [InputPartition(None)]
    function = pickle.dumps((TaskRead(reader).batches, schema), protocol=pickle.HIGHEST_PROTOCOL)
    return function, [pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL) for part in partitions]
