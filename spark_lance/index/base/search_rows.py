"""Select the rows of a search: indexed rows, rows of unindexed fragments, and rows that pass a filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
from spark_lance.expressions.predicate import Condition
from spark_lance.index.base.entries import Segment
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import address_fragments, address_offsets
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

Addresses = npt.NDArray[np.uint64]
Fragments = Sequence[table_pb2.DataFragment]

# A mask has one byte for each row of the version, and eight bytes for each fragment id.
_MAX_MASK_ROWS, _MAX_FRAGMENT_ID = 1 << 26, 1 << 20
# The rows that pass a filter, with the manifest of their version.
_ROWS: CacheSection[tuple[Manifest, Addresses]] = CacheSection("rows of filters", CACHE, share=1 / 4)


def find_covered_fragments(segments: Iterable[Segment]) -> BitMap:
    """Return the ids of the fragments that at least one segment covers."""
    return BitMap().union(*(segment.covered for segment in segments))


def unindexed(fragments: Fragments, used: Sequence[Segment], fast_search: bool) -> Fragments:
    """Return the fragments that a search scans because no segment covers them.

    Args:
        fragments: all fragments of the version.
        used: the segments that the search uses.
        fast_search: skip rows that are not indexed. Ignored if no index is used.
    """
    if used and fast_search:
        return []
    covered = find_covered_fragments(used)
    return [fragment for fragment in fragments if fragment.id not in covered]


def allowed_rows(
    snapshot: Snapshot, filter: Condition | str | None, fragments: Fragments | None = None
) -> Addresses | None:
    """Return the addresses of the rows that pass a filter, ascending; None if there is no filter.

    The addresses of a text filter are cached, because many searches of a version use the same filter.

    Args:
        snapshot: the version.
        filter: the filter.
        fragments: the fragments to scan; all by default.

    Raises:
        ExpressionError: the filter does not fit the table.
    """
    if not isinstance(filter, str):
        return None if filter is None else _scan_matching_rows(snapshot, filter, fragments)
    manifest = snapshot.manifest
    numbers = None if fragments is None else tuple(fragment.id for fragment in fragments)
    # The cached value references the manifest, so no other manifest can get its id.
    key = (id(manifest), snapshot.store.cache_key(snapshot.root), filter, numbers)
    _, rows = _ROWS.get(
        key,
        lambda: (manifest, _scan_matching_rows(snapshot, filter, fragments)),
        lambda value: value[1].nbytes + manifest.message.ByteSize(),
    )
    return rows


def _scan_matching_rows(
    snapshot: Snapshot, filter: Condition | str, fragments: Fragments | None
) -> Addresses:
    tables = snapshot.scan([ROW_ADDRESS], fragments=fragments).tables(filter)
    parts = [numbers_to_numpy(one_array(table[ROW_ADDRESS])) for table in tables]
    rows = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    rows.flags.writeable = False
    return rows


def contains(rows: Addresses, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Return the mask (bool) of `addresses` that occur in the ascending `rows`."""
    if not len(rows):
        return np.zeros(len(addresses), dtype=np.bool_)
    positions = np.minimum(np.searchsorted(rows, addresses), len(rows) - 1)
    result: npt.NDArray[np.bool_] = rows[positions] == addresses
    return result


class RowMask:
    """A set of rows as one byte for each row of a version.

    Finding a row takes constant time, unlike `contains`.

    Args:
        starts: the place of each fragment's first row in `members`; `total` for other fragment ids.
        total: number of rows of the version.
    """

    def __init__(self, starts: npt.NDArray[np.int64], total: int) -> None:
        self._starts = starts
        # The last element answers for rows of other fragments.
        self._members = np.zeros(total + 1, np.bool_)

    @classmethod
    def of(cls, rows: Addresses, fragments: Fragments) -> RowMask | None:
        """Return the mask of rows; None if it would be too large.

        Args:
            rows: addresses of rows of the fragments.
            fragments: all fragments of the version.
        """
        ids = np.array([fragment.id for fragment in fragments], np.int64)
        sizes = np.array([fragment.physical_rows for fragment in fragments], np.int64)
        total = int(sizes.sum())
        # Old tables do not store the number of rows of a fragment.
        if not sizes.all() or total > _MAX_MASK_ROWS or ids.max(initial=0) > _MAX_FRAGMENT_ID:
            return None
        starts = np.full(int(ids.max(initial=0)) + 2, total, np.int64)
        starts[ids] = np.cumsum(sizes) - sizes
        result = cls(starts, total)
        result._members[result._places(rows)] = True
        return result

    @property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        return int(self._starts.nbytes + self._members.nbytes)

    def contains(self, addresses: Addresses) -> npt.NDArray[np.bool_]:
        """Return the mask (bool) of `addresses` that are in the set."""
        return self._members.take(self._places(addresses), mode="clip")

    def _places(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        places = self._starts.take(address_fragments(addresses).astype(np.int64), mode="clip")
        places += address_offsets(addresses)
        return places
