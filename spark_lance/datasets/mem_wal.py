"""Streaming upserts without Spark: a log and SSTables next to the table (MemWAL).

The manifest entry `__lance_mem_wal` defines the sharding and the defaults of writers. It needs no feature
flag and no other file. (MemWAL, index entry.)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.fresh import FreshDataset
from spark_lance.errors import OptionError, RetryableConflictError, SchemaError, UnsupportedFormatError
from spark_lance.io.locations import join
from spark_lance.memwal.compact import WalCollection, WalCompaction, collect_wal, compact_wal, resolve_shards
from spark_lance.memwal.entries import TOMBSTONE, read_tail
from spark_lance.memwal.fresh import compacted_generations, open_fresh
from spark_lance.memwal.names import GRACE, MEM_WAL_DIR, ShardPaths, list_shards, parse_shard_id
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.memwal.shard_router import RoutedWriter
from spark_lance.memwal.sharding import sharding_spec
from spark_lance.memwal.sstables import check_key
from spark_lance.memwal.writer import ShardWriter
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import MemWalIndexDetails, ShardManifest
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.operations.mem_wal_marks import mem_wal_details
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

# The same defaults as in the reference implementation. All of them are hints for writers.
WRITER_DEFAULTS: Mapping[str, str] = {
    "durable_write": "true",
    "enable_memtable": "true",
    "max_wal_buffer_size": "10485760",
    "max_wal_flush_interval_ms": "100",
    "max_memtable_size": "268435456",
    "max_memtable_rows": "100000",
    "max_memtable_batches": "8000",
    "max_unflushed_memtable_bytes": "1073741824",
    "manifest_scan_batch_size": "2",
    "max_wal_persist_retries": "3",
    "wal_persist_retry_base_delay_ms": "50",
    "backpressure_log_interval_ms": "30000",
    "stats_log_interval_ms": "60000",
}


def initialize_mem_wal(
    snapshot: Snapshot,
    *,
    maintained_indexes: Sequence[str] | None = None,
    bucket_column: str | None = None,
    num_buckets: int | None = None,
    identity_column: str | None = None,
    unsharded: bool = False,
    defaults: Mapping[str, object] | None = None,
) -> Manifest:
    """Create a table's MemWAL and return the new version.

    Args:
        snapshot: the table.
        maintained_indexes: indexes that writers of other engines maintain for rows in the MemWAL. Default:
            all indexes. Writers of this package maintain none.
        bucket_column, num_buckets, identity_column, unsharded: the sharding; see `DatasetWal.initialize`.
            Without any of them, the writer chooses the shard.
        defaults: writer settings, with the names in `WRITER_DEFAULTS`.

    Raises:
        OptionError: the table has a MemWAL, or shards of an earlier one; or a setting has a bad value.
        SchemaError: the primary key or the sharding column has an unsupported type.
        UnsupportedFormatError: the table has blobs, or is a legacy table.
        CommitError: the commit failed; see its subclasses.
    """
    manifest, schema = snapshot.manifest, snapshot.schema
    _check_no_mem_wal(manifest)
    if unknown := sorted(set(defaults or {}) - WRITER_DEFAULTS.keys()):
        raise OptionError(
            f"unknown setting of a shard writer: {', '.join(unknown)}; use {', '.join(WRITER_DEFAULTS)}"
        )
    if any(node.is_blob for node in schema.walk()):
        raise UnsupportedFormatError("a MemWAL of a table with blobs", path=manifest.path)
    if not manifest.file_version.writable:
        raise UnsupportedFormatError("a MemWAL of a legacy table", path=manifest.path)
    if any(field.name == TOMBSTONE for field in schema.fields):
        raise SchemaError(
            f"a MemWAL marks deleted rows in a column {TOMBSTONE!r}: rename the table's column of this name"
        )
    check_key(schema)
    if shards := list_shards(snapshot.table):
        raise OptionError(
            f"{join(snapshot.root, MEM_WAL_DIR)} has {len(shards)} shards of an earlier MemWAL, whose rows "
            "would become visible: delete them with drop_mem_wal(delete_shards=True)"
        )
    spec, shard_count = sharding_spec(
        schema,
        bucket_column=bucket_column,
        num_buckets=num_buckets,
        identity_column=identity_column,
        unsharded=unsharded,
    )
    details = MemWalIndexDetails(num_shards=shard_count)
    if spec is not None:
        details.sharding_specs.append(spec)
    details.maintain_all_indexes = maintained_indexes is None
    details.maintained_indexes.extend(_check_indices(manifest, maintained_indexes or ()))
    for name, value in {**WRITER_DEFAULTS, **(defaults or {})}.items():
        details.writer_config_defaults[name] = str(value).lower() if isinstance(value, bool) else str(value)
    entry = table_pb2.IndexMetadata(
        name=MEM_WAL,
        dataset_version=manifest.version,
        created_at=time.time_ns() // 1_000_000,
        index_version=0,
    )
    entry.uuid.uuid = uuid.uuid4().bytes
    entry.index_details.type_url = INDEX_KINDS["memwalindexdetails"].type_url
    entry.index_details.value = details.SerializeToString(deterministic=True)
    try:
        return commit_operation(snapshot.table, create_index_message([entry]), read_version=manifest.version)
    except RetryableConflictError:
        _check_no_mem_wal(load_latest(snapshot.table))
        raise


def _check_no_mem_wal(manifest: Manifest) -> None:
    if any(entry.name == MEM_WAL for entry in manifest.indices):
        raise OptionError(f"{manifest.path} already has a MemWAL")


def _check_indices(manifest: Manifest, names: Sequence[str]) -> Sequence[str]:
    existing = {entry.name for entry in manifest.indices} - {FRAGMENT_REUSE, MEM_WAL}
    if missing := sorted(set(names) - existing):
        raise OptionError(f"maintained_indexes: the table has no index {', '.join(missing)}")
    return names


def drop_mem_wal(snapshot: Snapshot, *, delete_shards: bool = False) -> Manifest:
    """Remove the MemWAL and return the new version.

    Args:
        snapshot: the table.
        delete_shards: also delete the shards, with all rows that are not in the table. Use it only while
            nobody writes to them.

    Raises:
        OptionError: the table has no MemWAL; or it has shards, and `delete_shards` is false.
        CommitError: the commit failed; see its subclasses.
    """
    manifest = snapshot.manifest
    removed = [entry for entry in manifest.indices if entry.name == MEM_WAL]
    shards = list_shards(snapshot.table)
    if not removed and not (shards and delete_shards):
        raise OptionError(f"{snapshot.root} has no MemWAL")
    if shards and not delete_shards:
        raise OptionError(
            f"{len(shards)} shards can have rows that are not in the table: move them there with "
            "wal.compact(flush=True), or delete them with delete_shards=True"
        )
    if removed:
        operation = create_index_message(removed=removed)
        manifest = commit_operation(snapshot.table, operation, read_version=manifest.version)
    for shard in shards:
        place = join(snapshot.root, MEM_WAL_DIR, str(shard))
        objects = snapshot.store.list_to_delete(place, snapshot.root, recursive=True)
        snapshot.store.delete_many((item.path for item in objects), snapshot.root)
        snapshot.store.remove_empty(place, snapshot.root)
    return manifest


@dataclass(frozen=True)
class ShardInfo:
    """The state of a shard.

    Attributes:
        shard_id: id of the shard.
        values: field of the sharding spec -> value of the shard, as bytes; empty if writers choose the shard.
        status: "active" or "sealed".
        writer_epoch: number of times that a writer claimed the shard.
        current_generation: generation of the next SSTable.
        compacted_generation: newest generation whose rows are in the table; 0 if there is none.
        sstables: generation -> directory of each listed SSTable.
        logged_rows: number of rows that are only in the log.
    """

    shard_id: str
    values: dict[str, bytes]
    status: str
    writer_epoch: int
    current_generation: int
    compacted_generation: int
    sstables: dict[int, str]
    logged_rows: int


@dataclass(frozen=True)
class DatasetWal:
    """The MemWAL of a table: logs of rows that are not in the table yet. Get it as `LanceDataset.wal`.

    Writers append rows to the log of a shard. `fresh` reads them immediately, and `compact` moves them into
    the table.
    """

    dataset: LanceDataset

    def initialize(
        self,
        *,
        maintained_indexes: Sequence[str] | None = None,
        bucket_column: str | None = None,
        num_buckets: int | None = None,
        identity_column: str | None = None,
        unsharded: bool = False,
        **writer_defaults: Any,
    ) -> LanceDataset:
        """Create the table's MemWAL and return the new version.

        With a primary key (field metadata `lance-schema:unenforced-primary-key`), rows are upserted. Without
        one, they are appended. All rows with the same key must be in the same shard, so the sharding column
        should be part of the key.

        Args:
            maintained_indexes: indexes that writers of other engines maintain for logged rows. Default: all
                indexes.
            bucket_column, num_buckets: distribute rows over 1 to 1024 shards by the hash of a column.
            identity_column: use one shard per value of a column.
            unsharded: use one shard for all rows.
            writer_defaults: default settings of writers, such as `max_memtable_rows`.

        Raises:
            OptionError: the table has a MemWAL, or shards of an earlier one; or an argument has a bad value.
            SchemaError: the primary key or the sharding column has an unsupported type.
            CommitError: the commit failed; see its subclasses.
        """
        return self.dataset.at(
            initialize_mem_wal(
                self.dataset.snapshot,
                maintained_indexes=maintained_indexes,
                bucket_column=bucket_column,
                num_buckets=num_buckets,
                identity_column=identity_column,
                unsharded=unsharded,
                defaults={name: value for name, value in writer_defaults.items() if value is not None},
            )
        )

    def drop(self, *, delete_shards: bool = False) -> LanceDataset:
        """Remove the MemWAL and return the new version.

        Args:
            delete_shards: also delete the shards, with all rows that are not in the table.

        Raises:
            OptionError: the table has no MemWAL; or it has shards, and `delete_shards` is false.
            CommitError: the commit failed; see its subclasses.
        """
        return self.dataset.at(drop_mem_wal(self.dataset.snapshot, delete_shards=delete_shards))

    def details(self) -> dict[str, Any] | None:
        """Return the sharding and the writer defaults of the MemWAL; None if the table has no MemWAL."""
        details = mem_wal_details(self.dataset.manifest.indices)
        if details is None:
            return None
        return {
            "num_shards": details.num_shards,
            "maintained_indexes": list(details.maintained_indexes),
            "maintain_all_indexes": details.maintain_all_indexes,
            "writer_config_defaults": dict(details.writer_config_defaults),
            "sharding_specs": [
                {
                    "spec_id": spec.spec_id,
                    "fields": [
                        {
                            "field_id": field.field_id,
                            "source_ids": list(field.source_ids),
                            "transform": field.transform if field.HasField("transform") else None,
                            "expression": field.expression if field.HasField("expression") else None,
                            "result_type": field.result_type,
                            "parameters": dict(field.parameters),
                        }
                        for field in spec.fields
                    ],
                }
                for spec in details.sharding_specs
            ],
        }

    def shards(self) -> list[ShardInfo]:
        """Return the state of each shard.

        Raises:
            OptionError: the table has no MemWAL.
            WalHoleError, WalEntryError: a log is damaged.
        """
        at = self.dataset.snapshot.at(load_latest(self.dataset.table))
        compacted = compacted_generations(at) or {}
        result = []
        for shard in resolve_shards(at):
            paths = ShardPaths(at.table, shard)
            manifest = load_shard(paths) or ShardManifest(current_generation=1)
            tail = read_tail(paths, manifest.replay_after_wal_entry_position, at.schema)
            result.append(
                ShardInfo(
                    str(shard),
                    {entry.field_id: entry.value for entry in manifest.shard_field_entries},
                    "sealed" if manifest.status == ShardManifest.SEALED else "active",
                    manifest.writer_epoch,
                    manifest.current_generation,
                    compacted.get(shard, 0),
                    {entry.generation: entry.path for entry in manifest.sstables},
                    sum(entry.rows.num_rows for entry in tail.entries if entry.rows is not None),
                )
            )
        return result

    def writer(self, shard_id: str | uuid.UUID, **settings: Any) -> ShardWriter:
        """Claim a shard and return its writer; see `ShardWriter`. This fences the shard's previous writer.

        Args:
            shard_id: a UUID. A missing shard is created.
            settings: settings of `WriterConfig` that override the table's defaults: `max_memtable_rows`,
                `max_memtable_size`, `max_memtable_batches`, `max_unflushed_memtable_bytes`, `durability`
                ("written" or "synced"), `accept_loss`.

        Raises:
            OptionError: the table has no MemWAL, or a setting has a bad value.
            ShardSealedError: the shard is sealed.
            WalHoleError, WalEntryError: the log is damaged; `accept_loss=True` skips the lost rows.
        """
        return ShardWriter(self.dataset.snapshot, parse_shard_id(shard_id), settings)

    def upsert_log(self, **settings: Any) -> RoutedWriter:
        """Return a writer that sends each row to its shard; see `RoutedWriter`.

        Args:
            settings: as for `mem_wal_writer`.

        Raises:
            OptionError: the table has no MemWAL, or its MemWAL has no sharding.
        """
        return RoutedWriter(self.dataset.snapshot, settings)

    def fresh(self, *, accept_loss: bool = False) -> FreshDataset:
        """Return the newest version combined with all rows in the MemWAL, for reading.

        The newest row of each key wins; deleted rows are skipped. A reader sees a prefix of each shard's
        writes, which includes all writes acknowledged before. Without a MemWAL, the result is the newest
        version.

        Args:
            accept_loss: whether to skip missing or damaged log entries.

        Raises:
            WalHoleError, WalEntryError: entries of a log are missing or damaged.
            UnsupportedFormatError: the table has blobs, and logged rows.
        """
        return FreshDataset(self.dataset.uri, open_fresh(self.dataset.table, accept_loss=accept_loss))

    def compact(
        self, shards: Iterable[str | uuid.UUID] | None = None, *, flush: bool = False
    ) -> WalCompaction:
        """Move rows of SSTables into the table; return the counts.

        Several compactions can run concurrently, also with writers and readers.

        Args:
            shards: ids of the shards to compact. Default: all shards.
            flush: also move rows that are only in the logs. This claims each shard and fences its writer.

        Raises:
            OptionError: the table has no MemWAL, or a shard does not exist.
            CommitError: the commit conflicts with other writers; see its subclasses. Rows that were moved
                before stay in the table.
        """
        shard_ids = None if shards is None else [parse_shard_id(shard) for shard in shards]
        return compact_wal(self.dataset.snapshot, shard_ids, flush=flush)

    def collect(
        self,
        shards: Iterable[str | uuid.UUID] | None = None,
        *,
        older_than: timedelta = GRACE,
        dry_run: bool = False,
    ) -> WalCollection:
        """Delete SSTables, log entries and shard manifests that are no longer needed.

        Args:
            shards: ids of the shards to clean. Default: all shards.
            older_than: delete only files older than this, because running readers and writers may need newer
                ones.
            dry_run: count the files without deleting them.

        Raises:
            OptionError: the table has no MemWAL, or a shard does not exist.
        """
        shard_ids = None if shards is None else [parse_shard_id(shard) for shard in shards]
        return collect_wal(self.dataset.snapshot, shard_ids, older_than=older_than, dry_run=dry_run)
