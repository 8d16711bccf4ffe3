"""Mini-block pages: many small chunks, each decoded independently.

    buffer 0   chunk words, u16 (2.1) or u32 (2.2, has_large_chunk):
               word >> 4 = size of the chunk / 8 - 1, word & 15 = log2 of its number of values (2^1 .. 2^15);
               the last chunk has the remaining num_items, whatever its low bits are
    buffer 1   the chunks, back to back
    buffer 2   the dictionary, if the layout has one
    last       the repetition index, if its depth is not 0 (used only by random access)

A chunk, every part padded to 8 bytes:

    u16 number of levels (0 without levels)
    u16 size of the repetition levels, if the layout has them
    u16 size of the definition levels, if the layout has them
    u16 (2.1) or u32 (2.2) size of each value buffer
    repetition levels, definition levels, value buffers

num_items counts values: null items have a slot, null and empty lists do not.
Example, 2.2, Flat(8), values 1 and 2, no levels: word 10 00 00 00, chunk

    00 00  02 00 00 00  fe fe  01 02  fe fe fe fe fe fe

(Lance file format, mini-block pages.)

The writer:

    page buffers   0 chunk words, 1 chunks, [2 dictionary], [last: repetition index]
    chunk word     u16 (2.1) or u32 (2.2): (chunk bytes / 8 - 1) << 4 | log2(values in the chunk)
    chunk          u16 number of levels (0 without levels), [u16 rep bytes], [u16 def bytes],
                   per value buffer u16 (2.1) or u32 (2.2) bytes; pad to 8;
                   rep, def and value buffers, each padded to 8
    repetition     per chunk u64 number of rows that end in it, u64 number of its levels that belong to a row
    index          that continues in the next chunk

Every chunk but the last has 2, 4, 8, ... 32768 values. A chunk contains the levels of its values. Levels
without a slot belong to the chunk of the next slot; those after the last slot belong to the last chunk.
(Lance file format 2.1, mini-block pages.)

The chunks of a mini-block page store repetition and definition levels in these encodings:

    Flat(16)                   raw u16
    OutOfLineBitpacking(16)    blocks of 1024 levels of W bits: 64 * W words of 16 bits, without a header.
                               A tail of less than 1024 levels is stored as raw words if these are not
                                                          larger than a block, else as a block padded with
                                                          zeros.
    Rle(16), from 2.2 on       u64 bytes of the run values, the values (u16), a u8 length per run

In a block, word j of lane l (0..63) is word j * 64 + l. Lane l is a stream of 16 levels, W bits each, least
significant bit first. Level r of lane l is level (r mod 8) * 128 + (r div 8) * 64 + l of the block.
(Lance file format 2.1, out-of-line bit-packing; 2.2, rle.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.base.blocks import Block, DictionaryBlock, FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks, Ranges, exclusive_sum, view_words
from spark_lance.file.v2_1.base.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, ChunkValues, EncodedBlock, flat
from spark_lance.file.v2_1.encodings.random_access import Unpack, levels_pickable, pick, pick_levels, pickable
from spark_lance.file.v2_1.encodings.rle import (
    RunChunks,
    Runs,
    block_runs,
    decode_items,
    describe_runs,
    find_runs,
    is_flat,
)
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.v2_1.levels.unravel import Levels, number_layers
from spark_lance.proto import encodings21_pb2 as pb

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

_WORD = 16
_BLOCK = 1024
_LANES = _BLOCK // _WORD
_WORD_BITS = (8, 16, 32, 64)
# Runs must be smaller than this fraction of the packed blocks, because readers unpack blocks faster.
_RUNS_SHARE = 0.75
_RUN_BYTES = 3
# Cost of a chunk in runs: its size word, and the run that is split at its end.
_RUNS_PER_CHUNK = 4
_MAX_BYTES = 2**16 - 1


@dataclass(frozen=True)
class LevelBuffers:
    """One level buffer per chunk, and their encoding."""

    data: ChunkBuffer
    description: pb.CompressiveEncoding


@dataclass(frozen=True)
class LevelChunks:
    """The levels of a page and their bit widths. A width of 16 bits means Flat.

    With `runs_allowed`, levels are stored as runs if that is smaller by a margin.
    """

    rep: U16 | None
    rep_bits: int
    definition: U16 | None
    def_bits: int
    runs_allowed: bool

    @classmethod
    def of(cls, leaf: Leaf, version: FileVersion) -> LevelChunks:
        """Choose the widths. Levels that are not larger than a block stay Flat."""
        widths = [
            _WORD if leaf.num_levels <= bits * _LANES else bits
            for bits in (leaf.lists.bit_length(), leaf.max_definition.bit_length())
        ]
        runs_allowed = version is not FileVersion.V2_1
        return cls(leaf.rep, widths[0], leaf.definition, widths[1], runs_allowed)

    @property
    def bits_per_level(self) -> int:
        """Maximum bits of one level in a chunk, not counting incomplete blocks."""
        return (0 if self.rep is None else self.rep_bits) + (0 if self.definition is None else self.def_bits)

    def encode_levels(self, bounds: Ints) -> tuple[LevelBuffers | None, LevelBuffers | None]:
        """Return the rep and def buffers of chunks. Chunk c has levels `bounds[c]:bounds[c + 1]`."""
        return self._encode(self.rep, self.rep_bits, bounds), self._encode(
            self.definition, self.def_bits, bounds
        )

    def _encode(self, levels: U16 | None, bits: int, bounds: Ints) -> LevelBuffers | None:
        if levels is None:
            return None
        if self.runs_allowed:
            most = _RUNS_SHARE * len(levels) * bits / (8 * _RUN_BYTES)
            starts = find_runs(levels, most)
            # Runs are split at chunk bounds, and each chunk has a size word.
            runs = None if starts is None else RunChunks.of(levels, starts)
            if runs is not None and runs.nbytes // _RUN_BYTES + len(bounds) * _RUNS_PER_CHUNK < most:
                data = _join_runs(runs, bounds)
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


def _join_runs(runs: RunChunks, bounds: Ints) -> ChunkBuffer:
    """Return the runs of each chunk as one buffer: size of the values, values, lengths."""
    values, lengths = runs.chunk(bounds)
    parts: list[bytes] = []
    value_cuts, length_cuts = pairwise(values.starts.tolist()), pairwise(lengths.starts.tolist())
    for (a, b), (c, d) in zip(value_cuts, length_cuts, strict=True):
        parts += [(b - a).to_bytes(8, "little"), values.data[a:b].tobytes(), lengths.data[c:d].tobytes()]
    starts = values.starts + lengths.starts + 8 * np.arange(len(bounds))
    return ChunkBuffer(np.frombuffer(b"".join(parts), np.uint8), starts)


def pack_levels(levels: U16, bits: int, bounds: Ints) -> ChunkBuffer:
    """Return the bit-packed levels of chunks with levels `bounds[c]:bounds[c + 1]`, all below 2**bits."""
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
    """Return the first `packed` levels of each chunk as rows of 1024, each chunk padded with zeros."""
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


_MAX_COUNT = 1 << 32
# A function that decodes the dictionary of a page.
Items: TypeAlias = Callable[[], Block]


@dataclass(frozen=True)
class ChunkTable:
    """The positions of a page's chunks and their numbers of values.

    Attributes:
        counts: number of values of each chunk.
        bounds: position of every chunk in buffer 1, and the end.
    """

    counts: Ints
    bounds: Ints

    @cached_property
    def sizes(self) -> Ints:
        """Bytes per chunk."""
        return np.diff(self.bounds)

    @cached_property
    def ends(self) -> Ints:
        """Cumulative number of values at the end of each chunk."""
        return np.cumsum(self.counts)

    @cached_property
    def _log(self) -> int | None:
        """log2 of the number of values per chunk, if it is equal for all chunks but the last."""
        first, last = int(self.counts[0]), int(self.counts[-1])
        is_uniform = not first & (first - 1) and bool((self.counts[:-1] == first).all())
        return first.bit_length() - 1 if is_uniform and 0 < last <= first else None

    def locate_values(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the chunk of each value, given ascending value numbers, and its position in the chunk."""
        if self._log is not None:
            return numbers >> self._log, numbers & ((1 << self._log) - 1)
        chunks = np.searchsorted(self.ends, numbers, side="right")
        return chunks, numbers - (self.ends - self.counts)[chunks]


class ChunkParts(NamedTuple):
    """The contents of chunk headers: number of levels, and the level and value buffers."""

    level_counts: Ints
    buffers: list[Ranges]

    def of(self, numbers: Ints) -> ChunkParts:
        """Return the parts of the chunks with these numbers, in this order."""
        return ChunkParts(self.level_counts[numbers], [part.select(numbers) for part in self.buffers])


@dataclass(frozen=True)
class DecodedChunks:
    """The levels and values of some chunks, and the number of levels of each (0 in a page without levels)."""

    levels: Levels
    values: Block
    level_counts: Ints

    @property
    def page(self) -> DecodedPage:
        """The levels and values as a page."""
        return DecodedPage(self.levels, self.values)


def decode(layout: pb.MiniBlockLayout, page: PageBytes, resolver: Resolver) -> DecodedPage:
    """Decode all chunks of a page at once.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: an encoding that is not known.
    """
    data = page.buffer(1)
    table = chunk_table(layout, page.buffer(0), len(data))
    spans = Ranges(data, table.bounds[:-1], table.sizes)
    items = partial(dictionary_items, layout, page.buffer(2), resolver) if has_dictionary(layout) else None
    return decode_chunks(layout, spans, table.counts, items, resolver).page


def has_dictionary(layout: pb.MiniBlockLayout) -> bool:
    """Return whether the values of a page are indices into a dictionary."""
    return bool(layout.HasField("dictionary"))


def decode_chunks(
    layout: pb.MiniBlockLayout, spans: Ranges, counts: Ints, items: Items | None, resolver: Resolver
) -> DecodedChunks:
    """Decode chunks of a page at once.

    Args:
        layout: the page's description.
        spans: the bytes of the chunks.
        counts: number of values of each chunk.
        items: decodes the page's dictionary; None if it has none.
        resolver: finds the codecs.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: an encoding that is not known.
    """
    level_counts, parts = chunk_parts(layout, spans)
    at = 0
    rep: npt.NDArray[np.uint16] | None = None
    definition: npt.NDArray[np.uint16] | None = None
    if layout.HasField("rep_compression"):
        rep = resolver.levels(layout.rep_compression, Chunks((parts[at],), level_counts))
        at += 1
    if layout.HasField("def_compression"):
        definition = resolver.levels(layout.def_compression, Chunks((parts[at],), level_counts))
        at += 1
    if not layout.HasField("value_compression"):
        raise FormatError("a mini-block page without a value encoding")
    chunks = Chunks(tuple(parts[at:]), counts)
    values: Block | None = _repeated_items(layout.value_compression, chunks, items)
    if values is None:
        values = resolver.mini_block(layout.value_compression, chunks)
        values = values if items is None else _with_dictionary(values, items)
    levels = Levels(number_layers(layout.layers), rep, definition)
    return DecodedChunks(levels, values, level_counts)


def can_pick(layout: pb.MiniBlockLayout) -> bool:
    """Return whether `pick_values` supports the page."""
    return (
        not layout.HasField("rep_compression")
        and pickable(layout.value_compression, layout.num_buffers)
        and (not layout.HasField("def_compression") or levels_pickable(layout.def_compression))
    )


def pick_values(
    layout: pb.MiniBlockLayout,
    parts: ChunkParts,
    counts: Ints,
    places: Ints,
    items: Items | None,
    unpack: Unpack = decompress,
    levels: npt.NDArray[Any] | None = None,
) -> DecodedPage:
    """Return single values of a page for which `can_pick` is true.

    Args:
        layout: the page's description.
        parts: for every requested value, the parts of its chunk.
        counts: number of values in that chunk.
        places: position of the value in that chunk, 0 <= place < count.
        items: decodes the page's dictionary; None if it has none.
        unpack: decompresses chunks.
        levels: the values' definition levels, if already known.

    Raises:
        FormatError: the bytes are damaged.
    """
    definition = levels
    if definition is None and layout.HasField("def_compression"):
        if not np.array_equal(parts.level_counts, counts):
            raise FormatError("a chunk has another number of levels than values")
        definition = pick_levels(layout.def_compression, parts.buffers[0], counts, places)
    values = pick(layout.value_compression, parts.buffers[-layout.num_buffers :], counts, places, unpack)
    if items is not None:
        values = _with_dictionary(values, items)
    return DecodedPage(Levels(number_layers(layout.layers), None, definition), values)


def level_runs(layout: pb.MiniBlockLayout, parts: ChunkParts, counts: Ints) -> Runs | None:
    """Return the runs of the definition levels of a page for which `can_pick` is true, or None.

    Raises:
        FormatError: the bytes are damaged.
    """
    encoding = layout.def_compression
    if not layout.HasField("def_compression") or compression_name(encoding) != "rle":
        return None
    if not np.array_equal(parts.level_counts, counts):
        raise FormatError("a chunk has another number of levels than values")
    return block_runs(encoding.rle, parts.buffers[0], counts)


def chunk_table(layout: pb.MiniBlockLayout, words: Bytes, size: int) -> ChunkTable:
    """Parse the chunk words of a page whose buffer 1 has `size` bytes.

    Raises:
        FormatError: the chunk words do not describe the page.
    """
    counts, bounds, _ = chunk_tables(layout, [layout.num_items], [words], [size])
    return ChunkTable(counts, bounds)


def chunk_tables(
    layout: pb.MiniBlockLayout, items: Sequence[int], words: Sequence[Bytes], sizes: Sequence[int]
) -> tuple[Ints, Ints, Ints]:
    """Parse the chunk words of several pages.

    Args:
        layout: the common description of the pages; its number of items is ignored.
        items: number of items of each page.
        words: buffer 0 of each page.
        sizes: size of buffer 1 of each page.

    Returns:
        Number of values per chunk; bounds of the chunks as if the pages' chunks were contiguous; number of
        the first chunk of each page, and the end.

    Raises:
        FormatError: the chunk words do not describe the pages.
    """
    dtype = np.dtype("<u4" if layout.has_large_chunk else "<u2")
    for page in words:
        if len(page) == 0 or len(page) % dtype.itemsize:
            raise FormatError(f"a chunk table of {len(page)} bytes")
    if max(items) > _MAX_COUNT:
        raise FormatError(f"a page of {max(items)} items")
    pages = exclusive_sum(np.array([len(page) // dtype.itemsize for page in words], dtype=np.int64))
    firsts, lasts = pages[:-1], pages[1:] - 1
    table = (words[0] if len(words) == 1 else np.concatenate(words)).view(dtype).astype(np.int64)
    logs = table & 15
    if np.count_nonzero(logs == 0) != np.count_nonzero(logs[lasts] == 0):
        raise FormatError("a chunk that is not the last must hold at least two values")
    counts = np.left_shift(np.int64(1), logs)
    counts[lasts] += np.array(items, dtype=np.int64) - np.add.reduceat(counts, firsts)
    if bool((counts[lasts] < 0).any()):
        raise FormatError(f"the chunks hold more than the page's items: {max(items)}")
    bounds = exclusive_sum(((table >> 4) + 1) * 8)
    if bool((np.diff(bounds[pages]) > np.array(sizes, dtype=np.int64)).any()):
        raise FormatError(f"chunks of {int(bounds[-1])} bytes in buffers of {sum(sizes)}")
    return counts, bounds, pages


def chunk_parts(layout: pb.MiniBlockLayout, spans: Ranges) -> ChunkParts:
    """Parse the headers of chunks.

    Raises:
        FormatError: the headers do not fit the chunks.
    """
    level_parts = layout.HasField("rep_compression") + layout.HasField("def_compression")
    width = 4 if layout.has_large_chunk else 2
    level_end = 2 + 2 * level_parts
    header = level_end + width * layout.num_buffers
    if header > int(spans.sizes.min()):
        raise FormatError(
            f"a chunk of {int(spans.sizes.min())} bytes cannot have {layout.num_buffers} buffers"
        )
    # Positions and sizes of chunks are multiples of 8 bytes.
    words = view_words(spans.data, spans.starts, 8)
    if words is not None:
        places = (spans.starts >> 3)[:, None] + np.arange((header + 7) // 8)
        raw = words[places].view("<u2")
    else:
        raw = spans.data[spans.starts[:, None] + np.arange(header)].view("<u2")
    body = (header + 7) & ~7
    ends: Ints = spans.starts + body
    buffers: list[Ranges] = []
    for number in range(level_parts + layout.num_buffers):
        at = 1 + number if number < level_parts else level_end // 2 + (number - level_parts) * width // 2
        sizes = raw[:, at].astype(np.int64)
        if width == 4 and number >= level_parts:
            sizes |= raw[:, at + 1].astype(np.int64) << 16
        buffers.append(Ranges(spans.data, ends, sizes))
        ends = ends + ((sizes + 7) & ~7)
    if buffers and bool((ends > spans.starts + spans.sizes).any()):
        raise FormatError("the buffers of a chunk do not fit into it")
    return ChunkParts(raw[:, 0].astype(np.int64), buffers)


def dictionary_items(layout: pb.MiniBlockLayout, buffer: Bytes, resolver: Resolver) -> Block:
    """Decode the dictionary of a page.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: an encoding that is not known.
    """
    if layout.num_dictionary_items > _MAX_COUNT:
        raise FormatError(f"a dictionary of {layout.num_dictionary_items} items")
    return resolver.block(layout.dictionary, Chunks.block(buffer, layout.num_dictionary_items))


def _with_dictionary(values: Block, items: Items) -> DictionaryBlock:
    if not isinstance(values, FixedWidth):
        raise FormatError("dictionary indices must be numbers")
    return DictionaryBlock(values, items())


def _repeated_items(
    encoding: pb.CompressiveEncoding, chunks: Chunks, items: Items | None
) -> FixedWidth | None:
    """Return numbers from a dictionary whose indices are runs; None for other values and encodings."""
    if items is None or compression_name(encoding) != "rle" or not is_flat(encoding.rle):
        return None
    dictionary = items()
    if not isinstance(dictionary, FixedWidth) or dictionary.bits not in _WORD_BITS:
        return None
    return decode_items(encoding.rle, chunks, dictionary)


PageParts = tuple[pb.PageLayout, list[U8]]

_MAX_LEVELS = 2**16 - 1


@dataclass(frozen=True)
class _Widths:
    """Limits that differ between versions: chunk word, value buffer size, largest chunk."""

    word: type[np.generic]
    size_halves: int
    max_chunk_bytes: int


_WIDTHS = {
    FileVersion.V2_1: _Widths(np.uint16, 1, 2**12 * 8),
    FileVersion.V2_2: _Widths(np.uint32, 2, 2**28 * 8),
}
# Bytes for the header, padding, and the last incomplete block of bit-packed levels.
_CHUNK_OVERHEAD = 2048


@dataclass(frozen=True)
class ChunkPolicy:
    """Target size of chunks: about `target_bytes` of values, at most `max_values` (a power of two)."""

    target_bytes: int
    max_values: int


def mini_block_page(
    leaf: Leaf,
    values: ChunkValues,
    dictionary: EncodedBlock | None,
    policy: ChunkPolicy,
    version: FileVersion,
) -> PageParts | None:
    """Return the layout and buffers of a page with at least one slot.

    Returns None if a chunk would be too large for the format: the page has more consecutive levels without a
    slot, or wider values, than fit into a chunk.
    """
    widths = _WIDTHS[version]
    levels = LevelChunks.of(leaf, version)
    bounds = _cut_slots(leaf, values, policy, levels.bits_per_level, widths)
    if bounds is None:
        return None
    level_bounds = leaf.levels_before(bounds)
    rep, definition = levels.encode_levels(level_bounds)
    value_buffers = values.chunk(bounds)
    chunks = _assemble(level_bounds, [rep, definition], value_buffers, widths)
    buffers = [_chunk_words(chunks, bounds, widths), chunks.data]
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


def _cut_slots(
    leaf: Leaf, values: ChunkValues, policy: ChunkPolicy, bits_per_level: int, widths: _Widths
) -> Ints | None:
    """Return the slot numbers at the chunk bounds; None if two adjacent slots do not fit into one chunk.

    Slots are split at multiples of the largest size. Chunks that are too large are halved until they fit.
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
    level_bounds: Ints,
    level_buffers: list[LevelBuffers | None],
    value_buffers: list[ChunkBuffer],
    widths: _Widths,
) -> ChunkBuffer:
    """Return all chunks as one contiguous buffer."""
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
        _copy_pieces(out, target, buffer)
        target = target + room
    return ChunkBuffer(out, starts)


def _copy_pieces(out: U8, targets: Ints, buffer: ChunkBuffer) -> None:
    """Copy piece c of the buffer to `out[targets[c]:]`. Evenly spaced pieces of equal size need one copy."""
    starts, data = buffer.starts, buffer.data
    even = len(targets) - 1
    if even > 1:
        size, distance = int(starts[1] - starts[0]), int(targets[1] - targets[0])
        if (np.diff(starts[: even + 1]) == size).all() and (np.diff(targets) == distance).all():
            first = int(targets[0])
            # The last piece is copied separately, because `out` may end right after it.
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


def _chunk_words(chunks: ChunkBuffer, bounds: Ints, widths: _Widths) -> U8:
    """Return the chunk words. The last chunk has 0 as its count, which need not be a power of two."""
    logs = np.log2(np.diff(bounds)).astype(np.int64)
    logs[-1] = 0
    words = (np.diff(chunks.starts) // 8 - 1) << 4 | logs
    return words.astype(widths.word).view(np.uint8)


def _repetition_index(leaf: Leaf, level_bounds: Ints) -> U8:
    """Return the pairs (rows that end, levels of the row that continues) of all chunks."""
    starts = leaf.row_starts()
    ends = np.append(starts[1:], leaf.num_levels)
    cuts = level_bounds[1:]
    num_ends = np.searchsorted(ends, cuts, side="right")
    num_starts = np.searchsorted(starts, cuts, side="left")
    # The row that continues started in this chunk or an earlier one.
    since = np.maximum(starts[num_starts - 1], level_bounds[:-1])
    pairs = np.zeros((len(cuts), 2), np.uint64)
    pairs[:, 0] = np.diff(num_ends, prepend=0)
    pairs[:, 1] = np.where(num_starts > num_ends, cuts - since, 0)
    return pairs.reshape(-1).view(np.uint8)
