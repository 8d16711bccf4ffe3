"""Bringing SSTables into the table, and collecting what is not needed any more.

    compact    of each shard, oldest generation first: of each key the newest row. Deleted keys are deleted in
               one commit, the others updated or inserted in the next, which also says which SSTables are in
               the table now. A crash between the two does no harm: the work is done again, with the same
               outcome
    drain      the shard's manifest stops to name them. Epoch, generation and replay position stay, so a
               writer that is at work goes on
    collect    what nothing names is deleted after a time of grace: SSTables, old manifests of shards, entries
               of logs whose rows are in SSTables. Never the last entry of a log: it is where a writer that
               was displaced finds out

Without a primary key, rows are appended; the same commit says so, so they come in once. (MemWAL, compaction
and garbage collection.)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.errors import FormatError, IncompatibleConflictError, OptionError
from spark_lance.io.local import sync_files
from spark_lance.io.locations import join
from spark_lance.io.progress import report
from spark_lance.io.store import Store
from spark_lance.io.stored_object import StoredObject
from spark_lance.memwal.entries import wal_fields
from spark_lance.memwal.fresh import compacted_generations
from spark_lance.memwal.fresh_sources import SstablePart, choose, open_sstable
from spark_lance.memwal.names import GRACE, ShardPaths, list_shards, numbers_in, sstable_generation
from spark_lance.memwal.shard_manifest import change_shard, load_shard
from spark_lance.memwal.staged import collectable_stages
from spark_lance.memwal.writer import ShardWriter
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import CompactedSsTable, ShardManifest, SsTable
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import DATA_DIR, deletion_path
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.merge_insert import MergeRules, merge_rows
from spark_lance.table.rows.row_rewrites import commit_moves
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.versions.ages import clamped_age
from spark_lance.table.versions.versions import load_latest
from spark_lance.table.writing.write import write_fragments

logger = logging.getLogger(__name__)

_FOLD_BYTES = 256 << 20
_KEPT_MANIFESTS = 5
_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class WalCompaction:
    """The result of a compaction.

    Attributes:
        version: the newest version of the table after it.
        sstables: SSTables whose rows are in the table now.
        rows_upserted, rows_deleted: rows that were written, and old ones that only went.
        shards: the shards that had SSTables.
    """

    version: int
    sstables: int = 0
    rows_upserted: int = 0
    rows_deleted: int = 0
    shards: int = 0

    def and_also(self, other: WalCompaction) -> WalCompaction:
        """Return both together."""
        return WalCompaction(
            max(self.version, other.version),
            self.sstables + other.sstables,
            self.rows_upserted + other.rows_upserted,
            self.rows_deleted + other.rows_deleted,
            self.shards + other.shards,
        )


@dataclass(frozen=True)
class WalCollection:
    """The result of a collection: counts of SSTables, log entries and shard manifests, and the bytes of all;
    `paths` of the deleted files, or of those to delete."""

    sstables: int = 0
    wal_entries: int = 0
    shard_manifests: int = 0
    bytes_removed: int = 0
    paths: tuple[str, ...] = field(default=(), repr=False)

    def and_also(self, other: WalCollection) -> WalCollection:
        """Return both together."""
        return WalCollection(
            self.sstables + other.sstables,
            self.wal_entries + other.wal_entries,
            self.shard_manifests + other.shard_manifests,
            self.bytes_removed + other.bytes_removed,
            self.paths + other.paths,
        )


def shards_of(snapshot: Snapshot, shards: Iterable[uuid.UUID] | None = None) -> list[uuid.UUID]:
    """Return the shards of a table, or those of some that it has.

    Raises:
        OptionError: the table has no MemWAL, or no such shard.
    """
    if compacted_generations(snapshot) is None:
        raise OptionError(f"{snapshot.root} has no MemWAL: initialize_mem_wal() makes one")
    present = list_shards(snapshot.table)
    if shards is None:
        return present
    result = list(shards)
    if missing := [shard for shard in result if shard not in present]:
        raise OptionError(f"there is no shard {missing[0]} of {snapshot.root}")
    return result


def compact_wal(
    snapshot: Snapshot,
    shards: Iterable[uuid.UUID] | None = None,
    *,
    flush: bool = False,
    max_bytes: int = _FOLD_BYTES,
) -> WalCompaction:
    """Bring the SSTables of shards into the table, shard by shard.

    Args:
        snapshot: the table.
        shards: those to look at; all by default.
        flush: make SSTables of what is only in logs first. That claims each shard: a writer that is at work
            is fenced.
        max_bytes: about the bytes of rows that are held at once; a single SSTable may have more.

    Raises:
        OptionError: the table has no MemWAL.
        WalHoleError, WalEntryError: with `flush`: a log is damaged.
        CommitError: other writers were in the way; see its subclasses. What was brought in stays.
    """
    shard_ids = shards_of(snapshot, shards)
    result = WalCompaction(snapshot.version)
    for number, shard in enumerate(shard_ids):
        report("compacting shards", number, len(shard_ids), "shards")
        result = result.and_also(compact_shard(snapshot, shard, flush=flush, max_bytes=max_bytes))
    return result


def compact_shard(
    snapshot: Snapshot, shard: uuid.UUID, *, flush: bool = False, max_bytes: int = _FOLD_BYTES
) -> WalCompaction:
    """Bring the SSTables of one shard into the table; arguments and errors as of `compact_wal`."""
    store, paths = snapshot.store, ShardPaths(snapshot.root, shard)
    at = snapshot.at(load_latest(TableRef(store, snapshot.root)))
    if flush:
        with ShardWriter(at, shard):
            pass
    manifest = load_shard(store, paths)
    result = WalCompaction(at.version)
    if manifest is None:
        return result
    begin = (compacted_generations(at) or {}).get(shard, 0)
    waiting = sorted(
        (entry for entry in manifest.sstables if entry.generation > begin), key=lambda entry: entry.generation
    )
    while waiting:
        run: list[SsTable] = []
        size = 0
        while waiting and (not run or size + waiting[0].in_memory_bytes <= max_bytes):
            size += waiting[0].in_memory_bytes
            run.append(waiting.pop(0))
        try:
            parts = [
                p
                for entry in run
                for p in open_sstable(TableRef(store, paths.sstable(entry.path)), at.schema)
            ]
        except FileNotFoundError as error:
            raise FormatError(f"an SSTable that the shard lists is gone: {error}", paths.directory) from None
        mark = CompactedSsTable(generation=run[-1].generation)
        mark.shard_id.uuid = shard.bytes
        try:
            after, upserted, deleted = _fold(at, parts, mark)
        except IncompatibleConflictError:
            newest = at.at(load_latest(TableRef(store, snapshot.root)))
            if (compacted_generations(newest) or {}).get(shard, 0) < mark.generation:
                raise
            # Another compaction of the shard was first; the rest is its own, too.
            at = newest
            break
        _force(at, after)
        at = at.at(after)
        result = result.and_also(WalCompaction(after.version, len(run), upserted, deleted))
    drain(at, paths)
    return result.and_also(WalCompaction(at.version, shards=1 if result.sstables else 0))


def drain(snapshot: Snapshot, paths: ShardPaths) -> None:
    """Take SSTables that are in the table out of a shard's manifest."""
    reached = (compacted_generations(snapshot) or {}).get(paths.shard, 0)

    def change(message: ShardManifest) -> bool:
        remaining = [entry for entry in message.sstables if entry.generation > reached]
        if len(remaining) == len(message.sstables):
            return False
        copies = ShardManifest(sstables=remaining)
        message.ClearField("sstables")
        message.sstables.MergeFrom(copies.sstables)
        return True

    change_shard(snapshot.store, paths, change)


def _fold(at: Snapshot, parts: Sequence[SstablePart], mark: CompactedSsTable) -> tuple[Manifest, int, int]:
    """Bring the newest rows of some SSTables into the table; return the version, and rows written and
    deleted."""
    key = [field.name for field in primary_key(at.schema)]
    fields = wal_fields(at.schema)
    choices, keys = choose(parts, key)
    tables = [table for each in choices for table in each.part.tables(fields, each.rows, _WINDOW_BYTES)]
    schema = at.schema.to_arrow()
    live = pa.concat_tables(tables) if tables else pa.schema([f.arrow_field() for f in fields]).empty_table()
    live = pa.Table.from_arrays(
        [pa.chunked_array(join_arrays(column.chunks), column.type) for column in live.columns], schema=schema
    )
    if not key:
        return _append(at, live, mark), live.num_rows, 0
    deleted = 0
    dead = _without(keys, live.select(key), key)
    if dead.num_rows:
        gone = merge_rows(at, dead, MergeRules(tuple(key), matched="delete"))
        at, deleted = at.at(gone.manifest), gone.num_deleted_rows
    rules = MergeRules(tuple(key), matched="update", insert=True)
    return merge_rows(at, live, rules, compacted=[mark]).manifest, live.num_rows, deleted


def _without(keys: pa.Table, live: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the keys that no live row has."""
    index = KeyIndex([live[name] for name in names])
    return keys.filter(pa.array(index.lookup([keys[name] for name in names]) < 0))


def _append(at: Snapshot, rows: pa.Table, mark: CompactedSsTable) -> Manifest:
    """Append rows of a table without a key, and say where they are from in the same commit."""
    written = write_fragments(rows.to_batches(), at.table, at.schema, version=at.manifest.file_version)
    added = [table_pb2.DataFragment.FromString(data) for data in written]
    return commit_moves(RowChanges(at, RowSet()), added, (), SYSTEM_ENV, compacted=[mark])


def _force(before: Snapshot, after: Manifest) -> None:
    """Force what a compaction wrote to the disk: soon its SSTables are gone, which may have been there."""
    if not before.store.is_local:
        return
    paths_before = {file.path for fragment in before.fragments for file in fragment.files}
    root = before.root
    new = [
        join(root, DATA_DIR, file.path)
        for fragment in after.fragments
        for file in fragment.files
        if file.path not in paths_before and not file.HasField("base_id")
    ]
    marks = [
        deletion_path(root, fragment.id, fragment.deletion_file)
        for fragment in after.fragments
        if fragment.HasField("deletion_file") and fragment.deletion_file.read_version >= before.version
    ]
    sync_files([*new, *marks, after.path])


def collect_wal(
    snapshot: Snapshot,
    shards: Iterable[uuid.UUID] | None = None,
    *,
    older_than: timedelta = GRACE,
    dry_run: bool = False,
) -> WalCollection:
    """Delete what shards do not need any more.

    Args:
        snapshot: the newest version of the table.
        shards: those to look at; all by default.
        older_than: the grace for readers and writers that are at work: only what was written before is
            deleted.
        dry_run: delete nothing.

    Raises:
        OptionError: the table has no MemWAL.
    """
    latest = snapshot.at(load_latest(snapshot.table))
    limit = datetime.now(timezone.utc) - clamped_age(older_than)
    result = WalCollection()
    for shard in shards_of(latest, shards):
        its = _collectable(latest, ShardPaths(latest.root, shard), limit)
        result = result.and_also(its)
    result = result.and_also(_left_by_tasks(latest, limit))
    if not dry_run:
        snapshot.store.delete_many(result.paths, latest.root)
        _remove_empty(latest, result.paths)
    return result


def _collectable(at: Snapshot, paths: ShardPaths, limit: datetime) -> WalCollection:
    store = at.store
    manifest = load_shard(store, paths)
    if manifest is None:
        return WalCollection()
    reached = (compacted_generations(at) or {}).get(paths.shard, 0)
    listed = {entry.path.rpartition("/")[2] for entry in manifest.sstables}
    gone: list[StoredObject] = []
    sstables = 0
    for name in store.list_directories(paths.directory):
        generation = sstable_generation(name)
        # A flush that is under way has not named its SSTable yet.
        if generation is None or name in listed or generation >= manifest.current_generation:
            continue
        files = store.list_to_delete(paths.sstable(name), paths.root, recursive=True)
        if files and (generation <= reached or name not in listed) and all(_is_old(f, limit) for f in files):
            gone += files
            sstables += 1
    entries = _old_entries(store, paths, manifest.replay_after_wal_entry_position, limit)
    manifests = _old_manifests(store, paths, limit)
    everything = [*gone, *entries, *manifests]
    return WalCollection(
        sstables,
        len(entries),
        len(manifests),
        sum(item.size for item in everything),
        tuple(item.path for item in everything),
    )


def _left_by_tasks(at: Snapshot, limit: datetime) -> WalCollection:
    """Return what tasks left for shards whose job never came to an end."""
    gone = collectable_stages(at.table, limit)
    return WalCollection(
        bytes_removed=sum(item.size for item in gone), paths=tuple(item.path for item in gone)
    )


def _is_old(item: StoredObject, limit: datetime) -> bool:
    return item.modified is not None and item.modified < limit


def _old_entries(store: Store, paths: ShardPaths, flushed: int, limit: datetime) -> list[StoredObject]:
    """Return the entries whose rows are in SSTables, but for the last file of the log."""
    files = {
        numbers[0]: item
        for item in store.list_to_delete(paths.entries, paths.root)
        if (numbers := numbers_in([item.name]))
    }
    highest = max(files, default=0)
    return [
        item
        for position, item in sorted(files.items())
        if position <= flushed and position != highest and _is_old(item, limit)
    ]


def _old_manifests(store: Store, paths: ShardPaths, limit: datetime) -> list[StoredObject]:
    """Return the manifests of a shard but for some of the newest."""
    files = {
        numbers[0]: item
        for item in store.list_to_delete(paths.manifests, paths.root)
        if (numbers := numbers_in([item.name]))
    }
    return [files[version] for version in sorted(files)[:-_KEPT_MANIFESTS] if _is_old(files[version], limit)]


def _remove_empty(snapshot: Snapshot, paths: Iterable[str]) -> None:
    """Remove directories of this machine in which nothing is left."""
    folders = {path.rpartition("/")[0] for path in paths}
    folders |= {folder.rpartition("/")[0] for folder in folders}
    for folder in sorted(folders, key=len, reverse=True):
        if folder.startswith(f"{snapshot.root}/"):
            snapshot.store.remove_empty(folder, snapshot.root)
