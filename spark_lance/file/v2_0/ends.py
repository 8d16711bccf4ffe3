"""End offsets: the u64 index of variable-width values and of lists.

Entry i is the end of value i, counted from the start of the page's bytes (or items); value i starts where
value i - 1 ends, value 0 at 0. An entry at or above the page's adjustment is a null: subtract that to get its
end. Writers use one more than the number of bytes (items) as adjustment.

Example: "a", null, "", "bcd" with 4 bytes and adjustment 5 is 1, 6, 1, 4.

(Lance file format 2.0, `Binary.indices` and `List.offsets`.)
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.v2_0.decoder import Decoder, Range

__all__ = ["Bools", "Bounds", "encode_ends", "end_ranges", "null_bitmap", "read_ends"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Bounds: TypeAlias = npt.NDArray[np.int64]


def end_ranges(index: Decoder, start: int, stop: int) -> list[Range]:
    """Return where the entries for values [start, stop) are; the one before `start` is one of them."""
    return index.ranges(max(start - 1, 0), stop)


def read_ends(
    index: Decoder, start: int, stop: int, adjustment: int, limit: int
) -> tuple[Bounds, Bools | None]:
    """Read the entries for values [start, stop).

    Args:
        index: decoder of uint64 entries.
        start: first value.
        stop: one past the last value, greater than `start`.
        adjustment: the page's null adjustment.
        limit: number of bytes (items) that exist.

    Returns:
        stop - start + 1 positions, ascending and within 0..limit: value start + i is at [i], [i + 1]; and
        which values are null (bool, stop - start), None if none is.

    Raises:
        FormatError: positions are not ascending or beyond the limit.
    """
    lead = 1 if start else 0
    entries = index.read(start - lead, stop)
    if entries.null_count:
        raise FormatError("an offset is null")
    raw = np.frombuffer(entries.buffers()[1], dtype=np.uint64, count=len(entries))
    nulls: Bools | None = None
    if int(raw.max()) >= adjustment:
        nulls = raw >= np.uint64(adjustment)
        raw = np.subtract(raw, np.uint64(adjustment), out=raw.copy(), where=nulls)
        nulls = nulls[lead:]
    if int(raw.max()) > limit:
        raise FormatError(f"an offset of {int(raw.max())} is beyond the {limit} that exist")
    bounds = np.zeros(stop - start + 1, dtype=np.int64)
    bounds[1 - lead :] = raw
    if (bounds[1:] < bounds[:-1]).any():
        raise FormatError("offsets are not ascending")
    return bounds, nulls


def null_bitmap(nulls: Bools | None) -> pa.Buffer | None:
    """Return the Arrow validity bitmap for a mask of nulls."""
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def encode_ends(bounds: Bounds, nulls: Bools | None) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the entries for values at bounds[i], bounds[i + 1] (bounds[0] = 0), and the null adjustment.

    Null values must be empty.
    """
    adjustment = int(bounds[-1]) + 1
    ends = bounds[1:].astype(np.uint64)
    if nulls is not None:
        np.add(ends, np.uint64(adjustment), out=ends, where=nulls)
    return ends, adjustment
