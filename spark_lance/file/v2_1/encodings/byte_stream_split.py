"""Byte-stream split: the first bytes of all values, then all second bytes, and so on.

    ByteStreamSplit { values: Flat(32 or 64) }

Within a chunk of n values byte k of value i is at k * n + i. Used inside General, because similar bytes
compress better. (Lance file format, encodings: byte-stream split.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks
from spark_lance.file.v2_1.base.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, flat
from spark_lance.proto import encodings21_pb2 as pb

# Small enough that the output of a step stays in the CPU cache.
_STEP_BYTES = 256 * 1024


def split_width(split: pb.ByteStreamSplit) -> int | None:
    """Return the bytes per value; None if the values cannot be split."""
    bits = flat_bits(split.values.flat) if compression_name(split.values) == "flat" else 0
    return bits // 8 if bits in (32, 64) else None


def decode_mini_block(split: pb.ByteStreamSplit, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode all chunks of a page."""
    width = split_width(split)
    if width is None:
        name, bits = compression_name(split.values), split.values.flat.bits_per_value
        raise UnsupportedFormatError(f"byte-stream split of {bits} bit {name!r} values is not supported")
    pieces = chunks.require_single("byte_stream_split")
    counts = chunks.counts
    pieces.require(counts * width, "byte-stream split values")
    planes = pieces.part(0, counts * width).concat()
    out = np.empty(chunks.total * width, dtype=np.uint8)
    # Usually all chunks but the last have the same length, so they are joined at once.
    alike = len(counts) - 1 if bool((counts[:-1] == counts[0]).all()) else 0
    at = 0
    if alike > 0:
        size = int(counts[0])
        at = alike * size * width
        _join(planes[:at].reshape(alike, width, size), out[:at].reshape(alike, size, width))
    for count in counts[alike:].tolist():
        stop = at + count * width
        _join(planes[at:stop].reshape(1, width, count), out[at:stop].reshape(1, count, width))
        at = stop
    return FixedWidth(width * 8, chunks.total, out)


def _join(planes: Bytes, out: Bytes) -> None:
    """Set out[chunk, value, place] = planes[chunk, place, value]."""
    step = max(1, _STEP_BYTES // max(1, planes.shape[1] * planes.shape[2]))
    for start in range(0, len(planes), step):
        for place in range(planes.shape[1]):
            out[start : start + step, :, place] = planes[start : start + step, place]


@dataclass(frozen=True)
class SplitChunks:
    """Words of 32 or 64 bits, split by byte significance."""

    words: npt.NDArray[Any]

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.words)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.words.nbytes

    @property
    def description(self) -> pb.CompressiveEncoding:
        """ByteStreamSplit around Flat."""
        values = flat(self.words.dtype.itemsize * 8)
        return pb.CompressiveEncoding(byte_stream_split=pb.ByteStreamSplit(values=values))

    def cost(self, positions: Ints) -> Ints:
        """Return the bytes of the slots before each position."""
        return positions * self.words.dtype.itemsize

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return one buffer per chunk."""
        width = self.words.dtype.itemsize
        rows = self.words.view(np.uint8).reshape(-1, width)
        out = np.empty(self.words.nbytes, np.uint8)
        sizes = np.diff(bounds)
        # Usually all chunks but the last have the same length, so they are transposed at once.
        alike = len(sizes) - 1 if (sizes[:-1] == sizes[0]).all() else 0
        if alike:
            end, size = int(bounds[alike]), int(sizes[0])
            target = out[: end * width].reshape(alike, width, size)
            target[:] = rows[:end].reshape(alike, size, width).transpose(0, 2, 1)
        for start, stop in pairwise(bounds[alike:].tolist()):
            out[start * width : stop * width].reshape(width, stop - start)[:] = rows[start:stop].T
        return [ChunkBuffer(out, bounds * width)]
