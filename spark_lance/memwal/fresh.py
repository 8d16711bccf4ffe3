"""Read a table with the rows of its MemWAL: the base version, SSTables that are not yet compacted, and logs.

The shards are listed first, then the base version is loaded. So an SSTable that is no longer listed is in the
base version. SSTables that are still listed but already in the base version (`compacted_sstables`) are
ignored: they would hide later changes of the table. After the read, the shards are checked again. If entries
of a log became an SSTable and were collected concurrently, the read starts again.

    hidden rows of the base     rows whose key is in a shard, as a live row or a tombstone
    rows of a shard             the newest row of each key, see `fresh_sources`
    a filter                    is applied after that, so it never sees old values

A reader sees a prefix of each shard's writes. (MemWAL, reading.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.arrow.arrays import filter_rows, pick_rows
from spark_lance.errors import FormatError, OptionError, UnsupportedFormatError
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field
from spark_lance.index.pruners import indexed_snapshot
from spark_lance.memwal.entries import (
    TailMovedError,
    entries_to_table,
    group_by_generation,
    read_tail,
    wal_fields,
)
from spark_lance.memwal.fresh_sources import LogPart, Part, RowChoice, choose, open_sstable
from spark_lance.memwal.names import ShardPaths, list_shards
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import ShardManifest
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.mem_wal_marks import mem_wal_details
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import Filter, ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, ROW_OFFSET, SYSTEM_COLUMNS
from spark_lance.table.rows.key_lookup import key_tasks
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.versions.versions import load_latest

_ATTEMPTS = 20
_WINDOW_BYTES = 64 << 20


def compacted_generations(snapshot: Snapshot) -> dict[uuid.UUID, int] | None:
    """Return shard -> highest generation that is in the version; None if the table has no MemWAL."""
    details = mem_wal_details(snapshot.manifest.indices)
    if details is None:
        return None
    return {uuid.UUID(bytes=mark.shard_id.uuid): mark.generation for mark in details.compacted_sstables}


@dataclass(frozen=True)
class Shard:
    """The rows of a shard that are not in the base version.

    Attributes:
        paths: the shard.
        manifest: the shard's manifest.
        parts: the parts with rows, oldest first.
        next_position: the first free position of its log at the time of the read.
    """

    paths: ShardPaths
    manifest: ShardManifest
    parts: tuple[Part, ...]
    next_position: int


@dataclass(frozen=True)
class ChosenRows:
    """The current rows of one part, for the columns of a scan. Can be pickled.

    Attributes:
        choice: the rows.
        names: the columns, including system columns, which are null.
        fields: the stored fields among the columns, and the fields that a filter needs.
        schema: the schema of the result.
    """

    choice: RowChoice
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """The number of rows before filtering."""
        return len(self.choice.rows)

    def tables(self, condition: Condition | None, target_bytes: int = _WINDOW_BYTES) -> Iterator[pa.Table]:
        """Yield the rows that match a condition, in tables of about `target_bytes`."""
        for rows, _ in self.numbered(condition, target_bytes):
            yield rows

    def numbered(
        self, condition: Condition | None, target_bytes: int = _WINDOW_BYTES
    ) -> Iterator[tuple[pa.Table, npt.NDArray[np.int64]]]:
        """Yield the tables of `tables`, each with the positions of its rows in `choice.rows`."""
        start = 0
        columns = set() if condition is None else set(condition.columns)
        for table in self._read_stored(target_bytes):
            numbers = np.arange(start, start + table.num_rows)
            start += table.num_rows
            for name in SYSTEM_COLUMNS:
                if name in self.names or (name in columns and name not in table.column_names):
                    table = table.append_column(name, pa.nulls(table.num_rows, pa.uint64()))
            if condition is not None:
                mask = pc.fill_null(condition.mask(table), False)
                table, numbers = filter_rows(table, mask), numbers[mask.to_numpy()]
            if not table.num_rows:
                continue
            if not self.names:
                yield table.select([]), numbers
                continue
            yield pa.Table.from_arrays([table[name] for name in self.names], schema=self.schema), numbers

    def _read_stored(self, target_bytes: int) -> Iterator[pa.Table]:
        # `fields` has at least one column, which determines the number of rows.
        yield from self.choice.part.tables(self.fields, self.choice.rows, target_bytes)


@dataclass(frozen=True)
class FreshRows:
    """A base version and the shards' rows that are not in it.

    Attributes:
        base: the base version.
        shards: the shards with rows that are not in the base version.
    """

    base: Snapshot
    shards: tuple[Shard, ...]

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the primary key; empty if the table has no key."""
        return tuple(field.name for field in primary_key(self.base.schema))

    @cached_property
    def _choice(self) -> tuple[list[RowChoice], list[pa.Table]]:
        choices: list[RowChoice] = []
        keys = []
        for shard in self.shards:
            shard_choices, present = choose(shard.parts, self.key_names)
            choices += shard_choices
            keys.append(present)
        return choices, keys

    @property
    def choices(self) -> list[RowChoice]:
        """The current rows of all shards."""
        return self._choice[0]

    @cached_property
    def hidden(self) -> RowSet:
        """The live rows of the base whose key is in a shard."""
        tables = [table for table in self._choice[1] if table.num_rows]
        if not self.key_names or not tables:
            return RowSet()
        return self._find_base_rows(pa.concat_tables(tables))

    def _find_base_rows(self, keys: pa.Table) -> RowSet:
        """Return the live rows of the base that have one of some keys."""
        index = KeyIndex([keys[name] for name in self.key_names])
        fields = [self.base.schema.field(name) for name in self.key_names]
        scan = self.base.scan(self.key_names, with_row_address=True)
        addresses = [np.empty(0, np.uint64)]
        for task in key_tasks(scan, fields, keys):
            for table in task.tables(_WINDOW_BYTES):
                is_match = index.lookup([table[name] for name in self.key_names]) >= 0
                addresses.append(table[ROW_ADDRESS].to_numpy()[is_match])
        return RowSet.from_addresses(np.concatenate(addresses))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> FreshScan:
        """Return a scan of columns. Row ids and row addresses are null in rows of shards.

        Raises:
            SchemaError: a column does not exist or is named twice.
            OptionError: `_rowoffset` is among the columns.
        """
        plain = self.base.scan(columns, with_row_id=with_row_id, with_row_address=with_row_address)
        if ROW_OFFSET in plain.names:
            raise OptionError(f"logged rows have no offset in the table: leave out the column {ROW_OFFSET}")
        fields = {name: getattr(plain, name) for name in Scan.__dataclass_fields__}
        return FreshScan(**fields, fresh=self)

    def lookup(self, keys: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return the rows of some keys, in the order of the keys; keys without a row are skipped.

        Args:
            keys: the columns of the primary key, in the table's types.
            names: the columns of the result.
        """
        index = KeyIndex([keys[name] for name in self.key_names])
        is_found = np.zeros(index.size, np.bool_)
        scan = self.scan(names)
        parts: list[pa.Table] = []
        owners_by_part: list[npt.NDArray[np.int64]] = []
        for shard in self.shards:
            for part in reversed(shard.parts):
                part_keys = part.keys(self.key_names)
                codes = index.lookup([part_keys.columns[name] for name in self.key_names])
                places = np.flatnonzero(codes >= 0)
                places = places[newest_positions(codes[places])]
                places = places[~is_found[codes[places]]]
                is_found[codes[places]] = True
                places = places[~part_keys.dead[places]]
                if len(places):
                    choice = RowChoice(part, part_keys.numbers[places])
                    parts += scan.read_choice(choice).tables(None)
                    owners_by_part.append(codes[places])
        remaining_keys = pick_rows(
            keys, np.flatnonzero((index.codes >= 0) & ~np.append(is_found, False)[index.codes])
        )
        if remaining_keys.num_rows:
            from_base, rows = self._base_lookup(remaining_keys, index, scan)
            parts.append(from_base)
            owners_by_part.append(rows)
        if not parts:
            return scan.arrow_schema.empty_table()
        table, owners = pa.concat_tables(parts), np.concatenate(owners_by_part)
        order = np.argsort(owners, kind="stable")
        first = np.searchsorted(owners[order], index.codes, side="left")
        exists = first < np.searchsorted(owners[order], index.codes, side="right")
        return pick_rows(table, order[first[exists]])

    def _base_lookup(
        self, keys: pa.Table, index: KeyIndex, scan: FreshScan
    ) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the rows of the base with one of some keys, and the code of each row's key."""
        names = list(dict.fromkeys([*scan.names, *self.key_names]))
        plain = self.base.scan(names)
        fields = [self.base.schema.field(name) for name in self.key_names]
        tables = [plain.arrow_schema.empty_table()]
        key_index = KeyIndex([keys[name] for name in self.key_names])
        for task in key_tasks(plain, fields, keys):
            for table in task.tables(_WINDOW_BYTES):
                is_match = key_index.lookup([table[name] for name in self.key_names]) >= 0
                tables.append(pick_rows(table, np.flatnonzero(is_match)))
        rows = pa.concat_tables(tables)
        codes = index.lookup([rows[name] for name in self.key_names])
        columns = pa.Table.from_arrays([rows[name] for name in scan.names], schema=scan.arrow_schema)
        return columns, codes


def newest_positions(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of the last row of each code, ascending."""
    _, last = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - last)


@dataclass(frozen=True)
class FreshScan(Scan):
    """A scan of the base without its hidden rows, followed by the rows of the shards.

    The tasks read only the base; `parts` returns the rows of the shards.
    """

    fresh: FreshRows = field(kw_only=True)

    def select_tasks(self, selection: RowSet, filter_columns: Sequence[str] = ()) -> list[ScanTask]:
        """Return one task per fragment of the base with selected rows, without the hidden rows."""
        return [self._hide_rows(task) for task in super().select_tasks(selection, filter_columns)]

    def _hide_rows(self, task: ScanTask) -> ScanTask:
        hidden = self.fresh.hidden.get(task.message.id)
        if hidden is None:
            return task
        base = self.fresh.base
        if task.selection is None:
            visible = BitMap(range(base.physical_rows(task.message))) - BitMap(base.deletions(task.message))
        else:
            visible = BitMap.deserialize(task.selection)
        return replace(task, selection=(visible - hidden).serialize())

    def tables(
        self, filter: Filter | None = None, target_bytes: int = _WINDOW_BYTES, ahead: bool = True
    ) -> Iterator[pa.Table]:
        """Yield the rows of the base, then the rows of the shards, in tables of about `target_bytes`."""
        yield from super().tables(filter, target_bytes, ahead)
        condition = None if filter is None else self.condition(filter)
        for part in self.parts(condition):
            yield from part.tables(condition, target_bytes)

    def parts(self, condition: Condition | None = None) -> list[ChosenRows]:
        """Return the current rows of the shards, part by part, with the columns that `condition` needs."""
        return [self.read_choice(choice, condition) for choice in self.fresh.choices]

    def read_choice(self, choice: RowChoice, condition: Condition | None = None) -> ChosenRows:
        """Return rows of a part for the columns of this scan and of a condition."""
        log_fields = {field.name: field for field in wal_fields(self.manifest.schema)}
        columns = [*self.names, *(() if condition is None else condition.columns)]
        fields = tuple(log_fields[name] for name in dict.fromkeys(columns) if name in log_fields)
        if not fields:
            fields = (next(iter(log_fields.values())),)
        return ChosenRows(choice, self.names, fields, self.arrow_schema)

    def slice(self, offset: int, limit: int | None, target_bytes: int = _WINDOW_BYTES) -> Iterator[pa.Table]:
        """Yield at most `limit` rows after the first `offset` rows."""
        for table in self.tables(None, target_bytes):
            if limit == 0:
                return
            skipped = min(offset, table.num_rows)
            offset -= skipped
            piece = table.slice(skipped, None if limit is None else min(limit, table.num_rows - skipped))
            if piece.num_rows:
                limit = None if limit is None else limit - piece.num_rows
                yield piece

    def live_rows(self, fragment: table_pb2.DataFragment) -> int:
        """Return the number of rows of a fragment of the base that are neither deleted nor hidden."""
        return super().live_rows(fragment) - self.fresh.hidden.select_fragments([fragment.id]).num_rows

    def count(self) -> int:
        """Return the number of rows."""
        return super().count() + sum(len(choice.rows) for choice in self.fresh.choices)


def open_fresh(table: TableRef, *, accept_loss: bool = False) -> FreshRows:
    """Return the newest version of a table and the rows of its shards.

    Args:
        table: the table.
        accept_loss: whether to skip missing or damaged log entries.

    Raises:
        WalHoleError, WalEntryError: log entries are missing or damaged.
        TableNotFoundError: the table does not exist.
        UnsupportedFormatError: the table has blobs, which a MemWAL does not support.
        FormatError: a listed SSTable does not exist or is damaged.
    """
    last_error: Exception | None = None
    for _ in range(_ATTEMPTS):
        before = _load_shards(table)
        base = indexed_snapshot(table, load_latest(table))
        compacted = compacted_generations(base)
        if compacted is None:
            return FreshRows(base, ())
        try:
            _check_generations(before, compacted)
            shards = [
                _open_shard(base, paths, manifest, compacted.get(paths.shard, 0), accept_loss)
                for paths, manifest in before
            ]
        except (TailMovedError, FileNotFoundError) as error:
            last_error = error
            continue
        return FreshRows(base, tuple(shard for shard in shards if shard.parts))
    raise FormatError(
        f"a listed SSTable does not exist, or logs were collected in each of {_ATTEMPTS} reads: {last_error}",
        path=table.root,
    )


def _load_shards(table: TableRef) -> list[tuple[ShardPaths, ShardManifest]]:
    result = []
    for shard in list_shards(table):
        paths = ShardPaths(table, shard)
        manifest = load_shard(paths)
        if manifest is None:
            # A log without a manifest is replayed from its start.
            manifest = ShardManifest(current_generation=1)
        result.append((paths, manifest))
    return result


def _open_shard(
    base: Snapshot, paths: ShardPaths, manifest: ShardManifest, compacted: int, accept_loss: bool
) -> Shard:
    """Return a shard with its rows that are not in the base.

    Raises:
        FileNotFoundError: an SSTable does not exist.
        TailMovedError: entries of the log were collected concurrently.
    """
    schema = base.schema
    parts: list[Part] = []
    for entry in sorted(manifest.sstables, key=lambda entry: entry.generation):
        if entry.generation > compacted:
            parts += open_sstable(TableRef(base.store, paths.sstable(entry.path)), schema)
    after = manifest.replay_after_wal_entry_position
    tail = read_tail(paths, after, schema, accept_loss=accept_loss)
    entries = [
        entry
        for _, generation_entries in group_by_generation(tail.entries, manifest.current_generation)
        for entry in generation_entries
    ]
    rows = entries_to_table(entries, schema)
    if rows.num_rows:
        positions = tuple(entry.position for entry in entries)
        parts.append(LogPart(paths, positions, schema, rows.num_rows, [rows]))
    if parts and any(node.is_blob for node in schema.walk()):
        raise UnsupportedFormatError("reading rows of a MemWAL of a table with blobs", path=paths.directory)
    return Shard(paths, manifest, tuple(parts), tail.next_position)


def _check_generations(
    before: Sequence[tuple[ShardPaths, ShardManifest]], compacted: Mapping[uuid.UUID, int]
) -> None:
    """Check that the base has no rows that the loaded manifests leave to the logs.

    Without a primary key such rows would be read twice.

    Raises:
        TailMovedError: a shard was flushed and compacted after its manifest was loaded.
    """
    for paths, manifest in before:
        if compacted.get(paths.shard, 0) >= manifest.current_generation:
            newest = load_shard(paths)
            # A branch has the compacted generations of its source, but not the shards.
            if newest is not None and newest.current_generation > manifest.current_generation:
                raise TailMovedError(f"shard {paths.shard} was compacted during the read")
