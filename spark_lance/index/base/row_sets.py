"""Decode stored sets of row numbers. A set of a few bytes can claim 2^32 rows, so decoding is bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from spark_lance.errors import UnsupportedFormatError
from spark_lance.table.format.row_set import RowSet, row_address


def pack_sorted(numbers: npt.NDArray[np.uint64]) -> bytes:
    """Encode a set of row numbers (ascending uint64)."""
    return RowSet.from_addresses(numbers).to_bytes()


def treemap_numbers(data: BitMap64, possible: Mapping[int, BitMap]) -> npt.NDArray[np.uint64]:
    """Return the row numbers of a 64-bit Roaring bitmap that can exist (ascending uint64).

    Args:
        data: the bitmap.
        possible: fragment id -> rows that can exist.
    """
    allowed = BitMap64()
    for fragment, rows in possible.items():
        if rows:
            allowed.add_range(row_address(fragment, 0), row_address(fragment, rows.max() + 1))
    return np.array((data & allowed).to_array(), dtype=np.uint64)


def row_numbers(
    data: bytes | memoryview, existing_rows: Callable[[RowSet], RowSet] = lambda rows: rows
) -> npt.NDArray[np.uint64]:
    """Return the row numbers of a stored set (ascending uint64).

    Args:
        data: the encoded set.
        existing_rows: removes rows that cannot exist.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the set has a whole fragment without listing its rows.
    """
    rows = existing_rows(RowSet.from_bytes(data))
    if None in rows.values():
        raise UnsupportedFormatError("a set of rows that names a fragment as a whole")
    return rows.addresses()
