"""Pieces of byte arrays: what the chunks of a page hand to the codecs.

A mini-block page holds many small chunks. A codec gets the same buffer of all chunks at once, as `Ranges`, so
that it needs no Python code per chunk beyond slicing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_arrow
from spark_lance.arrow.buffers import as_bytes, pack_bits
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError

# More pieces than this are put together by Arrow, unless they are few bytes together.
_MANY = 128
_FEW_BYTES = 1 << 13

Bytes = npt.NDArray[np.uint8]


def exclusive_sum(values: Ints) -> Ints:
    """Return 0, v0, v0 + v1, ...: n + 1 running sums of n int64 values."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def integer_column(rows: Bytes) -> npt.NDArray[Any]:
    """Return rows of 0, 1, 2, 4 or 8 bytes as one array of little-endian unsigned integers."""
    if rows.shape[1] == 0:
        return np.zeros(len(rows), dtype=np.uint8)
    return np.ascontiguousarray(rows).view(f"<u{rows.shape[1]}").reshape(-1)


def run_starts(numbers: Ints) -> npt.NDArray[np.bool_]:
    """Return where a number differs from the one before it; so does the first."""
    result = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=result[1:])
    return result


def view_words(data: Bytes, positions: Ints, size: int) -> npt.NDArray[Any] | None:
    """Return data as unsigned integers of `size` bytes, if some byte positions in it are multiples of that.

    Integers are picked from that several times faster than from bytes. None where they would have to be put
    together from bytes, or where `data` does not begin at such a place in memory.
    """
    if (int(np.bitwise_or.reduce(positions)) | data.__array_interface__["data"][0]) & (size - 1):
        return None
    return data[: len(data) // size * size].view(f"<u{size}")


def gather_integers(data: Bytes, positions: Ints, size: int) -> npt.NDArray[Any]:
    """Return the unsigned integers of `size` bytes at these byte positions, which must be inside `data`."""
    if size == 1:
        return data[positions]
    words = view_words(data, positions, size) if size in (2, 4, 8) else None
    if words is not None:
        return words[positions // size]
    return integer_column(data[positions[:, None] + np.arange(size)])


def gather(data: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    """Copy ascending ranges of `data` to one place; the ranges must be inside `data`."""
    count = len(starts)
    if count == 0:
        return data[:0]
    # Arrow copies byte strings faster than numpy could: ranges and gaps alternate as strings, and the ranges
    # are taken.
    edges = np.empty(2 * count, dtype=np.int64)
    edges[0::2] = starts
    edges[1::2] = starts + lengths
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    strings = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
    values = strings.take(numbers_to_arrow(np.arange(0, 2 * count, 2))).buffers()[2]
    return as_bytes(values)[: int(lengths.sum())] if values is not None else data[:0]


@dataclass(frozen=True)
class Ranges:
    """Piece i is data[starts[i] : starts[i] + sizes[i]]; all pieces lie inside `data`.

    Attributes:
        data: uint8, one dimension, contiguous.
        starts, sizes: int64 byte counts, one per piece.
    """

    data: Bytes
    starts: Ints
    sizes: Ints

    @classmethod
    def from_buffer(cls, data: Bytes) -> Ranges:
        """Return all of `data` as one piece."""
        return cls(data, np.zeros(1, dtype=np.int64), np.array([len(data)], dtype=np.int64))

    def require(self, sizes: Ints, what: str) -> None:
        """Check that piece i has at least sizes[i] bytes.

        Raises:
            FormatError: a piece is shorter.
        """
        if (self.sizes < sizes).any():
            i = int(np.flatnonzero(self.sizes < sizes)[0])
            raise FormatError(f"{what}: chunk {i} needs {int(sizes[i])} bytes and has {int(self.sizes[i])}")

    def select(self, keep: npt.NDArray[np.bool_ | np.intp] | slice) -> Ranges:
        """Return some of the pieces: those of a slice, those whose flag is set, or those of given numbers."""
        return Ranges(self.data, self.starts[keep], self.sizes[keep])

    def part(self, skip: Ints | int, sizes: Ints) -> Ranges:
        """Return the part of each piece that starts `skip` bytes into it and has `sizes` bytes, unchecked."""
        return Ranges(self.data, self.starts + skip, sizes)

    def column(self, position: int, size: int) -> Ints:
        """Return as int64 the unsigned integer of `size` bytes at byte `position` of every piece.

        Raises:
            FormatError: a piece is too short for it.
        """
        if (self.sizes < position + size).any():
            raise FormatError(f"a chunk buffer is shorter than its {position + size} byte header")
        raw = gather_integers(self.data, self.starts + position, size)
        if size == 8 and len(raw) and int(raw.max()) >> 62:
            raise FormatError("a length in a chunk buffer is out of range")
        numbers: Ints = raw.astype(np.int64)
        return numbers

    def concat(self) -> Bytes:
        """Return all pieces one after the other, without a copy if they already are."""
        count = len(self.starts)
        if count == 0:
            return self.data[:0]
        ends = self.starts + self.sizes
        if count == 1 or bool((ends[:-1] == self.starts[1:]).all()):
            return self.data[int(self.starts[0]) : int(ends[-1])]
        size = int(self.sizes[0])
        stride = int(self.starts[1] - self.starts[0])
        # Chunks of fixed-width values are all alike but for the last: one strided copy takes them.
        if (
            count > 4
            and stride > 0
            and size > 0
            and bool((self.sizes[:-1] == size).all())
            and bool((np.diff(self.starts) == stride).all())
        ):
            body = (count - 1) * size
            out = np.empty(body + int(self.sizes[-1]), dtype=np.uint8)
            first = int(self.starts[0])
            alike = np.ndarray((count - 1, size), np.uint8, self.data[first:], strides=(stride, 1))
            out[:body].reshape(count - 1, size)[:] = alike
            out[body:] = self.data[int(self.starts[-1]) : int(ends[-1])]
            return out
        total = int(self.sizes.sum())
        if count > 4 and total <= _FEW_BYTES:
            shift = np.repeat(self.starts - exclusive_sum(self.sizes)[:-1], self.sizes)
            return self.data[shift + np.arange(total)]
        if count > _MANY:
            return gather(self.data, self.starts, self.sizes)
        view = self.data.data
        pieces = zip(self.starts.tolist(), ends.tolist(), strict=True)
        return as_bytes(b"".join([view[start:end] for start, end in pieces]))

    def matrix(self, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return pieces of `size` bytes as the rows of a matrix of `dtype`; a view if they lie evenly."""
        count = len(self.starts)
        strides = np.diff(self.starts)
        if count > 1 and size > 0 and bool((strides == strides[0]).all()):
            first = int(self.starts[0])
            shape = (count, size // dtype.itemsize)
            step = (int(strides[0]), dtype.itemsize)
            rows: npt.NDArray[Any] = np.ndarray(shape, dtype, self.data[first:], strides=step)
            return rows
        packed: npt.NDArray[Any] = self.concat().view(dtype).reshape(count, size // dtype.itemsize)
        return packed

    def concat_bits(self, counts: Ints, what: str) -> Bytes:
        """Return one bitmap made of the first counts[i] bits of every piece.

        Raises:
            FormatError: a piece has fewer bits.
        """
        sizes = (counts + 7) // 8
        self.require(sizes, what)
        packed = self.part(0, sizes).concat()
        if bool((counts[:-1] % 8 == 0).all()):
            return packed
        bits = np.unpackbits(packed, bitorder="little")
        bit_starts = exclusive_sum(sizes * 8)[:-1]
        index = np.repeat(bit_starts - exclusive_sum(counts)[:-1], counts) + np.arange(int(counts.sum()))
        return pack_bits(bits[index])


@dataclass(frozen=True)
class Chunks:
    """The value buffers of all chunks of a page: buffers[b] is buffer b of every chunk; counts are values."""

    buffers: tuple[Ranges, ...]
    counts: Ints

    @property
    def total(self) -> int:
        """Number of values in all chunks."""
        return int(self.counts.sum())

    @classmethod
    def block(cls, data: Bytes, count: int) -> Chunks:
        """Return one chunk with one buffer."""
        return cls((Ranges.from_buffer(data),), np.array([count], dtype=np.int64))

    def require_single(self, what: str) -> Ranges:
        """Return the single buffer of codec `what`.

        Raises:
            FormatError: the chunks have another number of buffers.
        """
        if len(self.buffers) != 1:
            raise FormatError(f"{what} has one buffer per chunk, the page has {len(self.buffers)}")
        return self.buffers[0]
