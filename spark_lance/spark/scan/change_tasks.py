"""Planning of the change feed: from the versions of a table to tasks that read the rows they changed.

Rows have the columns of one version, the reference. Walking back from it, version by version, finds its
columns in an older version; columns of a newer version must be the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import InputPartition

from spark_lance.errors import SchemaError, VersionNotFoundError
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field
from spark_lance.spark.options.options import ReadOptions
from spark_lance.spark.scan.change_columns import ChangeColumns
from spark_lance.spark.scan.partitions import pack, row_bytes
from spark_lance.spark.schema.blobs import read_blobs
from spark_lance.spark.schema.convert import BatchConverter, rows_without_columns
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.change_task import ChangeTask
from spark_lance.table.reading.fragment import physical_rows
from spark_lance.table.reading.pieces import in_batches
from spark_lance.table.reading.scan import ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.version_changes import INSERT, ChangedRows, before_append, changes_of
from spark_lance.table.schema.history import PastColumn, Step, before
from spark_lance.table.versions.walk import Walk

__all__ = ["ChangePartition", "Feed", "TaskColumns", "pack_changes", "read_changes"]

_VERSIONS_KEPT = 1024
_CHANGES_KEPT = 100_000
_EPOCH_MICROS = 10**6


@dataclass(frozen=True)
class _Holder:
    """The parts of a read of a version that do not depend on the rows."""

    names: tuple[str, ...]
    fields: tuple[Field, ...]
    bases: Bases
    stable: bool
    micros: int


class Feed:
    """The changes of versions of a table, as tasks.

    Args:
        walk: the versions.
        reference: the version that has the columns.
        columns: the columns.
        exact: find the columns of an older version step by step in any case; otherwise a version with the
            reference's columns is taken to have had them all the time since.
    """

    def __init__(self, walk: Walk, reference: Manifest, columns: ChangeColumns, *, exact: bool) -> None:
        self.walk = walk
        self._reference = reference
        self._columns = columns
        self._exact = exact
        self._found: dict[int, list[PastColumn | None]] = {reference.version: columns.columns}
        self._own = columns.at(columns.columns, reference.version)
        self._changes: OrderedDict[int, list[ChangedRows]] = OrderedDict()
        self._changes_kept = 0
        self._holders: OrderedDict[int, _Holder] = OrderedDict()

    def changes(self, version: int) -> list[ChangedRows]:
        """Return what a version changed.

        Raises:
            VersionNotFoundError: it has been cleaned up, or the one before it, if it did more than append.
            FormatError, UnsupportedFormatError: see `changes_of`.
        """
        if version not in self._changes:
            walk = self.walk
            new, transaction = walk.manifest(version), walk.transaction(version)
            try:
                old = walk.before(version)
            except VersionNotFoundError:
                if transaction.name != "append":
                    raise
                old = before_append(new, transaction)
            at = self._at(version)
            changed_rows = changes_of(None if old is None else at.at(old), at, transaction)
            self._changes[version] = changed_rows
            self._changes_kept += len(changed_rows)
            # Now, as the manifest is loaded already.
            self._holder(version)
            while len(self._changes) > _VERSIONS_KEPT or self._changes_kept > _CHANGES_KEPT:
                self._changes_kept -= len(self._changes.popitem(last=False)[1])
            return changed_rows
        return self._changes[version]

    def rows(self, version: int) -> list[ChangedRows]:
        """Return all rows of a version, as if it had inserted them."""
        at = self._at(version)
        return [
            ChangedRows(INSERT, fragment.SerializeToString(), None, None, at.live_rows(fragment))
            for fragment in at.fragments
        ]

    def _at(self, version: int) -> Snapshot:
        return Snapshot(self.walk.table, self.walk.manifest(version))

    def task(self, version: int, change: ChangedRows) -> ChangeTask:
        """Return the task that reads rows that a version changed.

        Raises:
            SchemaError: its columns cannot be read as those of the reference.
        """
        after, walk = self._holder(version), self.walk
        holder = self._holder(version - 1) if change.is_before else after
        scan = ScanTask(walk.table, holder.names, holder.fields, change.fragment, holder.stable, holder.bases)
        return ChangeTask(scan, change, version, after.micros, self._columns.schema)

    def _holder(self, version: int) -> _Holder:
        if version not in self._holders:
            at = self._at(version)
            columns = self.columns_at(version)
            own = columns is self._columns.columns
            names, fields = self._own if own else self._columns.at(columns, version)
            stamp = at.manifest.message.timestamp
            micros = stamp.seconds * _EPOCH_MICROS + stamp.nanos // 1000
            self._holders[version] = _Holder(names, fields, at.bases, at.manifest.uses_stable_row_ids, micros)
            if len(self._holders) > _VERSIONS_KEPT:
                self._holders.popitem(last=False)
        return self._holders[version]

    def columns_at(self, version: int) -> list[PastColumn | None]:
        """Return what the columns are in a version.

        Raises:
            SchemaError: the version is newer than the reference, and its columns are others.
        """
        if version in self._found:
            return self._found[version]
        there = self.walk.manifest(version)
        if version > self._reference.version:
            columns = self._columns.found_by_name(there.schema)
            if isinstance(columns, str):
                raise SchemaError(
                    f"the columns of {self.walk.root} changed in version {version}: {columns}. "
                    "Load the stream again and start it with the same checkpoint to go on"
                )
            self._found[version] = columns
            if len(self._found) > _VERSIONS_KEPT:
                # A stream does not come back to versions that it has read.
                self._found.pop(min(self._found.keys() - {self._reference.version}))
        elif not self._exact and there.message.fields == self._reference.message.fields:
            self._found[version] = self._columns.columns
        else:
            self._walk_back(version)
        return self._found[version]

    def _walk_back(self, version: int) -> None:
        newer = min(number for number in self._found if number > version)
        for later in range(newer, version, -1):
            new, old = self.walk.manifest(later), self.walk.manifest(later - 1)
            step = Step.of(old, new, self.walk.transaction(later))
            self._found[later - 1] = before(self._found[later], step)


class TaskColumns(NamedTuple):
    """The part of a read's columns that a task needs: the filter, and which columns are blobs."""

    condition: Condition | None
    blobs: tuple[Field, ...]

    @classmethod
    def of(cls, columns: ChangeColumns) -> TaskColumns:
        """Return this of some columns."""
        return cls(columns.condition, columns.blobs)


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """The input of one Spark task.

    Attributes:
        tasks: changed rows of its fragments.
    """

    tasks: tuple[ChangeTask, ...]


def pack_changes(
    tasks: Sequence[ChangeTask],
    fields: Sequence[Field],
    reference: Manifest,
    options: ReadOptions,
) -> list[ChangePartition]:
    """Put tasks together to partitions of about `partition_bytes`, see `pack`.

    Args:
        tasks: the work.
        fields: the table's fields that they read.
        reference: the version that has these.
        options: of the read.
    """
    names = [field.name for field in fields]
    width = row_bytes(reference.schema, [task.scan for task in tasks], names, fields)

    def rows_of(task: ChangeTask) -> int:
        return task.change.count

    def span_of(task: ChangeTask) -> tuple[int, int]:
        scan = task.scan
        return 0, physical_rows(scan.store, scan.root, scan.message, scan.bases)

    def cut(task: ChangeTask, span: tuple[int, int]) -> ChangeTask:
        return replace(task, scan=replace(task.scan, span=span), span=span)

    packed = pack(tasks, rows_of, span_of, cut, width, options.partition_bytes)
    return [ChangePartition(items) for items in packed]


def read_changes(
    partition: InputPartition, projection: st.StructType, columns: TaskColumns, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in the types that Spark takes.

    Args:
        partition: a `ChangePartition`; any other has no rows.
        projection: the schema that Spark expects.
        columns: what a task has to know of them.
        options: of the read.

    Raises:
        SchemaError, FormatError, UnsupportedFormatError, ExpressionError: see `ChangeTask.tables`.
    """
    if not isinstance(partition, ChangePartition):
        return
    target = arrow_schema(projection)
    for task in partition.tasks:
        convert: BatchConverter | None = None
        tables = task.tables(options.batch_bytes, columns.condition)
        for batch in in_batches(tables, options.batch_size):
            if not target.names:
                yield rows_without_columns(batch.num_rows)
                continue
            # Behind the asked columns come those that only the condition needs.
            visible = batch.select(range(len(target.names)))
            parts: Iterable[pa.RecordBatch] = [visible]
            if columns.blobs:
                scan = task.scan
                bases = scan.bases or Bases(scan.table)
                limit = options.batch_bytes
                parts = read_blobs(visible, columns.blobs, projection, scan.message, bases, limit)
            for part in parts:
                convert = convert or BatchConverter.plan(part.schema, target)
                yield convert(part)
