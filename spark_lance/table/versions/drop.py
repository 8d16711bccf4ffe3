"""Drop a table: first its name, then the files that it had at that time.

    {parent}/.lance-dropped-{32 hex digits}/            on a disk: the table's folder, renamed in one step
    {parent}/.lance-dropped/{32 hex digits}.json        on an object store: {"folder": "t.lance"}

Another user can create a new table with the same name while the files of the old table are deleted. On a
disk, the rename has made the name free. Object stores cannot rename, so a marker records the folder of the
drop: catalogs use another folder for a new table as long as the marker exists. To protect writers that do
not know markers, a drop deletes only objects that it listed before. It first deletes objects whose names a
new table may reuse (tags, branches), then the manifests, oldest first, and then the others, whose names are
unique.

An interrupted drop leaves the hidden folder or the marker. The next drop in the same parent folder finishes
it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from spark_lance.errors import LanceError
from spark_lance.io.failures import local_failure
from spark_lance.io.handle_cache import evict_all
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.io.stored_json import parse_object
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.paths import DATA_DIR, VERSIONS_DIR, parse_manifest_name
from spark_lance.table.format.table_ref import TableRef

logger = logging.getLogger(__name__)

_MARKER_DIR = ".lance-dropped"
_HIDDEN = re.compile(rf"{re.escape(_MARKER_DIR)}-[0-9a-f]{{32}}", re.ASCII)
_MARKER = re.compile(r"[0-9a-f]{32}\.json", re.ASCII)
# Errors of folders that cannot be renamed: no permission for the parent folder, or the folder is a mount
# point.
_RENAME_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EINVAL})


def is_hidden_folder(name: str) -> bool:
    """Return whether a folder is a dropped table, or has markers of drops in progress."""
    return name == _MARKER_DIR or _HIDDEN.fullmatch(name) is not None


def drop_table(table: TableRef, forget: Callable[[], object] = lambda: None) -> None:
    """Delete a table with all its files.

    Args:
        table: the table.
        forget: removes the table's name from a catalog; called once the table is not reachable any more.

    Raises:
        StoreError: some files could not be deleted. The table is dropped; the next drop in the same parent
            folder tries again.
    """
    parent, _, name = table.root.rpartition("/")
    _finish_interrupted(table.store, parent)
    if table.store.is_local:
        hidden = f"{parent}/{_MARKER_DIR}-{uuid.uuid4().hex}"
        if _try_rename(table.root, hidden):
            forget()
            _remove_folder(table.store, hidden, parent)
            return
    marker = _put_marker(table.store, parent, name)
    forget()
    _delete_listed(table)
    if marker is not None:
        table.store.delete(marker, parent)


def dropping_folders(store: Store, parent: str) -> Collection[str]:
    """Return the names of the folders in `parent` whose tables are being dropped; empty on a disk."""
    if store.is_local:
        return ()
    markers = [name for name in store.list(join(parent, _MARKER_DIR)) if _MARKER.fullmatch(name)]
    return {folder for name in markers if (folder := _read_marker(store, parent, name)) is not None}


def _try_rename(root: str, hidden: str) -> bool:
    """Rename a local folder; return False if it cannot be renamed."""
    evict_all()
    try:
        Path(root).rename(hidden)
    except FileNotFoundError:
        return True  # already deleted
    except OSError as error:
        if error.errno in _RENAME_ERRORS:
            return False
        raise local_failure(error, f"deleting {root}") from None
    return True


def _remove_folder(store: Store, folder: str, parent: str) -> None:
    if Path(folder).is_symlink():
        store.delete(folder, parent)
        return
    objects = store.list_to_delete(folder, parent, recursive=True)
    store.delete_many((entry.path for entry in objects), parent)
    store.remove_empty(folder, parent)


def _put_marker(store: Store, parent: str, folder: str) -> str | None:
    if store.is_local:
        return None  # a local folder that cannot be renamed has no marker
    marker = join(parent, _MARKER_DIR, f"{uuid.uuid4().hex}.json")
    store.put(marker, json.dumps({"folder": folder}).encode())
    return marker


def _read_marker(store: Store, parent: str, marker: str) -> str | None:
    """Return the folder that a marker names; None if the marker does not exist or is invalid."""
    try:
        folder = parse_object(store.read(join(parent, _MARKER_DIR, marker)))["folder"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    is_name = isinstance(folder, str) and folder not in ("", ".", "..") and "/" not in folder
    return folder if is_name else None


def _delete_listed(table: TableRef) -> None:
    """Delete a table's current files and late manifests of its writers, but nothing of a new table."""
    paths = [entry.path for entry in table.store.list_to_delete(table.root, table.root, recursive=True)]
    versions, data = f"{table.path(VERSIONS_DIR)}/", f"{table.path(DATA_DIR)}/"
    manifests = {path for path in paths if path.startswith(versions)}
    unique = {path for path in paths if path.startswith(data)}
    table.store.delete_many(
        [path for path in paths if path not in manifests and path not in unique], table.root
    )
    table.store.delete_many(sorted(manifests, key=_version_number), table.root)
    table.store.delete_many(unique, table.root)
    _delete_late_versions(table, manifests, {path.removeprefix(data) for path in unique})
    if table.store.is_local:
        for name in table.store.list_directories(table.root):
            table.store.remove_empty(table.path(name), table.root)
        with contextlib.suppress(OSError):
            os.rmdir(table.root)  # noqa: PTH106


def _version_number(path: str) -> int:
    parsed = parse_manifest_name(path.rpartition("/")[2])
    return -1 if parsed is None else parsed[0]


def _delete_late_versions(table: TableRef, listed: Collection[str], deleted: Collection[str]) -> None:
    """Delete manifests written since the listing that name deleted files, so belong to the old table."""
    late = []
    for name in table.store.list(table.path(VERSIONS_DIR)):
        path, parsed = table.path(VERSIONS_DIR, name), parse_manifest_name(name)
        if parsed is None or path in listed:
            continue
        with contextlib.suppress(FileNotFoundError):
            manifest = read_manifest(table.store, path, parsed[1])
            files = {file.path for fragment in manifest.fragments for file in fragment.files}
            if files & set(deleted):
                late.append(path)
    table.store.delete_many(late, table.root)


def _finish_interrupted(store: Store, parent: str) -> None:
    """Finish interrupted drops in a folder; log failures."""
    try:
        if store.is_local:
            for name in store.list_directories(parent):
                if _HIDDEN.fullmatch(name):
                    _remove_folder(store, f"{parent}/{name}", parent)
            return
        for name in store.list(join(parent, _MARKER_DIR)):
            if _MARKER.fullmatch(name):
                _finish_marked(store, parent, name)
    except (OSError, LanceError) as error:
        logger.warning("an interrupted drop in %s is not finished: %s", parent, error)


def _finish_marked(store: Store, parent: str, name: str) -> None:
    folder = _read_marker(store, parent, name)
    if folder is None:
        return
    # While either of the two markers exists, no catalog creates a new table in the folder.
    ours = _put_marker(store, parent, folder)
    try:
        if store.exists(join(parent, _MARKER_DIR, name)):
            _delete_listed(TableRef(store, join(parent, folder)))
            store.delete(join(parent, _MARKER_DIR, name), parent)
    finally:
        if ours is not None:
            store.delete(ours, parent)
