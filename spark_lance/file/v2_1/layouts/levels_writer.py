"""Repetition and definition levels as the chunks of a mini-block page store them.

    Flat(16)                   raw u16
    OutOfLineBitpacking(16)    blocks of 1024 levels of W bits: 64 * W words of 16 bits, without a header.
                               A tail of less than 1024 levels is stored as raw words if that takes no
                               more room than a block, else as a block filled up with zeros.
    Rle(16), from 2.2 on       u64 bytes of the run values, the values (u16), a u8 length per run

In a block, word j of lane l (0..63) is word j * 64 + l. Lane l is a stream of 16 levels, W bits each, least
significant bit first. Level r of lane l is level (r mod 8) * 128 + (r div 8) * 64 + l of the block.
(Lance file format 2.1, out-of-line bit-packing; 2.2, rle.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, flat
from spark_lance.file.v2_1.encodings.rle import RunChunks, describe_runs, find_runs
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["LevelBuffers", "LevelChunks", "pack_levels"]

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

_WORD = 16
_BLOCK = 1024
_LANES = _BLOCK // _WORD
# Runs must save this much, since the reader unpacks blocks faster.
_WORTH_RUNS = 0.75
_RUN_BYTES = 3
# A chunk costs runs its size word, and the run that goes on into the next chunk.
_CHUNK_RUNS = 4
_MAX_BYTES = 2**16 - 1


@dataclass(frozen=True)
class LevelBuffers:
    """One level buffer per chunk, and what the page says about them."""

    data: ChunkBuffer
    description: pb.CompressiveEncoding


@dataclass(frozen=True)
class LevelChunks:
    """The levels of a page and how they are packed; a width of 16 bits stands for Flat.

    With `runs_allowed` levels become runs where that is smaller by some margin.
    """

    rep: U16 | None
    rep_bits: int
    definition: U16 | None
    def_bits: int
    runs_allowed: bool

    @classmethod
    def of(cls, leaf: Leaf, version: FileVersion) -> LevelChunks:
        """Choose the widths: levels that take no more room than a block stay Flat."""
        widths = [
            _WORD if leaf.num_levels <= bits * _LANES else bits
            for bits in (leaf.lists.bit_length(), leaf.max_definition.bit_length())
        ]
        runs_allowed = version is not FileVersion.V2_1
        return cls(leaf.rep, widths[0], leaf.definition, widths[1], runs_allowed)

    @property
    def bits_per_level(self) -> int:
        """Bits that one level takes in a chunk at most, besides incomplete blocks."""
        return (0 if self.rep is None else self.rep_bits) + (0 if self.definition is None else self.def_bits)

    def cut(self, bounds: Ints) -> tuple[LevelBuffers | None, LevelBuffers | None]:
        """Return the rep and def buffers of chunks with levels `bounds[c]:bounds[c + 1]`."""
        return self._cut(self.rep, self.rep_bits, bounds), self._cut(self.definition, self.def_bits, bounds)

    def _cut(self, levels: U16 | None, bits: int, bounds: Ints) -> LevelBuffers | None:
        if levels is None:
            return None
        if self.runs_allowed:
            most = _WORTH_RUNS * len(levels) * bits / (8 * _RUN_BYTES)
            starts = find_runs(levels, most)
            # Runs are cut at the bounds of chunks; each chunk has a size word, too.
            runs = None if starts is None else RunChunks.of(levels, starts)
            if runs is not None and runs.nbytes // _RUN_BYTES + len(bounds) * _CHUNK_RUNS < most:
                data = _level_runs(runs, bounds)
                if np.diff(data.starts).max() <= _MAX_BYTES:
                    return LevelBuffers(data, describe_runs(_WORD))
        if bits == _WORD:
            return LevelBuffers(
                ChunkBuffer(np.ascontiguousarray(levels).view(np.uint8), bounds * 2), flat(_WORD)
            )
        description = pb.CompressiveEncoding(
            out_of_line_bitpacking=pb.OutOfLineBitpacking(
                uncompressed_bits_per_value=_WORD, values=flat(bits)
            )
        )
        return LevelBuffers(pack_levels(levels, bits, bounds), description)


def _level_runs(runs: RunChunks, bounds: Ints) -> ChunkBuffer:
    """Return the runs of each chunk in one buffer: size of the values, values, lengths."""
    values, lengths = runs.chunk(bounds)
    parts: list[bytes] = []
    value_cuts, length_cuts = pairwise(values.starts.tolist()), pairwise(lengths.starts.tolist())
    for (a, b), (c, d) in zip(value_cuts, length_cuts, strict=True):
        parts += [(b - a).to_bytes(8, "little"), values.data[a:b].tobytes(), lengths.data[c:d].tobytes()]
    starts = values.starts + lengths.starts + 8 * np.arange(len(bounds))
    return ChunkBuffer(np.frombuffer(b"".join(parts), np.uint8), starts)


def pack_levels(levels: U16, bits: int, bounds: Ints) -> ChunkBuffer:
    """Return the bit-packed levels, all below 2**bits, of chunks with levels `bounds[c]:bounds[c + 1]`."""
    counts = np.diff(bounds)
    tails = counts % _BLOCK
    raw = np.where(tails <= bits * _LANES, tails, 0)
    blocks = counts // _BLOCK + (tails > raw)
    words = blocks * (bits * _LANES) + raw
    starts = np.zeros(len(bounds), np.int64)
    np.cumsum(words, out=starts[1:])
    packed = _pack(_blocks(levels, bounds, counts - raw, blocks), bits).reshape(-1)
    if not raw.any():
        return ChunkBuffer(packed.view(np.uint8), starts * 2)
    out = np.empty(int(starts[-1]), np.uint16)
    first = 0
    chunks = zip((words - raw).tolist(), raw.tolist(), starts[:-1].tolist(), bounds[1:].tolist(), strict=True)
    for packed_words, raw_words, at, end in chunks:
        out[at : at + packed_words] = packed[first : first + packed_words]
        out[at + packed_words : at + packed_words + raw_words] = levels[end - raw_words : end]
        first += packed_words
    return ChunkBuffer(out.view(np.uint8), starts * 2)


def _blocks(levels: U16, bounds: Ints, packed: Ints, blocks: Ints) -> U16:
    """Return the first `packed` levels of each chunk as rows of 1024, each chunk filled up with zeros."""
    count = int(blocks.sum())
    starts = (np.cumsum(blocks) - blocks) * _BLOCK
    whole = count * _BLOCK
    if len(levels) >= whole and (bounds[:-1] == starts).all():
        return levels[:whole].reshape(count, _BLOCK)
    out = np.zeros(whole, np.uint16)
    for at, begin, size in zip(starts.tolist(), bounds[:-1].tolist(), packed.tolist(), strict=True):
        out[at : at + size] = levels[begin : begin + size]
    return out.reshape(count, _BLOCK)


def _pack(blocks: U16, bits: int) -> U16:
    """Pack rows of 1024 levels into rows of 64 * bits words."""
    lanes = blocks.reshape(len(blocks), 8, 2, _LANES)
    out = np.zeros((len(blocks), bits, _LANES), np.uint16)
    for row in range(_WORD):
        level = lanes[:, row % 8, row // 8]
        word, shift = divmod(row * bits, _WORD)
        out[:, word] |= level << shift
        if shift + bits > _WORD:
            out[:, word + 1] |= level >> (_WORD - shift)
    return out.reshape(len(blocks), bits * _LANES)
