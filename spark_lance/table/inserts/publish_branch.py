"""Publish a branch: another line gets its content, as one version, or its appended rows.

The files that the branch wrote are copied into the folder of the other line, so both can be cleaned up and
dropped on their own. The state of the other line decides the commit:

    it has not changed since the branch began, or was published      its next version has the branch's content
    it has, and the branch only appended rows                        its next version has these rows, too
    it has, and the branch did something else                        refused

The first way goes through a detached version that is restored, so readers see all changes at once.

A publication lands once. Its commit is an idempotent write of the branch (`idempotent_writes`). The number is
the version of the branch that both lines last shared. So of two publishers that start from there one lands,
and the record outlives a clean-up of its version.

The new version's transaction says what it brought, and the branch's metadata where to find that. The content
is the same only until the other line has rows of its own. From then on only appended rows can be published.

    transaction property   spark_lance.published = "<id of the branch>,<version of the branch>,same | other"
    metadata of the branch spark_lance.published = "<other line>,<its version>"
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from spark_lance.errors import (
    AlreadyCommittedError,
    FormatError,
    IncompatibleConflictError,
    OptionError,
    VersionNotFoundError,
)
from spark_lance.io.store import Store, join
from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest, pack_manifest
from spark_lance.table.format.paths import Naming, detached_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.inserts.clone import copy_file, version_files
from spark_lance.table.metadata.operations import operation_name
from spark_lance.table.versions.branches import Branches, branch_root
from spark_lance.table.versions.versions import load_latest, load_version

logger = logging.getLogger(__name__)

PUBLISHED = "spark_lance.published"
MAIN = "main"


@dataclass(frozen=True)
class Published:
    """The versions of the line that was published to, before and after."""

    before: int
    after: int


@dataclass(frozen=True)
class _Lines:
    """The branch, and the line that gets its content."""

    store: Store
    main: str
    branch: str
    target: str

    @property
    def source_root(self) -> str:
        return branch_root(self.main, self.branch)

    @property
    def target_root(self) -> str:
        return self.main if self.target == MAIN else branch_root(self.main, self.target)

    def common(self, latest: Manifest) -> _Common:
        """Return the state that both lines last shared.

        Raises:
            OptionError: the branch did not begin on the target.
            FormatError: what was recorded about it is damaged.
        """
        branches = Branches(self.store, self.main)
        record = branches.get(self.branch)
        begins = (record["parent_branch"] or MAIN) == self.target
        line, _, text = str(record["metadata"].get(PUBLISHED, "")).rpartition(",")
        oldest = int(record["parent_version"]) if begins else latest.version
        if line == self.target:
            oldest = _number(text)
        identity = branches.identity(self.branch)
        # A publication may have failed to note itself in the branch, so newer versions are read first.
        for number in range(latest.version, oldest - 1, -1):
            published = self._published(latest, number, identity)
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
                f"version {oldest} of {self.target} does not say what it brought", self.target_root
            )
        return _Common(oldest, oldest, is_same=True)

    def _published(self, latest: Manifest, number: int, identity: str) -> _Common | None:
        """Return what a version of the target brought from the branch; None if nothing."""
        try:
            manifest = (
                latest
                if number == latest.version
                else load_version(TableRef(self.store, self.target_root), number)
            )
            transaction = read_transaction(TableRef(self.store, self.target_root), manifest)
        except VersionNotFoundError:
            return None  # a clean-up took it, or a writer left the number out
        parts = transaction.properties.get(PUBLISHED, "").split(",")
        if len(parts) != 3 or parts[0] != identity:
            return None
        return _Common(_number(parts[1]), number, is_same=parts[2] == "same")

    def once(self, common: _Common) -> IdempotentWrite:
        """Return the job and number that let a publication from this state land once."""
        identity = Branches(self.store, self.main).identity(self.branch)
        return IdempotentWrite(f"{PUBLISHED}:{identity}", common.source)

    def properties(self, head: Manifest, same: bool) -> dict[str, str]:
        """Return the properties of the transaction that publishes a version of the branch."""
        identity = Branches(self.store, self.main).identity(self.branch)
        text = f"{identity},{head.version},{'same' if same else 'other'}"
        return {PUBLISHED: text, "spark_lance.branch": self.branch}

    def remember(self, version: int) -> None:
        """Note in the branch which version of the target brought its content."""
        branches = Branches(self.store, self.main)
        metadata = branches.get(self.branch)["metadata"]
        branches.replace_metadata(self.branch, {**metadata, PUBLISHED: f"{self.target},{version}"})


@dataclass(frozen=True)
class _Common:
    """The versions of the branch and of the target that last met; `is_same`: their content is the same."""

    source: int
    target: int
    is_same: bool


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise FormatError(
            f"{PUBLISHED} of a branch or a transaction has {text!r} in place of a number"
        ) from error


def publish_branch(store: Store, main: str, branch: str, target: str = MAIN) -> Published:
    """Give a line the content of a branch that began on it.

    Args:
        store: where the table is.
        main: root path of its main line.
        branch: the branch.
        target: "main" or the branch that gets the content.

    Raises:
        BranchNotFoundError: there is no such branch.
        OptionError: the branch did not begin on the target.
        IncompatibleConflictError: the target has changed meanwhile, and the branch did more than append; or
            a clean-up has deleted the version that says how much of the branch was published.
        RetryableConflictError: another writer changes the target now.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """
    if target != MAIN:
        Branches(store, main).get(target)
    lines = _Lines(store, main, branch, target)
    head = load_latest(TableRef(store, lines.source_root))
    check_writable(head.message, head.path)
    latest = load_latest(TableRef(store, lines.target_root))
    common = lines.common(latest)
    while head.version > common.source:
        replaces = common.is_same and latest.version == common.target
        try:
            after = _replaced(lines, head, latest, common) if replaces else _appended(lines, head, common)
        except AlreadyCommittedError as error:
            start = common.source
            latest = load_latest(TableRef(store, lines.target_root))
            common = lines.common(latest)
            if common.source > start:
                continue  # Another publisher was first: what is left is published from where it ended.
            raise IncompatibleConflictError(
                f"branch {branch!r} was published after its version {start}, as version {error.version} of "
                f"{target}, which a clean-up has deleted. It said how far: compare the rows of both lines, "
                f"and append with INSERT INTO those that {target} lacks"
            ) from error
        lines.remember(after.version)
        logger.info("published branch %s of %s as version %d of %s", branch, main, after.version, target)
        return Published(latest.version, after.version)
    return Published(latest.version, latest.version)


def _replaced(lines: _Lines, head: Manifest, latest: Manifest, common: _Common) -> Manifest:
    """Commit the content of the branch as the version after `latest`."""
    store, root = lines.store, lines.target_root
    _copy_own_files(lines, head)
    message = table_pb2.Manifest()
    message.CopyFrom(head.message)
    section = table_pb2.IndexSection.FromString(head.index_section)
    check_message(section, head.path)
    _settle(lines, message, section)
    number = secrets.randbits(63) | 1 << 63
    message.version = number
    message.ClearField("branch")
    if lines.target != MAIN:
        message.branch = lines.target
    path = detached_path(root, number)
    if latest.naming is not Naming.V2:
        raise OptionError(
            f"the manifests of {root} have names of version V1: call migrate_manifest_paths_v2() of its "
            "LanceDataset first"
        )
    for part in ("index_section", "transaction_section", "transaction_section_deprecated"):
        message.ClearField(part)
    transaction = read_transaction(TableRef(store, lines.source_root), head)
    packed = transaction.pack()
    store.put(path, pack_manifest(message, section.SerializeToString() if section.indices else b"", packed))
    try:
        restore = transaction_pb2.Transaction.Restore(version=number)
        return commit_operation(
            TableRef(store, root),
            restore,
            read_version=latest.version,
            properties=lines.properties(head, same=True),
            strict=True,
            once=lines.once(common),
        )
    finally:
        store.delete(path, root)


def _settle(lines: _Lines, message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    """Turn references of the branch into those of the target: its folder has what both have written."""
    bases = Bases.of(TableRef(lines.store, lines.source_root), message)
    home = lines.store.uri(lines.target_root)
    at_home = {base.id for base in bases.others if base.is_dataset_root and _is_same(base.uri, home)}
    entries: list[table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexMetadata] = []
    for fragment in message.fragments:
        entries += [*fragment.files, *(overlay.data_file for overlay in fragment.overlays)]
        if fragment.HasField("deletion_file"):
            entries.append(fragment.deletion_file)
    entries += section.indices
    for entry in entries:
        if entry.HasField("base_id") and entry.base_id in at_home:
            entry.ClearField("base_id")
    others = [base for base in message.base_paths if base.id not in at_home]
    del message.base_paths[:]
    message.base_paths.extend(others)


def _is_same(one: str, other: str) -> bool:
    return one.removeprefix("file://").rstrip("/") == other.removeprefix("file://").rstrip("/")


def _copy_own_files(lines: _Lines, manifest: Manifest) -> None:
    """Copy the files that a version has in the branch's own folder, unless they are there."""
    bases = Bases.of(TableRef(lines.store, lines.source_root), manifest.message)
    for store, path, name in version_files(bases, manifest):
        if store == lines.store and path.startswith(f"{lines.source_root}/"):
            target = join(lines.target_root, name)
            if not lines.store.exists(target):
                copy_file(store, path, lines.store, target)


def _appended(lines: _Lines, head: Manifest, common: _Common) -> Manifest:
    """Commit the rows that the branch appended behind those of the target's newest version."""
    fragments: list[table_pb2.DataFragment] = []
    for manifest, operation in _operations(lines, head, common.source):
        if not isinstance(operation, transaction_pb2.Transaction.Append):
            raise IncompatibleConflictError(
                f"{lines.target} has changed since version {common.target}, and branch {lines.branch!r} does "
                f"more than append rows (version {manifest.version}): repeat that change on {lines.target}"
            )
        fragments += operation.fragments
    _copy_own_files(lines, head)
    append = transaction_pb2.Transaction.Append(fragments=fragments)
    return commit_operation(
        TableRef(lines.store, lines.target_root),
        append,
        read_version=common.target,
        properties=lines.properties(head, same=False),
        once=lines.once(common),
    )


def _operations(lines: _Lines, head: Manifest, source_version: int) -> Iterator[tuple[Manifest, object]]:
    """Yield the versions that the branch made since, oldest first, with their operations."""
    for number in range(source_version + 1, head.version + 1):
        manifest = (
            head if number == head.version else load_version(TableRef(lines.store, lines.source_root), number)
        )
        transaction = read_transaction(TableRef(lines.store, lines.source_root), manifest)
        if operation_name(transaction) is None:
            raise IncompatibleConflictError(
                f"nobody recorded what version {number} of branch {lines.branch!r} did: repeat it on "
                f"{lines.target}"
            )
        yield manifest, transaction.operation
