"""Facts about a column in forms that kinds of index share: its bounds, the first rows in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.index.scalar.btree import value_order
from spark_lance.table.format.addresses import Addresses
from spark_lance.table.format.row_set import RowSet

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
