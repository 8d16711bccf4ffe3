"""The rows that an operation deletes, kept until its commit has succeeded.

Two writers may delete different rows of the same fragment concurrently. The later writer must not replace the
deletion file of the earlier one, so it writes a new file with the rows of both. This requires that the
fragment's data files are the same and that no row was deleted by both. Otherwise the operation runs again.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from spark_lance.errors import RetryableConflictError
from spark_lance.io.uploads import settle_uploads, upload
from spark_lance.proto import table_pb2
from spark_lance.table.format.deletion import pack_deletions
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import deletion_path
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot

logger = logging.getLogger(__name__)

# Deletion files that are written in parallel; for this many fragments or fewer, no threads are used.
_PARALLEL_FILES = 8


@dataclass(frozen=True)
class Outcome:
    """The changed fragments: messages of those that keep rows, and ids of those that lose all rows."""

    updated: list[table_pb2.DataFragment]
    removed: list[int]


@dataclass
class RowChanges:
    """Rows to delete by fragment.

    Attributes:
        source: the version in which the rows were found.
        rows: live rows of `source` at explicit offsets, never a fragment as a whole.
        written: paths and sizes (bytes) of the deletion files written so far, including unused ones.
    """

    source: Snapshot
    rows: RowSet
    written: dict[str, int] = field(default_factory=dict)
    _results: dict[int, tuple[table_pb2.DataFragment, table_pb2.DataFragment | None]] = field(
        default_factory=dict, repr=False
    )

    def apply(self, base: Manifest | None = None) -> Outcome:
        """Write the deletion files that delete the rows from a version, and return the changed fragments.

        Files of an earlier call are reused for fragments that have not changed since.

        Args:
            base: a version after the source; the source by default.

        Raises:
            RetryableConflictError: a fragment was removed or has other data files, or a row is deleted
                already.
            FormatError: an existing deletion file is damaged.
        """
        at = self.source if base is None else self.source.at(base)
        before = {fragment.id: fragment for fragment in self.source.fragments}
        now = {fragment.id: fragment for fragment in at.fragments}
        outcome = Outcome([], [])
        for number in self.rows:
            fragment = now.get(number)
            if fragment is None or list(fragment.files) != list(before[number].files):
                raise _conflict_error(at, f"fragment {number} has been rewritten or removed")
        stale = [n for n in self.rows if n not in self._results or self._results[n][0] != now[n]]

        def mark(number: int) -> None:
            fragment = now[number]
            self._results[number] = (
                fragment,
                self._write_deletion_file(at, fragment, self.rows.offsets(number)),
            )

        if len(stale) <= _PARALLEL_FILES:
            for number in stale:
                mark(number)
        else:
            with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
                list(pool.map(mark, stale))
        for number in self.rows:
            updated_fragment = self._results[number][1]
            if updated_fragment is None:
                outcome.removed.append(number)
            else:
                outcome.updated.append(updated_fragment)
        return outcome

    def discard(self, committed: Manifest | None = None) -> None:
        """Delete the written files that `committed` does not name; all of them if nothing was committed.

        A file that cannot be deleted is logged; the table's clean-up deletes it later.
        """
        settle_uploads()
        fragments = () if committed is None else committed.fragments
        used = {
            deletion_path(self.source.root, fragment.id, fragment.deletion_file)
            for fragment in fragments
            if fragment.id in self.rows and fragment.HasField("deletion_file")
        }
        for path in self.written:
            if path in used:
                continue
            try:
                self.source.store.delete(path, self.source.root)
            except OSError as error:
                logger.warning("the unused deletion file %s stays behind: %s", path, error)

    def _write_deletion_file(
        self, at: Snapshot, fragment: table_pb2.DataFragment, offsets: npt.NDArray[np.uint32]
    ) -> table_pb2.DataFragment | None:
        """Write a deletion file and return the fragment with it; None if no row is left."""
        total = at.physical_rows(fragment)
        deleted = at.deletions(fragment)
        both = np.union1d(deleted, offsets)
        if len(both) < len(deleted) + len(offsets):
            raise _conflict_error(at, f"a row of fragment {fragment.id} has been deleted by another writer")
        if len(both) == total:
            return None
        rebased = at.version != self.source.version
        entry, data = pack_deletions(fragment, both, version=at.version, bitmap=rebased)
        path = deletion_path(at.root, fragment.id, entry)
        self.written[path] = len(data)
        upload(partial(at.store.put, path, data))
        updated_fragment = table_pb2.DataFragment()
        updated_fragment.CopyFrom(fragment)
        updated_fragment.deletion_file.CopyFrom(entry)
        return updated_fragment


def _conflict_error(at: Snapshot, reason: str) -> RetryableConflictError:
    return RetryableConflictError(f"in version {at.version} of {at.root} {reason}: run the operation again")
