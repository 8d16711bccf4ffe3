"""Where a stream of a table stands, and how far a micro-batch may go.

A position counts changed rows of fragments, in the order of `changes_of`; of a snapshot, its fragments. As
Spark keeps it in the checkpoint:

    {"format": 1, "version": 7, "index": 0, "snapshot": false, "commit": "6-<uuid>.txn"}
        all versions up to 7 have been read, and the first 0 of what version 8 changed
    {"format": 1, "version": 7, "index": 3, "snapshot": true, "commit": "6-<uuid>.txn"}
        the first 3 fragments of version 7 have been read, of all its rows

`commit` is the file name of the transaction that made the version; it tells a table from another one that
took its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.spark.options.options import ReadOptions
from spark_lance.table.reading.version_changes import ChangedRows

__all__ = ["Budget", "Position"]

_FORMAT = 1
# Versions that change nothing cost a look at their manifests.
_MOST_VERSIONS = 1000


@dataclass(frozen=True)
class Position:
    """How far a stream has read; see above."""

    version: int
    index: int = 0
    snapshot: bool = False
    commit: str = ""

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        """Return the position that an offset of a checkpoint says.

        Raises:
            FormatError: it is none, or was written by a release that keeps others.
        """
        if offset.get("format") != _FORMAT:
            raise FormatError(f"the checkpoint holds the offset {offset}, which this release does not know")
        try:
            numbers = int(offset["version"]), int(offset["index"])
            return cls(*numbers, bool(offset["snapshot"]), str(offset["commit"]))
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"the checkpoint holds the damaged offset {offset}") from None

    def offset(self) -> dict[str, Any]:
        """Return the position as Spark keeps it."""
        return {"format": _FORMAT, **asdict(self)}


class Budget:
    """The remaining budget of one micro-batch.

    Args:
        options: of the stream; None for everything.
    """

    def __init__(self, options: ReadOptions | None) -> None:
        self._versions = None if options is None else _MOST_VERSIONS
        self._files = None if options is None else options.maxFilesPerTrigger
        self._rows = None if options is None else options.maxRowsPerTrigger
        self._bytes = None if options is None else options.maxBytesPerTrigger
        self._taken = False

    def take(self, changes: Sequence[ChangedRows]) -> bool:
        """Take changed rows of fragments if they fit; the first ones always do."""
        if not changes:
            return True
        rows = sum(change.count for change in changes)
        stored = sum(_stored_bytes(change) for change in changes)
        costs = ((self._files, len(changes)), (self._rows, rows), (self._bytes, stored))
        if self._taken and any(left is not None and left < cost for left, cost in costs):
            return False
        self._taken = True
        self._files, self._rows, self._bytes = (None if left is None else left - cost for left, cost in costs)
        return True

    def take_version(self) -> bool:
        """Take one more version."""
        if self._versions is not None:
            self._versions -= 1
        return self._versions is None or self._versions >= 0


def _stored_bytes(change: ChangedRows) -> int:
    """Return the bytes that rows take in their files, about."""
    fragment = table_pb2.DataFragment.FromString(change.fragment)
    stored = sum(file.file_size_bytes for file in fragment.files)
    return stored * change.count // max(fragment.physical_rows, change.count, 1)
