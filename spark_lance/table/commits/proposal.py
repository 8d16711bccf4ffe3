"""The next version of a table, as a commit proposes it after the check for conflicts.

Every version that is new since the last check is compared with the operation (`verdict`). If they are
compatible, the operation is rebased onto the newest version (`REBASES`), and its manifest is built from the
newest one (`OPERATIONS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spark_lance.errors import (
    FormatError,
    IncompatibleConflictError,
    RetryableConflictError,
    TableExistsError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.table.commits.conflicts import Verdict, verdict
from spark_lance.table.commits.idempotent_writes import IdempotentWrite, carried
from spark_lance.table.commits.pending import Landed, PendingCommit
from spark_lance.table.commits.rebase import REBASES, RebaseContext
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.old_writers import check_successor
from spark_lance.table.format.paths import is_detached, manifest_path
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.indices.fragment_reuse import with_present_coverage
from spark_lance.table.indices.old_coverage import with_sound_coverage
from spark_lance.table.operations import OPERATIONS, Builder, Stamp
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.torn import is_set_aside, read_whole
from spark_lance.table.versions.versions import list_versions, load_newest

__all__ = ["build_on", "builder_of", "propose_first", "propose_next"]


# Settings of a table to which rows are only added.
_APPEND_ONLY = ("delta.appendOnly", "appendOnly")
_CHANGES_ROWS = frozenset({"delete", "update", "overwrite", "restore", "data_replacement"})


def propose_next(commit: PendingCommit, build: Builder) -> Manifest | Landed:
    """Check every version that is new since the last check and build on the newest one."""
    newest = load_newest(commit.table)
    latest = newest.manifest
    if is_detached(commit.checked):
        raise VersionNotFoundError(
            f"version {commit.checked} of {commit.root} is detached, and what is computed from it can only "
            "be committed with detached=True: restore it first, or compute from a version of the history"
        )
    if latest.version < commit.checked:
        raise VersionNotFoundError(
            f"version {commit.checked} of {commit.root} does not exist; the newest is {latest.version}"
        )
    if latest.path != manifest_path(commit.root, latest.version, latest.naming):
        raise FormatError(f"the manifest says it is version {latest.version}", path=latest.path)
    if commit.once is not None and (ours := _look_up(commit, commit.once, latest)) is not None:
        return Landed(ours)
    for version in range(commit.checked + 1, latest.version + 1):
        theirs = latest if version == latest.version else _read_past(commit, version, latest)
        if theirs is None:
            _check_set_aside(commit, version)
            commit.checked = version
            continue
        if commit.is_ours(theirs):
            return Landed(theirs)
        # The version that a put in doubt aimed at is someone else's, so that put can never land.
        commit.doubt = None
        _check(commit, theirs)
        commit.checked = version
    return build_on(commit, build, latest, newest.highest_number + 1)


def build_on(commit: PendingCommit, build: Builder, base: Manifest, number: int | None = None) -> Manifest:
    """Fit the operation onto a version, where others were in between, and build the next one.

    Args:
        number: of the new version; the one after `base` by default.

    Raises:
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    check_writable(base.message, base.path, base.facts)
    _check_append_only(commit.transaction, base)
    if commit.unfit:
        commit.transaction = _fitted(commit, base)
        commit.unfit = []
    sound, without_coverage = with_sound_coverage(Snapshot(commit.table, base))
    current = with_present_coverage(Snapshot(commit.table, sound))
    number = base.version + 1 if number is None else number
    built = build(current, commit.transaction.operation, commit.stamp(number, carried(base, number)))
    check_successor(commit.restored or sound, built, without_coverage if commit.restored is None else ())
    return replace(built, inferred=base.inferred) if base.inferred else built


def _check_append_only(transaction: Transaction, base: Manifest) -> None:
    """Refuse to remove or change rows of a table whose settings forbid it; compaction moves them only.

    Raises:
        UnsupportedFormatError: the operation does.
    """
    setting = next((key for key in _APPEND_ONLY if base.config.get(key, "").lower() == "true"), None)
    if setting is None or transaction.name not in _CHANGES_ROWS:
        return
    operation: Any = transaction.operation
    fields = ("updated_fragments", "deleted_fragment_ids", "removed_fragment_ids")
    if transaction.name in ("delete", "update") and not any(len(getattr(operation, f, ())) for f in fields):
        return
    raise UnsupportedFormatError(
        f"the table only takes new rows, as its property {setting!r} is true: ALTER TABLE ... UNSET "
        f"TBLPROPERTIES ('{setting}') allows {transaction.name}"
    )


def _look_up(commit: PendingCommit, once: IdempotentWrite, latest: Manifest) -> Manifest | None:
    """Raise if the pair has landed, unless by a put of this very commit: return that version then.

    This comes before the check for conflicts: a repeated overwrite is not a conflict with the first.
    """
    if commit.recorded is not None:
        for version in range(commit.checked + 1, latest.version + 1):
            theirs = latest if version == latest.version else _read_past(commit, version, latest)
            if theirs is None:
                continue
            if commit.is_ours(theirs):
                return theirs
            commit.doubt = None
    commit.ledger.learn(commit.store, commit.root, latest)
    commit.ledger.refuse(once, commit.root)
    return None


def _fitted(commit: PendingCommit, latest: Manifest) -> Transaction:
    """Return the transaction, rebased; if it merges rows, the newest version becomes its read version."""
    transaction = commit.transaction
    rebase = REBASES.get(transaction.name or "")
    if rebase is None:
        return transaction
    context = RebaseContext(latest, commit.unfit, commit.rows)
    operation = rebase(transaction.operation, context)
    return transaction.rebased(operation, latest.version if commit.rows else transaction.read_version)


def propose_first(commit: PendingCommit, build: Callable[[Stamp], Manifest]) -> Manifest | Landed:
    """Build the first version where there is no table yet."""
    first = build(commit.stamp(1, {}))
    versions = list_versions(commit.table)
    for file in versions:
        if file.version == first.version:
            winner = read_manifest(commit.store, file.path, file.naming)
            if commit.is_ours(winner):
                return Landed(winner)
            commit.doubt = None
    if versions:
        raise TableExistsError(f"there is a Lance table at {commit.root} already")
    return first


def _check(commit: PendingCommit, theirs: Manifest) -> None:
    """Raise if a version since the read version conflicts."""
    ours = commit.transaction
    where = f"version {theirs.version} of {commit.root}"
    since = f"this {ours.name} was computed from version {ours.read_version}"
    if commit.strict:
        raise RetryableConflictError(
            f"Commit conflict for {where}, which is newer: {since} and is strict; run the operation again"
        )
    try:
        transaction = read_transaction(commit.table, theirs)
    except FormatError as error:
        raise IncompatibleConflictError(
            f"{where} has no readable transaction, and {since}: reload the table"
        ) from error
    outcome = verdict(ours, transaction, deferred=commit.reuse is not None)
    name = transaction.name or "an operation unknown to this release"
    if outcome is Verdict.RETRY or (outcome is Verdict.MERGE and commit.rows is None):
        raise RetryableConflictError(
            f"Retryable commit conflict for {where} ({name}), {since}: run the operation again"
        )
    if outcome is Verdict.INCOMPATIBLE:
        raise IncompatibleConflictError(f"{where} ({name}) is incompatible, {since}: reload the table")
    if outcome is not Verdict.FINE:
        commit.unfit.append(transaction.operation)


def _check_set_aside(commit: PendingCommit, version: int) -> None:
    """Raise unless a torn manifest was set aside.

    A manifest that is damaged now may have been whole when the version after it was built on it. Its changes
    are then in the newest version, and nobody can check them for conflicts.

    Raises:
        RetryableConflictError: it is still in place.
    """
    if not is_set_aside(commit.table, version):
        ours = commit.transaction
        raise RetryableConflictError(
            f"version {version} of {commit.root} has a damaged manifest, so a {ours.name} computed from "
            f"version {ours.read_version} cannot be checked: run the operation again"
        )


def _read_past(commit: PendingCommit, version: int, latest: Manifest) -> Manifest | None:
    """Return a version that came in between; None if its manifest is torn, so that it never counted."""
    path = manifest_path(commit.root, version, latest.naming)
    try:
        return read_whole(commit.store, path, latest.naming)
    except FileNotFoundError as error:
        if is_set_aside(commit.table, version):
            return None
        raise IncompatibleConflictError(
            f"version {version} of {commit.root} was cleaned up, so a {commit.transaction.name} "
            f"computed from version {commit.transaction.read_version} cannot be checked: reload the table"
        ) from error


def builder_of(transaction: Transaction) -> Builder:
    """Return the function that builds the version of an operation.

    Raises:
        UnsupportedFormatError: the operation is not known here.
    """
    build = OPERATIONS[transaction.name] if transaction.name else None
    if build is None:
        raise UnsupportedFormatError(f"the operation {transaction.name} is not executed by this release")
    return build
