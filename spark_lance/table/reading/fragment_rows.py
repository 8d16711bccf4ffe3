"""The rows of one fragment by physical number: columns, system columns, and which rows are deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_arrow
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import row_addresses
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment import FragmentReader
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, UPDATED_AT, LineageReader
from spark_lance.table.reading.system_columns import (
    FRAGMENT_ID,
    ROW_ADDRESS,
    ROW_OFFSET,
    SYSTEM_COLUMNS,
    system_field,
)

UInt64Array = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_SYSTEM_BYTES = 8
_FIRST_VERSION = 1


@dataclass(frozen=True)
class Columns:
    """Columns to read: their names and, without the system columns, their fields, both in order."""

    names: tuple[str, ...]
    fields: tuple[Field, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        by_name = {field.name: field.arrow_field() for field in self.fields}
        return pa.schema([by_name.get(name) or system_field(name) for name in self.names])

    def without(self, names: Sequence[str]) -> Columns:
        """Return the other columns."""
        return Columns(
            tuple(name for name in self.names if name not in names),
            tuple(field for field in self.fields if field.name not in names),
        )


class FragmentRows:
    """Reads rows of one fragment.

    Args:
        table: the table of the fragment.
        fragment: the fragment's message.
        fields: the fields that will be read.
        bases: the version's base paths.
        stable_row_ids: whether the table has stable row ids.
        first_row: the number of live rows in earlier fragments, for `_rowoffset`.

    Raises:
        FormatError, UnsupportedFormatError: as `FragmentReader`.
    """

    def __init__(
        self,
        table: TableRef,
        fragment: table_pb2.DataFragment,
        fields: Sequence[Field],
        *,
        bases: Bases | None = None,
        stable_row_ids: bool = False,
        first_row: int = 0,
    ) -> None:
        self._table_ref, self._fragment, self._bases = table, fragment, bases
        self._stable = stable_row_ids
        self._first_row = first_row
        self._lineage: dict[str, LineageReader] = {}
        self._reader = FragmentReader(table, fragment, list(dict.fromkeys(fields)), bases)
        self.num_rows = self._reader.num_rows

    def is_light(self) -> bool:
        """Return whether the reader holds only open local files and deletions, and no decoded pages."""
        return not self._lineage and self._reader.is_light()

    def begin_again(self) -> bool:
        """Return whether the reader can be used again, see `FragmentReader.begin_again`."""
        return self._reader.begin_again()

    @cached_property
    def deleted(self) -> npt.NDArray[np.uint32]:
        """The deleted rows, ascending.

        Raises:
            FormatError, UnsupportedFormatError: see `read_deletions`.
        """
        return read_deletions(self._table_ref, self._fragment, self.num_rows, self._bases)

    def live(self, positions: Rows) -> Rows:
        """Return the physical offsets of rows from their ascending positions among the live rows."""
        deleted = self.deleted.astype(np.int64)
        # deleted[k] - k live rows precede the k-th deleted row.
        physical: Rows = positions + np.searchsorted(
            deleted - np.arange(len(deleted)), positions, side="right"
        )
        return physical

    def runs_maybe(self, path: Sequence[str], comparison: str, value: Any) -> list[tuple[int, int]]:
        """Return the runs of rows that may match a comparison, see `FragmentReader.runs_maybe`."""
        return self._reader.runs_maybe(path, comparison, value)

    def stored_bytes(self, fields: Sequence[Field]) -> int:
        """Return the stored size of some fields in bytes."""
        return self._reader.stored_bytes(fields)

    def row_bytes(self, columns: Columns) -> float:
        """Return an estimate of the Arrow bytes of one row."""
        system = len(columns.names) - len(columns.fields)
        return self._reader.row_bytes(columns.fields) + _SYSTEM_BYTES * system

    def read(self, columns: Columns, start: int, stop: int) -> pa.Table:
        """Return physical rows [start, stop), deleted rows included.

        Raises:
            FormatError, UnsupportedFormatError: a page is damaged or its encoding is not supported.
        """
        if not columns.names:
            return rows_without_columns(stop - start)
        values = self._reader.read(start, stop, columns.fields)
        # Only system columns need the offsets, which take as much memory as a column.
        has_system = any(name in SYSTEM_COLUMNS for name in columns.names)
        rows = np.arange(start, stop if has_system else start, dtype=np.int64)
        return self._assemble(columns, values, rows, lambda lineage: lineage.read(start, stop))

    def read_runs(self, columns: Columns, runs: Sequence[tuple[int, int]]) -> pa.Table:
        """Return the physical rows of ascending runs [start, stop), including deleted; errors as `read`."""
        rows = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in runs])
        if not columns.names:
            return rows_without_columns(len(rows))
        values = self._reader.read_runs(runs, columns.fields)
        return self._assemble(columns, values, rows, lambda lineage: lineage.take(rows))

    def take(self, columns: Columns, rows: Rows) -> pa.Table:
        """Return physical rows by ascending offsets without repeats; raises the errors of `read`."""
        values = self._reader.take(rows, columns.fields)
        return self._assemble(columns, values, rows, lambda lineage: lineage.take(rows))

    def _assemble(
        self,
        columns: Columns,
        values: Sequence[pa.ChunkedArray],
        rows: Rows,
        read: Callable[[LineageReader], UInt64Array],
    ) -> pa.Table:
        if not columns.names:
            return rows_without_columns(len(rows))
        by_name: dict[str, pa.ChunkedArray | pa.Array] = {
            field.name: column for field, column in zip(columns.fields, values, strict=True)
        }
        for name in columns.names:
            if name in SYSTEM_COLUMNS and name not in by_name:
                by_name[name] = numbers_to_arrow(self._system_column(name, rows, read))
        return pa.Table.from_arrays([by_name[name] for name in columns.names], schema=columns.schema)

    def _system_column(
        self, name: str, rows: Rows, read: Callable[[LineageReader], UInt64Array]
    ) -> UInt64Array:
        if name == ROW_OFFSET:
            before = np.searchsorted(self.deleted, rows.astype(np.uint32))
            return (self._first_row + rows - before).astype(np.uint64)
        if name == ROW_ADDRESS or (name == ROW_ID and not self._stable):
            return row_addresses(self._fragment.id, rows)
        if name == FRAGMENT_ID:
            return np.full(len(rows), self._fragment.id, np.uint64)
        if name in (CREATED_AT, UPDATED_AT) and not self._stable:
            return np.full(len(rows), _FIRST_VERSION, np.uint64)
        if name not in self._lineage:
            self._lineage[name] = LineageReader(
                self._table_ref, self._fragment, name, self.num_rows, self._bases
            )
        return read(self._lineage[name])


def intersect_runs(
    left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the intersection of two lists of ascending runs [start, stop)."""
    runs = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            runs.append((start, stop))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return runs


def rows_without_columns(rows: int) -> pa.Table:
    """Return a table of `rows` rows and no columns."""
    return pa.Table.from_batches([batch_without_columns(rows)])


def batch_without_columns(rows: int) -> pa.RecordBatch:
    """Return a record batch of `rows` rows and no columns, which pyarrow makes only from a struct array."""
    array = pa.StructArray.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.RecordBatch.from_struct_array(array)
