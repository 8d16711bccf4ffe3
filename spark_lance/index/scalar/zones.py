"""Zones: runs of a fragment's physical rows, with statistics about each run.

A zone never spans fragments. It covers physical rows [zone_start, zone_start + zone_length), including
deleted rows. (Lance index format, zone map and bloom filter.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError
from spark_lance.index.base.building import Rows
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.table.format.row_set import RowSet, row_address

Facts = TypeVar("Facts")

ZONE_ROWS = 8192
_MAX_ROW = 2**32 - 1
ZONE_FIELDS = [
    pa.field("fragment_id", pa.uint64()),
    pa.field("zone_start", pa.uint64()),
    pa.field("zone_length", pa.uint64()),
]


@dataclass(frozen=True)
class Zone:
    """Input for one zone of a new index: its location, and the values and addresses of its live rows."""

    fragment: int
    start: int
    length: int
    values: pa.Array
    addresses: npt.NDArray[np.uint64]


class ZoneIndex(ScalarIndex):
    """Base class of indexes with statistics per zone."""

    @classmethod
    def addresses_when(cls, version: int) -> bool:
        """Return True: a zone is a range of row addresses."""
        return True


def batch_zones(facts: Iterable[Facts], most: int) -> Iterator[list[Facts]]:
    """Yield the zone statistics in batches of at most `most` zones."""
    iterator = iter(facts)
    while run := list(islice(iterator, most)):
        yield run


def rows_of_zones(table: pa.Table, mask: npt.NDArray[np.bool_]) -> RowSet:
    """Return the rows of the selected zones.

    Args:
        table: zones, with the columns `ZONE_FIELDS`.
        mask: which zones to select.

    Raises:
        FormatError: a zone has rows that no fragment can have.
    """
    zone_table = table.filter(pa.array(mask))
    zones = list(zip(*(zone_table[field.name].to_pylist() for field in ZONE_FIELDS), strict=True))
    for zone in zones:
        if None in zone or zone[0] > _MAX_ROW or zone[1] + zone[2] > _MAX_ROW:
            raise FormatError(f"a zone of fragment {zone[0]} begins at row {zone[1]} and has {zone[2]} rows")
    return RowSet.from_ranges(zones)


def split_zones(rows: Rows, size: int = ZONE_ROWS) -> Iterator[Zone]:
    """Yield the zones of fragments, `size` physical rows each. `rows` must be ordered by address."""
    pending: list[tuple[pa.Array, npt.NDArray[np.uint64]]] = []
    pieces = rows.pieces()
    is_last = False
    for fragment, physical in rows.fragments.items():
        for start in range(0, physical, size):
            length = min(size, physical - start)
            end = row_address(fragment, start) + length
            while not is_last and not (pending and int(pending[-1][1][-1]) >= end):
                piece = next(pieces, None)
                is_last = piece is None
                if piece is not None and len(piece[1]):
                    pending.append(piece)
            values, addresses = [], []
            while pending and int(pending[0][1][0]) < end:
                column, numbers = pending.pop(0)
                count = int(np.searchsorted(numbers, end))
                values.append(column.slice(0, count))
                addresses.append(numbers[:count])
                if count < len(numbers):
                    pending.insert(0, (column.slice(count), numbers[count:]))
            zone_values = one_array(pa.chunked_array(values, rows.kind))
            yield Zone(
                fragment, start, length, zone_values, np.concatenate([np.empty(0, np.uint64), *addresses])
            )
