"""The Spark tasks of row-level changes: they note deleted rows, and write changed and new rows.

A task gets the addresses of the rows (`_rowaddr`: fragment << 32 | physical row) and their new values, which
Spark has computed. It reads all other columns from the table itself, for just these rows, so they never pass
through Spark and keep every detail that Spark has no type for.
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
from spark_lance.table.format.row_set import Addresses, address_of, offsets_of, runs_by_fragment
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.rows.key_lookup import key_filter, key_hashes
from spark_lance.table.rows.row_rewrites import CarriedRowIds, whole_rows, write_moved
from spark_lance.table.writing.align import Aligner

# New values that are put together before the other columns of their rows are read.
_WINDOW_BYTES = 32 << 20
_WINDOW_ROWS = 1 << 19
_PIECE_BYTES = 16 << 20
# Hashes of inserted keys that one task reports at most: those of 131,072 rows.
_INSERTED_BYTES = 1 << 20


@dataclass(frozen=True)
class Action:
    """The action for a row.

    Attributes:
        kind: "update", "insert" or "delete".
        columns: the columns that get values, as the table spells them.
        places: their positions among the value columns.
    """

    kind: str
    columns: tuple[str, ...] = ()
    places: tuple[int, ...] = ()


@dataclass
class TaskAnswer:
    """The result of a task.

    Attributes:
        rows: fragment id -> serialized bitmap of the rows that are deleted or moved.
        fragments: the messages of new fragments.
        counts: rows by kind of action.
        keys: the bits of the filter of inserted keys; None without one.
        doubled: the address of a row that was met twice; then not all rows were looked at.
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
class _Marks:
    """Rows by fragment.

    Attributes:
        repeated: whether a row may be noted more than once.
        doubled: the address of a row that was, and must not.
    """

    repeated: bool
    doubled: int | None = None
    rows: dict[int, BitMap] = field(default_factory=dict)

    def add(self, addresses: Addresses) -> bool:
        """Note rows; return False if one is there already and must not."""
        for number, part in runs_by_fragment(addresses):
            more = BitMap(offsets_of(addresses[part]))
            seen = self.rows.setdefault(number, BitMap())
            if not self.repeated and len(more) < part.stop - part.start:
                self.doubled = _repeated(addresses[part])
                return False
            if not self.repeated and (both := seen & more):
                self.doubled = address_of(number, both.min())
                return False
            seen |= more
        return True

    def answer(self) -> dict[int, bytes]:
        return {number: bitmap.serialize() for number, bitmap in self.rows.items()}


@dataclass(frozen=True)
class MarkRows:
    """The work of a delete: notes the rows whose addresses it is given in the first column."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskAnswer]:
        """Yield one answer."""
        marks = _Marks(repeated=True)
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
    """The work of an update or a merge.

    It is given batches of: the number of the action (in `actions`), the row's address (of inserted rows
    null), and the value columns. Updated rows come before inserted ones, and updates of one action best in
    the order of their addresses.

    Attributes:
        pinned: the version that the rows are of.
        actions: what may be done.
        operation: 16 hexadecimal digits that are in the names of all files.
        key: the columns whose inserted values are told to other writers; None for no filter.
        repeated: whether a row may be met several times, because it is deleted in any case.
        unique: the columns of the primary key, of which no two inserted rows may have the same values.
    """

    pinned: SnapshotRef
    actions: tuple[Action, ...]
    operation: str
    key: tuple[str, ...] | None = None
    repeated: bool = False
    unique: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskAnswer]:
        """Yield one answer; none if there are no rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        yield _Changes.of(self).run(_chain(first, batches))


@dataclass
class _Changes:
    """`ChangeRows` at work."""

    work: ChangeRows
    at: Snapshot
    ids: CarriedRowIds
    marks: _Marks
    answer: TaskAnswer
    # By the number of an action: its types, and checks of CHAR and VARCHAR, which Spark makes for SQL only.
    aligners: dict[int, tuple[Aligner, DeclaredTypeChecks]] = field(default_factory=dict)

    @classmethod
    def of(cls, work: ChangeRows) -> _Changes:
        at = work.pinned.load()
        return cls(work, at, CarriedRowIds(at), _Marks(work.repeated), TaskAnswer())

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskAnswer:
        tables = self._tables(batches)
        operation = self.work.operation
        fragments = write_moved(self.at, tables, self.ids, operation)
        self.answer.fragments = [fragment.SerializeToString() for fragment in fragments]
        self.answer.rows = self.marks.answer()
        self.answer.doubled = self.marks.doubled
        deleted = sum(map(len, self.marks.rows.values())) - self.answer.counts["update"]
        self.answer.counts["delete"] = deleted
        return self.answer

    def _tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the rows to write."""
        for action, addresses, values in self._windows(batches):
            if action.kind == "insert":
                yield from self._inserted(values)
                continue
            if not self.marks.add(addresses):
                return
            if action.kind == "update":
                yield from self._updated(addresses, values)

    def _windows(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Action, Addresses, pa.Table | None]]:
        """Yield runs of rows of one action, with their aligned values, in tables of some size."""
        window: list[tuple[Addresses, pa.RecordBatch | None]] = []
        current, rows, size = -1, 0, 0
        for number, addresses, values in self._runs(batches):
            if window and (number != current or rows >= _WINDOW_ROWS or size >= _WINDOW_BYTES):
                yield self._window(current, window)
                window, rows, size = [], 0, 0
            window.append((addresses, values))
            current, rows = number, rows + len(addresses)
            size += 0 if values is None else values.nbytes
        if window:
            yield self._window(current, window)

    def _window(
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

    def _runs(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, Addresses, pa.RecordBatch | None]]:
        """Yield runs of rows of one action within the batches."""
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
                yield number, addresses, self._aligned(number, part)

    def _aligned(self, number: int, part: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the values of an action in the types of the table."""
        action = self.work.actions[number]
        if not action.columns:
            return None
        picked = pa.RecordBatch.from_arrays(
            [part.column(2 + place) for place in action.places], names=list(action.columns)
        )
        if number not in self.aligners:
            schema = self.at.schema
            own = Schema(tuple(f for f in schema.fields if f.name in action.columns), schema.metadata)
            self.aligners[number] = Aligner(picked.schema, own), DeclaredTypeChecks.plan(own)
        aligner, checks = self.aligners[number]
        return checks(aligner.align(picked))

    def _updated(self, addresses: Addresses, values: pa.Table | None) -> Iterator[pa.Table]:
        """Yield changed rows, whole: their new values, and from the table what stays."""
        if values is None:
            return
        fields = self.at.schema.fields
        unchanged = [f for f in fields if f.name not in values.schema.names]
        width = values.nbytes / max(1, values.num_rows)
        for number, run in runs_by_fragment(addresses):
            offsets = offsets_of(addresses[run])
            rows = {number: offsets}
            position = run.start
            for _, part, old in read_rows(self.at, rows, unchanged, _PIECE_BYTES, width):
                new = values.slice(position, len(part))
                position += len(part)
                self.ids.note(number, part)
                self.answer.counts["update"] += len(part)
                yield whole_rows(fields, new, old)

    def _inserted(self, values: pa.Table | None) -> Iterator[pa.Table]:
        """Yield new rows, whole; null where they have no value."""
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
            self._note_keys(table)
            self._note_inserted(table)
            yield table

    def _note_inserted(self, table: pa.Table) -> None:
        if not self.work.unique or self.answer.uncounted:
            return
        columns = [_hashable(column) for column in table.select(list(self.work.unique)).columns]
        hashes = key_hashes(columns)
        assert hashes is not None
        self.answer.inserted += hashes.tobytes()
        if len(self.answer.inserted) > _INSERTED_BYTES:
            self.answer.inserted, self.answer.uncounted = b"", True

    def _note_keys(self, table: pa.Table) -> None:
        if not self.work.key:
            return
        keys = table.select(list(self.work.key))
        for column in keys.columns:
            # A key with a null in it equals no key.
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


def _hashable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a key column in a type that `key_hashes` takes; equal values stay equal."""
    if key_hashes([column.slice(0, 0)]) is not None:
        return column
    return column.cast(pa.large_string())


def _addresses(column: pa.Array) -> Addresses:
    addresses: Addresses = pc.cast(column, pa.uint64()).to_numpy()
    return addresses


def _repeated(addresses: Addresses) -> int:
    """Return an address that occurs twice."""
    ordered = np.sort(addresses)
    return int(ordered[1:][ordered[1:] == ordered[:-1]][0])
