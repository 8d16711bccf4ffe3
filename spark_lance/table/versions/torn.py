"""Manifests that are not whole: after a power failure the newest file may be cut off, empty or full of zeros.

A torn manifest never counts as a version. Readers use the newest whole version before it, and log a warning
once. A writer builds on that version and takes the next free number: the number of the torn file stays in
use, because its file may yet be moved by somebody else.

`set_aside` moves a torn manifest to `_torn/` of the table's root, where neither this package nor other
readers look for versions. Nothing is deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from spark_lance.errors import TornManifestError
from spark_lance.io.store import Store
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.paths import VERSIONS_DIR, Naming
from spark_lance.table.format.table_ref import TableRef

logger = logging.getLogger(__name__)

TORN_DIR = "_torn"
# A network file system may show a new file before its content: look again before it counts as torn.
_SETTLE_SECONDS = 0.1

_seen: set[tuple[str, str, str]] = set()
_lock = threading.Lock()


def _is_new(kind: str, store: Store, path: str) -> bool:
    """Whether this process asks for the first time about a file; it is known from then on."""
    key = (kind, store.protocol, path)
    with _lock:
        new = key not in _seen
        _seen.add(key)
    return new


def step_over(store: Store, torn: TornManifestError, version: int | None = None) -> None:
    """Log that a torn manifest does not count as a version, once for each file in a process.

    Args:
        torn: the error that names the file.
        version: the version that is used in its place, if there is one.
    """
    if _is_new("logged", store, torn.path or ""):
        used = "it does not count as a version" if version is None else f"version {version} is used instead"
        logger.warning("%s; %s", torn, used)


def read_again(store: Store, path: str, naming: Naming) -> Manifest | None:
    """Return a manifest that was torn a moment ago and is whole now; None if it is still torn.

    Raises:
        FileNotFoundError: it is gone.
    """
    if _is_new("read again", store, path):
        time.sleep(_SETTLE_SECONDS)
    try:
        return read_manifest(store, path, naming)
    except TornManifestError:
        return None


def read_whole(store: Store, path: str, naming: Naming) -> Manifest | None:
    """Return a manifest of the history; None, and a warning in the log, if it is torn.

    Raises:
        FileNotFoundError: there is no such object.
    """
    try:
        return read_manifest(store, path, naming)
    except TornManifestError as error:
        step_over(store, error)
        return None


def is_set_aside(table: TableRef, version: int) -> bool:
    """Whether the manifest of a version was torn and has been moved aside."""
    return any(table.store.exists(table.path(TORN_DIR, naming.file_name(version))) for naming in Naming)


def set_aside(table: TableRef) -> Sequence[str]:
    """Move every torn manifest of a line to `_torn/`; return where the files are now.

    Call it only while a whole version with a higher number exists: the number of a torn file must never be
    free for a second version.

    Raises:
        OSError: the store failed; what has been moved stays moved.
    """
    moved = []
    for name in table.store.list(table.path(VERSIONS_DIR)):
        path = table.path(VERSIONS_DIR, name)
        if not name.endswith(".manifest"):
            continue
        try:
            # How it is named does not matter here.
            read_manifest(table.store, path, Naming.V2)
        except FileNotFoundError:
            continue
        except TornManifestError as error:
            step_over(table.store, error)
            if read_again(table.store, path, Naming.V2) is None:
                moved.append(_moved(table, path, table.path(TORN_DIR, name)))
    return moved


def _moved(table: TableRef, path: str, target: str) -> str:
    """Move a file to a name that is free, and return the name."""
    number, free = 0, target
    while table.store.exists(free):
        number += 1
        free = f"{target}.{number}"
    data = table.store.read(path)
    table.store.put(free, data)
    table.store.delete(path, table.root)
    logger.warning("moved the torn manifest %s to %s", path, free)
    return free
