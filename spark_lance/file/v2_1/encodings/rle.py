"""Run-length encoding.

    Rle { values: Flat(8, 16, 32 or 64), run_lengths: Flat(8) }

    mini-block chunk   buffer 0 = run values, buffer 1 = one u8 per run, its length
    block              u64 size of the values in bytes, the values, one u8 length per run

Longer runs than 255 take several entries. The lengths of a chunk add up to its number of values.
Example, block of u16 values 7 7 7 9:  04 00 00 00 00 00 00 00  07 00 09 00  03 01
(Lance file format, encodings: rle.)
"""

from __future__ import annotations

import numpy as np

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.blocks import FixedWidth
from spark_lance.file.v2_1.chunks import Chunks, Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_block", "decode_mini_block"]

_SIZE_PREFIX = 8


def _value_size(rle: pb.Rle) -> int:
    names = (compression_name(rle.values), compression_name(rle.run_lengths))
    if names != ("flat", "flat"):
        raise UnsupportedFormatError(f"runs encoded as {names[0]!r} and {names[1]!r} are not supported")
    if flat_bits(rle.run_lengths.flat) != 8:
        raise UnsupportedFormatError("run lengths of other than 8 bits are not supported")
    bits = flat_bits(rle.values.flat)
    if bits not in (8, 16, 32, 64):
        raise UnsupportedFormatError(f"runs of {bits} bit values are not supported")
    return bits // 8


def decode_mini_block(rle: pb.Rle, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode all chunks of a page."""
    if len(chunks.buffers) != 2:
        raise FormatError(
            f"run-length encoding has two buffers per chunk, the page has {len(chunks.buffers)}"
        )
    values, lengths = chunks.buffers
    return _expand(values, lengths, chunks.counts, _value_size(rle))


def decode_block(rle: pb.Rle, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode buffers that hold values and lengths together."""
    size = _value_size(rle)
    pieces = chunks.only("rle")
    value_sizes = pieces.column(0, 8)
    pieces.require(value_sizes + _SIZE_PREFIX, "run values")
    values = pieces.part(_SIZE_PREFIX, value_sizes)
    lengths = pieces.part(_SIZE_PREFIX + value_sizes, pieces.sizes - _SIZE_PREFIX - value_sizes)
    return _expand(values, lengths, chunks.counts, size)


def _expand(values: Ranges, lengths: Ranges, counts: Ints, size: int) -> FixedWidth:
    runs = lengths.sizes
    if bool((values.sizes != runs * size).any()):
        raise FormatError("a chunk has another number of runs than run lengths")
    run_lengths = lengths.concat()
    ends = exclusive_sum(run_lengths.astype(np.int64))
    bounds = exclusive_sum(runs)
    if not np.array_equal(np.diff(ends[bounds]), counts):
        raise FormatError("the runs of a chunk do not add up to its values")
    expanded = np.repeat(values.concat().view(f"<u{size}"), run_lengths)
    return FixedWidth(size * 8, len(expanded), expanded.view(np.uint8))
