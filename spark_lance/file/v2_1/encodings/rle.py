"""Run-length encoding.

    Rle { values: Flat(8, 16, 32 or 64), run_lengths: Flat(8), in 2.3 also Flat(16 or 32) }

    mini-block chunk   buffer 0 = run values, buffer 1 = one integer per run, its length
    block              u64 size of the values in bytes, the values, one length per run

In 2.3 values and lengths may have encodings of their own: bit-packed out of line, compressed, or Range,
Constant or Delta, which have no buffer if they have no bytes. If neither determines the number of runs, it
follows from the chunk's number of values.

Longer runs have several entries. The lengths of a chunk add up to its number of values.
Example, block of u16 values 7 7 7 9:  04 00 00 00 00 00 00 00  07 00 09 00  03 01
(Lance file format, encodings: rle.)

The writer splits runs at the end of their chunk:

    chunk    buffer 0: the value of every run, buffer 1: a u8 length for each
             (a run longer than 255 takes several entries)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import (
    Bytes,
    Chunks,
    Ranges,
    exclusive_sum,
    gather_integers,
    run_starts,
)
from spark_lance.file.v2_1.base.codec import Resolver, compression_name, has_buffer
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, flat
from spark_lance.proto import encodings21_pb2 as pb

_SIZE_PREFIX = 8
# Sums of more lengths would be ambiguous.
_MAX_RUNS = 1 << 24
# Values in a block of bit-packed lengths.
_PACKED_BLOCK = 1024


class _Widths(NamedTuple):
    """Bytes per run value and per run length."""

    value: int
    length: int


def _widths(rle: pb.Rle) -> _Widths:
    names = (compression_name(rle.values), compression_name(rle.run_lengths))
    if names != ("flat", "flat"):
        raise UnsupportedFormatError(f"runs encoded as {names[0]!r} and {names[1]!r} are not supported")
    length_bits = flat_bits(rle.run_lengths.flat)
    if length_bits not in (8, 16, 32):
        raise UnsupportedFormatError(f"run lengths of {length_bits} bits are not supported")
    bits = flat_bits(rle.values.flat)
    if bits not in (8, 16, 32, 64):
        raise UnsupportedFormatError(f"runs of {bits} bit values are not supported")
    return _Widths(bits // 8, length_bits // 8)


def decode_mini_block(rle: pb.Rle, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode all chunks of a page."""
    if not is_flat(rle):
        has_buffers = [has_buffer(part) for part in (rle.values, rle.run_lengths)]
        if len(chunks.buffers) != sum(has_buffers):
            raise FormatError(f"{len(chunks.buffers)} buffers per chunk do not fit run-length encoding")
        buffers = iter(chunks.buffers)
        parts = [next(buffers) if own else _empty_pieces(chunks.counts) for own in has_buffers]
        return _decode_nested(rle, parts[0], parts[1], chunks.counts, resolver)
    if len(chunks.buffers) != 2:
        raise FormatError(
            f"run-length encoding has two buffers per chunk, the page has {len(chunks.buffers)}"
        )
    values, lengths = chunks.buffers
    return _expand(values, lengths, chunks.counts, _widths(rle))


def decode_items(rle: pb.Rle, chunks: Chunks, items: FixedWidth) -> FixedWidth | None:
    """Return the dictionary items whose indices are flat runs, with one lookup per run instead of per value.

    Returns None if an index has no item, which is valid for nulls.
    """
    if len(chunks.buffers) != 2:
        return None
    widths = _widths(rle)
    values, lengths = chunks.buffers
    run_lengths, _, _ = _check_runs(values, lengths, chunks.counts, widths)
    indices = values.concat().view(f"<u{widths.value}")
    size = items.bits // 8
    words = items.data[: items.count * size].view(f"<u{size}")
    if not len(indices) or int(indices.max()) >= len(words):
        return None
    expanded = np.repeat(words[indices], run_lengths)
    return FixedWidth(items.bits, len(expanded), expanded.view(np.uint8))


def decode_block(rle: pb.Rle, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode buffers that contain values and lengths."""
    if not is_flat(rle):
        nothing = _empty_pieces(chunks.counts)
        values, lengths = _split(chunks.require_single("rle")) if chunks.buffers else (nothing, nothing)
        return _decode_nested(rle, values, lengths, chunks.counts, resolver)
    widths = _widths(rle)
    values, lengths = _split(chunks.require_single("rle"))
    return _expand(values, lengths, chunks.counts, widths)


def is_flat(rle: pb.Rle) -> bool:
    """Return whether both run values and run lengths are flat."""
    return all(compression_name(part) == "flat" for part in (rle.values, rle.run_lengths))


def _empty_pieces(counts: Ints) -> Ranges:
    """Return one empty piece per chunk."""
    places = np.zeros(len(counts), dtype=np.int64)
    return Ranges(np.zeros(0, dtype=np.uint8), places, places)


def _decode_nested(
    rle: pb.Rle, values: Ranges, lengths: Ranges, counts: Ints, resolver: Resolver
) -> FixedWidth:
    """Decode chunks whose run values or run lengths have an encoding of their own."""
    values_encoding, values = _decompress_inner(rle.values, values)
    lengths_encoding, lengths = _decompress_inner(rle.run_lengths, lengths)
    rle = pb.Rle(values=values_encoding, run_lengths=lengths_encoding)
    parts: list[FixedWidth] = []
    for number, count in enumerate(counts.tolist()):
        own = [part.select(slice(number, number + 1)).concat() for part in (values, lengths)]
        runs = _count_runs(rle, own, count, resolver)
        repeats = _block_of(rle.run_lengths, own[1], runs, resolver)
        words = _block_of(rle.values, own[0], runs, resolver)
        size = words.bits // 8
        times = repeats.data.view(f"<u{repeats.bits // 8}")[:runs].astype(np.int64)
        if bool((times < 0).any()) or bool((times > count).any()) or int(times.sum()) != count:
            raise FormatError("the runs of a chunk do not add up to its values")
        expanded = np.repeat(words.data.view(f"<u{size}")[:runs], times)
        parts.append(FixedWidth(words.bits, count, expanded.view(np.uint8)))
    if not parts or len({block.bits for block in parts}) > 1:
        raise FormatError("the runs of a page differ in width")
    return FixedWidth(parts[0].bits, int(counts.sum()), np.concatenate([block.data for block in parts]))


def _decompress_inner(
    encoding: pb.CompressiveEncoding, pieces: Ranges
) -> tuple[pb.CompressiveEncoding, Ranges]:
    """Return the encoding inside a general compression, and the decompressed pieces."""
    if compression_name(encoding) != "general":
        return encoding, pieces
    return encoding.general.values, decompress(encoding.general.compression, pieces)


def _block_of(encoding: pb.CompressiveEncoding, data: Bytes, count: int, resolver: Resolver) -> FixedWidth:
    counts = np.array([count], dtype=np.int64)
    chunks = Chunks.block(data, count) if has_buffer(encoding) else Chunks((), counts)
    block = resolver.block(encoding, chunks)
    if not isinstance(block, FixedWidth) or block.bits not in (8, 16, 32, 64):
        raise FormatError("runs must be numbers")
    return block


def _count_runs(rle: pb.Rle, parts: Sequence[Bytes], count: int, resolver: Resolver) -> int:
    """Return the number of runs of `count` values, from the bytes of flat parts or the sum of the lengths."""
    for encoding, data in ((rle.run_lengths, parts[1]), (rle.values, parts[0])):
        if compression_name(encoding) == "flat":
            return len(data) * 8 // max(8, flat_bits(encoding.flat))
    most = count
    if has_buffer(rle.run_lengths):
        width = rle.run_lengths.out_of_line_bitpacking.values.flat.bits_per_value
        most = len(parts[1]) * 8 // max(1, width)
        if width == 0 or len(parts[1]) * 8 % (_PACKED_BLOCK * width):
            raise UnsupportedFormatError("runs of a number that is not known are not supported")
    if most > _MAX_RUNS:
        raise UnsupportedFormatError(f"{most} runs of a number that is not known are not supported")
    lengths = _block_of(rle.run_lengths, parts[1], most, resolver)
    ends = np.cumsum(lengths.data.view(f"<u{lengths.bits // 8}")[:most], dtype=np.float64)
    return int(np.searchsorted(ends, count, side="left")) + 1 if count else 0


def pick_mini_block(rle: pb.Rle, values: Ranges, lengths: Ranges, counts: Ints, places: Ints) -> FixedWidth:
    """Return one value of each chunk, without expanding the runs.

    Args:
        rle: the encoding.
        values, lengths: for each requested value, the two buffers of its chunk. Values of one chunk are
            adjacent.
        counts: number of values in that chunk.
        places: position of the value in that chunk, 0 <= place < count.

    Raises:
        FormatError: the bytes are damaged.
    """
    return _pick(values, lengths, counts, places, _widths(rle))


def pick_block(rle: pb.Rle, pieces: Ranges, counts: Ints, places: Ints) -> FixedWidth:
    """Return one value of each chunk, for buffers that contain values and lengths. See `pick_mini_block`."""
    widths = _widths(rle)
    values, lengths = _split(pieces)
    return _pick(values, lengths, counts, places, widths)


class Runs(NamedTuple):
    """The runs of several chunks.

    Attributes:
        values: value of each run.
        ends: cumulative sums of the lengths, starting at 0.
        bounds: number of runs before each chunk, and the total.
    """

    values: npt.NDArray[Any]
    ends: Ints
    bounds: Ints

    def at(self, chunks: Ints, places: Ints) -> npt.NDArray[Any]:
        """Return the values at existing positions of chunks."""
        return self.values[np.searchsorted(self.ends[1:], self.ends[self.bounds[chunks]] + places, "right")]


def block_runs(rle: pb.Rle, pieces: Ranges, counts: Ints) -> Runs:
    """Return the runs of buffers that contain flat values and flat lengths.

    Raises:
        FormatError: the bytes are damaged.
    """
    widths = _widths(rle)
    values, lengths = _split(pieces)
    _, ends, bounds = _check_runs(values, lengths, counts, widths)
    return Runs(values.concat().view(f"<u{widths.value}"), ends, bounds)


def _split(pieces: Ranges) -> tuple[Ranges, Ranges]:
    """Return the values and the lengths of buffers that contain both."""
    value_sizes = pieces.column(0, 8)
    pieces.require(value_sizes + _SIZE_PREFIX, "run values")
    values = pieces.part(_SIZE_PREFIX, value_sizes)
    return values, pieces.part(_SIZE_PREFIX + value_sizes, pieces.sizes - _SIZE_PREFIX - value_sizes)


def _check_runs(
    values: Ranges, lengths: Ranges, counts: Ints, widths: _Widths
) -> tuple[npt.NDArray[Any], Ints, Ints]:
    """Check the runs. Return all lengths, their cumulative sums, and the number of runs before each chunk."""
    runs, rest = np.divmod(lengths.sizes, widths.length)
    if bool((values.sizes != runs * widths.value).any()) or bool(rest.any()):
        raise FormatError("a chunk has another number of runs than run lengths")
    run_lengths = lengths.concat().view(f"<u{widths.length}")
    ends = exclusive_sum(run_lengths.astype(np.int64))
    bounds = exclusive_sum(runs)
    if bool((ends[bounds[1:]] - ends[bounds[:-1]] != counts).any()):
        raise FormatError("the runs of a chunk do not add up to its values")
    return run_lengths, ends, bounds


def _expand(values: Ranges, lengths: Ranges, counts: Ints, widths: _Widths) -> FixedWidth:
    run_lengths, _, _ = _check_runs(values, lengths, counts, widths)
    expanded = np.repeat(values.concat().view(f"<u{widths.value}"), run_lengths)
    return FixedWidth(widths.value * 8, len(expanded), expanded.view(np.uint8))


def _pick(values: Ranges, lengths: Ranges, counts: Ints, places: Ints, widths: _Widths) -> FixedWidth:
    # The runs of a chunk are processed once for all of its requested values.
    is_first = run_starts(values.starts)
    own = np.cumsum(is_first) - 1
    some = values.select(is_first)
    _, ends, bounds = _check_runs(some, lengths.select(is_first), counts[is_first], widths)
    run = np.searchsorted(ends[1:], ends[bounds[own]] + places, side="right")
    positions = some.starts[own] + (run - bounds[own]) * widths.value
    return FixedWidth(
        widths.value * 8, len(places), gather_integers(values.data, positions, widths.value).view(np.uint8)
    )


_LONGEST = 255
_Words = npt.NDArray[Any]


def find_runs(words: _Words, most: float) -> Ints | None:
    """Return the starts of the runs of equal words, including 0; None if there are `most` runs or more.

    There must be at least one word.
    """
    changed = words[1:] != words[:-1]
    if np.count_nonzero(changed) + 1 >= most:
        return None
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


def describe_runs(bits: int) -> pb.CompressiveEncoding:
    """Return the description of runs of words of `bits` bits."""
    return pb.CompressiveEncoding(rle=pb.Rle(values=flat(bits), run_lengths=flat(8)))


@dataclass(frozen=True)
class RunChunks:
    """Unsigned words (of 8, 16, 32 or 64 bits) as runs."""

    words: _Words
    starts: Ints
    entries: Ints

    @classmethod
    def of(cls, words: _Words, starts: Ints) -> RunChunks:
        """Return one or more words as runs with the given starts."""
        entries = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(-(-np.diff(starts, append=len(words)) // _LONGEST), out=entries[1:])
        return cls(words, starts, entries)

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.words)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, if no run is split at a chunk's end."""
        return int(self.entries[-1]) * (self.words.dtype.itemsize + 1)

    @property
    def description(self) -> pb.CompressiveEncoding:
        """Rle with Flat values."""
        return describe_runs(self.words.dtype.itemsize * 8)

    def cost(self, positions: Ints) -> Ints:
        """Return the approximate bytes of the runs that start before each position."""
        whole: Ints = self.entries[np.searchsorted(self.starts, positions)]
        return whole * (self.words.dtype.itemsize + 1)

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return the run values and the run lengths."""
        # Two sorted sequences, which a stable sort merges. A run may start at a chunk's start.
        starts = np.sort(np.concatenate([self.starts, bounds[:-1]]), kind="stable")
        starts = starts[np.append(True, starts[1:] != starts[:-1])]
        lengths = np.diff(starts, append=len(self.words))
        entries = -(-lengths // _LONGEST)
        ends = np.cumsum(entries)
        counts = np.full(int(ends[-1]), _LONGEST, np.uint8)
        counts[ends - 1] = lengths - (entries - 1) * _LONGEST
        values = np.repeat(self.words[starts], entries)
        cuts = np.append(0, ends)[np.searchsorted(starts, bounds)]
        return [
            ChunkBuffer(values.view(np.uint8), cuts * self.words.dtype.itemsize),
            ChunkBuffer(counts, cuts),
        ]
