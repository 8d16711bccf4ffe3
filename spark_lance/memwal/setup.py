"""Giving a table a MemWAL, and taking it away.

The entry `__lance_mem_wal` of the manifest says how rows are spread over shards and what writers begin with.
No feature flag and no other file goes with it. (MemWAL, index entry.)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from spark_lance.errors import OptionError, RetryableConflictError, SchemaError, UnsupportedFormatError
from spark_lance.io.store import join
from spark_lance.memwal.entries import TOMBSTONE
from spark_lance.memwal.names import MEM_WAL_DIR, list_shards
from spark_lance.memwal.sharding import sharding_spec
from spark_lance.memwal.sstables import check_key
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import MemWalIndexDetails
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest

__all__ = ["WRITER_DEFAULTS", "drop_mem_wal", "initialize_mem_wal"]

# The reference writes them, too; all are hints for writers.
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
    """Give a table a MemWAL and return the version that has it.

    Args:
        snapshot: the table.
        maintained_indexes: the indices that writers of other engines keep for rows that are not in the table;
            all by default. Writers here keep none.
        bucket_column, num_buckets, identity_column, unsharded: how rows are spread over shards; without any
            of them, whoever writes names the shard.
        defaults: settings of writers, by the names in `WRITER_DEFAULTS`.

    Raises:
        OptionError: the table has a MemWAL, or shards of an earlier one; or a setting cannot be used.
        SchemaError: the key, or the column that tells the shard, cannot be used so.
        UnsupportedFormatError: the table has blobs, or is a legacy one.
        CommitError: the commit failed; see its subclasses.
    """
    manifest, schema = snapshot.manifest, snapshot.schema
    _refuse_second(manifest)
    if unknown := sorted(set(defaults or {}) - WRITER_DEFAULTS.keys()):
        raise OptionError(f"writers have no setting {', '.join(unknown)}: use {', '.join(WRITER_DEFAULTS)}")
    if any(node.is_blob for node in schema.walk()):
        raise UnsupportedFormatError("a MemWAL of a table with blobs", path=manifest.path)
    if not manifest.file_version.writable:
        raise UnsupportedFormatError("a MemWAL of a legacy table", path=manifest.path)
    if any(field.name == TOMBSTONE for field in schema.fields):
        raise SchemaError(f"the table has a column {TOMBSTONE!r}, which marks deleted rows in a MemWAL")
    check_key(schema)
    if shards := list_shards(snapshot.table):
        raise OptionError(
            f"{join(snapshot.root, MEM_WAL_DIR)} holds {len(shards)} shards of an earlier MemWAL, whose rows "
            "would come back: drop_mem_wal(delete_shards=True) deletes them"
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
    details.maintained_indexes.extend(_known(manifest, maintained_indexes or ()))
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
        _refuse_second(load_latest(snapshot.table))
        raise


def _refuse_second(manifest: Manifest) -> None:
    if any(entry.name == MEM_WAL for entry in manifest.indices):
        raise OptionError(f"{manifest.path} has a MemWAL already")


def _known(manifest: Manifest, names: Sequence[str]) -> Sequence[str]:
    existing = {entry.name for entry in manifest.indices} - {FRAGMENT_REUSE, MEM_WAL}
    if missing := sorted(set(names) - existing):
        raise OptionError(f"there is no index {', '.join(missing)} that could be maintained")
    return names


def drop_mem_wal(snapshot: Snapshot, *, delete_shards: bool = False) -> Manifest:
    """Take the MemWAL away and return the version without it.

    Args:
        snapshot: the table.
        delete_shards: delete the shards, too, with all rows that are not in the table. Nobody may write to
            them.

    Raises:
        OptionError: the table has none; or shards hold rows that are not in the table, and may not be
            deleted.
        CommitError: the commit failed; see its subclasses.
    """
    manifest = snapshot.manifest
    removed = [entry for entry in manifest.indices if entry.name == MEM_WAL]
    shards = list_shards(snapshot.table)
    if not removed and not (shards and delete_shards):
        raise OptionError(f"{snapshot.root} has no MemWAL")
    if shards and not delete_shards:
        raise OptionError(
            f"{len(shards)} shards may hold rows that are not in the table: compact_wal(flush=True) brings "
            "them in, and delete_shards=True deletes the shards"
        )
    if removed:
        operation = create_index_message(removed=removed)
        manifest = commit_operation(snapshot.table, operation, read_version=manifest.version)
    for shard in shards:
        place = join(snapshot.root, MEM_WAL_DIR, str(shard))
        objects = snapshot.store.list_to_delete(place, snapshot.root, recursive=True)
        snapshot.store.delete_many((stored.path for stored in objects), snapshot.root)
        snapshot.store.remove_empty(place, snapshot.root)
    return manifest
