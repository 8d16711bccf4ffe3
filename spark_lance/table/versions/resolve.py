"""How users name a version, by number, by tag, or by branch and number; and a walk through versions.

    7                 version 7 of the line that one is on
    "stable"          the version that the tag names, whatever its branch
    ("dev", 7)        version 7 of branch dev
    ("dev", None)     the newest version of branch dev
    (None, 7)         version 7 of the main line, which is also called "main"

A branch is a table of its own under `tree/{name}` of the root of the main line, which records tags and
branches. (Lance table format, branches and tags.)

A walk goes through the versions of a line one by one. The changes of a version come from a comparison with
the one before, so both have to exist. Recently read manifests are cached: a walk needs each of them twice.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Union

from spark_lance.errors import OptionError, TornManifestError, VersionNotFoundError
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.versions.branches import Branches, branch_root
from spark_lance.table.versions.ref_files import read_tag
from spark_lance.table.versions.versions import (
    is_set_aside,
    latest_version,
    list_versions,
    load_version,
    read_whole,
)

Reference = Union[int, str, tuple[Union[str, None], Union[int, None]]]  # noqa: UP007

MAIN = "main"

# A time as Iceberg's options have it.
_MILLIS = re.compile(r"[0-9]{11,14}", re.ASCII)


@dataclass(frozen=True)
class VersionRef:
    """A version of a line.

    Attributes:
        root: the line's root path.
        branch: its name, None for the main line.
        version: the number.
    """

    root: str
    branch: str | None
    version: int


def main_root(root: str, manifest: Manifest) -> str:
    """Return the root of the main line to which a version of the table at `root` belongs."""
    ending = join("", "tree", manifest.message.branch) if manifest.message.branch else ""
    return root.removesuffix(ending) if ending and root.endswith(ending) else root


def resolve(store: Store, main: str, reference: Reference, branch: str | None = None) -> VersionRef:
    """Return the version that a reference names.

    Args:
        main: root of the main line.
        branch: the branch on which a bare number counts, None for the main line.

    Raises:
        TagNotFoundError: there is no such tag.
        BranchNotFoundError: there is no such branch.
        TableNotFoundError: there is no table.
        FormatError: a tag or branch is damaged.
        OptionError: this is not a reference.
    """
    if isinstance(reference, bool):
        raise OptionError(f"{reference!r} names no version")
    if isinstance(reference, int):
        return VersionRef(_line(store, main, branch), branch, reference)
    if isinstance(reference, str):
        tag = read_tag(store, main, reference)
        return VersionRef(_line(store, main, tag.get("branch")), tag.get("branch"), tag["version"])
    try:
        name, number = reference
    except (TypeError, ValueError):
        raise OptionError(f"{reference!r} names no version: give a number, tag or (branch, number)") from None
    name = None if name == MAIN else name
    root = _line(store, main, name)
    return VersionRef(root, name, latest_version(TableRef(store, root)).version if number is None else number)


def _line(store: Store, main: str, branch: str | None) -> str:
    """Return the root of a line that exists."""
    if branch is None:
        return main
    Branches(store, main).get(branch)
    return branch_root(main, branch)


def version_at(table: TableRef, moment: datetime | str) -> int:
    """Return the newest version that was committed no later than a moment.

    Args:
        moment: a time, or its ISO 8601 text; without a zone it is in UTC.

    Raises:
        VersionNotFoundError: every version is younger; the message tells when the oldest was made.
        OptionError: the text is not a time.
    """
    limit = parse_moment(moment)
    oldest = None
    for file in reversed(list_versions(table)):
        manifest = read_whole(table.store, file.path, file.naming)
        if manifest is None:
            continue
        if manifest.timestamp <= limit:
            return file.version
        oldest = f"version {file.version}, was committed at {manifest.timestamp}"
    if oldest is None:
        latest_version(table)
    raise VersionNotFoundError(f"{table.root} has no version at or before {limit}; the first, {oldest}")


def parse_moment(moment: datetime | str, zone: tzinfo | None = timezone.utc) -> datetime:
    """Return a time from a time or its ISO 8601 text.

    Args:
        moment: the time. A text of digits is milliseconds since the epoch.
        zone: the zone of times without one; None leaves them without.

    Raises:
        OptionError: the text is not a time.
    """
    if isinstance(moment, str):
        text = moment.strip()
        if _MILLIS.fullmatch(text):
            return datetime.fromtimestamp(int(text) / 1000, timezone.utc)
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
        except ValueError:
            raise OptionError(f"{moment!r} is not a valid time: write it as 2026-01-31 12:00:00") from None
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment


_MOST_LOADED = 64
_AT_ONCE = 16
# About the memory of a manifest for each byte of its message.
_MEMORY_PER_BYTE = 6
_VERSIONS: CacheSection[Manifest] = CacheSection("versions of walks", CACHE, share=1 / 2, counted=False)


class Walk(OfTable):
    """The versions of one line.

    Args:
        table: the line.
    """

    def __init__(self, table: TableRef) -> None:
        self.table = table
        # The name of the walk in the cache: a table that replaces this one begins with other versions.
        self._name = uuid.uuid4().hex

    def manifest(self, version: int) -> Manifest:
        """Return a version.

        Raises:
            VersionNotFoundError: it has been cleaned up, or was never there; the message tells what is left.
            TableNotFoundError, FormatError, UnsupportedFormatError: see `load_version`.
        """
        manifest = _VERSIONS.find((self._name, version))
        if manifest is None:
            try:
                manifest = load_version(self.table, version)
            except (VersionNotFoundError, TornManifestError) as error:
                if version > 1 and self._is_torn(version, error):
                    # It never was a version: nothing changed in it.
                    return self.manifest(version - 1)
                if isinstance(error, VersionNotFoundError):
                    self.require(version, version)
                raise
            self._cache(version, manifest)
        return manifest

    def _cache(self, version: int, manifest: Manifest) -> None:
        _VERSIONS.put((self._name, version), manifest, _MEMORY_PER_BYTE * manifest.message.ByteSize())

    def before(self, version: int) -> Manifest | None:
        """Return the version before a version; None for the empty table before the first one.

        A line that begins as a clone or branch begins with a version of any number, and with all of its rows.

        Raises:
            VersionNotFoundError: it has been cleaned up; the message tells from where on changes can be read.
        """
        if version == 1 or self.transaction(version).name == "clone":
            return None
        return self.manifest(version - 1)

    def transaction(self, version: int) -> Transaction:
        """Return the transaction of a version.

        Raises:
            FormatError: it cannot be read; or as `manifest`.
        """
        manifest = self.manifest(version)
        if manifest.version != version:
            return Transaction.new(transaction_pb2.Transaction.UpdateConfig(), version - 1)
        return read_transaction(self.table, manifest)

    def _is_torn(self, version: int, error: Exception) -> bool:
        return isinstance(error, TornManifestError) or is_set_aside(self.table, version)

    def prefetch(self, versions: Iterable[int]) -> None:
        """Read some versions in parallel, into the cache of `manifest`; errors as `manifest`."""
        missing = [version for version in versions if _VERSIONS.find((self._name, version)) is None]
        if len(missing) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for manifest in pool.map(self._load_quietly, missing[-_MOST_LOADED:]):
                    if manifest is not None:
                        self._cache(manifest.version, manifest)

    def _load_quietly(self, version: int) -> Manifest | None:
        try:
            return load_version(self.table, version)
        except (VersionNotFoundError, TornManifestError):
            return None

    def require(self, first: int, last: int) -> None:
        """Check that the changes of versions `first` to `last` can be computed.

        Raises:
            VersionNotFoundError: versions among them, or the one before them, have been cleaned up, or do not
                exist yet; the message names them and tells from where on changes can be read.
        """
        files = {file.version for file in list_versions(self.table)}
        if not files:
            latest_version(self.table)
        versions = set(range(max(1, first - 1), last + 1))
        if first in files and self.transaction(first).name == "clone":
            versions.discard(first - 1)
        missing = sorted(v for v in versions - files if not is_set_aside(self.table, v))
        if not missing:
            return
        newest = max(files)
        if missing[0] > newest:
            raise VersionNotFoundError(f"{self.root} has no version {missing[0]} yet; its newest is {newest}")
        gone = [version for version in missing if version < newest]
        start = next(v for v in range(newest, 0, -1) if v - 1 not in files) + 1
        advice = f"changes can be read from startingVersion {start} on, and"
        if start > newest:
            advice = "no other changes are left;"
        names = str(gone[0]) if len(gone) == 1 else f"{gone[0]} to {gone[-1]}"
        raise VersionNotFoundError(
            f"the changes of versions {first} to {last} of {self.root} cannot be told, because version "
            f"{names} has been cleaned up: {advice} clean-up can keep versions for longer"
        )


def version_from(table: TableRef, moment: datetime | str) -> int:
    """Return the oldest version that was committed at a moment or later.

    Args:
        moment: a time, or its ISO 8601 text; without a zone it is in UTC.

    Raises:
        VersionNotFoundError: every version is older; the message tells when the newest was made.
        OptionError: the text is not a time.
    """
    limit = parse_moment(moment)
    version = newest = None
    for file in reversed(list_versions(table)):
        manifest = read_whole(table.store, file.path, file.naming)
        if manifest is None:
            continue
        timestamp = manifest.timestamp
        newest = newest or timestamp
        if timestamp < limit:
            break
        version = file.version
    if version is None:
        latest_version(table)
        raise VersionNotFoundError(
            f"{table.root} has no version as young as {limit}; its newest is of {newest}"
        )
    return version
