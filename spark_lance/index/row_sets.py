"""Sets of rows as scalar indices store them: Roaring bitmaps by fragment.

    u32 number of fragments
    per fragment, by ascending id:  u32 fragment id, u32 size, a portable 32-bit Roaring bitmap of that size

A row's number is a row address, the fragment id in its upper and the physical offset in its lower half.
Tables with stable row ids have ids cut in the same way. Size 0 means every row of the fragment.
Numbers are little-endian. (Lance index format, row address tree map. The 64-bit Roaring format is another.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.table.addresses import address_of, addresses_of_rows, rows_by_fragment

__all__ = ["RowSet", "pack_rows", "pack_sorted", "row_numbers", "treemap_numbers", "unpack_rows"]

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<II")

# Fragment id -> offsets; None is every row of the fragment.
RowSet = Mapping[int, BitMap | None]


def pack_sorted(numbers: npt.NDArray[np.uint64]) -> bytes:
    """Return a set of row numbers (ascending uint64) as stored bytes."""
    return pack_rows(rows_by_fragment(numbers))


def pack_rows(rows: RowSet) -> bytes:
    """Return a set of rows as stored bytes."""
    parts = [_COUNT.pack(len(rows))]
    for fragment in sorted(rows):
        offsets = rows[fragment]
        data = b"" if offsets is None else offsets.serialize()
        parts += [_ENTRY.pack(fragment, len(data)), data]
    return b"".join(parts)


def unpack_rows(data: bytes | memoryview) -> dict[int, BitMap | None]:
    """Return a stored set of rows.

    Raises:
        FormatError: the bytes are damaged.
    """
    view = memoryview(data)
    rows: dict[int, BitMap | None] = {}
    try:
        (count,) = _COUNT.unpack_from(view)
        position = _COUNT.size
        for _ in range(count):
            fragment, size = _ENTRY.unpack_from(view, position)
            position += _ENTRY.size
            if position + size > len(view):
                raise FormatError(f"a set of rows ends before fragment {fragment} does")
            rows[fragment] = BitMap.deserialize(bytes(view[position : position + size])) if size else None
            position += size
    except (struct.error, ValueError, IndexError) as error:
        raise FormatError(f"undecodable set of rows: {error}") from error
    return rows


def treemap_numbers(data: BitMap64, possible: Mapping[int, BitMap]) -> npt.NDArray[np.uint64]:
    """Return the row numbers of a 64-bit Roaring bitmap that can exist, ascending.

    Args:
        data: the bitmap; a few bytes can hold 2^32 numbers.
        possible: fragment -> its rows.
    """
    allowed = BitMap64()
    for fragment, rows in possible.items():
        if rows:
            allowed.add_range(address_of(fragment, 0), address_of(fragment, rows.max() + 1))
    return np.array((data & allowed).to_array(), dtype=np.uint64)


def row_numbers(
    data: bytes | memoryview, bounded: Callable[[RowSet], RowSet] = lambda rows: rows
) -> npt.NDArray[np.uint64]:
    """Return the row numbers of a stored set, ascending.

    Args:
        data: the set.
        bounded: leaves the rows that can exist; a few bytes can hold 2^32 others.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the set has all rows of a fragment, which it does not list.
    """
    bitmap = bounded(unpack_rows(data))
    rows = {fragment: offsets for fragment, offsets in bitmap.items() if offsets is not None}
    if len(rows) < len(bitmap):
        raise UnsupportedFormatError("a set of rows that names a fragment as a whole")
    return addresses_of_rows(rows)
