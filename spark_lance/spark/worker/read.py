"""The read of a version in a Spark task: all that a worker process loads for it.

A worker may be started for one query and end with it, and it imports its modules then. So this module needs
nothing of the planning: no manifest, no index, no option. `rows.LanceReader` pickles to `TaskRows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyspark.sql.types as st
from pyroaring import BitMap
from pyspark.sql.datasource import InputPartition

from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import forget_archives, keep_worker_ready
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.reading.fragment_rows import batch_without_columns
from spark_lance.table.reading.scan_task import ScanTask, read_ahead

_EMPTY_BATCH = 1 << 20


class TaskFragment(NamedTuple):
    """The part of a scan that differs from task to task; see the attributes of `ScanTask`."""

    fragment: bytes
    first_row: int
    span: tuple[int, int] | None
    selection: bytes | None

    @classmethod
    def of(cls, task: ScanTask) -> TaskFragment:
        """Return what is special to a task."""
        return cls(task.fragment, task.first_row, task.span, task.selection)

    def task(self, shared: ScanTask) -> ScanTask:
        """Return the task, which shares the rest with another one of the scan."""
        return replace(shared, **self._asdict())


@dataclass(frozen=True)
class LancePartition(InputPartition):
    """The input of one Spark task.

    Attributes:
        pieces: its fragments.
        rows: how many rows without columns it has instead of fragments.
    """

    pieces: tuple[TaskFragment, ...]
    rows: int = 0


@dataclass(frozen=True)
class TaskRows:
    """Reads partitions.

    Attributes:
        schema: the columns.
        shared: what all tasks of the scan have in common; None if there is no fragment.
        condition: what rows must meet.
        limit: as many rows are enough.
        skip: the rows that are passed over first.
        blobs: the fields among the columns that have blobs.
        batch_bytes, batch_size: about the most bytes of a batch, and its most rows.
    """

    schema: st.StructType
    shared: ScanTask | None
    condition: Condition | None
    limit: int | None
    skip: int
    blobs: tuple[Field, ...]
    batch_bytes: int
    batch_size: int

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        # For no partitions at all Spark runs one task, with an empty partition or without one.
        if partition is None or type(partition) is InputPartition:
            return
        if not isinstance(partition, LancePartition):
            raise TypeError(f"{type(partition).__name__} is not a partition of these rows")
        with one_line():
            keep_worker_ready()
            left = self.limit
            for batch in without_first(self.batches(partition), self.skip):
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                yield batch
                if left == 0:
                    break
            forget_archives()

    def batches(self, partition: LancePartition) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a partition that meet the condition."""
        for first in range(0, partition.rows, _EMPTY_BATCH):
            yield batch_without_columns(min(_EMPTY_BATCH, partition.rows - first))
        if not partition.pieces:
            return
        assert self.shared is not None  # there is a fragment
        tasks = [piece.task(self.shared) for piece in partition.pieces]
        reads = [partial(self._stored_batches, task) for task in tasks]
        # A read with a limit may need no rows of later tasks.
        all_batches = (read() for read in reads) if self.limit else read_ahead(tasks, reads, self.batch_bytes)
        for task, batches in zip(tasks, all_batches, strict=True):
            yield from self._rows(task, batches)

    def _stored_batches(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task that meet the condition, in the types of the table."""
        if not task.names and self.condition is None:
            yield batch_without_columns(live_rows(task))
            return
        size = min(self.batch_size, self.limit or self.batch_size)
        yield from task.batches(self.batch_bytes, size, self.condition)

    def _rows(self, task: ScanTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(self.schema)
        convert: BatchConverter | None = None
        most = self.batch_bytes
        for batch in batches:
            if not task.names:
                yield batch_without_columns(batch.num_rows)
                continue
            parts: Iterable[pa.RecordBatch] = [batch]
            if self.blobs:
                from spark_lance.spark.schema.blobs import read_blobs

                bases = task.bases or Bases(task.table)
                parts = read_blobs(batch, self.blobs, self.schema, task.message, bases, most)
            for part in parts:
                convert = convert or BatchConverter.plan(part.schema, target)
                yield convert(part)


def without_first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if batch.num_columns else batch_without_columns(batch.num_rows - rows)
        rows = max(0, rows - batch.num_rows)


def live_rows(task: ScanTask) -> int:
    """Return how many rows a task has, about if it is to read some of the rows of its fragment only."""
    if task.selection is not None:
        return len(BitMap.deserialize(task.selection))
    fragment = task.message
    if task.span is not None:
        return task.span[1] - task.span[0]
    total = physical_rows(task.table, fragment, task.bases)
    return total - int(fragment.deletion_file.num_deleted_rows)
