"""Rows of one top-level field from the pages of its leaf columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_lance.arrow.arrays import CapacityError, join, make_filterable
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import ColumnMetadata
from spark_lance.file.base.nested import merge_paths
from spark_lance.file.base.schema import Field, paths
from spark_lance.file.base.source import PageSource, Plan, merge_plans
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.base.chunks import run_starts
from spark_lance.file.v2_1.layouts import full_zip
from spark_lance.file.v2_1.read.page import (
    RUN_ITEMS,
    decode_page,
    decode_run,
    page_layout,
    page_ranges,
    page_rows,
    run_key,
)
from spark_lance.file.v2_1.read.row_page import RowPage

# A row address has 32 bits for the row in a fragment.
_MAX_ROWS = 1 << 32
# A read of at most one of this many rows of a page does not decode the page.
_NARROW = 16
# A read of fewer rows of a page than that decodes as much as gives this many Arrow bytes, for the reads after
# it: more would be held for every column.
_PART_BYTES = 2 << 20
# The number of pages whose chunk positions are kept.
_KEPT_PAGES = 32
# Decoded text is about this many times as long as stored text.
_TEXT_RATIO = 3

# Page number, first and end row in the page.
_Span: TypeAlias = tuple[int, int, int]


class FieldReader:
    """Decodes one top-level field of a file of version 2.1 or 2.2; its children may be a subset."""

    def __init__(
        self, field: Field, columns: Mapping[int, ColumnMetadata], source: PageSource, version: FileVersion
    ) -> None:
        """Prepare to read; no page is touched.

        Args:
            field: the top-level field.
            columns: for every leaf below (or equal to) `field`, by field id, its column.
            source: the file's bytes.
            version: the file's version.

        Raises:
            FormatError: columns are missing or differ in rows.
            UnsupportedFormatError: the field is stored in a way that this release does not read.
        """
        self._field = field
        self._type = field.arrow_type()
        self._paths = [_PathReader(path, columns, source) for path in paths(field)]
        rows = {path.num_rows for path in self._paths}
        if len(rows) > 1:
            raise FormatError(f"the columns of field {field.name!r} have {sorted(rows)} rows")

    @property
    def num_rows(self) -> int:
        """Rows of the field, as its pages say."""
        return self._paths[0].num_rows

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the (offset, size) byte ranges that reading rows [start, stop) will ask for."""
        return [byte_range for path in self._paths for byte_range in path.ranges(start, stop)]

    def plan_read(self, start: int, stop: int) -> Plan:
        """Return the byte ranges that `read` needs, step by step."""
        return merge_plans([path.plan_read(start, stop) for path in self._paths])

    def plan_take(self, rows: Ints) -> Plan:
        """Return the byte ranges that `take` needs, step by step."""
        return merge_plans([path.plan_take(rows) for path in self._paths])

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        """Return rows [start, stop) as the field's Arrow type; chunks follow the pages.

        Raises:
            FormatError: the file is damaged, or has fewer rows.
            UnsupportedFormatError: a page uses something that this release does not know.
        """
        parts = [path.read(start, stop) for path in self._paths]
        if len(parts) == 1:
            arrays = [merge_paths(self._field, [piece]) for piece in parts[0]]
        else:
            arrays = [merge_paths(self._field, pieces) for pieces in _align(parts)]
        return pa.chunked_array(arrays, type=self._type)

    def lies_flat(self) -> bool:
        """Tell whether reads are slices of the file, without a copy."""
        return len(self._paths) == 1 and self._paths[0].lies_flat

    def is_light(self) -> bool:
        """Tell whether no page that was decoded is held for the next read."""
        return all(path.is_light() for path in self._paths)

    def take(self, rows: Ints) -> pa.ChunkedArray:
        """Return some rows as the field's Arrow type, decoding little more than these.

        Args:
            rows: ascending row numbers without repeats.

        Raises:
            FormatError: the file is damaged, or has fewer rows.
            UnsupportedFormatError: a page uses something that this release does not know.
        """
        parts = [path.take(rows) for path in self._paths]
        return pa.chunked_array([merge_paths(self._field, p) for p in _align(parts)], type=self._type)


def _align(parts: Sequence[Sequence[pa.Array]]) -> list[list[pa.Array]]:
    """Cut several sequences of arrays that cover the same rows at all their boundaries."""
    if len(parts) == 1:
        return [[piece] for piece in parts[0]]
    cuts = sorted({0, *(end for part in parts for end in accumulate(len(piece) for piece in part))})
    rows: list[list[pa.Array]] = [[] for _ in cuts[1:]]
    for part in parts:
        number = at = 0
        for piece in part:
            stop = at + len(piece)
            while number < len(rows) and cuts[number + 1] <= stop:
                size = cuts[number + 1] - cuts[number]
                whole = size == len(piece)
                rows[number].append(piece if whole else piece.slice(cuts[number] - at, size))
                number += 1
            at = stop
    return rows


class _PathReader:
    """Rows of one leaf column, nested as its path says; remembers the page decoded last."""

    def __init__(
        self, path: tuple[Field, ...], columns: Mapping[int, ColumnMetadata], source: PageSource
    ) -> None:
        leaf = path[-1]
        if leaf.kind == "blob" and not leaf.is_descriptor:
            raise UnsupportedFormatError(f"blob column {leaf.name!r} is read as descriptors only")
        column = columns.get(leaf.id)
        if column is None:
            raise FormatError(f"field {leaf.name!r} has no column in the file")
        self._path = path
        self._source = source
        self._index = column.index
        self._pages = column.pages
        try:
            # Row with which each page starts, and the end.
            self._starts = [0, *accumulate(page_rows(page, path) for page in column.pages)]
        except FormatError as error:
            raise error.at(place=f"column {column.index}") from error
        if self.num_rows > _MAX_ROWS:
            raise FormatError(f"a column of {self.num_rows} rows", place=f"column {column.index}")
        self._last: tuple[int, int, pa.Array] | None = None
        self._row_pages: dict[int, RowPage] = {}
        # Where a read begins that goes on from the one before it.
        self._next = 0

    @property
    def num_rows(self) -> int:
        return self._starts[-1]

    @cached_property
    def lies_flat(self) -> bool:
        """Whether the values of the first page lie there one after the other, as those of others then do."""
        if not self._source.is_mapped or not self._pages or len(self._path) > 1:
            return False
        layout = page_layout(self._pages[0])
        return layout.HasField("full_zip_layout") and full_zip.plain_width(layout.full_zip_layout) is not None

    def is_light(self) -> bool:
        return self._last is None

    def _spans(self, start: int, stop: int) -> list[_Span]:
        """Return (page number, first row, end row) of the pages that have rows [start, stop).

        First and end rows count from the start of the page.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise FormatError(
                f"rows {start} to {stop} of a column of {self.num_rows} rows", place=f"column {self._index}"
            )
        spans = []
        number = bisect_right(self._starts, start) - 1
        while number < len(self._pages) and self._starts[number] < stop:
            base, end = self._starts[number], self._starts[number + 1]
            if max(start, base) < min(stop, end):
                spans.append((number, max(start, base) - base, min(stop, end) - base))
            number += 1
        return spans

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        result: list[tuple[int, int]] = []
        for number, first, end in self._spans(start, stop):
            if self._is_decoded(number, first, end):
                continue
            if self._is_narrow(number, first, end):
                result += self._row_page(number).ranges()
            else:
                result += page_ranges(self._pages[number], self._path, first, end)
        return result

    def plan_read(self, start: int, stop: int) -> Plan:
        plans = []
        for number, first, end in self._spans(start, stop):
            if self._is_decoded(number, first, end):
                continue
            if self._is_narrow(number, first, end):
                plans.append(self._row_page(number).plan_take(np.arange(first, end)))
            else:
                plans.append(iter([page_ranges(self._pages[number], self._path, first, end)]))
        return merge_plans(plans)

    def plan_take(self, rows: Ints) -> Plan:
        if not len(rows):
            return iter(())
        homes = np.searchsorted(self._starts, rows, side="right") - 1
        firsts = np.flatnonzero(run_starts(homes)).tolist()
        plans = []
        for first, end in pairwise([*firsts, len(rows)]):
            number = int(homes[first])
            if 0 <= number < len(self._pages):
                page = self._row_page(number)
                plans.append(page.plan_take(rows[first:end] - self._starts[number]))
        return merge_plans(plans)

    def _is_decoded(self, number: int, first: int, end: int) -> bool:
        if self._last is None or self._last[0] != number:
            return False
        _, start, array = self._last
        return start <= first and end <= start + len(array)

    def _is_narrow(self, number: int, first: int, end: int) -> bool:
        """Tell whether decoding just these rows pays: they are few, and nobody is reading row after row."""
        rows = self._starts[number + 1] - self._starts[number]
        few = self._starts[number] + first != self._next and (end - first) * _NARROW <= rows
        return few and not self.lies_flat

    def read(self, start: int, stop: int) -> list[pa.Array]:
        arrays = []
        for run in self._runs(self._spans(start, stop)):
            try:
                arrays += self._read_spans(run)
            except CapacityError:
                for number, first, end in run:
                    arrays += self._in_pieces(number, np.arange(first, end))
        self._next = stop
        return arrays

    def _read_spans(self, run: list[_Span]) -> list[pa.Array]:
        number, first, end = run[0]
        if len(run) > 1:
            return [self._read_run(number, len(run))]
        if not self._is_decoded(number, first, end) and self._is_narrow(number, first, end):
            return [self._take_page(number, np.arange(first, end))]
        return self._read_page(number, first, end)

    def _in_pieces(self, number: int, rows: Ints) -> list[pa.Array]:
        """Return rows of a page, in halves if one Arrow array cannot hold them.

        Raises:
            UnsupportedFormatError: it cannot hold one row.
        """
        try:
            return [self._take_page(number, rows)]
        except CapacityError:
            if len(rows) == 1:
                row = self._starts[number] + int(rows[0])
                raise UnsupportedFormatError(
                    f"row {row} holds more than 2 GiB or 2^31 items; make the column large_*",
                    place=f"column {self._index}",
                ) from None
        middle = len(rows) // 2
        return [*self._in_pieces(number, rows[:middle]), *self._in_pieces(number, rows[middle:])]

    def _runs(self, spans: list[_Span]) -> list[list[_Span]]:
        """Put the spans of whole pages that can be decoded together into one list, others alone."""
        if len(spans) < 3 or not self._source.is_mapped:
            return [[span] for span in spans]
        runs: list[list[_Span]] = []
        open_key: bytes | None = None
        total = 0
        for span in spans:
            number, first, end = span
            whole = first == 0 and end == self._starts[number + 1] - self._starts[number]
            key, items = (run_key(self._pages[number], self._path) if whole else None) or (None, 0)
            if key is not None and key == open_key and total + items <= RUN_ITEMS:
                runs[-1].append(span)
                total += items
            else:
                runs.append([span])
                open_key, total = key, items
        return runs

    def _read_run(self, number: int, count: int) -> pa.Array:
        try:
            return decode_run(self._pages[number : number + count], self._path, self._source)
        except (FormatError, UnsupportedFormatError) as error:
            place = f"column {self._index}, pages {number} to {number + count - 1}"
            raise error.at(place=place) from error.__cause__

    def take(self, rows: Ints) -> list[pa.Array]:
        """Return ascending rows, one array for each page that has some of them."""
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.num_rows:
            raise FormatError(
                f"rows {rows[0]} to {rows[-1]} of a column of {self.num_rows} rows",
                place=f"column {self._index}",
            )
        if len(self._pages) == 1 and len(rows):
            return self._in_pieces(0, rows)
        homes = np.searchsorted(self._starts, rows, side="right") - 1
        firsts = np.flatnonzero(run_starts(homes)).tolist()
        arrays = []
        for first, end in pairwise([*firsts, len(rows)]):
            number = int(homes[first])
            arrays += self._in_pieces(number, rows[first:end] - self._starts[number])
        return arrays

    def _row_page(self, number: int) -> RowPage:
        if number not in self._row_pages:
            # Facts about pages take memory, which a long scan must not add up.
            if len(self._row_pages) >= _KEPT_PAGES:
                self._row_pages.clear()
            self._row_pages[number] = RowPage(self._pages[number], self._path, self._source)
        return self._row_pages[number]

    def _take_page(self, number: int, rows: Ints) -> pa.Array:
        start, stop = int(rows[0]), int(rows[-1]) + 1
        if self._is_decoded(number, start, stop):
            return make_filterable(self._slice(start, stop)).take(pa.array(rows - start))
        try:
            return self._row_page(number).take(rows)
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(place=f"column {self._index}, page {number}") from error.__cause__

    def _read_page(self, number: int, first: int, end: int) -> list[pa.Array]:
        """Return rows of a page, as one array if their dictionaries can be united."""
        arrays = []
        if self._last is not None and self._is_decoded(number, first, first + 1):
            _, start, array = self._last
            stop = min(end, start + len(array))
            arrays.append(self._slice(first, stop))
            first = stop
        if first < end:
            try:
                start, array = self._decode(number, first, end)
            except (FormatError, UnsupportedFormatError) as error:
                raise error.at(place=f"column {self._index}, page {number}") from error.__cause__
            self._last = (number, start, array)
            arrays.append(self._slice(first, end))
        return join(arrays)

    def _decode(self, number: int, first: int, end: int) -> tuple[int, pa.Array]:
        """Decode at least rows [first, end) of a page; return the first row of what was decoded, and that."""
        rows = self._starts[number + 1] - self._starts[number]
        stop = max(end, first + self._part_rows(number))
        if (first or stop < rows) and self._source.is_mapped:
            part = self._row_page(number).part(first, min(stop, rows))
            if part is not None:
                return part[1], part[0]
        array, first_row = decode_page(self._pages[number], self._path, self._source, first, end)
        return first_row, array

    def _part_rows(self, number: int) -> int:
        """Return how many rows of a page make some `_PART_BYTES`."""
        page = self._pages[number]
        try:
            bits = self._path[-1].arrow_type().bit_width
        except ValueError:
            bits = 8 * _TEXT_RATIO * sum(size for _, size in page.buffers) // max(1, page.length) + 32
        return 8 * _PART_BYTES // max(1, int(bits))

    def _slice(self, first: int, end: int) -> pa.Array:
        """Return rows of the page decoded last, which must have them."""
        assert self._last is not None
        _, first_row, array = self._last
        if first_row == first and len(array) == end - first:
            return array
        return array.slice(first - first_row, end - first)
