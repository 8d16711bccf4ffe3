"""The write of new rows in a Spark task: all that a worker process loads for it.

A worker may be started for one query and end with it, and it imports its modules then. So this module needs
nothing of planning and committing: no version, no conflict, no option.

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
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.schema.defaults import IDENTITY
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import write_fragments

if TYPE_CHECKING:
    from spark_lance.table.inserts.replace_rows import RowCheck

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


@dataclass(frozen=True)
class LanceCommitMessage(WriterCommitMessage):
    """The result of one write task: serialized DataFragment messages, and the number of its input rows."""

    fragments: tuple[bytes, ...]
    rows: int


@dataclass(frozen=True)
class WrittenRows(OfTable):
    """Writes the rows of a task to data files.

    Attributes:
        table: the table.
        names: what the table calls the columns that come.
        schema, version: of the files, see `WritePlan`.
        check: the condition that rows have to fulfil, if there is one.
        max_rows_per_file, max_bytes_per_file: see `write_fragments`.
        job: digits in the names of all files of the write.
        partitions: the declaration by which files are cut.
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
            SchemaError: a value does not fit its column, or a row the condition of `replaceWhere`.
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
        from spark_lance.table.commits.identity import with_identity_values  # it commits

        return with_identity_values(batches, self.table, self.schema)
