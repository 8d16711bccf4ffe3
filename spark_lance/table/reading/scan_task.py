"""The rows of one fragment for a scan: a task that can be pickled and runs anywhere.

Without a filter, columns are read in windows of physical rows. With a filter, its columns are read first, in
windows of their own size. The other columns are read piece by piece for the matching rows: as a range if many
rows match, as single rows if few do. The number of rows in a piece follows from its target size in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import (
    filter_rows,
    flags_to_arrow,
    join,
    mask_to_numpy,
)
from spark_lance.errors import ExpressionError, RowNotFoundError
from spark_lance.expressions.predicate import Condition, Predicate, compile_predicate
from spark_lance.file.base.schema import Field
from spark_lance.io.handle_cache import HandleCache
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.deletion import keep_mask
from spark_lance.table.format.rowids import locate_among
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.fragment_rows import (
    Columns,
    FragmentRows,
    batch_without_columns,
    intersect_runs,
    rows_without_columns,
)
from spark_lance.table.reading.system_columns import (
    ROW_ADDRESS,
    ROW_OFFSET,
    SYSTEM_COLUMNS,
    system_field,
    system_names,
)

_MAX_WINDOW_ROWS = 1 << 22
_MIN_ROW_BYTES = 0.125
# The number of tasks that prefetch their first rows from an object store, and the most bytes of these rows.
_AHEAD = 4
_AHEAD_BYTES = 64 << 20
# The estimated Arrow bytes per byte of a file.
_EXPANSION = 4
Item = TypeVar("Item")


class BatchSizer:
    """Chooses the number of rows for a piece of a target size, from an estimate and from the sizes read."""

    def __init__(self, target_bytes: int, row_bytes: float) -> None:
        self._target = target_bytes
        self._row_bytes = max(row_bytes, _MIN_ROW_BYTES)

    def rows(self) -> int:
        """Return the number of rows for the next piece."""
        return int(min(max(1, self._target / self._row_bytes), _MAX_WINDOW_ROWS))

    def update(self, nbytes: int, rows: int) -> None:
        """Adjust the estimate to a piece that was read."""
        # Growth is limited because the next rows may be wider.
        self._row_bytes = max(nbytes / rows, self._row_bytes / 4, _MIN_ROW_BYTES)


def windows(
    rows: FragmentRows, columns: Columns, target_bytes: int, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield runs of physical rows piece by piece, as (start, stop, values)."""
    sizer = BatchSizer(target_bytes, rows.row_bytes(columns))
    for start, end in runs:
        while start < end:
            stop = min(start + sizer.rows(), end)
            table = rows.read(columns, start, stop)
            sizer.update(table.nbytes, stop - start)
            yield start, stop, table
            start = stop


def filter_table(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows of a table for which `keep` is true."""
    if keep.all():
        return table
    if not table.num_columns:
        return rows_without_columns(int(np.count_nonzero(keep)))
    return filter_rows(table, flags_to_arrow(keep))


def rebatch(tables: Iterable[pa.Table], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tables as record batches of at most `batch_size` rows."""
    for table in tables:
        for first in range(0, table.num_rows, batch_size):
            # Arrow does not stop a slice at the end of a table without columns.
            yield from _as_batches(table.slice(first, min(batch_size, table.num_rows - first)))


def read_ahead(
    tasks: Sequence[ScanTask], reads: Iterable[Callable[[], Iterator[Item]]], target_bytes: int
) -> Iterator[Iterator[Item]]:
    """Yield the results of the tasks' reads in order.

    On an object store, the first items are prefetched: while one task is read, the next tasks open their
    files and fetch their first rows. Consume each result before the next one.

    Args:
        tasks: tasks of one scan.
        reads: for each task, the function that starts its read.
        target_bytes: the most bytes of an item. All prefetched items together stay below `_AHEAD_BYTES`.
    """
    if len(tasks) < 2 or tasks[0].store.is_local:
        for read in reads:
            yield read()
        return
    ahead: deque[tuple[int, Future[Iterator[Item]]]] = deque()
    waiting = deque(zip(tasks, reads, strict=True))
    with ThreadPoolExecutor(_AHEAD) as pool:
        try:
            while waiting or ahead:
                while waiting and len(ahead) < _AHEAD:
                    size = min(target_bytes, _EXPANSION * waiting[0][0].file_bytes)
                    if ahead and size + sum(other for other, _ in ahead) > _AHEAD_BYTES:
                        break
                    ahead.append((size, pool.submit(_start_reading, waiting.popleft()[1])))
                yield ahead.popleft()[1].result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_reading(read: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Return the items of a read, with the first item already in memory."""
    items = read()
    return chain(list(islice(items, 1)), items)


def _as_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the table as one batch, or as several if the chunks of a column cannot be joined."""
    if not table.num_columns:
        return [batch_without_columns(table.num_rows)]
    columns = [join(column.chunks) for column in table.columns]
    if all(len(chunks) == 1 for chunks in columns):
        return [pa.RecordBatch.from_arrays([chunks[0] for chunks in columns], schema=table.schema)]
    return list(table.to_batches())


Filter = Predicate | Condition

# Rows are read one by one if the range from the first to the last has more than this many times as many rows.
_SPARSE = 8
# A task of at most this many rows decodes single rows: no later read would use the other rows of its pages.
_SHORT_ROWS = 1 << 12

_OPEN_FRAGMENTS: HandleCache[FragmentRows] = HandleCache()


@dataclass(frozen=True)
class ScanTask(TableRefMixin):
    """The rows of one fragment, for the columns of a scan. Can be pickled; reads no manifest.

    Attributes:
        table: the table.
        names: the output columns in order, including system columns.
        fields: the top-level table fields among them, in the same order.
        fragment: the serialized DataFragment.
        stable_row_ids: whether the table has stable row ids.
        bases: the base paths of the version; None if all files are under the root.
        first_row: the number of live rows in earlier fragments, for `_rowoffset`.
        filter_fields: fields that a filter may read in addition to `fields`. They win over a field of
            `fields` with the same name.
        span: the physical rows [start, stop) that `tables` and `batches` yield; all by default.
        selection: the physical rows that `tables` and `batches` yield, as a serialized Roaring bitmap,
            instead of `span`. Deleted rows and rows beyond the fragment's end are skipped.
    """

    table: TableRef
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    fragment: bytes
    stable_row_ids: bool = False
    bases: Bases | None = None
    first_row: int = 0
    filter_fields: tuple[Field, ...] = ()
    span: tuple[int, int] | None = None
    selection: bytes | None = None

    @cached_property
    def message(self) -> table_pb2.DataFragment:
        """The fragment's message."""
        return table_pb2.DataFragment.FromString(self.fragment)

    @property
    def file_bytes(self) -> int:
        """The total size of the fragment's files in bytes; an upper estimate if the manifest has no size."""
        return sum(file.file_size_bytes or _AHEAD_BYTES for file in self.message.files)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the tables and batches that the task yields."""
        return self._columns.schema

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self.names, self.fields)

    def __getstate__(self) -> dict[str, object]:
        # Computed values are not pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def tables(
        self, target_bytes: int, filter: Filter | None = None, fragment_rows: FragmentRows | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes` Arrow bytes; chunks follow the stored pages.

        Args:
            target_bytes: target size of one table; memory use is about this plus one page per column.
            filter: yield only the rows for which this is true. It may refer to `fields`, `filter_fields`, and
                system columns except `_rowoffset`.
            fragment_rows: the result of `open_rows` for the same filter and a task of the same fragment and
                columns.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
            ExpressionError: the filter does not fit the columns.
        """
        if fragment_rows is None and self.selection is not None:
            row_filter = None if filter is None else self._fit_filter(filter)
            with self._borrow_fragment(self._all_fields(row_filter)) as rows:
                yield from self.tables(target_bytes, row_filter, rows)
            return
        if filter is None and self.selection is not None:
            rows = fragment_rows or self._open(self.fields)
            sizer = BatchSizer(target_bytes, rows.row_bytes(self._columns))
            numbers = self._selected_rows(rows.num_rows, rows.deleted)
            yield from self._read_pieces(rows, None, self._columns, numbers, sizer)
            return
        if filter is None:
            rows = fragment_rows or self._open(self.fields)
            runs = self._runs(rows, None)
            if self.span is not None and 0 < runs[0][1] - runs[0][0] <= _SHORT_ROWS:
                live_offsets = runs[0][0] + np.flatnonzero(keep_mask(rows.deleted, *runs[0]))
                sizer = BatchSizer(target_bytes, rows.row_bytes(self._columns))
                yield from self._read_pieces(rows, None, self._columns, live_offsets, sizer, sparse=True)
                return
            for start, stop, table in windows(rows, self._columns, target_bytes, runs):
                keep = keep_mask(rows.deleted, start, stop)
                live = filter_table(table, keep)
                if live.num_rows:
                    yield live
            return
        condition = self._fit_filter(filter)
        head = self._condition_columns(condition)
        rows = fragment_rows or self._open((*head.fields, *self.fields))
        # Columns of the filter that are also output columns are not read again.
        shared = [name for name in head.names if name in self.names and self._is_same(name, head)]
        rest = self._columns.without(shared)
        sizer = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        for numbers, candidates in self._candidates(rows, head, condition, target_bytes):
            hits = mask_to_numpy(condition.mask(candidates))
            matches = numbers[hits]
            if len(matches):
                read_columns = filter_table(candidates.select(shared), hits) if shared else None
                yield from self._read_pieces(rows, read_columns, rest, matches, sizer)

    def batches(
        self, batch_bytes: int, batch_size: int = 1 << 17, filter: Filter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches of about `batch_bytes` bytes and at most `batch_size` rows.

        Raises:
            FormatError, UnsupportedFormatError, ExpressionError: as `tables`.
        """
        return rebatch(self.tables(batch_bytes, filter), batch_size)

    def slice(self, first: int, limit: int, target_bytes: int) -> Iterator[pa.Table]:
        """Yield up to `limit` live rows from position `first`, reading few rows outside this range.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        sizer = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        start = int(rows.live(np.array([first], np.int64))[0])
        while limit > 0 and start < rows.num_rows:
            stop = min(start + min(sizer.rows(), limit), rows.num_rows)
            table = rows.read(self._columns, start, stop)
            sizer.update(table.nbytes, stop - start)
            live = filter_table(table, keep_mask(rows.deleted, start, stop))
            start, limit = stop, limit - live.num_rows
            if live.num_rows:
                yield live

    def take(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """Return rows by ascending positions, without repeats, among the fragment's live rows.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        return rows.take(self._columns, rows.live(positions))

    def rows(self, offsets: npt.NDArray[np.int64], target_bytes: int) -> Iterator[pa.Table]:
        """Yield rows by ascending physical offsets, deleted or not, in tables of about `target_bytes` bytes.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        sizer = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        yield from self._read_pieces(rows, None, self._columns, offsets, sizer)

    def open_rows(self, condition: Condition | None = None) -> FragmentRows:
        """Open the fragment's files, for several calls of `take_physical`, or of `tables` with a condition.

        Raises:
            FormatError, UnsupportedFormatError, ExpressionError: as `tables`.
        """
        return self._open(
            self.fields if condition is None else (*self._condition_columns(condition).fields, *self.fields)
        )

    def take_physical(
        self, offsets: npt.NDArray[np.int64], fragment_rows: FragmentRows | None = None
    ) -> pa.Table:
        """Return the rows at physical offsets, without deleted rows.

        Args:
            offsets: int64, ascending physical offsets without repeats.
            fragment_rows: the result of `open_rows`, so that files are not opened again.

        Raises:
            IndexError: an offset is beyond the fragment's end.
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = fragment_rows or self.open_rows()
        if len(offsets) and int(offsets[-1]) >= rows.num_rows:
            raise RowNotFoundError(
                f"row {int(offsets[-1])} of fragment {self.message.id}, which has {rows.num_rows} rows"
            )
        if len(rows.deleted):
            deleted_positions, _ = locate_among(offsets, rows.deleted.astype(np.int64))
            offsets = np.delete(offsets, deleted_positions)
        return rows.take(self._columns, offsets)

    def read_runs(self, runs: Sequence[tuple[int, int]], fragment_rows: FragmentRows) -> pa.Table:
        """Return the live rows of runs of physical rows.

        Args:
            runs: at least one run [start, stop); ascending, not overlapping.
            fragment_rows: the result of `open_rows`.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        keep = np.concatenate([keep_mask(fragment_rows.deleted, *run) for run in runs])
        return filter_table(fragment_rows.read_runs(self._columns, runs), keep)

    def runs(self, condition: Condition) -> tuple[list[tuple[int, int]], int]:
        """Return the runs of physical rows that page statistics do not exclude, and the fragment's row count.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open((*self._condition_columns(condition).fields, *self.fields))
        return self._runs(rows, condition), rows.num_rows

    def stored_bytes(self, condition: Condition | None) -> int:
        """Return the stored bytes of the columns that the task and the condition read.

        Opens the fragment's files, but reads no pages.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        fields = self._all_fields(condition)
        return self._open(fields).stored_bytes(fields)

    def _all_fields(self, condition: Condition | None) -> tuple[Field, ...]:
        head = () if condition is None else self._condition_columns(condition).fields
        return tuple(dict.fromkeys((*head, *self.fields)))

    def _candidates(
        self, rows: FragmentRows, head: Columns, condition: Condition, target_bytes: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
        """Yield the live rows that may match a condition: physical offsets, and the condition's columns."""
        if self.selection is None:
            for start, stop, table in windows(rows, head, target_bytes, self._runs(rows, condition)):
                keep = keep_mask(rows.deleted, start, stop)
                yield start + np.flatnonzero(keep), filter_table(table, keep)
            return
        numbers = self._selected_rows(rows.num_rows, rows.deleted)
        offset = 0
        for table in self._read_pieces(
            rows, None, head, numbers, BatchSizer(target_bytes, rows.row_bytes(head))
        ):
            yield numbers[offset : offset + table.num_rows], table
            offset += table.num_rows

    def _selected_rows(self, num_rows: int, deleted: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the physical offsets of the live rows in `selection`, ascending."""
        bitmap = BitMap.deserialize(self.selection or BitMap().serialize())
        numbers = np.array(bitmap, dtype=np.uint32).astype(np.int64)
        numbers = numbers[: np.searchsorted(numbers, num_rows)]
        deleted_positions, _ = locate_among(numbers, deleted.astype(np.int64))
        return np.delete(numbers, deleted_positions)

    def _runs(self, rows: FragmentRows, condition: Condition | None) -> list[tuple[int, int]]:
        """Return the runs of physical rows in the span that may match the condition."""
        start, stop = (0, rows.num_rows) if self.span is None else self.span
        runs = [(start, min(stop, rows.num_rows))]
        for path, comparison, value in () if condition is None else condition.comparisons():
            runs = intersect_runs(runs, rows.runs_maybe(path, comparison, value))
        return runs

    def _open(self, fields: tuple[Field, ...]) -> FragmentRows:
        return FragmentRows(
            self.table,
            self.message,
            fields,
            bases=self.bases,
            stable_row_ids=self.stable_row_ids,
            first_row=self.first_row,
        )

    @contextmanager
    def _borrow_fragment(self, fields: tuple[Field, ...]) -> Iterator[FragmentRows]:
        """Open the fragment's files for a read of single rows; local files stay open for the next read."""
        if not self.store.is_local:
            yield self._open(fields)
            return
        base_paths = () if self.bases is None else self.bases.others
        location = self.store.cache_key(self.root)
        key = (location, base_paths, self.fragment, fields, self.stable_row_ids, self.first_row)
        rows = _OPEN_FRAGMENTS.take(key)
        if rows is None or not rows.begin_again():
            rows = self._open(fields)
        yield rows
        if rows.is_light():
            _OPEN_FRAGMENTS.give(key, rows)

    def _fields_by_name(self) -> dict[str, Field]:
        return {field.name: field for field in (*self.fields, *self.filter_fields)}

    def _fit_filter(self, filter: Filter) -> Condition:
        if isinstance(filter, Condition):
            return filter
        columns = [field.arrow_field() for field in self._fields_by_name().values()]
        system = [system_field(n) for n in system_names(self._fields_by_name()) if n != ROW_OFFSET]
        return compile_predicate(filter, pa.schema([*columns, *system]))

    def _condition_columns(self, condition: Condition) -> Columns:
        """Return the columns that a condition reads; `_rowaddr`, which needs no read, if it reads none."""
        readable = self._fields_by_name()
        if unknown := set(condition.columns) - readable.keys() - set(SYSTEM_COLUMNS):
            raise ExpressionError(
                f"the filter {condition.text} names {', '.join(sorted(unknown))}, which is not being read"
            )
        names = condition.columns or (ROW_ADDRESS,)
        return Columns(names, tuple(readable[name] for name in names if name in readable))

    def _is_same(self, name: str, head: Columns) -> bool:
        same_name = [field for field in self.fields if field.name == name]
        return same_name == [field for field in head.fields if field.name == name]

    def _read_pieces(
        self,
        rows: FragmentRows,
        read_columns: pa.Table | None,
        rest: Columns,
        positions: npt.NDArray[np.int64],
        sizer: BatchSizer,
        sparse: bool = False,
    ) -> Iterator[pa.Table]:
        """Yield the output columns of physical rows.

        Args:
            rows: the open fragment.
            read_columns: columns that have been read already; None if all columns are still to be read.
            rest: the other columns.
            positions: physical offsets, ascending.
            sizer: chooses the number of rows in a piece.
            sparse: whether to read rows one by one even if they are near each other.
        """
        offset = 0
        while offset < len(positions):
            count = sizer.rows()
            piece = positions[offset : offset + count]
            if sparse or piece[-1] - piece[0] >= _SPARSE * len(piece):
                table = rows.take(rest, piece)
            else:
                piece = piece[: np.searchsorted(piece, piece[0] + count)]
                keep = np.zeros(piece[-1] + 1 - piece[0], np.bool_)
                keep[piece - piece[0]] = True
                table = filter_table(rows.read(rest, int(piece[0]), int(piece[-1]) + 1), keep)
            if read_columns is not None:
                part = read_columns.slice(offset, len(piece))
                columns = [(part if name in part.column_names else table)[name] for name in self.names]
                table = pa.Table.from_arrays(columns, schema=self.arrow_schema)
            sizer.update(table.nbytes, len(piece))
            yield table
            offset += len(piece)
