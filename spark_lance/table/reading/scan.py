"""Reading a version of a table: a plan that can be pickled, cut into tasks that run anywhere.

A task holds all that it needs (where the table is, the pruned fields, its fragment's message), so running
it reads no manifest. Rows come out in physical order without the deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import SchemaError
from spark_lance.expressions.predicate import Condition, compile_predicate
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.partition_pruning import PartitionPruner
from spark_lance.table.reading.pruning import Pruner, prune
from spark_lance.table.reading.scan_task import Filter, ScanTask, read_ahead
from spark_lance.table.reading.system_columns import ROW_ADDRESS, ROW_OFFSET, nameable, system_names

_TABLE_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class Scan(OfTable):
    """Chosen columns of one version of a table.

    Attributes:
        table: the table.
        manifest: the version.
        names: the columns in order, system columns too.
        fragments: the fragments to read, in scan order.
        pruners: what knows where rows of certain values are, see `pruning`.
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
        """Choose columns by name (all top-level ones by default), and fragments of the version.

        System columns can be named too, see `system_columns`.

        Raises:
            SchemaError: a column does not exist or is named twice.
        """
        names = [field.name for field in manifest.schema.fields] if columns is None else list(columns)
        flagged = [
            name
            for name, is_requested in ((ROW_ID, with_row_id), (ROW_ADDRESS, with_row_address))
            if is_requested
        ]
        names = [name for name in names if name not in flagged] + flagged
        if len(set(names)) != len(names):
            raise SchemaError(f"a column is named twice in {', '.join(names)}")
        system = system_names(field.name for field in manifest.schema.fields)
        for name in names:
            if name not in system:
                manifest.schema.field(name)
        messages = manifest.fragments if fragments is None else fragments
        return cls(table, manifest, tuple(names), tuple(messages), pruners)

    @cached_property
    def bases(self) -> Bases:
        """Where the version's files are."""
        return Bases.of(self.table, self.manifest.message)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The table fields among the chosen columns, in their order; blobs as their descriptors."""
        return self._fields_of(self.names)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every table and batch that the scan yields."""
        metadata = dict(self.manifest.schema.metadata)
        task = ScanTask(self.table, self.names, self.fields, b"")
        return task.arrow_schema.with_metadata(metadata or None)

    def condition(self, filter: Filter) -> Condition:
        """Fit a filter to the version: to the columns of the table, system columns but `_rowoffset` too.

        Raises:
            ExpressionError: it does not fit.
        """
        if isinstance(filter, Condition):
            return filter
        return compile_predicate(filter, nameable(self.manifest.schema))

    def tasks(self, filter_columns: Sequence[str] = ()) -> list[ScanTask]:
        """Return one task per fragment, in scan order.

        Args:
            filter_columns: further columns for the filter that `ScanTask.tables` will get.
        """
        starts = self._starts if ROW_OFFSET in self.names else {}
        extra = self._fields_of(filter_columns)
        return [self._task(fragment, starts.get(fragment.id, 0), extra) for fragment in self.fragments]

    def tasks_for(self, condition: Condition | None) -> list[ScanTask]:
        """Return one task for each fragment that may have rows that a condition keeps, in scan order.

        Args:
            condition: what `ScanTask.tables` will get; None keeps every row.
        """
        if condition is None:
            return self.tasks()
        fragments, rows = self._pruned(condition)
        return self._narrowed(fragments, rows, condition.columns)

    def tasks_for_any(self, conditions: Iterable[Condition]) -> list[ScanTask]:
        """Return one task for each fragment that may have rows that one of several conditions keeps.

        The conditions are asked for one by one, and no more of them once every fragment has to be read whole.
        The tasks' rows are not tested: others may be among them.

        Args:
            conditions: fitted to the table; without any, no row is kept.
        """
        selections: dict[int, BitMap | None] = {}
        for condition in conditions:
            fragments, rows = self._pruned(condition)
            for fragment in fragments:
                before, here = selections.get(fragment.id, BitMap()), rows.get(fragment.id)
                selections[fragment.id] = None if before is None or here is None else before | here
            if len(selections) == len(self.fragments) and all(rows is None for rows in selections.values()):
                break
        messages = [fragment for fragment in self.fragments if fragment.id in selections]
        known_rows = {number: rows for number, rows in selections.items() if rows is not None}
        return self._narrowed(messages, known_rows, ())

    def tasks_of(self, selection: RowSet) -> list[ScanTask]:
        """Return one task for each fragment with selected rows, in scan order; it reads the live ones."""
        messages = [fragment for fragment in self.fragments if fragment.id in selection]
        return self._narrowed(messages, selection.bitmaps, ())

    def _pruned(self, condition: Condition) -> tuple[list[table_pb2.DataFragment], dict[int, BitMap]]:
        """Return the fragments that a condition may keep rows of, and these rows where they are known."""
        return prune(
            condition,
            self.fragments,
            self.manifest.uses_stable_row_ids,
            (PartitionPruner(self.manifest.schema), *self.pruners),
            system_names(field.name for field in self.manifest.schema.fields),
        )

    def _narrowed(
        self,
        fragments: Sequence[table_pb2.DataFragment],
        rows: Mapping[int, BitMap],
        filter_columns: Sequence[str],
    ) -> list[ScanTask]:
        """Return the tasks of some fragments; for fragments in `rows`, only these rows."""
        tasks = replace(self, fragments=tuple(fragments)).tasks(filter_columns)
        return [
            replace(task, selection=rows[fragment.id].serialize()) if fragment.id in rows else task
            for fragment, task in zip(fragments, tasks, strict=True)
        ]

    def task(self, fragment: table_pb2.DataFragment) -> ScanTask:
        """Return the task that reads one fragment."""
        return self._task(fragment, self._starts[fragment.id] if ROW_OFFSET in self.names else 0, ())

    def tables(
        self, filter: Filter | None = None, target_bytes: int = _TABLE_WINDOW_BYTES, ahead: bool = True
    ) -> Iterator[pa.Table]:
        """Yield the rows of all tasks in order, in tables of about `target_bytes`.

        Args:
            filter: keep the rows for which this is true.
            target_bytes: bytes of one table.
            ahead: whether tasks of an object store may begin before the rows of earlier ones are used up.

        Raises:
            SchemaError, ExpressionError, FormatError, UnsupportedFormatError: see `ScanTask.tables`.
        """
        condition = None if filter is None else self.condition(filter)
        tasks = self.tasks_for(condition)
        reads = [partial(task.tables, target_bytes, condition) for task in tasks]
        for tables in read_ahead(tasks, reads, target_bytes) if ahead else (read() for read in reads):
            yield from tables

    def batches(
        self, batch_bytes: int, batch_size: int, filter: Filter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all tasks in order as record batches; sizes as in `ScanTask.batches`."""
        condition = None if filter is None else self.condition(filter)
        for task in self.tasks_for(condition):
            for batch in task.batches(batch_bytes, batch_size, condition):
                yield batch.replace_schema_metadata(self.arrow_schema.metadata)

    def slice(self, offset: int, limit: int | None, target_bytes: int) -> Iterator[pa.Table]:
        """Yield at most `limit` of the live rows from position `offset` on; reads hardly more than these.

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
        """Return the rows of a fragment that are not deleted; mostly from the manifest alone."""
        rows = physical_rows(self.table, fragment, self.bases)
        return rows - int(fragment.deletion_file.num_deleted_rows)

    def count(self) -> int:
        """Return the number of rows; mostly from the manifest alone."""
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
        named = (self.manifest.schema.field(name) for name in names if name not in system)
        return tuple(field.described() for field in named)

    @cached_property
    def _starts(self) -> dict[int, int]:
        """How many live rows of the version come before each fragment."""
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
