"""Reads tables from Spark: fragments become input partitions, stored columns become Spark's Arrow batches.

The driver creates the reader when it plans. The reader loads the manifest of the pinned version, and puts
the data of each task into its partition. It carries data that all tasks share, such as the filter.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.errors import SchemaError
from spark_lance.expressions.expressions import Call, Expression
from spark_lance.expressions.predicate import Condition, compile_predicate, compile_tree, condition_text
from spark_lance.file.blob_writer import has_blobs
from spark_lance.index.pruners import indexed_snapshot
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.spark.base.compat import KEEPS_ROWS_WITHOUT_COLUMNS
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.scan.partitions import (
    ROW_HEADER_BYTES,
    cut_tasks,
    limit_tasks,
    pack_tasks,
    row_bytes,
    split_row_count,
)
from spark_lance.spark.schema.read_schema import resolve_projection, to_spark_schema
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.spark.worker.read import LancePartition, TaskFragment, TaskRows, live_rows, without_first
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.pruning import find_used_indexes
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import filterable_schema
from spark_lance.table.reading.texts import texts_as_binary
from spark_lance.table.versions.resolve import MAIN, Reference, VersionRef, resolve, version_as_of_time
from spark_lance.table.versions.versions import find_version, latest_version, load_latest, load_version

# The most files that the driver opens to answer a query without tasks, on local disks and on remote stores.
_MAX_LOCAL_FILES, _MAX_REMOTE_FILES = 64, 16
# The driver scans data only up to this multiple of the allowed bytes in memory, however small it is stored.
_MAX_MEMORY_FACTOR = 16


K = TypeVar("K")


def pin(options: ReadOptions) -> VersionRef:
    """Return the version that a read sees: the version that options request, or the latest one now.

    Raises:
        TableNotFoundError, VersionNotFoundError: the table or the version does not exist.
    """
    store, root = open_store(options.path, options.storage)
    table = TableRef(store, root)
    branch = None if options.branch == MAIN else options.branch
    if options.asof is not None:
        line = resolve(table, (branch, None)) if branch else VersionRef(root, None, 0)
        return VersionRef(line.root, branch, version_as_of_time(TableRef(store, line.root), options.asof))
    if options.branch is None and options.tag is None:
        # The path can be that of a branch, whose versions continue the numbers of its parent.
        number = options.version
        version = latest_version(table) if number is None else find_version(table, number)
        return VersionRef(root, None, version.version)
    reference: Reference = options.tag if options.tag is not None else (branch, options.version)
    ref = resolve(table, reference)
    find_version(TableRef(store, ref.root), ref.version)
    return ref


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the version that a read sees, and the Spark schema of the requested columns.

    Args:
        options: options of the read.
        ref: the version, if it has been resolved before.

    Raises:
        TableNotFoundError, VersionNotFoundError: the table or the version does not exist.
        UnsupportedFormatError: the table needs a feature that this package cannot read.
        SchemaError: a column does not exist, or Spark has no type for it.
    """
    keep_worker_ready()
    ref, snapshot = open_snapshot(options, ref)
    return ref, requested_schema(snapshot, options)


def requested_schema(snapshot: Snapshot, options: ReadOptions) -> st.StructType:
    """Return the Spark schema of the requested columns of an open version.

    Raises:
        SchemaError: a column does not exist, or Spark has no type for it.
    """
    return to_spark_schema(snapshot.schema, options.projection)


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> LanceReader:
    """Return the reader of the columns of `schema`, for Spark's own planner.

    Raises:
        SchemaError: `schema` has no columns, and this release of Spark loses the row count.
    """
    keep_worker_ready()
    if not schema.fields and not KEEPS_ROWS_WITHOUT_COLUMNS:
        raise SchemaError("this Spark version cannot count rows without columns: ask for a column")
    return LanceReader(options, schema, ref)


def open_snapshot(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, Snapshot]:
    """Resolve and open the version that a read sees.

    Args:
        options: options of the read.
        ref: the version, if it has been resolved before.

    Raises:
        TableNotFoundError, VersionNotFoundError, UnsupportedFormatError: see `describe`.
    """
    store, root = open_store(options.path, options.storage)
    selector = (options.version, options.tag, options.branch, options.asof)
    if ref is None and all(value is None for value in selector):
        # The listing that finds the newest version also returns its content.
        manifest = load_latest(TableRef(store, root))
        ref = VersionRef(root, None, manifest.version)
    else:
        ref = pin(options) if ref is None else ref
        manifest = load_version(TableRef(store, ref.root), ref.version)
    if options.text_as == "binary":
        manifest = texts_as_binary(manifest)
    return ref, indexed_snapshot(TableRef(store, ref.root), manifest)


def _fragments_in(
    manifest: Manifest, ranges: Sequence[tuple[int, int]] | None
) -> list[table_pb2.DataFragment] | None:
    """Return the fragments whose ids are in the ranges [start, stop); None for all fragments."""
    if ranges is None:
        return None
    bounds = [bound for span in ranges for bound in span]
    # An id inside a range has an odd number of bounds at or below it.
    return [fragment for fragment in manifest.fragments if bisect.bisect(bounds, fragment.id) % 2]


class ScanMetrics(NamedTuple):
    """Metrics of a planned read for Spark: fragments read and skipped, largest number of rows and bytes."""

    fragments: int
    skipped: int
    rows: int
    size: int


class LanceReader(DataSourceReader):
    """Reads the columns of a Spark schema from one version of a table.

    Args:
        options: options of the read.
        schema: the columns, in this order. Structs may lack fields that the table has.
        ref: the pinned version. By default, the version that options request, or the latest one.
        snapshot: the version `ref`, if it is open.
        cores: number of tasks that run at a time. By default the cores of this machine.

    Raises:
        TableNotFoundError, VersionNotFoundError, UnsupportedFormatError: see `describe`.
        SchemaError: the schema names columns that do not exist, or types other than Spark's for them.
        ExpressionError: the option `filter` does not fit the table.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: st.StructType,
        ref: VersionRef | None = None,
        snapshot: Snapshot | None = None,
        cores: int | None = None,
    ) -> None:
        if ref is None or snapshot is None:
            ref, snapshot = open_snapshot(options, ref)
        self.ref, manifest = ref, snapshot.manifest
        self._schema = schema
        self._options = options
        self._batch_bytes, self._batch_size = options.batch_bytes, options.batch_size
        self._table = manifest.schema
        self._names, self._fields = resolve_projection(manifest.schema, schema)
        fields = (field for field in manifest.schema.fields if field.name in self._names)
        self._blobs = tuple(field for field in fields if has_blobs(field))
        self._scan = snapshot.scan(self._names, fragments=_fragments_in(manifest, options.fragments))
        self._condition: Condition | None = None
        if options.filter is not None:
            self._condition = compile_predicate(options.filter, filterable_schema(manifest.schema))
        self._cores = cores
        self._limit: int | None = None
        # If one task yields all rows, it applies the limit and skips the first `_skip` rows itself.
        self._one_task, self._skip = False, 0
        self._row_set: RowSet | None = None
        # The condition that all rows of `_row_set` meet.
        self._row_set_condition: Condition | None = None

    def set_filters(
        self,
        trees: Sequence[Expression],
        limit: int | None = None,
        *,
        by_one_task: bool = False,
        skip: int = 0,
    ) -> None:
        """Set filters and a limit. Must be called before the scan is planned.

        Args:
            trees: conditions on columns of the table. The scan returns rows that meet all of them.
            limit: number of rows that are enough.
            by_one_task: one task reads all rows, in scan order, and at most `limit`. Otherwise each task may
                yield up to `limit` rows.
            skip: number of rows that this one task skips first.
        """
        if trees:
            condition = compile_tree(Call("and", tuple(trees)), filterable_schema(self._table))
            self._condition = condition if self._condition is None else self._condition.and_also(condition)
        self._limit, self._one_task, self._skip = limit, by_one_task, skip

    def set_rows(self, rows: RowSet) -> None:
        """Read only these rows, which meet all conditions. Must be called before the scan is planned."""
        self._row_set = rows
        self._row_set_condition, self._condition = self._condition, None

    def __reduce__(self) -> tuple[type[TaskRows], tuple[Any, ...]]:
        # Tasks get only the data that all of them share. The partition has the rest.
        rows = self._task_rows()
        return type(rows), tuple(getattr(rows, field.name) for field in dataclass_fields(rows))

    def _task_rows(self) -> TaskRows:
        return TaskRows(
            self._schema,
            self._shared,
            self._condition,
            self._limit,
            self._skip,
            self._blobs,
            self._batch_bytes,
            self._batch_size,
        )

    @cached_property
    def _shared(self) -> ScanTask | None:
        """The data that all tasks share; None if there is none."""
        return TaskFragment(b"", 0, None, None).task(self._tasks[0]) if self._tasks else None

    @cached_property
    def _tasks(self) -> list[ScanTask]:
        """The fragments to read. They are planned at the first access, after all filters are set."""
        row_set = self._row_set
        scan_tasks = (
            self._scan.plan_tasks(self._condition) if row_set is None else self._scan.select_tasks(row_set)
        )
        tasks = [replace(task, fields=self._fields) for task in scan_tasks]
        if self._condition is None and self._limit is not None:
            return list(limit_tasks(tasks, self._limit + self._skip))
        return tasks

    @property
    def condition(self) -> Condition | None:
        """The condition that skips rows; None if there is none."""
        return self._condition

    @cached_property
    def _width(self) -> float:
        """The estimated bytes of one row of the scan, including columns of the filter."""
        filter_columns = self._condition.columns if self._condition else ()
        extra = [field for field in self._table.fields if field.name in set(filter_columns) - {*self._names}]
        return row_bytes(self._table, self._tasks, self._names, [*self._fields, *extra])

    def size(self) -> tuple[int, int]:
        """Return the estimated largest number of rows, and their size in bytes in Spark."""
        rows = sum(live_rows(task) for task in self._tasks)
        if self._limit is not None:
            rows = min(rows, self._limit)
        return rows, int(rows * (self._width + ROW_HEADER_BYTES))

    def metrics(self) -> ScanMetrics:
        """Return the metrics of the plan."""
        fragments = len(self._tasks)
        rows, size = self.size()
        return ScanMetrics(fragments, len(self._scan.fragments) - fragments, rows, size)

    def explain(self) -> str:
        """Return the text that EXPLAIN shows for this read."""
        lines = [f"version: {self.ref.version}"]
        condition = self._condition or self._row_set_condition
        if condition is not None:
            lines.append(f"filter: {condition_text(condition)}")
            indices = [use for pruner in self._scan.pruners for use in find_used_indexes(pruner, condition)]
            lines += [f"index: {name} ({kind})" for _, name, kind in indices]
        if self._limit is not None:
            lines.append(f"limit: {self._limit}")
        count = sum(task.selection is not None for task in self._tasks)
        rows = f", of {count} only rows that an index or their numbers name" if count else ""
        metrics = self.metrics()
        lines.append(f"fragments: {metrics.fragments} read{rows}, {metrics.skipped} skipped")
        lines.append(f"rows: at most {metrics.rows}")
        return "; ".join(lines)

    @property
    def columns(self) -> Sequence[str]:
        """The columns that are read."""
        return self._names

    def count_from_manifest(self) -> int | None:
        """Return the number of rows, if the manifest is enough to compute it; None otherwise."""
        if self._condition is not None or self._limit is not None:
            return None
        return sum(live_rows(task) for task in self._tasks)

    def stream_if_small(self, most_bytes: int) -> Iterator[pa.RecordBatch] | None:
        """Stream the batches of all rows if the scan is small; return None otherwise.

        Args:
            most_bytes: approximate largest number of bytes to read.
        """
        if self._requires_tasks or self._limit is not None:
            return None
        rows = sum(live_rows(task) for task in self._tasks)
        little = rows * self._width <= most_bytes or self._is_little(most_bytes)
        if len(self._tasks) > self._max_files or not little:
            return None
        return self._task_rows().batches(LancePartition(tuple(map(TaskFragment.of, self._tasks))))

    @property
    def _requires_tasks(self) -> bool:
        """Whether options define the partitions, or the scan reads blobs, too large for the driver."""
        options = self._options
        return options.fragments is not None or options.partition_bytes is not None or bool(self._blobs)

    @property
    def _max_files(self) -> int:
        return _MAX_LOCAL_FILES if not self._tasks or self._tasks[0].store.is_local else _MAX_REMOTE_FILES

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return all rows if they are few and the scan is small; None otherwise.

        Args:
            most_rows: largest number of rows to return.
            most_bytes: approximate largest number of bytes to read.
        """
        tasks, enough = self._tasks, None if self._limit is None else self._limit + self._skip
        files = self._max_files
        if self._requires_tasks or (enough is not None and enough > most_rows):
            return None
        rows = sum(live_rows(task) for task in tasks)
        if self._condition is None and enough is None and rows > most_rows:
            return None
        # The first rows may contain enough rows that meet the condition.
        tasks, is_all = cut_tasks(tasks[:files], int(most_bytes / max(self._width, 1.0)))
        is_all = is_all and len(self._tasks) <= files
        if enough is None and not is_all:
            if self._condition is None or len(self._tasks) > files or not self._is_little(most_bytes):
                return None
            tasks, is_all = self._tasks, True
        batches: list[pa.RecordBatch] = []
        left, room = most_rows if enough is None else enough, most_bytes
        for batch in self._task_rows().batches(LancePartition(tuple(map(TaskFragment.of, tasks)))):
            batches.append(batch.slice(0, left) if enough is not None else batch)
            left, room = left - batch.num_rows, room - batch.nbytes
            if enough is not None and left <= 0:
                break
            if left < 0 or room < 0:
                return None
        if left > 0 and not is_all:
            return None
        return list(without_first(batches, self._skip))

    def _is_little(self, most_bytes: int) -> bool:
        """Return whether the scan is small on disk, although it needs more bytes in memory.

        This reads the footers of the files, so it is done on local disks only.
        """
        rows = sum(live_rows(task) for task in self._tasks)
        if not self._tasks[0].store.is_local or rows * self._width > _MAX_MEMORY_FACTOR * most_bytes:
            return False
        left = most_bytes
        for task in self._tasks:
            left -= task.stored_bytes(self._condition)
            if left < 0:
                return False
        return True

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions. Small fragments share a partition."""
        whole = self._options.fragments is not None
        if self._one_task:
            return [LancePartition(tuple(map(TaskFragment.of, self._tasks)))] if self._tasks else []
        if not self._names and self._condition is None and not whole:
            return split_row_count(sum(live_rows(task) for task in self._tasks))
        most = self._options.partition_bytes
        return pack_tasks(self._tasks, self._width, most, whole=whole, cores=self._cores)

    def partitions_by(
        self, partition_key: Callable[[table_pb2.DataFragment], K | None]
    ) -> list[tuple[K, LancePartition]] | None:
        """Return the partitions, each with the key of its fragments; None if a fragment has no key."""
        if self._one_task or self._options.fragments is not None or not self._names:
            return None
        groups: dict[K, list[ScanTask]] = {}
        for task in self._tasks:
            key = partition_key(task.message)
            if key is None:
                return None
            groups.setdefault(key, []).append(task)
        most = self._options.partition_bytes
        return [
            (key, part)
            for key, tasks in groups.items()
            for part in pack_tasks(tasks, self._width, most, cores=self._cores)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        return self._task_rows().read(partition)
