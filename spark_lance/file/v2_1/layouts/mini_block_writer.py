"""Writes mini-block pages: small chunks that a reader decodes whole.

    page buffers   0 chunk words, 1 chunks, [2 dictionary], [last: repetition index]
    chunk word     u16 (2.1) or u32 (2.2): (chunk bytes / 8 - 1) << 4 | log2(values in the chunk)
    chunk          u16 number of levels (0 without levels), [u16 rep bytes], [u16 def bytes],
                   per value buffer u16 (2.1) or u32 (2.2) bytes; pad to 8;
                   rep, def and value buffers, each padded to 8
    repetition     per chunk u64 rows that end in it, u64 levels of it that belong to a row that goes on
    index          in the next chunk

Every chunk but the last has 2, 4, 8, ... 32768 values. A chunk has the levels of its values; levels without
a slot go with the slot after them, those behind the last slot with the last chunk.
(Lance file format 2.1, mini-block pages.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.encodings.plain_writer import Block, ChunkBuffer, ChunkValues
from spark_lance.file.v2_1.layouts.levels_writer import LevelBuffers, LevelChunks
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.version import FileVersion
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["ChunkPolicy", "PageParts", "mini_block_page"]

U8 = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
PageParts = tuple[pb.PageLayout, list[U8]]

_MAX_LEVELS = 2**16 - 1


@dataclass(frozen=True)
class _Widths:
    """What differs between the versions: chunk word, value buffer size, largest chunk."""

    word: type[np.generic]
    size_halves: int
    max_chunk_bytes: int


_WIDTHS = {
    FileVersion.V2_1: _Widths(np.uint16, 1, 2**12 * 8),
    FileVersion.V2_2: _Widths(np.uint32, 2, 2**28 * 8),
}
# Header, paddings and the last incomplete block of bit-packed levels.
_CHUNK_OVERHEAD = 2048


@dataclass(frozen=True)
class ChunkPolicy:
    """How large chunks should be: about `target_bytes` of values, at most `max_values` (a power of two)."""

    target_bytes: int
    max_values: int


def mini_block_page(
    leaf: Leaf, values: ChunkValues, dictionary: Block | None, policy: ChunkPolicy, version: FileVersion
) -> PageParts | None:
    """Return the layout and buffers of a page with at least one slot.

    None if some chunk could not be made small enough for the format: the page has more levels without a
    slot in a row, or wider values, than a chunk can take.
    """
    widths = _WIDTHS[version]
    levels = LevelChunks.of(leaf, version)
    bounds = _cut(leaf, values, policy, levels.bits_per_level, widths)
    if bounds is None:
        return None
    level_bounds = leaf.levels_before(bounds)
    rep, definition = levels.cut(level_bounds)
    value_buffers = values.chunk(bounds)
    chunks = _assemble(level_bounds, [rep, definition], value_buffers, widths)
    buffers = [_words(chunks, bounds, widths), chunks.data]
    layout = pb.MiniBlockLayout(
        value_compression=values.description,
        layers=leaf.layers,
        num_buffers=len(value_buffers),
        num_items=values.count,
        has_large_chunk=version is FileVersion.V2_2,
    )
    if rep is not None:
        layout.rep_compression.CopyFrom(rep.description)
    if definition is not None:
        layout.def_compression.CopyFrom(definition.description)
    if dictionary is not None:
        layout.dictionary.CopyFrom(dictionary.description)
        layout.num_dictionary_items = dictionary.count
        buffers.append(dictionary.data)
    if rep is not None:
        layout.repetition_index_depth = 1
        buffers.append(_repetition_index(leaf, level_bounds))
    return pb.PageLayout(mini_block_layout=layout), buffers


def _cut(
    leaf: Leaf, values: ChunkValues, policy: ChunkPolicy, bits_per_level: int, widths: _Widths
) -> Indices | None:
    """Return slot numbers that bound the chunks, or None if two neighbours do not fit into one chunk.

    Slots are cut at multiples of the largest size, and what is too large is halved until it fits.
    """
    log = policy.max_values.bit_length() - 1
    starts = np.arange(0, values.count, 1 << log)
    accepted = []
    while len(starts):
        ends = np.minimum(starts + (1 << log), values.count)
        payload = values.cost(ends) - values.cost(starts)
        levels = leaf.levels_before(ends) - leaf.levels_before(starts)
        level_bytes = levels * bits_per_level // 8
        legal = (
            (levels <= _MAX_LEVELS)
            & (level_bytes <= _MAX_LEVELS - _CHUNK_OVERHEAD)
            & (payload + level_bytes <= widths.max_chunk_bytes - _CHUNK_OVERHEAD)
        )
        if log == 1:
            if not legal.all():
                return None
            accepted.append(starts)
            break
        fits = legal & (payload <= policy.target_bytes)
        accepted.append(starts[fits])
        log -= 1
        starts = np.concatenate([starts[~fits], starts[~fits] + (1 << log)])
        starts = starts[starts < values.count]
    return np.append(np.sort(np.concatenate(accepted)), values.count)


def _assemble(
    level_bounds: Indices,
    level_buffers: list[LevelBuffers | None],
    value_buffers: list[ChunkBuffer],
    widths: _Widths,
) -> ChunkBuffer:
    """Lay out all chunks one behind the other."""
    present = [buffer.data for buffer in level_buffers if buffer is not None]
    sizes = [np.diff(buffer.starts) for buffer in (*present, *value_buffers)]
    head_halves = 1 + len(present) + widths.size_halves * len(value_buffers)
    head_bytes = -(-2 * head_halves // 8) * 8
    padded = [-(-size // 8) * 8 for size in sizes]
    starts = np.zeros(len(level_bounds), np.int64)
    np.cumsum(head_bytes + sum(padded), out=starts[1:])
    out = np.zeros(int(starts[-1]), np.uint8)
    halves = out.view(np.uint16)
    at = starts[:-1] // 2
    if present:
        halves[at] = np.diff(level_bounds)
    at = at + 1
    for i, size in enumerate(sizes):
        halves[at] = size & 0xFFFF
        at = at + 1
        if i >= len(present) and widths.size_halves == 2:
            halves[at] = size >> 16
            at = at + 1
    target = starts[:-1] + head_bytes
    for buffer, room in zip((*present, *value_buffers), padded, strict=True):
        _place(out, target, buffer)
        target = target + room
    return ChunkBuffer(out, starts)


def _place(out: U8, targets: Indices, buffer: ChunkBuffer) -> None:
    """Copy piece c of the buffer to `out[targets[c]:]`; pieces of one size at one distance go in one copy."""
    starts, data = buffer.starts, buffer.data
    even = len(targets) - 1
    if even > 1:
        size, distance = int(starts[1] - starts[0]), int(targets[1] - targets[0])
        if (np.diff(starts[: even + 1]) == size).all() and (np.diff(targets) == distance).all():
            first = int(targets[0])
            # The pieces but the last: each has a whole distance of `out` to itself.
            rows = out[first : first + even * distance].reshape(even, distance)
            begin = int(starts[0])
            rows[:, :size] = data[begin : begin + even * size].reshape(even, size)
            first_left = even
        else:
            first_left = 0
    else:
        first_left = 0
    cuts = starts[first_left:].tolist()
    for at, begin, end in zip(targets[first_left:].tolist(), cuts[:-1], cuts[1:], strict=True):
        out[at : at + end - begin] = data[begin:end]


def _words(chunks: ChunkBuffer, bounds: Indices, widths: _Widths) -> U8:
    """Return the chunk words; the last chunk, whose count need not be a power of two, says 0."""
    logs = np.log2(np.diff(bounds)).astype(np.int64)
    logs[-1] = 0
    words = (np.diff(chunks.starts) // 8 - 1) << 4 | logs
    return words.astype(widths.word).view(np.uint8)


def _repetition_index(leaf: Leaf, level_bounds: Indices) -> U8:
    """Return the pairs (rows ended, levels of a row that goes on) of all chunks."""
    starts = leaf.row_starts()
    ends = np.append(starts[1:], leaf.num_levels)
    cuts = level_bounds[1:]
    ended = np.searchsorted(ends, cuts, side="right")
    begun = np.searchsorted(starts, cuts, side="left")
    # The row that goes on began in this chunk or before it.
    since = np.maximum(starts[begun - 1], level_bounds[:-1])
    pairs = np.zeros((len(cuts), 2), np.uint64)
    pairs[:, 0] = np.diff(ended, prepend=0)
    pairs[:, 1] = np.where(begun > ended, cuts - since, 0)
    return pairs.reshape(-1).view(np.uint8)
