"""A commit in progress, and the next version of a table as it proposes it after the check for conflicts.

Every version that is new since the last check is compared with the operation (`verdict`). If they are
compatible, the operation is rebased onto the newest version (`REBASES`), and its manifest is built from the
newest one (`OPERATIONS`).

Most operations are simply applied to the newest version. These few name things that others may have changed
meanwhile without being in the way:

    delete, update    fragments with deletion files: rows that others deleted in them stay deleted
    create_index      what an index covers: not the fragments whose indexed columns were rewritten in place

If an old writer's entries are unreliable (see `old_writers`), the next writer corrects them, as in other
engines: a segment covers the fragments that its rows belong to. The rows are in one column of one file:

    auxiliary.idx       _rowid     of vector indices
    page_data.lance     ids        of B-trees

Other kinds stay as they are. So do all entries if row ids are not addresses, or if the table has a
fragment-reuse entry. Then nothing is built on the version.
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
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.indices.fragment_reuse import find_reuse_entry, with_present_coverage
from spark_lance.table.operations import OPERATIONS, Builder
from spark_lance.table.operations.index_upkeep import remove_fragments_from_bitmaps
from spark_lance.table.operations.next_version import ReuseEntry, Stamp
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import is_set_aside, list_versions, load_newest, read_whole


@dataclass(frozen=True)
class CommitEnv:
    """The clock and other inputs of a commit besides the store; tests replace them."""

    time_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


SYSTEM_ENV = CommitEnv()


@dataclass
class PendingCommit(OfTable):
    """One commit on its way.

    Attributes:
        rows, reuse, strict, once: as in `commit_operation`.
        ledger: the pairs that landed before, as far as they were looked up for `once`.
        restored: the version that a Restore brings back.
        checked: no version up to this one is in the way.
        unfit: operations of others onto which ours must still be fitted.
        recorded: the transaction as it stands in its file; None if there is no file yet.
        constraints: the constraints and fragments that are checked.
        unconfirmed_error: the failure of a put that may still land; None if the fate of every put is known.
    """

    table: TableRef
    transaction: Transaction
    env: CommitEnv
    rows: RowChanges | None = None
    reuse: ReuseEntry | None = None
    strict: bool = False
    once: IdempotentWrite | None = None
    ledger: AppliedWrites = field(default_factory=AppliedWrites)
    restored: Manifest | None = None
    unfit: list[Message] = field(default_factory=list)
    recorded: Transaction | None = None
    constraints: set[object] = field(default_factory=set)
    unconfirmed_error: OSError | None = None

    def __post_init__(self) -> None:
        self.checked = self.transaction.read_version

    def stamp(self, version: int, config: Mapping[str, str]) -> Stamp:
        """Return the stamp of this commit for `version`; `config` has the record of pairs."""
        name = self.transaction.file_name
        if self.once is not None:
            config = {
                APPLIED_WRITES: self.ledger.with_pair(self.once, version, self.env.time_ns() // 10**9).text()
            }
        return Stamp(self.root, name, self.env.time_ns(), self.restored, self.reuse, config, version)

    def is_ours(self, manifest: Manifest) -> bool:
        """Whether a stored version was made by this commit: its transaction's file name has our uuid.

        The rest of the name may differ, for merging moves the version that the commit is computed from.
        """
        return manifest.transaction_file.endswith(f"-{self.transaction.uuid}.txn")


@dataclass(frozen=True)
class CommittedVersion:
    """This commit's version was found in the table: an earlier put went through after all."""

    manifest: Manifest


def unknown_outcome(commit: PendingCommit) -> CommitOutcomeUnknownError:
    """Return the error for a put with an unknown outcome."""
    return CommitOutcomeUnknownError(
        f"the store did not say whether transaction {commit.transaction.uuid} was committed to "
        f"{commit.root}: {commit.unconfirmed_error}. Nothing was deleted; look at its newest "
        "versions before a retry"
    )


_ROWS = (("auxiliary.idx", "_rowid"), ("page_data.lance", "ids"))
_RUN = 1 << 22


def with_sound_coverage(snapshot: Snapshot) -> tuple[Manifest, frozenset[bytes]]:
    """Return the version with the coverage of old segments put right, and the uuids of these.

    Raises:
        FormatError: a file of an index is damaged.
        UnsupportedFormatError: one is of a version that is not read here.
    """
    manifest = snapshot.manifest
    doubtful = set(doubtful_indices(manifest))
    if not doubtful or manifest.uses_stable_row_ids or find_reuse_entry(manifest) is not None:
        return manifest, frozenset()
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    repaired = set()
    for entry in section.indices:
        if entry.uuid.uuid in doubtful:
            covered = _fragments_of(*snapshot.bases.index_dir(entry))
            if covered is not None:
                entry.fragment_bitmap = covered.serialize()
                repaired.add(entry.uuid.uuid)
    return replace(manifest, index_section=section.SerializeToString()), frozenset(repaired)


def _fragments_of(store: Store, directory: str) -> BitMap | None:
    """Return the fragments of the rows of an index; None if this module cannot read them."""
    names = set(store.list(directory))
    for name, column in _ROWS:
        if name in names:
            return _fragments_in(store, join(directory, name), column)
    return None


def _fragments_in(store: Store, path: str, column: str) -> BitMap:
    file = open_file(store, path)
    fields = [field for field in file.schema.fields if field.name == column]
    if len(fields) != 1:
        raise FormatError(f"a file of an index without the column {column}", path)
    reader = file.open_field(fields[0])
    fragment_ids = BitMap()
    for start in range(0, file.num_rows, _RUN):
        rows = one_array(read_field(reader, fields[0], path, start, min(start + _RUN, file.num_rows)))
        fragment_ids |= BitMap(np.unique(rows.to_numpy() >> np.uint64(32)).astype(np.uint32))
    return fragment_ids


pb = transaction_pb2.Transaction


@dataclass(frozen=True)
class RebaseContext:
    """The target of a rebase.

    Attributes:
        latest: the newest version.
        theirs: the operations since the last check that require it, oldest first.
        rows: the rows that ours deletes, if its transaction contains them.
    """

    latest: Manifest
    theirs: Sequence[Message]
    rows: RowChanges | None


Rebase = Callable[[Any, RebaseContext], Message]


def _delete(operation: pb.Delete, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    result = pb.Delete(predicate=operation.predicate)
    result.updated_fragments.extend(outcome.updated)
    result.deleted_fragment_ids.extend(outcome.removed)
    return result


def _update(operation: pb.Update, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    result = pb.Update()
    result.CopyFrom(operation)
    result.ClearField("updated_fragments")
    result.ClearField("removed_fragment_ids")
    result.updated_fragments.extend(outcome.updated)
    result.removed_fragment_ids.extend(outcome.removed)
    return result


def _create_index(operation: pb.CreateIndex, context: RebaseContext) -> Message:
    section = table_pb2.IndexSection(indices=operation.new_indices).SerializeToString()
    for update in context.theirs:
        if isinstance(update, pb.Update):
            rewritten = [fragment.id for fragment in update.updated_fragments]
            section = remove_fragments_from_bitmaps(section, rewritten, update.fields_modified)
    result = pb.CreateIndex(removed_indices=operation.removed_indices)
    result.new_indices.extend(table_pb2.IndexSection.FromString(section).indices)
    return result


# Operation -> what makes it fit; all others fit as they are.
REBASES: Mapping[str, Rebase] = MappingProxyType(
    {"delete": _delete, "update": _update, "create_index": _create_index}
)


# Settings of a table to which rows are only added.
_APPEND_ONLY = ("delta.appendOnly", "appendOnly")
_CHANGES_ROWS = frozenset({"delete", "update", "overwrite", "restore", "data_replacement"})


def propose_next(commit: PendingCommit, build: Builder) -> Manifest | CommittedVersion:
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
        return CommittedVersion(ours)
    for version in range(commit.checked + 1, latest.version + 1):
        theirs = latest if version == latest.version else _read_past(commit, version, latest)
        if theirs is None:
            _check_set_aside(commit, version)
            commit.checked = version
            continue
        if commit.is_ours(theirs):
            return CommittedVersion(theirs)
        # The version that a put in doubt aimed at is someone else's, so that put can never land.
        commit.unconfirmed_error = None
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
        commit.transaction = _fit_transaction(commit, base)
        commit.unfit = []
    sound, without_coverage = with_sound_coverage(Snapshot(commit.table, base))
    current = with_present_coverage(Snapshot(commit.table, sound))
    number = base.version + 1 if number is None else number
    built = build(current, commit.transaction.operation, commit.stamp(number, carry_record(base, number)))
    check_successor(commit.restored or sound, built, without_coverage if commit.restored is None else ())
    check_constraints(commit.table, base, built, commit.transaction.name, commit.constraints)
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
            commit.unconfirmed_error = None
    commit.ledger.learn(commit.table, latest)
    commit.ledger.refuse(once, commit.root)
    return None


def _fit_transaction(commit: PendingCommit, latest: Manifest) -> Transaction:
    """Return the transaction, rebased; if it merges rows, the newest version becomes its read version."""
    transaction = commit.transaction
    rebase = REBASES.get(transaction.name or "")
    if rebase is None:
        return transaction
    context = RebaseContext(latest, commit.unfit, commit.rows)
    operation = rebase(transaction.operation, context)
    return transaction.rebased(operation, latest.version if commit.rows else transaction.read_version)


def propose_first(commit: PendingCommit, build: Callable[[Stamp], Manifest]) -> Manifest | CommittedVersion:
    """Build the first version where there is no table yet."""
    first = build(commit.stamp(1, {}))
    check_constraints(commit.table, None, first, commit.transaction.name, commit.constraints)
    versions = list_versions(commit.table)
    for file in versions:
        if file.version == first.version:
            winner = read_manifest(commit.store, file.path, file.naming)
            if commit.is_ours(winner):
                return CommittedVersion(winner)
            commit.unconfirmed_error = None
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
