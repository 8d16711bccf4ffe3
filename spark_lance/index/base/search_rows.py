"""Which rows a search looks at: those that an index has, those of fragments without it, those of a filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.expressions.predicate import Condition
from spark_lance.index.base.entries import Segment
from spark_lance.proto import table_pb2
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

Addresses = npt.NDArray[np.uint64]
Fragments = Sequence[table_pb2.DataFragment]


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

    Args:
        fragments: those whose rows are wanted; all by default.

    Raises:
        ExpressionError: the filter does not fit the table.
    """
    if filter is None:
        return None
    tables = snapshot.scan([ROW_ADDRESS], fragments=fragments).tables(filter)
    parts = [table[ROW_ADDRESS].to_numpy() for table in tables]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))


def contains(rows: Addresses, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are among ascending ones."""
    if not len(rows):
        return np.zeros(len(addresses), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows, addresses), len(rows) - 1)
    result: npt.NDArray[np.bool_] = rows[places] == addresses
    return result
