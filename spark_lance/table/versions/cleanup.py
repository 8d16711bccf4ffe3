"""Clean-up: deleting old versions, and files that no version names.

Kept are the newest version, versions at or after the one that is looked from, tagged ones, those at which a
branch begins, and all that the policy does not give up. A file goes if it lies in a known place under a known
name, and

    a version that goes names it, but no kept one here or in any branch       at once
    no version at all names it     after 7 days, for a writer may yet commit it; sooner only when asked

    data/*.lance, with its data/{stem}/*.blob     _deletions/*.arrow, *.bin     _indices/{uuid}/*
    _transactions/*.txn     _versions/.tmp*     _column_jobs/{job}/*

What an interrupted local write leaves has a name of its own that ends like the file's. Everything else is
left alone. Files are told apart by their unique names, so it does not matter how a branch writes the path of
its parent. Manifests go first: a version that is listed is whole. What one run
does not finish is left to a later one. (Lance table format, clean-up.)
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from spark_lance.errors import OptionError
from spark_lance.io.progress import report
from spark_lance.io.store import Store, StoredObject, join
from spark_lance.proto import table_pb2
from spark_lance.table.features import check_readable, check_writable
from spark_lance.table.manifest import Manifest, read_manifest
from spark_lance.table.paths import (
    COLUMN_JOBS_DIR,
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
    Naming,
    deletion_path,
    parse_manifest_name,
)
from spark_lance.table.versions.ages import clamped_age
from spark_lance.table.versions.branches import TREE_DIR, Branches
from spark_lance.table.versions.resolve import main_root
from spark_lance.table.versions.tag_files import list_tags
from spark_lance.table.versions.versions import VersionFile, list_versions

__all__ = ["CleanupFile", "CleanupPolicy", "CleanupStats", "cleanup"]

logger = logging.getLogger(__name__)

DEFAULT_AGE = timedelta(days=14)
_UNVERIFIED_AGE = timedelta(days=7)
_READERS = 16
_DELETES_AT_ONCE = 1000

# What is in a table's directories: (directory, path below it, kind). The group is the file's key: the name by
# which manifests know it.
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
    """Which versions are given up: those to which all that is set applies.

    Attributes:
        older_than: versions that are at least so old.
        retain_versions: all but this number of the newest.
        versions: just these.
        delete_unverified: delete files that no version names however young they are. Only for tables that
            nobody writes to meanwhile.
        error_if_tagged: refuse to run when a version to be given up has a tag; otherwise it is kept.
    """

    older_than: timedelta | None = None
    retain_versions: int | None = None
    versions: Collection[int] | None = None
    delete_unverified: bool = False
    error_if_tagged: bool = True

    def gives_up(self, manifest: Manifest, now: datetime, oldest_retained: int) -> bool:
        """Whether a version goes, as far as the policy is concerned."""
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
    """A file that goes.

    Attributes:
        path: in the store.
        kind: "manifest", "data", "deletion", "index", "transaction" or "temporary".
        size_bytes: its size.
        unverified: whether no version at all names it.
        key: the name by which versions know it.
    """

    path: str
    kind: str
    size_bytes: int
    unverified: bool
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class CleanupStats:
    """What a clean-up deleted, or would delete.

    Attributes:
        bytes_removed: bytes of all files.
        old_versions: versions that went.
        data_files_removed, transaction_files_removed, index_files_removed, deletion_files_removed: by kind.
        failed_deletes: files that could not be deleted; a later run tries again.
        files: the files themselves, for a dry run.
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
        """Count files."""
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
class _Named:
    """The files that some versions name, by kind."""

    keys: dict[str, set[str]] = field(
        default_factory=lambda: {kind: set() for kind in ("data", "deletion", "index", "transaction")}
    )

    def add(self, manifest: Manifest) -> None:
        """Take in what a version names."""
        fragments = manifest.fragments
        # A table may have many fragments in many versions: one plain loop for each kind of file.
        self.keys["data"].update([file.path for fragment in fragments for file in fragment.files])
        overlays = [overlay for fragment in fragments for overlay in fragment.overlays]
        self.keys["data"].update(overlay.data_file.path for overlay in overlays)
        marked = [fragment for fragment in fragments if fragment.HasField("deletion_file")]
        self.keys["deletion"].update(_deletion_name(fragment) for fragment in marked)
        self.keys["index"].update(str(uuid.UUID(bytes=entry.uuid.uuid)) for entry in manifest.indices)
        self.keys["transaction"].add(manifest.transaction_file)

    def names(self, kind: str, key: str) -> bool:
        """Whether a file is among them."""
        known = self.keys.get(kind, ())
        return key in known or (kind == "data" and f"{key}.lance" in known)


def _deletion_name(fragment: table_pb2.DataFragment) -> str:
    return deletion_path("", fragment.id, fragment.deletion_file).rpartition("/")[2]


def cleanup(
    store: Store,
    root: str,
    manifest: Manifest,
    policy: CleanupPolicy,
    *,
    dry_run: bool = False,
    delete_rate_limit: int | None = None,
    looked_from: int | None = None,
    now: datetime | None = None,
) -> CleanupStats:
    """Delete old versions of a line and the files that only they name.

    Args:
        store: where the table is.
        root: root path of the line, the main one or a branch.
        manifest: a version of the line.
        policy: what goes.
        dry_run: delete nothing, and tell which files would go.
        delete_rate_limit: files to delete in a second at most.
        looked_from: the number of the version that is looked from, which is kept with all later ones;
            `manifest` by default.
        now: the time, for tests.

    Raises:
        OptionError: the policy cannot be used, or gives up a tagged version.
        FormatError, UnsupportedFormatError: a version or a branch cannot be read, or needs a feature that is
            not written here. Nothing was deleted.
    """
    if policy.retain_versions is not None and policy.retain_versions < 1:
        raise OptionError(f"retain_versions must be at least 1, not {policy.retain_versions}")
    if policy.versions is not None and not policy.versions:
        raise OptionError("versions must name at least 1 version")
    if delete_rate_limit is not None and delete_rate_limit < 1:
        raise OptionError(f"delete_rate_limit must be at least 1, not {delete_rate_limit}")
    start = manifest.version if looked_from is None else looked_from
    line = _Line(store, root, manifest, start, policy, now or datetime.now(timezone.utc))
    line.look()
    files = list(line.doomed())
    line.look_again()
    files = [file for file in files if not line.is_kept(file)]
    if dry_run:
        return CleanupStats.of(files, show=True)
    manifests = [file for file in files if file.kind == "manifest"]
    deleted = list(_delete(store, manifests, delete_rate_limit, 0, len(files)))
    line.hold({file.path for file in manifests} - {file.path for file in deleted})
    rest = [file for file in files if file.kind != "manifest" and not line.is_kept(file)]
    deleted += _delete(store, rest, delete_rate_limit, len(manifests), len(files))
    failed = len(manifests) + len(rest) - len(deleted)
    logger.info("cleaned up %s: %d files, %d failed", root, len(deleted), failed)
    return CleanupStats.of(deleted, failed)


class _Line:
    """What is known of a line of versions while it is cleaned up.

    Args:
        store, root: the line.
        manifest: a version of it.
        start: the number of the version that is looked from.
        policy: what goes.
        now: the time.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        manifest: Manifest,
        start: int,
        policy: CleanupPolicy,
        now: datetime,
    ) -> None:
        self._store = store
        self._root = root
        self._main = main_root(root, manifest)
        self._branch = manifest.message.branch or None
        self._from = start
        self._policy = policy
        self._now = now
        self._seen: set[str] = set()
        self._kept = _Named()
        self._gone = _Named()
        self._gone_files: dict[int, VersionFile] = {}
        self._oldest_kept = now
        self._tagged_versions: set[int] = set()

    def look(self) -> None:
        """Read every version of the table and decide about those of this line."""
        files = list_versions(self._store, self._root)
        versions = [file.version for file in files]
        retained = versions[-(self._policy.retain_versions or len(versions)) :]
        protected = self._tagged() | self._branched()
        tagged = []
        by_version = {file.version: file for file in files}
        for manifest in self._read(files):
            version = manifest.version
            goes = version < self._from and version != versions[-1]
            goes = goes and self._policy.gives_up(manifest, self._now, retained[0])
            if goes and version in self._tagged_versions:
                tagged.append(version)
            if goes and version not in protected:
                self._gone.add(manifest)
                self._gone_files[version] = by_version[version]
            else:
                self._keep(manifest)
        if tagged and self._policy.error_if_tagged:
            raise OptionError(
                f"versions {', '.join(map(str, tagged))} of {self._root} are old, but have tags: delete the "
                "tags, or pass error_if_tagged_old_versions=False to keep these versions"
            )
        self._look_elsewhere()

    def look_again(self) -> None:
        """Keep what others have begun to use since the first look: new versions, tags and branches."""
        files = list_versions(self._store, self._root)
        for manifest in self._read(file for file in files if file.path not in self._seen):
            self._keep(manifest)
        again = [v for v in self._tagged() | self._branched() if v in self._gone_files]
        for manifest in self._read([self._gone_files.pop(version) for version in again]):
            self._keep(manifest)
        self._look_elsewhere()

    def hold(self, paths: Collection[str]) -> None:
        """Keep the files of versions whose manifests, at these paths, could not be deleted."""
        for file in [file for file in self._gone_files.values() if file.path in paths]:
            # Its deletion may have taken place although it was said to have failed.
            with suppress(FileNotFoundError):
                self._keep(next(self._read([file])))

    def doomed(self) -> Iterator[CleanupFile]:
        """Yield the files that go, manifests first."""
        manifests = {file.path for file in self._gone_files.values()}
        for directory in dict.fromkeys([VERSIONS_DIR, *(place for place, _, _ in _PLACES)]):
            prefix = join(self._root, directory) + "/"
            recursive = directory in (DATA_DIR, INDICES_DIR, COLUMN_JOBS_DIR)
            for found in self._store.list_objects(prefix[:-1], recursive=recursive):
                if found.path in manifests:
                    yield CleanupFile(found.path, "manifest", found.size, unverified=False)
                    continue
                for place, pattern, kind in _PLACES:
                    match = pattern.fullmatch(found.path.removeprefix(prefix)) if place == directory else None
                    if match is not None:
                        yield from self._judge(found, kind, match[1])
                        break

    def is_kept(self, file: CleanupFile) -> bool:
        """Whether a file that was to go has come into use since."""
        if file.kind == "manifest":
            return all(file.path != gone.path for gone in self._gone_files.values())
        return self._kept.names(file.kind, file.key)

    def _judge(self, found: StoredObject, kind: str, key: str) -> Iterator[CleanupFile]:
        if self._kept.names(kind, key):
            return
        verified = self._gone.names(kind, key)
        if not verified:
            if found.modified is None and not self._policy.delete_unverified:
                return
            modified = found.modified or self._now
            settled = kind in _EARLY or modified < self._oldest_kept
            if not (self._now - modified >= _UNVERIFIED_AGE or (self._policy.delete_unverified and settled)):
                return
        yield CleanupFile(found.path, kind, found.size, not verified, key)

    def _keep(self, manifest: Manifest) -> None:
        self._kept.add(manifest)
        self._oldest_kept = min(self._oldest_kept, manifest.timestamp)

    def _look_elsewhere(self) -> None:
        """Take in what the other lines name, and detached versions, which have files but no history.

        Lines are looked for in the tree itself: one that is just being made has no name yet.
        """
        found = list(self._store.list_objects(join(self._main, TREE_DIR), recursive=True))
        for line in {self._main, self._root}:
            found += self._store.list_objects(join(line, VERSIONS_DIR))
        files = []
        for file in found:
            folder, _, name = file.path.rpartition("/")
            parsed = parse_manifest_name(name)
            if not folder.endswith(f"/{VERSIONS_DIR}") or file.path in self._seen:
                continue
            if _DETACHED.fullmatch(name):
                files.append(VersionFile(0, file.path, Naming.V2))
            elif parsed is not None and folder != join(self._root, VERSIONS_DIR):
                files.append(VersionFile(parsed[0], file.path, parsed[1]))
        for manifest in self._read(files):
            self._kept.add(manifest)

    def _read(self, files: Iterable[VersionFile]) -> Iterator[Manifest]:
        """Read manifests, some at a time, and check that they can be understood."""

        def read(file: VersionFile) -> Manifest:
            manifest = read_manifest(self._store, file.path, file.naming)
            check_readable(manifest.message, file.path)
            check_writable(manifest.message, file.path)
            return manifest

        wanted = list(files)
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(wanted), _READERS):
                part = wanted[start : start + _READERS]
                yield from pool.map(read, part)
                self._seen.update(file.path for file in part)
                report("reading versions", start + len(part), len(wanted), "versions")

    def _tagged(self) -> set[int]:
        """Return the versions of this line that have tags."""
        tags = list_tags(self._store, self._main).values()
        self._tagged_versions = {tag["version"] for tag in tags if _same(tag["branch"], self._branch)}
        return self._tagged_versions

    def _branched(self) -> set[int]:
        """Return the versions of this line with which a branch begins."""
        branches = Branches(self._store, self._main).list().values()
        return {b["parent_version"] for b in branches if _same(b["parent_branch"], self._branch)}


def _same(branch: str | None, other: str | None) -> bool:
    return (branch or "main") == (other or "main")


def _delete(
    store: Store, files: list[CleanupFile], rate: int | None, done: int, of: int
) -> Iterator[CleanupFile]:
    """Delete files, at most `rate` a second, and yield those that are gone; `done` of all were dealt with."""
    step = min(rate or _DELETES_AT_ONCE, _DELETES_AT_ONCE)
    for start in range(0, len(files), step):
        if rate is not None and done + start:
            time.sleep(step / rate)
        part = files[start : start + step]
        report("deleting", done + start, of, "files")
        try:
            store.delete_many(file.path for file in part)
            yield from part
        except OSError as error:
            logger.info("deleting %d files together failed, now one by one: %s", len(part), error)
            for file in part:
                try:
                    store.delete(file.path)
                    yield file
                except OSError as failure:
                    logger.warning("could not delete %s: %s", file.path, failure)
