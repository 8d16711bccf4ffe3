"""Publish a branch: copy its content, or its row changes, to another line (main or a branch) as one version.

The files that the branch wrote are copied into the folder of the target line, so both lines can be cleaned up
and dropped independently. The state of the target decides the commit:

    target unchanged since the branch began or was published           the next version has the branch's
    content target changed, the branch only appended rows                      the next version adds these
    rows target changed, the branch appended, updated or deleted rows       the next version adds these
    changes;
                                                                       refused if both changed the same row
    target changed, the branch did something else                      refused

The row changes are the difference of two versions of the branch: rows that it deleted in fragments of both
lines, and fragments that only the branch has. They are committed like an UPDATE that was computed from the
last state that both lines shared, so the usual rules for concurrent writers apply.

In the first case, a detached version is written and then restored, so readers see all changes at once.

A publication is committed exactly once. The commit is an idempotent write of the branch
(`idempotent_writes`). Its number is the version of the branch that both lines last shared. So only one of two
concurrent publishers succeeds, and the record survives a clean-up of the version.

The new version's transaction records the published version of the branch, and the branch's metadata records
the target's new version. The content is the same only until the target gets changes of its own. After that,
only row changes can be published.

    transaction property   spark_lance.published = "<id of the branch>,<version of the branch>,same | other"
    metadata of the branch spark_lance.published = "<other line>,<its version>"
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from spark_lance.errors import (
    AlreadyCommittedError,
    FormatError,
    IncompatibleConflictError,
    OptionError,
    RetryableConflictError,
    VersionNotFoundError,
)
from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.commit_options import STATEMENT
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.row_changes import Outcome, RowChanges
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest, pack_manifest
from spark_lance.table.format.paths import ManifestNaming, detached_path
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.inserts.clone import copy_object, files_to_copy
from spark_lance.table.metadata.operations import operation_name
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.operations.update import update_message
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.versions import load_latest, load_version

pb = transaction_pb2.Transaction
logger = logging.getLogger(__name__)

PUBLISHED = "spark_lance.published"
MAIN = "main"


@dataclass(frozen=True)
class PublishResult:
    """The version numbers of the target line before and after a publication."""

    before: int
    after: int


@dataclass(frozen=True)
class _Lines:
    """The branch, the target line, and the statement's name for the history."""

    main: TableRef
    branch: str
    target: str
    statement: str

    @property
    def source_line(self) -> TableRef:
        return branch_line(self.main, self.branch)

    @property
    def target_line(self) -> TableRef:
        return self.main if self.target == MAIN else branch_line(self.main, self.target)

    def common(self, latest: Manifest) -> _SharedState:
        """Return the state that both lines last shared.

        Raises:
            OptionError: the branch did not begin on the target.
            FormatError: the record of the last publication is damaged.
        """
        branches = Branches(self.main)
        record = branches.get(self.branch)
        begins = (record["parent_branch"] or MAIN) == self.target
        line, _, text = str(record["metadata"].get(PUBLISHED, "")).rpartition(",")
        oldest = int(record["parent_version"]) if begins else latest.version
        if line == self.target:
            oldest = _parse_version(text)
        identity = branches.identity(self.branch)
        # A publication may have failed before it updated the branch's metadata: newer versions come first.
        for number in range(latest.version, oldest - 1, -1):
            published = self._published_state(latest, number, identity)
            if published is not None:
                return published
        if not begins:
            parent = record["parent_branch"] or MAIN
            raise OptionError(
                f"branch {self.branch!r} began on {parent!r}, not on {self.target!r}: publish it there, CALL "
                f"<catalog>.system.fast_forward('<table>', '{parent}', '{self.branch}')"
            )
        if oldest != int(record["parent_version"]):
            raise FormatError(
                f"version {oldest} of {self.target} has no record of a publication", self.target_line.root
            )
        return _SharedState(oldest, oldest, is_same=True)

    def _published_state(self, latest: Manifest, number: int, identity: str) -> _SharedState | None:
        """Return the state that a version of the target shares with the branch; None if unpublished."""
        try:
            manifest = latest if number == latest.version else load_version(self.target_line, number)
            transaction = read_transaction(self.target_line, manifest)
        except VersionNotFoundError:
            return None  # a clean-up deleted the version, or a writer skipped the number
        parts = transaction.properties.get(PUBLISHED, "").split(",")
        if len(parts) != 3 or parts[0] != identity:
            return None
        return _SharedState(_parse_version(parts[1]), number, is_same=parts[2] == "same")

    def write_id(self, common: _SharedState) -> IdempotentWrite:
        """Return the job and number that allow only one publication from this state."""
        identity = Branches(self.main).identity(self.branch)
        return IdempotentWrite(f"{PUBLISHED}:{identity}", common.source)

    def properties(self, head: Manifest, same: bool) -> dict[str, str]:
        """Return the properties of the transaction that publishes version `head` of the branch."""
        identity = Branches(self.main).identity(self.branch)
        text = f"{identity},{head.version},{'same' if same else 'other'}"
        return {PUBLISHED: text, "spark_lance.branch": self.branch, STATEMENT: self.statement}

    def record_publication(self, version: int) -> None:
        """Record in the branch's metadata the version of the target that has its content."""
        branches = Branches(self.main)
        metadata = branches.get(self.branch)["metadata"]
        branches.replace_metadata(self.branch, {**metadata, PUBLISHED: f"{self.target},{version}"})


@dataclass(frozen=True)
class _SharedState:
    """The last state that branch and target shared.

    Attributes:
        source: the version of the branch.
        target: the version of the target.
        is_same: whether both versions have the same content.
    """

    source: int
    target: int
    is_same: bool


def _parse_version(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise FormatError(
            f"{PUBLISHED} of a branch or a transaction has {text!r} in place of a number"
        ) from error


def publish_branch(
    main: TableRef, branch: str, target: str = MAIN, version: int | None = None
) -> PublishResult:
    """Publish the content of a branch to the line on which it began.

    Args:
        main: the table's main line.
        branch: the branch.
        target: "main" or the branch that gets the content.
        version: publish only this version of the branch, which must be the next version to publish.

    Returns:
        The version numbers of the target before and after. They are equal if everything was published
        already.

    Raises:
        BranchNotFoundError: a branch does not exist.
        OptionError: the branch did not begin on the target.
        IncompatibleConflictError: both lines changed the same rows, or the branch did more than change rows;
            or a clean-up deleted the version that records the last publication.
        RetryableConflictError: another writer is changing the target.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that we cannot write.
    """
    if target != MAIN:
        Branches(main).get(target)
    statement = "FAST FORWARD" if version is None else "CHERRYPICK"
    lines = _Lines(main, branch, target, statement)
    source = lines.source_line
    head = load_latest(source) if version is None else load_version(source, version)
    check_writable(head.message, head.path)
    latest = load_latest(lines.target_line)
    common = lines.common(latest)
    if version is not None:
        _check_next(lines, common, version)
    while head.version > common.source:
        replaces = common.is_same and latest.version == common.target
        try:
            after = (
                _publish_content(lines, head, latest, common)
                if replaces
                else _publish_changes(lines, head, common)
            )
        except AlreadyCommittedError as error:
            start = common.source
            latest = load_latest(lines.target_line)
            common = lines.common(latest)
            if common.source > start:
                continue  # Another publisher was first: publish only the remaining versions.
            raise IncompatibleConflictError(
                f"branch {branch!r} was published after its version {start}, as version {error.version} of "
                f"{target}, which a clean-up has deleted with its record: compare the rows of both lines, "
                f"and append the missing rows to {target} with INSERT INTO"
            ) from error
        lines.record_publication(after.version)
        logger.info("published branch %s of %s as version %d of %s", branch, main, after.version, target)
        return PublishResult(latest.version, after.version)
    return PublishResult(latest.version, latest.version)


def _publish_content(lines: _Lines, head: Manifest, latest: Manifest, common: _SharedState) -> Manifest:
    """Commit the content of the branch as the version after `latest`."""
    target = lines.target_line
    _copy_own_files(lines, head)
    message = table_pb2.Manifest()
    message.CopyFrom(head.message)
    section = table_pb2.IndexSection.FromString(head.index_section)
    check_message(section, head.path)
    _rebase_references(lines, message, section)
    number = secrets.randbits(63) | 1 << 63
    message.version = number
    message.ClearField("branch")
    if lines.target != MAIN:
        message.branch = lines.target
    path = detached_path(target.root, number)
    if latest.naming is not ManifestNaming.V2:
        raise OptionError(
            f"the manifests of {target.root} have names of version V1: call migrate_manifest_paths_v2() of "
            "its LanceDataset first"
        )
    for part in ("index_section", "transaction_section", "transaction_section_deprecated"):
        message.ClearField(part)
    transaction = read_transaction(lines.source_line, head)
    packed = transaction.pack()
    target.store.put(
        path, pack_manifest(message, section.SerializeToString() if section.indices else b"", packed)
    )
    try:
        restore = transaction_pb2.Transaction.Restore(version=number)
        return commit_operation(
            target,
            restore,
            read_version=latest.version,
            properties=lines.properties(head, same=True),
            strict=True,
            write_id=lines.write_id(common),
        )
    finally:
        target.store.delete(path, target.root)


def _rebase_references(lines: _Lines, message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    """Make references to the target's folder, which has the files of both lines, relative to the target."""
    bases = Bases.of(lines.source_line, message)
    target_uri = lines.target_line.uri
    target_bases = {
        base.id for base in bases.others if base.is_dataset_root and _is_same_location(base.uri, target_uri)
    }
    entries: list[table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexMetadata] = []
    for fragment in message.fragments:
        entries += [*fragment.files, *(overlay.data_file for overlay in fragment.overlays)]
        if fragment.HasField("deletion_file"):
            entries.append(fragment.deletion_file)
    entries += section.indices
    for entry in entries:
        if entry.HasField("base_id") and entry.base_id in target_bases:
            entry.ClearField("base_id")
    others = [base for base in message.base_paths if base.id not in target_bases]
    del message.base_paths[:]
    message.base_paths.extend(others)


def _is_same_location(one: str, other: str) -> bool:
    return one.removeprefix("file://").rstrip("/") == other.removeprefix("file://").rstrip("/")


def _copy_own_files(lines: _Lines, manifest: Manifest) -> None:
    """Copy the files of a version from the branch's own folder to the target, unless they exist there."""
    bases = Bases.of(lines.source_line, manifest.message)
    for store, path, name in files_to_copy(bases, manifest):
        if store == lines.main.store and path.startswith(f"{lines.source_line.root}/"):
            target = lines.target_line.path(name)
            if not lines.main.store.exists(target):
                copy_object(store, path, lines.main.store, target)


def _check_next(lines: _Lines, common: _SharedState, version: int) -> None:
    """Check that a version of the branch is the next version to publish.

    Raises:
        OptionError: it is not.
    """
    if version == common.source + 1:
        return
    if version <= common.source:
        raise OptionError(f"version {version} of branch {lines.branch!r} is in {lines.target} already")
    raise OptionError(
        f"version {version} of branch {lines.branch!r} follows versions that are not published: publish "
        f"{common.source + 1} first, or all of them, CALL "
        f"<catalog>.system.fast_forward('<table>', '{lines.target}', '{lines.branch}')"
    )


def _publish_changes(lines: _Lines, head: Manifest, common: _SharedState) -> Manifest:
    """Commit the rows that the branch appended or changed to the target's newest version."""
    operations = list(_read_operations(lines, head, common.source))
    if all(isinstance(operation, pb.Append) for _, operation in operations):
        return _append_rows(lines, head, common, [operation for _, operation in operations])
    before = load_version(lines.source_line, common.source)
    for manifest, operation in operations:
        if reason := _reason_not_to_replay(operation, head.uses_stable_row_ids and not common.is_same):
            raise _refusal(lines, common, f"{reason} (version {manifest.version})")
    if list(before.message.fields) != list(head.message.fields):
        raise _refusal(lines, common, "changes its columns")
    return _commit_row_changes(lines, before, head, common, [operation for _, operation in operations])


def _refusal(lines: _Lines, common: _SharedState, reason: str) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{lines.target} has changed since version {common.target}, and branch {lines.branch!r} {reason}: "
        f"repeat that change on {lines.target}"
    )


def _reason_not_to_replay(operation: Any, ids_differ: bool) -> str:
    """Return the reason why an operation cannot be replayed, as the end of a sentence; "" if it can.

    Args:
        operation: the operation of the branch.
        ids_differ: whether the same row can have different stable row ids in the two lines.
    """
    if isinstance(operation, pb.Update):
        if operation.update_mode == pb.Update.REWRITE_COLUMNS or operation.compacted_sstables:
            return "rewrites columns or brings rows of a write-ahead log"
        return "updates rows whose ids differ between both lines" if ids_differ else ""
    rows_only = (pb.Append, pb.Delete, pb.Rewrite, pb.CreateIndex, pb.ReserveFragments)
    return "" if isinstance(operation, rows_only) else "does more than append, update and delete rows"


def _append_rows(lines: _Lines, head: Manifest, common: _SharedState, operations: Sequence[Any]) -> Manifest:
    """Append the rows that the branch appended to the target's newest version."""
    _copy_own_files(lines, head)
    append = pb.Append(fragments=[fragment for operation in operations for fragment in operation.fragments])
    return commit_operation(
        lines.target_line,
        append,
        read_version=common.target,
        properties=lines.properties(head, same=False),
        write_id=lines.write_id(common),
    )


def _commit_row_changes(
    lines: _Lines, before: Manifest, head: Manifest, common: _SharedState, operations: Sequence[Any]
) -> Manifest:
    """Commit the difference of two versions of the branch to the target's newest version."""
    added = _new_fragments(lines, before, head, common, operations)
    target = lines.target_line
    at = Snapshot(target, load_version(target, common.target))
    changes = RowChanges(at, RowSet.from_offsets(_deleted_rows(lines, before, head, at, common)))
    updates = [operation for operation in operations if isinstance(operation, pb.Update)]
    filters = [update.inserted_rows for update in updates if update.HasField("inserted_rows")]
    if len(filters) > 1:
        raise _refusal(lines, common, "inserts rows by primary key in more than one version")
    fields = {number for update in updates for number in update.fields_for_preserving_frag_bitmap}

    def message(outcome: Outcome) -> Message:
        if not added:
            return delete_message(outcome.updated, outcome.removed, f"published from branch {lines.branch}")
        return update_message(
            outcome.updated, outcome.removed, added, sorted(fields), filters[0] if filters else None
        )

    _copy_own_files(lines, head)
    try:
        return commit_row_changes(
            changes, message, properties=lines.properties(head, same=False), write_id=lines.write_id(common)
        )
    except AlreadyCommittedError:
        raise
    except RetryableConflictError as error:
        raise _refusal(lines, common, f"is in conflict with that ({error})") from error


def _file_names(fragment: table_pb2.DataFragment) -> tuple[str, ...]:
    """Return the names of a fragment's files, which identify it in all lines; its ids may differ."""
    overlays = [overlay.data_file.path for overlay in fragment.overlays]
    return (*(file.path for file in fragment.files), *overlays)


def _new_fragments(
    lines: _Lines, before: Manifest, head: Manifest, common: _SharedState, operations: Sequence[Any]
) -> list[table_pb2.DataFragment]:
    """Return the fragments that only the newer version of the branch has, in the form of its operation."""
    old_keys = {_file_names(fragment) for fragment in before.fragments}
    fragments_by_key = {
        _file_names(fragment): fragment
        for operation in operations
        if isinstance(operation, pb.Append | pb.Update)
        for fragment in (operation.fragments if isinstance(operation, pb.Append) else operation.new_fragments)
    }
    result = []
    for fragment in head.fragments:
        if (key := _file_names(fragment)) in old_keys:
            continue
        if fragment.HasField("deletion_file"):
            raise IncompatibleConflictError(
                f"{lines.target} has changed since version {common.target}, and branch {lines.branch!r} "
                "changed rows that it had added: first REORG TABLE "
                f"<catalog>.<table>.`branch_{lines.branch}` APPLY (PURGE)"
            )
        if head.uses_stable_row_ids and key not in fragments_by_key:
            raise _refusal(lines, common, "moved rows that keep their ids")
        if fragment.overlays or any(file.HasField("base_id") for file in fragment.files):
            raise _refusal(lines, common, "has rows in files of another place")
        copy = table_pb2.DataFragment()
        copy.CopyFrom(fragments_by_key.get(key, fragment))
        copy.id = 0
        result.append(copy)
    return result


def _deleted_rows(
    lines: _Lines, before: Manifest, head: Manifest, at: Snapshot, common: _SharedState
) -> dict[int, npt.NDArray[np.uint32]]:
    """Return the rows that the branch deleted between two versions, by fragment id of the target."""
    ids = {_file_names(fragment): fragment.id for fragment in at.fragments}
    source = Snapshot(lines.source_line, before)
    later = source.at(head)
    new_fragments = {_file_names(fragment): fragment for fragment in head.fragments}
    result = {}
    for fragment in before.fragments:
        new_fragment = new_fragments.get(_file_names(fragment))
        if new_fragment is not None and not new_fragment.HasField("deletion_file"):
            continue
        deleted = source.deletions(fragment)
        all_deleted = (
            np.arange(source.physical_rows(fragment), dtype=np.uint32)
            if new_fragment is None
            else later.deletions(new_fragment)
        )
        rows = np.setdiff1d(all_deleted, deleted)
        if not len(rows):
            continue
        number = ids.get(_file_names(fragment))
        if number is None:
            raise _refusal(lines, common, f"changes rows of files that {lines.target} has not")
        result[number] = rows
    return result


def _read_operations(lines: _Lines, head: Manifest, source_version: int) -> Iterator[tuple[Manifest, object]]:
    """Yield the versions of the branch after `source_version` with their operations, oldest first."""
    for number in range(source_version + 1, head.version + 1):
        manifest = head if number == head.version else load_version(lines.source_line, number)
        transaction = read_transaction(lines.source_line, manifest)
        if operation_name(transaction) is None:
            raise IncompatibleConflictError(
                f"version {number} of branch {lines.branch!r} has no record of its operation: repeat its "
                f"change on {lines.target}"
            )
        yield manifest, transaction.operation
