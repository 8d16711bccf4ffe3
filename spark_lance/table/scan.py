"""Reading a version of a table: a plan that can be pickled, cut into tasks that run anywhere.

A task holds all that it needs (where the table is, the pruned fields, its fragment's message), so running
it reads no manifest. Rows come out in physical order without the deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.file.arrays import join, movable_table
from spark_lance.file.schema import Field
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.bases import Bases
from spark_lance.table.deletion import keep_mask, read_deletions
from spark_lance.table.fragment import FragmentReader
from spark_lance.table.manifest import Manifest
from spark_lance.table.rowids import fragment_row_ids, row_addresses

__all__ = ["ROW_ADDRESS", "ROW_ID", "Scan", "ScanTask", "filter_columns", "rows_without_columns"]

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
_SYSTEM = (ROW_ID, ROW_ADDRESS)
_MAX_WINDOW_ROWS = 1 << 22
_TABLE_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class ScanTask:
    """The rows of one fragment, for the columns of a scan. Can be pickled; reads no manifest.

    Attributes:
        names: the output columns in order; `_rowid` and `_rowaddr` may be among them.
        fields: the top-level table fields among them, in the same order.
        fragment: the serialized DataFragment.
        bases: where its files are, if not all under the root.
    """

    store: Store
    root: str
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    fragment: bytes
    stable_row_ids: bool = False
    bases: Bases | None = None

    @cached_property
    def message(self) -> table_pb2.DataFragment:
        """The fragment's message."""
        return table_pb2.DataFragment.FromString(self.fragment)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of everything that the task yields."""
        return _arrow_schema(self.names, self.fields)

    def __reduce__(self) -> tuple[type[ScanTask], tuple[object, ...]]:
        return ScanTask, (
            self.store,
            self.root,
            self.names,
            self.fields,
            self.fragment,
            self.stable_row_ids,
            self.bases,
        )

    def tables(self, target_bytes: int, filter: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes` Arrow bytes; chunks follow the stored pages.

        Args:
            target_bytes: bytes of one table before the filter; memory stays near it plus one page a column.
            filter: keep the rows for which this is true; it may only name columns of the task.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
            ExpressionError: the filter does not fit the columns.
        """
        reader = FragmentReader(self.store, self.root, self.message, self.fields, self.bases)
        deleted = read_deletions(self.store, self.root, self.message, reader.num_rows, self.bases)
        row_ids = self._row_ids(reader.num_rows)
        start = 0
        row_bytes = max(reader.row_bytes(), 0.125)
        while start < reader.num_rows:
            rows = int(min(max(1, target_bytes / row_bytes), _MAX_WINDOW_ROWS))
            stop = min(start + rows, reader.num_rows)
            columns = reader.read(start, stop)
            seen = sum(column.nbytes for column in columns) / (stop - start)
            # The estimate is replaced by what was seen; growth is limited, for the next rows may be wider.
            row_bytes = max(seen, row_bytes / 4, 0.125)
            table = self._assemble(columns, row_ids, start, stop)
            if len(deleted):
                keep = keep_mask(deleted, start, stop)
                if not keep.all():
                    table = movable_table(table).filter(pa.array(keep))
            if filter is not None:
                table = apply_filter(table, filter)
            if table.num_rows:
                yield table
            start = stop

    def batches(
        self, batch_bytes: int, batch_size: int = 1 << 17, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches of about `batch_bytes` bytes and at most `batch_size` rows.

        Raises:
            FormatError, UnsupportedFormatError, ExpressionError: as `tables`.
        """
        for table in self.tables(batch_bytes, filter):
            for first in range(0, table.num_rows, batch_size):
                # Arrow does not stop a slice at the end of a table without columns.
                yield from _as_batches(table.slice(first, min(batch_size, table.num_rows - first)))

    def _row_ids(self, rows: int) -> np.ndarray | None:
        if ROW_ID not in self.names:
            return None
        if self.stable_row_ids:
            return fragment_row_ids(self.message)
        return row_addresses(self.message.id, np.arange(rows, dtype=np.int64))

    def _assemble(
        self, columns: Sequence[pa.ChunkedArray], row_ids: np.ndarray | None, start: int, stop: int
    ) -> pa.Table:
        by_name: dict[str, pa.ChunkedArray | pa.Array] = {
            field.name: column for field, column in zip(self.fields, columns, strict=True)
        }
        if row_ids is not None:
            by_name[ROW_ID] = pa.array(row_ids[start:stop])
        if ROW_ADDRESS in self.names:
            by_name[ROW_ADDRESS] = pa.array(row_addresses(self.message.id, np.arange(start, stop)))
        if not by_name:
            return rows_without_columns(stop - start)
        return pa.Table.from_arrays([by_name[name] for name in self.names], schema=self.arrow_schema)


@dataclass(frozen=True)
class Scan:
    """Chosen columns of one version of a table."""

    store: Store
    root: str
    manifest: Manifest
    names: tuple[str, ...]

    @classmethod
    def plan(
        cls,
        store: Store,
        root: str,
        manifest: Manifest,
        columns: Sequence[str] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> Scan:
        """Choose top-level columns (all by default) by name; `_rowid` and `_rowaddr` can be named too.

        Raises:
            SchemaError: a column does not exist or is named twice.
        """
        names = [field.name for field in manifest.schema.fields] if columns is None else list(columns)
        names += [ROW_ID] if with_row_id and ROW_ID not in names else []
        names += [ROW_ADDRESS] if with_row_address and ROW_ADDRESS not in names else []
        if len(set(names)) != len(names):
            raise SchemaError(f"a column is named twice in {', '.join(names)}")
        for name in names:
            if name not in _SYSTEM:
                manifest.schema.field(name)
        return cls(store, root, manifest, tuple(names))

    @cached_property
    def bases(self) -> Bases:
        """Where the version's files are."""
        return Bases.of(self.store, self.root, self.manifest.message)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The table fields among the chosen columns, in their order; blobs as their descriptors."""
        named = (self.manifest.schema.field(name) for name in self.names if name not in _SYSTEM)
        return tuple(field.described() for field in named)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every table and batch that the scan yields."""
        metadata = dict(self.manifest.schema.metadata)
        return _arrow_schema(self.names, self.fields).with_metadata(metadata or None)

    def tasks(self) -> list[ScanTask]:
        """Return one task per fragment, in scan order."""
        return [self.task(fragment) for fragment in self.manifest.fragments]

    def task(self, fragment: table_pb2.DataFragment) -> ScanTask:
        """Return the task that reads one fragment."""
        stable = self.manifest.uses_stable_row_ids
        data = fragment.SerializeToString()
        return ScanTask(self.store, self.root, self.names, self.fields, data, stable, self.bases)

    def tables(self, filter: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield the rows of all tasks in order, in tables of some 64 MB.

        Raises:
            SchemaError, ExpressionError, FormatError, UnsupportedFormatError: see `ScanTask.tables`.
        """
        scan = self if filter is None else self._with_filter_columns(filter)
        for task in scan.tasks():
            for table in task.tables(_TABLE_WINDOW_BYTES, filter):
                yield table if scan is self else _select(table, self.names)

    def batches(
        self, batch_bytes: int, batch_size: int, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all tasks in order as record batches; sizes as in `ScanTask.batches`."""
        scan = self if filter is None else self._with_filter_columns(filter)
        for task in scan.tasks():
            for batch in task.batches(batch_bytes, batch_size, filter):
                out = batch if scan is self else _select_batch(batch, self.names)
                yield out.replace_schema_metadata(self.arrow_schema.metadata)

    def _with_filter_columns(self, filter: pc.Expression) -> Scan:
        """Return the scan that also reads the columns which only the filter names."""
        table_schema = pa.schema([f.described().arrow_field() for f in self.manifest.schema.fields])
        for name in _SYSTEM:
            table_schema = table_schema.append(pa.field(name, pa.uint64()))
        extra = [name for name in filter_columns(filter, table_schema) if name not in self.names]
        return Scan(self.store, self.root, self.manifest, (*self.names, *extra)) if extra else self


def filter_columns(filter: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the top-level columns of `schema` that an expression refers to.

    An expression does not tell its columns, so it is tried on empty tables that lack some of them.

    Raises:
        ExpressionError: the expression does not fit the schema.
    """
    apply_filter(pa.Table.from_batches([], schema), filter)

    def fits_without(names: set[str]) -> bool:
        kept = pa.schema([field for field in schema if field.name not in names])
        try:
            pa.Table.from_batches([], kept).filter(filter)
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            return False
        return True

    def search(names: list[str]) -> list[str]:
        if not names or fits_without(set(names)):
            return []
        if len(names) == 1:
            return names
        half = len(names) // 2
        return search(names[:half]) + search(names[half:])

    return search(list(schema.names))


def apply_filter(table: pa.Table, filter: pc.Expression) -> pa.Table:
    """Return the rows for which an expression is true.

    Raises:
        ExpressionError: it names a column that is not there, or compares what cannot be compared.
    """
    try:
        return movable_table(table).filter(filter)
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ExpressionError(f"the filter {filter} cannot be applied: {error}") from error


def _arrow_schema(names: Sequence[str], fields: Sequence[Field]) -> pa.Schema:
    by_name = {field.name: field.arrow_field() for field in fields}
    system = {name: pa.field(name, pa.uint64()) for name in _SYSTEM}
    return pa.schema([by_name.get(name) or system[name] for name in names])


def rows_without_columns(rows: int) -> pa.Table:
    """Return a table of `rows` rows and no columns."""
    batch = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), rows, [None], children=[])
    )
    return pa.Table.from_batches([batch])


def _as_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the table as one batch; more only where the chunks of a column cannot be joined."""
    if not table.num_columns:
        return [
            pa.RecordBatch.from_struct_array(
                pa.StructArray.from_buffers(pa.struct([]), table.num_rows, [None], children=[])
            )
        ]
    columns = [join(column.chunks) for column in table.columns]
    if all(len(chunks) == 1 for chunks in columns):
        return [pa.RecordBatch.from_arrays([chunks[0] for chunks in columns], schema=table.schema)]
    return list(table.to_batches())


def _select(table: pa.Table, names: Sequence[str]) -> pa.Table:
    return table.select(list(names)) if names else rows_without_columns(table.num_rows)


def _select_batch(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    return batch.select(list(names)) if names else _as_batches(rows_without_columns(batch.num_rows))[0]
