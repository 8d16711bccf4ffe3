"""Reads partitions of a table in Spark tasks.

A worker may run for one query only, and imports its modules for it. So this module imports nothing of the
planning: no manifest, no index, no option. `rows.LanceReader` pickles to `TaskRows`.
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

_MAX_EMPTY_BATCH_ROWS = 1 << 20


class TaskFragment(NamedTuple):
    """The part of a scan that differs from task to task; see the attributes of `ScanTask`."""

    fragment: bytes
    first_row: int
    span: tuple[int, int] | None
    selection: bytes | None

    @classmethod
    def of(cls, task: ScanTask) -> TaskFragment:
        """Return the part of `task` that differs from other tasks."""
        return cls(task.fragment, task.first_row, task.span, task.selection)

    def task(self, shared: ScanTask) -> ScanTask:
        """Return the task, with all other attributes from another task of the scan."""
        return replace(shared, **self._asdict())


@dataclass(frozen=True)
class LancePartition(InputPartition):
    """The input of one Spark task.

    Attributes:
        pieces: the fragments.
        rows: number of rows without columns, instead of fragments.
    """

    pieces: tuple[TaskFragment, ...]
    rows: int = 0


@dataclass(frozen=True)
class TaskRows:
    """Reads the rows of partitions.

    Attributes:
        schema: the columns.
        shared: the attributes that all tasks of the scan share; None if there is no fragment.
        condition: the condition that rows must meet.
        limit: number of rows that are enough.
        skip: number of rows to skip first.
        blobs: the fields among the columns that have blobs.
        batch_bytes, batch_size: approximate largest size of a batch in bytes, and its largest number of rows.
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
        # If there are no partitions, Spark runs one task, with an empty partition or None.
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
        for first in range(0, partition.rows, _MAX_EMPTY_BATCH_ROWS):
            yield batch_without_columns(min(_MAX_EMPTY_BATCH_ROWS, partition.rows - first))
        if not partition.pieces:
            return
        assert self.shared is not None  # there is a fragment
        tasks = [piece.task(self.shared) for piece in partition.pieces]
        reads = [partial(self._stored_batches, task) for task in tasks]
        # Without read-ahead if there is a limit, because later tasks may not be needed.
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
    """Yield batches without the first `rows` rows in total."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if batch.num_columns else batch_without_columns(batch.num_rows - rows)
        rows = max(0, rows - batch.num_rows)


def live_rows(task: ScanTask) -> int:
    """Return the number of rows of a task. For a row range of a fragment, deleted rows count, too."""
    if task.selection is not None:
        return len(BitMap.deserialize(task.selection))
    fragment = task.message
    if task.span is not None:
        return task.span[1] - task.span[0]
    total = physical_rows(task.table, fragment, task.bases)
    return total - int(fragment.deletion_file.num_deleted_rows)
