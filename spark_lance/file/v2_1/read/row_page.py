"""Some rows of a page, from the bytes that hold them.

    mini-block, no lists   the chunk words say which chunk has a row; where the encodings allow it, only the
                           row's own values are decoded, else the chunk
    mini-block, lists      the repetition index, two u64 per chunk: the rows that end in it, and the levels of
                           the row that it leaves unfinished. All chunks that a row touches are decoded.
    full-zip               rows of one width by arithmetic, others by two entries of the repetition index
    constant               without levels, any number of rows can be made

Pages that are laid out otherwise are decoded whole.
(Lance file format, random access.)

A single value of a compressed chunk costs the whole chunk, so decompressed chunks are cached. Look-ups that
come back to a page of a local file find the chunks that others have decompressed; the first one keeps
nothing, as most pages are read once. Only values of one width are kept: it tells where those of each chunk
are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from spark_lance.arrow.arrays import make_filterable
from spark_lance.arrow.buffers import as_bytes
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.file.base.metadata import Page
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource, Plan
from spark_lance.file.v2_1.base.blocks import Block, nbytes
from spark_lance.file.v2_1.base.chunks import (
    Bytes,
    Ranges,
    exclusive_sum,
    gather,
    gather_integers,
    run_starts,
)
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.file.v2_1.encodings.random_access import Unpack, plain_width
from spark_lance.file.v2_1.encodings.rle import Runs
from spark_lance.file.v2_1.layouts import constant, full_zip, mini_block
from spark_lance.file.v2_1.layouts.mini_block import ChunkParts, ChunkTable, Items, has_dictionary
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.unravel import number_layers
from spark_lance.file.v2_1.read.page import RESOLVER, build, decode_page, page_layout, page_rows
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.counters import count_read
from spark_lance.io.ranges import REQUEST_BYTES
from spark_lance.proto import encodings21_pb2 as pb

# Pages of more bytes are not kept.
_LARGEST = 16 << 20


class PlainChunks:
    """The decompressed chunks of one page, as far as they are known. Threads wait for each other.

    Args:
        counts: values of each chunk.
        width: bytes of a value.
    """

    def __init__(self, counts: Ints, width: int) -> None:
        self._sizes = counts * width
        bounds = exclusive_sum(self._sizes)
        self._starts = bounds[:-1]
        # Memory that is never written to is none.
        self._data = np.empty(int(bounds[-1]), np.uint8)
        self._known = np.zeros(len(counts), np.bool_)
        self._visited = False
        self._lock = threading.Lock()

    def get(self, chunks: Ints, compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
        """Return chunks as they were before they were compressed.

        Args:
            chunks: their ascending numbers in the page.
            compression: how they are compressed.
            pieces: their compressed bytes.

        Raises:
            FormatError, UnsupportedFormatError: as `decompress`.
        """
        with self._lock:
            if not self._visited:
                self._visited = True
                return decompress(compression, pieces)
            missing = ~self._known[chunks]
            if missing.any() and not self._add(chunks[missing], compression, pieces.select(missing)):
                return decompress(compression, pieces)
        return Ranges(self._data, self._starts[chunks], self._sizes[chunks])

    def _add(self, chunks: Ints, compression: pb.BufferCompression, pieces: Ranges) -> bool:
        """Keep chunks that are not known yet; False if one has another size than its values have."""
        plain = decompress(compression, pieces)
        if not np.array_equal(plain.sizes, self._sizes[chunks]):
            return False
        # Chunks that follow each other in the page do so here, and there.
        firsts = np.flatnonzero(np.diff(chunks, prepend=-2) != 1)
        ends = np.append(firsts[1:], len(chunks)) - 1
        spans = zip(plain.starts[firsts].tolist(), self._starts[chunks[firsts]].tolist(), strict=True)
        sizes = self._starts[chunks[ends]] + self._sizes[chunks[ends]] - self._starts[chunks[firsts]]
        for (source, target), size in zip(spans, sizes.tolist(), strict=True):
            self._data[target : target + size] = plain.data[source : source + size]
        self._known[chunks] = True
        return True


_KEPT: CacheSection[PlainChunks] = CacheSection("decompressed chunks", CACHE, share=1 / 8)


def kept_chunks(source: PageSource, offset: int, counts: Ints, width: int | None) -> PlainChunks | None:
    """Return what is kept of the compressed chunks of a page; None if nothing ever is.

    Args:
        source: the file.
        offset: where the page's chunks begin in it.
        counts: values of each chunk.
        width: bytes of a decompressed value, None if they differ.
    """
    size = int(counts.sum()) * (width or 0)
    if not 0 < size <= _LARGEST or source.state is None:
        return None
    return _KEPT.get((source.state, offset), lambda: PlainChunks(counts, width or 0), lambda _: size)


# Values are picked one by one if they are fewer than one in this many of their chunks' values.
_PICK_BELOW = 8
_MAX_ROWS = 1 << 32
# A dictionary of more bytes is not decoded for a part of its page.
_LARGE_DICTIONARY = 1 << 15
# A decoded one of more bytes is not kept for other reads.
_KEPT_DICTIONARY = 1 << 16
# Headers of more chunks are not kept.
_MOST_CHUNKS = 1 << 14
# A read of the first rows of a page fetches this many bytes of its chunks before it knows where each is.
_FIRST_BYTES = 1 << 16
# Tables of chunks that were read before, by the bytes that they are read from.
_CHUNKS: CacheSection[ChunkTable] = CacheSection("chunk tables", CACHE, share=1 / 16, counted=False)
# The memory of one chunk there: its word, and four numbers.
_KEPT_CHUNK_BYTES = 40


@dataclass(frozen=True)
class _RowIndex:
    """The repetition index: for every chunk, how many rows start before it, and end before it; and in all."""

    started: Ints
    ended: Ints

    def chunks_of(self, rows: Ints) -> Ints:
        """Return the chunks that rows, by ascending number, touch."""
        heads = np.searchsorted(self.started[1:], rows, side="right")
        tails = np.searchsorted(self.ended[1:], rows, side="right")
        edges = np.zeros(len(self.started), dtype=np.int64)
        np.add.at(edges, heads, 1)
        np.subtract.at(edges, tails + 1, 1)
        return np.flatnonzero(np.cumsum(edges[:-1]))


class RowPage:
    """A page of one leaf column, for reads of single rows."""

    def __init__(self, page: Page, path: Sequence[Field], source: PageSource) -> None:
        """Prepare to read; nothing is touched."""
        self._page = page
        self._path = path
        self._source = source
        self._layout: pb.PageLayout = page_layout(page)
        self._chunks: ChunkTable | None = None
        self._index: _RowIndex | None = None
        self._dictionary: Block | None = None
        self._can_pick: bool | None = None
        self._all_parts: ChunkParts | None = None
        self._level_runs: Runs | None = None
        self._visits = 0

    def ranges(self) -> list[tuple[int, int]]:
        """Return the (offset, size) byte ranges that say where rows are, as far as they are read whole."""
        if self._layout.WhichOneof("layout") != "mini_block_layout":
            return []
        return [each for number, each in enumerate(self._page.buffers) if number != 1]

    def plan_take(self, rows: Ints) -> Plan:
        """Return the byte ranges that `take` needs, step by step.

        A small page is read whole: this costs less than a second round trip.

        Raises:
            FormatError, UnsupportedFormatError: as `take`.
        """
        buffers = self._page.buffers
        kind = self._layout.WhichOneof("layout")
        is_split = kind in ("mini_block_layout", "full_zip_layout") and not any(
            field.kind == "fsl_struct" for field in self._path
        )
        if not is_split or sum(size for _, size in buffers) <= REQUEST_BYTES:
            yield list(buffers)
        elif kind == "full_zip_layout":
            offset, size = self._buffer(0)
            width = full_zip.row_width(self._layout.full_zip_layout)
            if width is None:
                index, entry = self._zip_index()
                yield _joined(index + rows * entry, np.full(len(rows), 2 * entry, np.int64))
                starts, sizes = self._zip_bounds(rows, size)
            else:
                starts, sizes = rows * width, np.full(len(rows), width, np.int64)
            yield _joined(offset + starts, sizes)
        else:
            layout = self._layout.mini_block_layout
            # The first chunks come with the words that say where they are, if all rows are likely in them.
            offset, size = self._buffer(1)
            near = int(rows[-1]) * size < _FIRST_BYTES * self._page.length // 2
            yield [*self.ranges(), *([(offset, min(size, _FIRST_BYTES))] if near else ())]
            table = self._chunk_table(layout)
            chunks = self._chunks_of(layout, table, rows)
            yield (
                [self._buffer(1)]
                if chunks is None
                else _joined(self._buffer(1)[0] + table.bounds[chunks], table.sizes[chunks])
            )

    def _chunks_of(self, layout: pb.MiniBlockLayout, table: ChunkTable, rows: Ints) -> Ints | None:
        """Return the chunks that have some of the rows, ascending; None for all."""
        if not self._has_lists:
            self._ends(table)
            return np.unique(table.places_of(rows)[0])
        index = self._row_index(layout, len(table.counts))
        return None if index is None else index.chunks_of(rows)

    def take(self, rows: Ints) -> pa.Array:
        """Return rows of the page as an array of the path's type.

        Args:
            rows: ascending numbers of rows of the page, without repeats.

        Raises:
            FormatError: the page is damaged.
            UnsupportedFormatError: the page uses something that this release does not know.
        """
        array = self._take(rows)
        if len(array) != len(rows):
            raise FormatError(f"{len(rows)} rows of a page decode to {len(array)}")
        return array

    def part(self, start: int, stop: int) -> tuple[pa.Array, int] | None:
        """Decode the chunks that hold rows [start, stop), which are one row or more.

        Returns:
            The rows of these chunks and the number of the first; None if the page is laid out so that it is
            better decoded whole.

        Raises:
            FormatError, UnsupportedFormatError: as `take`.
        """
        layout = self._layout.mini_block_layout
        if (
            self._layout.WhichOneof("layout") != "mini_block_layout"
            or any(field.kind == "fsl_struct" for field in self._path)
            or self._has_lists
            or (has_dictionary(layout) and self._buffer(2)[1] > _LARGE_DICTIONARY)
        ):
            return None
        table = self._chunk_table(layout)
        ends = self._ends(table)
        chunks = np.arange(
            np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1
        )
        items = self._items(layout)
        spans, counts = self._spans(table, chunks), table.counts[chunks]
        array = build(
            self._path, lambda: mini_block.decode_chunks(layout, spans, counts, items, RESOLVER).page
        )
        first = int(ends[chunks[0]] - counts[0])
        if len(array) != int(ends[chunks[-1]]) - first:
            raise FormatError(f"{int(counts.sum())} rows of a page decode to {len(array)}")
        return array, first

    def _ends(self, table: ChunkTable) -> Ints:
        """Return the row with which each chunk of a page without lists ends."""
        ends = table.ends
        if int(ends[-1]) != self._page.length:
            raise FormatError(f"a page of {self._page.length} rows has {int(ends[-1])} values")
        return ends

    def _take(self, rows: Ints) -> pa.Array:
        layout = self._layout
        name = layout.WhichOneof("layout")
        if not any(field.kind == "fsl_struct" for field in self._path):
            if name == "mini_block_layout":
                return self._take_mini_block(layout.mini_block_layout, rows)
            if name == "full_zip_layout":
                return self._take_full_zip(layout.full_zip_layout, rows)
        if name == "constant_layout" and constant.is_uniform(layout.constant_layout, len(self._page.buffers)):
            return decode_page(self._page, self._path, self._source, 0, len(rows))[0]
        whole, first = decode_page(self._page, self._path, self._source, 0, page_rows(self._page, self._path))
        return make_filterable(whole).take(pa.array(rows - first))

    def _buffer(self, index: int) -> tuple[int, int]:
        if index >= len(self._page.buffers):
            raise FormatError(f"the page has {len(self._page.buffers)} buffers, buffer {index} is missing")
        return self._page.buffers[index]

    def _read(self, index: int) -> Bytes:
        data: Bytes = as_bytes(self._source.get(*self._buffer(index)))
        return data

    def _chunk_table(self, layout: pb.MiniBlockLayout) -> ChunkTable:
        if self._chunks is None:
            words, size = self._read(0), self._buffer(1)[1]
            self._chunks = _CHUNKS.get(
                (words.tobytes(), size, layout.num_items, layout.has_large_chunk),
                lambda: mini_block.chunk_table(layout, words, size),
                lambda table: _KEPT_CHUNK_BYTES * len(table.counts),
            )
        return self._chunks

    def _spans(self, table: ChunkTable, chunks: Ints) -> Ranges:
        sizes = table.sizes[chunks]
        data, starts = self._source.gather(self._buffer(1)[0] + table.bounds[chunks], sizes)
        return Ranges(data, starts, sizes)

    def _take_mini_block(self, layout: pb.MiniBlockLayout, rows: Ints) -> pa.Array:
        table = self._chunk_table(layout)
        items = self._items(layout)
        if self._has_lists:
            return self._take_lists(layout, table, items, rows)
        self._ends(table)
        homes, places = table.places_of(rows)
        is_first = run_starts(homes)
        chunks, back = homes[is_first], np.cumsum(is_first) - 1
        counts = table.counts[chunks]
        if self._can_pick is None:
            self._can_pick = mini_block.can_pick(layout)
        if self._can_pick and len(rows) * _PICK_BELOW < int(counts.sum()):
            unpack = self._unpack(layout, table, chunks)

            def pick() -> DecodedPage:
                layout_parts = self._known_parts(layout, table, chunks)
                if layout_parts is None:
                    parts = mini_block.chunk_parts(layout, self._spans(table, chunks)).of(back)
                    return mini_block.pick_values(layout, parts, counts[back], places, items, unpack)
                levels = None if self._level_runs is None else self._level_runs.at(homes, places)
                return mini_block.pick_values(
                    layout, layout_parts.of(homes), counts[back], places, items, unpack, levels
                )

            return build(self._path, pick)
        spans = self._spans(table, chunks)
        array = build(
            self._path, lambda: mini_block.decode_chunks(layout, spans, counts, items, RESOLVER).page
        )
        positions = exclusive_sum(counts)[back] + places
        first, end = int(positions[0]), int(positions[-1]) + 1
        if end - first == len(positions) and 2 * len(positions) >= len(array):
            return array.slice(first, len(positions))
        return make_filterable(array).take(pa.array(positions))

    def _known_parts(self, layout: pb.MiniBlockLayout, table: ChunkTable, chunks: Ints) -> ChunkParts | None:
        """Return what the headers of all chunks tell, if it is known; these `chunks` are read.

        A page of a local file that is asked a second time is likely to be asked more often.
        """
        if self._all_parts is None and self._visits == 1:
            # Whether other chunks are damaged is not asked yet.
            with suppress(FormatError):
                every = mini_block.chunk_parts(layout, self._spans(table, np.arange(len(table.counts))))
                self._level_runs = mini_block.level_runs(layout, every, table.counts)
                self._all_parts = every
        elif self._all_parts is not None:
            count_read(int(table.sizes[chunks].sum()), len(chunks), len(chunks))
        if self._source.is_mapped and len(table.counts) <= _MOST_CHUNKS:
            self._visits += 1
        return self._all_parts

    @cached_property
    def _has_lists(self) -> bool:
        """Whether the page, of mini-blocks, has lists."""
        return any(layer.is_list for layer in number_layers(self._layout.mini_block_layout.layers))

    def _items(self, layout: pb.MiniBlockLayout) -> Items | None:
        """Return what decodes the page's dictionary, once if it is small; None if it has none."""
        if not has_dictionary(layout):
            return None
        buffer = self._read(2)

        def decode() -> Block:
            if self._dictionary is not None:
                return self._dictionary
            block = mini_block.dictionary_items(layout, buffer, RESOLVER)
            if nbytes(block) <= _KEPT_DICTIONARY:
                self._dictionary = block
            return block

        return decode

    def _unpack(self, layout: pb.MiniBlockLayout, table: ChunkTable, chunks: Ints) -> Unpack:
        """Return the function that decompresses chunks of the page; it may know some from earlier reads."""
        width = plain_width(layout.value_compression)
        plain_chunks = kept_chunks(self._source, self._buffer(1)[0], table.counts, width) if width else None
        return decompress if plain_chunks is None else partial(plain_chunks.get, chunks)

    def _row_index(self, layout: pb.MiniBlockLayout, chunks: int) -> _RowIndex | None:
        """Return the repetition index; None if there is none that can be used."""
        if self._index is None and layout.repetition_index_depth == 1:
            number = 3 if has_dictionary(layout) else 2
            if number >= len(self._page.buffers) or self._buffer(number)[1] != chunks * 16:
                return None
            pairs = self._read(number).view("<u8").reshape(chunks, 2)
            if int(pairs.max()) > _MAX_ROWS:
                return None
            ended = exclusive_sum(pairs[:, 0].astype(np.int64))
            started = ended.copy()
            started[1:] += pairs[:, 1] > 0
            if int(ended[-1]) != self._page.length or int(started[-1]) != self._page.length:
                return None
            self._index = _RowIndex(started, ended)
        return self._index

    def _take_lists(
        self, layout: pb.MiniBlockLayout, table: ChunkTable, items: Items | None, rows: Ints
    ) -> pa.Array:
        index = self._row_index(layout, len(table.counts))
        if index is None:
            whole, first = decode_page(self._page, self._path, self._source, 0, self._page.length)
            return make_filterable(whole).take(pa.array(rows - first))
        heads = np.searchsorted(index.started[1:], rows, side="right")
        chunk_numbers = index.chunks_of(rows)
        # Chunks that follow each other in the page make a run.
        firsts = np.flatnonzero(np.diff(chunk_numbers, prepend=-2) != 1)
        starting = (index.started[1:] - index.started[:-1])[chunk_numbers]
        spans, counts = self._spans(table, chunk_numbers), table.counts[chunk_numbers]
        cut: list[Ints] = []

        def decode() -> DecodedPage:
            chunks = mini_block.decode_chunks(layout, spans, counts, items, RESOLVER)
            page, extra = _separate(chunks, firsts)
            cut.append(extra)
            return page

        array = build(self._path, decode)
        before = exclusive_sum(starting)
        # The end of a row that began before a run counts as a row of its own.
        extra_before = np.cumsum(cut[0])
        if len(array) != int(before[-1]) + int(extra_before[-1]):
            raise FormatError("the repetition index does not fit the page's rows")
        at = np.searchsorted(chunk_numbers, heads)
        run = np.searchsorted(firsts, at, side="right") - 1
        places = before[at] + extra_before[run] + rows - index.started[heads]
        return make_filterable(array).take(pa.array(places))

    def _take_full_zip(self, layout: pb.FullZipLayout, rows: Ints) -> pa.Array:
        offset, size = self._buffer(0)
        width = full_zip.row_width(layout)
        if width is not None:
            if self._page.length * width > size or layout.num_items != self._page.length:
                raise FormatError(f"{self._page.length} values of {width} bytes in a buffer of {size}")
            starts, sizes = rows * width, np.full(len(rows), width, dtype=np.int64)
        else:
            starts, sizes = self._zip_bounds(rows, size)
        data, at = self._source.gather(offset + starts, sizes)
        buffers = [gather(data, at, sizes), exclusive_sum(sizes).view(np.uint8)]
        leaf = self._path[-1].arrow_type()
        content = PageBytes(buffers, len(rows), leaf, partial=True)
        return build(self._path, lambda: full_zip.decode(layout, content, RESOLVER))

    def _zip_index(self) -> tuple[int, int]:
        """Return where the repetition index begins in the file, and the bytes of an entry."""
        offset, size = self._buffer(1)
        width, rest = divmod(size, self._page.length + 1)
        if rest or width not in (1, 2, 4, 8):
            raise FormatError(f"a repetition index of {size} bytes for {self._page.length} rows")
        return offset, width

    def _zip_bounds(self, rows: Ints, limit: int) -> tuple[Ints, Ints]:
        """Return position and size of rows in buffer 0, from the repetition index."""
        offset, width = self._zip_index()
        data, at = self._source.gather(offset + rows * width, np.full(len(rows), 2 * width, dtype=np.int64))
        # Positions of 2**63 or more turn negative and fail the comparison.
        starts = gather_integers(data, at, width).astype(np.int64)
        ends = gather_integers(data, at + width, width).astype(np.int64)
        ascending = np.stack([starts, ends], axis=1).reshape(-1)
        if len(rows) and (ascending[0] < 0 or ascending[-1] > limit or bool((np.diff(ascending) < 0).any())):
            raise FormatError("the repetition index does not ascend within the page")
        return starts, ends - starts


def _joined(starts: Ints, sizes: Ints) -> list[tuple[int, int]]:
    """Return ascending ranges of a file as (offset, size), those that touch or overlap as one."""
    if not len(starts):
        return []
    ends = np.maximum.accumulate(starts + sizes)
    firsts = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    lasts = np.append(firsts[1:], len(starts)) - 1
    return list(zip(starts[firsts].tolist(), (ends[lasts] - starts[firsts]).tolist(), strict=True))


def _separate(chunks: mini_block.DecodedChunks, firsts: Ints) -> tuple[DecodedPage, Ints]:
    """Keep what a run of chunks begins with from joining the last row of the run before it.

    Args:
        chunks: chunks of a page with lists.
        firsts: the first chunk of every run.

    Returns:
        The page, in which every run begins with a new row, and for every run 1 if it did not before.

    Raises:
        FormatError: a run begins with a chunk without levels.
    """
    levels = chunks.levels
    if levels.rep is None or bool((chunks.level_counts[firsts] == 0).any()):
        raise FormatError("a chunk of lists has no levels")
    at = exclusive_sum(chunks.level_counts)[firsts]
    rep = levels.rep.copy()
    extra = (rep[at] != levels.max_rep).astype(np.int64)
    rep[at] = levels.max_rep
    return DecodedPage(replace(levels, rep=rep), chunks.values), extra
