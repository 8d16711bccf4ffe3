"""The function of a Spark task that runs a write which the driver itself has planned.

Spark's own planner wraps a writer in a closure. This function belongs to its module, so it pickles to a few
bytes instead of its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import WriterCommitMessage

from spark_lance.spark.workers import pickled_function

__all__ = ["TaskWrite", "pickled_write"]

_MESSAGE = "message"


class ArrowWriter(Protocol):
    """A writer of the rows of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> WriterCommitMessage:
        """Write the rows of one task; return what the commit has to know of them."""


@dataclass(frozen=True)
class TaskWrite:
    """Writes the rows of a task.

    Attributes:
        writer: writes them.
        packed: whether what comes are streams of Arrow, which `LanceRowBatches` made in Java, in one column.
    """

    writer: ArrowWriter
    packed: bool = False

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows, and yield one row with one column, the pickled message."""
        batches = _unpacked(rows) if self.packed else iter(rows)
        message = pickle.dumps(self.writer.write(batches), protocol=pickle.HIGHEST_PROTOCOL)
        # `pa.array` would import pandas, see `file.arrays.of_numbers`.
        offsets = pa.py_buffer(np.array([0, len(message)], np.int32))
        column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(message)])
        yield pa.record_batch([column], names=[_MESSAGE])


def _unpacked(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of streams, which are views of the bytes that came."""
    for batch in rows:
        column = batch.column(0)
        _, ends, data = column.buffers()
        places = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
        for start, stop in pairwise(places):
            with pa.ipc.open_stream(data.slice(start, stop - start)) as reader:
                yield from reader


def pickled_write(writer: ArrowWriter, *, batches: bool = False) -> bytes:
    """Return what Spark's writer of partitions takes: a pickled function, and the type of what it yields.

    Args:
        writer: writes the rows of a task.
        batches: whether they come as `LanceRowBatches` in Java packs them.
    """
    answer = st.StructType([st.StructField(_MESSAGE, st.BinaryType())])
    return pickled_function(TaskWrite(writer, batches).batches, answer)
