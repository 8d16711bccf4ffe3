"""BTREE: all values in order, split into pages, with the bounds of each page.

    page_data.lance     values: column type, ids: uint64    ascending, nulls first, NaN last
    page_lookup.lance   min, max: column type, null_count: uint32, page_idx: uint32
                        metadata `batch_size` rows per page ("4096"), `range_partitioned` "false"

Before Lance 0.21, both were legacy files, and `ids` was `row_ids`.

Page p has rows [p * batch_size, (p + 1) * batch_size) of the data. `min` is the first value of a page, so it
is null for a page that begins with nulls. Rows are stored as addresses. Exact. (Lance index format, B-tree.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
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
# Maximum pages per read.
_RUN_PAGES = 256
_RUN_ROWS = _PAGE_ROWS * _RUN_PAGES
# Approximate pages of runs that are read in one request.
_GROUP_PAGES = 128
# Above this fraction of the pages, a scan is faster than the index.
_MAX_PAGE_FRACTION = 0.5
# Always allow this many pages for single values: each page has only a few matching rows.
_MAX_POINT_PAGES = 1024
# Maximum gap, in pages, between two needed pages that are read as one run.
_GAP_PAGES = 2

# Ordered values, and their row numbers.
Run = tuple[pa.Array, Numbers]
_Span = tuple[int, int]

_PAGES: CacheSection[Entries] = CacheSection("pages of B-trees", CACHE)
_LOOKUPS: CacheSection[tuple[pa.Table, int]] = CacheSection("bounds of B-trees", CACHE)


class Entries:
    """A contiguous range of index entries: values and row numbers.

    Args:
        table: columns `values` and `ids`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.values: pa.ChunkedArray = table["values"]
        self.ids: Numbers = numbers_to_numpy(one_array(table[_IDS]))
        self.nbytes = int(table.nbytes)

    @cached_property
    def numbers(self) -> npt.NDArray[np.integer[Any]] | None:
        """The values as numpy integers; None if they are not ascending integers without nulls."""
        if not pa.types.is_integer(self.values.type) or self.values.null_count:
            return None
        numbers = numbers_to_numpy(one_array(self.values))
        return None if np.any(numbers[1:] < numbers[:-1]) else numbers


class BTree(ScalarIndex):
    """B-tree index: ordered values in pages."""

    name = "BTREE"
    label = "btreeindexdetails"
    type_url = INDEX_KINDS[label].type_url
    newest = 1
    can_move = True
    is_exact = True

    @classmethod
    def addresses_when(cls, version: int) -> bool:
        """Return True for version 1 and later, which always refer to rows by address."""
        return version >= 1

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return 1 for tables with stable row ids, so that the index refers to rows by address."""
        return int(stable_row_ids)

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values have an order."""
        return not any(test(kind) for test in _NESTED)

    @cached_property
    def _lookup(self) -> tuple[pa.Table, int]:
        """The bounds of all pages, and the number of rows per page."""
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
        """Return exactly the rows that match a comparison."""
        pages = self._pages(probe)
        if pages is None:
            return None
        lookup, size = self._lookup
        points = probe.points(lookup["min"].type)
        sorted_points = np.unique(np.array(points, np.int64)) if points and type(points[0]) is int else None
        parts = [np.empty(0, np.uint64)]
        runs = _page_runs(np.sort(pages), lookup.num_rows, alone=points is not None)
        for spans in _group_spans(runs):
            for entries in self._read_all([(start * size, stop * size) for start, stop in spans]):
                positions = None if sorted_points is None else _find_points(sorted_points, entries)
                parts.append(entries.ids[probe.evaluate(entries.values) if positions is None else positions])
        return RowSet.from_addresses(np.concatenate(parts))

    def find_bytes(self, probe: ColumnPredicate) -> int | None:
        """Estimate the bytes that `find` reads; None if it cannot answer."""
        pages = self._pages(probe)
        if pages is None:
            return None
        file = self.segment.file(DATA_FILE)
        size = file.size or file.num_bytes
        all_pages: int = max(1, self._lookup[0].num_rows)
        return size * len(pages) // all_pages

    def _pages(self, probe: ColumnPredicate) -> npt.NDArray[np.int64] | None:
        """Return the pages that can have matching rows; None if there are too many."""
        # `find_bytes` is called before `find` with the same predicate.
        last_probe, pages = self._last_answer
        if last_probe is not probe:
            pages = self._pages_of(probe)
            self._last_answer = probe, pages
        return pages

    _last_answer: tuple[ColumnPredicate | None, npt.NDArray[np.int64] | None] = None, None

    def _pages_of(self, probe: ColumnPredicate) -> npt.NDArray[np.int64] | None:
        lookup, _ = self._lookup
        if probe.operator == "is_null":
            mask = numbers_to_numpy(one_array(lookup["null_count"])) > 0
        else:
            result = probe.maybe_between(one_array(lookup["min"]), one_array(lookup["max"]))
            if result is None:
                return None
            mask = result
        pages: npt.NDArray[np.int64] = numbers_to_numpy(one_array(lookup["page_idx"]))[mask].astype(np.int64)
        few = _RUN_PAGES if probe.points(lookup["min"].type) is None else _MAX_POINT_PAGES
        return None if len(pages) > max(few, _MAX_PAGE_FRACTION * lookup.num_rows) else pages

    @cached_property
    def entries(self) -> int:
        """Number of entries."""
        return self.segment.file(DATA_FILE).num_rows

    @cached_property
    def null_entries(self) -> int | None:
        """Number of null entries, which come first; None if the index has several page files."""
        lookup, _ = self._lookup
        if self.segment.file(LOOKUP_FILE).metadata.get("range_partitioned", "false") != "false":
            return None
        return int(numbers_to_numpy(one_array(lookup["null_count"])).sum())

    @property
    def is_floating(self) -> bool:
        """Whether the values are floating-point numbers."""
        return bool(pa.types.is_floating(self._lookup[0]["min"].type))

    @cached_property
    def has_numbers_first(self) -> bool:
        """Whether no NaN sorts before the numbers. A NaN with a sign bit does."""
        first = self.null_entries
        if first is None or first >= self.entries:
            return True
        return not bool(np.isnan(self.value(first)[0].as_py()))

    def value(self, position: int) -> pa.ChunkedArray:
        """Return the value of one entry, as an array of length 1."""
        return self._read(position, position + 1).values

    def ids(self, start: int, stop: int) -> Numbers:
        """Return the row numbers of entries [start, stop), ordered by value."""
        return self._read(start, stop).ids

    def _read(self, start: int, stop: int) -> Entries:
        return self._read_all([(start, stop)])[0]

    def _read_all(self, spans: Sequence[_Span]) -> list[Entries]:
        """Return the entries of each span [start, stop). Spans are ascending and do not overlap."""
        file = self.segment.file(DATA_FILE)
        position = self.segment.store.cache_key(file.path)

        def read(missing: Sequence[tuple[Hashable, int, int]]) -> Iterator[Entries]:
            return map(Entries, _read_tables(file, [(start, stop) for _, start, stop in missing]))

        return _PAGES.get_all([(position, *span) for span in spans], read, lambda page: page.nbytes)

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Sort all values and write them; return file name -> size in bytes."""
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
        existing_rows: Callable[[RowSet], RowSet],
    ) -> dict[str, int]:
        """Sort the values of all segments into one segment."""

        def pieces() -> Iterator[Run]:
            for segment in segments:
                file = segment.file(DATA_FILE)
                for start in range(0, file.num_rows, _RUN_ROWS):
                    table = _read_rows(file, start, start + _RUN_ROWS)
                    yield one_array(table["values"]), table[_IDS].to_numpy()

        return cls.build(Rows(pieces, kind, {}), target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Write the entries of the remaining rows in the same order, with current addresses."""
        file = self.segment.file(DATA_FILE)

        def pieces() -> Iterator[Run]:
            for start in range(0, file.num_rows, _RUN_ROWS):
                table = _read_rows(file, start, start + _RUN_ROWS)
                ids, is_present = remap(table[_IDS].to_numpy())
                yield one_array(table["values"]).filter(pa.array(is_present)), ids[is_present]

        return _write_runs(_full_runs(pieces()), file.column_type("values"), target)


def _read_tables(file: IndexFile, spans: Sequence[_Span]) -> list[pa.Table]:
    """Return the columns `values` and `ids` of each span [start, stop) of rows."""
    ids = _OLD_IDS if _OLD_IDS in file.arrow_schema.names else _IDS
    return [table.rename_columns(["values", _IDS]) for table in file.read_spans(["values", ids], spans)]


def _read_rows(file: IndexFile, start: int, stop: int) -> pa.Table:
    return _read_tables(file, [(start, stop)])[0]


def _full_runs(pieces: Iterable[Run]) -> Iterator[Run]:
    """Yield rows in runs of whole pages. The last run may be shorter."""
    pending: list[Run] = []
    rows = 0
    for piece in pieces:
        pending.append(piece)
        rows += len(piece[1])
        if rows >= _RUN_ROWS:
            values, ids = _concat_runs(pending)
            yield values.slice(0, _RUN_ROWS), ids[:_RUN_ROWS]
            pending = [(values.slice(_RUN_ROWS), ids[_RUN_ROWS:])]
            rows -= _RUN_ROWS
    if rows:
        yield _concat_runs(pending)


def _concat_runs(runs: list[Run]) -> Run:
    return pa.concat_arrays([values for values, _ in runs]), np.concatenate([ids for _, ids in runs])


def _write_runs(runs: Iterable[Run], kind: pa.DataType, target: SegmentTarget) -> dict[str, int]:
    """Write ordered values and their row numbers. All runs except the last have whole pages."""
    schema = pa.schema([pa.field("values", kind), pa.field("ids", pa.uint64(), nullable=False)])
    bounds: list[pa.Table] = []
    pages = 0
    with IndexFileWriter(target.store, f"{target.directory}/{DATA_FILE}", schema, target.version) as data:
        for values, ids in runs:
            data.write([values, pa.array(ids)])
            bounds.append(_page_bounds(values, pages))
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


def _page_bounds(values: pa.Array, first_page: int) -> pa.Table:
    """Return the lookup rows of values that start at page `first_page`."""
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
    """Return the indices that sort values: nulls first, floats in total order, stable (int64)."""
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
    # The bits of negative numbers sort in reverse, so flip them.
    keys = bits ^ ((bits >> top) & np.array((1 << top) - 1, bits.dtype))
    return np.lexsort((keys, array.is_valid().to_numpy(zero_copy_only=False)))


def _find_points(points: npt.NDArray[np.int64], entries: Entries) -> npt.NDArray[np.int64] | None:
    """Return the positions of entries that equal a point; None if the values are not ordered integers."""
    numbers = entries.numbers
    if numbers is None:
        return None
    if len(numbers):
        # Most points are outside the range of these entries: search only the others.
        low, high = np.searchsorted(points, [numbers[0], numbers[-1]])
        points = points[low : high + 1]
    starts, ends = (np.searchsorted(numbers, points, side) for side in ("left", "right"))
    counts = ends - starts
    positions: npt.NDArray[np.int64] = np.repeat(ends - np.cumsum(counts), counts) + np.arange(counts.sum())
    return positions


def _group_spans(spans: Iterable[_Span]) -> Iterator[list[_Span]]:
    """Yield spans of pages in groups of about `_GROUP_PAGES` pages."""
    group: list[_Span] = []
    pages = 0
    for start, stop in spans:
        if group and pages + stop - start > _GROUP_PAGES:
            yield group
            group, pages = [], 0
        group.append((start, stop))
        pages += stop - start
    if group:
        yield group


def _page_runs(pages: npt.NDArray[np.int64], count: int, *, alone: bool) -> Iterator[_Span]:
    """Yield runs [start, stop) that contain the given pages (of `count`), at most `_RUN_PAGES` pages each.

    A block is read whole if most of its pages are needed, so that later lookups find it in the cache. In
    other blocks, with `alone`, each page is its own run, because later lookups need different pages nearby.
    Otherwise, adjacent or nearly adjacent pages form one run.
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
