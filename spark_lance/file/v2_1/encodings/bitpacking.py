"""Bit packing in blocks of 1024 values ("FastLanes" order): inline and out of line.

A block of 1024 words of T bits (T = 8, 16, 32, 64) packed to W bits has L = 1024 / T lanes. Lane l is a bit
stream of its own: row r (0..T-1) has bits r*W .. r*W+W-1, lowest bit first, of the lane's W words; word j of
lane l is packed[j * L + l]. The value at (row r, lane l) is number

    order[r div 8] * 16 + (r mod 8) * 128 + l        order = 0 4 2 6 1 5 3 7

    InlineBitpacking { uncompressed_bits_per_value = T }
        buffer = one T-bit word with W, then 1024 * W / T words. One chunk is one block of up to 1024 values,
        padded to 1024. W = 0: no words, all values are 0. W = T is legal.
    OutOfLineBitpacking { uncompressed_bits_per_value = T, values = Flat(W) }     (levels: T = 16)
        buffer = blocks of 1024 * W / T words without a header. The last n mod 1024 values are plain T-bit
        words if the buffer has exactly that
            size, else one more padded block.

The writer uses only InlineBitpacking, with one block per chunk. Shorter blocks are padded with zeros.
(Lance file format, encodings: inline and out-of-line bit packing.)
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.buffers import as_bytes
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.kernels.accelerate import Kernel, compiled
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks, Ranges, exclusive_sum, gather
from spark_lance.file.v2_1.base.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer
from spark_lance.proto import encodings21_pb2 as pb

BLOCK = 1024
# Blocks per step: scratch arrays of a step stay in the cache while numpy's cost per call is spread thin.
_STEP = 512
# Above this many runs of equally wide blocks, blocks are grouped by width instead.
_MANY_RUNS = 32
# Maximum values of zero bits in a chunk.
_MAX_EMPTY = (1 << 16) - 1
# Maximum bytes of scratch memory for unpacked blocks that a thread keeps.
_MOST_HELD = 8 << 20
# Below this many blocks the number of steps costs more than the memory traffic.
_FEW = 128
_DTYPES: dict[int, np.dtype[Any]] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}
# Position of each of the T / 8 groups of 8 rows. The permutation is its own inverse.
GROUPS = {8: [0], 16: [0, 1], 32: [0, 2, 1, 3], 64: [0, 4, 2, 6, 1, 5, 3, 7]}

_Words = npt.NDArray[Any]


def unpack(words: _Words, width: int, out: _Words | None = None) -> _Words:
    """Unpack whole blocks.

    Args:
        words: unsigned words of T bits, shape (blocks, 1024 * width / T).
        width: bits per value, 0..T.
        out: output array of the same dtype, shape (blocks, 1024); None allocates one.

    Returns:
        The values.
    """
    bits = words.dtype.itemsize * 8
    lanes = BLOCK // bits
    count = len(words)
    # One row of all lanes, which numpy moves as one item.
    row = np.dtype((np.void, lanes * words.dtype.itemsize))
    if out is None:
        out = np.empty((count, BLOCK), dtype=words.dtype)
    if width == 0:
        out[:] = 0
        return out
    kernel = compiled("unpack", out.nbytes) if words.flags.c_contiguous and out.flags.c_contiguous else None
    if kernel is not None:
        size = words.shape[1] * words.dtype.itemsize
        starts = np.arange(count, dtype=np.int64) * size
        _unpack_compiled(kernel, as_bytes(words), starts, np.full(count, width, dtype=np.int64), out)
        return out
    for start in range(0, count, _STEP):
        part = words[start : start + _STEP]
        blocks = len(part)
        # [word][block x lane]: each step below processes one long contiguous vector.
        streams = _SCRATCH.take("streams", (width, blocks * lanes), words.dtype)
        streams.view(row)[:] = part.view(row).T
        rows = _unpack_rows(streams, width, bits, few=blocks < _FEW)
        target = out[start : start + _STEP].view(row).reshape(blocks, 8, bits // 8)
        for place, group in enumerate(GROUPS[bits]):
            target[:, :, place] = rows[8 * group : 8 * group + 8].view(row).T
    return out


class _Scratch(threading.local):
    """Scratch memory that a thread reuses, because allocating it costs more than the computation."""

    def __init__(self) -> None:
        self._buffers: dict[str, Bytes] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Words:
        """Return an uninitialised array. It is reused by the next call with the same `name`."""
        size = math.prod(shape) * dtype.itemsize
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = np.empty(size, dtype=np.uint8)
        array: _Words = self._buffers[name][:size].view(dtype).reshape(shape)
        return array


_SCRATCH = _Scratch()


def _unpack_compiled(kernel: Kernel, data: Bytes, starts: Ints, widths: Ints, out: _Words) -> None:
    """Unpack the blocks that start at these bytes of `data`. Each block has its own width."""
    words = out.reshape(-1).view(np.uint64)
    if kernel(data, starts, widths, out.dtype.itemsize * 8, words):
        raise FormatError("bit-packed blocks leave their page")


def _unpack_rows(streams: _Words, width: int, bits: int, few: bool) -> _Words:
    """Return rows[row, block x lane] of the packed streams[word, block x lane]."""
    dtype = streams.dtype
    mask = dtype.type((1 << width) - 1)
    size = streams.shape[1]
    # Words and values align every `period` rows, and all periods need the same operations. Processing them
    # together takes fewer, longer steps, but over strided memory, so it is faster only for few blocks.
    repeats = gcd(width, bits) if few or bits % width == 0 else 1
    period = bits // repeats
    packed = streams.reshape(repeats, width // repeats, size)
    rows = _SCRATCH.take("rows", (repeats, period, size), dtype)
    if period * width == bits:
        # Here no value spans two words.
        np.right_shift(packed, np.arange(0, bits, width, dtype=dtype)[:, None], out=rows)
        rows &= mask
        return rows.reshape(bits, size)
    carry = _SCRATCH.take("carry", (repeats, size), dtype)
    for row in range(period):
        target = rows[:, row]
        word, shift = divmod(row * width, bits)
        if shift == 0:
            np.bitwise_and(packed[:, word], mask, out=target)
            continue
        np.right_shift(packed[:, word], dtype.type(shift), out=target)
        spill = shift + width - bits
        if spill > 0:
            np.left_shift(packed[:, word + 1], dtype.type(bits - shift), out=carry)
            np.bitwise_or(target, carry, out=target)
        if spill != 0:
            np.bitwise_and(target, mask, out=target)
    return rows.reshape(bits, size)


def _word_type(bits: int) -> np.dtype[Any]:
    if bits not in _DTYPES:
        raise UnsupportedFormatError(f"bit packing of {bits} bit values is not supported")
    return _DTYPES[bits]


def decode_inline(packing: pb.InlineBitpacking, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode chunks of at most 1024 values each."""
    if packing.HasField("values"):
        raise UnsupportedFormatError("bit packing with buffer compression is not supported")
    bits = packing.uncompressed_bits_per_value
    dtype = _word_type(bits)
    pieces = chunks.require_single("inline_bitpacking")
    counts = chunks.counts
    if bool((counts > BLOCK).any()):
        raise FormatError(f"a bit-packed chunk holds at most {BLOCK} values, not {int(counts.max())}")
    widths = pieces.column(0, dtype.itemsize)
    if bool((widths > bits).any()):
        raise FormatError(f"values of {bits} bits packed to {int(widths.max())} bits")
    sizes = widths * (BLOCK // 8)
    pieces.require(sizes + dtype.itemsize, "bit-packed values")
    packed = pieces.part(dtype.itemsize, sizes)
    padded = bool((counts[:-1] != BLOCK).any())
    shape = len(counts), BLOCK
    # A result that is copied again can use scratch memory.
    is_small = padded and len(counts) * BLOCK * dtype.itemsize <= _MOST_HELD
    values = _SCRATCH.take("blocks", shape, dtype) if is_small else np.empty(shape, dtype)
    _unpack_by_width(packed, widths, values)
    if padded:
        values = _without_padding(values, counts)
    return FixedWidth(bits, chunks.total, values.reshape(-1)[: chunks.total].view(np.uint8))


def _without_padding(blocks: _Words, counts: Ints) -> _Words:
    """Return the first counts[i] values of each block. Consecutive full blocks are copied together."""
    values = blocks.reshape(-1)
    ends = np.append(np.flatnonzero(counts[:-1] != BLOCK), len(counts) - 1)
    starts = np.append(0, ends[:-1] + 1) * BLOCK
    stops = ends * BLOCK + counts[ends]
    return np.concatenate([values[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])


def _unpack_by_width(packed: Ranges, widths: npt.NDArray[np.int64], values: _Words) -> None:
    """Unpack blocks of different widths to the rows of `values`, grouped by width."""
    dtype = values.dtype
    kernel = compiled("unpack", values.nbytes)
    if kernel is not None:
        starts = np.ascontiguousarray(packed.starts)
        _unpack_compiled(kernel, packed.data, starts, np.ascontiguousarray(widths), values)
        return
    edges = np.flatnonzero(np.diff(widths)) + 1
    if len(edges) < _MANY_RUNS:
        bounds = [0, *edges.tolist(), len(widths)]
        for start, stop in pairwise(bounds):
            width = int(widths[start])
            run = packed.select(slice(start, stop))
            unpack(_blocks(run, width, dtype), width, values[start:stop])
        return
    for width in np.unique(widths).tolist():
        is_selected = widths == width
        values[is_selected] = unpack(_blocks(packed.select(is_selected), width, dtype), width)


def _blocks(packed: Ranges, width: int, dtype: np.dtype[Any]) -> _Words:
    return packed.matrix(width * (BLOCK // 8), dtype)


def decode_out_of_line(packing: pb.OutOfLineBitpacking, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode the buffers of all chunks. Each has blocks and possibly a plain tail."""
    bits = packing.uncompressed_bits_per_value
    dtype = _word_type(bits)
    name = compression_name(packing.values)
    if name != "flat":
        raise UnsupportedFormatError(f"bit packing into {name!r} values is not supported")
    # Unlike for plain flat values, a width below 8 is valid here.
    width = packing.values.flat.bits_per_value
    if width > bits:
        raise FormatError(f"values of {bits} bits packed to {width} bits")
    pieces = chunks.require_single("out_of_line_bitpacking")
    counts = chunks.counts
    # Values of zero bits have no bytes, so the limit is what a chunk's u16 can count.
    if width == 0 and bool((counts > _MAX_EMPTY).any()):
        raise FormatError(f"{int(counts.max())} values packed to no bits")
    block_size = width * (BLOCK // 8)
    full, tail = counts // BLOCK, counts % BLOCK
    plain = pieces.sizes == full * block_size + tail * dtype.itemsize
    packed_blocks = full + ((tail > 0) & ~plain)
    sizes = packed_blocks * block_size
    pieces.require(sizes, "bit-packed values")
    packed = pieces.part(0, sizes).concat().view(dtype)
    blocks = packed.reshape(int(packed_blocks.sum()), BLOCK // bits * width)
    values = unpack(blocks, width).reshape(-1)
    if (len(counts) > 1 and bool(tail[:-1].any())) or bool((plain & (tail > 0)).any()):
        rest = pieces.part(sizes, np.where(plain, tail * dtype.itemsize, 0))
        values = _join_tails(values, packed_blocks, counts, rest)
    return FixedWidth(bits, chunks.total, values[: chunks.total].view(np.uint8))


def _join_tails(values: _Words, blocks: Ints, counts: Ints, rest: Ranges) -> _Words:
    """Append each chunk's plain tail to its blocks and remove the padding of packed tails."""
    tails: Bytes = rest.concat()
    item = values.dtype.itemsize
    packed_counts = np.minimum(blocks * BLOCK, counts)
    # For each chunk the packed and then the plain values, taken from all packed and all plain values.
    starts = np.empty(2 * len(counts), dtype=np.int64)
    starts[0::2] = exclusive_sum(blocks * BLOCK * item)[:-1]
    starts[1::2] = values.nbytes + exclusive_sum(rest.sizes)[:-1]
    sizes = np.empty(2 * len(counts), dtype=np.int64)
    sizes[0::2] = packed_counts * item
    sizes[1::2] = (counts - packed_counts) * item
    return gather(np.concatenate([values.view(np.uint8), tails]), starts, sizes).view(values.dtype)


# Blocks per step: scratch arrays of a step stay in the cache while numpy's cost per call is spread thin.
_PACK_STEP = 128
# Readers need one step per width, so different widths in one page must save this fraction of the bytes.
_WORTH_OWN_WIDTHS = 0.02
_POWERS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def block_widths(words: _Words) -> Ints:
    """Return the bits that each block of 1024 unsigned words needs. The last block may be shorter."""
    whole = len(words) // BLOCK * BLOCK
    tops = words[:whole].reshape(-1, BLOCK).max(axis=1, initial=0)
    if whole < len(words):
        tops = np.append(tops, words[whole:].max())
    widths: Ints = np.searchsorted(_POWERS, tops.astype(np.uint64), side="right").astype(np.int64)
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
    for start in range(0, len(blocks), _PACK_STEP):
        part = blocks[start : start + _PACK_STEP]
        count = len(part)
        # [place of row div 8][row mod 8][block x lane]: each step below processes one long contiguous vector.
        rows = part.reshape(count, 8, bits // 8, lanes).transpose(2, 1, 0, 3)
        streams = _pack_rows(np.ascontiguousarray(rows).reshape(bits // 8, 8, count * lanes), width, bits)
        target = out[start : start + _PACK_STEP].reshape(count, width, lanes)
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
    widths: Ints

    @classmethod
    def of(cls, words: _Words) -> PackedChunks:
        """Return the packed chunks of words."""
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

    def cost(self, positions: Ints) -> Ints:
        """Return an upper bound of the bytes of the slots before each position."""
        return positions * self.words.dtype.itemsize + self.words.dtype.itemsize

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return one buffer per chunk. Consecutive bounds differ by at most 1024."""
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

    def _blocks(self, bounds: Ints) -> tuple[_Words, Ints]:
        """Return the chunks padded to blocks, and the bits that each block needs."""
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
    """The blocks of one width, packed together and returned in order."""

    def __init__(self, blocks: _Words, is_selected: npt.NDArray[np.bool_], width: int) -> None:
        self._rows = pack(blocks if is_selected.all() else blocks[is_selected], width)
        self._position = 0

    def take(self, count: int) -> _Words:
        """Return the next rows."""
        self._position += count
        return self._rows[self._position - count : self._position]
