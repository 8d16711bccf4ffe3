"""Commit detached versions: they are outside the history, and only readers that know their number see them.

    _versions/d{number}.manifest      number: 63 random bits, the highest bit is set

They are for experiments, which are dropped, or added to the history later by a restore. If a detached version
is computed from a version of the history, it is rebased onto the newest version, like a normal commit. If it
is computed from a detached version, it is built on that version. Clean-ups keep the files of detached
versions. (Lance table format, detached versions. Tables with V1 naming have none: pylance's rule.)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace

from google.protobuf.message import Message

from spark_lance.errors import CommitOutcomeUnknownError, RetryableConflictError, UnsupportedFormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.proposal import (
    SYSTEM_ENV,
    CommitEnv,
    PendingCommit,
    build_on,
    find_builder,
    propose_next,
)
from spark_lance.table.format.manifest import Manifest, pack_manifest
from spark_lance.table.format.paths import ManifestNaming, detached_path, is_detached, manifest_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, delete_transaction, write_transaction
from spark_lance.table.versions.versions import load_latest, load_version

logger = logging.getLogger(__name__)


def commit_detached(
    table: TableRef,
    operation: Message,
    *,
    read_version: int,
    properties: Mapping[str, str] | None = None,
    strict: bool = False,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Commit an operation to an existing table as a detached version, and return the version.

    Args:
        table: the table.
        operation: a message such as `transaction_pb2.Transaction.Append`, with fragments of id 0.
        read_version: the version that the operation was computed from; may be a detached version.
        properties: key-value pairs stored with the transaction.
        strict: build on `read_version` or fail.
        env: clock, sleep and random numbers.

    Raises:
        TableNotFoundError: there is no table.
        VersionNotFoundError: `read_version` or the version to restore does not exist.
        RetryableConflictError, IncompatibleConflictError: see `commit_operation`.
        CommitOutcomeUnknownError: the version may have been written; none of its files may be deleted.
        UnsupportedFormatError: the manifests have V1 names, or the table needs a feature that this release
            does not write.
    """
    latest = load_latest(table)
    if latest.naming is not ManifestNaming.V2:
        raise UnsupportedFormatError(
            "a table whose manifests have V1 names has no detached versions: migrate_manifest_paths_v2() "
            "renames them",
            latest.path,
        )
    transaction = Transaction.new(operation, read_version, properties)
    commit = PendingCommit(table, transaction, env, strict=strict)
    if isinstance(operation, transaction_pb2.Transaction.Restore):
        commit.restored = load_version(table, operation.version)
    built = _build_version(commit)
    transaction = commit.transaction
    packed = transaction.pack()
    result = _assign_detached_number(built, table.root)
    write_transaction(table, transaction)
    try:
        table.store.put(result.path, pack_manifest(result.message, result.index_section, packed))
    except OSError as error:
        if table.store.is_local and not table.store.exists(result.path):
            # A local put is atomic, so no manifest names the transaction.
            delete_transaction(table, transaction)
            raise
        raise CommitOutcomeUnknownError(
            f"the store did not say whether {result.path} was written: {error}. Nothing was deleted; look "
            "whether it is there before a retry"
        ) from error
    _check_sources(commit, built, result)
    logger.info("committed detached version %d of %s (%s)", result.version, table.root, transaction.name)
    return result


def _build_version(commit: PendingCommit) -> Manifest:
    """Build the version as if it were the next version of the history."""
    build = find_builder(commit.transaction)
    if not is_detached(commit.transaction.read_version):
        proposal = propose_next(commit, build)
        # This commit has not put anything yet, so none of it can have landed.
        assert isinstance(proposal, Manifest)
        return proposal
    base = load_version(commit.table, commit.transaction.read_version)
    return build_on(commit, build, base)


def _check_sources(commit: PendingCommit, built: Manifest, detached: Manifest) -> None:
    """Delete the new version again if a clean-up has deleted a version that it shares files with.

    Raises:
        RetryableConflictError: a clean-up deleted such a version, maybe without seeing the new one.
    """
    store, root = commit.store, commit.root
    read_version = commit.transaction.read_version
    base = read_version if is_detached(read_version) else built.version - 1
    paths = [detached_path(root, base) if is_detached(base) else manifest_path(root, base, built.naming)]
    paths += [] if commit.restored is None else [commit.restored.path]
    missing_paths = [path for path in paths if not store.exists(path)]
    if not missing_paths:
        return
    store.delete(detached.path, root)
    delete_transaction(TableRef(store, root), commit.transaction)
    raise RetryableConflictError(
        f"a clean-up deleted {missing_paths[0]} while a version was made of it: repeat the commit"
    )


def _assign_detached_number(built: Manifest, root: str) -> Manifest:
    number = secrets.randbits(63) | 1 << 63
    message = table_pb2.Manifest()
    message.CopyFrom(built.message)
    message.version = number
    return replace(built, message=message, path=detached_path(root, number), naming=ManifestNaming.V2)
