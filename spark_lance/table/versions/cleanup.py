"""Clean-up: delete old versions, and files that no version uses.

A clean-up keeps the newest version, the version that it starts from and all later versions, tagged versions,
and versions that a branch starts from. It also keeps all versions that the policy does not expire. It deletes
a file with a known name pattern in a known folder if

    a deleted version uses it, but no kept version on any branch      immediately
    no version at all uses it      after 7 days, because a writer may still commit it; earlier only on request

    data/*.lance, with its data/{stem}/*.blob     _deletions/*.arrow, *.bin     _indices/{uuid}/*
    _transactions/*.txn     _versions/.tmp*     _column_jobs/{job}/*

An interrupted local write leaves a file whose name ends like the name of the intended file. All other files
are kept. Files are identified by their unique names, so the path that a branch has for its parent does not
matter. Manifests are deleted first, so every listed version is complete. A later run finishes an interrupted
run. (Lance table format, clean-up.)

Other writers can continue during a clean-up. After each batch of manifests, and before any other file is
deleted, the clean-up reads the table again. It keeps the files of new versions and branches. It puts the
manifest of a version back if the version has a new tag or branch, or if a restore of it has started. A writer
that refers to an old version (`tags`, `clone`, `detached`, `commit`) checks afterwards that its manifest
still exists. So at least one of the two notices the other.

An automatic clean-up runs after every n-th commit, as set in the table's config:

    lance.auto_cleanup.interval          number of versions between clean-ups
    lance.auto_cleanup.older_than        age at which versions expire: "14days", "36h", "1week 2days"
    lance.auto_cleanup.retain_versions   number of the newest versions to keep

A commit runs the clean-up if its version is a multiple of the interval. The clean-up starts from the version
before, which it keeps, like tagged versions. Without `older_than` and `retain_versions`, versions expire
after two weeks. With an age beyond the calendar, no version expires. A failed clean-up is only logged,
because the commit has succeeded. (Lance table format, auto clean-up.)
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from spark_lance.errors import OptionError
from spark_lance.io.locations import join
from spark_lance.io.parallel import run_together
from spark_lance.io.progress import report
from spark_lance.io.stored_object import StoredObject
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.features import check_readable, check_writable
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.paths import (
    COLUMN_JOBS_DIR,
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
    ManifestNaming,
    deletion_path,
    parse_manifest_name,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.ages import clamped_age, parse_duration
from spark_lance.table.versions.branches import TREE_DIR, Branches
from spark_lance.table.versions.publish import finish_latest
from spark_lance.table.versions.ref_files import list_tags
from spark_lance.table.versions.resolve import main_line
from spark_lance.table.versions.versions import VersionFile, read_listed, version_files

logger = logging.getLogger(__name__)

DEFAULT_AGE = timedelta(days=14)
_MIN_UNVERIFIED_AGE = timedelta(days=7)
_PARALLEL_READS = 16
_BATCH_SIZE = 1000
# Maximum bytes of deleted manifests that a clean-up keeps in memory, to put them back if necessary.
_DELETED_BYTES = 256 << 20
# A manifest of at most this size is read whole, with one request.
_SMALL_MANIFEST = 64 << 10

# Files in a table's directories: (directory, path below it, kind). The group matches the file's key: its name
# in manifests.
_PLACES = (
    (DATA_DIR, re.compile(r"([^/]+\.lance)"), "data"),
    (DATA_DIR, re.compile(r"([^/]+)/[^/]+\.blob"), "data"),
    (DELETIONS_DIR, re.compile(r"([^/]+\.(?:arrow|bin))"), "deletion"),
    (INDICES_DIR, re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/.+"), "index"),
    (TRANSACTIONS_DIR, re.compile(r"([^/]+\.txn)"), "transaction"),
    (VERSIONS_DIR, re.compile(r"(\.tmp[^/]*)"), "temporary"),
    (COLUMN_JOBS_DIR, re.compile(r"([^/]+/[^/]+)"), "temporary"),
)
_DETACHED = re.compile(r"d[0-9]+\.manifest", re.ASCII)
# Files of these kinds are written when the operation is computed, long before it is committed.
_EARLY = frozenset({"data", "index"})


@dataclass(frozen=True)
class CleanupPolicy:
    """The conditions under which versions expire. A version expires if it meets all conditions that are set.

    Attributes:
        older_than: the minimum age of the version.
        retain_versions: keep this number of the newest versions.
        versions: expire only these versions.
        delete_unverified: delete files that no version names, regardless of their age. Use it only while
            nobody writes to the table.
        error_if_tagged: raise an error if an expired version has a tag; otherwise keep the version.
    """

    older_than: timedelta | None = None
    retain_versions: int | None = None
    versions: Collection[int] | None = None
    delete_unverified: bool = False
    error_if_tagged: bool = True

    def gives_up(self, manifest: Manifest, now: datetime, oldest_retained: int) -> bool:
        """Return whether a version expires under this policy."""
        age = self.older_than
        if age is None and self.retain_versions is None and self.versions is None:
            age = DEFAULT_AGE
        return (
            (age is None or now - manifest.timestamp > clamped_age(age))
            and (self.retain_versions is None or manifest.version < oldest_retained)
            and (self.versions is None or manifest.version in self.versions)
        )


@dataclass(frozen=True)
class CleanupFile:
    """A file to delete.

    Attributes:
        path: the path in the store.
        kind: "manifest", "data", "deletion", "index", "transaction" or "temporary".
        size_bytes: the size of the file.
        unverified: whether no version at all names the file.
        key: the name of the file in manifests.
    """

    path: str
    kind: str
    size_bytes: int
    unverified: bool
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class CleanupStats:
    """The metrics of a clean-up or of its dry run.

    Attributes:
        bytes_removed: total size of all deleted files.
        old_versions: number of deleted versions.
        data_files_removed, transaction_files_removed, index_files_removed, deletion_files_removed: number of
            files of each kind.
        failed_deletes: number of files that could not be deleted; a later run tries again.
        files: the files to delete, only for a dry run.
    """

    bytes_removed: int = 0
    old_versions: int = 0
    data_files_removed: int = 0
    transaction_files_removed: int = 0
    index_files_removed: int = 0
    deletion_files_removed: int = 0
    failed_deletes: int = 0
    files: tuple[CleanupFile, ...] = ()

    @classmethod
    def of(cls, files: Collection[CleanupFile], failed: int = 0, *, show: bool = False) -> CleanupStats:
        """Return the statistics of files; `show` includes the files."""
        kinds = [file.kind for file in files]
        return cls(
            bytes_removed=sum(file.size_bytes for file in files),
            old_versions=kinds.count("manifest"),
            data_files_removed=kinds.count("data"),
            transaction_files_removed=kinds.count("transaction"),
            index_files_removed=kinds.count("index"),
            deletion_files_removed=kinds.count("deletion"),
            failed_deletes=failed,
            files=tuple(files) if show else (),
        )


@dataclass
class _FileKeys:
    """The keys of the files that versions name, by kind."""

    keys: dict[str, set[str]] = field(
        default_factory=lambda: {kind: set() for kind in ("data", "deletion", "index", "transaction")}
    )

    def add(self, manifest: Manifest) -> None:
        """Add the files of a version."""
        fragments = manifest.fragments
        # A table may have many fragments in many versions: one plain loop for each kind of file.
        self.keys["data"].update([file.path for fragment in fragments for file in fragment.files])
        overlays = [overlay for fragment in fragments for overlay in fragment.overlays]
        self.keys["data"].update(overlay.data_file.path for overlay in overlays)
        fragments_with_deletions = [fragment for fragment in fragments if fragment.HasField("deletion_file")]
        self.keys["deletion"].update(_deletion_name(fragment) for fragment in fragments_with_deletions)
        self.keys["index"].update(str(uuid.UUID(bytes=entry.uuid.uuid)) for entry in manifest.indices)
        self.keys["transaction"].add(manifest.transaction_file)

    def names(self, kind: str, key: str) -> bool:
        """Return whether a version names a file."""
        keys = self.keys.get(kind, ())
        return key in keys or (kind == "data" and f"{key}.lance" in keys)


def _deletion_name(fragment: table_pb2.DataFragment) -> str:
    return deletion_path("", fragment.id, fragment.deletion_file).rpartition("/")[2]


def cleanup(
    table: TableRef,
    manifest: Manifest,
    policy: CleanupPolicy,
    *,
    dry_run: bool = False,
    delete_rate_limit: int | None = None,
    looked_from: int | None = None,
    now: datetime | None = None,
) -> CleanupStats:
    """Delete old versions of a branch and the files that only they name; return statistics.

    Args:
        table: the table or the branch.
        manifest: a version of it.
        policy: the versions that expire.
        dry_run: delete nothing, and return the files that would be deleted.
        delete_rate_limit: maximum number of files to delete per second.
        looked_from: the number of the version to start from; it and all later versions are kept. The default
            is the version of `manifest`.
        now: the current time, for tests.

    Raises:
        OptionError: the policy is invalid, or a tagged version would expire.
        FormatError, UnsupportedFormatError: a version or a branch cannot be read, or needs a feature that
            this release does not write. Nothing was deleted.
    """
    if policy.retain_versions is not None and policy.retain_versions < 1:
        raise OptionError(f"retain_versions must be at least 1, not {policy.retain_versions}")
    if policy.versions is not None and not policy.versions:
        raise OptionError("versions must name at least 1 version")
    if delete_rate_limit is not None and delete_rate_limit < 1:
        raise OptionError(f"delete_rate_limit must be at least 1, not {delete_rate_limit}")
    start = manifest.version if looked_from is None else looked_from
    line = _BranchCleanup(table, manifest, start, policy, now or datetime.now(timezone.utc))
    line.find_expired()
    files = list(line.files_to_delete())
    line.recheck()
    files = [file for file in files if not line.is_kept(file)]
    if dry_run:
        return CleanupStats.of(files, show=True)
    pace = _BatchDeleter(main_line(table, manifest), delete_rate_limit, len(files))
    manifests = [file for file in files if file.kind == "manifest"]
    # This reads the table again after each part, so it sees all changes before the last deletion.
    deleted = line.delete_versions(manifests, pace)
    rest = [file for file in files if file.kind != "manifest"]
    # A deleted version cannot be referred to again. But a file that no version names can be committed any
    # time.
    for part in pace.parts([file for file in rest if not file.unverified]):
        deleted += pace.delete([file for file in part if not line.is_kept(file)])
    for part in pace.parts([file for file in rest if file.unverified]):
        line.recheck()
        deleted += pace.delete([file for file in part if not line.is_kept(file)])
    deleted = [file for file in deleted if file.kind != "manifest" or not line.is_kept(file)]
    failed = pace.failed
    logger.info("cleaned up %s: %d files, %d failed", table.root, len(deleted), failed)
    return CleanupStats.of(deleted, failed)


@dataclass(frozen=True)
class _Listing:
    """A listing of a table.

    Attributes:
        versions: the versions of this branch, oldest first.
        tagged: the numbers of its versions with a tag.
        branched: the numbers of its versions from which a branch starts.
        transactions: the transaction files of this branch; listed only after a manifest was deleted.
        others: all objects below the folder of branches and in the folders of versions.
    """

    versions: list[VersionFile]
    tagged: set[int]
    branched: set[int]
    transactions: Sequence[StoredObject]
    others: Sequence[StoredObject]


class _BranchCleanup:
    """The state of a clean-up of one branch.

    Args:
        table: the root of the table or of a branch.
        manifest: a version of it.
        start: the number of the version that the clean-up starts from.
        policy: the rule for versions to delete.
        now: the time.
    """

    def __init__(
        self,
        table: TableRef,
        manifest: Manifest,
        start: int,
        policy: CleanupPolicy,
        now: datetime,
    ) -> None:
        self._store = table.store
        self._root = table.root
        self._main = main_line(table, manifest)
        self._branch = manifest.message.branch or None
        self._from = start
        self._policy = policy
        self._now = now
        self._listed_identities: set[tuple[object, ...]] = set()
        self._kept_files = _FileKeys()
        self._expired = _FileKeys()
        self._expired_files: dict[int, VersionFile] = {}
        # Content of deleted manifests, up to a limit of memory.
        self._deleted_manifests: dict[int, bytes] = {}
        self._free_bytes = _DELETED_BYTES
        # Content of manifests that were read and have expired.
        self._expired_manifests: dict[int, bytes] = {}
        self._oldest_kept = now
        # Entries of the last listing of this branch, by path.
        self._listed: dict[str, StoredObject] = {}
        # Entries of the first listing of each folder of this branch.
        self._folders: dict[str, Sequence[StoredObject]] = {}

    def find_expired(self) -> None:
        """Read every version of the table and decide which versions of this branch expire."""
        listings: Sequence[Callable[[], Any]] = [self._list, self._list_folders]
        present, self._folders = run_together(self._store, listings)
        files = present.versions
        versions = [file.version for file in files]
        retained = versions[-(self._policy.retain_versions or len(versions)) :]
        protected = present.tagged | present.branched
        tagged = []
        by_version = {file.version: file for file in files}
        room = _DELETED_BYTES
        for manifest, data in self._read_with_bytes(files):
            version = manifest.version
            goes = version < self._from and version != versions[-1]
            goes = goes and self._policy.gives_up(manifest, self._now, retained[0])
            if goes and version in present.tagged:
                tagged.append(version)
            if goes and version not in protected:
                self._expired.add(manifest)
                self._expired_files[version] = by_version[version]
                if data is not None and len(data) <= room:
                    self._expired_manifests[version] = data
                    room -= len(data)
            else:
                self._keep(manifest)
        if tagged and self._policy.error_if_tagged:
            raise OptionError(
                f"versions {', '.join(map(str, tagged))} of {self._root} are old, but have tags: delete the "
                "tags, or pass error_if_tagged_old_versions=False to keep these versions"
            )
        self._keep_other_branches(present.others)

    def recheck(self) -> None:
        """Keep files that other writers use since the last check: new versions, tags, branches, restores.

        Put deleted manifests back if a tag, a branch or a restore needs them.
        """
        present = self._list()
        for manifest in self._read(
            file for file in present.versions if (file.path,) not in self._listed_identities
        ):
            self._keep(manifest)
        users = present.tagged | present.branched | self._list_restored(present.transactions)
        again = [
            self._expired_files.pop(version) for version in sorted(users) if version in self._expired_files
        ]
        for file in again:
            self._put_back(file)
        for manifest in self._read(again):
            self._keep(manifest)
        self._keep_other_branches(present.others)

    def delete_versions(self, manifests: list[CleanupFile], pace: _BatchDeleter) -> list[CleanupFile]:
        """Delete manifests and return the deleted ones. If a manifest remains, keep the version's files."""
        by_path = {file.path: version for version, file in self._expired_files.items()}
        deleted = []
        for part in pace.parts(manifests):
            unused = [file for file in part if not self.is_kept(file)]
            self._save_manifests({by_path[file.path]: file.path for file in unused})
            removed = pace.delete(unused)
            deleted += removed
            failed = {file.path for file in unused} - {file.path for file in removed}
            # A deletion may have succeeded although the store reported a failure.
            self._keep_all(self._expired_files[by_path[path]] for path in failed)
            self.recheck()
        return deleted

    def _keep_all(self, files: Iterable[VersionFile]) -> None:
        for manifest in self._read(files):
            self._keep(manifest)

    def _save_manifests(self, paths: Mapping[int, str]) -> None:
        """Keep the manifests of versions that are about to be deleted, and read them if necessary."""

        def content(version: int) -> bytes:
            data = self._expired_manifests.pop(version, None)
            if data is not None:
                return data
            try:
                return self._store.read(paths[version])
            except FileNotFoundError:
                return b""  # deleted by another clean-up

        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            for version, data in zip(paths, pool.map(content, paths), strict=True):
                if data:
                    self._deleted_manifests[version] = data
                    self._free_bytes -= len(data)
        for version in list(self._deleted_manifests):
            if self._free_bytes >= 0 or version in paths:
                break
            self._free_bytes += len(self._deleted_manifests.pop(version))

    def _put_back(self, file: VersionFile) -> None:
        data = self._deleted_manifests.get(file.version)
        if data is not None and not self._store.exists(file.path):
            self._store.put(file.path, data)
            logger.info("version %d of %s is in use again: it stays", file.version, self._root)

    def files_to_delete(self) -> Iterator[CleanupFile]:
        """Yield the files to delete."""
        manifests = {file.path for file in self._expired_files.values()}
        for directory, entries in self._folders.items():
            prefix = join(self._root, directory) + "/"
            for entry in entries:
                if entry.path in manifests:
                    yield CleanupFile(entry.path, "manifest", entry.size, unverified=False)
                    continue
                for place, pattern, kind in _PLACES:
                    match = pattern.fullmatch(entry.path.removeprefix(prefix)) if place == directory else None
                    if match is not None:
                        yield from self._select_file(entry, kind, match[1])
                        break

    def _list_folders(self) -> dict[str, Sequence[StoredObject]]:
        """List the folders with files of versions.

        A file that is committed after its listing, or whose version is listed later, is kept.
        """
        directories = list(dict.fromkeys([VERSIONS_DIR, *(place for place, _, _ in _PLACES)]))
        listings = run_together(self._store, [partial(self._entries, directory) for directory in directories])
        return dict(zip(directories, listings, strict=True))

    def _entries(self, directory: str) -> Sequence[StoredObject]:
        recursive = directory in (DATA_DIR, INDICES_DIR, COLUMN_JOBS_DIR)
        return self._store.list_to_delete(join(self._root, directory), self._main.root, recursive=recursive)

    def _list(self) -> _Listing:
        """List the objects that other writers may have changed, with concurrent requests.

        The order of requests does not matter: all are between the last deletion and the next one.
        """
        table = TableRef(self._store, self._root)
        finish_latest(table)
        below = self._store.list_objects
        requests: Sequence[Callable[[], Any]] = [
            partial(below, join(self._root, VERSIONS_DIR)),
            self._list_tagged,
            self._list_branched,
            partial(below, self._main.path(TREE_DIR), recursive=True),
            partial(below, self._main.path(VERSIONS_DIR)) if self._main.root != self._root else list,
            partial(below, join(self._root, TRANSACTIONS_DIR)) if self._deleted_manifests else list,
        ]
        versions, tagged, branched, tree, main, transactions = run_together(self._store, requests)
        self._listed.update((each.path, each) for each in versions)
        files = version_files(table, [each.name for each in versions])
        return _Listing(files, tagged, branched, transactions, [*tree, *versions, *main])

    def is_kept(self, file: CleanupFile) -> bool:
        """Return whether a file to delete is in use now."""
        if file.kind == "manifest":
            return all(file.path != expired.path for expired in self._expired_files.values())
        return self._kept_files.names(file.kind, file.key)

    def _select_file(self, entry: StoredObject, kind: str, key: str) -> Iterator[CleanupFile]:
        if self._kept_files.names(kind, key):
            return
        verified = self._expired.names(kind, key)
        if not verified:
            if entry.modified is None and not self._policy.delete_unverified:
                return
            modified = entry.modified or self._now
            is_final = kind in _EARLY or modified < self._oldest_kept
            if not (
                self._now - modified >= _MIN_UNVERIFIED_AGE or (self._policy.delete_unverified and is_final)
            ):
                return
        yield CleanupFile(entry.path, kind, entry.size, not verified, key)

    def _keep(self, manifest: Manifest) -> None:
        self._kept_files.add(manifest)
        self._oldest_kept = min(self._oldest_kept, manifest.timestamp)

    def _keep_other_branches(self, objects: Iterable[StoredObject]) -> None:
        """Keep the files of other branches and of detached versions.

        Args:
            objects: the objects below the folder of branches and in the folders of versions. Branches are
                found in these folders, because a branch that is being created is not registered yet.
        """
        files = []
        for file in objects:
            folder, _, name = file.path.rpartition("/")
            parsed = parse_manifest_name(name)
            if (
                not folder.endswith(f"/{VERSIONS_DIR}")
                or _identity(file.path, file) in self._listed_identities
            ):
                continue
            if _DETACHED.fullmatch(name):
                files.append(VersionFile(0, file.path, ManifestNaming.V2, file))
            elif parsed is not None and folder != join(self._root, VERSIONS_DIR):
                files.append(VersionFile(parsed[0], file.path, parsed[1], file))
        for manifest in self._read(files):
            self._kept_files.add(manifest)

    def _read(self, files: Iterable[VersionFile]) -> Iterator[Manifest]:
        """Yield manifests, read in parallel and checked to be supported; skip deleted ones."""
        return (manifest for manifest, _ in self._read_with_bytes(files))

    def _read_with_bytes(self, files: Iterable[VersionFile]) -> Iterator[tuple[Manifest, bytes | None]]:
        """Yield manifests like `_read`, each with its bytes; None instead of many bytes."""

        def read(file: VersionFile) -> tuple[Manifest, bytes | None] | None:
            data = None
            try:
                listed = file.listed or self._listed[file.path]
                if listed.size <= _SMALL_MANIFEST:
                    data = self._store.read(file.path)
                    manifest = read_manifest(self._store, file.path, file.naming, data=data)
                else:
                    manifest = read_listed(self._store, file.path, file.naming, listed)
            except FileNotFoundError:
                return None  # deleted since it was listed, with its branch or by another clean-up
            check_readable(manifest.message, file.path)
            check_writable(manifest.message, file.path)
            return manifest, data

        queue = list(files)
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            for start in range(0, len(queue), _PARALLEL_READS):
                part = queue[start : start + _PARALLEL_READS]
                yield from (each for each in pool.map(read, part) if each is not None)
                self._listed_identities.update(_identity(file.path, file.listed) for file in part)
                report("reading versions", start + len(part), len(queue), "versions")

    def _list_tagged(self) -> set[int]:
        """Return the versions of this branch with tags."""
        tags = list_tags(self._main).values()
        return {tag["version"] for tag in tags if _is_same_branch(tag["branch"], self._branch)}

    def _list_branched(self) -> set[int]:
        """Return the versions of this branch at which another branch starts."""
        branches = Branches(self._main).list().values()
        return {b["parent_version"] for b in branches if _is_same_branch(b["parent_branch"], self._branch)}

    def _list_restored(self, transactions: Iterable[StoredObject]) -> set[int]:
        """Return the versions that are being restored; a restore writes its transaction first."""
        versions = set()
        for entry in transactions:
            is_listed = any(
                names.names("transaction", entry.name) for names in (self._kept_files, self._expired)
            )
            if (
                is_listed
                or _identity(entry.path, entry) in self._listed_identities
                or not entry.name.endswith(".txn")
            ):
                continue
            self._listed_identities.add(_identity(entry.path, entry))
            try:
                transaction = transaction_pb2.Transaction.FromString(self._store.read(entry.path))
            except (FileNotFoundError, DecodeError):
                continue  # withdrawn since, or not a transaction
            if transaction.HasField("restore"):
                versions.add(transaction.restore.version)
        return versions


def _is_same_branch(branch: str | None, other: str | None) -> bool:
    return (branch or "main") == (other or "main")


def _identity(path: str, listed: StoredObject | None) -> tuple[object, ...]:
    """Return a key that differs for a later file with the same path, such as in a recreated branch."""
    return (path,) if listed is None else (path, listed.size, listed.modified, listed.tag)


class _BatchDeleter:
    """Delete files in batches with a maximum rate.

    Args:
        table: files outside of its root are not deleted.
        rate: maximum number of files per second; None for no limit.
        total: number of files, for progress reports.

    Attributes:
        failed: number of files that could not be deleted.
    """

    def __init__(self, table: TableRef, rate: int | None, total: int) -> None:
        self._store = table.store
        self._root = table.root
        self._rate = rate
        self._total = total
        self._num_deleted = 0
        self.failed = 0

    def parts(self, files: list[CleanupFile]) -> Iterator[list[CleanupFile]]:
        """Yield batches of files to delete, and wait between batches to keep the rate."""
        step = min(self._rate or _BATCH_SIZE, _BATCH_SIZE)
        for start in range(0, len(files), step):
            if self._rate is not None and self._num_deleted:
                time.sleep(step / self._rate)
            part = files[start : start + step]
            report("deleting", self._num_deleted, self._total, "files")
            yield part
            self._num_deleted += len(part)

    def delete(self, files: list[CleanupFile]) -> list[CleanupFile]:
        """Delete files, and return the deleted files."""
        try:
            self._store.delete_many((file.path for file in files), self._root)
        except OSError as error:
            logger.info("deleting %d files together failed, now one by one: %s", len(files), error)
            return [file for file in files if self._is_deleted(file.path)]
        return files

    def _is_deleted(self, path: str) -> bool:
        try:
            self._store.delete(path, self._root)
        except OSError as failure:
            logger.warning("could not delete %s: %s", path, failure)
            self.failed += 1
            return False
        return True


PREFIX = "lance.auto_cleanup."
# The limit of versions, intervals and numbers of versions.
_LARGEST_NUMBER = 2**63 - 1
_DIGITS = 19
_OPTIONS = frozenset({"interval", "older_than_seconds", "retain_versions"})


def auto_cleanup_config(options: Mapping[str, object] | None) -> dict[str, str]:
    """Return the config for automatic clean-ups of a new table.

    Args:
        options: `interval`, and `older_than_seconds` or `retain_versions` or both; None for no clean-up.

    Raises:
        OptionError: an option is missing, unknown or invalid.
    """
    if options is None:
        return {}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise OptionError(f"auto_cleanup_options has no {unknown[0]!r}; there are {sorted(_OPTIONS)}")
    if len(options) < 2 or "interval" not in options:
        raise OptionError("auto_cleanup_options needs an interval, and what is old enough to go")
    for name, value in options.items():
        least = 0 if name == "older_than_seconds" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise OptionError(f"auto_cleanup_options: {name} must be a whole number from {least} on")
    config = {PREFIX + "interval": str(options["interval"])}
    if "older_than_seconds" in options:
        config[PREFIX + "older_than"] = f"{options['older_than_seconds']}s"
    if "retain_versions" in options:
        config[PREFIX + "retain_versions"] = str(options["retain_versions"])
    return config


def clean_up_after_commit(table: TableRef, manifest: Manifest) -> None:
    """Run the automatic clean-up if the committed version is a multiple of the interval.

    Raises:
        OptionError: the table's config is invalid.
        LanceError, OSError: the clean-up failed. The caller logs it (`log_errors`).
    """
    interval = _whole_number(manifest.config, "interval")
    if interval is None or manifest.version % interval:
        return
    age = manifest.config.get(PREFIX + "older_than")
    policy = CleanupPolicy(
        older_than=None if age is None else parse_duration(age),
        retain_versions=_whole_number(manifest.config, "retain_versions"),
        error_if_tagged=False,
    )
    stats = cleanup(table, manifest, policy, looked_from=manifest.version - 1)
    logger.info("version %d of %s: cleaned up %s", manifest.version, table.root, stats)


def _whole_number(config: Mapping[str, str], name: str) -> int | None:
    """Return a number from the config, None if it is not there; very large ones are cut."""
    text = config.get(PREFIX + name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not text.strip("0"):
        raise OptionError(f"{PREFIX}{name} is {text[:40]!r}, not a number of at least 1")
    digits = text.lstrip("0")
    return min(int(digits), _LARGEST_NUMBER) if len(digits) <= _DIGITS else _LARGEST_NUMBER
