"""What a Spark task runs for a write that the driver itself has planned.

Spark's own planner wraps a writer in a function of its own. This one is named by its module, so that it
pickles to a few bytes and not to its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import WriterCommitMessage

__all__ = ["TaskWrite", "pickled_write"]

_MESSAGE = "message"


class ArrowWriter(Protocol):
    """A writer of the rows of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> WriterCommitMessage:
        """Write the rows of one task; return what the commit has to know of them."""


@dataclass(frozen=True)
class TaskWrite:
    """Writes the rows of a task."""

    writer: ArrowWriter

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows, and yield one row with one column, the pickled message."""
        message = pickle.dumps(self.writer.write(iter(rows)), protocol=pickle.HIGHEST_PROTOCOL)
        yield pa.record_batch([pa.array([message], pa.binary())], names=[_MESSAGE])


def pickled_write(writer: ArrowWriter) -> bytes:
    """Return what Spark's writer of partitions takes: a pickled function, and the type of what it yields."""
    answer = st.StructType([st.StructField(_MESSAGE, st.BinaryType())])
    return pickle.dumps((TaskWrite(writer).batches, answer), protocol=pickle.HIGHEST_PROTOCOL)
