"""Small array kernels that several codecs share: bitmaps, padding, gathers, checks of offsets.

Everything on disk is little-endian; bitmaps are LSB first, 1 = valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError


def as_bytes(data: Any) -> np.ndarray:
    """Return any bytes-like object as a uint8 array, without a copy."""
    if isinstance(data, np.ndarray):
        return (
            data
            if data.dtype == np.uint8 and data.ndim == 1
            else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        )
    return np.frombuffer(data, dtype=np.uint8)


def view_as(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Return uint8 data as `dtype` values. Copies only if the data is not aligned for the type.

    Raises:
        FormatError: the length is not a multiple of the item size.
    """
    kind = np.dtype(dtype)
    if data.nbytes % kind.itemsize:
        raise FormatError(f"{data.nbytes} bytes are not a whole number of {kind.itemsize}-byte values")
    return data.view(kind)


def padding(size: int, alignment: int) -> int:
    """Return the number of bytes from `size` to the next multiple of `alignment`."""
    return -size % alignment


def unpack_bits(data: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` bits (LSB first) of uint8 `data` as a bool array.

    Raises:
        FormatError: `data` has fewer bits.
    """
    if count > data.nbytes * 8:
        raise FormatError(f"a bitmap of {data.nbytes} bytes cannot hold {count} bits")
    bits: np.ndarray = np.unpackbits(data, count=count, bitorder="little").view(np.bool_)
    return bits


def pack_bits(flags: np.ndarray) -> np.ndarray:
    """Return a bool array as a uint8 bitmap, LSB first."""
    packed: np.ndarray = np.packbits(flags, bitorder="little")
    return packed


def bitmap_buffer(valid: np.ndarray | None) -> pa.Buffer | None:
    """Return a validity bitmap for Arrow; None if all values are valid (or `valid` is None)."""
    if valid is None or bool(valid.all()):
        return None
    return pa.py_buffer(pack_bits(valid))


def check_offsets(offsets: np.ndarray, limit: int) -> None:
    """Check that offsets start at 0 or above, do not descend, and end at `limit` or below.

    Raises:
        FormatError: they do not. An Arrow array with these offsets would read out of bounds.
    """
    if offsets.size == 0:
        raise FormatError("an offsets array is empty")
    if int(offsets[0]) < 0 or int(offsets[-1]) > limit or bool((offsets[1:] < offsets[:-1]).any()):
        raise FormatError(f"offsets are not rising within 0 to {limit}")


_HIGH_BITS = np.uint64(0x8080808080808080)


def is_ascii(data: np.ndarray) -> bool:
    """Return whether no byte of uint8 `data` has its high bit set. Any slice of such text is valid UTF-8."""
    words = len(data) // 8 * 8
    high = np.bitwise_or.reduce(data[:words].view(np.uint64)) & _HIGH_BITS
    return not high and not (data[words:] & 0x80).any()


def expand_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenation of `arange(start, start + length)` for all pairs, as int64."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    shift = np.repeat(starts.astype(np.int64) - (ends - lengths), lengths)
    positions: np.ndarray = np.arange(total, dtype=np.int64) + shift
    return positions
