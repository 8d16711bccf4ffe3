"""Reads rows of one top-level field from the pages of its leaf columns."""

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

# Row addresses use 32 bits for the row in a fragment.
_MAX_ROWS = 1 << 32
# A read of at most 1 / 16 of a page's rows does not decode the whole page.
_NARROW_FRACTION = 16
# A partial read of a page decodes at least this many Arrow bytes, for the reads that follow. More would take
# too much memory, because every column keeps its decoded part.
_PART_BYTES = 2 << 20
# Maximum number of cached `RowPage` objects per column.
_MAX_ROW_PAGES = 32
# Approximate size of decoded text / stored text.
_TEXT_RATIO = 3

# Page number, first row and end row in the page.
_Span: TypeAlias = tuple[int, int, int]


class FieldReader:
    """Decodes one top-level field of a file of version 2.1 to 2.3, or a subset of its children."""

    def __init__(
        self, field: Field, columns: Mapping[int, ColumnMetadata], source: PageSource, version: FileVersion
    ) -> None:
        """Prepare to read, without reading any page.

        Args:
            field: the top-level field.
            columns: field id -> column, for `field` or every leaf below it.
            source: source of the file's bytes.
            version: the file's version.

        Raises:
            FormatError: a column is missing, or the columns have different numbers of rows.
            UnsupportedFormatError: this release cannot read the field's storage.
        """
        self._field = field
        self._type = field.arrow_type()
        self._paths = [_PathReader(path, columns, source) for path in paths(field)]
        rows = {path.num_rows for path in self._paths}
        if len(rows) > 1:
            raise FormatError(f"the columns of field {field.name!r} have {sorted(rows)} rows")

    @property
    def num_rows(self) -> int:
        """Number of rows of the field, from its page descriptions."""
        return self._paths[0].num_rows

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the (offset, size) byte ranges that reading rows [start, stop) needs."""
        return [byte_range for path in self._paths for byte_range in path.ranges(start, stop)]

    def plan_read(self, start: int, stop: int) -> Plan:
        """Return the byte ranges that `read` needs, step by step."""
        return merge_plans([path.plan_read(start, stop) for path in self._paths])

    def plan_take(self, rows: Ints) -> Plan:
        """Return the byte ranges that `take` needs, step by step."""
        return merge_plans([path.plan_take(rows) for path in self._paths])

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        """Return rows [start, stop) as the field's Arrow type, in chunks that follow the pages.

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

    def is_zero_copy(self) -> bool:
        """Return whether reads are slices of the memory-mapped file, without a copy."""
        return len(self._paths) == 1 and self._paths[0].is_zero_copy

    def is_light(self) -> bool:
        """Return whether no decoded page is kept for the next read."""
        return all(path.is_light() for path in self._paths)

    def take(self, rows: Ints) -> pa.ChunkedArray:
        """Return the given rows as the field's Arrow type, decoding little more than these rows.

        Args:
            rows: ascending unique row numbers.

        Raises:
            FormatError: the file is damaged, or has fewer rows.
            UnsupportedFormatError: a page uses something that this release does not know.
        """
        parts = [path.take(rows) for path in self._paths]
        return pa.chunked_array([merge_paths(self._field, p) for p in _align(parts)], type=self._type)


def _align(parts: Sequence[Sequence[pa.Array]]) -> list[list[pa.Array]]:
    """Split several sequences of arrays over the same rows at the union of their boundaries."""
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
                is_whole = size == len(piece)
                rows[number].append(piece if is_whole else piece.slice(cuts[number] - at, size))
                number += 1
            at = stop
    return rows


class _PathReader:
    """Reads rows of one leaf column, nested like its path. Keeps the last decoded page."""

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
            # First row of each page, and the end.
            self._starts = [0, *accumulate(page_rows(page, path) for page in column.pages)]
        except FormatError as error:
            raise error.at(place=f"column {column.index}") from error
        if self.num_rows > _MAX_ROWS:
            raise FormatError(f"a column of {self.num_rows} rows", place=f"column {column.index}")
        self._last_decoded: tuple[int, int, pa.Array] | None = None
        self._row_pages: dict[int, RowPage] = {}
        # Start of a read that continues the last one.
        self._next_row = 0

    @property
    def num_rows(self) -> int:
        return self._starts[-1]

    @cached_property
    def is_zero_copy(self) -> bool:
        """Whether pages are plain values in a mapped file. The first page decides for all pages."""
        if not self._source.is_mapped or not self._pages or len(self._path) > 1:
            return False
        layout = page_layout(self._pages[0])
        return layout.HasField("full_zip_layout") and full_zip.plain_width(layout.full_zip_layout) is not None

    def is_light(self) -> bool:
        return self._last_decoded is None

    def _spans(self, start: int, stop: int) -> list[_Span]:
        """Return (page number, first row, end row) of the pages that contain rows [start, stop).

        First and end rows are relative to the start of the page.
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
        page_numbers = np.searchsorted(self._starts, rows, side="right") - 1
        firsts = np.flatnonzero(run_starts(page_numbers)).tolist()
        plans = []
        for first, end in pairwise([*firsts, len(rows)]):
            number = int(page_numbers[first])
            if 0 <= number < len(self._pages):
                page = self._row_page(number)
                plans.append(page.plan_take(rows[first:end] - self._starts[number]))
        return merge_plans(plans)

    def _is_decoded(self, number: int, first: int, end: int) -> bool:
        if self._last_decoded is None or self._last_decoded[0] != number:
            return False
        _, start, array = self._last_decoded
        return start <= first and end <= start + len(array)

    def _is_narrow(self, number: int, first: int, end: int) -> bool:
        """Return whether to decode only these rows: they are few, and the reads are not sequential."""
        rows = self._starts[number + 1] - self._starts[number]
        is_narrow = (
            self._starts[number] + first != self._next_row and (end - first) * _NARROW_FRACTION <= rows
        )
        return is_narrow and not self.is_zero_copy

    def read(self, start: int, stop: int) -> list[pa.Array]:
        arrays = []
        for run in self._group_spans(self._spans(start, stop)):
            try:
                arrays += self._read_spans(run)
            except CapacityError:
                for number, first, end in run:
                    arrays += self._take_in_pieces(number, np.arange(first, end))
        self._next_row = stop
        return arrays

    def _read_spans(self, run: list[_Span]) -> list[pa.Array]:
        number, first, end = run[0]
        if len(run) > 1:
            return [self._read_run(number, len(run))]
        if not self._is_decoded(number, first, end) and self._is_narrow(number, first, end):
            return [self._take_page(number, np.arange(first, end))]
        return self._read_page(number, first, end)

    def _take_in_pieces(self, number: int, rows: Ints) -> list[pa.Array]:
        """Return rows of a page, split in halves while one Arrow array cannot hold them.

        Raises:
            UnsupportedFormatError: one Arrow array cannot hold a single row.
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
        return [*self._take_in_pieces(number, rows[:middle]), *self._take_in_pieces(number, rows[middle:])]

    def _group_spans(self, spans: list[_Span]) -> list[list[_Span]]:
        """Group spans: consecutive whole pages that can be decoded together form one group."""
        if len(spans) < 3 or not self._source.is_mapped:
            return [[span] for span in spans]
        runs: list[list[_Span]] = []
        open_key: bytes | None = None
        total = 0
        for span in spans:
            number, first, end = span
            is_whole = first == 0 and end == self._starts[number + 1] - self._starts[number]
            key, items = (run_key(self._pages[number], self._path) if is_whole else None) or (None, 0)
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
        """Return ascending rows, as one array per page that contains some of them."""
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.num_rows:
            raise FormatError(
                f"rows {rows[0]} to {rows[-1]} of a column of {self.num_rows} rows",
                place=f"column {self._index}",
            )
        if len(self._pages) == 1 and len(rows):
            return self._take_in_pieces(0, rows)
        page_numbers = np.searchsorted(self._starts, rows, side="right") - 1
        firsts = np.flatnonzero(run_starts(page_numbers)).tolist()
        arrays = []
        for first, end in pairwise([*firsts, len(rows)]):
            number = int(page_numbers[first])
            arrays += self._take_in_pieces(number, rows[first:end] - self._starts[number])
        return arrays

    def _row_page(self, number: int) -> RowPage:
        if number not in self._row_pages:
            # Bounds the memory of a long scan.
            if len(self._row_pages) >= _MAX_ROW_PAGES:
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
        """Return rows of a page, as one array if their dictionaries can be merged."""
        arrays = []
        if self._last_decoded is not None and self._is_decoded(number, first, first + 1):
            _, start, array = self._last_decoded
            stop = min(end, start + len(array))
            arrays.append(self._slice(first, stop))
            first = stop
        if first < end:
            try:
                start, array = self._decode(number, first, end)
            except (FormatError, UnsupportedFormatError) as error:
                raise error.at(place=f"column {self._index}, page {number}") from error.__cause__
            self._last_decoded = (number, start, array)
            arrays.append(self._slice(first, end))
        return join(arrays)

    def _decode(self, number: int, first: int, end: int) -> tuple[int, pa.Array]:
        """Decode at least rows [first, end) of a page. Return the first decoded row and the array."""
        rows = self._starts[number + 1] - self._starts[number]
        stop = max(end, first + self._rows_per_part(number))
        if (first or stop < rows) and self._source.is_mapped:
            part = self._row_page(number).part(first, min(stop, rows))
            if part is not None:
                return part[1], part[0]
        array, first_row = decode_page(self._pages[number], self._path, self._source, first, end)
        return first_row, array

    def _rows_per_part(self, number: int) -> int:
        """Return the approximate number of a page's rows in `_PART_BYTES`."""
        page = self._pages[number]
        try:
            bits = self._path[-1].arrow_type().bit_width
        except ValueError:
            bits = 8 * _TEXT_RATIO * sum(size for _, size in page.buffers) // max(1, page.length) + 32
        return 8 * _PART_BYTES // max(1, int(bits))

    def _slice(self, first: int, end: int) -> pa.Array:
        """Return rows of the last decoded page, which must contain them."""
        assert self._last_decoded is not None
        _, first_row, array = self._last_decoded
        if first_row == first and len(array) == end - first:
            return array
        return array.slice(first - first_row, end - first)
