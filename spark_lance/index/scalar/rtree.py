"""RTREE: bounding boxes of geometries in pages, and levels with the bounding boxes of the pages below.

    page_data.lance    bbox: struct<xmin, ymin, xmax, ymax: double>, id: uint64
                       metadata `page_size` ("4096"), `num_items`, `num_pages`,
                       `bbox` {"minx", "miny", "maxx", "maxy"}
    nulls.lance        nulls: binary    one row: the set of null rows (row_set.py)

The first `num_items` rows are the leaves: the box and row number of each geometry. Then each level, from the
bottom up, has one row per page of the level below: the page's box and page number. The last level has one
page. Pages are numbered from 0 across all levels and have `page_size` rows, except the last page of a level.
For example, 10,000 geometries have 3 more rows above the leaves, and 4 pages.

Leaves are sorted along a Hilbert curve over the total box, with 16 bits per axis. Readers do not rely on the
order. Empty geometries have no box and are in neither file. Not exact, because boxes can intersect although
their geometries do not. (Lance index format, R-tree.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError
from spark_lance.expressions.expressions import Call, Column, Expression, compute, walk
from spark_lance.expressions.geo_functions import (
    BOXES_MEET,
    bounding_boxes,
    extension_name,
    geometry_bounds,
    is_geometry,
    parse_geometries,
)
from spark_lance.file.base.schema import Field
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import IndexFile, IndexFileWriter, RowAddressMap
from spark_lance.index.base.row_sets import pack_sorted, row_numbers
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.stored_json import parse_json
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

DATA_FILE, NULLS_FILE = "page_data.lance", "nulls.lance"
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_CORNERS = ("minx", "miny", "maxx", "maxy")
_PAGE_ROWS = 4096
# Maximum pages per read.
_RUN_PAGES = 256
# Above this fraction of the pages, a scan is faster than the index.
_MAX_PAGE_FRACTION = 0.5
_CURVE_BITS = 16

Boxes = npt.NDArray[np.float64]

_BOX = pa.struct([pa.field(side, pa.float64(), nullable=False) for side in _SIDES])
_SCHEMA = pa.schema(
    [
        pa.field("bbox", _BOX, nullable=False, metadata={"ARROW:extension:name": "geoarrow.box"}),
        pa.field("id", pa.uint64(), nullable=False),
    ]
)
_NULLS_SCHEMA = pa.schema([pa.field("nulls", pa.binary(), nullable=False)])

_PAGES: CacheSection[tuple[Boxes, Numbers]] = CacheSection("pages of R-trees", CACHE)


@dataclass(frozen=True)
class _Level:
    """One level of a tree: rows [start, start + rows) of the file, in pages from `first_page` on."""

    start: int
    rows: int
    first_page: int
    pages: int


def _plan_levels(items: int, page_size: int) -> list[_Level]:
    """Return the levels of a tree, leaves first; empty if there are no items."""
    levels: list[_Level] = []
    start = first = 0
    rows = items
    while rows and (not levels or levels[-1].pages > 1):
        pages = -(-rows // page_size)
        levels.append(_Level(start, rows, first, pages))
        start, first, rows = start + rows, first + pages, pages
    return levels


class RTree(ScalarIndex):
    """R-tree index: rows by the bounding boxes of their geometries."""

    name = "RTREE"
    label = "rtreeindexdetails"
    type_url = INDEX_KINDS[label].type_url
    can_move = True

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values can be geometries, without knowing the extension type."""
        return is_geometry("", kind)

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether the values of a column can be geometries."""
        return not (field.is_json or field.is_blob) and is_geometry(extension_name(field.arrow_field()), kind)

    @cached_property
    def _file(self) -> IndexFile:
        return self.segment.file(DATA_FILE)

    @cached_property
    def _page_size(self) -> int:
        size = int(self._file.parsed("page_size", int))
        if size < 2:
            raise FormatError(f"pages of {size} rows", self._file.path)
        return size

    @cached_property
    def _tree(self) -> list[_Level]:
        """The levels, leaves first.

        Raises:
            FormatError: the numbers of items, rows and pages are inconsistent.
        """
        items = int(self._file.parsed("num_items", int))
        rows = self._file.num_rows
        # Check `items` first: a damaged value could cause a huge number of levels.
        levels = _plan_levels(items, self._page_size) if 0 <= items <= rows else []
        if items < 0 or sum(level.rows for level in levels) != rows:
            raise FormatError(f"an R-tree of {items} items has {rows} rows", self._file.path)
        pages = int(self._file.parsed("num_pages", int))
        if pages != sum(level.pages for level in levels):
            raise FormatError(f"an R-tree of {items} items has {pages} pages", self._file.path)
        return levels

    def figures(self) -> dict[str, Any]:
        """Return the page size, the numbers of pages and geometries, and the total box."""
        return {
            "page_size": self._page_size,
            "num_pages": self._file.parsed("num_pages", int),
            "num_items": self._file.parsed("num_items", int),
            "bbox": self._file.parsed("bbox", parse_json),
        }

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the rows whose boxes intersect the box of a constant; for is_null, the null rows."""
        if probe.operator == "is_null":
            return RowSet.from_bytes(self._nulls())
        box = _search_box(probe.tree)
        return None if box is None else self._find_intersecting(box)

    def _nulls(self) -> bytes:
        file = self.segment.file(NULLS_FILE)
        column = file.read(["nulls"])["nulls"]
        if len(column) != 1 or not column[0].is_valid:
            raise FormatError(f"the rows without a geometry are {len(column)} sets, not one", file.path)
        result: bytes = column[0].as_py()
        return result

    def _find_intersecting(self, box: Boxes) -> RowSet | None:
        """Return the rows whose boxes intersect a box; None if too many pages would be read."""
        if not self._tree:
            return RowSet()
        pages = np.zeros(1, np.int64)
        for above, level in reversed(list(enumerate(self._tree, -1))):
            if above < 0 and len(pages) > max(_RUN_PAGES, _MAX_PAGE_FRACTION * level.pages):
                return None
            numbers = self._search_pages(level, pages, box)
            if above < 0:
                return RowSet.from_addresses(np.sort(numbers))
            below = self._tree[above]
            positions = numbers.astype(np.int64) - below.first_page
            if len(positions) and not (positions.min() >= 0 and positions.max() < below.pages):
                raise FormatError("a page of an R-tree is on no level below", self._file.path)
            pages = np.sort(positions)
        return None

    def _search_pages(self, level: _Level, pages: npt.NDArray[np.int64], box: Boxes) -> Numbers:
        """Return the row (or page) numbers in some pages of a level whose boxes intersect a box."""
        parts = [np.empty(0, np.uint64)]
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            for first in range(0, len(run), _RUN_PAGES):
                boxes_read = run[first : first + _RUN_PAGES]
                start = int(boxes_read[0]) * self._page_size
                stop = min((int(boxes_read[-1]) + 1) * self._page_size, level.rows)
                boxes, numbers = self._rows(level.start + start, level.start + stop)
                parts.append(numbers[_intersects(boxes, box)])
        return np.concatenate(parts)

    def _rows(self, start: int, stop: int) -> tuple[Boxes, Numbers]:
        file = self._file

        def read() -> tuple[Boxes, Numbers]:
            return _read_rows(file, start, stop)

        key = (self.segment.store.cache_key(file.path), start, stop)
        return _PAGES.get(key, read, lambda rows: int(rows[0].nbytes + rows[1].nbytes))

    def _leaves(self) -> Iterator[tuple[Boxes, Numbers]]:
        step = _RUN_PAGES * self._page_size
        count = self._tree[0].rows if self._tree else 0
        for start in range(0, count, step):
            yield _read_rows(self._file, start, min(start + step, count))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the boxes of all geometries; return file name -> size in bytes.

        Raises:
            ExpressionError: a value is not a geometry.
        """
        boxes, numbers = [np.empty((0, 4))], [np.empty(0, np.uint64)]
        nulls = [np.empty(0, np.uint64)]
        for values, ids in rows.pieces():
            boxes_read = bounding_boxes(values, rows.extension)
            is_present = ~np.isnan(boxes_read).any(axis=1)
            boxes.append(boxes_read[is_present])
            numbers.append(ids[is_present])
            nulls.append(ids[values.is_null().to_numpy(zero_copy_only=False)])
        return _write(np.concatenate(boxes), np.concatenate(numbers), np.concatenate(nulls), target)

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        existing_rows: Callable[[RowSet], RowSet],
    ) -> dict[str, int]:
        """Merge the boxes of all segments into one tree."""
        trees = [cls(segment, kind) for segment in segments]
        leaves = [leaf for tree in trees for leaf in tree._leaves()]
        boxes = np.concatenate([np.empty((0, 4)), *(boxes_read for boxes_read, _ in leaves)])
        numbers = np.concatenate([np.empty(0, np.uint64), *(ids for _, ids in leaves)])
        null_rows = (row_numbers(tree._nulls(), existing_rows) for tree in trees)
        nulls = np.concatenate([np.empty(0, np.uint64), *null_rows])
        return _write(boxes, numbers, nulls, target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the tree with the remaining rows and their current addresses."""
        boxes, numbers = [np.empty((0, 4))], [np.empty(0, np.uint64)]
        for boxes_read, ids in self._leaves():
            row_ids, is_present = remap(ids)
            boxes.append(boxes_read[is_present])
            numbers.append(row_ids[is_present])
        nulls, is_present = remap(row_numbers(self._nulls(), remap.existing_rows))
        return _write(np.concatenate(boxes), np.concatenate(numbers), nulls[is_present], target)


def _search_box(tree: Expression) -> Boxes | None:
    """Return a box that intersects the box of every matching geometry; None if the condition has no such box.

    Raises:
        ExpressionError: the condition cannot be evaluated.
    """
    if not isinstance(tree, Call):
        return None
    if tree.function in BOXES_MEET:
        box = _constant_box(*tree.arguments)
        # Empty geometries have no box, but two of them are equal.
        return None if box is None or np.isnan(box).any() else box
    if tree.function not in ("<", "<=", "="):
        return None
    distance, limit = tree.arguments
    if not isinstance(distance, Call) or distance.function != "st_distance" or _has_column(limit):
        return None
    box = _constant_box(*distance.arguments)
    value = _constant(limit).cast(pa.float64())[0].as_py()
    if box is None or np.isnan(box).any() or value is None or not np.isfinite(value):
        return None
    # Allow for rounding of this sum and of the scan's distances.
    margin = value + (abs(value) + float(np.abs(box).max())) * 1e-9
    return np.asarray(box + np.array([-margin, -margin, margin, margin]))


def _constant_box(one: Expression, other: Expression) -> Boxes | None:
    """Return the box of the constant argument, if the other argument is the column; else None."""
    for column, constant in ((one, other), (other, one)):
        if _is_column(column) and not _has_column(constant):
            values = _constant(constant)
            values = values.cast(pa.string()) if pa.types.is_null(values.type) else values
            return np.asarray(geometry_bounds(parse_geometries(one_array(values), ""))[0])
    return None


def _constant(node: Expression) -> pa.ChunkedArray:
    return compute(node, pa.table({"row": [0]}))


def _is_column(node: Expression) -> bool:
    return isinstance(node, Column) or (isinstance(node, Call) and node.function == "geometry")


def _has_column(node: Expression) -> bool:
    return any(isinstance(part, Column) for part in walk(node))


def _intersects(boxes: Boxes, box: Boxes) -> npt.NDArray[np.bool_]:
    xmin, ymin, xmax, ymax = boxes.T
    apart = (xmin > box[2]) | (xmax < box[0]) | (ymin > box[3]) | (ymax < box[1])
    return np.asarray(~apart)


def _read_rows(file: IndexFile, start: int, stop: int) -> tuple[Boxes, Numbers]:
    """Return the boxes (n, 4) and numbers (n,) of rows [start, stop)."""
    table = file.read(["bbox", "id"], start, stop)
    structs, numbers = one_array(table["bbox"]), one_array(table["id"])
    if structs.type != _BOX or not pa.types.is_uint64(numbers.type) or numbers.null_count:
        raise FormatError(f"rows of an R-tree are {structs.type} and {numbers.type}", file.path)
    return np.column_stack([side.to_numpy(zero_copy_only=False) for side in structs.flatten()]), (
        numbers.to_numpy()
    )


def _write(boxes: Boxes, numbers: Numbers, nulls: Numbers, target: SegmentTarget) -> dict[str, int]:
    """Write a tree and the set of null rows; return file name -> size in bytes."""
    total_box = _bounding_boxes(boxes, np.zeros(1, np.int64))[0] if len(boxes) else np.full(4, np.nan)
    if len(boxes):
        order = np.argsort(_hilbert_positions(boxes, total_box), kind="stable")
        boxes, numbers = boxes[order], numbers[order]
    levels = _plan_levels(len(boxes), _PAGE_ROWS)
    sizes: dict[str, int] = {}
    with IndexFileWriter(target.store, f"{target.directory}/{DATA_FILE}", _SCHEMA, target.version) as data:
        for level in levels:
            if level.first_page:
                below = levels[levels.index(level) - 1]
                boxes = _bounding_boxes(boxes, np.arange(0, len(boxes), _PAGE_ROWS))
                numbers = np.arange(below.first_page, below.first_page + below.pages).astype(np.uint64)
            step = _PAGE_ROWS * _RUN_PAGES
            for start in range(0, level.rows, step):
                sides = [pa.array(side) for side in boxes[start : start + step].T]
                structs = pa.StructArray.from_arrays(sides, fields=list(_BOX))
                data.write([structs, pa.array(numbers[start : start + step], pa.uint64())])
        corners = [None if np.isnan(side) else float(side) for side in total_box]
        sizes[DATA_FILE] = data.finish(
            {
                "page_size": str(_PAGE_ROWS),
                "num_items": str(levels[0].rows if levels else 0),
                "num_pages": str(sum(level.pages for level in levels)),
                "bbox": json.dumps(dict(zip(_CORNERS, corners, strict=True)), separators=(",", ":")),
            }
        )
    path = f"{target.directory}/{NULLS_FILE}"
    with IndexFileWriter(target.store, path, _NULLS_SCHEMA, target.version) as file:
        file.write([pa.array([pack_sorted(np.sort(nulls))], pa.binary())])
        sizes[NULLS_FILE] = file.finish({})
    return sizes


def _bounding_boxes(boxes: Boxes, starts: npt.NDArray[np.int64]) -> Boxes:
    """Return the bounding box of each run of boxes, given the starts of the runs."""
    low = np.minimum.reduceat(boxes[:, :2], starts, axis=0)
    return np.hstack([low, np.maximum.reduceat(boxes[:, 2:], starts, axis=0)])


def _hilbert_positions(boxes: Boxes, total_box: Boxes) -> npt.NDArray[np.uint64]:
    """Return the positions of box centers on a Hilbert curve over the total box (uint64)."""
    limit = (1 << _CURVE_BITS) - 1
    with np.errstate(all="ignore"):
        # Halve before adding: the sum of large numbers can overflow to infinity.
        middles = boxes[:, :2] / 2 + boxes[:, 2:] / 2
        shares = (middles - total_box[:2]) / (total_box[2:] - total_box[:2])
        cells = np.clip(np.nan_to_num(shares) * limit, 0, limit).astype(np.uint64)
    x, y = cells[:, 0], cells[:, 1]
    positions = np.zeros(len(boxes), np.uint64)
    for bit in reversed(range(_CURVE_BITS)):
        side = np.uint64(1 << bit)
        right, upper = (x & side) > 0, (y & side) > 0
        quarter = (np.uint64(3) * right) ^ upper.astype(np.uint64)
        positions += side * side * quarter
        # Rotate the lower two quadrants, so that the curve is continuous.
        flip = ~upper & right
        x, y = np.where(flip, np.uint64(limit) - x, x), np.where(flip, np.uint64(limit) - y, y)
        x, y = np.where(upper, x, y), np.where(upper, y, x)
    return positions
