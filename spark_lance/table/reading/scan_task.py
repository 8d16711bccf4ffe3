"""The rows of one fragment for a scan: a task that can be pickled and runs anywhere.

Without a filter, columns are read in windows of physical rows. With one, the columns that it reads come
first, in windows of their own size; the others follow for the rows that are left, piece by piece: a range
with its gaps where many rows are left, single rows where few are. A piece has as many rows as take about so
many bytes.
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
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.arrow.arrays import filter_rows, join
from spark_lance.errors import ExpressionError, RowNotFoundError
from spark_lance.expressions.predicate import Condition, Predicate, compile_predicate
from spark_lance.file.base.schema import Field
from spark_lance.io.handle_cache import HandleCache
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.deletion import keep_mask
from spark_lance.table.format.rowids import locate_among
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.reading.fragment_rows import (
    Columns,
    FragmentRows,
    batch_without_columns,
    common_runs,
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
# Tasks of an object store that fetch their first rows while others are read, and the bytes of these rows.
_AHEAD = 4
_AHEAD_BYTES = 64 << 20
# Bytes in memory for a byte of a file, about.
_EXPANSION = 4
Item = TypeVar("Item")


class BatchSizer:
    """The number of rows in a piece of a given size: first by an estimate, then by what was read."""

    def __init__(self, target_bytes: int, row_bytes: float) -> None:
        self._target = target_bytes
        self._row_bytes = max(row_bytes, _MIN_ROW_BYTES)

    def rows(self) -> int:
        """Return how many rows the next piece has."""
        return int(min(max(1, self._target / self._row_bytes), _MAX_WINDOW_ROWS))

    def saw(self, nbytes: int, rows: int) -> None:
        """Learn from a piece that was read: its bytes and rows."""
        # Growth is limited, for the next rows may be wider.
        self._row_bytes = max(nbytes / rows, self._row_bytes / 4, _MIN_ROW_BYTES)


def windows(
    rows: FragmentRows, columns: Columns, target_bytes: int, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield runs of physical rows piece by piece: first row, row after the last, and their values."""
    pace = BatchSizer(target_bytes, rows.row_bytes(columns))
    for start, end in runs:
        while start < end:
            stop = min(start + pace.rows(), end)
            table = rows.read(columns, start, stop)
            pace.saw(table.nbytes, stop - start)
            yield start, stop, table
            start = stop


def kept_of(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows of a table for which `keep` is true."""
    if keep.all():
        return table
    if not table.num_columns:
        return rows_without_columns(int(np.count_nonzero(keep)))
    return filter_rows(table, pa.array(keep))


def in_batches(tables: Iterable[pa.Table], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tables as record batches of at most `batch_size` rows."""
    for table in tables:
        for first in range(0, table.num_rows, batch_size):
            # Arrow does not stop a slice at the end of a table without columns.
            yield from _as_batches(table.slice(first, min(batch_size, table.num_rows - first)))


def read_ahead(
    tasks: Sequence[ScanTask], reads: Iterable[Callable[[], Iterator[Item]]], target_bytes: int
) -> Iterator[Iterator[Item]]:
    """Yield the results of the reads of tasks in order.

    On an object store the first item of each result comes ahead: while one task is read, the next ones open
    their files and fetch their first rows. Consume each result before the next one.

    Args:
        tasks: tasks of one scan.
        reads: for each task, the function that begins its read.
        target_bytes: the most bytes of an item; those of all items that are ahead stay below `_AHEAD_BYTES`.
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
    """Return the items of a read whose first one is in memory."""
    items = read()
    return chain(list(islice(items, 1)), items)


def _as_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the table as one batch; more only where the chunks of a column cannot be joined."""
    if not table.num_columns:
        return [batch_without_columns(table.num_rows)]
    columns = [join(column.chunks) for column in table.columns]
    if all(len(chunks) == 1 for chunks in columns):
        return [pa.RecordBatch.from_arrays([chunks[0] for chunks in columns], schema=table.schema)]
    return list(table.to_batches())


Filter = Predicate | Condition

# Rows are read one by one if reading those between them, too, would make more than this many times as many.
_SPARSE = 8
# A task of so few rows is all that is read of its pages: nothing that follows makes up for decoding more.
_SHORT_ROWS = 1 << 12

_HELD: HandleCache[FragmentRows] = HandleCache()


@dataclass(frozen=True)
class ScanTask(OfTable):
    """The rows of one fragment, for the columns of a scan. Can be pickled; reads no manifest.

    Attributes:
        table: the table.
        names: the output columns in order, system columns too.
        fields: the top-level table fields among them, in the same order.
        fragment: the serialized DataFragment.
        stable_row_ids: whether the table has stable row ids.
        bases: where the fragment's files are, if not all under the root.
        first_row: live rows in the fragments before this one, for `_rowoffset`.
        filter_fields: fields that a filter may read beside `fields`; they go before those of the same name.
        span: the physical rows [start, stop) that `tables` and `batches` yield; all by default.
        selection: the physical rows that they yield if they are live, as a serialized Roaring bitmap; instead
            of `span`. Numbers that the fragment does not have are left out.
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
        """The bytes of the fragment's files, as far as the manifest has them."""
        return sum(file.file_size_bytes or _AHEAD_BYTES for file in self.message.files)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of everything that the task yields."""
        return self._columns.schema

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self.names, self.fields)

    def __getstate__(self) -> dict[str, object]:
        # Computed values are not pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def tables(
        self, target_bytes: int, filter: Filter | None = None, opened: FragmentRows | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes` Arrow bytes; chunks follow the stored pages.

        Args:
            target_bytes: bytes of one table; memory stays near it plus one page a column.
            filter: keep the rows for which this is true; it may name the columns in `fields` and
                `filter_fields`, and system columns but `_rowoffset`.
            opened: what `opened` gave for the same filter and a task of the same fragment and columns.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
            ExpressionError: the filter does not fit the columns.
        """
        if opened is None and self.selection is not None:
            row_filter = None if filter is None else self._fit_filter(filter)
            with self._lent(self._all_fields(row_filter)) as rows:
                yield from self.tables(target_bytes, row_filter, rows)
            return
        if filter is None and self.selection is not None:
            rows = opened or self._open(self.fields)
            pace = BatchSizer(target_bytes, rows.row_bytes(self._columns))
            numbers = self._selected(rows.num_rows, rows.deleted)
            yield from self._complete(rows, None, self._columns, numbers, pace)
            return
        if filter is None:
            rows = opened or self._open(self.fields)
            runs = self._runs(rows, None)
            if self.span is not None and 0 < runs[0][1] - runs[0][0] <= _SHORT_ROWS:
                alive = runs[0][0] + np.flatnonzero(keep_mask(rows.deleted, *runs[0]))
                pace = BatchSizer(target_bytes, rows.row_bytes(self._columns))
                yield from self._complete(rows, None, self._columns, alive, pace, sparse=True)
                return
            for start, stop, table in windows(rows, self._columns, target_bytes, runs):
                keep = keep_mask(rows.deleted, start, stop)
                live = kept_of(table, keep)
                if live.num_rows:
                    yield live
            return
        condition = self._fit_filter(filter)
        head = self._head(condition)
        rows = opened or self._open((*head.fields, *self.fields))
        # Columns that the filter reads as they are wanted need not be read again.
        shared = [name for name in head.names if name in self.names and self._is_same(name, head)]
        rest = self._columns.without(shared)
        pace = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        for numbers, candidates in self._candidates(rows, head, condition, target_bytes):
            hits = _true(condition.mask(candidates))
            matches = numbers[hits]
            if len(matches):
                read_columns = kept_of(candidates.select(shared), hits) if shared else None
                yield from self._complete(rows, read_columns, rest, matches, pace)

    def batches(
        self, batch_bytes: int, batch_size: int = 1 << 17, filter: Filter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches of about `batch_bytes` bytes and at most `batch_size` rows.

        Raises:
            FormatError, UnsupportedFormatError, ExpressionError: as `tables`.
        """
        return in_batches(self.tables(batch_bytes, filter), batch_size)

    def slice(self, first: int, limit: int, target_bytes: int) -> Iterator[pa.Table]:
        """Yield at most `limit` of the live rows from position `first` on, and read hardly more than these.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        pace = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        start = int(rows.live(np.array([first], np.int64))[0])
        while limit > 0 and start < rows.num_rows:
            stop = min(start + min(pace.rows(), limit), rows.num_rows)
            table = rows.read(self._columns, start, stop)
            pace.saw(table.nbytes, stop - start)
            live = kept_of(table, keep_mask(rows.deleted, start, stop))
            start, limit = stop, limit - live.num_rows
            if live.num_rows:
                yield live

    def take(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """Return rows by their ascending positions, without repeats, among the fragment's live rows.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        return rows.take(self._columns, rows.live(positions))

    def rows(self, offsets: npt.NDArray[np.int64], target_bytes: int) -> Iterator[pa.Table]:
        """Yield rows by ascending physical number, deleted or not, in tables of about `target_bytes` bytes.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open(self.fields)
        pace = BatchSizer(target_bytes, rows.row_bytes(self._columns))
        yield from self._complete(rows, None, self._columns, offsets, pace)

    def opened(self, condition: Condition | None = None) -> FragmentRows:
        """Open the fragment's files, for several calls of `take_physical`, or of `tables` with a condition.

        Raises:
            FormatError, UnsupportedFormatError, ExpressionError: as `tables`.
        """
        return self._open(self.fields if condition is None else (*self._head(condition).fields, *self.fields))

    def take_physical(self, offsets: npt.NDArray[np.int64], opened: FragmentRows | None = None) -> pa.Table:
        """Return those of the rows with ascending physical numbers, without repeats, that are not deleted.

        Args:
            offsets: the numbers.
            opened: what `opened` returned, so that files are not opened again.

        Raises:
            IndexError: the fragment has no such row.
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = opened or self.opened()
        if len(offsets) and int(offsets[-1]) >= rows.num_rows:
            raise RowNotFoundError(
                f"row {int(offsets[-1])} of fragment {self.message.id}, which has {rows.num_rows} rows"
            )
        if len(rows.deleted):
            gone, _ = locate_among(offsets, rows.deleted.astype(np.int64))
            offsets = np.delete(offsets, gone)
        return rows.take(self._columns, offsets)

    def read_runs(self, runs: Sequence[tuple[int, int]], opened: FragmentRows) -> pa.Table:
        """Return the physical rows of some runs that are not deleted.

        Args:
            runs: [start, stop), ascending, at least one; they do not overlap.
            opened: what `opened` returned.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        keep = np.concatenate([keep_mask(opened.deleted, *run) for run in runs])
        return kept_of(opened.read_runs(self._columns, runs), keep)

    def runs(self, condition: Condition) -> tuple[list[tuple[int, int]], int]:
        """Return the runs of physical rows whose pages a condition may keep, and the rows there are.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        rows = self._open((*self._head(condition).fields, *self.fields))
        return self._runs(rows, condition), rows.num_rows

    def stored_bytes(self, condition: Condition | None) -> int:
        """Return how many bytes the columns that are read, for a condition too, take in the fragment's files.

        Opens these and reads no page.

        Raises:
            FormatError, UnsupportedFormatError: as `tables`.
        """
        fields = self._all_fields(condition)
        return self._open(fields).stored_bytes(fields)

    def _all_fields(self, condition: Condition | None) -> tuple[Field, ...]:
        head = () if condition is None else self._head(condition).fields
        return tuple(dict.fromkeys((*head, *self.fields)))

    def _candidates(
        self, rows: FragmentRows, head: Columns, condition: Condition, target_bytes: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
        """Yield the live rows that may match a condition: their numbers, and the columns of the condition."""
        if self.selection is None:
            for start, stop, table in windows(rows, head, target_bytes, self._runs(rows, condition)):
                keep = keep_mask(rows.deleted, start, stop)
                yield start + np.flatnonzero(keep), kept_of(table, keep)
            return
        numbers = self._selected(rows.num_rows, rows.deleted)
        offset = 0
        for table in self._complete(
            rows, None, head, numbers, BatchSizer(target_bytes, rows.row_bytes(head))
        ):
            yield numbers[offset : offset + table.num_rows], table
            offset += table.num_rows

    def _selected(self, num_rows: int, deleted: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the live rows among `selection`, ascending."""
        bitmap = BitMap.deserialize(self.selection or BitMap().serialize())
        numbers = np.array(bitmap, dtype=np.uint32).astype(np.int64)
        numbers = numbers[: np.searchsorted(numbers, num_rows)]
        gone, _ = locate_among(numbers, deleted.astype(np.int64))
        return np.delete(numbers, gone)

    def _runs(self, rows: FragmentRows, condition: Condition | None) -> list[tuple[int, int]]:
        """Return the runs of physical rows to look at: those of the span that the condition may keep."""
        start, stop = (0, rows.num_rows) if self.span is None else self.span
        runs = [(start, min(stop, rows.num_rows))]
        for path, comparison, value in () if condition is None else condition.comparisons():
            runs = common_runs(runs, rows.runs_maybe(path, comparison, value))
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
    def _lent(self, fields: tuple[Field, ...]) -> Iterator[FragmentRows]:
        """Open the fragment's files for a read of single rows; local ones stay open for the next one."""
        if not self.store.is_local:
            yield self._open(fields)
            return
        others = () if self.bases is None else self.bases.others
        place = self.store.cache_key(self.root)
        key = (place, others, self.fragment, fields, self.stable_row_ids, self.first_row)
        rows = _HELD.take(key)
        if rows is None or not rows.begin_again():
            rows = self._open(fields)
        yield rows
        if rows.is_light():
            _HELD.give(key, rows)

    def _readable(self) -> dict[str, Field]:
        return {field.name: field for field in (*self.fields, *self.filter_fields)}

    def _fit_filter(self, filter: Filter) -> Condition:
        if isinstance(filter, Condition):
            return filter
        columns = [field.arrow_field() for field in self._readable().values()]
        system = [system_field(n) for n in system_names(self._readable()) if n != ROW_OFFSET]
        return compile_predicate(filter, pa.schema([*columns, *system]))

    def _head(self, condition: Condition) -> Columns:
        """Return the columns that a condition reads; one that costs nothing if it reads none."""
        readable = self._readable()
        if unknown := set(condition.columns) - readable.keys() - set(SYSTEM_COLUMNS):
            raise ExpressionError(
                f"the filter {condition.text} names {', '.join(sorted(unknown))}, which is not being read"
            )
        names = condition.columns or (ROW_ADDRESS,)
        return Columns(names, tuple(readable[name] for name in names if name in readable))

    def _is_same(self, name: str, head: Columns) -> bool:
        same_name = [field for field in self.fields if field.name == name]
        return same_name == [field for field in head.fields if field.name == name]

    def _complete(
        self,
        rows: FragmentRows,
        read_columns: pa.Table | None,
        rest: Columns,
        positions: npt.NDArray[np.int64],
        pace: BatchSizer,
        sparse: bool = False,
    ) -> Iterator[pa.Table]:
        """Yield the output columns of physical rows; `read_columns` has some columns already.

        Args:
            rows: the fragment's.
            read_columns, rest: the columns that are read already, and the others.
            positions: the rows' numbers, ascending.
            pace: determines the number of rows in a piece.
            sparse: whether rows are read one by one even if they are near each other.
        """
        offset = 0
        while offset < len(positions):
            count = pace.rows()
            piece = positions[offset : offset + count]
            if sparse or piece[-1] - piece[0] >= _SPARSE * len(piece):
                table = rows.take(rest, piece)
            else:
                piece = piece[: np.searchsorted(piece, piece[0] + count)]
                keep = np.zeros(piece[-1] + 1 - piece[0], np.bool_)
                keep[piece - piece[0]] = True
                table = kept_of(rows.read(rest, int(piece[0]), int(piece[-1]) + 1), keep)
            if read_columns is not None:
                part = read_columns.slice(offset, len(piece))
                columns = [(part if name in part.column_names else table)[name] for name in self.names]
                table = pa.Table.from_arrays(columns, schema=self.arrow_schema)
            pace.saw(table.nbytes, len(piece))
            yield table
            offset += len(piece)


def _true(mask: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return where a mask is true; null counts as false."""
    values: npt.NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy()
    return values
