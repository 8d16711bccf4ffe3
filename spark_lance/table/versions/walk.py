"""Walk through the versions of a line one by one.

The changes of a version come from a comparison with the one before, so both have to exist. Recently read
manifests are cached: a walk needs each of them twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from spark_lance.errors import TornManifestError, VersionNotFoundError
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.versions.resolve import parse_moment
from spark_lance.table.versions.torn import is_set_aside, read_whole
from spark_lance.table.versions.versions import latest_version, list_versions, load_version

_KEPT = 64
_AT_ONCE = 16


class Walk(OfTable):
    """The versions of one line.

    Args:
        table: the line.
    """

    def __init__(self, table: TableRef) -> None:
        self.table = table
        self._kept: OrderedDict[int, Manifest] = OrderedDict()

    def manifest(self, version: int) -> Manifest:
        """Return a version.

        Raises:
            VersionNotFoundError: it has been cleaned up, or was never there; the message tells what is left.
            TableNotFoundError, FormatError, UnsupportedFormatError: see `load_version`.
        """
        manifest = self._kept.pop(version, None)
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
        self._kept[version] = manifest
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return manifest

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
        missing = [version for version in versions if version not in self._kept][-_KEPT:]
        if len(missing) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for manifest in pool.map(self._load_quietly, missing):
                    if manifest is not None:
                        self._kept[manifest.version] = manifest

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
        needed = set(range(max(1, first - 1), last + 1))
        if first in files and self.transaction(first).name == "clone":
            needed.discard(first - 1)
        missing = sorted(v for v in needed - files if not is_set_aside(self.table, v))
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
