"""Reads some rows of a page from only the bytes that contain them.

    mini-block, no lists   the chunk words determine the chunk of a row; if the encodings allow it, only the
    row's
                           values are decoded, else the whole chunk
    mini-block, lists      the repetition index has two u64 per chunk: the number of rows that end in it, and
    the
                           number of levels of its last, unfinished row. All chunks of a row are decoded.
    full-zip               rows of fixed width by arithmetic, others by two entries of the repetition index
    constant               without levels, all rows are alike

Pages with other layouts are decoded whole. (Lance file format, random access.)

A single value of a compressed chunk requires decompressing the whole chunk, so decompressed chunks are
cached. Repeated look-ups in a page of a local file reuse them. The first look-up caches nothing, because most
pages are read once. Only values of fixed width are cached, because the width determines their positions.
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

# Maximum decompressed bytes of a cached page.
_MAX_CACHED_BYTES = 16 << 20


class PlainChunks:
    """A thread-safe cache of the decompressed chunks of one page.

    Args:
        counts: number of values of each chunk.
        width: bytes per value.
    """

    def __init__(self, counts: Ints, width: int) -> None:
        self._sizes = counts * width
        bounds = exclusive_sum(self._sizes)
        self._starts = bounds[:-1]
        # Pages of memory that are never written to are not allocated by the system.
        self._data = np.empty(int(bounds[-1]), np.uint8)
        self._is_cached = np.zeros(len(counts), np.bool_)
        self._was_read = False
        self._lock = threading.Lock()

    def get(self, chunks: Ints, compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
        """Return decompressed chunks, from the cache where possible.

        Args:
            chunks: ascending chunk numbers in the page.
            compression: compression of the chunks.
            pieces: compressed bytes of the chunks.

        Raises:
            FormatError, UnsupportedFormatError: as for `decompress`.
        """
        with self._lock:
            if not self._was_read:
                self._was_read = True
                return decompress(compression, pieces)
            missing = ~self._is_cached[chunks]
            if missing.any() and not self._add_chunks(chunks[missing], compression, pieces.select(missing)):
                return decompress(compression, pieces)
        return Ranges(self._data, self._starts[chunks], self._sizes[chunks])

    def _add_chunks(self, chunks: Ints, compression: pb.BufferCompression, pieces: Ranges) -> bool:
        """Cache chunks and return True; False if a chunk's size does not match its number of values."""
        plain = decompress(compression, pieces)
        if not np.array_equal(plain.sizes, self._sizes[chunks]):
            return False
        # Consecutive chunks are contiguous in both buffers, so they are copied together.
        firsts = np.flatnonzero(np.diff(chunks, prepend=-2) != 1)
        ends = np.append(firsts[1:], len(chunks)) - 1
        spans = zip(plain.starts[firsts].tolist(), self._starts[chunks[firsts]].tolist(), strict=True)
        sizes = self._starts[chunks[ends]] + self._sizes[chunks[ends]] - self._starts[chunks[firsts]]
        for (source, target), size in zip(spans, sizes.tolist(), strict=True):
            self._data[target : target + size] = plain.data[source : source + size]
        self._is_cached[chunks] = True
        return True


_PLAIN_CHUNKS: CacheSection[PlainChunks] = CacheSection("decompressed chunks", CACHE, share=1 / 8)


def get_cached_chunks(source: PageSource, offset: int, counts: Ints, width: int | None) -> PlainChunks | None:
    """Return the cache of a page's decompressed chunks; None if the page is not cached.

    Args:
        source: the file.
        offset: position of the page's chunks in the file.
        counts: number of values of each chunk.
        width: bytes of a decompressed value; None if values vary in width.
    """
    size = int(counts.sum()) * (width or 0)
    if not 0 < size <= _MAX_CACHED_BYTES or source.state is None:
        return None
    return _PLAIN_CHUNKS.get((source.state, offset), lambda: PlainChunks(counts, width or 0), lambda _: size)


# Values are picked one by one if they are fewer than 1 / 8 of their chunks' values.
_PICK_BELOW = 8
_MAX_ROWS = 1 << 32
# Maximum bytes of a dictionary that is decoded to read part of its page.
_LARGE_DICTIONARY = 1 << 15
# Maximum bytes of a decoded dictionary that is kept for later reads.
_KEPT_DICTIONARY = 1 << 16
# Maximum number of chunks whose headers are kept.
_MAX_KEPT_CHUNKS = 1 << 14
# A read of the first rows of a page fetches this many bytes of chunks before it knows the chunk positions.
_FIRST_BYTES = 1 << 16
# Parsed chunk tables, by their bytes.
_CHUNKS: CacheSection[ChunkTable] = CacheSection("chunk tables", CACHE, share=1 / 16, counted=False)
# Memory of one chunk in a cached table: its word and four numbers.
_KEPT_CHUNK_BYTES = 40


@dataclass(frozen=True)
class _RowIndex:
    """The repetition index.

    Attributes:
        num_starts: number of rows that start before each chunk, and the total.
        num_ends: number of rows that end before each chunk, and the total."""

    num_starts: Ints
    num_ends: Ints

    def find_chunks(self, rows: Ints) -> Ints:
        """Return the chunks that contain parts of the given ascending rows."""
        heads = np.searchsorted(self.num_starts[1:], rows, side="right")
        tails = np.searchsorted(self.num_ends[1:], rows, side="right")
        edges = np.zeros(len(self.num_starts), dtype=np.int64)
        np.add.at(edges, heads, 1)
        np.subtract.at(edges, tails + 1, 1)
        return np.flatnonzero(np.cumsum(edges[:-1]))


class RowPage:
    """Reads single rows of a page of one leaf column."""

    def __init__(self, page: Page, path: Sequence[Field], source: PageSource) -> None:
        """Prepare to read, without reading anything."""
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
        """Return the (offset, size) of the buffers that locate rows, if they must be read whole."""
        if self._layout.WhichOneof("layout") != "mini_block_layout":
            return []
        return [each for number, each in enumerate(self._page.buffers) if number != 1]

    def plan_take(self, rows: Ints) -> Plan:
        """Return the byte ranges that `take` needs, step by step.

        A small page is read whole, because that costs less than a second round trip.

        Raises:
            FormatError, UnsupportedFormatError: as for `take`.
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
                yield _merge_ranges(index + rows * entry, np.full(len(rows), 2 * entry, np.int64))
                starts, sizes = self._zip_bounds(rows, size)
            else:
                starts, sizes = rows * width, np.full(len(rows), width, np.int64)
            yield _merge_ranges(offset + starts, sizes)
        else:
            layout = self._layout.mini_block_layout
            # If all rows are likely in the first chunks, fetch these together with the chunk words.
            offset, size = self._buffer(1)
            is_near_start = int(rows[-1]) * size < _FIRST_BYTES * self._page.length // 2
            yield [*self.ranges(), *([(offset, min(size, _FIRST_BYTES))] if is_near_start else ())]
            table = self._chunk_table(layout)
            chunks = self._chunks_of(layout, table, rows)
            yield (
                [self._buffer(1)]
                if chunks is None
                else _merge_ranges(self._buffer(1)[0] + table.bounds[chunks], table.sizes[chunks])
            )

    def _chunks_of(self, layout: pb.MiniBlockLayout, table: ChunkTable, rows: Ints) -> Ints | None:
        """Return the ascending numbers of the chunks that contain the rows; None for all chunks."""
        if not self._has_lists:
            self._ends(table)
            return np.unique(table.locate_values(rows)[0])
        index = self._row_index(layout, len(table.counts))
        return None if index is None else index.find_chunks(rows)

    def take(self, rows: Ints) -> pa.Array:
        """Return rows of the page as an array of the path's type.

        Args:
            rows: ascending unique row numbers in the page.

        Raises:
            FormatError: the page is damaged.
            UnsupportedFormatError: the page uses something that this release does not know.
        """
        array = self._take_rows(rows)
        if len(array) != len(rows):
            raise FormatError(f"{len(rows)} rows of a page decode to {len(array)}")
        return array

    def part(self, start: int, stop: int) -> tuple[pa.Array, int] | None:
        """Decode the chunks that contain rows [start, stop), at least one row.

        Returns:
            The rows of these chunks and the number of the first row; None if the page should be decoded
            whole.

        Raises:
            FormatError, UnsupportedFormatError: as for `take`.
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
        """Return the end row of each chunk of a page without lists."""
        ends = table.ends
        if int(ends[-1]) != self._page.length:
            raise FormatError(f"a page of {self._page.length} rows has {int(ends[-1])} values")
        return ends

    def _take_rows(self, rows: Ints) -> pa.Array:
        layout = self._layout
        name = layout.WhichOneof("layout")
        if not any(field.kind == "fsl_struct" for field in self._path):
            if name == "mini_block_layout":
                return self._take_mini_block(layout.mini_block_layout, rows)
            if name == "full_zip_layout":
                return self._take_full_zip(layout.full_zip_layout, rows)
        if name == "constant_layout" and constant.is_uniform(layout.constant_layout, len(self._page.buffers)):
            return decode_page(self._page, self._path, self._source, 0, len(rows))[0]
        all_rows, first = decode_page(
            self._page, self._path, self._source, 0, page_rows(self._page, self._path)
        )
        return make_filterable(all_rows).take(pa.array(rows - first))

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
        row_chunks, places = table.locate_values(rows)
        is_first = run_starts(row_chunks)
        chunks, chunk_index = row_chunks[is_first], np.cumsum(is_first) - 1
        counts = table.counts[chunks]
        if self._can_pick is None:
            self._can_pick = mini_block.can_pick(layout)
        if self._can_pick and len(rows) * _PICK_BELOW < int(counts.sum()):
            unpack = self._unpack(layout, table, chunks)

            def pick() -> DecodedPage:
                layout_parts = self._all_chunk_parts(layout, table, chunks)
                if layout_parts is None:
                    parts = mini_block.chunk_parts(layout, self._spans(table, chunks)).of(chunk_index)
                    return mini_block.pick_values(layout, parts, counts[chunk_index], places, items, unpack)
                levels = None if self._level_runs is None else self._level_runs.at(row_chunks, places)
                return mini_block.pick_values(
                    layout, layout_parts.of(row_chunks), counts[chunk_index], places, items, unpack, levels
                )

            return build(self._path, pick)
        spans = self._spans(table, chunks)
        array = build(
            self._path, lambda: mini_block.decode_chunks(layout, spans, counts, items, RESOLVER).page
        )
        positions = exclusive_sum(counts)[chunk_index] + places
        first, end = int(positions[0]), int(positions[-1]) + 1
        if end - first == len(positions) and 2 * len(positions) >= len(array):
            return array.slice(first, len(positions))
        return make_filterable(array).take(pa.array(positions))

    def _all_chunk_parts(
        self, layout: pb.MiniBlockLayout, table: ChunkTable, chunks: Ints
    ) -> ChunkParts | None:
        """Return the parsed headers of all chunks; None until the page of a local file is read a second time.

        A page that is read twice is likely to be read more often. `chunks` are the chunks of this read, for
        the counters.
        """
        if self._all_parts is None and self._visits == 1:
            # Damage in other chunks does not matter for this read.
            with suppress(FormatError):
                all_parts = mini_block.chunk_parts(layout, self._spans(table, np.arange(len(table.counts))))
                self._level_runs = mini_block.level_runs(layout, all_parts, table.counts)
                self._all_parts = all_parts
        elif self._all_parts is not None:
            count_read(int(table.sizes[chunks].sum()), len(chunks), len(chunks))
        if self._source.is_mapped and len(table.counts) <= _MAX_KEPT_CHUNKS:
            self._visits += 1
        return self._all_parts

    @cached_property
    def _has_lists(self) -> bool:
        """Whether the mini-block page has lists."""
        return any(layer.is_list for layer in number_layers(self._layout.mini_block_layout.layers))

    def _items(self, layout: pb.MiniBlockLayout) -> Items | None:
        """Return a function that decodes the page's dictionary, or None. A small one is decoded once."""
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
        """Return a function that decompresses chunks of the page, with a cache if possible."""
        width = plain_width(layout.value_compression)
        plain_chunks = (
            get_cached_chunks(self._source, self._buffer(1)[0], table.counts, width) if width else None
        )
        return decompress if plain_chunks is None else partial(plain_chunks.get, chunks)

    def _row_index(self, layout: pb.MiniBlockLayout, chunks: int) -> _RowIndex | None:
        """Return the repetition index; None if the page has no usable one."""
        if self._index is None and layout.repetition_index_depth == 1:
            number = 3 if has_dictionary(layout) else 2
            if number >= len(self._page.buffers) or self._buffer(number)[1] != chunks * 16:
                return None
            pairs = self._read(number).view("<u8").reshape(chunks, 2)
            if int(pairs.max()) > _MAX_ROWS:
                return None
            num_ends = exclusive_sum(pairs[:, 0].astype(np.int64))
            num_starts = num_ends.copy()
            num_starts[1:] += pairs[:, 1] > 0
            if int(num_ends[-1]) != self._page.length or int(num_starts[-1]) != self._page.length:
                return None
            self._index = _RowIndex(num_starts, num_ends)
        return self._index

    def _take_lists(
        self, layout: pb.MiniBlockLayout, table: ChunkTable, items: Items | None, rows: Ints
    ) -> pa.Array:
        index = self._row_index(layout, len(table.counts))
        if index is None:
            all_rows, first = decode_page(self._page, self._path, self._source, 0, self._page.length)
            return make_filterable(all_rows).take(pa.array(rows - first))
        heads = np.searchsorted(index.num_starts[1:], rows, side="right")
        chunk_numbers = index.find_chunks(rows)
        # Consecutive chunks form a run.
        firsts = np.flatnonzero(np.diff(chunk_numbers, prepend=-2) != 1)
        starting = (index.num_starts[1:] - index.num_starts[:-1])[chunk_numbers]
        spans, counts = self._spans(table, chunk_numbers), table.counts[chunk_numbers]
        extras: list[Ints] = []

        def decode() -> DecodedPage:
            chunks = mini_block.decode_chunks(layout, spans, counts, items, RESOLVER)
            page, extra = _split_runs(chunks, firsts)
            extras.append(extra)
            return page

        array = build(self._path, decode)
        before = exclusive_sum(starting)
        # The end of a row that started before a run was decoded as a row of its own.
        extra_before = np.cumsum(extras[0])
        if len(array) != int(before[-1]) + int(extra_before[-1]):
            raise FormatError("the repetition index does not fit the page's rows")
        at = np.searchsorted(chunk_numbers, heads)
        run = np.searchsorted(firsts, at, side="right") - 1
        places = before[at] + extra_before[run] + rows - index.num_starts[heads]
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
        """Return the position of the repetition index in the file, and the bytes per entry."""
        offset, size = self._buffer(1)
        width, remainder = divmod(size, self._page.length + 1)
        if remainder or width not in (1, 2, 4, 8):
            raise FormatError(f"a repetition index of {size} bytes for {self._page.length} rows")
        return offset, width

    def _zip_bounds(self, rows: Ints, limit: int) -> tuple[Ints, Ints]:
        """Return the positions and sizes of rows in buffer 0, from the repetition index."""
        offset, width = self._zip_index()
        data, at = self._source.gather(offset + rows * width, np.full(len(rows), 2 * width, dtype=np.int64))
        # Positions of 2**63 or more become negative and fail the comparison.
        starts = gather_integers(data, at, width).astype(np.int64)
        ends = gather_integers(data, at + width, width).astype(np.int64)
        ascending = np.stack([starts, ends], axis=1).reshape(-1)
        if len(rows) and (ascending[0] < 0 or ascending[-1] > limit or bool((np.diff(ascending) < 0).any())):
            raise FormatError("the repetition index does not ascend within the page")
        return starts, ends - starts


def _merge_ranges(starts: Ints, sizes: Ints) -> list[tuple[int, int]]:
    """Return ascending ranges as (offset, size), with adjacent and overlapping ranges merged."""
    if not len(starts):
        return []
    ends = np.maximum.accumulate(starts + sizes)
    firsts = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    lasts = np.append(firsts[1:], len(starts)) - 1
    return list(zip(starts[firsts].tolist(), (ends[lasts] - starts[firsts]).tolist(), strict=True))


def _split_runs(chunks: mini_block.DecodedChunks, firsts: Ints) -> tuple[DecodedPage, Ints]:
    """Make every run of chunks start with a new row, so that it does not continue the previous run.

    Args:
        chunks: chunks of a page with lists.
        firsts: index of the first chunk of each run.

    Returns:
        The changed page, and 1 for each run that did not start with a new row before, else 0.

    Raises:
        FormatError: a run starts with a chunk without levels.
    """
    levels = chunks.levels
    if levels.rep is None or bool((chunks.level_counts[firsts] == 0).any()):
        raise FormatError("a chunk of lists has no levels")
    at = exclusive_sum(chunks.level_counts)[firsts]
    rep = levels.rep.copy()
    extra = (rep[at] != levels.max_rep).astype(np.int64)
    rep[at] = levels.max_rep
    return DecodedPage(replace(levels, rep=rep), chunks.values), extra
