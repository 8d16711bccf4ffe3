"""Facts about a column from zone maps: the zones of its first rows, the number of nulls, bounds.

See column_facts.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.index.scalar.btree import value_order
from spark_lance.index.scalar.facts import MOST_SHARE, Bounds, Order, bounds_between, has_nan
from spark_lance.index.scalar.full_coverage import FullCoverageIndex
from spark_lance.table.format.row_set import RowSet

__all__ = ["bounds_of_zones", "leading_of_zones", "nulls_of_zones"]


def leading_of_zones(index: FullCoverageIndex, order: Order) -> RowSet | None:
    """Return the zones, by fragment, in which the first rows are; None if they are not known, or too many."""
    count, descending, nulls = order.count, order.descending, order.nulls
    zones = _Zones.of(index) if order.within is None else None
    if zones is None or (nulls == "first" and zones.nulls.any()):
        return None
    near, far = (zones.high, zones.low) if descending else (zones.low, zones.high)
    sign = -1 if descending else 1
    # Zones by the end of their values that comes last: as soon as enough rows end there, those that only
    # begin later have none of the first.
    filled = np.flatnonzero(zones.values > 0)
    rows_so_far, reach = 0, None
    for place in filled[np.argsort(sign * far[filled], kind="stable")].tolist():
        rows_so_far += max(0, int(zones.values[place]) - zones.deleted(index, place))
        if rows_so_far >= count:
            reach = sign * int(far[place])
            break
    if reach is None:
        if nulls == "last":
            return None
        chosen = filled
    else:
        chosen = filled[sign * near[filled] <= reach]
    if int(zones.lengths[chosen].sum()) > index.live * MOST_SHARE:
        return None
    result: dict[int, BitMap] = {}
    for place in chosen.tolist():
        rows = result.setdefault(int(zones.fragments[place]), BitMap())
        rows.add_range(int(zones.starts[place]), int(zones.starts[place] + zones.lengths[place]))
    return RowSet(result)


@dataclass(frozen=True)
class _Zones:
    """The zones of a version's fragments; `low` and `high` are ranks: greater values have greater ones."""

    fragments: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    nulls: npt.NDArray[np.int64]
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]

    @property
    def values(self) -> npt.NDArray[np.int64]:
        return self.lengths - self.nulls

    @classmethod
    def of(cls, index: FullCoverageIndex) -> _Zones | None:
        """Return the zones; None where their bounds do not tell, as with NaN, or not all rows are in one."""
        table = _zone_table(index)
        if table is None or index.resolver.has_remaps:
            return None
        lows, highs = one_array(table["min"]), one_array(table["max"])
        if has_nan(lows) or has_nan(highs) or table["nan_count"].to_numpy().any():
            return None
        numbers = [table[name].to_numpy().astype(np.int64) for name in _ZONE_NUMBERS]
        unbound = (pc.is_null(bound).to_numpy(zero_copy_only=False) for bound in (lows, highs))
        if any((missing & (numbers[2] > numbers[3])).any() for missing in unbound):
            return None
        both = pa.chunked_array([lows, highs])
        order = value_order(both)
        ordered = one_array(both.take(pa.array(order)))
        differs = pc.fill_null(pc.not_equal(ordered[1:], ordered[:-1]), True).to_numpy(zero_copy_only=False)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.concatenate([[0], np.cumsum(differs)])[: len(order)]
        fragments, starts, lengths, nulls = numbers
        return cls(fragments, starts, lengths, nulls, ranks[: len(lows)], ranks[len(lows) :])

    def deleted(self, index: FullCoverageIndex, place: int) -> int:
        """Return how many rows of a zone are deleted."""
        number, start = int(self.fragments[place]), int(self.starts[place])
        gone = index.resolver.deletions(number)
        ends = np.searchsorted(gone, [start, start + int(self.lengths[place])])
        return int(ends[1] - ends[0])


_ZONE_NUMBERS = ("fragment_id", "zone_start", "zone_length", "null_count")


def _zone_table(index: FullCoverageIndex) -> pa.Table | None:
    """Return the zones of the fragments that segments cover; None if they leave out rows."""
    parts = []
    for segment in index.segments:
        covered = np.array(segment.segment.covered, np.uint64)
        zones = segment.zones
        parts.append(zones.filter(pa.array(np.isin(zones["fragment_id"].to_numpy(), covered))))
    if not parts:
        return None
    table = pa.concat_tables(parts)
    lengths = dict.fromkeys((fragment.id for fragment in index.snapshot.fragments), 0)
    homes, counts = np.unique(table["fragment_id"].to_numpy(), return_inverse=True)
    sums = np.bincount(counts, table["zone_length"].to_numpy(), len(homes))
    lengths.update(zip(homes.tolist(), sums.astype(np.int64).tolist(), strict=True))
    for fragment in index.snapshot.fragments:
        if lengths[fragment.id] < index.snapshot.physical_rows(fragment):
            return None
    return table


def nulls_of_zones(index: FullCoverageIndex) -> int | None:
    """Return how many rows are null; None if it is not known, as where a zone with nulls has lost rows."""
    table = _zone_table(index)
    if table is None or index.resolver.has_remaps:
        return None
    with_deletions = [f.id for f in index.snapshot.fragments if f.deletion_file.num_deleted_rows]
    counts = table["null_count"].to_numpy()
    if (counts[np.isin(table["fragment_id"].to_numpy(), with_deletions)] > 0).any():
        return None
    return int(counts.sum())


def bounds_of_zones(index: FullCoverageIndex) -> Bounds | None:
    """Return bounds of all values; None for floats, and where zones do not tell."""
    table = _zone_table(index)
    if table is None or pa.types.is_floating(table["min"].type) or index.resolver.has_remaps:
        return None
    if (pc.is_null(table["min"]).to_numpy() != pc.is_null(table["max"]).to_numpy()).any():
        return None
    return bounds_between([(table["min"], table["max"])], int(table["null_count"].to_numpy().sum()), None)
