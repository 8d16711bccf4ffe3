"""Check a pending commit for conflicts and build the version that it proposes.

Every version since the last check is compared with the operation (`verdict`). If they are compatible, the
operation is rebased onto the newest version (`REBASES`), and its manifest is built from the newest one
(`OPERATIONS`).

Most operations are applied to the newest version unchanged. Only these must be rebased, because they contain
state that other writers can change without a conflict:

    delete, update    fragments with deletion files: rows that other writers deleted stay deleted
    create_index      the index coverage: without fragments whose indexed columns were rewritten in place

If the coverage that an old writer recorded is unreliable (see `old_writers`), the next writer corrects it, as
in other engines: a segment covers the fragments of its rows. The rows are in one column of one file:

    auxiliary.idx       _rowid     of vector indexes
    page_data.lance     ids        of B-trees

Entries of other index kinds are not corrected. No entry is corrected if row ids are not addresses, or if the
table has a fragment-reuse entry. A version with uncorrected entries is refused as a base.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    FormatError,
    IncompatibleConflictError,
    RetryableConflictError,
    TableExistsError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.file.reader import open_file, read_field
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.conflicts import Verdict, verdict
from spark_lance.table.commits.constraints import check_constraints
from spark_lance.table.commits.idempotent_writes import AppliedWrites, IdempotentWrite, carry_record
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.old_writers import check_successor, doubtful_indices
from spark_lance.table.format.paths import is_detached, manifest_path
from spark_lance.table.format.reserved_names import APPLIED_WRITES
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.indices.fragment_reuse import find_reuse_entry, with_present_coverage
from spark_lance.table.operations import OPERATIONS, Builder
from spark_lance.table.operations.index_upkeep import remove_fragments_from_bitmaps
from spark_lance.table.operations.next_version import CommitContext, ReuseEntry
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import (
    is_set_aside,
    list_versions,
    load_newest,
    load_version,
    read_whole,
)


@dataclass(frozen=True)
class CommitEnv:
    """The clock and the other inputs of a commit, except the store. Tests replace them."""

    time_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


SYSTEM_ENV = CommitEnv()


@dataclass
class PendingCommit(TableRefMixin):
    """A commit in progress.

    Attributes:
        rows, reuse, strict, write_id, base: as in `commit_operation`.
        ledger: the record of idempotent writes, as far as it was read to check `write_id`.
        restored: the version that a Restore restores.
        checked: the highest version that was checked for conflicts; no version up to it conflicts.
        pending_rebases: operations of other writers onto which ours must still be rebased.
        recorded: the transaction as written to its file; None if the file does not exist yet.
        constraints: pairs of constraint and files that were already checked.
        unconfirmed_error: the error of a put that may still land; None if the outcome of every put is known.
    """

    table: TableRef
    transaction: Transaction
    env: CommitEnv
    rows: RowChanges | None = None
    reuse: ReuseEntry | None = None
    strict: bool = False
    write_id: IdempotentWrite | None = None
    base: Manifest | None = None
    ledger: AppliedWrites = field(default_factory=AppliedWrites)
    restored: Manifest | None = None
    pending_rebases: list[Message] = field(default_factory=list)
    recorded: Transaction | None = None
    constraints: set[object] = field(default_factory=set)
    unconfirmed_error: OSError | None = None

    def __post_init__(self) -> None:
        self.checked = self.transaction.read_version

    def context(self, version: int, config: Mapping[str, str]) -> CommitContext:
        """Return the context of this commit for `version`; `config` has the record of idempotent writes."""
        name = self.transaction.file_name
        if self.write_id is not None:
            config = {
                APPLIED_WRITES: self.ledger.add_write(
                    self.write_id, version, self.env.time_ns() // 10**9
                ).text()
            }
        return CommitContext(self.root, name, self.env.time_ns(), self.restored, self.reuse, config, version)

    def is_ours(self, manifest: Manifest) -> bool:
        """Return whether this commit made a stored version: its transaction's file name has our uuid.

        The rest of the name may differ, because merging deleted rows changes the read version.
        """
        return manifest.transaction_file.endswith(f"-{self.transaction.uuid}.txn")


@dataclass(frozen=True)
class CommittedVersion:
    """A version of this commit that is in the table already, from an earlier put."""

    manifest: Manifest


def unknown_outcome(commit: PendingCommit) -> CommitOutcomeUnknownError:
    """Return the error for a put with an unknown outcome."""
    return CommitOutcomeUnknownError(
        f"the store did not say whether transaction {commit.transaction.uuid} was committed to "
        f"{commit.root}: {commit.unconfirmed_error}. Nothing was deleted; look at its newest "
        "versions before a retry"
    )


_ROW_COLUMNS = (("auxiliary.idx", "_rowid"), ("page_data.lance", "ids"))
_ROWS_PER_READ = 1 << 22


def with_sound_coverage(snapshot: Snapshot) -> tuple[Manifest, frozenset[bytes]]:
    """Return the version with corrected coverage of segments by old writers, and the uuids of these segments.

    Raises:
        FormatError: an index file is damaged.
        UnsupportedFormatError: an index file has a version that this release does not read.
    """
    manifest = snapshot.manifest
    doubtful = set(doubtful_indices(manifest))
    if not doubtful or manifest.uses_stable_row_ids or find_reuse_entry(manifest) is not None:
        return manifest, frozenset()
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    repaired = set()
    for entry in section.indices:
        if entry.uuid.uuid in doubtful:
            covered = _read_index_fragments(*snapshot.bases.index_dir(entry))
            if covered is not None:
                entry.fragment_bitmap = covered.serialize()
                repaired.add(entry.uuid.uuid)
    return replace(manifest, index_section=section.SerializeToString()), frozenset(repaired)


def _read_index_fragments(store: Store, directory: str) -> BitMap | None:
    """Return the fragments of the rows in an index; None if the index has no known file of rows."""
    names = set(store.list(directory))
    for name, column in _ROW_COLUMNS:
        if name in names:
            return _read_file_fragments(store, join(directory, name), column)
    return None


def _read_file_fragments(store: Store, path: str, column: str) -> BitMap:
    file = open_file(store, path)
    fields = [field for field in file.schema.fields if field.name == column]
    if len(fields) != 1:
        raise FormatError(f"a file of an index without the column {column}", path)
    reader = file.open_field(fields[0])
    fragment_ids = BitMap()
    for start in range(0, file.num_rows, _ROWS_PER_READ):
        rows = one_array(
            read_field(reader, fields[0], path, start, min(start + _ROWS_PER_READ, file.num_rows))
        )
        fragment_ids |= BitMap(np.unique(rows.to_numpy() >> np.uint64(32)).astype(np.uint32))
    return fragment_ids


pb = transaction_pb2.Transaction


@dataclass(frozen=True)
class RebaseContext:
    """The target of a rebase.

    Attributes:
        latest: the newest version.
        theirs: the operations since the last check that require the rebase, oldest first.
        rows: the rows that ours deletes, if they are known.
    """

    latest: Manifest
    theirs: Sequence[Message]
    rows: RowChanges | None


Rebase = Callable[[Any, RebaseContext], Message]


def _rebase_delete(operation: pb.Delete, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    result = pb.Delete(predicate=operation.predicate)
    result.updated_fragments.extend(outcome.updated)
    result.deleted_fragment_ids.extend(outcome.removed)
    return result


def _rebase_update(operation: pb.Update, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    result = pb.Update()
    result.CopyFrom(operation)
    result.ClearField("updated_fragments")
    result.ClearField("removed_fragment_ids")
    result.updated_fragments.extend(outcome.updated)
    result.removed_fragment_ids.extend(outcome.removed)
    return result


def _rebase_create_index(operation: pb.CreateIndex, context: RebaseContext) -> Message:
    section = table_pb2.IndexSection(indices=operation.new_indices).SerializeToString()
    for update in context.theirs:
        if isinstance(update, pb.Update):
            rewritten = [fragment.id for fragment in update.updated_fragments]
            section = remove_fragments_from_bitmaps(section, rewritten, update.fields_modified)
    result = pb.CreateIndex(removed_indices=operation.removed_indices)
    result.new_indices.extend(table_pb2.IndexSection.FromString(section).indices)
    return result


# Operation -> its rebase function. All other operations need no rebase.
REBASES: Mapping[str, Rebase] = MappingProxyType(
    {"delete": _rebase_delete, "update": _rebase_update, "create_index": _rebase_create_index}
)


# Settings of an append-only table.
_APPEND_ONLY = ("delta.appendOnly", "appendOnly")
_CHANGES_ROWS = frozenset({"delete", "update", "overwrite", "restore", "data_replacement"})


def propose_next(commit: PendingCommit, build: Builder) -> Manifest | CommittedVersion:
    """Check every version since the last check for conflicts and build a version on the newest one."""
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
    if commit.base is not None:
        _check_base(commit, commit.base, latest)
        commit.base = None
    if (
        commit.write_id is not None
        and (ours := _find_earlier_write(commit, commit.write_id, latest)) is not None
    ):
        return CommittedVersion(ours)
    for version in range(commit.checked + 1, latest.version + 1):
        theirs = latest if version == latest.version else _read_between(commit, version, latest)
        if theirs is None:
            _check_set_aside(commit, version)
            commit.checked = version
            continue
        if commit.is_ours(theirs):
            return CommittedVersion(theirs)
        # The version number of an unconfirmed put belongs to another writer, so that put can never land.
        commit.unconfirmed_error = None
        _check_conflict(commit, theirs)
        commit.checked = version
    return build_on(commit, build, latest, newest.highest_number + 1)


def _check_base(commit: PendingCommit, base: Manifest, latest: Manifest) -> None:
    """Check that the table still has the base version, and the columns and settings of that version.

    The rows were checked against the constraints of `base`, which was not read for this commit.

    Raises:
        RetryableConflictError: another table has replaced this one, or its columns or settings have changed.
        VersionNotFoundError: the version was cleaned up.
    """
    current = latest if latest.version == base.version else load_version(commit.table, base.version)
    if current.message is not base.message and current.message != base.message:
        raise RetryableConflictError(
            f"version {base.version} of {commit.root} is another one than before: run the operation again"
        )
    for name in ("fields", "schema_metadata", "config", "table_metadata"):
        if getattr(latest.message, name) != getattr(base.message, name):
            raise RetryableConflictError(
                f"columns or settings of {commit.root} have changed since version {base.version}: run the "
                "operation again"
            )


def build_on(commit: PendingCommit, build: Builder, base: Manifest, number: int | None = None) -> Manifest:
    """Rebase the operation onto a version if necessary, and build the next version.

    Args:
        number: the number of the new version; by default the one after `base`.

    Raises:
        UnsupportedFormatError: the table needs a feature that this release does not write.
    """
    check_writable(base.message, base.path, base.facts)
    _check_append_only(commit.transaction, base)
    if commit.pending_rebases:
        commit.transaction = _rebase_transaction(commit, base)
        commit.pending_rebases = []
    sound, without_coverage = with_sound_coverage(Snapshot(commit.table, base))
    current = with_present_coverage(Snapshot(commit.table, sound))
    number = base.version + 1 if number is None else number
    built = build(current, commit.transaction.operation, commit.context(number, carry_record(base, number)))
    check_successor(commit.restored or sound, built, without_coverage if commit.restored is None else ())
    check_constraints(commit.table, base, built, commit.transaction.name, commit.constraints)
    return replace(built, inferred=base.inferred) if base.inferred else built


def _check_append_only(transaction: Transaction, base: Manifest) -> None:
    """Refuse to remove or change rows of an append-only table. Compaction is allowed: it only moves rows.

    Raises:
        UnsupportedFormatError: the operation removes or changes rows.
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


def _find_earlier_write(
    commit: PendingCommit, write_id: IdempotentWrite, latest: Manifest
) -> Manifest | None:
    """Raise if the write `write_id` has landed. Return the version if an earlier put of this commit wrote it.

    This precedes the check for conflicts: a repeated overwrite is not a conflict with the first.
    """
    if commit.recorded is not None:
        for version in range(commit.checked + 1, latest.version + 1):
            theirs = latest if version == latest.version else _read_between(commit, version, latest)
            if theirs is None:
                continue
            if commit.is_ours(theirs):
                return theirs
            commit.unconfirmed_error = None
    commit.ledger.learn(commit.table, latest)
    commit.ledger.refuse(write_id, commit.root)
    return None


def _rebase_transaction(commit: PendingCommit, latest: Manifest) -> Transaction:
    """Return the rebased transaction. If it merges deleted rows, it reads the newest version."""
    transaction = commit.transaction
    rebase = REBASES.get(transaction.name or "")
    if rebase is None:
        return transaction
    context = RebaseContext(latest, commit.pending_rebases, commit.rows)
    operation = rebase(transaction.operation, context)
    return transaction.rebased(operation, latest.version if commit.rows else transaction.read_version)


def propose_first(
    commit: PendingCommit, build: Callable[[CommitContext], Manifest]
) -> Manifest | CommittedVersion:
    """Build the first version of a table that does not exist yet.

    Raises:
        TableExistsError: the table exists.
    """
    first = build(commit.context(1, {}))
    check_constraints(commit.table, None, first, commit.transaction.name, commit.constraints)
    versions = list_versions(commit.table)
    for file in versions:
        if file.version == first.version:
            winner = read_manifest(commit.store, file.path, file.naming)
            if commit.is_ours(winner):
                return CommittedVersion(winner)
            commit.unconfirmed_error = None
    if versions:
        raise TableExistsError(f"a Lance table already exists at {commit.root}: choose another place")
    return first


def _check_conflict(commit: PendingCommit, theirs: Manifest) -> None:
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
        commit.pending_rebases.append(transaction.operation)


def _check_set_aside(commit: PendingCommit, version: int) -> None:
    """Raise unless a torn manifest was set aside.

    A manifest that is damaged now may have been whole when the next version was built on it. Its changes are
    then in the newest version, but cannot be checked for conflicts.

    Raises:
        RetryableConflictError: the damaged manifest is still in place.
    """
    if not is_set_aside(commit.table, version):
        ours = commit.transaction
        raise RetryableConflictError(
            f"version {version} of {commit.root} has a damaged manifest, so a {ours.name} computed from "
            f"version {ours.read_version} cannot be checked: run the operation again"
        )


def _read_between(commit: PendingCommit, version: int, latest: Manifest) -> Manifest | None:
    """Return a version between the last check and the newest one; None if its manifest is torn."""
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


def find_builder(transaction: Transaction) -> Builder:
    """Return the function that builds the version of an operation.

    Raises:
        UnsupportedFormatError: this release does not execute the operation.
    """
    build = OPERATIONS[transaction.name] if transaction.name else None
    if build is None:
        raise UnsupportedFormatError(f"the operation {transaction.name} is not executed by this release")
    return build
