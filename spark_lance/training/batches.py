"""Batches: the rows of each training process and their order. Needs no training package.

A version is split into pieces of adjacent rows. An epoch shuffles the pieces and distributes them to the
shards (one per worker of each rank). A shard loads a few pieces at a time into a buffer, and shuffles its
rows. The seed and the epoch determine the order. So a position has two numbers: the buffer, and the number of
its rows already returned.

`permute_rows` reorders all rows of a table with a single copy if values have a fixed width. Arrow would
concatenate the chunks of a column before taking rows, which copies every value twice. Here each chunk is
written directly to the target positions of its rows.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.datasets.blob_bytes import blob_columns, with_blob_bytes
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.expressions.predicate import Predicate
from spark_lance.file.base.extensions import restore_table_types
from spark_lance.table.reading.fragment_rows import FragmentRows
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import ROW_ADDRESS

_Ints = npt.NDArray[np.int64]
# Value widths in bytes that numpy copies as one machine word.
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def permute_rows(table: pa.Table, order: _Ints) -> pa.Table:
    """Return a table whose row i is row `order[i]` of the input.

    Args:
        table: the rows.
        order: permutation of the row numbers, int64.
    """
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = _scatter(column, places)
        columns.append(pick_rows(table.select([name]), order).column(0) if values is None else values)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _scatter(column: pa.ChunkedArray, places: _Ints) -> pa.Array | None:
    """Return a column with row i at `places[i]`; None if values have no fixed width, or some are null."""
    width = _width(column.type)
    if not width:
        return None
    kind = np.dtype(_WORDS.get(width, f"V{width}"))
    result: npt.NDArray[Any] = np.empty(len(places), kind)
    offset = 0
    for chunk in column.chunks:
        values = _values(chunk)
        if values is None:
            return None
        result[places[offset : offset + len(chunk)]] = _rows(values, len(chunk), kind)
        offset += len(chunk)
    return _array(column.type, len(places), pa.py_buffer(result))


def _width(kind: pa.DataType) -> int:
    """Return the width of a type's values in bytes; 0 if it is not fixed or not whole bytes."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return int(kind.bit_width) // 8
    return 0


def _values(array: pa.Array) -> pa.Array | None:
    """Return the flat numbers of an array or of nested fixed-size lists; None if there are nulls."""
    while not array.null_count:
        if not pa.types.is_fixed_size_list(array.type):
            return array
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
    return None


def _rows(values: pa.Array, count: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a view of Arrow numbers as `count` items of a numpy type."""
    buffer = values.buffers()[1]
    if not count or buffer is None:
        return np.empty(0, kind)
    start = values.offset * (values.type.bit_width // 8)
    return np.frombuffer(buffer, kind, count, start)


def _array(kind: pa.DataType, count: int, data: pa.Buffer) -> pa.Array:
    """Return an Arrow array of `count` fixed-width values over a buffer."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, count, [None, data])
    items = _array(kind.value_type, count * kind.list_size, data)
    return pa.Array.from_buffers(kind, count, [None], children=[items])


_TABLE_BYTES = 64 << 20
# Maximum fragments whose files stay open. Each may keep a decoded page of every column in memory.
_MAX_OPEN_FRAGMENTS = 4

_OpenFragments: TypeAlias = OrderedDict[int, FragmentRows]


@dataclass(frozen=True)
class Position:
    """A position in an epoch: the number of the buffer, and the number of its rows already returned."""

    buffer: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Batches:
    """The rows of a version in batches, for training.

    Attributes:
        dataset: the version.
        batch_size: rows per batch; the last batch of a shard may have fewer.
        columns: names of top-level columns; all by default. Blobs are read as bytes.
        filter: condition that rows must match.
        shuffle: whether each epoch has another order; otherwise rows are in table order.
        seed: seed of the order.
        piece_rows: rows per piece, which are read together.
        buffer_pieces: pieces per buffer. piece_rows * buffer_pieces rows are in memory.
        drop_last: whether to drop a last batch with fewer rows.

    Raises:
        OptionError: a number is below 1.
    """

    dataset: LanceDataset
    batch_size: int = 256
    columns: Sequence[str] | None = None
    filter: Predicate | None = None
    shuffle: bool = False
    seed: int = 0
    piece_rows: int = 2048
    buffer_pieces: int = 16
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "piece_rows", "buffer_pieces"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1")

    def epoch(
        self, number: int = 0, shard: int = 0, shards: int = 1, start: Position | None = None
    ) -> Iterator[tuple[pa.Table, Position]]:
        """Yield the batches of one shard, each with the position after it.

        Args:
            number: number of the epoch.
            shard, shards: the shard to read, and the number of shards.
            start: position to start at; the beginning by default.

        Raises:
            OptionError: the shard does not exist.
            SchemaError: a column does not exist.
        """
        if not 0 <= shard < shards:
            raise OptionError(f"shard {shard} of {shards} does not exist")
        begin = start or Position()
        shard_pieces = _distribute(self._pieces(number), shards)[shard]
        buffers = [
            shard_pieces[i : i + self.buffer_pieces] for i in range(0, len(shard_pieces), self.buffer_pieces)
        ]
        pending: list[pa.Table] = []
        rows = 0
        place = begin
        open_fragments: _OpenFragments = OrderedDict()
        for index in range(begin.buffer, len(buffers)):
            table = self._buffer(buffers[index], (self.seed, number, shard, index), open_fragments)
            rows_taken = begin.rows if index == begin.buffer else 0
            is_contiguous = all(column.num_chunks == 1 for column in table.columns)
            while rows_taken < table.num_rows:
                part = table.slice(rows_taken, self.batch_size - rows)
                pending.append(part)
                rows += part.num_rows
                rows_taken += part.num_rows
                place = Position(index, rows_taken)
                if rows == self.batch_size:
                    yield part if is_contiguous and len(pending) == 1 else _concat_parts(pending), place
                    pending, rows = [], 0
        if pending and not self.drop_last:
            yield _concat_parts(pending), place

    def empty_table(self) -> pa.Table:
        """Return a batch without rows.

        Raises:
            SchemaError: a column does not exist.
        """
        schema = self.dataset.snapshot.scan(list(self._names)).arrow_schema
        for name in self._blobs:
            place = schema.get_field_index(name)
            schema = schema.set(place, pa.field(name, pa.large_binary(), schema.field(place).nullable))
        return restore_table_types(schema.empty_table())

    def _pieces(self, epoch: int) -> list[ScanTask]:
        """Return the pieces of all shards in the order of an epoch."""
        snapshot = self.dataset.snapshot
        names = [*self._names, ROW_ADDRESS] if self._blobs else list(self._names)
        scan = snapshot.scan(names)
        condition = None if self.filter is None else scan.condition(self.filter)
        pieces = []
        for task in scan.plan_tasks(condition):
            total = snapshot.physical_rows(task.message)
            spans = range(0, total, self.piece_rows) if task.selection is None else [0]
            for first in spans:
                last = min(first + self.piece_rows, total) if task.selection is None else total
                pieces.append(replace(task, span=(first, last)))
        if not self.shuffle:
            return pieces
        order = np.random.default_rng((self.seed, epoch)).permutation(len(pieces))
        return [pieces[i] for i in order]

    def _buffer(
        self, pieces: Sequence[ScanTask], seed: tuple[int, ...], open_fragments: _OpenFragments
    ) -> pa.Table:
        """Read pieces and shuffle their rows. Fragments that it opens stay open in `open_fragments`."""
        snapshot = self.dataset.snapshot
        condition = None if self.filter is None else snapshot.scan([]).condition(self.filter)
        if self.shuffle:
            # The rows are shuffled below, so read the pieces of a fragment one after the other.
            pieces = sorted(pieces, key=lambda piece: (piece.message.id, piece.span))
        tables: list[pa.Table] = []
        for number, group in groupby(pieces, lambda piece: piece.message.id):
            fragment_pieces = list(group)
            if number not in open_fragments:
                if len(open_fragments) >= _MAX_OPEN_FRAGMENTS:
                    open_fragments.popitem(last=False)
                open_fragments[number] = fragment_pieces[0].open_rows(condition)
            open_fragments.move_to_end(number)
            runs = [
                piece.span for piece in fragment_pieces if piece.span is not None and piece.selection is None
            ]
            if condition is None and len(runs) == len(fragment_pieces):
                tables.append(fragment_pieces[0].read_runs(_merge_runs(runs), open_fragments[number]))
                continue
            for piece in fragment_pieces:
                tables += piece.tables(_TABLE_BYTES, condition, open_fragments[number])
        if not tables:
            return self.empty_table()
        table = pa.concat_tables(tables)
        if self._blobs:
            table = with_blob_bytes(table, snapshot, self._blobs).select(list(self._names))
        if self.shuffle:
            order: npt.NDArray[np.int64] = np.random.default_rng(seed).permutation(table.num_rows)
            table = permute_rows(table, order)
        return restore_table_types(table)

    @property
    def _names(self) -> tuple[str, ...]:
        if self.columns is not None:
            return tuple(self.columns)
        return tuple(field.name for field in self.dataset.lance_schema.fields)

    @property
    def _blobs(self) -> list[str]:
        return blob_columns(self.dataset.lance_schema, self._names)


def rows_at(dataset: LanceDataset, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows at the given positions, in that order, with blobs as bytes.

    Args:
        dataset: the version.
        rows: positions, 0-based, in scan order.
        columns: names of top-level columns; all by default.

    Raises:
        IndexError: a position is outside the table.
        SchemaError: a column does not exist.
    """
    names = [field.name for field in dataset.lance_schema.fields] if columns is None else list(columns)
    blobs = blob_columns(dataset.lance_schema, tuple(names))
    if not blobs:
        return dataset.take(rows, names)
    table = dataset.take(rows, [*names, ROW_ADDRESS])
    return restore_table_types(with_blob_bytes(table, dataset.snapshot, blobs).select(names))


def _merge_runs(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent runs of rows."""
    result: list[tuple[int, int]] = []
    for start, stop in runs:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def _concat_parts(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of a batch, each column in one chunk if possible."""
    return pa.concat_tables(parts).combine_chunks()


def _distribute(pieces: Sequence[ScanTask], shards: int) -> list[list[ScanTask]]:
    """Distribute pieces to shards. Each piece goes to the shard with the fewest rows so far."""
    pieces_by_shard: list[list[ScanTask]] = [[] for _ in range(shards)]
    totals = [(0, shard) for shard in range(shards)]
    for piece in pieces:
        rows, shard = heapq.heappop(totals)
        pieces_by_shard[shard].append(piece)
        first, last = piece.span or (0, 0)
        heapq.heappush(totals, (rows + last - first, shard))
    return pieces_by_shard
