"""Putting a manifest in place: the one step of a commit that must have one winner (format-table §10.3, 10.4).

    by itself              the store creates the manifest only if it is absent
    manifest store         a database says which manifest a version is
    commit lock            the holder of the user's lock looks, then writes

Commits through a manifest store take four steps, and any reader who finds them half done finishes them:

    1. write the manifest to `{name}.manifest-{uuid}` (staged)
    2. add the row (root, version) -> staged path, if the version has none: here the winner is chosen
    3. copy the staged object to `{name}.manifest`
    4. point the row to the copy, delete the staged object
"""

from __future__ import annotations

import logging
import re
import uuid

from spark_lance.errors import CommitError, FormatError, StoreError
from spark_lance.io.manifest_store import CommitLock, ManifestEntry, ManifestStore
from spark_lance.io.store import Store
from spark_lance.table.format.paths import VERSIONS_DIR, parse_manifest_name
from spark_lance.table.format.table_ref import TableRef

logger = logging.getLogger(__name__)

_MANIFEST = re.compile(r"([0-9]{1,20}\.manifest)(-.+)?", re.ASCII)
# A lock may say by this error that another writer is committing the version; the name is pylance's.
_LOCK_CONFLICT = "CommitConflictError"


class LockReleaseError(Exception):
    """The commit lock was held, and releasing it failed: read back what became of the version.

    `lock_error` is what releasing raised, `failure` what happened before; None if the manifest was written.
    """

    def __init__(self, lock_error: Exception, failure: BaseException | None) -> None:
        super().__init__(str(lock_error))
        self.lock_error = lock_error
        self.failure = failure


def publish(table: TableRef, version: int, path: str, data: bytes) -> None:
    """Make a manifest the given version of a table, if the version is not taken.

    Args:
        table: the table.
        version: the version to be.
        path: of the manifest, by its final name.
        data: the manifest's bytes.

    Raises:
        FileExistsError: the version is taken, possibly by an earlier try of the same commit.
        AtomicPutUnsupportedError: the store has no way to do it.
        CommitError: the commit lock was not given, and nothing was done.
        FormatError: the manifest store has a row for the version, but its manifest is gone.
        LockReleaseError: the commit lock was not released.
        OSError: it may have been done, or may yet come to be: read back.
    """
    if table.store.manifests is not None:
        _through(table.store.manifests, table, version, path, data)
    elif table.store.commit_lock is not None:
        _under(table.store.commit_lock, table.store, version, path, data)
    else:
        table.store.put_if_absent(path, data)


def finish_version(table: TableRef, version: int) -> None:
    """See to it that a version that was chosen is in place by its final name; nothing if there is none.

    Raises:
        FormatError: its manifest is lost.
        StoreError: the manifest store cannot be asked, or the copy fails.
    """
    if (
        table.store.manifests is not None
        and (entry := table.store.manifests.get(table.root, version)) is not None
    ):
        _finish(table.store.manifests, table, entry)


def finish_latest(table: TableRef) -> None:
    """As `finish_version`, for the newest version. Older ones were finished before it was begun."""
    if (
        table.store.manifests is not None
        and (entry := table.store.manifests.get_latest(table.root)) is not None
    ):
        _finish(table.store.manifests, table, entry)


def _through(manifests: ManifestStore, table: TableRef, version: int, path: str, data: bytes) -> None:
    if table.store.exists(path):
        raise FileExistsError(f"version {version} of {table.root} is there")
    staged = ManifestEntry(version, f"{path}-{uuid.uuid4()}", len(data))
    table.store.put(staged.path, data)
    try:
        manifests.put_if_absent(table.root, staged)
    except FileExistsError:
        # A request that was repeated on its way loses against itself.
        entry = manifests.get(table.root, version)
        if entry is None or entry.path != staged.path:
            _discard(table, staged.path)
            if entry is not None:
                _finish(manifests, table, entry)
                _check_there(manifests, table, version, path)
            raise
    try:
        _finish(manifests, table, staged)
    except Exception as error:
        # Whatever the reason, this is not a refusal: the version is chosen, and a reader may finish it.
        raise StoreError(
            f"version {version} of {table.root} is chosen, but not in place yet: {error}"
        ) from error


def _check_there(manifests: ManifestStore, table: TableRef, version: int, path: str) -> None:
    """Raise if the newest row has no manifest: no commit could ever get past it."""
    if table.store.exists(path):
        return
    newest = manifests.get_latest(table.root)
    if newest is not None and newest.version == version:
        raise FormatError(
            f"the manifest store has a row for version {version}, but there is no such manifest: if the "
            "table was deleted, delete its rows as well, or give the new table another name",
            path=table.root,
        )


def _finish(manifests: ManifestStore, table: TableRef, entry: ManifestEntry) -> None:
    """Do steps 3 and 4 for a row; repeating them, also at the same time, changes nothing."""
    name = entry.path.rpartition("/")[2]
    match = _MANIFEST.fullmatch(name)
    parsed = parse_manifest_name(match[1]) if match else None
    if match is None or parsed is None or parsed[0] != entry.version:
        raise FormatError(f"the manifest store names {name!r} for version {entry.version}", path=table.root)
    if match[2] is None:
        return
    # The row's own directory does not count: it could be that of another table.
    staged, final = f"{table.root}/{VERSIONS_DIR}/{name}", f"{table.root}/{VERSIONS_DIR}/{match[1]}"
    try:
        table.store.copy(staged, final)
    except FileNotFoundError:
        # Somebody else finished it and took the staged object away.
        if not table.store.exists(final):
            raise FormatError(f"the manifest of version {entry.version} is lost", path=staged) from None
    try:
        manifests.put_if_exists(table.root, ManifestEntry(entry.version, final, entry.size))
    except Exception as error:  # noqa: BLE001 (manifest stores of users raise anything)
        # The version stands; the next reader does this. The staged object is needed until then.
        logger.warning(
            "version %d of %s is committed, but its row still staged: %s", entry.version, table.root, error
        )
        return
    _discard(table, staged)


def _under(lock: CommitLock, store: Store, version: int, path: str, data: bytes) -> None:
    entered = False
    failure: BaseException | None = None
    try:
        with lock(version):
            entered = True
            try:
                if store.exists(path):
                    raise FileExistsError(f"version {version} is there: {path}")
                store.put(path, data)
            except BaseException as error:
                failure = error
                raise
    except Exception as error:
        if entered and error is not failure:
            raise LockReleaseError(error, failure) from error
        if type(error).__name__ == _LOCK_CONFLICT:
            raise FileExistsError(f"another writer holds the lock of version {version}: {error}") from error
        if entered or (isinstance(error, OSError) and not isinstance(error, CommitError)):
            raise
        reason = ": ".join(part for part in (type(error).__name__, str(error)) if part)
        raise CommitError(
            f"the commit lock of {path} was not given ({reason}), so nothing was committed: "
            "see to the lock, then repeat"
        ) from error
    if failure is not None:
        # The lock's `__exit__` returned true and so suppressed the error.
        raise failure


def _discard(table: TableRef, path: str) -> None:
    try:
        table.store.delete(path, table.root)
    except OSError as error:
        logger.debug("a staged manifest stays behind at %s: %s", path, error)
