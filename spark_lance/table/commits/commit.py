"""The only place that creates table versions.

A commit reads the newest version and checks for conflicts with the commits since its read version. It builds
the next manifest from the newest one and publishes it with a put that fails if the version exists. A writer
whose put fails starts again from the new newest version, with the same transaction uuid.

A commit has succeeded once its version is in place. `_finish_commit` then writes the version hint and starts
the automatic clean-up. Failures there are logged and never raised: a job that retries would write its
rows twice.

The response of the store may be lost. So after every put that did not clearly succeed, the version is read
back: if it has our uuid, the commit is ours. If the outcome stays unknown, `CommitOutcomeUnknownError` is
raised, and nothing may be deleted: the commit may have landed or may land later.

`retry_operation` runs a whole operation again, from the newest version, if its input has changed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from google.protobuf.message import Message

from spark_lance.errors import (
    AtomicPutUnsupportedError,
    CommitError,
    CommitOutcomeUnknownError,
    FormatError,
    LanceError,
    RetriesExhaustedError,
    RetryableConflictError,
    StoreError,
    VersionNotFoundError,
)
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.uploads import background_uploads, finish_uploads
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit_options import current_options
from spark_lance.table.commits.idempotent_writes import (
    IdempotentWrite,
)
from spark_lance.table.commits.proposal import (
    SYSTEM_ENV,
    CommitEnv,
    CommittedVersion,
    PendingCommit,
    find_builder,
    propose_first,
    propose_next,
    unknown_outcome,
)
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest, pack_manifest, read_manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, delete_transaction, write_transaction
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.operations.next_version import CommitContext, ReuseEntry, empty_manifest
from spark_lance.table.operations.overwrite import overwrite, overwrite_message
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.cleanup import clean_up_after_commit
from spark_lance.table.versions.publish import LockReleaseError, finish_version, publish
from spark_lance.table.versions.versions import load_latest, load_version, remember, write_hint

CONFLICT_RETRIES = RetryPolicy(attempts=10)

Result = TypeVar("Result")


def retry_policy() -> RetryPolicy:
    """Return the retry policy of `commit_options`, or `CONFLICT_RETRIES` if it is the default there."""
    policy = current_options().retry
    return CONFLICT_RETRIES if policy == RetryPolicy() else policy


def retry_operation(
    snapshot: Snapshot,
    attempt: Callable[[Snapshot], Result],
    policy: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Result:
    """Run `attempt` until it succeeds and return its result; after each conflict, use the newest version.

    Args:
        snapshot: the version that the first attempt is computed from.
        attempt: computes the operation from a version and commits it. It removes its files if it fails.
        policy: number of attempts, and the waits between them.
        env: clock, sleep and random numbers.

    Raises:
        RetryableConflictError: every attempt conflicted with other writers.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    deadline = env.monotonic() + policy.total_seconds
    for wait in chain([None], policy.delays(env.random)):
        if wait is not None:
            if env.monotonic() + wait > deadline:
                break
            env.sleep(wait)
            snapshot = snapshot.at(load_latest(snapshot.table))
        manifest = snapshot.manifest
        check_writable(manifest.message, manifest.path, manifest.facts)
        try:
            with background_uploads(snapshot.store):
                return attempt(snapshot)
        except RetryableConflictError as error:
            conflict = error
    raise conflict


logger = logging.getLogger(__name__)


# Errors of a local file system which prove that nothing was written.
_FINAL_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def commit_operation(
    table: TableRef,
    operation: Message,
    *,
    read_version: int,
    properties: Mapping[str, str] | None = None,
    rows: RowChanges | None = None,
    reuse: ReuseEntry | None = None,
    strict: bool = False,
    write_id: IdempotentWrite | None = None,
    base: Manifest | None = None,
    retry: RetryPolicy | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Commit an operation to an existing table and return the new version.

    Args:
        table: the table.
        operation: a message such as `transaction_pb2.Transaction.Append`, with fragments of id 0.
        read_version: the version that the operation was computed from.
        properties: key-value pairs stored with the transaction, in addition to the pairs of `commit_options`.
        rows: the rows that a Delete or Update deletes. Without them, a delete by another writer in the same
            fragment is a conflict.
        reuse: the fragment-reuse entry of a Rewrite that does not change the indexes.
        strict: commit as the version after `read_version` or fail.
        write_id: commit only if the table has no version of the same job with this number or a higher one.
        base: the manifest of `read_version` from the cache of this process. The commit fails if the table has
            another one.
        retry: how often to retry after other writers committed first; default: as in `commit_options`.
        env: clock, sleep and random numbers.

    Raises:
        TableNotFoundError: there is no table.
        AlreadyCommittedError: the write `write_id` has landed before. Nothing was committed; its files may be
            deleted.
        VersionNotFoundError: `read_version` or the version to restore does not exist.
        RetryableConflictError: another commit changed the input of the operation; with `strict`, any other
            commit.
        IncompatibleConflictError: another commit makes the operation impossible, or cannot be checked.
        RetriesExhaustedError: other writers committed first in every attempt.
        CommitOutcomeUnknownError: the commit may have landed; none of its files may be deleted.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    options = current_options()
    transaction = _new_transaction(operation, read_version, properties, write_id)
    commit = PendingCommit(table, transaction, env, rows, reuse, strict, write_id, base)
    if isinstance(operation, transaction_pb2.Transaction.Restore):
        commit.restored = load_version(table, operation.version)
    build = find_builder(commit.transaction)
    return _commit_until_published(commit, lambda: propose_next(commit, build), retry or options.retry)


def create_table(
    table: TableRef,
    schema: Schema,
    fragments: Sequence[table_pb2.DataFragment] = (),
    *,
    version: FileVersion = DEFAULT_VERSION,
    stable_row_ids: bool = False,
    config: Mapping[str, str] | None = None,
    bases: Sequence[table_pb2.BasePath] = (),
    properties: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
    retry: RetryPolicy | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Create a table and return its version 1. If several writers create it at once, exactly one succeeds.

    Args:
        table: the table.
        schema: the schema with field ids.
        fragments: fragments with the first rows; all ids are 0.
        version: version of the data files.
        stable_row_ids: whether rows keep their ids when they move; cannot be changed later.
        config: the table's settings.
        bases: additional base paths for the table's files, with ids.
        properties: key-value pairs stored with the transaction.
        write_id: recorded as landed. There is no earlier version to look it up in.
        retry: how often to retry when the store fails; default: as in `commit_options`.
        env: clock, sleep and random numbers.

    Raises:
        TableExistsError: the table exists, or another writer created it first: plan the write again.
        CommitOutcomeUnknownError: the table may have been created; none of its files may be deleted.
        RetriesExhaustedError: the store refused every attempt.
    """
    operation = overwrite_message(schema, fragments, config, bases)
    base = empty_manifest(version, stable_row_ids=stable_row_ids)
    return create_first_version(
        table,
        operation,
        lambda context: overwrite(base, operation, context),
        properties=properties,
        write_id=write_id,
        retry=retry,
        env=env,
    )


def create_first_version(
    table: TableRef,
    operation: Message,
    build: Callable[[CommitContext], Manifest],
    *,
    read_version: int = 0,
    properties: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
    retry: RetryPolicy | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Publish the first version of a table that does not exist yet, and return it.

    If several writers create a table at the same path, exactly one succeeds, provided that their first
    versions have the same number. Writers with different numbers, such as clones of different versions, must
    not race.

    Args:
        table: the table.
        operation: the transaction's operation, an Overwrite or a Clone.
        build: builds the first version from the context of this commit; its number need not be 1.
        read_version: the version that the operation was computed from.
        properties: key-value pairs stored with the transaction.
        write_id: recorded as landed. There is no earlier version to look it up in.
        retry: how often to retry when the store fails; default: as in `commit_options`.
        env: clock, sleep and random numbers.

    Raises:
        TableExistsError: the table exists, or another writer created it first.
        CommitOutcomeUnknownError: the table may have been created; none of its files may be deleted.
        RetriesExhaustedError: the store refused every attempt.
    """
    options = current_options()
    transaction = _new_transaction(operation, read_version, properties, write_id)
    commit = PendingCommit(table, transaction, env, write_id=write_id)
    return _commit_until_published(commit, lambda: propose_first(commit, build), retry or options.retry)


def _new_transaction(
    operation: Message,
    read_version: int,
    properties: Mapping[str, str] | None,
    write_id: IdempotentWrite | None,
) -> Transaction:
    all_properties = current_options().transaction_properties(properties)
    return Transaction.new(
        operation,
        read_version,
        all_properties if write_id is None else {**all_properties, **write_id.properties},
    )


def _commit_until_published(
    commit: PendingCommit, propose: Callable[[], Manifest | CommittedVersion], retry: RetryPolicy
) -> Manifest:
    """Propose and publish versions until one is committed; return it."""
    env = commit.env
    start = env.monotonic()
    attempts, pace = 0, 1.0
    proposal: Manifest | CommittedVersion | None = None
    try:
        for delay in chain([0.0], retry.delays(env.random)):
            wait = delay * pace if isinstance(commit.unconfirmed_error, FileExistsError) else delay
            if attempts and env.monotonic() + wait > start + retry.total_seconds:
                break
            if wait:
                env.sleep(wait)
            attempts += 1
            proposal = _propose_version(commit, propose)
            committed = proposal if isinstance(proposal, CommittedVersion) else _publish(commit, proposal)
            if committed is not None:
                return _finish_commit(commit, committed)
            if attempts == 1:
                pace = _wait_factor(env.monotonic() - start, retry)
            logger.info(
                "attempt %d to commit to %s failed: %s", attempts, commit.root, commit.unconfirmed_error
            )
        if isinstance(commit.unconfirmed_error, FileExistsError) and isinstance(proposal, Manifest):
            committed = _read_back(commit, proposal, commit.unconfirmed_error)
            if committed is not None:
                return _finish_commit(commit, committed)
    except (OSError, LanceError) as error:
        if commit.unconfirmed_error is None or isinstance(error, CommitOutcomeUnknownError):
            raise
        raise unknown_outcome(commit) from error
    if commit.unconfirmed_error is not None:
        raise unknown_outcome(commit) from commit.unconfirmed_error
    raise RetriesExhaustedError(f"other writers won all {attempts} attempts to commit to {commit.root}")


def _propose_version(
    commit: PendingCommit, propose: Callable[[], Manifest | CommittedVersion]
) -> Manifest | CommittedVersion:
    """Propose a version. For a remote store, write the transaction file at the same time.

    The file is written in the first attempt only. All files of the operation are stored when this returns,
    before any put of a manifest.

    Raises:
        LanceError, OSError: the proposal failed, and the transaction file was removed; or the store failed.
    """
    if commit.recorded is not None or commit.store.is_local:
        proposal = propose()
        finish_uploads()
        return proposal
    transaction = commit.transaction
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_transaction, commit.table, transaction)
        try:
            proposal = propose()
            finish_uploads()
        except BaseException:
            # No put was tried, so no version can name the file.
            if writing.exception() is None:
                with contextlib.suppress(OSError):
                    delete_transaction(commit.table, transaction)
            raise
    writing.result()
    if commit.transaction is transaction:
        commit.recorded = transaction
    return proposal


def _finish_commit(commit: PendingCommit, committed: CommittedVersion) -> Manifest:
    version = committed.manifest.version
    logger.info("committed version %d of %s (%s)", version, commit.root, commit.transaction.name)
    where = f"version {version} of {commit.root} was committed"
    with log_errors(f"{where}, but its version hint was not written"):
        write_hint(commit.table, version)
    with log_errors(f"{where}, but old versions were not cleaned up"):
        clean_up_after_commit(commit.table, committed.manifest)
    return committed.manifest


def _wait_factor(seconds: float, retry: RetryPolicy) -> float:
    """Return the factor, at most 1, for the waits after conflicts, from the seconds of the first attempt.

    If a commit takes milliseconds, waiting for milliseconds is enough for other writers to finish.
    """
    return min(1.0, 0.5 * seconds / retry.base_seconds) if seconds and retry.base_seconds else 1.0


def _publish(commit: PendingCommit, candidate: Manifest) -> CommittedVersion | None:
    """Publish a version; return None if the put did not clearly succeed (`commit.unconfirmed_error`).

    Raises:
        VersionNotFoundError: see `_check_restored`.
    """
    transaction = commit.transaction
    packed = transaction.pack()
    data = pack_manifest(candidate.message, candidate.index_section, packed)
    # A rebased transaction may keep its file name, so it is written again.
    if commit.recorded is not transaction:
        write_transaction(commit.table, transaction)
        commit.recorded = transaction
    _check_restored(commit)
    try:
        publish(commit.table, candidate.version, candidate.path, data)
    except LockReleaseError as error:
        return _handle_lock_failure(commit, candidate, error)
    except (AtomicPutUnsupportedError, CommitError):
        raise
    except OSError as error:
        commit.unconfirmed_error = error
        if isinstance(error, FileExistsError) and commit.store.is_local:
            # Almost certainly another writer's version: the next attempt reads it and checks.
            return None
        return _read_back(commit, candidate, error)
    with log_errors(f"version {candidate.version} of {commit.root} was committed, but is not cached"):
        remember(commit.store, candidate.path, data, candidate.with_inline_transaction(packed))
    return CommittedVersion(candidate)


def _check_restored(commit: PendingCommit) -> None:
    """Raise if the version to restore was deleted before clean-ups could see the transaction.

    Raises:
        VersionNotFoundError: a clean-up deleted it since it was read.
    """
    restored = commit.restored
    if restored is None or commit.store.exists(restored.path):
        return
    if commit.unconfirmed_error is None:
        delete_transaction(commit.table, commit.transaction)
    raise VersionNotFoundError(
        f"version {restored.version} of {commit.root} was deleted by a clean-up while it was restored: "
        "restore another version"
    )


def _may_land(commit: PendingCommit) -> bool:
    return commit.unconfirmed_error is not None and not isinstance(commit.unconfirmed_error, FileExistsError)


def _handle_lock_failure(
    commit: PendingCommit, candidate: Manifest, failed: LockReleaseError
) -> CommittedVersion:
    """Return the version if it was committed, and log an error that its lock was not released.

    Raises:
        CommitOutcomeUnknownError: the outcome of the commit is unknown.
        CommitError: it did not land.
    """
    where = f"version {candidate.version} of {commit.root}"
    commit.unconfirmed_error = (
        failed.failure if isinstance(failed.failure, OSError) else StoreError(str(failed))
    )
    committed = _read_back(commit, candidate, commit.unconfirmed_error)
    if committed is not None:
        logger.error(
            "%s was committed, but its commit lock was not released: %s. Free the lock: the next commit may "
            "wait for it",
            where,
            failed,
        )
        return committed
    if _may_land(commit):
        raise unknown_outcome(commit) from failed.lock_error
    commit.unconfirmed_error = None
    raise CommitError(
        f"{where} is another writer's, and the commit lock was not released: {failed}. Nothing was "
        "committed; free the lock before a retry"
    ) from failed.lock_error


def _read_back(commit: PendingCommit, candidate: Manifest, failure: OSError) -> CommittedVersion | None:
    """Return our version if a failed put wrote it; None if it is another writer's or does not exist."""
    try:
        finish_version(commit.table, candidate.version)
        winner = read_manifest(commit.store, candidate.path, candidate.naming)
    except FileNotFoundError:
        if isinstance(failure, PermissionError) or failure.errno in _FINAL_ERRORS:
            commit.unconfirmed_error = None
            raise failure from None
        return None
    except (OSError, FormatError) as error:
        raise unknown_outcome(commit) from error
    commit.unconfirmed_error = None
    return CommittedVersion(winner) if commit.is_ours(winner) else None
