"""Scan a version of a table: a plan that can be pickled, split into tasks that run anywhere.

A task contains everything that it needs (the table's location, the pruned fields, its fragment's message), so
running it reads no manifest. It yields live rows in physical order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.expressions.predicate import Condition, compile_predicate
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.pruning import PartitionPruner, Pruner, prune
from spark_lance.table.reading.scan_task import Filter, ScanTask, read_ahead
from spark_lance.table.reading.system_columns import ROW_ADDRESS, ROW_OFFSET, filterable_schema, system_names

_TABLE_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class Scan(TableRefMixin):
    """A scan of some columns of one version of a table.

    Attributes:
        table: the table.
        manifest: the version.
        names: the columns in order, including system columns.
        fragments: the fragments to read, in scan order.
        pruners: the pruners of the version's indexes, see `pruning`.
    """

    table: TableRef
    manifest: Manifest
    names: tuple[str, ...]
    fragments: tuple[table_pb2.DataFragment, ...]
    pruners: tuple[Pruner, ...] = ()

    @classmethod
    def plan(
        cls,
        table: TableRef,
        manifest: Manifest,
        columns: Sequence[str] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Sequence[table_pb2.DataFragment] | None = None,
        pruners: tuple[Pruner, ...] = (),
    ) -> Scan:
        """Return a scan of some columns and fragments of a version.

        Args:
            table: the table.
            manifest: the version.
            columns: names of top-level columns and of system columns (see `system_columns`) in the order of
                the result; all top-level columns by default.
            with_row_id: add the column `_rowid` at the end.
            with_row_address: add the column `_rowaddr` at the end.
            fragments: the fragments to read, in scan order; all by default.
            pruners: see `Scan`.

        Raises:
            SchemaError: a column does not exist or is named twice.
        """
        names = [field.name for field in manifest.schema.fields] if columns is None else list(columns)
        flags = [
            name
            for name, is_requested in ((ROW_ID, with_row_id), (ROW_ADDRESS, with_row_address))
            if is_requested
        ]
        names = [name for name in names if name not in flags] + flags
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"columns has {twice!r} twice: leave one out")
        system = system_names(field.name for field in manifest.schema.fields)
        for name in names:
            if name not in system:
                manifest.schema.field(name)
        messages = manifest.fragments if fragments is None else fragments
        return cls(table, manifest, tuple(names), tuple(messages), pruners)

    @cached_property
    def bases(self) -> Bases:
        """The base paths of the version."""
        return Bases.of(self.table, self.manifest.message)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The table fields among the columns of the scan, in order; blobs as descriptors."""
        return self._fields_of(self.names)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every table and batch that the scan yields."""
        metadata = dict(self.manifest.schema.metadata)
        task = ScanTask(self.table, self.names, self.fields, b"")
        return task.arrow_schema.with_metadata(metadata or None)

    def condition(self, filter: Filter) -> Condition:
        """Compile a filter that may refer to table columns and to system columns except `_rowoffset`.

        Raises:
            ExpressionError: the filter does not fit the columns.
        """
        if isinstance(filter, Condition):
            return filter
        return compile_predicate(filter, filterable_schema(self.manifest.schema))

    def tasks(self, filter_columns: Sequence[str] = ()) -> list[ScanTask]:
        """Return one task per fragment, in scan order.

        Args:
            filter_columns: more columns that the filter of `ScanTask.tables` may refer to.
        """
        fragments = RowSet.from_fragments(fragment.id for fragment in self.fragments)
        return self.select_tasks(fragments, filter_columns)

    def plan_tasks(self, condition: Condition | None) -> list[ScanTask]:
        """Return one task for each fragment that can contain matching rows, in scan order.

        Args:
            condition: the filter that `ScanTask.tables` will get; None matches every row.
        """
        if condition is None:
            return self.tasks()
        return self.select_tasks(self._prune(condition), condition.columns)

    def tasks_for_any(self, conditions: Iterable[Condition]) -> list[ScanTask]:
        """Return one task for each fragment that can contain rows that match one of several conditions.

        The iterable is not consumed further once every fragment must be read completely. The tasks do not
        apply the conditions, so they may yield rows that match none.

        Args:
            conditions: conditions that are compiled for the table; none means no rows.
        """
        selection = RowSet()
        for condition in conditions:
            selection |= self._prune(condition)
            if len(selection) == len(self.fragments) and not selection.bitmaps:
                break
        return self.select_tasks(selection)

    def select_tasks(self, selection: RowSet, filter_columns: Sequence[str] = ()) -> list[ScanTask]:
        """Return one task for each fragment with selected rows, in scan order; deleted rows are skipped.

        Args:
            selection: the rows.
            filter_columns: more columns that the filter of `ScanTask.tables` may refer to.
        """
        first_rows = self._first_rows if ROW_OFFSET in self.names else {}
        extra = self._fields_of(filter_columns)
        tasks = []
        for fragment in self.fragments:
            if fragment.id in selection:
                task = self._task(fragment, first_rows.get(fragment.id, 0), extra)
                rows = selection[fragment.id]
                tasks.append(task if rows is None else replace(task, selection=rows.serialize()))
        return tasks

    def _prune(self, condition: Condition) -> RowSet:
        """Return the rows that can match a condition."""
        return prune(
            condition,
            self.fragments,
            self.manifest.uses_stable_row_ids,
            (PartitionPruner(self.manifest.schema), *self.pruners),
            system_names(field.name for field in self.manifest.schema.fields),
        )

    def task(self, fragment: table_pb2.DataFragment) -> ScanTask:
        """Return the task that reads one fragment."""
        return self._task(fragment, self._first_rows[fragment.id] if ROW_OFFSET in self.names else 0, ())

    def tables(
        self, filter: Filter | None = None, target_bytes: int = _TABLE_WINDOW_BYTES, ahead: bool = True
    ) -> Iterator[pa.Table]:
        """Yield the rows of all tasks in order, in tables of about `target_bytes`.

        Args:
            filter: yield only the rows for which this is true.
            target_bytes: target size of one table in bytes.
            ahead: whether tasks on an object store may start before earlier tasks are consumed.

        Raises:
            SchemaError, ExpressionError, FormatError, UnsupportedFormatError: see `ScanTask.tables`.
        """
        condition = None if filter is None else self.condition(filter)
        tasks = self.plan_tasks(condition)
        reads = [partial(task.tables, target_bytes, condition) for task in tasks]
        for tables in read_ahead(tasks, reads, target_bytes) if ahead else (read() for read in reads):
            yield from tables

    def batches(
        self, batch_bytes: int, batch_size: int, filter: Filter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all tasks in order as record batches; sizes as in `ScanTask.batches`."""
        condition = None if filter is None else self.condition(filter)
        for task in self.plan_tasks(condition):
            for batch in task.batches(batch_bytes, batch_size, condition):
                yield batch.replace_schema_metadata(self.arrow_schema.metadata)

    def slice(self, offset: int, limit: int | None, target_bytes: int) -> Iterator[pa.Table]:
        """Yield up to `limit` live rows from position `offset`, reading few rows outside this range.

        Raises:
            FormatError, UnsupportedFormatError: see `ScanTask.tables`.
        """
        left = limit
        tasks: list[ScanTask] = []
        reads = []
        for fragment in self.fragments:
            if left == 0:
                break
            rows = self.live_rows(fragment)
            skipped = min(offset, rows)
            offset -= skipped
            count = rows - skipped if left is None else min(left, rows - skipped)
            if count:
                tasks.append(self.task(fragment))
                reads.append(partial(tasks[-1].slice, skipped, count, target_bytes))
            left = None if left is None else left - count
        for tables in read_ahead(tasks, reads, target_bytes):
            yield from tables

    def live_rows(self, fragment: table_pb2.DataFragment) -> int:
        """Return the number of live rows of a fragment, usually from the manifest only."""
        rows = physical_rows(self.table, fragment, self.bases)
        return rows - int(fragment.deletion_file.num_deleted_rows)

    def count(self) -> int:
        """Return the number of live rows, usually from the manifest only."""
        return sum(self.live_rows(fragment) for fragment in self.fragments)

    def _task(
        self, fragment: table_pb2.DataFragment, first_row: int, filter_fields: tuple[Field, ...]
    ) -> ScanTask:
        return ScanTask(
            self.table,
            self.names,
            self.fields,
            fragment.SerializeToString(),
            self.manifest.uses_stable_row_ids,
            self.bases,
            first_row,
            filter_fields,
        )

    def _fields_of(self, names: Sequence[str]) -> tuple[Field, ...]:
        system = system_names(field.name for field in self.manifest.schema.fields)
        fields = (self.manifest.schema.field(name) for name in names if name not in system)
        return tuple(field.as_descriptor() for field in fields)

    @cached_property
    def _first_rows(self) -> dict[int, int]:
        """The number of live rows of the version before each fragment, by fragment id."""
        starts = {}
        total = 0
        for fragment in self.manifest.fragments:
            starts[fragment.id] = total
            total += self.live_rows(fragment)
        return starts


def filter_columns(filter: Filter, schema: pa.Schema) -> list[str]:
    """Return the top-level columns of `schema` that a filter refers to.

    Raises:
        ExpressionError: the filter does not fit the schema.
    """
    condition = filter if isinstance(filter, Condition) else compile_predicate(filter, schema)
    return list(condition.columns)
