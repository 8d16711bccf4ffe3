"""Flat: contiguous values of a fixed number of bits.

    Flat { bits_per_value }
    1 bit:   bitmap, first value in the lowest bit; every chunk starts at a byte
    8k bits: k little-endian bytes per value (16, 24, 32, 64, 80, 128, 256 ... occur)

Mini-block chunks and blocks: the buffer holds the values. Full-zip: every value is bits / 8 bytes.
(Lance file format, encodings: flat.)
"""

from __future__ import annotations

import numpy as np

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

_MAX_BITS = 1 << 31


def flat_bits(flat: pb.Flat) -> int:
    """Return the number of bits per value: 1 or a multiple of 8.

    Raises:
        FormatError: the number of bits is invalid.
        UnsupportedFormatError: the values are compressed as a buffer, which no known writer does.
    """
    if flat.HasField("data"):
        raise UnsupportedFormatError("flat values with buffer compression are not supported")
    bits = flat.bits_per_value
    if bits != 1 and (bits % 8 or bits > _MAX_BITS):
        raise FormatError(f"flat values of {bits} bits")
    return bits


def decode(flat: pb.Flat, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode mini-block chunks or a block: one buffer per chunk, of at least count * bits bits."""
    bits = flat_bits(flat)
    values = chunks.require_single("flat")
    if bits == 1:
        return FixedWidth(1, chunks.total, values.concat_bits(chunks.counts, "flat bits"))
    # Python integers, because a damaged width times a damaged count may exceed 64 bits.
    if int(chunks.counts.max(initial=0)) * (bits // 8) > len(values.data):
        raise FormatError(f"flat values of {bits} bits do not fit the page")
    sizes = chunks.counts * (bits // 8)
    values.require(sizes, "flat values")
    return FixedWidth(bits, chunks.total, values.part(0, sizes).concat())


def decode_zipped(flat: pb.Flat, rows: Bytes, resolver: Resolver) -> FixedWidth:
    """Decode full-zip values: `rows` has shape (values, bytes per value)."""
    bits = flat_bits(flat)
    if bits % 8 or rows.shape[1] * 8 != bits:
        raise FormatError(f"flat values of {bits} bits are zipped as {rows.shape[1]} bytes")
    return FixedWidth(bits, len(rows), np.ascontiguousarray(rows).reshape(-1))
