"""Drop a whole table: its name first, then the files that it had at that moment.

    {parent}/.lance-dropped-{32 hex digits}/            on a disk: the table's folder, renamed in one step
    {parent}/.lance-dropped/{32 hex digits}.json        on an object store: {"folder": "t.lance"}

Somebody can create a new table of the same name while the files of the old one are deleted. On a disk it has
the name for itself. Object stores cannot rename, so there a marker says that a folder is being dropped:
catalogs give a new table another folder as long as the marker exists. To protect writers without support for
markers, a drop deletes only objects that it listed before. It deletes objects whose names a new table uses
again first (tags, branches), then the manifests, oldest first, and then all others, whose names are unique.

A drop that was interrupted leaves the hidden folder or the marker. The next drop in the same folder finishes
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

_MARKERS = ".lance-dropped"
_HIDDEN = re.compile(rf"{re.escape(_MARKERS)}-[0-9a-f]{{32}}", re.ASCII)
_MARKER = re.compile(r"[0-9a-f]{32}\.json", re.ASCII)
# Why a folder cannot be renamed: nobody may write to the folder above it, or it is a disk of its own.
_FIXED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EINVAL})


def is_hidden_folder(name: str) -> bool:
    """Whether a folder next to tables contains dropped ones, or markers of drops in progress."""
    return name == _MARKERS or _HIDDEN.fullmatch(name) is not None


def drop_table(table: TableRef, forget: Callable[[], object] = lambda: None) -> None:
    """Delete a table with all its files.

    Args:
        table: the table.
        forget: takes the table's name out of a list, called when nobody can reach the table any more.

    Raises:
        StoreError: some files could not be deleted. The table is gone; the next drop beside it tries again.
    """
    parent, _, name = table.root.rpartition("/")
    _finish_others(table.store, parent)
    if table.store.is_local:
        hidden = f"{parent}/{_MARKERS}-{uuid.uuid4().hex}"
        if _is_renamed(table.root, hidden):
            forget()
            _remove_folder(table.store, hidden, parent)
            return
    marker = _put_marker(table.store, parent, name)
    forget()
    _delete_listed(table)
    if marker is not None:
        table.store.delete(marker, parent)


def dropping_folders(store: Store, parent: str) -> Collection[str]:
    """Return the names of the folders in a folder of an object store whose tables are being dropped."""
    if store.is_local:
        return ()
    markers = [name for name in store.list(join(parent, _MARKERS)) if _MARKER.fullmatch(name)]
    return {folder for name in markers if (folder := _folder_of(store, parent, name)) is not None}


def _is_renamed(root: str, hidden: str) -> bool:
    """Rename a folder of this machine; False if the folder cannot be renamed."""
    evict_all()
    try:
        Path(root).rename(hidden)
    except FileNotFoundError:
        return True  # its files are gone already
    except OSError as error:
        if error.errno in _FIXED:
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
    marker = join(parent, _MARKERS, f"{uuid.uuid4().hex}.json")
    if store.is_local:
        return None  # this folder may not be written to, or it has no folder above it
    store.put(marker, json.dumps({"folder": folder}).encode())
    return marker


def _folder_of(store: Store, parent: str, marker: str) -> str | None:
    """Return the folder in a marker; None if the marker is gone, or is not one."""
    try:
        folder = parse_object(store.read(join(parent, _MARKERS, marker)))["folder"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    is_name = isinstance(folder, str) and folder not in ("", ".", "..") and "/" not in folder
    return folder if is_name else None


def _delete_listed(table: TableRef) -> None:
    """Delete a table's current files, and manifests that writers add meanwhile; nothing of a new table."""
    paths = [entry.path for entry in table.store.list_to_delete(table.root, table.root, recursive=True)]
    versions, data = f"{table.path(VERSIONS_DIR)}/", f"{table.path(DATA_DIR)}/"
    manifests = {path for path in paths if path.startswith(versions)}
    unique = {path for path in paths if path.startswith(data)}
    table.store.delete_many(
        [path for path in paths if path not in manifests and path not in unique], table.root
    )
    table.store.delete_many(sorted(manifests, key=_age), table.root)
    table.store.delete_many(unique, table.root)
    _delete_late_versions(table, manifests, {path.removeprefix(data) for path in unique})
    if table.store.is_local:
        for name in table.store.list_directories(table.root):
            table.store.remove_empty(table.path(name), table.root)
        with contextlib.suppress(OSError):
            os.rmdir(table.root)  # noqa: PTH106


def _age(path: str) -> int:
    parsed = parse_manifest_name(path.rpartition("/")[2])
    return -1 if parsed is None else parsed[0]


def _delete_late_versions(table: TableRef, listed: Collection[str], deleted: Collection[str]) -> None:
    """Delete manifests that appeared since the listing and name deleted files, so belong to the old table."""
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


def _finish_others(store: Store, parent: str) -> None:
    """Finish drops in a folder that were interrupted; what cannot be deleted is logged and left."""
    try:
        if store.is_local:
            for name in store.list_directories(parent):
                if _HIDDEN.fullmatch(name):
                    _remove_folder(store, f"{parent}/{name}", parent)
            return
        for name in store.list(join(parent, _MARKERS)):
            if _MARKER.fullmatch(name):
                _finish_marked(store, parent, name)
    except (OSError, LanceError) as error:
        logger.warning("an interrupted drop in %s is not finished: %s", parent, error)


def _finish_marked(store: Store, parent: str, name: str) -> None:
    folder = _folder_of(store, parent, name)
    if folder is None:
        return
    # While either of the two markers is there, no catalog puts a new table into the folder.
    ours = _put_marker(store, parent, folder)
    try:
        if store.exists(join(parent, _MARKERS, name)):
            _delete_listed(TableRef(store, join(parent, folder)))
            store.delete(join(parent, _MARKERS, name), parent)
    finally:
        if ours is not None:
            store.delete(ours, parent)
