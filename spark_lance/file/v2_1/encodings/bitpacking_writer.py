"""Writes InlineBitpacking: one block of 1024 words per chunk, see bitpacking.py for the bytes.

    chunk    one T-bit word with the width W, then 1024 * W / T words; fewer than 1024 values are filled up
             with zeros

(Lance file format, encodings: inline bit packing.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.encodings.bitpacking import BLOCK, GROUPS
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, Indices
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["PackedChunks", "block_widths", "pack"]

# Blocks per step: scratch arrays of a step stay in the cache while numpy's cost per call is spread thin.
_STEP = 128
# Different widths in one page cost the reader a step per width: they must save this share of the bytes.
_WORTH_OWN_WIDTHS = 0.02
_POWERS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))

_Words = npt.NDArray[Any]


def block_widths(words: _Words) -> Indices:
    """Return how many bits each block of 1024 unsigned words needs; the last block may be shorter."""
    whole = len(words) // BLOCK * BLOCK
    tops = words[:whole].reshape(-1, BLOCK).max(axis=1, initial=0)
    if whole < len(words):
        tops = np.append(tops, words[whole:].max())
    widths: Indices = np.searchsorted(_POWERS, tops.astype(np.uint64), side="right").astype(np.int64)
    return widths


def pack(blocks: _Words, width: int) -> _Words:
    """Pack whole blocks.

    Args:
        blocks: unsigned words of T bits below 2**width, shape (blocks, 1024).
        width: bits per value, 0..T.

    Returns:
        Words of the same type, shape (blocks, 1024 * width / T).
    """
    bits = blocks.dtype.itemsize * 8
    lanes = BLOCK // bits
    out = np.empty((len(blocks), width * lanes), blocks.dtype)
    if width == 0:
        return out
    for start in range(0, len(blocks), _STEP):
        part = blocks[start : start + _STEP]
        count = len(part)
        # [place of row div 8][row mod 8][block x lane]: each step below runs over one long contiguous vector.
        rows = part.reshape(count, 8, bits // 8, lanes).transpose(2, 1, 0, 3)
        streams = _pack_rows(np.ascontiguousarray(rows).reshape(bits // 8, 8, count * lanes), width, bits)
        target = out[start : start + _STEP].reshape(count, width, lanes)
        target[:] = streams.reshape(width, count, lanes).transpose(1, 0, 2)
    return out


def _pack_rows(rows: _Words, width: int, bits: int) -> _Words:
    """Return streams[word, block x lane] of rows[place of row div 8, row mod 8, block x lane]."""
    streams = np.empty((width, rows.shape[2]), rows.dtype)
    shifted = np.empty(rows.shape[2], rows.dtype)
    for row in range(bits):
        values = rows[GROUPS[bits][row // 8], row % 8]
        word, shift = divmod(row * width, bits)
        if shift == 0:
            streams[word] = values
            continue
        np.left_shift(values, rows.dtype.type(shift), out=shifted)
        streams[word] |= shifted
        if shift + width > bits:
            np.right_shift(values, rows.dtype.type(bits - shift), out=streams[word + 1])
    return streams


@dataclass(frozen=True)
class PackedChunks:
    """Unsigned words (of 8, 16, 32 or 64 bits) in chunks of at most 1024."""

    words: _Words
    widths: Indices

    @classmethod
    def of(cls, words: _Words) -> PackedChunks:
        """Measure the words."""
        return cls(words, block_widths(words))

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.words)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks of 1024 slots."""
        return int((self.widths * (BLOCK // 8) + self.words.dtype.itemsize).sum())

    @property
    def description(self) -> pb.CompressiveEncoding:
        """InlineBitpacking."""
        bits = self.words.dtype.itemsize * 8
        return pb.CompressiveEncoding(inline_bitpacking=pb.InlineBitpacking(uncompressed_bits_per_value=bits))

    def cost(self, positions: Indices) -> Indices:
        """Return the most bytes that the slots before each position can take."""
        return positions * self.words.dtype.itemsize + self.words.dtype.itemsize

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return one buffer per chunk; no two bounds are further apart than 1024."""
        blocks, widths = self._blocks(bounds)
        size = self.words.dtype.itemsize
        widest = int(widths.max())
        if widths.sum() >= (1 - _WORTH_OWN_WIDTHS) * widest * len(widths):
            widths = np.full(len(widths), widest)
        lanes = BLOCK // (size * 8)
        starts = np.zeros(len(bounds), np.int64)
        np.cumsum(widths * lanes + 1, out=starts[1:])
        out = np.empty(int(starts[-1]), self.words.dtype)
        edges = np.flatnonzero(np.diff(widths)) + 1
        packed = {int(width): _Packed(blocks, widths == width, int(width)) for width in np.unique(widths)}
        for first, stop in pairwise([0, *edges.tolist(), len(widths)]):
            width = int(widths[first])
            rows = out[starts[first] : starts[stop]].reshape(stop - first, width * lanes + 1)
            rows[:, 0] = width
            rows[:, 1:] = packed[width].take(stop - first)
        return [ChunkBuffer(out.view(np.uint8), starts * size)]

    def _blocks(self, bounds: Indices) -> tuple[_Words, Indices]:
        """Return the chunks filled up to blocks, and the bits that each needs."""
        count = len(bounds) - 1
        whole = count - 1 if len(self.words) % BLOCK else count
        if (bounds[:-1] == np.arange(count) * BLOCK).all():
            if whole == count:
                return self.words.reshape(count, BLOCK), self.widths
            blocks = np.zeros((count, BLOCK), self.words.dtype)
            blocks.reshape(-1)[: len(self.words)] = self.words
            return blocks, self.widths
        blocks = np.zeros((count, BLOCK), self.words.dtype)
        for c, (start, stop) in enumerate(pairwise(bounds.tolist())):
            blocks[c, : stop - start] = self.words[start:stop]
        return blocks, block_widths(blocks.reshape(-1))


class _Packed:
    """The blocks of one width, packed together and handed out in order."""

    def __init__(self, blocks: _Words, here: npt.NDArray[np.bool_], width: int) -> None:
        self._rows = pack(blocks if here.all() else blocks[here], width)
        self._at = 0

    def take(self, count: int) -> _Words:
        """Return the next rows."""
        self._at += count
        return self._rows[self._at - count : self._at]
