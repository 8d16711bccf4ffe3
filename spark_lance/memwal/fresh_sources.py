"""Rows that are not in the table yet: in fragments of SSTables and at the end of a log, and those that count.

A part is read twice: its keys, to choose the rows that count, and then columns of the chosen ones. Rows are
named by their physical number in the part. Parts can be pickled and read anywhere.

An SSTable is a Lance table with the columns that the table had, by their field ids, and `_tombstone`. The id
of `_tombstone` was free then and may be a column of the table's by now, so it gets another one for the read.
(MemWAL, SSTable.)

The newest row of each key counts, unless it marks a deletion. Inside an SSTable or the log the later row is
newer; the log is newer than SSTables, these than each other by generation. A tombstone hides older rows
exactly like a live one. Without a primary key every row counts. (MemWAL, reading.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import FormatError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.store import Store
from spark_lance.memwal.entries import TOMBSTONE, read_entry, rows_of, wal_fields
from spark_lance.memwal.names import ShardPaths
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.paths import Naming, manifest_path
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import offsets_of
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import ROW_ADDRESS

_KEY_BYTES = 64 << 20


@dataclass(frozen=True)
class Keys:
    """The rows of a part as far as they are needed to choose among them.

    Attributes:
        columns: those of the key, in the order of the part.
        dead: whether a row stands for a deleted key.
        numbers: their physical numbers, ascending.
    """

    columns: pa.Table
    dead: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.int64]


class Part(Protocol):
    """Rows in one place."""

    @property
    def num_rows(self) -> int:
        """Rows, those that do not count included."""

    def keys(self, names: Sequence[str]) -> Keys:
        """Return columns of the key of all rows."""

    def tables(
        self, fields: Sequence[Field], rows: npt.NDArray[np.int64], target_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield columns of the rows of ascending numbers, in tables of about `target_bytes`.

        Args:
            fields: of the table, as `wal_fields` gives them.
        """


@dataclass(frozen=True)
class SstablePart(OfTable):
    """A fragment of an SSTable.

    Attributes:
        table: the SSTable.
        fragment: the serialized message.
        mark: the field of `_tombstone`; None if the SSTable has none, and no row stands for a deletion.
        key: the fields of the key, as the table has them now.
    """

    table: TableRef
    fragment: bytes
    mark: Field | None
    key: tuple[Field, ...]

    @property
    def num_rows(self) -> int:
        """Rows, masked ones included."""
        return int(table_pb2.DataFragment.FromString(self.fragment).physical_rows)

    def keys(self, names: Sequence[str]) -> Keys:
        """Return columns of the key of the rows that are not masked."""
        fields = [field for field in self.key if field.name in names]
        marks = () if self.mark is None else (self.mark,)
        columns = (*(field.name for field in fields), *(mark.name for mark in marks), ROW_ADDRESS)
        tables = list(self._task((*fields, *marks), columns).tables(_KEY_BYTES))
        pieces = (
            pa.concat_tables(tables)
            if tables
            else self._task((*fields, *marks), columns).arrow_schema.empty_table()
        )
        numbers = offsets_of(pieces[ROW_ADDRESS].to_numpy()).astype(np.int64)
        dead = np.zeros(len(numbers), np.bool_)
        if marks:
            dead = pieces[TOMBSTONE].fill_null(False).to_numpy(zero_copy_only=False)
        return Keys(pieces.select(list(names)), dead, numbers)

    def tables(
        self, fields: Sequence[Field], rows: npt.NDArray[np.int64], target_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield columns of rows; columns that the table got later are null."""
        task = self._task(tuple(fields), tuple(field.name for field in fields))
        yield from replace(task, selection=BitMap(rows.astype(np.uint32)).serialize()).tables(target_bytes)

    def _task(self, fields: tuple[Field, ...], names: tuple[str, ...]) -> ScanTask:
        return ScanTask(self.table, names, fields, self.fragment, bases=Bases(self.table))


def open_sstable(table: TableRef, schema: Schema) -> list[SstablePart]:
    """Return the fragments of an SSTable.

    Args:
        table: the SSTable.
        schema: of the table as it is now.

    Raises:
        FileNotFoundError: the SSTable is gone.
        FormatError: it is damaged.
    """
    manifest = read_manifest(table.store, manifest_path(table.root, 1, Naming.V2), Naming.V2)
    key = tuple(field for field in wal_fields(schema) if field.key_position is not None)
    tombstone = next((field for field in manifest.schema.fields if field.name == TOMBSTONE), None)
    if tombstone is not None and tombstone.logical_type != "bool":
        raise FormatError(f"column {TOMBSTONE} of an SSTable is {tombstone.logical_type}", path=manifest.path)
    # Free in the table as it is now, and in the SSTable.
    free = 1 + max(node.id for each in (schema, manifest.schema) for node in each.walk())
    mark = None if tombstone is None else replace(tombstone, id=free, nullable=True)
    parts = []
    for fragment in manifest.fragments:
        message = table_pb2.DataFragment()
        message.CopyFrom(fragment)
        for file in message.files:
            if tombstone is not None and tombstone.id in file.fields:
                file.fields[list(file.fields).index(tombstone.id)] = free
        parts.append(SstablePart(table, message.SerializeToString(), mark, key))
    return parts


@dataclass(frozen=True)
class LogPart:
    """The end of a shard's log, or a part of it.

    Attributes:
        store, paths: of the shard.
        positions: of the entries.
        schema: of the table, to which rows are fitted.
        rows: of all entries, oldest first; read again where a pickle was opened.
    """

    store: Store
    paths: ShardPaths
    positions: tuple[int, ...]
    schema: Schema
    num_rows: int
    _rows: list[pa.Table] = field(default_factory=list, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return LogPart, (self.store, self.paths, self.positions, self.schema, self.num_rows)

    @property
    def rows(self) -> pa.Table:
        """All rows, with the columns of the table and the mark of deleted keys.

        Raises:
            FileNotFoundError: an entry was collected.
            WalEntryError: an entry is damaged.
        """
        if not self._rows:
            entries = [read_entry(self.store, self.paths, place, self.schema) for place in self.positions]
            self._rows.append(rows_of(entries, self.schema))
        return self._rows[0]

    def keys(self, names: Sequence[str]) -> Keys:
        """Return columns of the key of all rows."""
        rows = self.rows
        dead = rows[TOMBSTONE].to_numpy(zero_copy_only=False)
        return Keys(rows.select(list(names)), dead, np.arange(rows.num_rows))

    def tables(
        self,
        fields: Sequence[Field],
        rows: npt.NDArray[np.int64],
        target_bytes: int,  # noqa: ARG002 (they are in memory)
    ) -> Iterator[pa.Table]:
        """Yield columns of rows."""
        if len(rows):
            table = self.rows.select([field.name for field in fields])
            yield pick_rows(table, rows)


Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowChoice:
    """The rows of a part that count.

    Attributes:
        part: where they are.
        rows: their physical numbers, ascending.
    """

    part: Part
    rows: Int64Array


def newest_rows(codes: Int64Array) -> Int64Array:
    """Return the place of the last row of each key, ascending; a key with a null, -1, is a key for itself."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.zeros(0, np.bool_)
    return np.sort(order[last | (ordered < 0)])


def choose(parts: Sequence[Part], names: Sequence[str]) -> tuple[list[RowChoice], pa.Table]:
    """Choose the rows of a shard that count.

    Args:
        parts: of the shard, oldest first.
        names: the columns of the primary key; none if the table has none.

    Returns:
        The parts that have such rows, oldest first; and the keys, each once, of all rows, tombstones
        included: rows of the table with one of these are hidden.
    """
    keys_of_parts = [part.keys(names) for part in parts]
    if not names:
        live = [keys.numbers[~keys.dead] for keys in keys_of_parts]
        choices = [RowChoice(part, rows) for part, rows in zip(parts, live, strict=True) if len(rows)]
        return choices, pa.table({})
    keys = _joined(keys_of_parts, names)
    codes = KeyIndex([keys[name] for name in names]).codes if keys.num_rows else np.empty(0, np.int64)
    newest = newest_rows(codes)
    choices = []
    start = 0
    for part, its in zip(parts, keys_of_parts, strict=True):
        stop = start + len(its.numbers)
        places = newest[np.searchsorted(newest, start) : np.searchsorted(newest, stop)] - start
        places = places[~its.dead[places]]
        if len(places):
            choices.append(RowChoice(part, its.numbers[places]))
        start = stop
    return choices, keys.take(pa.array(newest))


def _joined(keys_of_parts: Sequence[Keys], names: Sequence[str]) -> pa.Table:
    tables = [keys.columns for keys in keys_of_parts]
    return (
        pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.int64()) for name in names})
    )
