"""The versions of a table: which exist, which is the latest, and where a version's manifest is.

The directory listing decides; of a store that lists names in order, its beginning. The hint file that local
tables carry may be stale, damaged or missing; it is written for the benefit of other readers and never read
here. A manifest that is not whole never counts as the latest version (`torn`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TypeVar

from spark_lance.errors import FormatError, TableNotFoundError, TornManifestError, VersionNotFoundError
from spark_lance.io.store import Store, StoredObject
from spark_lance.table.format.features import check_readable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.old_writers import repair_manifest
from spark_lance.table.format.paths import (
    HINT_NAME,
    VERSIONS_DIR,
    Naming,
    detached_path,
    is_detached,
    manifest_path,
    newest_manifest_name,
    parse_manifest_name,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.publish import finish_latest, finish_version
from spark_lance.table.versions.recent import read_recent
from spark_lance.table.versions.torn import read_again, step_over


def migrate_names(table: TableRef) -> int:
    """Rename every manifest to its V2 name and return how many were renamed; none if all have such names.

    Nobody may write to the table or open it meanwhile. An interrupted migration is finished by the next one:
    each manifest is copied before its old name goes.
    """
    directory = table.path(VERSIONS_DIR)
    old = []
    for name in table.store.list(directory):
        parsed = parse_manifest_name(name)
        if parsed is not None and parsed[1] is Naming.V1:
            old.append((parsed[0], f"{directory}/{name}"))
    for version, path in sorted(old):
        table.store.copy(path, manifest_path(table.root, version, Naming.V2))
        table.store.delete(path, table.root)
    return len(old)


logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_VERSIONS_SHOWN = 5
_LATEST_ATTEMPTS = 3
# Names asked of a store that lists them in order: the newest version, and what else may stand before it.
_FIRST_NAMES = 8
# The most entries of a folder that are searched for tables, and the most names in an error.
_LOOKED_AT, _TOLD = 1000, 5


@dataclass(frozen=True)
class VersionFile:
    """A version of the history and the path of its manifest.

    Attributes:
        listed: what a listing told of the manifest's size and content.
    """

    version: int
    path: str
    naming: Naming
    listed: StoredObject | None = field(default=None, compare=False)


def list_versions(table: TableRef) -> list[VersionFile]:
    """Return all versions, oldest first; empty if there is no table at `root`.

    Raises:
        FormatError: manifests are named in two ways.
    """
    finish_latest(table)
    directory = table.path(VERSIONS_DIR)
    files = []
    for name in table.store.list(directory):
        if (parsed := parse_manifest_name(name)) is not None:
            files.append(VersionFile(parsed[0], f"{directory}/{name}", parsed[1]))
    if len({file.naming for file in files}) > 1:
        raise FormatError("manifests are named both as V1 and as V2", path=directory)
    return sorted(files, key=lambda file: file.version)


@dataclass(frozen=True)
class Newest:
    """The newest version of a table.

    Attributes:
        manifest: of the version.
        highest_number: the highest number in use; above the version's own if newer manifests are torn.
    """

    manifest: Manifest
    highest_number: int


def latest_version(table: TableRef) -> VersionFile:
    """Return the newest version whose manifest is whole.

    Raises:
        TableNotFoundError: there is no version at all.
        TornManifestError: no version is whole.
        FormatError: manifests are named in two ways.
    """
    return _newest_whole(table, lambda file: _is_whole(table.store, file))[0]


def _is_whole(store: Store, file: VersionFile) -> VersionFile:
    read_recent(store, file.path, file.naming, file.listed)
    return file


def _newest_named(table: TableRef) -> VersionFile:
    """Return the version of the highest number, whatever its manifest holds."""
    finish_latest(table)
    directory = table.path(VERSIONS_DIR)
    if (newest := _first_listed(table.store, directory)) is not None:
        return newest
    name = newest_manifest_name(table.store.list(directory))
    if name is not None and (parsed := parse_manifest_name(name)) is not None:
        return VersionFile(parsed[0], f"{directory}/{name}", parsed[1])
    versions = list_versions(table)
    if not versions:
        raise _no_table(table)
    return versions[-1]


def _no_table(table: TableRef) -> TableNotFoundError:
    hint = _what_is_there(Path(table.root)) if table.store.is_local else ""
    return TableNotFoundError(
        f"no Lance table at {table.root}: {hint or 'check the path, or write the table first'}"
    )


def _what_is_there(place: Path) -> str:
    """Return a hint for a user whose local path is not a table."""
    if place.is_file():
        return "it is a file, a table is a folder"
    if place.is_dir():
        inside = sorted(_tables_in(place))
        more = f" and {len(inside) - _TOLD} more" if len(inside) > _TOLD else ""
        return f"the folder holds the tables {', '.join(inside[:_TOLD])}{more}" if inside else ""
    near = get_close_matches(place.name, _tables_in(place.parent), 1)
    return f"did you mean {place.parent / near[0]}?" if near else ""


def _tables_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
    return [name for name in names if (folder / name / VERSIONS_DIR).is_dir()]


def _first_listed(store: Store, directory: str) -> VersionFile | None:
    """Return the newest version as a listing begins with it, where names are listed in order.

    None if the store lists them otherwise, or the first names do not tell: then all have to be looked at.
    """
    listed = store.first_listed(directory, _FIRST_NAMES)
    if listed is None:
        return None
    name = newest_manifest_name([entry.name for entry in listed])
    if name is None or (parsed := parse_manifest_name(name)) is None or parsed[1] is not Naming.V2:
        return None
    which = next(entry for entry in listed if entry.name == name)
    return VersionFile(parsed[0], f"{directory}/{name}", parsed[1], which)


def find_version(table: TableRef, version: int) -> VersionFile:
    """Return a version by its number, without listing the directory.

    Raises:
        VersionNotFoundError: it does not exist (any more); the message names those that do.
        TableNotFoundError: there is no table.
    """
    if 0 < version < 2**63:
        finish_version(table, version)
        for naming in (Naming.V2, Naming.V1):
            path = manifest_path(table.root, version, naming)
            with suppress(FileNotFoundError):
                return VersionFile(version, path, naming, table.store.look_up(path))
    elif is_detached(version) and table.store.exists(detached := detached_path(table.root, version)):
        return VersionFile(version, detached, Naming.V2)
    numbers = [file.version for file in list_versions(table)]
    if not numbers:
        raise _no_table(table)
    raise VersionNotFoundError(
        f"version {version} of {table.root} does not exist; there is {_summary(numbers)}"
    )


def load_latest(table: TableRef) -> Manifest:
    """Read the newest version whose manifest is whole.

    Raises:
        TableNotFoundError: there is no table.
        UnsupportedFormatError: the version needs a feature that this release does not read.
        TornManifestError: no version is whole.
        FormatError: the manifest is damaged.
    """
    return load_newest(table).manifest


def load_newest(table: TableRef) -> Newest:
    """As `load_latest`, with the highest number in use: the next version gets the number after it."""
    manifest, highest = _newest_whole(table, lambda file: _load(table, file))
    return Newest(manifest, highest)


def _newest_whole(table: TableRef, read: Callable[[VersionFile], Result]) -> tuple[Result, int]:
    """Return the result of `read` for the newest whole version, and the highest number in use."""
    for _ in range(_LATEST_ATTEMPTS):
        newest = _newest_named(table)
        try:
            try:
                return read(newest), newest.version
            except TornManifestError as error:
                if read_again(table.store, newest.path, newest.naming) is None:
                    return _older_whole(table, newest, error, read), newest.version
        except FileNotFoundError:
            # It was the newest when listed; a newer one came and a clean-up took it away.
            logger.debug("version %d of %s vanished while it was opened", newest.version, table.root)
    raise VersionNotFoundError(f"the newest version of {table.root} vanishes each time before it can be read")


def _older_whole(
    table: TableRef,
    newest: VersionFile,
    torn: TornManifestError,
    read: Callable[[VersionFile], Result],
) -> Result:
    """Return the result of `read` for the newest whole version below a torn one."""
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
            step_over(table.store, each, file.version)
        return result
    raise torn


def load_version(table: TableRef, version: int) -> Manifest:
    """Read one version.

    Raises:
        VersionNotFoundError: it does not exist.
        TableNotFoundError: there is no table.
        UnsupportedFormatError: the version needs a feature that this release does not read.
        FormatError: the manifest is damaged.
    """
    return _load(table, find_version(table, version))


def write_hint(table: TableRef, version: int) -> None:
    """Tell other readers of a local table which version is the latest. Failing to do so is harmless."""
    if not table.store.is_local:
        return
    body = json.dumps({"version": version}, separators=(",", ":"))
    try:
        table.store.put_hint(table.path(VERSIONS_DIR, HINT_NAME), body.encode())
    except OSError as error:
        logger.debug("no version hint written for %s: %s", table.root, error)


def _load(table: TableRef, file: VersionFile) -> Manifest:
    manifest = read_recent(table.store, file.path, file.naming, file.listed)
    check_readable(manifest.message, file.path, manifest.facts)
    return repair_manifest(table, manifest)


def _summary(numbers: list[int]) -> str:
    if len(numbers) <= _VERSIONS_SHOWN:
        return ", ".join(map(str, numbers))
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    newest = ", ".join(map(str, numbers[-_VERSIONS_SHOWN:]))
    return f"{newest} and {len(numbers) - _VERSIONS_SHOWN} older ones from {numbers[0]} on"
