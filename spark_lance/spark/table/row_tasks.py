"""The Spark tasks of row-level changes: they collect deleted rows, and write changed and new rows.

A task gets row addresses (`_rowaddr`: fragment << 32 | physical row) and new values that Spark has computed.
It reads the other columns of these rows from the table. So these columns never pass through Spark, and types
that Spark lacks are preserved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.arrow.arrays import pick_rows
from spark_lance.file.base.schema import Schema
from spark_lance.spark.schema.string_types import DeclaredTypeChecks
from spark_lance.table.format.row_set import Addresses, address_offsets, row_address, runs_by_fragment
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.rows.key_lookup import key_filter, key_hashes
from spark_lance.table.rows.row_rewrites import CarriedRowIds, whole_rows, write_moved
from spark_lance.table.writing.align import Aligner

# Limits of new values to buffer before the other columns of their rows are read.
_WINDOW_BYTES = 32 << 20
_WINDOW_ROWS = 1 << 19
_PIECE_BYTES = 16 << 20
# Maximum bytes of inserted key hashes that one task reports (131,072 rows).
_INSERTED_BYTES = 1 << 20


@dataclass(frozen=True)
class Action:
    """An action of an update or merge.

    Attributes:
        kind: "update", "insert" or "delete".
        columns: names of the columns that get values, in the table's spelling.
        places: positions of their values among the value columns.
    """

    kind: str
    columns: tuple[str, ...] = ()
    places: tuple[int, ...] = ()


@dataclass
class TaskAnswer:
    """The result of a task.

    Attributes:
        rows: fragment id -> serialized bitmap of the rows that are deleted or moved.
        fragments: serialized messages of new fragments.
        counts: kind of action -> number of rows.
        keys: bits of the Bloom filter of inserted keys; None without a filter.
        doubled: address of a row that matched twice; the task stopped there.
        inserted: hashes of the primary keys of inserted rows, if these must be unique.
        uncounted: whether the task inserted too many rows to report their hashes.
    """

    rows: dict[int, bytes] = field(default_factory=dict)
    fragments: list[bytes] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"update": 0, "insert": 0, "delete": 0})
    keys: bytes | None = None
    doubled: int | None = None
    inserted: bytes = b""
    uncounted: bool = False


@dataclass
class _MarkedRows:
    """A set of deleted or moved rows by fragment.

    Attributes:
        repeated: whether a row may be added more than once.
        doubled: address of a row that was added twice although `repeated` is false.
    """

    repeated: bool
    doubled: int | None = None
    rows: dict[int, BitMap] = field(default_factory=dict)

    def add(self, addresses: Addresses) -> bool:
        """Add rows; return False if a row is added twice although `repeated` is false."""
        for number, part in runs_by_fragment(addresses):
            more = BitMap(address_offsets(addresses[part]))
            rows = self.rows.setdefault(number, BitMap())
            if not self.repeated and len(more) < part.stop - part.start:
                self.doubled = _find_duplicate(addresses[part])
                return False
            if not self.repeated and (both := rows & more):
                self.doubled = row_address(number, both.min())
                return False
            rows |= more
        return True

    def answer(self) -> dict[int, bytes]:
        return {number: bitmap.serialize() for number, bitmap in self.rows.items()}


@dataclass(frozen=True)
class MarkRows:
    """The task of a delete: collects the row addresses in the first column."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskAnswer]:
        """Yield one answer."""
        marks = _MarkedRows(repeated=True)
        count = 0
        for batch in batches:
            marks.add(_addresses(batch.column(0)))
            count += batch.num_rows
        if count:
            answer = TaskAnswer(rows=marks.answer())
            answer.counts["delete"] = sum(map(len, marks.rows.values()))
            yield answer


@dataclass(frozen=True)
class ChangeRows:
    """The task of an update or a merge.

    Input batches have the columns: index of the action in `actions`, row address (null for inserted rows),
    and the value columns. Updated rows must come before inserted rows. Updates of one action are fastest in
    address order.

    Attributes:
        pinned: the version of the rows.
        actions: the actions of the operation.
        operation: 16 hexadecimal digits in the names of all new files.
        key: columns whose inserted values go into the commit's key filter; None for no filter.
        repeated: whether a row may match several times, because every match deletes it.
        unique: primary key columns, if two inserted rows must not have the same key.
    """

    pinned: SnapshotRef
    actions: tuple[Action, ...]
    operation: str
    key: tuple[str, ...] | None = None
    repeated: bool = False
    unique: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskAnswer]:
        """Yield one answer, or none if there are no rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        yield _ChangeTask.of(self).run(_chain(first, batches))


@dataclass
class _ChangeTask:
    """The state of a running `ChangeRows` task."""

    work: ChangeRows
    at: Snapshot
    ids: CarriedRowIds
    marks: _MarkedRows
    answer: TaskAnswer
    # Index of an action -> its conversion, and CHAR and VARCHAR checks, which Spark does only in SQL.
    aligners: dict[int, tuple[Aligner, DeclaredTypeChecks]] = field(default_factory=dict)

    @classmethod
    def of(cls, work: ChangeRows) -> _ChangeTask:
        at = work.pinned.load()
        return cls(work, at, CarriedRowIds(at), _MarkedRows(work.repeated), TaskAnswer())

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskAnswer:
        tables = self._rows_to_write(batches)
        operation = self.work.operation
        fragments = write_moved(self.at, tables, self.ids, operation)
        self.answer.fragments = [fragment.SerializeToString() for fragment in fragments]
        self.answer.rows = self.marks.answer()
        self.answer.doubled = self.marks.doubled
        deleted = sum(map(len, self.marks.rows.values())) - self.answer.counts["update"]
        self.answer.counts["delete"] = deleted
        return self.answer

    def _rows_to_write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the rows to write."""
        for action, addresses, values in self._buffer_runs(batches):
            if action.kind == "insert":
                yield from self._complete_inserted(values)
                continue
            if not self.marks.add(addresses):
                return
            if action.kind == "update":
                yield from self._complete_updated(addresses, values)

    def _buffer_runs(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Action, Addresses, pa.Table | None]]:
        """Yield buffered rows of one action, with their aligned values."""
        window: list[tuple[Addresses, pa.RecordBatch | None]] = []
        current, rows, size = -1, 0, 0
        for number, addresses, values in self._split_runs(batches):
            if window and (number != current or rows >= _WINDOW_ROWS or size >= _WINDOW_BYTES):
                yield self._finish_buffer(current, window)
                window, rows, size = [], 0, 0
            window.append((addresses, values))
            current, rows = number, rows + len(addresses)
            size += 0 if values is None else values.nbytes
        if window:
            yield self._finish_buffer(current, window)

    def _finish_buffer(
        self, number: int, window: Sequence[tuple[Addresses, pa.RecordBatch | None]]
    ) -> tuple[Action, Addresses, pa.Table | None]:
        addresses = np.concatenate([part for part, _ in window])
        parts = [values for _, values in window if values is not None]
        table = pa.Table.from_batches(parts) if parts else None
        action = self.work.actions[number]
        if action.kind == "update" and table is not None and (addresses[1:] < addresses[:-1]).any():
            order = np.argsort(addresses, kind="stable")
            addresses, table = addresses[order], pick_rows(table, order)
        return action, addresses, table

    def _split_runs(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, Addresses, pa.RecordBatch | None]]:
        """Yield consecutive rows of one action within a batch."""
        for batch in batches:
            if not batch.num_rows:
                continue
            numbers = batch.column(0).to_numpy()
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for start, stop in itertools.pairwise(bounds):
                number = int(numbers[start])
                part = batch.slice(start, stop - start)
                action = self.work.actions[number]
                if action.kind == "insert":
                    addresses = np.zeros(part.num_rows, np.uint64)
                else:
                    addresses = _addresses(part.column(1))
                yield number, addresses, self._align_values(number, part)

    def _align_values(self, number: int, part: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the values of an action, cast to the table's types."""
        action = self.work.actions[number]
        if not action.columns:
            return None
        batch = pa.RecordBatch.from_arrays(
            [part.column(2 + place) for place in action.places], names=list(action.columns)
        )
        if number not in self.aligners:
            schema = self.at.schema
            own = Schema(tuple(f for f in schema.fields if f.name in action.columns), schema.metadata)
            self.aligners[number] = Aligner(batch.schema, own), DeclaredTypeChecks.plan(own)
        aligner, checks = self.aligners[number]
        return checks(aligner.align(batch))

    def _complete_updated(self, addresses: Addresses, values: pa.Table | None) -> Iterator[pa.Table]:
        """Yield complete changed rows: new values, and unchanged columns read from the table."""
        if values is None:
            return
        fields = self.at.schema.fields
        unchanged = [f for f in fields if f.name not in values.schema.names]
        width = values.nbytes / max(1, values.num_rows)
        for number, run in runs_by_fragment(addresses):
            offsets = address_offsets(addresses[run])
            rows = {number: offsets}
            position = run.start
            for _, part, old in read_rows(self.at, rows, unchanged, _PIECE_BYTES, width):
                new = values.slice(position, len(part))
                position += len(part)
                self.ids.add_rows(number, part)
                self.answer.counts["update"] += len(part)
                yield whole_rows(fields, new, old)

    def _complete_inserted(self, values: pa.Table | None) -> Iterator[pa.Table]:
        """Yield complete new rows, with null in columns without a value."""
        if values is None:
            return
        fields = self.at.schema.fields
        nulls = {f.name: f for f in fields if f.name not in values.schema.names}
        step = max(1, int(_PIECE_BYTES / max(values.nbytes / values.num_rows, 0.125)))
        for first in range(0, values.num_rows, step):
            new = values.slice(first, step)
            old = {name: pa.nulls(new.num_rows, f.arrow_type()) for name, f in nulls.items()}
            table = whole_rows(fields, new, old)
            self.answer.counts["insert"] += table.num_rows
            self._record_key_filter(table)
            self._record_key_hashes(table)
            yield table

    def _record_key_hashes(self, table: pa.Table) -> None:
        if not self.work.unique or self.answer.uncounted:
            return
        columns = [_to_hashable(column) for column in table.select(list(self.work.unique)).columns]
        hashes = key_hashes(columns)
        assert hashes is not None
        self.answer.inserted += hashes.tobytes()
        if len(self.answer.inserted) > _INSERTED_BYTES:
            self.answer.inserted, self.answer.uncounted = b"", True

    def _record_key_filter(self, table: pa.Table) -> None:
        if not self.work.key:
            return
        keys = table.select(list(self.work.key))
        for column in keys.columns:
            # A key that contains a null equals no other key.
            keys = keys.filter(column.is_valid()) if column.null_count else keys
        ids = [self.at.schema.field(name).id for name in self.work.key]
        bits = key_filter(ids, keys.columns).bloom.bitmap
        if self.answer.keys is not None:
            filter_bytes = np.frombuffer(self.answer.keys, np.uint8)
            bits = np.bitwise_or(filter_bytes, np.frombuffer(bits, np.uint8)).tobytes()
        self.answer.keys = bits


def _chain(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _to_hashable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a key column in a type that `key_hashes` supports; equal values stay equal."""
    if key_hashes([column.slice(0, 0)]) is not None:
        return column
    return column.cast(pa.large_string())


def _addresses(column: pa.Array) -> Addresses:
    addresses: Addresses = pc.cast(column, pa.uint64()).to_numpy()
    return addresses


def _find_duplicate(addresses: Addresses) -> int:
    """Return an address that occurs more than once."""
    ordered = np.sort(addresses)
    return int(ordered[1:][ordered[1:] == ordered[:-1]][0])
