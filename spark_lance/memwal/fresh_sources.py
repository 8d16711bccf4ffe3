"""The parts of a shard, fragments of SSTables and the end of the log, and the choice of their current rows.

A part is read twice: first its keys, to choose the current rows, then columns of the chosen rows. Rows are
identified by their physical offset in the part. Parts can be pickled and read anywhere.

An SSTable is a Lance table with the table's columns at that time, with their field ids, and `_tombstone`. The
id of `_tombstone` was free at that time, but the table may have a column with this id now. So the read uses
another id for it. (MemWAL, SSTable.)

The current row of a key is its newest row, unless that row is a tombstone. Inside an SSTable or the log, the
later row is newer. The log is newer than SSTables, and an SSTable of a higher generation is newer. A
tombstone hides older rows just like a live row. Without a primary key, every row is current. (MemWAL,
reading.)"""

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
from spark_lance.memwal.entries import TOMBSTONE, entries_to_table, read_entry, wal_fields
from spark_lance.memwal.names import ShardPaths
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import address_offsets
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import ROW_ADDRESS

_KEY_BYTES = 64 << 20


@dataclass(frozen=True)
class Keys:
    """The keys of a part's rows.

    Attributes:
        columns: the key columns, in the order of the part.
        dead: whether each row is a tombstone.
        numbers: int64, the physical offsets of the rows, ascending.
    """

    columns: pa.Table
    dead: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.int64]


class Part(Protocol):
    """A source of rows: a fragment of an SSTable, or the end of a log."""

    @property
    def num_rows(self) -> int:
        """The number of rows, including rows that are not current."""

    def keys(self, names: Sequence[str]) -> Keys:
        """Return the keys of all rows."""

    def tables(
        self, fields: Sequence[Field], rows: npt.NDArray[np.int64], target_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield columns of rows, in tables of about `target_bytes`.

        Args:
            fields: results of `wal_fields`.
            rows: ascending physical offsets.
            target_bytes: target size of one table in bytes.
        """


@dataclass(frozen=True)
class SstablePart(TableRefMixin):
    """A fragment of an SSTable.

    Attributes:
        table: the SSTable.
        fragment: the serialized message.
        mark: the field `_tombstone`; None if the SSTable does not have it, so that it has no tombstones.
        key: the current fields of the table's key.
    """

    table: TableRef
    fragment: bytes
    mark: Field | None
    key: tuple[Field, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows, including masked rows."""
        return int(table_pb2.DataFragment.FromString(self.fragment).physical_rows)

    def keys(self, names: Sequence[str]) -> Keys:
        """Return the keys of the rows that are not masked."""
        fields = [field for field in self.key if field.name in names]
        marks = () if self.mark is None else (self.mark,)
        columns = (*(field.name for field in fields), *(mark.name for mark in marks), ROW_ADDRESS)
        tables = list(self._task((*fields, *marks), columns).tables(_KEY_BYTES))
        pieces = (
            pa.concat_tables(tables)
            if tables
            else self._task((*fields, *marks), columns).arrow_schema.empty_table()
        )
        numbers = address_offsets(pieces[ROW_ADDRESS].to_numpy()).astype(np.int64)
        dead = np.zeros(len(numbers), np.bool_)
        if marks:
            dead = pieces[TOMBSTONE].fill_null(False).to_numpy(zero_copy_only=False)
        return Keys(pieces.select(list(names)), dead, numbers)

    def tables(
        self, fields: Sequence[Field], rows: npt.NDArray[np.int64], target_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield columns of rows; columns that were added to the table later are null."""
        task = self._task(tuple(fields), tuple(field.name for field in fields))
        yield from replace(task, selection=BitMap(rows.astype(np.uint32)).serialize()).tables(target_bytes)

    def _task(self, fields: tuple[Field, ...], names: tuple[str, ...]) -> ScanTask:
        return ScanTask(self.table, names, fields, self.fragment, bases=Bases(self.table))


def open_sstable(table: TableRef, schema: Schema) -> list[SstablePart]:
    """Return the fragments of an SSTable.

    Args:
        table: the SSTable.
        schema: the current schema of the table.

    Raises:
        FileNotFoundError: the SSTable does not exist.
        FormatError: the SSTable is damaged.
    """
    manifest = read_manifest(table.store, manifest_path(table.root, 1, ManifestNaming.V2), ManifestNaming.V2)
    key = tuple(field for field in wal_fields(schema) if field.key_position is not None)
    tombstone = next((field for field in manifest.schema.fields if field.name == TOMBSTONE), None)
    if tombstone is not None and tombstone.logical_type != "bool":
        raise FormatError(
            f"column {TOMBSTONE} of the SSTable is {tombstone.logical_type}, not bool", path=manifest.path
        )
    # An id that is free in the current schema of the table and in the SSTable.
    free_id = 1 + max(node.id for each in (schema, manifest.schema) for node in each.walk())
    mark = None if tombstone is None else replace(tombstone, id=free_id, nullable=True)
    parts = []
    for fragment in manifest.fragments:
        message = table_pb2.DataFragment()
        message.CopyFrom(fragment)
        for file in message.files:
            if tombstone is not None and tombstone.id in file.fields:
                file.fields[list(file.fields).index(tombstone.id)] = free_id
        parts.append(SstablePart(table, message.SerializeToString(), mark, key))
    return parts


@dataclass(frozen=True)
class LogPart:
    """The end of a shard's log, or a part of it.

    Attributes:
        paths: the shard.
        positions: the positions of the entries.
        schema: the table's schema, to which rows are converted.
        num_rows: the number of rows.
        rows: the rows of all entries, oldest first; read again after unpickling.
    """

    paths: ShardPaths
    positions: tuple[int, ...]
    schema: Schema
    num_rows: int
    _rows: list[pa.Table] = field(default_factory=list, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return LogPart, (self.paths, self.positions, self.schema, self.num_rows)

    @property
    def rows(self) -> pa.Table:
        """All rows, with the columns of the table and `_tombstone`.

        Raises:
            FileNotFoundError: an entry was collected.
            WalEntryError: an entry is damaged.
        """
        if not self._rows:
            entries = [read_entry(self.paths, place, self.schema) for place in self.positions]
            self._rows.append(entries_to_table(entries, self.schema))
        return self._rows[0]

    def keys(self, names: Sequence[str]) -> Keys:
        """Return the keys of all rows."""
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
    """The current rows of a part.

    Attributes:
        part: the part.
        rows: int64, the physical offsets of the rows, ascending.
    """

    part: Part
    rows: Int64Array


def newest_rows(codes: Int64Array) -> Int64Array:
    """Return the position of the last row of each code, ascending; every row with the code -1 is included."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.zeros(0, np.bool_)
    return np.sort(order[last | (ordered < 0)])


def choose(parts: Sequence[Part], names: Sequence[str]) -> tuple[list[RowChoice], pa.Table]:
    """Choose the current rows of a shard.

    Args:
        parts: the parts of the shard, oldest first.
        names: the columns of the primary key; empty if the table has no key.

    Returns:
        The parts that have current rows, oldest first; and the distinct keys of all rows, including
        tombstones. Rows of the table with one of these keys are hidden.
    """
    keys_of_parts = [part.keys(names) for part in parts]
    if not names:
        live = [keys.numbers[~keys.dead] for keys in keys_of_parts]
        choices = [RowChoice(part, rows) for part, rows in zip(parts, live, strict=True) if len(rows)]
        return choices, pa.table({})
    keys = _concat_keys(keys_of_parts, names)
    codes = KeyIndex([keys[name] for name in names]).codes if keys.num_rows else np.empty(0, np.int64)
    newest = newest_rows(codes)
    choices = []
    start = 0
    for part, part_keys in zip(parts, keys_of_parts, strict=True):
        stop = start + len(part_keys.numbers)
        places = newest[np.searchsorted(newest, start) : np.searchsorted(newest, stop)] - start
        places = places[~part_keys.dead[places]]
        if len(places):
            choices.append(RowChoice(part, part_keys.numbers[places]))
        start = stop
    return choices, keys.take(pa.array(newest))


def _concat_keys(keys_of_parts: Sequence[Keys], names: Sequence[str]) -> pa.Table:
    tables = [keys.columns for keys in keys_of_parts]
    return (
        pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.int64()) for name in names})
    )
