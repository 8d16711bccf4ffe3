"""Compact SSTables into the table, and collect files that are no longer needed.

    compact    for each shard, oldest generation first, write the newest row of each key. One commit deletes
               the deleted keys. The next commit updates and inserts the other rows, and records which
               SSTables are in the table. After a crash between the two commits, the work is repeated with the
               same result
    drain      remove these SSTables from the shard's manifest. Epoch, generation and replay position do not
               change, so an active writer is not affected
    collect    after a grace period, delete files that nothing refers to: SSTables, old shard manifests, log
               entries whose rows are in SSTables, and temporary files of killed writers. The last entry of a
               log is never deleted: a displaced writer detects its successor there. The grace period of an
               SSTable and of a log entry starts when a newer shard manifest replaces the last manifest that
               refers to it

Without a primary key, rows are appended. The same commit records the SSTables, so the rows are appended only
once. (MemWAL, compaction and garbage collection.)
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.errors import FormatError, IncompatibleConflictError, OptionError, WriterFencedError
from spark_lance.io.local import sync_files
from spark_lance.io.locations import join
from spark_lance.io.progress import report
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.stored_object import StoredObject
from spark_lance.memwal.entries import wal_fields
from spark_lance.memwal.flush_claims import last_logged_rows
from spark_lance.memwal.fresh import compacted_generations
from spark_lance.memwal.fresh_sources import SstablePart, choose, open_sstable
from spark_lance.memwal.names import (
    GRACE,
    ShardPaths,
    is_temporary,
    list_shards,
    parse_numbers,
    sstable_generation,
)
from spark_lance.memwal.shard_manifest import change_shard, load_shard, read_shard
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
# A stream claims its shards in every micro-batch, and each claim ends a flush.
_FLUSH_RETRIES = RetryPolicy(attempts=12, base_seconds=0.05, cap_seconds=2.0, total_seconds=30.0)
_MIN_MANIFESTS = 5
_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class WalCompaction:
    """The result of a compaction.

    Attributes:
        version: the newest version of the table after the compaction.
        sstables: the number of SSTables that were compacted into the table.
        rows_upserted, rows_deleted: the numbers of written rows, and of rows that were deleted without a new
            version.
        shards: the number of shards that had SSTables.
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
    """The result of a collection.

    Attributes:
        sstables, wal_entries, shard_manifests: the numbers of deleted SSTables, log entries and manifests.
        bytes_removed: the total size of the deleted files.
        paths: the paths of the deleted files, or with `dry_run` of the files to delete.
    """

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


def resolve_shards(snapshot: Snapshot, shards: Iterable[uuid.UUID] | None = None) -> list[uuid.UUID]:
    """Return the ids of all shards of a table, or of the given shards after checking that they exist.

    Raises:
        OptionError: the table has no MemWAL, or a shard does not exist.
    """
    if compacted_generations(snapshot) is None:
        raise OptionError(f"{snapshot.root} has no MemWAL: create one with initialize_mem_wal()")
    present = list_shards(snapshot.table)
    if shards is None:
        return present
    result = list(shards)
    if missing := [shard for shard in result if shard not in present]:
        raise OptionError(f"{snapshot.root} has no shard {missing[0]}: wal.shards() lists its shards")
    return result


def compact_wal(
    snapshot: Snapshot,
    shards: Iterable[uuid.UUID] | None = None,
    *,
    flush: bool = False,
    max_bytes: int = _FOLD_BYTES,
) -> WalCompaction:
    """Compact the SSTables of shards into the table, shard by shard.

    Args:
        snapshot: a version of the table.
        shards: the ids of the shards; all by default.
        flush: whether to write the rows of logs to SSTables first. This claims each shard that has such
            rows. This package's writers wait for the flush and go on; pylance's writers are fenced.
        max_bytes: the approximate limit for rows in memory; a single SSTable may exceed it.

    Raises:
        OptionError: the table has no MemWAL, or a shard does not exist.
        WalHoleError, WalEntryError: a log is damaged (only with `flush`).
        CommitError: the commit conflicted; see its subclasses. Earlier commits of the compaction are kept.
    """
    shard_ids = resolve_shards(snapshot, shards)
    result = WalCompaction(snapshot.version)
    for number, shard in enumerate(shard_ids):
        report("compacting shards", number, len(shard_ids), "shards")
        result = result.and_also(compact_shard(snapshot, shard, flush=flush, max_bytes=max_bytes))
    return result


def compact_shard(
    snapshot: Snapshot, shard: uuid.UUID, *, flush: bool = False, max_bytes: int = _FOLD_BYTES
) -> WalCompaction:
    """Compact the SSTables of one shard into the table; arguments and errors are as in `compact_wal`."""
    paths = ShardPaths(snapshot.table, shard)
    at = snapshot.at(load_latest(snapshot.table))
    if flush:
        flush_log(at, shard)
    manifest = load_shard(paths)
    result = WalCompaction(at.version)
    if manifest is None:
        return result
    compacted_generation = (compacted_generations(at) or {}).get(shard, 0)
    waiting = sorted(
        (entry for entry in manifest.sstables if entry.generation > compacted_generation),
        key=lambda entry: entry.generation,
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
                for p in open_sstable(TableRef(paths.store, paths.sstable(entry.path)), at.schema)
            ]
        except FileNotFoundError as error:
            raise FormatError(
                f"the shard manifest lists an SSTable that does not exist: {error}", paths.directory
            ) from None
        mark = CompactedSsTable(generation=run[-1].generation)
        mark.shard_id.uuid = shard.bytes
        try:
            after, upserted, deleted = _fold(at, parts, mark)
        except IncompatibleConflictError:
            newest = at.at(load_latest(snapshot.table))
            if (compacted_generations(newest) or {}).get(shard, 0) < mark.generation:
                raise
            # Another compaction of the shard was first, and does the rest of the work, too.
            at = newest
            break
        _sync_new_files(at, after)
        at = at.at(after)
        result = result.and_also(WalCompaction(after.version, len(run), upserted, deleted))
    drain(at, paths)
    return result.and_also(WalCompaction(at.version, shards=1 if result.sstables else 0))


def flush_log(snapshot: Snapshot, shard: uuid.UUID) -> None:
    """Write the rows that the log of a shard has now to SSTables, and retry if a writer claims the shard.

    Raises:
        ShardSealedError: the shard is sealed, and its log has rows.
        WriterFencedError: a writer claimed the shard during every attempt.
        WalHoleError, WalEntryError: the log is damaged.
    """
    paths = ShardPaths(snapshot.table, shard)
    target = last_logged_rows(paths, snapshot.schema)
    for wait in (*_FLUSH_RETRIES.delays(random.random), None):
        if not target:
            return
        try:
            with ShardWriter(snapshot, shard, only_flushes=True):
                return
        except WriterFencedError:
            manifest = load_shard(paths)
            if manifest is not None and manifest.replay_after_wal_entry_position >= target:
                return
            if wait is None:
                raise
            time.sleep(wait)


def drain(snapshot: Snapshot, paths: ShardPaths) -> None:
    """Remove SSTables that are in the table from a shard's manifest."""
    compacted_generation = (compacted_generations(snapshot) or {}).get(paths.shard, 0)

    def change(message: ShardManifest) -> bool:
        remaining = [entry for entry in message.sstables if entry.generation > compacted_generation]
        if len(remaining) == len(message.sstables):
            return False
        copies = ShardManifest(sstables=remaining)
        message.ClearField("sstables")
        message.sstables.MergeFrom(copies.sstables)
        return True

    change_shard(paths, change)


def _fold(at: Snapshot, parts: Sequence[SstablePart], mark: CompactedSsTable) -> tuple[Manifest, int, int]:
    """Commit the newest rows of some SSTables; return the version, and the rows written and deleted."""
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
    deleted_count = 0
    deleted_keys = _keys_without_rows(keys, live.select(key), key)
    if deleted_keys.num_rows:
        delete_result = merge_rows(at, deleted_keys, MergeRules(tuple(key), matched="delete"))
        at, deleted_count = at.at(delete_result.manifest), delete_result.num_deleted_rows
    rules = MergeRules(tuple(key), matched="update", insert=True)
    return merge_rows(at, live, rules, compacted=[mark]).manifest, live.num_rows, deleted_count


def _keys_without_rows(keys: pa.Table, live: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the keys that no live row has."""
    index = KeyIndex([live[name] for name in names])
    return keys.filter(pa.array(index.lookup([keys[name] for name in names]) < 0))


def _append(at: Snapshot, rows: pa.Table, mark: CompactedSsTable) -> Manifest:
    """Append rows to a table without a key, and record their SSTables in the same commit."""
    fragment_messages = write_fragments(
        rows.to_batches(), at.table, at.schema, version=at.manifest.file_version
    )
    added = [table_pb2.DataFragment.FromString(data) for data in fragment_messages]
    return commit_moves(RowChanges(at, RowSet()), added, (), SYSTEM_ENV, compacted=[mark])


def _sync_new_files(before: Snapshot, after: Manifest) -> None:
    """Sync the files of a compaction to disk, because the SSTables, which may be on disk, will be deleted."""
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
    """Delete files that shards no longer need.

    Args:
        snapshot: a version of the table.
        shards: the ids of the shards; all by default.
        older_than: the grace period for active readers and writers: only older files are deleted.
        dry_run: delete nothing, and only report the files.

    Raises:
        OptionError: the table has no MemWAL, or a shard does not exist.
    """
    latest = snapshot.at(load_latest(snapshot.table))
    limit = datetime.now(timezone.utc) - clamped_age(older_than)
    result = WalCollection()
    for shard in resolve_shards(latest, shards):
        shard_result = _collect_shard(latest, ShardPaths(latest.table, shard), limit)
        result = result.and_also(shard_result)
    result = result.and_also(_collect_stages(latest, limit))
    if not dry_run:
        snapshot.store.delete_many(result.paths, latest.root)
        _remove_empty(latest, result.paths)
    return result


def _collect_shard(at: Snapshot, paths: ShardPaths, limit: datetime) -> WalCollection:
    store = at.store
    manifest = load_shard(paths)
    if manifest is None:
        return WalCollection()
    versions = _files_by_number(at.table, paths.manifests)
    old_versions = [version for version, item in versions.items() if _is_old(item, limit)]
    # Readers may still use the manifest that was the newest at `limit`, and every newer manifest.
    oldest_used = read_shard(paths, old_versions[-1]) if old_versions else None
    if oldest_used is None:
        return WalCollection()
    compacted_generation = (compacted_generations(at) or {}).get(paths.shard, 0)
    sstable_names = {
        entry.path.rpartition("/")[2] for each in (oldest_used, manifest) for entry in each.sstables
    }
    old_files: list[StoredObject] = []
    sstables = 0
    for name in store.list_directories(paths.directory):
        generation = sstable_generation(name)
        # An active flush has not listed its SSTable yet.
        if generation is None or name in sstable_names or generation >= manifest.current_generation:
            continue
        # An SSTable that is neither listed nor compacted is left over from a failed flush. A flush of the
        # newest generation may still be active.
        if generation > compacted_generation and generation >= manifest.current_generation - 1:
            continue
        files = store.list_to_delete(paths.sstable(name), paths.root, recursive=True)
        if files and all(_is_old(file, limit) for file in files):
            old_files += files
            sstables += 1
    entries = _old_entries(at.table, paths, oldest_used.replay_after_wal_entry_position, limit)
    superseded = set(old_versions[:-1])
    manifests = [versions[version] for version in list(versions)[:-_MIN_MANIFESTS] if version in superseded]
    temporary_files = [
        item
        for directory in (paths.entries, paths.manifests)
        for item in store.list_to_delete(directory, paths.root)
        if is_temporary(item.name) and _is_old(item, limit)
    ]
    everything = [*old_files, *entries, *manifests, *temporary_files]
    return WalCollection(
        sstables,
        len(entries),
        len(manifests),
        sum(item.size for item in everything),
        tuple(item.path for item in everything),
    )


def _collect_stages(at: Snapshot, limit: datetime) -> WalCollection:
    """Return the staged files of jobs that never finished."""
    staged_files = collectable_stages(at.table, limit)
    return WalCollection(
        bytes_removed=sum(item.size for item in staged_files), paths=tuple(item.path for item in staged_files)
    )


def _is_old(item: StoredObject, limit: datetime) -> bool:
    return item.modified is not None and item.modified < limit


def _files_by_number(table: TableRef, directory: str) -> dict[int, StoredObject]:
    """Return the manifests or log entries of a directory by their numbers, ascending."""
    files = {
        numbers[0]: item
        for item in table.store.list_to_delete(directory, table.root)
        if (numbers := parse_numbers([item.name]))
    }
    return dict(sorted(files.items()))


def _old_entries(table: TableRef, paths: ShardPaths, flushed: int, limit: datetime) -> list[StoredObject]:
    """Return the old entries whose rows are in SSTables, except the last file of the log."""
    files = _files_by_number(table, paths.entries)
    highest = max(files, default=0)
    return [
        item
        for position, item in files.items()
        if position <= flushed and position != highest and _is_old(item, limit)
    ]


def _remove_empty(snapshot: Snapshot, paths: Iterable[str]) -> None:
    """Remove empty directories of a local store, except those that an active writer has just created."""
    folders = {path.rpartition("/")[0] for path in paths}
    folders |= {folder.rpartition("/")[0] for folder in folders}
    folders -= {ShardPaths(snapshot.table, shard).directory for shard in list_shards(snapshot.table)}
    for folder in sorted(folders, key=len, reverse=True):
        if folder.startswith(f"{snapshot.root}/"):
            snapshot.store.remove_empty(folder, snapshot.root)
