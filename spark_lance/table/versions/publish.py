"""Publish a manifest: the step of a commit in which exactly one writer succeeds (format-table §10.3, 10.4).

    conditional put        the store creates the manifest only if it is absent
    manifest store         a database records the manifest of each version
    commit lock            the holder of the user's lock checks, then writes

Commits through a manifest store take four steps. Any reader that finds an unfinished commit finishes it:

    1. write the manifest to `{name}.manifest-{uuid}` (staged)
    2. add the row (root, version) -> staged path, if the version has none: this decides which writer wins
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
# A lock may raise this error if another writer is committing the version; the name is pylance's.
_LOCK_CONFLICT = "CommitConflictError"


class LockReleaseError(Exception):
    """The release of the commit lock failed: read the version back to learn the outcome.

    `lock_error` is the error of the release. `failure` is an earlier error; None if the manifest was written.
    """

    def __init__(self, lock_error: Exception, failure: BaseException | None) -> None:
        super().__init__(str(lock_error))
        self.lock_error = lock_error
        self.failure = failure


def publish(table: TableRef, version: int, path: str, data: bytes) -> None:
    """Publish a manifest as a version of a table, if the version does not exist yet.

    Args:
        table: the table.
        version: the number of the new version.
        path: the final path of the manifest.
        data: the content of the manifest.

    Raises:
        FileExistsError: the version exists, possibly from an earlier attempt of the same commit.
        AtomicPutUnsupportedError: the store has no atomic put.
        CommitError: the commit lock was not acquired, and nothing was written.
        FormatError: the manifest store has a row for the version, but the manifest does not exist.
        LockReleaseError: the commit lock was not released.
        OSError: the outcome is unknown; the version may still appear: read it back.
    """
    if table.store.manifests is not None:
        _publish_to_store(table.store.manifests, table, version, path, data)
    elif table.store.commit_lock is not None:
        _publish_with_lock(table.store.commit_lock, table.store, version, path, data)
    else:
        table.store.put_if_absent(path, data)


def finish_version(table: TableRef, version: int) -> None:
    """Finish steps 3 and 4 of a version in the manifest store; do nothing if it has no such version.

    Raises:
        FormatError: the manifest of the version does not exist.
        StoreError: the manifest store is not available, or the copy failed.
    """
    if (
        table.store.manifests is not None
        and (entry := table.store.manifests.get(table.root, version)) is not None
    ):
        _finish_entry(table.store.manifests, table, entry)


def finish_latest(table: TableRef) -> None:
    """Finish the newest version like `finish_version`. Older versions are finished already."""
    if (
        table.store.manifests is not None
        and (entry := table.store.manifests.get_latest(table.root)) is not None
    ):
        _finish_entry(table.store.manifests, table, entry)


def _publish_to_store(
    manifests: ManifestStore, table: TableRef, version: int, path: str, data: bytes
) -> None:
    if table.store.exists(path):
        raise FileExistsError(f"version {version} of {table.root} is there")
    staged = ManifestEntry(version, f"{path}-{uuid.uuid4()}", len(data))
    table.store.put(staged.path, data)
    try:
        manifests.put_if_absent(table.root, staged)
    except FileExistsError:
        # If the request was repeated in transit, the row may be our own.
        entry = manifests.get(table.root, version)
        if entry is None or entry.path != staged.path:
            _delete_staged(table, staged.path)
            if entry is not None:
                _finish_entry(manifests, table, entry)
                _check_manifest_exists(manifests, table, version, path)
            raise
    try:
        _finish_entry(manifests, table, staged)
    except Exception as error:
        # The version is decided whatever the reason, and a reader may finish it.
        raise StoreError(
            f"version {version} of {table.root} is chosen, but not in place yet: {error}"
        ) from error


def _check_manifest_exists(manifests: ManifestStore, table: TableRef, version: int, path: str) -> None:
    """Raise if the newest row has no manifest, because it would block every commit."""
    if table.store.exists(path):
        return
    newest = manifests.get_latest(table.root)
    if newest is not None and newest.version == version:
        raise FormatError(
            f"the manifest store has a row for version {version}, but there is no such manifest: if the "
            "table was deleted, delete its rows as well, or give the new table another name",
            path=table.root,
        )


def _finish_entry(manifests: ManifestStore, table: TableRef, entry: ManifestEntry) -> None:
    """Do steps 3 and 4 for a row. They are idempotent, also when run concurrently."""
    name = entry.path.rpartition("/")[2]
    match = _MANIFEST.fullmatch(name)
    parsed = parse_manifest_name(match[1]) if match else None
    if match is None or parsed is None or parsed[0] != entry.version:
        raise FormatError(f"the manifest store names {name!r} for version {entry.version}", path=table.root)
    if match[2] is None:
        return
    # Ignore the directory in the row: it could belong to another table.
    staged, final = f"{table.root}/{VERSIONS_DIR}/{name}", f"{table.root}/{VERSIONS_DIR}/{match[1]}"
    try:
        table.store.copy(staged, final)
    except FileNotFoundError:
        # Another process may have finished it and deleted the staged object.
        if not table.store.exists(final):
            raise FormatError(f"the manifest of version {entry.version} is lost", path=staged) from None
    try:
        manifests.put_if_exists(table.root, ManifestEntry(entry.version, final, entry.size))
    except Exception as error:  # noqa: BLE001 (manifest stores of users raise any error)
        # The version is committed. The next reader updates the row, and needs the staged object until then.
        logger.warning(
            "version %d of %s is committed, but its row still staged: %s", entry.version, table.root, error
        )
        return
    _delete_staged(table, staged)


def _publish_with_lock(lock: CommitLock, store: Store, version: int, path: str, data: bytes) -> None:
    is_locked = False
    failure: BaseException | None = None
    try:
        with lock(version):
            is_locked = True
            try:
                if store.exists(path):
                    raise FileExistsError(f"version {version} is there: {path}")
                store.put(path, data)
            except BaseException as error:
                failure = error
                raise
    except Exception as error:
        if is_locked and error is not failure:
            raise LockReleaseError(error, failure) from error
        if type(error).__name__ == _LOCK_CONFLICT:
            raise FileExistsError(f"another writer holds the lock of version {version}: {error}") from error
        if is_locked or (isinstance(error, OSError) and not isinstance(error, CommitError)):
            raise
        reason = ": ".join(part for part in (type(error).__name__, str(error)) if part)
        raise CommitError(
            f"the commit lock of {path} was not given ({reason}), so nothing was committed: "
            "see to the lock, then repeat"
        ) from error
    if failure is not None:
        # The lock's `__exit__` returned True and so suppressed the error.
        raise failure


def _delete_staged(table: TableRef, path: str) -> None:
    try:
        table.store.delete(path, table.root)
    except OSError as error:
        logger.debug("a staged manifest stays behind at %s: %s", path, error)
