"""Resolve version references: a number, a tag, or a branch and a number. Read the history version by version.

    7                 version 7 of the current branch
    "stable"          the version of the tag, on any branch
    ("dev", 7)        version 7 of branch dev
    ("dev", None)     the newest version of branch dev
    (None, 7)         version 7 of the main line, which is also called "main"

A branch is a separate table in `tree/{name}` below the root of the main line. The main line has the entries
of tags and branches. (Lance table format, branches and tags.)

`BranchReader` reads the versions of a branch one by one. The changes of a version are computed by comparison
with the previous version, so both must exist. Recently read manifests are cached, because a reader needs each
one several times. If the cache has no room for two manifests of this size, the reader itself keeps the last
two.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Union

from spark_lance.errors import OptionError, TornManifestError, VersionNotFoundError
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.locations import join
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.versions.branches import Branches, branch_line
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

# A time in milliseconds, as in Iceberg's options.
_MILLIS = re.compile(r"[0-9]{11,14}", re.ASCII)


@dataclass(frozen=True)
class VersionRef:
    """A version of a branch.

    Attributes:
        root: the root path of the branch.
        branch: the name of the branch; None for the main line.
        version: the version number.
    """

    root: str
    branch: str | None
    version: int


def main_line(table: TableRef, manifest: Manifest) -> TableRef:
    """Return the line with the tags and branches of a table, from a version of any of its lines."""
    ending = join("", "tree", manifest.message.branch) if manifest.message.branch else ""
    return TableRef(table.store, table.root.removesuffix(ending))


def resolve(main: TableRef, reference: Reference, branch: str | None = None) -> VersionRef:
    """Return the version that a reference names.

    Args:
        main: the main line of the table.
        branch: the branch of references that are only a number; None for the main line.

    Raises:
        TagNotFoundError: there is no such tag.
        BranchNotFoundError: there is no such branch.
        TableNotFoundError: there is no table.
        FormatError: a tag or branch is damaged.
        OptionError: the reference is invalid.
    """
    if isinstance(reference, bool):
        raise OptionError(f"{reference!r} names no version")
    if isinstance(reference, int):
        return VersionRef(_find_root(main, branch), branch, reference)
    if isinstance(reference, str):
        tag = read_tag(main, reference)
        return VersionRef(_find_root(main, tag.get("branch")), tag.get("branch"), tag["version"])
    try:
        name, number = reference
    except (TypeError, ValueError):
        raise OptionError(f"{reference!r} names no version: give a number, tag or (branch, number)") from None
    name = None if name == MAIN else name
    root = _find_root(main, name)
    version = latest_version(TableRef(main.store, root)).version if number is None else number
    return VersionRef(root, name, version)


def _find_root(main: TableRef, branch: str | None) -> str:
    """Return the root path of an existing branch."""
    if branch is None:
        return main.root
    Branches(main).get(branch)
    return branch_line(main, branch).root


def version_as_of_time(table: TableRef, moment: datetime | str) -> int:
    """Return the newest version that was committed at or before a time.

    Args:
        moment: a time, or its ISO 8601 text; UTC if it has no zone.

    Raises:
        VersionNotFoundError: every version is newer; the message has the commit time of the oldest.
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
    """Parse a time.

    Args:
        moment: a time, or its ISO 8601 text. A text of digits is milliseconds since 1970.
        zone: the zone of times without a zone; None keeps them without.

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


_MAX_PREFETCHED = 64
_PARALLEL_READS = 16
_MAX_LARGE = 2
# Approximate memory of a manifest per byte of its message.
_MEMORY_PER_BYTE = 6
_VERSIONS: CacheSection[Manifest] = CacheSection("versions of walks", CACHE, share=1 / 2, counted=False)


class BranchReader(TableRefMixin):
    """Reads the versions of one branch, with a cache.

    Args:
        table: the branch.
    """

    def __init__(self, table: TableRef) -> None:
        self.table = table
        # The key of the walk in the cache: if another table replaces this one, its versions are different.
        self._name = uuid.uuid4().hex
        # The last manifests, if the cache has no room for two: changes are computed from two versions.
        self._large: OrderedDict[int, Manifest] = OrderedDict()
        self._largest_bytes = 0

    def manifest(self, version: int) -> Manifest:
        """Return a version.

        Raises:
            VersionNotFoundError: the version was cleaned up, or never existed; the message has the available
                versions.
            TableNotFoundError, FormatError, UnsupportedFormatError: see `load_version`.
        """
        manifest = self._find(version)
        if manifest is None:
            try:
                manifest = load_version(self.table, version)
            except (VersionNotFoundError, TornManifestError) as error:
                if version > 1 and self._is_torn(version, error):
                    # A torn manifest never was a version, so it has no changes.
                    return self.manifest(version - 1)
                if isinstance(error, VersionNotFoundError):
                    self.require(version, version)
                raise
            self._cache(version, manifest)
        return manifest

    def _find(self, version: int) -> Manifest | None:
        if version in self._large:
            self._large.move_to_end(version)
            return self._large[version]
        return _VERSIONS.find((self._name, version))

    def _cache(self, version: int, manifest: Manifest) -> None:
        size = _MEMORY_PER_BYTE * manifest.message.ByteSize()
        self._largest_bytes = max(self._largest_bytes, size)
        if _MAX_LARGE * size <= _VERSIONS.max_value_bytes:
            _VERSIONS.put((self._name, version), manifest, size)
            return
        self._large[version] = manifest
        while len(self._large) > _MAX_LARGE:
            self._large.popitem(last=False)

    def before(self, version: int) -> Manifest | None:
        """Return the version before a version; None for the empty table before the first version.

        The first version of a clone or branch may have any number, and has all rows of its source.

        Raises:
            VersionNotFoundError: the version was cleaned up; the message has the first version whose changes
                can be read.
        """
        if version == 1 or self.transaction(version).name == "clone":
            return None
        return self.manifest(version - 1)

    def transaction(self, version: int) -> Transaction:
        """Return the transaction of a version.

        Raises:
            FormatError: the transaction cannot be read. Also raises like `manifest`.
        """
        manifest = self.manifest(version)
        if manifest.version != version:
            return Transaction.new(transaction_pb2.Transaction.UpdateConfig(), version - 1)
        return read_transaction(self.table, manifest)

    def _is_torn(self, version: int, error: Exception) -> bool:
        return isinstance(error, TornManifestError) or is_set_aside(self.table, version)

    def prefetch(self, versions: Iterable[int]) -> None:
        """Read versions in parallel into the cache of `manifest`; raises like `manifest`.

        Args:
            versions: the versions, in the order in which the caller needs them. If they do not all fit into
                the cache, only the first of them are read.
        """
        missing = [version for version in versions if self._find(version) is None]
        # The two versions that the caller compares stay in the cache.
        room = max(0, _VERSIONS.max_value_bytes // max(1, self._largest_bytes) - _MAX_LARGE)
        missing = missing[: min(room, _MAX_PREFETCHED)]
        if len(missing) > 1:
            with ThreadPoolExecutor(_PARALLEL_READS) as pool:
                for manifest in pool.map(self._load_if_present, missing):
                    if manifest is not None:
                        self._cache(manifest.version, manifest)

    def _load_if_present(self, version: int) -> Manifest | None:
        try:
            return load_version(self.table, version)
        except (VersionNotFoundError, TornManifestError):
            return None

    def require(self, first: int, last: int) -> None:
        """Check that the changes of versions `first` to `last` can be computed.

        Raises:
            VersionNotFoundError: one of these versions, or the version before them, was cleaned up or does
                not exist yet; the message has the first version whose changes can be read.
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
        cleaned_up = [version for version in missing if version < newest]
        start = next(v for v in range(newest, 0, -1) if v - 1 not in files) + 1
        advice = f"changes can be read from startingVersion {start} on, and"
        if start > newest:
            advice = "no other changes are left;"
        names = str(cleaned_up[0]) if len(cleaned_up) == 1 else f"{cleaned_up[0]} to {cleaned_up[-1]}"
        raise VersionNotFoundError(
            f"the changes of versions {first} to {last} of {self.root} cannot be told, because version "
            f"{names} has been cleaned up: {advice} clean-up can keep versions for longer"
        )


def oldest_version_since(table: TableRef, moment: datetime | str) -> int:
    """Return the oldest version that was committed at or after a time.

    Args:
        moment: a time, or its ISO 8601 text; UTC if it has no zone.

    Raises:
        VersionNotFoundError: every version is older; the message has the commit time of the newest.
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
