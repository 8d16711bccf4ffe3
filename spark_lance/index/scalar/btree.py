"""BTREE: all values in order, in pages, with the bounds of every page.

    page_data.lance     values: column type, ids: uint64    ascending, nulls first, NaN last
    page_lookup.lance   min, max: column type, null_count: uint32, page_idx: uint32
                        metadata `batch_size` rows of a page ("4096"), `range_partitioned` "false"

Before Lance 0.21, both were legacy files, and `ids` was `row_ids`.

Page p has rows [p * batch_size, (p + 1) * batch_size) of the data. `min` is the first value of a page, so a
page that begins with nulls has none. Rows are named by address. Exact. (Lance index format, B-tree.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import IndexFile, IndexFileWriter, RowAddressMap
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

DATA_FILE, LOOKUP_FILE = "page_data.lance", "page_lookup.lance"
_IDS, _OLD_IDS = "ids", "row_ids"
_PAGE_ROWS = 4096
_NESTED = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_null)
# Pages that are read at once.
_RUN_PAGES = 256
_RUN_ROWS = _PAGE_ROWS * _RUN_PAGES
# Pages of runs that are read together.
_TOGETHER = 128
# An answer of a larger share of the pages takes longer to read than it saves.
_MOST_PAGES = 0.5
# Single values lie far apart, and their rows are few: so many pages are read for them, whatever their share.
_POINT_PAGES = 1024
# Pages between two that are wanted are read with them, up to this many.
_GAP_PAGES = 2

# Values in order, and their rows.
Run = tuple[pa.Array, Numbers]
_Span = tuple[int, int]

_PAGES: CacheSection[Entries] = CacheSection("pages of B-trees", CACHE)
_LOOKUPS: CacheSection[tuple[pa.Table, int]] = CacheSection("bounds of B-trees", CACHE)


class Entries:
    """Values that follow each other in an index, and their rows.

    Args:
        table: `values` and `ids`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.values: pa.ChunkedArray = table["values"]
        self.ids: Numbers = table[_IDS].to_numpy()
        self.nbytes = int(table.nbytes)

    @cached_property
    def numbers(self) -> npt.NDArray[np.integer[Any]] | None:
        """The values, if they are integers in order."""
        if not pa.types.is_integer(self.values.type) or self.values.null_count:
            return None
        numbers = self.values.to_numpy()
        return None if np.any(numbers[1:] < numbers[:-1]) else numbers


class BTree(ScalarIndex):
    """Values in order."""

    name = "BTREE"
    label = "btreeindexdetails"
    type_url = INDEX_KINDS[label].type_url
    newest = 1
    can_move = True
    is_exact = True

    @classmethod
    def addresses_when(cls, version: int) -> bool:
        """From version 1 on, rows are named by address in every table."""
        return version >= 1

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return 1 for tables with stable row ids, whose rows are named by address."""
        return int(stable_row_ids)

    @classmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values have an order."""
        return not any(test(kind) for test in _NESTED)

    @cached_property
    def _lookup(self) -> tuple[pa.Table, int]:
        """The bounds of all pages, and the rows of a page."""
        file = self.segment.file(LOOKUP_FILE)
        return _LOOKUPS.get(
            self.segment.store.cache_key(file.path),
            lambda: self._read_lookup(file),
            lambda page: page[0].nbytes,
        )

    def _read_lookup(self, file: IndexFile) -> tuple[pa.Table, int]:
        size = file.parsed("batch_size", int) if "batch_size" in file.metadata else _PAGE_ROWS
        if size < 1:
            raise FormatError(f"pages of {size} rows", file.path)
        return file.read(["min", "max", "null_count", "page_idx"]), size

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return exactly the rows for which a comparison is true."""
        pages = self._pages(probe)
        if pages is None:
            return None
        lookup, size = self._lookup
        points = probe.points(lookup["min"].type)
        sorted_points = np.unique(np.array(points, np.int64)) if points and type(points[0]) is int else None
        parts = [np.empty(0, np.uint64)]
        runs = _spans(np.sort(pages), lookup.num_rows, alone=points is not None)
        for spans in _groups(runs):
            for entries in self._read_all([(start * size, stop * size) for start, stop in spans]):
                places = None if sorted_points is None else _places_of(sorted_points, entries)
                parts.append(entries.ids[probe.true_for(entries.values) if places is None else places])
        return RowSet.from_addresses(np.concatenate(parts))

    def find_bytes(self, probe: ColumnPredicate) -> int | None:
        """Return about the bytes that `find` reads; None if it does not help."""
        pages = self._pages(probe)
        if pages is None:
            return None
        file = self.segment.file(DATA_FILE)
        size = file.size or file.num_bytes
        all_pages: int = max(1, self._lookup[0].num_rows)
        return size * len(pages) // all_pages

    def _pages(self, probe: ColumnPredicate) -> npt.NDArray[np.int64] | None:
        """Return the pages that may have rows for which a comparison is true; None for too many."""
        # How much an answer reads is asked before the answer.
        last_probe, pages = self._last_answer
        if last_probe is not probe:
            pages = self._pages_of(probe)
            self._last_answer = probe, pages
        return pages

    _last_answer: tuple[ColumnPredicate | None, npt.NDArray[np.int64] | None] = None, None

    def _pages_of(self, probe: ColumnPredicate) -> npt.NDArray[np.int64] | None:
        lookup, _ = self._lookup
        if probe.operator == "is_null":
            mask = lookup["null_count"].to_numpy() > 0
        else:
            result = probe.maybe_between(one_array(lookup["min"]), one_array(lookup["max"]))
            if result is None:
                return None
            mask = result
        pages: npt.NDArray[np.int64] = lookup["page_idx"].to_numpy()[mask].astype(np.int64)
        few = _RUN_PAGES if probe.points(lookup["min"].type) is None else _POINT_PAGES
        return None if len(pages) > max(few, _MOST_PAGES * lookup.num_rows) else pages

    @cached_property
    def entries(self) -> int:
        """How many rows the index has entries of."""
        return self.segment.file(DATA_FILE).num_rows

    @cached_property
    def null_entries(self) -> int | None:
        """How many of the first entries have no value; None if the pages lie in several files."""
        lookup, _ = self._lookup
        if self.segment.file(LOOKUP_FILE).metadata.get("range_partitioned", "false") != "false":
            return None
        return int(lookup["null_count"].to_numpy().sum())

    @property
    def is_floating(self) -> bool:
        """Whether the values are floating-point numbers."""
        return bool(pa.types.is_floating(self._lookup[0]["min"].type))

    @cached_property
    def has_numbers_first(self) -> bool:
        """Whether no NaN comes before the numbers, as one with a sign does."""
        first = self.null_entries
        if first is None or first >= self.entries:
            return True
        return not bool(np.isnan(self.value(first)[0].as_py()))

    def value(self, place: int) -> pa.ChunkedArray:
        """Return the value of one entry, as an array."""
        return self._read(place, place + 1).values

    def ids(self, start: int, stop: int) -> Numbers:
        """Return the rows of entries [start, stop), in the order of their values."""
        return self._read(start, stop).ids

    def _read(self, start: int, stop: int) -> Entries:
        return self._read_all([(start, stop)])[0]

    def _read_all(self, spans: Sequence[_Span]) -> list[Entries]:
        """Return entries [start, stop) of spans, ascending and apart from each other."""
        file = self.segment.file(DATA_FILE)
        place = self.segment.store.cache_key(file.path)

        def read(missing: Sequence[tuple[Hashable, int, int]]) -> Iterator[Entries]:
            return map(Entries, _tables(file, [(start, stop) for _, start, stop in missing]))

        return _PAGES.get_all([(place, *span) for span in spans], read, lambda page: page.nbytes)

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Sort all values and write them."""
        pieces = list(rows.pieces())
        values = pa.chunked_array([piece for piece, _ in pieces], rows.kind)
        ids = np.concatenate([np.empty(0, np.uint64), *(numbers for _, numbers in pieces)])
        order = value_order(values)
        parts = (order[start : start + _RUN_ROWS] for start in range(0, len(order), _RUN_ROWS))
        return _write_runs(
            ((one_array(values.take(pa.array(part))), ids[part]) for part in parts), rows.kind, target
        )

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        bounded: Callable[[RowSet], RowSet],
    ) -> dict[str, int]:
        """Sort the values of all segments."""

        def pieces() -> Iterator[Run]:
            for segment in segments:
                file = segment.file(DATA_FILE)
                for start in range(0, file.num_rows, _RUN_ROWS):
                    table = _rows(file, start, start + _RUN_ROWS)
                    yield one_array(table["values"]), table[_IDS].to_numpy()

        return cls.build(Rows(pieces, kind, {}), target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Write the values of the rows that are still there, in the order that they have."""
        file = self.segment.file(DATA_FILE)

        def pieces() -> Iterator[Run]:
            for start in range(0, file.num_rows, _RUN_ROWS):
                table = _rows(file, start, start + _RUN_ROWS)
                ids, there = remap(table[_IDS].to_numpy())
                yield one_array(table["values"]).filter(pa.array(there)), ids[there]

        return _write_runs(_full_runs(pieces()), file.column_type("values"), target)


def _tables(file: IndexFile, spans: Sequence[_Span]) -> list[pa.Table]:
    """Return values and ids of spans [start, stop) of rows."""
    ids = _OLD_IDS if _OLD_IDS in file.arrow_schema.names else _IDS
    return [table.rename_columns(["values", _IDS]) for table in file.read_spans(["values", ids], spans)]


def _rows(file: IndexFile, start: int, stop: int) -> pa.Table:
    return _tables(file, [(start, stop)])[0]


def _full_runs(pieces: Iterable[Run]) -> Iterator[Run]:
    """Yield rows in runs of whole pages, except for the last."""
    pending: list[Run] = []
    rows = 0
    for piece in pieces:
        pending.append(piece)
        rows += len(piece[1])
        if rows >= _RUN_ROWS:
            values, ids = _joined(pending)
            yield values.slice(0, _RUN_ROWS), ids[:_RUN_ROWS]
            pending = [(values.slice(_RUN_ROWS), ids[_RUN_ROWS:])]
            rows -= _RUN_ROWS
    if rows:
        yield _joined(pending)


def _joined(runs: list[Run]) -> Run:
    return pa.concat_arrays([values for values, _ in runs]), np.concatenate([ids for _, ids in runs])


def _write_runs(runs: Iterable[Run], kind: pa.DataType, target: SegmentTarget) -> dict[str, int]:
    """Write ordered values and their rows, in runs of whole pages; the last run may be shorter."""
    schema = pa.schema([pa.field("values", kind), pa.field("ids", pa.uint64(), nullable=False)])
    bounds: list[pa.Table] = []
    pages = 0
    with IndexFileWriter(target.store, f"{target.directory}/{DATA_FILE}", schema, target.version) as data:
        for values, ids in runs:
            data.write([values, pa.array(ids)])
            bounds.append(_bounds(values, pages))
            pages += bounds[-1].num_rows
        sizes = {DATA_FILE: data.finish({})}
    sizes[LOOKUP_FILE] = _write_lookup(bounds, kind, target)
    return sizes


def _write_lookup(bounds: list[pa.Table], kind: pa.DataType, target: SegmentTarget) -> int:
    schema = pa.schema(
        [
            pa.field("min", kind),
            pa.field("max", kind),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ]
    )
    path = f"{target.directory}/{LOOKUP_FILE}"
    with IndexFileWriter(target.store, path, schema, target.version) as lookup:
        for table in bounds:
            lookup.write(
                [one_array(column).cast(field.type) for column, field in zip(table, schema, strict=True)]
            )
        return lookup.finish({"batch_size": str(_PAGE_ROWS), "range_partitioned": "false"})


def _bounds(values: pa.Array, first_page: int) -> pa.Table:
    """Return the lookup rows of values that begin at a page."""
    starts = np.arange(0, len(values), _PAGE_ROWS)
    ends = np.minimum(starts + _PAGE_ROWS, len(values)) - 1
    nulls = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
    return pa.table(
        {
            "min": values.take(pa.array(starts)),
            "max": values.take(pa.array(ends)),
            "null_count": (nulls[ends + 1] - nulls[starts]).astype(np.uint32),
            "page_idx": (first_page + np.arange(len(starts))).astype(np.uint32),
        }
    )


def value_order(values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the places of values in ascending order: nulls first, floats in total order, ties in theirs."""
    if not pa.types.is_floating(values.type):
        kind = values.type
        keys = values.cast(pa.binary()) if pa.types.is_fixed_size_binary(kind) else values
        result: npt.NDArray[np.int64] = (
            pc.array_sort_indices(one_array(keys), order="ascending", null_placement="at_start")
            .to_numpy()
            .astype(np.int64)
        )
        return result
    array = one_array(values)
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    bits = numbers.view(f"i{numbers.dtype.itemsize}")
    top = bits.dtype.itemsize * 8 - 1
    # Negative numbers order the wrong way round by their bits, so theirs are flipped.
    keys = bits ^ ((bits >> top) & np.array((1 << top) - 1, bits.dtype))
    return np.lexsort((keys, array.is_valid().to_numpy(zero_copy_only=False)))


def _places_of(points: npt.NDArray[np.int64], entries: Entries) -> npt.NDArray[np.int64] | None:
    """Return where some numbers stand among values; None if these are no numbers in order."""
    numbers = entries.numbers
    if numbers is None:
        return None
    if len(numbers):
        # Most numbers stand elsewhere: few of them are looked for.
        low, high = np.searchsorted(points, [numbers[0], numbers[-1]])
        points = points[low : high + 1]
    starts, ends = (np.searchsorted(numbers, points, side) for side in ("left", "right"))
    counts = ends - starts
    places: npt.NDArray[np.int64] = np.repeat(ends - np.cumsum(counts), counts) + np.arange(counts.sum())
    return places


def _groups(spans: Iterable[_Span]) -> Iterator[list[_Span]]:
    """Yield spans of pages in groups of about `_TOGETHER` pages."""
    group: list[_Span] = []
    pages = 0
    for start, stop in spans:
        if group and pages + stop - start > _TOGETHER:
            yield group
            group, pages = [], 0
        group.append((start, stop))
        pages += stop - start
    if group:
        yield group


def _spans(pages: npt.NDArray[np.int64], count: int, *, alone: bool) -> Iterator[_Span]:
    """Yield runs [start, stop) of `count` pages that have these in them, of at most `_RUN_PAGES` each.

    A block is read whole if most of its pages are needed, so that later look-ups find it in memory. In other
    blocks each page is a run if `alone`: later look-ups will need other pages around it. Otherwise adjacent
    pages, or nearly adjacent ones, are one run.
    """
    gap = 0 if alone else 1 + _GAP_PAGES
    for neighbours in np.split(pages, np.flatnonzero(np.diff(pages // _RUN_PAGES)) + 1):
        if not len(neighbours):
            continue
        first = int(neighbours[0]) // _RUN_PAGES * _RUN_PAGES
        stop = max(min(first + _RUN_PAGES, count), int(neighbours[-1]) + 1)
        if 2 * len(neighbours) > stop - first:
            yield first, stop
            continue
        for near in np.split(neighbours, np.flatnonzero(np.diff(neighbours) > gap) + 1):
            yield int(near[0]), int(near[-1]) + 1
