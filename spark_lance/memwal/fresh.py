"""A table with the rows that are not in it yet: the base version, SSTables that were not compacted, and logs.

Shards are read first and the base version is loaded after them, so that an SSTable which is no longer listed
is in the base. SSTables that are still listed but already in the base version (`compacted_sstables`) are left
out: else they would hide later changes of the table. After the read, the shards are checked again. If entries
of a log became an SSTable and were collected meanwhile, the read starts again.

    hidden rows of the base     those with a key of any row of a shard, live or not
    rows of a shard             the newest of each key, see `newest`
    a filter                    comes after that: it sees no old values

A reader sees a prefix of each shard's writes. (MemWAL, reading.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
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
from spark_lance.memwal.entries import TailMovedError, by_generation, read_tail, rows_of, wal_fields
from spark_lance.memwal.fresh_sources import LogPart, Part, RowChoice, choose, open_sstable
from spark_lance.memwal.names import ShardPaths, list_shards
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import ShardManifest
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import offsets_of, runs_by_fragment
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
    """Return the generation of each shard up to which SSTables are in a version; None without a MemWAL."""
    details = mem_wal_details(snapshot.manifest.indices)
    if details is None:
        return None
    return {uuid.UUID(bytes=mark.shard_id.uuid): mark.generation for mark in details.compacted_sstables}


@dataclass(frozen=True)
class Shard:
    """The rows of a shard that are not in the base version.

    Attributes:
        paths: of the shard.
        manifest: as it was read.
        parts: oldest first.
        next_position: the first position of its log that nobody had written.
    """

    paths: ShardPaths
    manifest: ShardManifest
    parts: tuple[Part, ...]
    next_position: int


@dataclass(frozen=True)
class ChosenRows:
    """Rows of one part that count, read as the columns of a scan. Can be pickled.

    Attributes:
        choice: the rows.
        names: the columns, system columns too, which are null here.
        fields: the stored fields among them and those that a filter needs.
        schema: of what is yielded.
    """

    choice: RowChoice
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """How many rows there are before a filter."""
        return len(self.choice.rows)

    def tables(self, condition: Condition | None, target_bytes: int = _WINDOW_BYTES) -> Iterator[pa.Table]:
        """Yield the rows that a condition keeps, in tables of about `target_bytes`."""
        for rows, _ in self.numbered(condition, target_bytes):
            yield rows

    def numbered(
        self, condition: Condition | None, target_bytes: int = _WINDOW_BYTES
    ) -> Iterator[tuple[pa.Table, npt.NDArray[np.int64]]]:
        """Yield tables as `tables` does, and which of the chosen rows these are."""
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
        # Some column must be read, or nothing would tell how many rows there are.
        yield from self.choice.part.tables(self.fields, self.choice.rows, target_bytes)


@dataclass(frozen=True)
class FreshRows:
    """A base version and the shards' rows that are not in it.

    Attributes:
        base: the version.
        shards: those that have rows which are not in it.
    """

    base: Snapshot
    shards: tuple[Shard, ...]
    _hidden: list[dict[int, BitMap]] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the primary key; none if the table has none."""
        return tuple(field.name for field in primary_key(self.base.schema))

    @cached_property
    def _choice(self) -> tuple[list[RowChoice], list[pa.Table]]:
        choices: list[RowChoice] = []
        keys = []
        for shard in self.shards:
            its, present = choose(shard.parts, self.key_names)
            choices += its
            keys.append(present)
        return choices, keys

    @property
    def choices(self) -> list[RowChoice]:
        """The rows of all shards that count."""
        return self._choice[0]

    @cached_property
    def hidden(self) -> dict[int, BitMap]:
        """The live rows of the base that a shard has a newer state of: fragment id -> offsets."""
        tables = [table for table in self._choice[1] if table.num_rows]
        if not self.key_names or not tables:
            return {}
        return self.base_rows_of(pa.concat_tables(tables))[0]

    def base_rows_of(self, keys: pa.Table) -> tuple[dict[int, BitMap], pa.Table, npt.NDArray[np.int64]]:
        """Return the live rows of the base that have one of some keys.

        Returns:
            fragment id -> offsets; their addresses as a table with one column; and the row of `keys` of each.
        """
        index = KeyIndex([keys[name] for name in self.key_names])
        fields = [self.base.schema.field(name) for name in self.key_names]
        scan = self.base.scan(self.key_names, with_row_address=True)
        hidden: dict[int, BitMap] = {}
        addresses, askers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for task in key_tasks(scan, fields, keys):
            for table in task.tables(_WINDOW_BYTES):
                places, rows = index.pairs(index.lookup([table[name] for name in self.key_names]))
                row_addresses = table[ROW_ADDRESS].to_numpy()[places]
                addresses.append(row_addresses)
                askers.append(rows)
                for number, part in runs_by_fragment(row_addresses):
                    hidden[number] = hidden.get(number, BitMap()) | BitMap(offsets_of(row_addresses[part]))
        return hidden, pa.table({ROW_ADDRESS: np.concatenate(addresses)}), np.concatenate(askers)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> FreshScan:
        """Plan to read columns; those that say where a row is are null in rows that are not in the base.

        Raises:
            SchemaError: a column does not exist or is named twice.
            OptionError: `_rowoffset` is among them.
        """
        plain = self.base.scan(columns, with_row_id=with_row_id, with_row_address=with_row_address)
        if ROW_OFFSET in plain.names:
            raise OptionError(
                f"rows that are not in the table have no place in it: read without {ROW_OFFSET}"
            )
        fields = {name: getattr(plain, name) for name in Scan.__dataclass_fields__}
        return FreshScan(**fields, fresh=self)

    def lookup(self, keys: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return the rows of some keys, in the order of the keys; keys without a row are passed over.

        Args:
            keys: the columns of the primary key, in the types of the table.
            names: the columns wanted.
        """
        index = KeyIndex([keys[name] for name in self.key_names])
        is_found = np.zeros(index.size, np.bool_)
        scan = self.scan(names)
        parts: list[pa.Table] = []
        askers: list[npt.NDArray[np.int64]] = []
        for shard in self.shards:
            for part in reversed(shard.parts):
                its = part.keys(self.key_names)
                codes = index.lookup([its.columns[name] for name in self.key_names])
                places = np.flatnonzero(codes >= 0)
                places = places[newest_of(codes[places])]
                places = places[~is_found[codes[places]]]
                is_found[codes[places]] = True
                places = places[~its.dead[places]]
                if len(places):
                    choice = RowChoice(part, its.numbers[places])
                    parts += scan.rows_of(choice).tables(None)
                    askers.append(codes[places])
        left = pick_rows(keys, np.flatnonzero((index.codes >= 0) & ~np.append(is_found, False)[index.codes]))
        if left.num_rows:
            from_base, rows = self._base_lookup(left, index, scan)
            parts.append(from_base)
            askers.append(rows)
        if not parts:
            return scan.arrow_schema.empty_table()
        table, owners = pa.concat_tables(parts), np.concatenate(askers)
        order = np.argsort(owners, kind="stable")
        first = np.searchsorted(owners[order], index.codes, side="left")
        there = first < np.searchsorted(owners[order], index.codes, side="right")
        return pick_rows(table, order[first[there]])

    def _base_lookup(
        self, keys: pa.Table, index: KeyIndex, scan: FreshScan
    ) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return rows of the base and the code of the key of each."""
        names = list(dict.fromkeys([*scan.names, *self.key_names]))
        plain = self.base.scan(names)
        fields = [self.base.schema.field(name) for name in self.key_names]
        tables = [plain.arrow_schema.empty_table()]
        key_index = KeyIndex([keys[name] for name in self.key_names])
        for task in key_tasks(plain, fields, keys):
            for table in task.tables(_WINDOW_BYTES):
                there = key_index.lookup([table[name] for name in self.key_names]) >= 0
                tables.append(pick_rows(table, np.flatnonzero(there)))
        rows = pa.concat_tables(tables)
        codes = index.lookup([rows[name] for name in self.key_names])
        columns = pa.Table.from_arrays([rows[name] for name in scan.names], schema=scan.arrow_schema)
        return columns, codes


def newest_of(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of the last row of each code, ascending."""
    _, last = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - last)


@dataclass(frozen=True)
class FreshScan(Scan):
    """A scan of the base without its hidden rows, and then of the rows of the shards.

    The base is what its tasks read; the rows of the shards come from `parts`.
    """

    fresh: FreshRows = field(kw_only=True)

    def tasks(self, filter_columns: Sequence[str] = ()) -> list[ScanTask]:
        """Return one task per fragment of the base, without the hidden rows."""
        return [self._visible(task) for task in super().tasks(filter_columns)]

    def _tasks_for_rows(self, *arguments: object) -> list[ScanTask]:
        return [self._visible(task) for task in super()._tasks_for_rows(*arguments)]  # type: ignore[arg-type]

    def _visible(self, task: ScanTask) -> ScanTask:
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
        """Yield the rows of the base and then those of the shards, in tables of about `target_bytes`."""
        yield from super().tables(filter, target_bytes, ahead)
        condition = None if filter is None else self.condition(filter)
        for part in self.parts(condition):
            yield from part.tables(condition, target_bytes)

    def parts(self, condition: Condition | None = None) -> list[ChosenRows]:
        """Return the rows of the shards that count, part by part; the filter is for their reading."""
        return [self.rows_of(choice, condition) for choice in self.fresh.choices]

    def rows_of(self, choice: RowChoice, condition: Condition | None = None) -> ChosenRows:
        """Return rows of a part as they are read for this scan."""
        log_fields = {field.name: field for field in wal_fields(self.manifest.schema)}
        columns = [*self.names, *(() if condition is None else condition.columns)]
        fields = tuple(log_fields[name] for name in dict.fromkeys(columns) if name in log_fields)
        if not fields:
            fields = (next(iter(log_fields.values())),)
        return ChosenRows(choice, self.names, fields, self.arrow_schema)

    def slice(self, offset: int, limit: int | None, target_bytes: int = _WINDOW_BYTES) -> Iterator[pa.Table]:
        """Yield `limit` rows after the first `offset` ones."""
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
        """Return the rows of a fragment of the base that are neither deleted nor hidden."""
        return super().live_rows(fragment) - len(self.fresh.hidden.get(fragment.id, ()))

    def count(self) -> int:
        """Return the number of rows."""
        return super().count() + sum(len(choice.rows) for choice in self.fresh.choices)


def open_fresh(table: TableRef, *, accept_loss: bool = False) -> FreshRows:
    """Look at the newest version of a table and at all that is not in it yet.

    Args:
        accept_loss: pass over entries of logs that are missing or damaged.

    Raises:
        WalHoleError, WalEntryError: entries of a log are missing or damaged.
        TableNotFoundError: there is no table.
        UnsupportedFormatError: the table has blobs, which logs do not hold.
        FormatError: an SSTable that is listed is gone or damaged.
    """
    gone: Exception | None = None
    for _ in range(_ATTEMPTS):
        before = _load_shards(table)
        base = indexed_snapshot(table, load_latest(table))
        compacted = compacted_generations(base)
        if compacted is None:
            return FreshRows(base, ())
        try:
            shards = [
                _open_shard(base, paths, manifest, compacted.get(paths.shard, 0), accept_loss)
                for paths, manifest in before
            ]
        except (TailMovedError, FileNotFoundError) as error:
            gone = error
            continue
        if _stood_still(shards, _load_shards(table)):
            return FreshRows(base, tuple(shard for shard in shards if shard.parts))
    raise FormatError(
        f"an SSTable that a shard lists is gone, or the shards change too fast to be read: {gone}",
        path=table.root,
    )


def _load_shards(table: TableRef) -> list[tuple[ShardPaths, ShardManifest]]:
    result = []
    for shard in list_shards(table):
        paths = ShardPaths(table.root, shard)
        manifest = load_shard(table.store, paths)
        if manifest is None:
            # A log without a manifest is replayed from its begin.
            manifest = ShardManifest(current_generation=1)
        result.append((paths, manifest))
    return result


def _open_shard(
    base: Snapshot, paths: ShardPaths, manifest: ShardManifest, compacted: int, accept_loss: bool
) -> Shard:
    """Open the rows of a shard that are not in the base.

    Raises:
        FileNotFoundError: an SSTable is gone.
        TailMovedError: the log has moved on.
    """
    schema = base.schema
    parts: list[Part] = []
    for entry in sorted(manifest.sstables, key=lambda entry: entry.generation):
        if entry.generation > compacted:
            parts += open_sstable(TableRef(base.store, paths.sstable(entry.path)), schema)
    after = manifest.replay_after_wal_entry_position
    tail = read_tail(base.store, paths, after, schema, accept_loss=accept_loss)
    entries = [entry for _, its in by_generation(tail.entries, manifest.current_generation) for entry in its]
    rows = rows_of(entries, schema)
    if rows.num_rows:
        positions = tuple(entry.position for entry in entries)
        parts.append(LogPart(base.store, paths, positions, schema, rows.num_rows, [rows]))
    if parts and any(node.is_blob for node in schema.walk()):
        raise UnsupportedFormatError("reading rows of a MemWAL of a table with blobs", path=paths.directory)
    return Shard(paths, manifest, tuple(parts), tail.next_position)


def _stood_still(shards: Sequence[Shard], now: Sequence[tuple[ShardPaths, ShardManifest]]) -> bool:
    """Whether no entry behind those that were read had become part of an SSTable before the reading ended.

    Entries that an SSTable holds may have been collected, and then a log seems to end before them.
    """
    flushed = {paths.shard: manifest.replay_after_wal_entry_position for paths, manifest in now}
    return all(flushed.get(shard.paths.shard, 0) < shard.next_position for shard in shards)
