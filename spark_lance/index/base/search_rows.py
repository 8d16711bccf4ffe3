"""Which rows a search looks at: those that an index has, those of fragments without it, those of a filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.expressions.predicate import Condition
from spark_lance.index.base.entries import Segment
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

Addresses = npt.NDArray[np.uint64]
Fragments = Sequence[table_pb2.DataFragment]

# Rows of filters, each with its version.
_ROWS: CacheSection[tuple[Manifest, Addresses]] = CacheSection("rows of filters", CACHE, share=1 / 4)


def covered_by(segments: Iterable[Segment]) -> BitMap:
    """Return the ids of the fragments that any of some segments covers."""
    return BitMap().union(*(segment.covered for segment in segments))


def unindexed(fragments: Fragments, used: Sequence[Segment], fast_search: bool) -> Fragments:
    """Return the fragments that a search goes through row by row.

    Args:
        fragments: those of the version.
        used: the segments that the search uses.
        fast_search: leave out rows that are not indexed; without an index it means nothing.
    """
    if used and fast_search:
        return []
    covered = covered_by(used)
    return [fragment for fragment in fragments if fragment.id not in covered]


def allowed_rows(
    snapshot: Snapshot, filter: Condition | str | None, fragments: Fragments | None = None
) -> Addresses | None:
    """Return the addresses of the rows that a filter keeps, ascending; None if there is no filter.

    Those of a filter that is text are cached: many searches of a version have the same filter.

    Args:
        snapshot: the version.
        filter: the filter.
        fragments: those of the version whose rows are wanted; all by default.

    Raises:
        ExpressionError: the filter does not fit the table.
    """
    if not isinstance(filter, str):
        return None if filter is None else _matching(snapshot, filter, fragments)
    manifest = snapshot.manifest
    numbers = None if fragments is None else tuple(fragment.id for fragment in fragments)
    # The value keeps the manifest, so no other one has its id while the value is there.
    key = (id(manifest), snapshot.store.cache_key(snapshot.root), filter, numbers)
    _, rows = _ROWS.get(
        key,
        lambda: (manifest, _matching(snapshot, filter, fragments)),
        lambda value: value[1].nbytes + manifest.message.ByteSize(),
    )
    return rows


def _matching(snapshot: Snapshot, filter: Condition | str, fragments: Fragments | None) -> Addresses:
    tables = snapshot.scan([ROW_ADDRESS], fragments=fragments).tables(filter)
    parts = [table[ROW_ADDRESS].to_numpy() for table in tables]
    rows = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    rows.flags.writeable = False
    return rows


def contains(rows: Addresses, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are among ascending ones."""
    if not len(rows):
        return np.zeros(len(addresses), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows, addresses), len(rows) - 1)
    result: npt.NDArray[np.bool_] = rows[places] == addresses
    return result
