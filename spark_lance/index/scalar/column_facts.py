"""Facts about all values of a column from its indices: the places of the first ones, rows per value.

An index answers here only if its segments cover every fragment of the version. Deleted rows are left out, and
so are entries of rows that are gone. A table with stable row ids may keep old values under the id of a
changed row. There only two kinds of indices answer: those that refer to rows by address, and those whose
entries add up to the rows of the version. A question can also be limited to the rows of a condition
(full_coverage.py).

    leading_rows    a set of rows that holds the first n in the order of the values; read them to know these
    null_count      exact
    value_counts    exact; BITMAP only
    bounds_of       bounds of all values, which need not occur any more

Zone maps give the zones of the first rows, the number of nulls, and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.btree import BTree, value_order
from spark_lance.index.scalar.full_coverage import LONGEST_RUN, FullCoverageIndex, full_coverage_indices
from spark_lance.index.scalar.zone_map import ZoneMap
from spark_lance.table.format.row_set import Addresses, RowSet
from spark_lance.table.reading.snapshot import Snapshot

# Rows are not searched for if a larger share of the table would have to be read.
MOST_SHARE = 0.5


@dataclass(frozen=True)
class Bounds:
    """Facts from an index about the values of a column; some of the values may be gone.

    Attributes:
        low, high: bounds of all values but null, as arrays of one value; None if all values are null.
        nulls: an upper bound of the number of null rows.
        distinct: the number of different values other than null; None if it is not known.
    """

    low: pa.Array | None
    high: pa.Array | None
    nulls: int
    distinct: int | None


@dataclass(frozen=True)
class Order:
    """A request for first rows: how many, which end, where nulls are sorted, among which rows."""

    count: int
    descending: bool
    nulls: str
    within: RowSet | None

    def select(self, rows: Addresses) -> Addresses:
        """Return the rows that the selection contains, in their order."""
        return rows if self.within is None else rows[self.within.mask(rows)]


def bounds_between(pairs: Sequence[tuple[Any, Any]], nulls: int, distinct: int | None) -> Bounds:
    """Return the bounds of all values in pairs of arrays, nulls left out; see `Bounds` for the rest."""
    chunks = [chunk for pair in pairs for part in pair for chunk in _chunks(part)]
    values = one_array(pa.chunked_array(chunks)).drop_null() if chunks else None
    if values is None or not len(values):
        return Bounds(None, None, nulls, distinct)
    order = value_order(pa.chunked_array([values]))
    ends = [values.slice(int(order[end]), 1) for end in (0, -1)]
    return Bounds(ends[0], ends[1], nulls, distinct)


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def has_nan(values: pa.Array) -> bool:
    """Whether there is NaN among values of any type."""
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values), min_count=0).as_py())


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
        candidates = filled
    else:
        candidates = filled[sign * near[filled] <= reach]
    if int(zones.lengths[candidates].sum()) > index.live * MOST_SHARE:
        return None
    result: dict[int, BitMap] = {}
    for place in candidates.tolist():
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


# Entries of an index that are looked at for one answer, and the values that one may have.
_MOST_ENTRIES = 1 << 20
_MOST_VALUES = 1 << 16
_FIRST_RUN = 4096


def leading_rows(
    snapshot: Snapshot,
    path: Sequence[str],
    count: int,
    *,
    descending: bool = False,
    nulls: str = "none",
    within: RowSet | None = None,
) -> RowSet | None:
    """Return rows that hold the first ones in the order of a column; other rows may be among them.

    Floats are in the order of numbers, then NaN; text and bytes are in that of their bytes.

    Args:
        snapshot: the version.
        path: the column, by a longer path a field in a struct column.
        count: how many rows are wanted.
        descending: begin with the greatest.
        nulls: whether rows without a value come "first" or "last", or are none of the wanted ("none").
        within: the rows that are meant; all of the version without it.

    Returns:
        The rows by fragment; None if no index tells, or too many rows would have to be read.

    Raises:
        FormatError: the index is damaged.
    """
    for index in full_coverage_indices(snapshot, path, _STATISTICS):
        if not index.names_addresses:
            continue
        result = _STATISTICS[index.kind].leading(index, Order(count, descending, nulls, within))
        if result is not None:
            return result
    return None


def null_count(snapshot: Snapshot, path: Sequence[str]) -> int | None:
    """Return how many rows of a version have no value in a column; None if no index tells.

    Raises:
        FormatError: the index is damaged.
    """
    for index in full_coverage_indices(snapshot, path, _STATISTICS):
        result = _STATISTICS[index.kind].nulls(index)
        if result is not None:
            return result
    return None


def value_counts(
    snapshot: Snapshot,
    path: Sequence[str],
    most_values: int,
    most_bytes: int,
    *,
    within: RowSet | None = None,
) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
    """Return the values of a column, null among them, and how many rows have each; None if no index tells.

    Args:
        snapshot: the version.
        path: as in `leading_rows`.
        most_values, most_bytes: what may be read of an index at most.
        within: as in `leading_rows`.

    Raises:
        FormatError: the index is damaged.
    """
    for index in full_coverage_indices(snapshot, path, _STATISTICS):
        counts = _STATISTICS[index.kind].counts
        if counts is not None and (result := counts(index, most_values, most_bytes, within)) is not None:
            return result
    return None


def bounds_of(snapshot: Snapshot, path: Sequence[str]) -> Bounds | None:
    """Return bounds of the values of a column; None if no index tells.

    Raises:
        FormatError: the index is damaged.
    """
    for index in full_coverage_indices(snapshot, path, _STATISTICS):
        result = _STATISTICS[index.kind].bounds(index)
        if result is not None:
            return result
    return None


# B-trees


def _leading_of_btree(index: FullCoverageIndex, order: Order) -> RowSet | None:
    if order.count > index.live * MOST_SHARE:
        return None
    result = [np.empty(0, np.uint64)]
    for segment in index.segments:
        rows = _first_alive(index, segment, order)
        if rows is None:
            return None
        result.append(rows)
    return RowSet.from_addresses(np.concatenate(result))


def _first_alive(index: FullCoverageIndex, segment: BTree, order: Order) -> Addresses | None:
    nothing, total = segment.null_entries, segment.entries
    count, descending = order.count, order.descending
    if nothing is None or (segment.is_floating and not segment.has_numbers_first):
        return None
    values = (nothing, total, descending)
    parts = {"first": [(0, nothing, False), values], "last": [values, (0, nothing, False)], "none": [values]}
    result: list[Addresses] = []
    seen = 0
    for start, stop, backward in parts[order.nulls]:
        length = _FIRST_RUN
        while start < stop and count > 0:
            if seen > _MOST_ENTRIES:
                return None
            length = min(length, stop - start)
            first, last = (stop - length, stop) if backward else (start, start + length)
            ids = segment.ids(first, last)
            alive = order.select(index.alive(segment, ids[::-1] if backward else ids))[:count]
            result.append(alive)
            seen, count, length = seen + last - first, count - len(alive), min(2 * length, LONGEST_RUN)
            start, stop = (start, first) if backward else (last, stop)
    rows = np.concatenate([np.empty(0, np.uint64), *result])
    # A row that the index names twice would stand for two.
    return rows if len(np.unique(rows)) == len(rows) else None


def _nulls_of_btree(index: FullCoverageIndex) -> int | None:
    total = 0
    for segment in index.segments:
        nothing = segment.null_entries
        if nothing is None or nothing > _MOST_ENTRIES or (nothing and not index.names_addresses):
            return None
        total += len(np.unique(index.alive(segment, segment.ids(0, nothing))))
    return total


def _bounds_of_btree(index: FullCoverageIndex) -> Bounds | None:
    ends = []
    nulls = 0
    for segment in index.segments:
        nothing, total = segment.null_entries, segment.entries
        if nothing is None or segment.is_floating:
            return None
        nulls += nothing
        if nothing < total:
            ends.append((segment.value(nothing), segment.value(total - 1)))
    return bounds_between(ends, nulls, None)


# Bitmaps


def _leading_of_bitmap(index: FullCoverageIndex, order: Order) -> RowSet | None:
    if order.count > index.live * MOST_SHARE:
        return None
    result = [np.empty(0, np.uint64)]
    for segment in index.segments:
        keys = segment.keys(_MOST_VALUES)
        if keys is None or has_nan(keys):
            return None
        sorted_keys = value_order(pa.chunked_array([keys]))
        empty = keys.is_null().to_numpy(zero_copy_only=False)[sorted_keys]
        values, missing = sorted_keys[~empty][:: -1 if order.descending else 1], sorted_keys[empty]
        places = {"first": (missing, values), "last": (values, missing), "none": (values,)}[order.nulls]
        left = order.count
        for place in np.concatenate(places).tolist():
            for numbers in index.numbers(segment.stored(place)):
                alive = order.select(index.alive(segment, numbers))[:left]
                result.append(alive)
                left -= len(alive)
                if left <= 0:
                    break
            if left <= 0:
                break
    return RowSet.from_addresses(np.concatenate(result))


def _nulls_of_bitmap(index: FullCoverageIndex) -> int | None:
    total = 0
    for segment in index.segments:
        keys = segment.keys(_MOST_VALUES)
        if keys is None:
            return None
        for place in np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            if not index.names_addresses:
                return None
            total += sum(len(index.alive(segment, part)) for part in index.numbers(segment.stored(place)))
    return total


def _counts_of(
    index: FullCoverageIndex, most_values: int, most_bytes: int, within: RowSet | None
) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
    if sum(segment.num_bytes for segment in index.segments) > most_bytes:
        return None
    all_keys: list[pa.Array] = []
    all_counts: list[npt.NDArray[np.int64]] = []
    for segment in index.segments:
        keys = segment.keys(most_values)
        if keys is None or pa.types.is_floating(keys.type):
            return None
        all_keys.append(keys)
        all_counts.append(_set_sizes(index, segment, len(keys), within))
    if not all_keys:
        return None
    alive, counts = np.concatenate(all_counts, axis=1)
    if int(alive.sum()) != index.live:
        return None  # an old value of a row, or one that is missing
    table = pa.table({"value": pa.chunked_array(all_keys), "rows": counts}).filter(pa.array(counts > 0))
    if len(all_keys) > 1:
        table = table.group_by("value").aggregate([("rows", "sum")]).rename_columns(["value", "rows"])
    if table.num_rows > most_values:
        return None
    return one_array(table["value"]), table["rows"].to_numpy()


def _set_sizes(
    index: FullCoverageIndex, segment: Bitmap, keys: int, within: RowSet | None
) -> npt.NDArray[np.int64]:
    """Return how many rows of the version each set of a segment has, and how many of those that are meant."""
    sizes = np.zeros((2, keys), np.int64)
    pending: list[tuple[int, Addresses]] = []
    room = LONGEST_RUN

    def count() -> None:
        owners = np.repeat([place for place, _ in pending], [len(part) for _, part in pending])
        addresses, alive = index.row_addresses(segment, np.concatenate([part for _, part in pending]))
        counted = alive if within is None else alive & within.mask(addresses)
        for row, mask in enumerate((alive, counted)):
            sizes[row] += np.bincount(owners[mask], minlength=keys)

    for place, bitmaps in enumerate(segment.stored_sets()):
        for part in index.numbers(bitmaps):
            pending.append((place, part))
            room -= len(part)
            if room <= 0:
                count()
                pending, room = [], LONGEST_RUN
    if pending:
        count()
    return sizes


def _bounds_of_bitmap(index: FullCoverageIndex) -> Bounds | None:
    parts = [segment.keys(_MOST_VALUES) for segment in index.segments]
    if any(keys is None or pa.types.is_floating(keys.type) for keys in parts) or not parts:
        return None
    keys = pc.unique(pa.chunked_array(parts))
    nulls = _nulls_of_bitmap(index)
    return None if nulls is None else bounds_between([(keys, keys)], nulls, len(keys) - keys.null_count)


class IndexStatistics(NamedTuple):
    """The functions of a kind of index; `counts` is None if it does not know the rows of each value."""

    leading: Callable[[FullCoverageIndex, Order], RowSet | None]
    nulls: Callable[[FullCoverageIndex], int | None]
    bounds: Callable[[FullCoverageIndex], Bounds | None]
    counts: (
        Callable[[FullCoverageIndex, int, int, RowSet | None], tuple[pa.Array, npt.NDArray[np.int64]] | None]
        | None
    ) = None


_STATISTICS: Mapping[type[ScalarIndex], IndexStatistics] = {
    BTree: IndexStatistics(_leading_of_btree, _nulls_of_btree, _bounds_of_btree),
    Bitmap: IndexStatistics(_leading_of_bitmap, _nulls_of_bitmap, _bounds_of_bitmap, _counts_of),
    ZoneMap: IndexStatistics(leading_of_zones, nulls_of_zones, bounds_of_zones),
}
