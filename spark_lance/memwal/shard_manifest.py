"""Shard manifests: the SSTables of a shard, where the replay of its log starts, and its writer's epoch.

Each version is a protobuf message `ShardManifest` without any framing, in a file that is created only if it
does not exist. Versions are contiguous, and a writer derives the next version from the newest one. An
example:

    08 01   version 1          10 01   writer_epoch 1       18 00   replay_after_wal_entry_position
    20 00   wal_entry_position_last_seen                    30 01   current_generation 1
    42 ..   sstables           50 01   shard_spec_id 1      5a 12 0a 10 <16 bytes>   shard_id

`writer_epoch` counts the claims: only the writer with the last claim may write. (MemWAL, shard manifest.)

`put_new` repeats a request until its outcome is certain.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from spark_lance.errors import (
    AtomicPutUnsupportedError,
    CommitOutcomeUnknownError,
    FormatError,
    RetriesExhaustedError,
    ShardSealedError,
    StoreAccessError,
    WriterFencedError,
)
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store
from spark_lance.io.stored_names import check_message
from spark_lance.memwal.names import ShardPaths, parse_numbers
from spark_lance.proto.index_pb2 import ShardManifest

# A retry after a lost response puts the same bytes, so it does no harm.
PUT_RETRIES = RetryPolicy(attempts=6, base_seconds=0.1, cap_seconds=2.0, total_seconds=30.0)


def put_new(
    store: Store,
    path: str,
    data: bytes,
    *,
    unique: bool,
    sync: bool = False,
    retry: RetryPolicy = PUT_RETRIES,
) -> bool:
    """Create an object if it does not exist, and return whether this call created it.

    Args:
        store: the store.
        path: the path of the object.
        data: the bytes of the object.
        unique: whether no other writer can write the same bytes. If so, finding these bytes means that an
            earlier request of this call succeeded.
        sync: whether to sync the object to disk if the store is local.
        retry: the number of retries, and the pauses, after a lost response.

    Raises:
        CommitOutcomeUnknownError: the store did not confirm the write; the object may appear later.
        StoreAccessError, AtomicPutUnsupportedError: nothing was written.
    """
    unconfirmed_error: OSError | None = None
    for wait in (0.0, *retry.delays(random.random)):
        if wait:
            time.sleep(wait)
        try:
            store.put_if_absent(path, data, sync=sync)
        except (AtomicPutUnsupportedError, StoreAccessError):
            raise
        except FileExistsError:
            try:
                return unique and store.read(path) == data
            except OSError as error:
                if not unique:
                    return False
                unconfirmed_error = error
        except OSError as error:
            unconfirmed_error = error
            if store.is_local:
                break  # a full or missing disk does not recover within a second
        else:
            return True
    raise CommitOutcomeUnknownError(
        f"the store did not confirm whether {path} was written: {unconfirmed_error}. Nothing was deleted: "
        "open a new writer, which reads the stored state"
    ) from unconfirmed_error


logger = logging.getLogger(__name__)

_ATTEMPTS = 50


def load_shard(paths: ShardPaths) -> ShardManifest | None:
    """Return the newest manifest of a shard, by listing; None if it has none. The hint is not used.

    Raises:
        FormatError: the manifest cannot be decoded, has another version or shard id, or refers to files
            outside the shard.
    """
    for _ in range(_ATTEMPTS):
        versions = parse_numbers(list(paths.store.list(paths.manifests)))
        if not versions:
            return None
        message = read_shard(paths, versions[-1])
        if message is not None:  # else collected after the listing, because a newer one exists
            return message
    raise FormatError(
        f"the newest shard manifest was deleted before each of {_ATTEMPTS} attempts to read it",
        path=paths.manifests,
    )


def read_shard(paths: ShardPaths, version: int) -> ShardManifest | None:
    """Return one version of a shard's manifest; None if it does not exist.

    Raises:
        FormatError: the manifest cannot be decoded, has another version or shard id, or refers to files
            outside the shard.
    """
    path = paths.manifest(version)
    try:
        message = ShardManifest.FromString(paths.store.read(path))
    except FileNotFoundError:
        return None
    except DecodeError as error:
        raise FormatError(f"undecodable shard manifest: {error}", path=path) from error
    check_message(message, path)
    if message.version != version or message.shard_id.uuid != paths.shard.bytes:
        raise FormatError(
            f"the shard manifest has version {message.version} and shard id {message.shard_id.uuid.hex()}, "
            f"not version {version} and the shard id in its path",
            path=path,
        )
    return message


def publish_shard(paths: ShardPaths, message: ShardManifest, *, unique: bool, sync: bool = False) -> bool:
    """Create a version of a shard's manifest; return False if another writer was first.

    Args:
        paths: the shard.
        message: the manifest.
        unique: whether no other writer can write the same message, see `put_new`.
        sync: whether to sync the file to disk if the store is local.

    Raises:
        CommitOutcomeUnknownError: the version may exist, or may appear later.
    """
    data = message.SerializeToString()
    if not put_new(paths.store, paths.manifest(message.version), data, unique=unique, sync=sync):
        return False
    try:
        hint = json.dumps({"version": message.version}, separators=(",", ":"))
        paths.store.put_hint(paths.hint, hint.encode())
    except OSError as error:
        logger.debug("no version hint written for shard %s: %s", paths.shard, error)
    return True


def create_shard(paths: ShardPaths, spec_id: int, entries: dict[str, bytes] | None = None) -> None:
    """Create a shard without a writer; an existing shard is not changed.

    Args:
        paths: the shard.
        spec_id: the id of the sharding spec; 0 for shards that users choose.
        entries: field id of the spec -> value of this shard, as bytes.
    """
    message = ShardManifest(version=1, current_generation=1, shard_spec_id=spec_id)
    message.shard_id.uuid = paths.shard.bytes
    for field_id, value in (entries or {}).items():
        message.shard_field_entries.add(field_id=field_id, value=value)
    publish_shard(paths, message, unique=False)


def claim_shard(
    paths: ShardPaths, spec_id: int, sync: bool = False, *, after: int | None = None
) -> tuple[ShardManifest, bool]:
    """Become the only writer of a shard by raising its epoch.

    Args:
        paths: the shard.
        spec_id: the id of the sharding spec of a new shard.
        sync: whether to sync the manifest to disk if the store is local.
        after: claim the shard only if its epoch is this one; None claims it in any case.

    Returns:
        The manifest with the new epoch, and whether the shard existed before.

    Raises:
        ShardSealedError: the shard is sealed and accepts no more rows.
        WriterFencedError: the shard has another epoch than `after`.
        RetriesExhaustedError: another writer claimed the shard in every attempt.
    """
    for _ in range(_ATTEMPTS):
        newest = load_shard(paths)
        message = ShardManifest(current_generation=1, shard_spec_id=spec_id)
        message.shard_id.uuid = paths.shard.bytes
        if newest is not None:
            if newest.status == ShardManifest.SEALED:
                raise ShardSealedError(
                    f"shard {paths.shard} of {paths.root} is sealed: write to another shard"
                )
            message.CopyFrom(newest)
        if after is not None and message.writer_epoch != after:
            raise WriterFencedError(
                f"another writer claimed shard {paths.shard} of {paths.root} (its epoch is "
                f"{message.writer_epoch}). Acknowledged writes are stored: open a new writer"
            )
        message.version += 1
        message.writer_epoch += 1
        if publish_shard(paths, message, unique=False, sync=sync):
            return message, newest is not None
    raise RetriesExhaustedError(
        f"other writers claimed shard {paths.shard} of {paths.root} first in {_ATTEMPTS} attempts"
    )


def change_shard(
    paths: ShardPaths,
    change: Callable[[ShardManifest], bool],
    *,
    sync: bool = False,
) -> ShardManifest:
    """Write the next version of a shard's manifest, retrying if other writers are first.

    Args:
        paths: the shard.
        change: changes the message and returns True; False if nothing has to be changed.
        sync: whether to sync the file to disk if the store is local.

    Returns:
        The new version, or the newest version if nothing had to be changed.

    Raises:
        FormatError: the shard has no manifest.
        RetriesExhaustedError: another writer was first in every attempt.
    """
    for _ in range(_ATTEMPTS):
        newest = load_shard(paths)
        if newest is None:
            raise FormatError("the shard has no manifest", path=paths.manifests)
        message = ShardManifest()
        message.CopyFrom(newest)
        if not change(message):
            return newest
        message.version = newest.version + 1
        # Even if another writer writes the same bytes, the effect is the same.
        if publish_shard(paths, message, unique=True, sync=sync):
            return message
    raise RetriesExhaustedError(
        f"other writers changed shard {paths.shard} of {paths.root} first in {_ATTEMPTS} attempts"
    )
