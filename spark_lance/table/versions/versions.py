"""List the versions of a table, find the latest version, and read manifests.

The directory listing determines which versions exist. If a store lists names in order, the first names are
enough. The hint file of local tables may be stale, damaged or missing. This package writes it for other
readers and never reads it.

Manifests that this process has read or written recently are cached by their content. An append reads the
newest version when it is planned, when it is committed, and afterwards. Usually it is the same version, and
often this process has written it. A manifest with the same bytes is not parsed again, and the facts about its
fragments (`Manifest.facts`) are not computed again: a table may have ten thousand fragments. If the listings
of a store have tags, an object with a cached path and tag is not even fetched. A tag identifies the content
(for S3 it is the entity tag). So if another table replaces this one with the same version numbers, the cache
does not return manifests of the old table.

After a power failure, the newest manifest may be torn: cut off, empty or full of zeros. A torn manifest never
counts as a version. Readers use the newest complete version before it, and log a warning once. A writer
builds on that version and uses the next free number. The number of the torn file stays reserved, because
another process may still move the file.

`move_torn_manifests` moves torn manifests to `_torn/` of the table's root. Neither this package nor other
readers look for versions there. Nothing is deleted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TypeVar

from spark_lance.errors import FormatError, TableNotFoundError, TornManifestError, VersionNotFoundError
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.store import Store
from spark_lance.io.stored_object import StoredObject
from spark_lance.table.format.features import check_readable
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.old_writers import repair_manifest
from spark_lance.table.format.paths import (
    HINT_NAME,
    VERSIONS_DIR,
    ManifestNaming,
    detached_path,
    is_detached,
    manifest_path,
    newest_manifest_name,
    parse_manifest_name,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.publish import finish_latest, finish_version

TORN_DIR = "_torn"
# A network file system may show a new file before its content, so a torn file is read again after this time.
_SETTLE_SECONDS = 0.1

_checked_files: set[tuple[str, str, str]] = set()
_lock = threading.Lock()


def _is_first_call(kind: str, store: Store, path: str) -> bool:
    """Return whether this is the first call in this process for a kind and a file."""
    key = (kind, store.protocol, path)
    with _lock:
        new = key not in _checked_files
        _checked_files.add(key)
    return new


def log_torn_manifest(store: Store, torn: TornManifestError, version: int | None = None) -> None:
    """Log that a torn manifest is skipped, once per file and process.

    Args:
        torn: the error with the path of the file.
        version: the version that is used instead, if any.
    """
    if _is_first_call("logged", store, torn.path or ""):
        used = "it does not count as a version" if version is None else f"version {version} is used instead"
        logger.warning("%s; %s", torn, used)


def read_again(store: Store, path: str, naming: ManifestNaming) -> Manifest | None:
    """Read a torn manifest again; return it if it is complete now, None if it is still torn.

    Raises:
        FileNotFoundError: the manifest does not exist any more.
    """
    if _is_first_call("read again", store, path):
        time.sleep(_SETTLE_SECONDS)
    try:
        return read_manifest(store, path, naming)
    except TornManifestError:
        return None


def read_whole(store: Store, path: str, naming: ManifestNaming) -> Manifest | None:
    """Return a manifest of the history; if it is torn, log a warning and return None.

    Raises:
        FileNotFoundError: there is no such object.
    """
    try:
        return read_manifest(store, path, naming)
    except TornManifestError as error:
        log_torn_manifest(store, error)
        return None


def is_set_aside(table: TableRef, version: int) -> bool:
    """Return whether the torn manifest of a version was moved to `_torn/`."""
    return any(
        table.store.exists(table.path(TORN_DIR, naming.file_name(version))) for naming in ManifestNaming
    )


def move_torn_manifests(table: TableRef) -> Sequence[str]:
    """Move every torn manifest of a branch to `_torn/`; return the new paths.

    Call it only while a complete version with a higher number exists, so that the number of a torn file is
    never used for a second version.

    Raises:
        OSError: the store failed; some files may have been moved.
    """
    paths = []
    for name in table.store.list(table.path(VERSIONS_DIR)):
        path = table.path(VERSIONS_DIR, name)
        if not name.endswith(".manifest"):
            continue
        try:
            # The naming scheme does not matter here.
            read_manifest(table.store, path, ManifestNaming.V2)
        except FileNotFoundError:
            continue
        except TornManifestError as error:
            log_torn_manifest(table.store, error)
            if read_again(table.store, path, ManifestNaming.V2) is None:
                paths.append(_move_file(table, path, table.path(TORN_DIR, name)))
    return paths


def _move_file(table: TableRef, path: str, target: str) -> str:
    """Move a file to `target`, or to a free name with a suffix; return the path."""
    number, free = 0, target
    while table.store.exists(free):
        number += 1
        free = f"{target}.{number}"
    data = table.store.read(path)
    table.store.put(free, data)
    table.store.delete(path, table.root)
    logger.warning("moved the torn manifest %s to %s", path, free)
    return free


# Approximate memory of a parsed manifest and its facts per byte of its file.
_MEMORY_PER_BYTE = 6
_MAX_CACHED_BYTES = 4 << 20
# The tag in the key if a listing has no tag; then the bytes are compared.
_BY_BYTES = ""

_Key = tuple[Hashable, str]

# The bytes of manifests, and the parsed manifests.
_MANIFESTS: CacheSection[tuple[bytes, Manifest]] = CacheSection("manifests", CACHE, counted=False)


def read_recent(store: Store, path: str, naming: ManifestNaming, listed: StoredObject | None) -> Manifest:
    """Return a manifest from the cache if it is unchanged; else read it.

    Args:
        listed: the entry of the manifest in a listing, if there is one.

    Raises:
        FileNotFoundError, FormatError: see `read_manifest`.
    """
    if store.is_local:
        return _read_by_content(store, path, naming)
    if listed is None:
        return read_manifest(store, path, naming)
    if listed.tag is None or listed.size > _MAX_CACHED_BYTES:
        return read_listed(store, path, naming, listed)
    key = _key(store, path, listed.tag)
    entry = _MANIFESTS.find(key)
    if entry is not None and entry[1].naming is naming:
        return entry[1]
    data = store.read(path)
    manifest = read_manifest(store, path, naming, data=data)
    if len(data) == listed.size:  # otherwise another object has replaced it
        _put(key, data, manifest)
    return manifest


def _read_by_content(store: Store, path: str, naming: ManifestNaming) -> Manifest:
    """Read a manifest without a tag; if its bytes equal the cached bytes, return the cached manifest."""
    size = store.size(path)
    if size > _MAX_CACHED_BYTES:
        return read_manifest(store, path, naming, size)
    data = store.read(path)
    key = _key(store, path, _BY_BYTES)
    entry = _MANIFESTS.find(key)
    if entry is not None and entry[1].naming is naming and entry[0] == data:
        return entry[1]
    manifest = read_manifest(store, path, naming, data=data)
    _put(key, data, manifest)
    return manifest


def read_listed(store: Store, path: str, naming: ManifestNaming, listed: StoredObject) -> Manifest:
    """Read a manifest with the size from a listing; raises like `read_manifest`."""
    try:
        return read_manifest(store, path, naming, listed.size)
    except FormatError:
        # Another object of another size may have replaced it.
        return read_manifest(store, path, naming)


def remember(store: Store, path: str, data: bytes, manifest: Manifest) -> None:
    """Cache a manifest that was just written: its bytes, and the parsed manifest.

    If the store has tags, the expected tag is the MD5 of the content, as for S3 objects that are written in
    one request. If the object has another tag, the cache entry is not used.
    """
    if store.is_local:
        _put(_key(store, path, _BY_BYTES), data, manifest)
    elif store.lists_tags:
        key = _key(store, path, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')
        _put(key, data, manifest)
        _note_newest(store, path, key)


# The cache key of the newest manifest that this process has read or written, by directory of manifests.
_NEWEST: CacheSection[_Key] = CacheSection("newest versions", CACHE, share=1 / 64, counted=False)


def recent_version(table: TableRef) -> Manifest | None:
    """Return the newest version that this process has read or written, without a request; None if unknown.

    Other writers may have committed newer versions, or replaced the table.

    Raises:
        UnsupportedFormatError: see `load_latest`.
    """
    key = _NEWEST.find(table.store.cache_key(table.path(VERSIONS_DIR)))
    entry = None if key is None else _MANIFESTS.find(key)
    return None if entry is None else _checked(table, entry[1].path, entry[1])


def _note_newest(store: Store, path: str, key: _Key) -> None:
    _NEWEST.put(store.cache_key(path.rpartition("/")[0]), key, 0)


def _put(key: _Key, data: bytes, manifest: Manifest) -> None:
    if len(data) <= _MAX_CACHED_BYTES:
        _MANIFESTS.put(key, (data, manifest), _MEMORY_PER_BYTE * len(data))


def _key(store: Store, path: str, tag: str) -> _Key:
    return store.cache_key(path), tag


def migrate_names(table: TableRef) -> int:
    """Rename every manifest to its V2 name and return the number of renamed manifests.

    Nobody may write to the table or open it meanwhile. The next migration finishes an interrupted one: each
    manifest is copied before the old file is deleted.
    """
    directory = table.path(VERSIONS_DIR)
    old = []
    for name in table.store.list(directory):
        parsed = parse_manifest_name(name)
        if parsed is not None and parsed[1] is ManifestNaming.V1:
            old.append((parsed[0], f"{directory}/{name}"))
    for version, path in sorted(old):
        table.store.copy(path, manifest_path(table.root, version, ManifestNaming.V2))
        table.store.delete(path, table.root)
    return len(old)


logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_VERSIONS_SHOWN = 5
_LATEST_ATTEMPTS = 3
# Number of names to request from a store with ordered listings: the newest version and other files before it.
_FIRST_NAMES = 8
# Maximum entries of a folder that are searched for tables, and maximum names in an error.
_MAX_ENTRIES, _MAX_NAMES = 1000, 5


@dataclass(frozen=True)
class VersionFile:
    """A version of the history and the path of its manifest.

    Attributes:
        listed: the manifest's entry in a listing (size and tag), if there is one.
    """

    version: int
    path: str
    naming: ManifestNaming
    listed: StoredObject | None = field(default=None, compare=False)


def list_versions(table: TableRef) -> list[VersionFile]:
    """Return all versions, oldest first; empty if the table does not exist.

    Raises:
        FormatError: some manifests have V1 names and some have V2 names.
    """
    finish_latest(table)
    return version_files(table, table.store.list(table.path(VERSIONS_DIR)))


def version_files(table: TableRef, names: Iterable[str]) -> list[VersionFile]:
    """Return the versions among file names of a listing, oldest first; raises like `list_versions`."""
    directory = table.path(VERSIONS_DIR)
    files = []
    for name in names:
        if (parsed := parse_manifest_name(name)) is not None:
            files.append(VersionFile(parsed[0], f"{directory}/{name}", parsed[1]))
    if len({file.naming for file in files}) > 1:
        raise FormatError("manifests are named both as V1 and as V2", path=directory)
    return sorted(files, key=lambda file: file.version)


@dataclass(frozen=True)
class NewestVersion:
    """The newest version of a table.

    Attributes:
        manifest: the manifest of the version.
        highest_number: the highest number in use; higher than the version's if newer manifests are torn.
    """

    manifest: Manifest
    highest_number: int


def latest_version(table: TableRef) -> VersionFile:
    """Return the newest version with a complete manifest.

    Raises:
        TableNotFoundError: the table has no version.
        TornManifestError: all manifests are torn.
        FormatError: some manifests have V1 names and some have V2 names.
    """
    return _read_newest(table, lambda file: _check_complete(table.store, file))[0]


def _check_complete(store: Store, file: VersionFile) -> VersionFile:
    read_recent(store, file.path, file.naming, file.listed)
    return file


def _find_newest_name(table: TableRef) -> VersionFile:
    """Return the version with the highest number, even if its manifest is torn."""
    finish_latest(table)
    directory = table.path(VERSIONS_DIR)
    if (newest := _find_first_listed(table.store, directory)) is not None:
        return newest
    name = newest_manifest_name(table.store.list(directory))
    if name is not None and (parsed := parse_manifest_name(name)) is not None:
        return VersionFile(parsed[0], f"{directory}/{name}", parsed[1])
    versions = list_versions(table)
    if not versions:
        raise _no_table(table)
    return versions[-1]


def _no_table(table: TableRef) -> TableNotFoundError:
    hint = _path_hint(Path(table.root)) if table.store.is_local else ""
    return TableNotFoundError(
        f"no Lance table at {table.root}: {hint or 'check the path, or write the table first'}"
    )


def _path_hint(place: Path) -> str:
    """Return a hint for a user whose local path is not a table."""
    if place.is_file():
        return "it is a file, a table is a folder"
    if place.is_dir():
        inside = sorted(_tables_in(place))
        more = f" and {len(inside) - _MAX_NAMES} more" if len(inside) > _MAX_NAMES else ""
        if not inside and (
            table := next((up for up in place.parents[:2] if (up / VERSIONS_DIR).is_dir()), None)
        ):
            return f"it is a folder inside a table: open {table}"
        return f"the folder holds the tables {', '.join(inside[:_MAX_NAMES])}{more}" if inside else ""
    names = {name.removesuffix(".lance"): name for name in _tables_in(place.parent)}
    near = get_close_matches(place.name.removesuffix(".lance"), names, 1)
    if near:
        return f"did you mean {place.parent / names[near[0]]}?"
    if (place.parent / VERSIONS_DIR).is_dir():
        return f"it would be inside a table: open {place.parent}"
    if place.suffix == ".lance":
        return ""
    is_name = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", place.name) is not None
    return f"check the path, or read a table by name: .table({place.name!r})" if is_name else ""


def _tables_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except OSError:
        return []
    # Names of a directory namespace's own tables begin with two underscores.
    return [name for name in names if name[:2] != "__" and (folder / name / VERSIONS_DIR).is_dir()]


def _find_first_listed(store: Store, directory: str) -> VersionFile | None:
    """Return the newest version from the first names of an ordered listing.

    None if the store does not list names in order, or the first names are not sufficient: then use the full
    listing.
    """
    listed = store.first_listed(directory, _FIRST_NAMES)
    if listed is None:
        return None
    name = newest_manifest_name([entry.name for entry in listed])
    if name is None or (parsed := parse_manifest_name(name)) is None or parsed[1] is not ManifestNaming.V2:
        return None
    which = next(entry for entry in listed if entry.name == name)
    return VersionFile(parsed[0], f"{directory}/{name}", parsed[1], which)


def find_version(table: TableRef, version: int) -> VersionFile:
    """Return a version by its number, without listing the directory.

    Raises:
        VersionNotFoundError: the version does not exist; the message has the available versions.
        TableNotFoundError: the table does not exist.
    """
    if 0 < version < 2**63:
        finish_version(table, version)
        for naming in (ManifestNaming.V2, ManifestNaming.V1):
            path = manifest_path(table.root, version, naming)
            with suppress(FileNotFoundError):
                return VersionFile(version, path, naming, table.store.look_up(path))
    elif is_detached(version) and table.store.exists(detached := detached_path(table.root, version)):
        return VersionFile(version, detached, ManifestNaming.V2)
    numbers = [file.version for file in list_versions(table)]
    if not numbers:
        raise _no_table(table)
    raise VersionNotFoundError(
        f"version {version} of {table.root} does not exist (available: {_summary(numbers)})"
    )


def load_latest(table: TableRef) -> Manifest:
    """Read the newest version with a complete manifest.

    Raises:
        TableNotFoundError: the table does not exist.
        UnsupportedFormatError: the version needs a feature that this release does not read.
        TornManifestError: all manifests are torn.
        FormatError: the manifest is damaged.
    """
    return load_newest(table).manifest


def load_newest(table: TableRef) -> NewestVersion:
    """Read the newest version like `load_latest`, with the highest number in use."""
    manifest, highest = _read_newest(table, lambda file: _load_newest_file(table, file))
    return NewestVersion(manifest, highest)


def _load_newest_file(table: TableRef, file: VersionFile) -> Manifest:
    manifest = _load(table, file)
    if not table.store.is_local and file.listed is not None and file.listed.tag is not None:
        _note_newest(table.store, file.path, _key(table.store, file.path, file.listed.tag))
    return manifest


def _read_newest(table: TableRef, read: Callable[[VersionFile], Result]) -> tuple[Result, int]:
    """Return the result of `read` for the newest complete version, and the highest number in use."""
    for _ in range(_LATEST_ATTEMPTS):
        newest = _find_newest_name(table)
        try:
            try:
                return read(newest), newest.version
            except TornManifestError as error:
                if read_again(table.store, newest.path, newest.naming) is None:
                    return _read_older(table, newest, error, read), newest.version
        except FileNotFoundError:
            # It was the newest when listed; since then, a clean-up deleted it after a newer commit.
            logger.debug("version %d of %s vanished while it was opened", newest.version, table.root)
    raise VersionNotFoundError(f"the newest version of {table.root} vanishes each time before it can be read")


def _read_older(
    table: TableRef,
    newest: VersionFile,
    torn: TornManifestError,
    read: Callable[[VersionFile], Result],
) -> Result:
    """Return the result of `read` for the newest complete version before a torn one."""
    skipped = [torn]
    for file in reversed(list_versions(table)):
        if file.version >= newest.version:
            continue
        try:
            result = read(file)
        except FileNotFoundError:
            continue
        except TornManifestError as error:
            skipped.append(error)
            continue
        for each in skipped:
            log_torn_manifest(table.store, each, file.version)
        return result
    raise torn


def load_version(table: TableRef, version: int) -> Manifest:
    """Read one version.

    Raises:
        VersionNotFoundError: the version does not exist.
        TableNotFoundError: the table does not exist.
        UnsupportedFormatError: the version needs a feature that this release does not read.
        FormatError: the manifest is damaged.
    """
    return _load(table, find_version(table, version))


def write_hint(table: TableRef, version: int) -> None:
    """Write the latest version of a local table to the hint file for other readers. Failures are harmless."""
    if not table.store.is_local:
        return
    body = json.dumps({"version": version}, separators=(",", ":"))
    try:
        table.store.put_hint(table.path(VERSIONS_DIR, HINT_NAME), body.encode())
    except OSError as error:
        logger.debug("no version hint written for %s: %s", table.root, error)


def _load(table: TableRef, file: VersionFile) -> Manifest:
    return _checked(table, file.path, read_recent(table.store, file.path, file.naming, file.listed))


def _checked(table: TableRef, path: str, manifest: Manifest) -> Manifest:
    check_readable(manifest.message, path, manifest.facts)
    return repair_manifest(table, manifest)


def _summary(numbers: list[int]) -> str:
    if len(numbers) <= _VERSIONS_SHOWN:
        return ", ".join(map(str, numbers))
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    newest = ", ".join(map(str, numbers[-_VERSIONS_SHOWN:]))
    return f"{newest} and {len(numbers) - _VERSIONS_SHOWN} older ones from {numbers[0]} on"
