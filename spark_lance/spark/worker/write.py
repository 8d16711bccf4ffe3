"""Writes new rows in Spark tasks.

A worker may run for one query only, and imports its modules for it. So this module imports nothing of
planning and committing: no version, no conflict, no option.

Spark's own planner wraps a writer in a closure. `TaskWrite.batches` belongs to this module, so it pickles to
a few bytes instead of its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import WriterCommitMessage

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.spark.schema.string_types import DeclaredTypeChecks
from spark_lance.spark.schema.variants import with_variant_texts
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import forget_archives, keep_worker_ready, pickled_function
from spark_lance.table.format.partitions import NO_PARTITIONS, PartitionSpec
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.schema.defaults import IDENTITY
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import write_fragments

if TYPE_CHECKING:
    from spark_lance.table.inserts.replace_rows import RowCheck

_MESSAGE = "message"


class ArrowWriter(Protocol):
    """A writer of the rows of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> WriterCommitMessage:
        """Write the rows of one task, and return the message for the commit."""


@dataclass(frozen=True)
class TaskWrite:
    """Writes the rows of a task.

    Attributes:
        writer: the writer of the rows.
        packed: whether the input is one column of Arrow streams, which `LanceRowBatches` creates in Java.
    """

    writer: ArrowWriter
    packed: bool = False

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows, and yield one row with one column, the pickled message."""
        batches = _unpack(rows) if self.packed else iter(rows)
        message = pickle.dumps(self.writer.write(batches), protocol=pickle.HIGHEST_PROTOCOL)
        # Not `pa.array`, which would import pandas, see `arrow.arrays.numbers_to_arrow`.
        offsets = pa.py_buffer(np.array([0, len(message)], np.int32))
        column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(message)])
        yield pa.record_batch([column], names=[_MESSAGE])


def _unpack(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of Arrow streams, without copying their bytes."""
    for batch in rows:
        column = batch.column(0)
        _, ends, data = column.buffers()
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
        for start, stop in pairwise(offsets):
            with pa.ipc.open_stream(data.slice(start, stop - start)) as reader:
                yield from reader


def pickled_write(writer: ArrowWriter, *, batches: bool = False) -> bytes:
    """Return the argument of Spark's partition writer: a pickled function and the type of its results.

    Args:
        writer: the writer of the rows of a task.
        batches: whether the rows are packed by `LanceRowBatches` in Java.
    """
    answer = st.StructType([st.StructField(_MESSAGE, st.BinaryType())])
    return pickled_function(TaskWrite(writer, batches).batches, answer)


@dataclass(frozen=True)
class LanceCommitMessage(WriterCommitMessage):
    """The result of one write task: serialized DataFragment messages, and the number of its input rows."""

    fragments: tuple[bytes, ...]
    rows: int


@dataclass(frozen=True)
class WrittenRows(TableRefMixin):
    """Writes the rows of a task to data files.

    Attributes:
        table: the table.
        names: the table's names of the rows' columns.
        schema, version: schema and format version of the files, see `WritePlan`.
        check: the condition that rows must meet, if there is one.
        max_rows_per_file, max_bytes_per_file: see `write_fragments`.
        job: hexadecimal id in the names of all files of the write.
        partitions: the partition fields by which files are split.
    """

    table: TableRef
    names: list[str]
    schema: Schema
    version: FileVersion
    check: RowCheck | None
    max_rows_per_file: int
    max_bytes_per_file: int
    job: str
    partitions: PartitionSpec = NO_PARTITIONS

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> LanceCommitMessage:
        """Write the rows.

        Raises:
            SchemaError: a value does not fit its column, or a row does not meet the condition of
                `replaceWhere`.
        """
        received = 0
        documents = {field.name for field in self.schema.fields if field.is_json}
        checks = DeclaredTypeChecks.plan(self.schema)

        def aligned() -> Iterator[pa.RecordBatch]:
            nonlocal received
            aligner: Aligner | None = None
            for batch in iterator:
                received += batch.num_rows
                renamed = with_variant_texts(batch.rename_columns(self.names), documents)
                if aligner is None:
                    aligner = Aligner(renamed.schema, self.schema)
                rows = checks(aligner.align(renamed))
                if self.check is not None:
                    self.check.check(rows)
                yield rows

        with one_line():
            keep_worker_ready()
            fragments = write_fragments(
                self._with_identity_values(aligned()),
                self.table,
                self.schema,
                version=self.version,
                max_rows_per_file=self.max_rows_per_file,
                max_bytes_per_file=self.max_bytes_per_file,
                operation=self.job,
                partitions=self.partitions,
            )
            forget_archives()
        return LanceCommitMessage(tuple(fragments), received)

    def _with_identity_values(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        if not any(IDENTITY in field.metadata for field in self.schema.fields):
            return batches
        from spark_lance.table.commits.identity import with_identity_values  # imports the commit, rarely used

        return with_identity_values(batches, self.table, self.schema)
