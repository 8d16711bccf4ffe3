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
from spark_lance.file.v2_1.chunks import Bytes, Chunks, Ints, Ranges, exclusive_sum, gather_integers
from spark_lance.file.v2_1.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_block", "decode_mini_block", "pick_block", "pick_mini_block"]

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
    values, lengths = _split(chunks.only("rle"))
    return _expand(values, lengths, chunks.counts, size)


def pick_mini_block(rle: pb.Rle, values: Ranges, lengths: Ranges, counts: Ints, places: Ints) -> FixedWidth:
    """Return one value of each chunk, without expanding the runs.

    Args:
        rle: the encoding.
        values, lengths: the two buffers of the chunk of each wanted value; those of one chunk stand together.
        counts: values in that chunk.
        places: which of them is wanted, 0 <= place < count.

    Raises:
        FormatError: the bytes are damaged.
    """
    return _pick(values, lengths, counts, places, _value_size(rle))


def pick_block(rle: pb.Rle, pieces: Ranges, counts: Ints, places: Ints) -> FixedWidth:
    """Do as `pick_mini_block` for buffers that hold values and lengths together."""
    size = _value_size(rle)
    values, lengths = _split(pieces)
    return _pick(values, lengths, counts, places, size)


def _split(pieces: Ranges) -> tuple[Ranges, Ranges]:
    """Return the values and the lengths of buffers that hold both."""
    value_sizes = pieces.column(0, 8)
    pieces.require(value_sizes + _SIZE_PREFIX, "run values")
    values = pieces.part(_SIZE_PREFIX, value_sizes)
    return values, pieces.part(_SIZE_PREFIX + value_sizes, pieces.sizes - _SIZE_PREFIX - value_sizes)


def _checked(values: Ranges, lengths: Ranges, counts: Ints, size: int) -> tuple[Bytes, Ints, Ints]:
    """Return all run lengths, their running sums, and the number of runs before each chunk."""
    runs = lengths.sizes
    if bool((values.sizes != runs * size).any()):
        raise FormatError("a chunk has another number of runs than run lengths")
    run_lengths = lengths.concat()
    ends = exclusive_sum(run_lengths.astype(np.int64))
    bounds = exclusive_sum(runs)
    if not np.array_equal(np.diff(ends[bounds]), counts):
        raise FormatError("the runs of a chunk do not add up to its values")
    return run_lengths, ends, bounds


def _expand(values: Ranges, lengths: Ranges, counts: Ints, size: int) -> FixedWidth:
    run_lengths, _, _ = _checked(values, lengths, counts, size)
    expanded = np.repeat(values.concat().view(f"<u{size}"), run_lengths)
    return FixedWidth(size * 8, len(expanded), expanded.view(np.uint8))


def _pick(values: Ranges, lengths: Ranges, counts: Ints, places: Ints, size: int) -> FixedWidth:
    # The runs of a chunk are looked at once, however many of its values are wanted.
    is_first = np.diff(values.starts, prepend=-1) != 0
    own = np.cumsum(is_first) - 1
    some = values.select(is_first)
    _, ends, bounds = _checked(some, lengths.select(is_first), counts[is_first], size)
    run = np.searchsorted(ends[1:], ends[bounds[own]] + places, side="right")
    positions = some.starts[own] + (run - bounds[own]) * size
    return FixedWidth(size * 8, len(places), gather_integers(values.data, positions, size).view(np.uint8))
