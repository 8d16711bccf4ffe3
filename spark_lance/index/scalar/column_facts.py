"""Answer questions about all values of a column from its indexes: first rows, null count, counts per value.

An index can answer only if its segments cover every fragment of the version. Deleted rows and rows that no
longer exist are excluded. If a table has stable row ids, an index may have the old value of an updated row
under the row's id. In such tables an index answers only if it refers to rows by address, or if its entries
add up to the rows of the version. Some functions accept a subset of rows, for example the rows that match a
condition (full_coverage.py).

    leading_rows    a superset of the first n rows in column order; read them to find the exact rows
    null_count      exact
    value_counts    exact; BITMAP only
    column_bounds   bounds of all values; the bounds themselves may no longer occur

Zone maps answer leading_rows (as whole zones), null_count and column_bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.btree import BTree, value_order
from spark_lance.index.scalar.full_coverage import LONGEST_RUN, FullCoverageIndex, full_coverage_indices
from spark_lance.index.scalar.zone_map import ZoneMap
from spark_lance.table.format.row_set import Addresses, RowSet
from spark_lance.table.reading.snapshot import Snapshot

# If more than this fraction of the table would have to be read, the index does not answer.
MOST_SHARE = 0.5

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Bounds:
    """Bounds of a column's values, from an index. Some of the values may no longer occur.

    Attributes:
        low, high: bounds of all non-null values, as arrays of length 1; None if all values are null.
        nulls: upper bound of the number of null rows.
        distinct: number of distinct non-null values; None if unknown.
    """

    low: pa.Array | None
    high: pa.Array | None
    nulls: int
    distinct: int | None


@dataclass(frozen=True)
class Order:
    """A request for the first rows: count, direction, null ordering, and optional subset of rows."""

    count: int
    descending: bool
    nulls: str
    within: RowSet | None

    def select(self, rows: Addresses) -> Addresses:
        """Return the rows that are in `within`, in the same order."""
        return rows if self.within is None else rows[self.within.mask(rows)]


def bounds_between(pairs: Sequence[tuple[Any, Any]], nulls: int, distinct: int | None) -> Bounds:
    """Return the bounds of all non-null values in pairs of arrays. See `Bounds` for the other arguments."""
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
    """Return whether values of any type contain NaN."""
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values), min_count=0).as_py())


def leading_of_zones(index: FullCoverageIndex, order: Order) -> RowSet | None:
    """Return the rows of the zones that contain the first rows; None if unknown, or if there are too many."""
    count, descending, nulls = order.count, order.descending, order.nulls
    zones = _Zones.of(index) if order.within is None else None
    if zones is None or (nulls == "first" and zones.nulls.any()):
        return None
    near, far = (zones.high, zones.low) if descending else (zones.low, zones.high)
    sign = -1 if descending else 1
    # Sort the zones by their last value. Once the zones so far have enough rows, zones that begin after that
    # value cannot contain any of the first rows.
    filled = np.flatnonzero(zones.values > 0)
    rows_so_far, reach = 0, None
    for position in filled[np.argsort(sign * far[filled], kind="stable")].tolist():
        rows_so_far += max(0, int(zones.values[position]) - zones.deleted(index, position))
        if rows_so_far >= count:
            reach = sign * int(far[position])
            break
    if reach is None:
        if nulls == "last":
            return None
        candidates = filled
    else:
        candidates = filled[sign * near[filled] <= reach]
    if int(zones.lengths[candidates].sum()) > index.live * MOST_SHARE:
        return None
    columns = (zones.fragments, zones.starts, zones.lengths)
    return RowSet.from_ranges(zip(*(column[candidates].tolist() for column in columns), strict=True))


@dataclass(frozen=True)
class _Zones:
    """The zones of all fragments, as int64 arrays. `low` and `high` are the ranks of the zone bounds."""

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
        """Return the zones; None if bounds are unusable (NaN, missing), or if some rows are in no zone."""
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

    def deleted(self, index: FullCoverageIndex, position: int) -> int:
        """Return the number of deleted rows of a zone."""
        number, start = int(self.fragments[position]), int(self.starts[position])
        deleted_rows = index.resolver.deletions(number)
        ends = np.searchsorted(deleted_rows, [start, start + int(self.lengths[position])])
        return int(ends[1] - ends[0])


_ZONE_NUMBERS = ("fragment_id", "zone_start", "zone_length", "null_count")


def _zone_table(index: FullCoverageIndex) -> pa.Table | None:
    """Return the zones of the covered fragments; None if some rows are in no zone."""
    parts = []
    for segment in index.segments:
        covered = np.array(segment.segment.covered, np.uint64)
        zones = segment.zones
        parts.append(zones.filter(pa.array(np.isin(zones["fragment_id"].to_numpy(), covered))))
    if not parts:
        return None
    table = pa.concat_tables(parts)
    lengths = dict.fromkeys((fragment.id for fragment in index.snapshot.fragments), 0)
    fragment_ids, counts = np.unique(table["fragment_id"].to_numpy(), return_inverse=True)
    sums = np.bincount(counts, table["zone_length"].to_numpy(), len(fragment_ids))
    lengths.update(zip(fragment_ids.tolist(), sums.astype(np.int64).tolist(), strict=True))
    for fragment in index.snapshot.fragments:
        if lengths[fragment.id] < index.snapshot.physical_rows(fragment):
            return None
    return table


def nulls_of_zones(index: FullCoverageIndex) -> int | None:
    """Return the number of null rows; None if unknown, e.g. if a fragment has both deleted rows and nulls."""
    table = _zone_table(index)
    if table is None or index.resolver.has_remaps:
        return None
    with_deletions = [f.id for f in index.snapshot.fragments if f.deletion_file.num_deleted_rows]
    counts = table["null_count"].to_numpy()
    if (counts[np.isin(table["fragment_id"].to_numpy(), with_deletions)] > 0).any():
        return None
    return int(counts.sum())


def bounds_of_zones(index: FullCoverageIndex) -> Bounds | None:
    """Return bounds of all values; None for floats, or if a zone with values has no bounds or only one."""
    table = _zone_table(index)
    if table is None or pa.types.is_floating(table["min"].type) or index.resolver.has_remaps:
        return None
    lacks_min, lacks_max = (pc.is_null(table[name]).to_numpy() for name in ("min", "max"))
    has_values = table["null_count"].to_numpy() < table["zone_length"].to_numpy()
    if (lacks_min != lacks_max).any() or (lacks_min & has_values).any():
        return None
    return bounds_between([(table["min"], table["max"])], int(table["null_count"].to_numpy().sum()), None)


# Limits of one answer: index entries to read, and distinct values of a bitmap.
_MAX_ENTRIES = 1 << 20
_MAX_VALUES = 1 << 16
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
    """Return a superset of the first rows in the order of a column.

    Floats are in numeric order, then NaN. Strings and bytes are in byte order.

    Args:
        snapshot: the version.
        path: the column, or the path of a field in a struct column.
        count: number of rows.
        descending: whether to start with the greatest value.
        nulls: "first" or "last" to sort null rows there, "none" to exclude them.
        within: subset of rows to consider; all rows of the version by default.

    Returns:
        The rows by fragment; None if no index can answer, or if too many rows would have to be read.

    Raises:
        FormatError: the index is damaged.
    """
    order = Order(count, descending, nulls, within)
    indices = full_coverage_indices(snapshot, path, _STATISTICS)
    return _first_answer(
        _STATISTICS[index.kind].leading(index, order) for index in indices if index.names_addresses
    )


def _first_answer(answers: Iterable[_Answer | None]) -> _Answer | None:
    """Return the first answer of an index; None if no index can answer."""
    return next((answer for answer in answers if answer is not None), None)


def null_count(snapshot: Snapshot, path: Sequence[str]) -> int | None:
    """Return the number of null rows of a column; None if no index can answer.

    Raises:
        FormatError: the index is damaged.
    """
    indices = full_coverage_indices(snapshot, path, _STATISTICS)
    return _first_answer(_STATISTICS[index.kind].nulls(index) for index in indices)


def value_counts(
    snapshot: Snapshot,
    path: Sequence[str],
    most_values: int,
    most_bytes: int,
    *,
    within: RowSet | None = None,
) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
    """Return the distinct values of a column, including null, and the number of rows (int64) of each.

    Returns None if no index can answer.

    Args:
        snapshot: the version.
        path: the column, see `leading_rows`.
        most_values, most_bytes: limits of values and index bytes to read.
        within: subset of rows to count; all rows of the version by default.

    Raises:
        FormatError: the index is damaged.
    """
    indices = full_coverage_indices(snapshot, path, _STATISTICS)
    return _first_answer(
        counts(index, most_values, most_bytes, within)
        for index in indices
        if (counts := _STATISTICS[index.kind].counts) is not None
    )


def column_bounds(snapshot: Snapshot, path: Sequence[str]) -> Bounds | None:
    """Return bounds of the values of a column; None if no index can answer.

    Raises:
        FormatError: the index is damaged.
    """
    indices = full_coverage_indices(snapshot, path, _STATISTICS)
    return _first_answer(_STATISTICS[index.kind].bounds(index) for index in indices)


# B-trees


def _leading_of_btree(index: FullCoverageIndex, order: Order) -> RowSet | None:
    if order.count > index.live * MOST_SHARE:
        return None
    result = [np.empty(0, np.uint64)]
    for segment in index.segments:
        rows = _read_first_rows(index, segment, order)
        if rows is None:
            return None
        result.append(rows)
    return RowSet.from_addresses(np.concatenate(result))


def _read_first_rows(index: FullCoverageIndex, segment: BTree, order: Order) -> Addresses | None:
    null_entries, total = segment.null_entries, segment.entries
    count, descending = order.count, order.descending
    if null_entries is None or (segment.is_floating and not segment.has_numbers_first):
        return None
    values = (null_entries, total, descending)
    parts = {
        "first": [(0, null_entries, False), values],
        "last": [values, (0, null_entries, False)],
        "none": [values],
    }
    result: list[Addresses] = []
    entries_read = 0
    for start, stop, backward in parts[order.nulls]:
        length = _FIRST_RUN
        while start < stop and count > 0:
            if entries_read > _MAX_ENTRIES:
                return None
            length = min(length, stop - start)
            first, last = (stop - length, stop) if backward else (start, start + length)
            ids = segment.ids(first, last)
            alive = order.select(index.live_addresses(segment, ids[::-1] if backward else ids))[:count]
            result.append(alive)
            entries_read, count, length = (
                entries_read + last - first,
                count - len(alive),
                min(2 * length, LONGEST_RUN),
            )
            start, stop = (start, first) if backward else (last, stop)
    rows = np.concatenate([np.empty(0, np.uint64), *result])
    # If the index has a row twice, the row would count as two.
    return rows if len(np.unique(rows)) == len(rows) else None


def _nulls_of_btree(index: FullCoverageIndex) -> int | None:
    total = 0
    for segment in index.segments:
        null_entries = segment.null_entries
        if (
            null_entries is None
            or null_entries > _MAX_ENTRIES
            or (null_entries and not index.names_addresses)
        ):
            return None
        total += len(np.unique(index.live_addresses(segment, segment.ids(0, null_entries))))
    return total


def _bounds_of_btree(index: FullCoverageIndex) -> Bounds | None:
    ends = []
    nulls = 0
    for segment in index.segments:
        null_entries, total = segment.null_entries, segment.entries
        if null_entries is None or segment.is_floating:
            return None
        nulls += null_entries
        if null_entries < total:
            ends.append((segment.value(null_entries), segment.value(total - 1)))
    return bounds_between(ends, nulls, None)


# Bitmaps


def _leading_of_bitmap(index: FullCoverageIndex, order: Order) -> RowSet | None:
    if order.count > index.live * MOST_SHARE:
        return None
    result = [np.empty(0, np.uint64)]
    for segment in index.segments:
        keys = segment.keys(_MAX_VALUES)
        if keys is None or has_nan(keys):
            return None
        sorted_keys = value_order(pa.chunked_array([keys]))
        empty = keys.is_null().to_numpy(zero_copy_only=False)[sorted_keys]
        values, missing = sorted_keys[~empty][:: -1 if order.descending else 1], sorted_keys[empty]
        key_order = {"first": (missing, values), "last": (values, missing), "none": (values,)}[order.nulls]
        remaining = order.count
        for position in np.concatenate(key_order).tolist():
            for numbers in index.numbers(segment.set_bytes(position)):
                alive = order.select(index.live_addresses(segment, numbers))[:remaining]
                result.append(alive)
                remaining -= len(alive)
                if remaining <= 0:
                    break
            if remaining <= 0:
                break
    return RowSet.from_addresses(np.concatenate(result))


def _nulls_of_bitmap(index: FullCoverageIndex) -> int | None:
    total = 0
    for segment in index.segments:
        keys = segment.keys(_MAX_VALUES)
        if keys is None:
            return None
        for position in np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            if not index.names_addresses:
                return None
            total += sum(
                len(index.live_addresses(segment, part))
                for part in index.numbers(segment.set_bytes(position))
            )
    return total


def _counts_of_bitmap(
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
        return None  # the index has an old value, or lacks a row
    table = pa.table({"value": pa.chunked_array(all_keys), "rows": counts}).filter(pa.array(counts > 0))
    if len(all_keys) > 1:
        table = table.group_by("value").aggregate([("rows", "sum")]).rename_columns(["value", "rows"])
    if table.num_rows > most_values:
        return None
    return one_array(table["value"]), table["rows"].to_numpy()


def _set_sizes(
    index: FullCoverageIndex, segment: Bitmap, keys: int, within: RowSet | None
) -> npt.NDArray[np.int64]:
    """Return (2, keys) int64: for each set, the number of live rows, and of live rows in `within`."""
    sizes = np.zeros((2, keys), np.int64)
    pending: list[tuple[int, Addresses]] = []
    room = LONGEST_RUN

    def count() -> None:
        owners = np.repeat([position for position, _ in pending], [len(part) for _, part in pending])
        addresses, alive = index.row_addresses(segment, np.concatenate([part for _, part in pending]))
        inside = alive if within is None else alive & within.mask(addresses)
        for row, mask in enumerate((alive, inside)):
            sizes[row] += np.bincount(owners[mask], minlength=keys)

    for position, bitmaps in enumerate(segment.stored_sets()):
        for part in index.numbers(bitmaps):
            pending.append((position, part))
            room -= len(part)
            if room <= 0:
                count()
                pending, room = [], LONGEST_RUN
    if pending:
        count()
    return sizes


def _bounds_of_bitmap(index: FullCoverageIndex) -> Bounds | None:
    parts = [segment.keys(_MAX_VALUES) for segment in index.segments]
    if any(keys is None or pa.types.is_floating(keys.type) for keys in parts) or not parts:
        return None
    keys = pc.unique(pa.chunked_array(parts))
    nulls = _nulls_of_bitmap(index)
    return None if nulls is None else bounds_between([(keys, keys)], nulls, len(keys) - keys.null_count)


class IndexStatistics(NamedTuple):
    """The functions of one index kind. `counts` is None if the index has no row sets per value."""

    leading: Callable[[FullCoverageIndex, Order], RowSet | None]
    nulls: Callable[[FullCoverageIndex], int | None]
    bounds: Callable[[FullCoverageIndex], Bounds | None]
    counts: (
        Callable[[FullCoverageIndex, int, int, RowSet | None], tuple[pa.Array, npt.NDArray[np.int64]] | None]
        | None
    ) = None


_STATISTICS: Mapping[type[ScalarIndex], IndexStatistics] = {
    BTree: IndexStatistics(_leading_of_btree, _nulls_of_btree, _bounds_of_btree),
    Bitmap: IndexStatistics(_leading_of_bitmap, _nulls_of_bitmap, _bounds_of_bitmap, _counts_of_bitmap),
    ZoneMap: IndexStatistics(leading_of_zones, nulls_of_zones, bounds_of_zones),
}
