"""Mini-block pages: many small chunks that are each decoded on their own.

    buffer 0   chunk words, u16 (2.1) or u32 (2.2, has_large_chunk):
               word >> 4 = size of the chunk / 8 - 1, word & 15 = log2 of its number of values (2^1 .. 2^15);
               the last chunk has what is left of num_items, whatever its low bits say
    buffer 1   the chunks, back to back
    buffer 2   the dictionary, if the layout has one
    last       the repetition index, if its depth is not 0 (only random access needs it)

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.file.v2_1.blocks import Block, DictionaryBlock, FixedWidth
from spark_lance.file.v2_1.chunks import Bytes, Chunks, Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.file.v2_1.encodings.picking import levels_pickable, pick, pick_levels, pickable
from spark_lance.file.v2_1.layouts.levels import decode_levels
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.unravel import Levels, number_layers
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["ChunkTable", "DecodedChunks", "can_pick", "chunk_table", "decode", "decode_chunks", "pick_values"]

_MAX_COUNT = 1 << 32


@dataclass(frozen=True)
class ChunkTable:
    """Where the chunks of a page are and how much each holds.

    Attributes:
        counts: values per chunk.
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
        """The number of values up to the end of each chunk."""
        return np.cumsum(self.counts)


@dataclass(frozen=True)
class DecodedChunks:
    """The levels and values of some chunks, and how many levels each has (0 in a page without levels)."""

    levels: Levels
    values: Block
    level_counts: Ints

    @property
    def page(self) -> DecodedPage:
        """The levels and values, as of a page."""
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
    dictionary = page.buffer(2) if layout.HasField("dictionary") else None
    return decode_chunks(layout, spans, table.counts, dictionary, resolver).page


def decode_chunks(
    layout: pb.MiniBlockLayout, spans: Ranges, counts: Ints, dictionary: Bytes | None, resolver: Resolver
) -> DecodedChunks:
    """Decode chunks of a page at once.

    Args:
        layout: the page's description.
        spans: the bytes of the chunks.
        counts: values per chunk.
        dictionary: the page's dictionary buffer if it has one.
        resolver: finds the codecs.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: an encoding that is not known.
    """
    level_counts, parts = _chunk_parts(layout, spans)
    at = 0
    rep: npt.NDArray[np.uint16] | None = None
    definition: npt.NDArray[np.uint16] | None = None
    if layout.HasField("rep_compression"):
        rep = decode_levels(layout.rep_compression, Chunks((parts[at],), level_counts), resolver)
        at += 1
    if layout.HasField("def_compression"):
        definition = decode_levels(layout.def_compression, Chunks((parts[at],), level_counts), resolver)
        at += 1
    if not layout.HasField("value_compression"):
        raise FormatError("a mini-block page without a value encoding")
    values = resolver.mini_block(layout.value_compression, Chunks(tuple(parts[at:]), counts))
    if dictionary is not None:
        values = _with_dictionary(layout, values, dictionary, resolver)
    levels = Levels(number_layers(layout.layers), rep, definition)
    return DecodedChunks(levels, values, level_counts)


def can_pick(layout: pb.MiniBlockLayout) -> bool:
    """Tell whether single values of the page can be had by `pick_values`."""
    return (
        not layout.HasField("rep_compression")
        and pickable(layout.value_compression, layout.num_buffers)
        and (not layout.HasField("def_compression") or levels_pickable(layout.def_compression))
    )


def pick_values(
    layout: pb.MiniBlockLayout,
    spans: Ranges,
    counts: Ints,
    places: Ints,
    dictionary: Bytes | None,
    resolver: Resolver,
) -> DecodedPage:
    """Return single values of a page that `can_pick` allows.

    Args:
        layout: the page's description.
        spans: for every wanted value, the bytes of its chunk.
        counts: values in that chunk.
        places: the place of the wanted one, 0 <= place < count.
        dictionary: the page's dictionary buffer if it has one.
        resolver: finds the codecs.

    Raises:
        FormatError: the bytes are damaged.
    """
    level_counts, parts = _chunk_parts(layout, spans)
    definition: npt.NDArray[np.uint16] | None = None
    if layout.HasField("def_compression"):
        if not np.array_equal(level_counts, counts):
            raise FormatError("a chunk has another number of levels than values")
        definition = pick_levels(layout.def_compression, parts[0], counts, places)
    values = pick(layout.value_compression, parts[-layout.num_buffers :], counts, places)
    if dictionary is not None:
        values = _with_dictionary(layout, values, dictionary, resolver)
    return DecodedPage(Levels(number_layers(layout.layers), None, definition), values)


def chunk_table(layout: pb.MiniBlockLayout, words: Bytes, size: int) -> ChunkTable:
    """Read the chunk words of a page whose buffer 1 has `size` bytes.

    Raises:
        FormatError: they do not describe the page.
    """
    counts, bounds, _ = chunk_tables(layout, [layout.num_items], [words], [size])
    return ChunkTable(counts, bounds)


def chunk_tables(
    layout: pb.MiniBlockLayout, items: Sequence[int], words: Sequence[Bytes], sizes: Sequence[int]
) -> tuple[Ints, Ints, Ints]:
    """Read the chunk words of several pages.

    Args:
        layout: the description of the pages; its number of items does not count.
        items: number of items of each page.
        words: buffer 0 of each page.
        sizes: size of buffer 1 of each page.

    Returns:
        Values per chunk; bounds of the chunks if the pages' chunks followed each other; number of the chunk
        with which each page begins, and the end.

    Raises:
        FormatError: they do not describe the pages.
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


def _chunk_parts(layout: pb.MiniBlockLayout, spans: Ranges) -> tuple[Ints, list[Ranges]]:
    """Read all chunk headers: the number of levels, and the level and value buffers, of every chunk."""
    level_parts = layout.HasField("rep_compression") + layout.HasField("def_compression")
    width = 4 if layout.has_large_chunk else 2
    level_end = 2 + 2 * level_parts
    header = level_end + width * layout.num_buffers
    if header > int(spans.sizes.min()):
        raise FormatError(
            f"a chunk of {int(spans.sizes.min())} bytes cannot have {layout.num_buffers} buffers"
        )
    raw = spans.data[spans.starts[:, None] + np.arange(header)]
    heads = np.ascontiguousarray(raw[:, :level_end]).view("<u2").astype(np.int64)
    values = np.ascontiguousarray(raw[:, level_end:]).view(f"<u{width}").astype(np.int64)
    sizes = np.concatenate([heads[:, 1:], values], axis=1)
    padded = (sizes + 7) & ~7
    ends = np.cumsum(padded, axis=1)
    body = (header + 7) & ~7
    if ends.shape[1] and bool((body + ends[:, -1] > spans.sizes).any()):
        raise FormatError("the buffers of a chunk do not fit into it")
    starts = spans.starts[:, None] + body + ends - padded
    columns = range(sizes.shape[1])
    return heads[:, 0], [Ranges(spans.data, starts[:, c].copy(), sizes[:, c].copy()) for c in columns]


def _with_dictionary(
    layout: pb.MiniBlockLayout, values: Block, buffer: Bytes, resolver: Resolver
) -> DictionaryBlock:
    if not isinstance(values, FixedWidth):
        raise FormatError("dictionary indices must be numbers")
    if layout.num_dictionary_items > _MAX_COUNT:
        raise FormatError(f"a dictionary of {layout.num_dictionary_items} items")
    items = resolver.block(layout.dictionary, Chunks.block(buffer, layout.num_dictionary_items))
    return DictionaryBlock(values, items)
