"""RTREE: bounding boxes of geometries, in pages, with the boxes of the pages above them.

    page_data.lance    bbox: struct<xmin, ymin, xmax, ymax: double>, id: uint64
                       metadata `page_size` ("4096"), `num_items`, `num_pages`,
                       `bbox` {"minx", "miny", "maxx", "maxy"}
    nulls.lance        nulls: binary    one row: the rows without a geometry (row_set.py)

The first `num_items` rows are the leaves: a row's box and its number. Then follows, from the bottom up, one
row per page of each level, until there is one page: the box of what is in a page, and its number. Pages count
from 0 over all levels and have `page_size` rows, the last one of a level fewer. So 10,000 geometries have 3
rows above them, and 4 pages.

Leaves are sorted along a Hilbert curve over the box of all, 16 bits an axis; no reader relies on the order.
Empty geometries have no box and are in neither file. The index is not exact: that two boxes meet says little
about the geometries in them. (Lance index format, R-tree.)
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
    bounds_of,
    boxes_of,
    extension_of,
    geometries_of,
    is_geometry,
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
# Pages that are read at once.
_RUN_PAGES = 256
# An answer of a larger share of the pages takes longer to read than it saves.
_MOST_PAGES = 0.5
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


def _levels(items: int, page_size: int) -> list[_Level]:
    """Return the levels of a tree of so many items, the leaves first; none if there are no items."""
    levels: list[_Level] = []
    start = first = 0
    rows = items
    while rows and (not levels or levels[-1].pages > 1):
        pages = -(-rows // page_size)
        levels.append(_Level(start, rows, first, pages))
        start, first, rows = start + rows, first + pages, pages
    return levels


class RTree(ScalarIndex):
    """Rows by the boxes around their geometries."""

    name = "RTREE"
    label = "rtreeindexdetails"
    type_url = INDEX_KINDS[label].type_url
    can_move = True

    @classmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values may be geometries without the name of an extension type."""
        return is_geometry("", kind)

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether the values of a column may be geometries."""
        return not (field.is_json or field.is_blob) and is_geometry(extension_of(field.arrow_field()), kind)

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
        """The levels, the leaves first.

        Raises:
            FormatError: the file has not as many rows as they need.
        """
        items = int(self._file.parsed("num_items", int))
        rows = self._file.num_rows
        # Checked first: a number of items from the file says how many levels are made.
        levels = _levels(items, self._page_size) if 0 <= items <= rows else []
        if items < 0 or sum(level.rows for level in levels) != rows:
            raise FormatError(f"an R-tree of {items} items has {rows} rows", self._file.path)
        pages = int(self._file.parsed("num_pages", int))
        if pages != sum(level.pages for level in levels):
            raise FormatError(f"an R-tree of {items} items has {pages} pages", self._file.path)
        return levels

    def figures(self) -> dict[str, Any]:
        """Return the size and number of pages, how many geometries there are, and the box around all."""
        return {
            "page_size": self._page_size,
            "num_pages": self._file.parsed("num_pages", int),
            "num_items": self._file.parsed("num_items", int),
            "bbox": self._file.parsed("bbox", parse_json),
        }

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the rows whose boxes meet that of a constant, or those without a geometry."""
        if probe.operator == "is_null":
            return RowSet.from_bytes(self._nulls())
        box = _box_of(probe.tree)
        return None if box is None else self._meeting(box)

    def _nulls(self) -> bytes:
        file = self.segment.file(NULLS_FILE)
        column = file.read(["nulls"])["nulls"]
        if len(column) != 1 or not column[0].is_valid:
            raise FormatError(f"the rows without a geometry are {len(column)} sets, not one", file.path)
        result: bytes = column[0].as_py()
        return result

    def _meeting(self, box: Boxes) -> RowSet | None:
        """Return the rows whose boxes meet a box; None if they are on too many pages."""
        if not self._tree:
            return RowSet()
        pages = np.zeros(1, np.int64)
        for above, level in reversed(list(enumerate(self._tree, -1))):
            if above < 0 and len(pages) > max(_RUN_PAGES, _MOST_PAGES * level.pages):
                return None
            numbers = self._hits(level, pages, box)
            if above < 0:
                return RowSet.from_addresses(np.sort(numbers))
            below = self._tree[above]
            places = numbers.astype(np.int64) - below.first_page
            if len(places) and not (places.min() >= 0 and places.max() < below.pages):
                raise FormatError("a page of an R-tree is on no level below", self._file.path)
            pages = np.sort(places)
        return None

    def _hits(self, level: _Level, pages: npt.NDArray[np.int64], box: Boxes) -> Numbers:
        """Return the numbers of the rows of some pages of a level whose boxes meet a box."""
        parts = [np.empty(0, np.uint64)]
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            for first in range(0, len(run), _RUN_PAGES):
                some = run[first : first + _RUN_PAGES]
                start = int(some[0]) * self._page_size
                stop = min((int(some[-1]) + 1) * self._page_size, level.rows)
                boxes, numbers = self._rows(level.start + start, level.start + stop)
                parts.append(numbers[_meet(boxes, box)])
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
        """Write the boxes of all geometries.

        Raises:
            ExpressionError: a value is no geometry.
        """
        boxes, numbers = [np.empty((0, 4))], [np.empty(0, np.uint64)]
        nulls = [np.empty(0, np.uint64)]
        for values, ids in rows.pieces():
            some = boxes_of(values, rows.extension)
            there = ~np.isnan(some).any(axis=1)
            boxes.append(some[there])
            numbers.append(ids[there])
            nulls.append(ids[values.is_null().to_numpy(zero_copy_only=False)])
        return _write(np.concatenate(boxes), np.concatenate(numbers), np.concatenate(nulls), target)

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        bounded: Callable[[RowSet], RowSet],
    ) -> dict[str, int]:
        """Write the boxes of all segments in one tree."""
        trees = [cls(segment, kind) for segment in segments]
        leaves = [leaf for tree in trees for leaf in tree._leaves()]
        boxes = np.concatenate([np.empty((0, 4)), *(some for some, _ in leaves)])
        numbers = np.concatenate([np.empty(0, np.uint64), *(ids for _, ids in leaves)])
        null_rows = (row_numbers(tree._nulls(), bounded) for tree in trees)
        nulls = np.concatenate([np.empty(0, np.uint64), *null_rows])
        return _write(boxes, numbers, nulls, target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Write the boxes of the rows that are still there."""
        boxes, numbers = [np.empty((0, 4))], [np.empty(0, np.uint64)]
        for some, ids in self._leaves():
            row_ids, there = remap(ids)
            boxes.append(some[there])
            numbers.append(row_ids[there])
        nulls, there = remap(row_numbers(self._nulls(), remap.bounded))
        return _write(np.concatenate(boxes), np.concatenate(numbers), nulls[there], target)


def _box_of(tree: Expression) -> Boxes | None:
    """Return a box that the box of every geometry meets for which a condition is true; None if none is known.

    Raises:
        ExpressionError: the condition cannot be computed.
    """
    if not isinstance(tree, Call):
        return None
    if tree.function in BOXES_MEET:
        box = _constant_box(*tree.arguments)
        # Nothing is known of empty geometries, which have no box: two of them are equal.
        return None if box is None or np.isnan(box).any() else box
    if tree.function not in ("<", "<=", "="):
        return None
    distance, most = tree.arguments
    if not isinstance(distance, Call) or distance.function != "st_distance" or _has_column(most):
        return None
    box = _constant_box(*distance.arguments)
    value = _constant(most).cast(pa.float64())[0].as_py()
    if box is None or np.isnan(box).any() or value is None or not np.isfinite(value):
        return None
    # The sum and the distances of the scan are rounded.
    reach = value + (abs(value) + float(np.abs(box).max())) * 1e-9
    return np.asarray(box + np.array([-reach, -reach, reach, reach]))


def _constant_box(one: Expression, other: Expression) -> Boxes | None:
    """Return the box of the argument that is a constant, if the other one is the column itself."""
    for column, constant in ((one, other), (other, one)):
        if _is_column(column) and not _has_column(constant):
            values = _constant(constant)
            values = values.cast(pa.string()) if pa.types.is_null(values.type) else values
            return np.asarray(bounds_of(geometries_of(one_array(values), ""))[0])
    return None


def _constant(node: Expression) -> pa.ChunkedArray:
    return compute(node, pa.table({"row": [0]}))


def _is_column(node: Expression) -> bool:
    return isinstance(node, Column) or (isinstance(node, Call) and node.function == "geometry")


def _has_column(node: Expression) -> bool:
    return any(isinstance(part, Column) for part in walk(node))


def _meet(boxes: Boxes, box: Boxes) -> npt.NDArray[np.bool_]:
    xmin, ymin, xmax, ymax = boxes.T
    apart = (xmin > box[2]) | (xmax < box[0]) | (ymin > box[3]) | (ymax < box[1])
    return np.asarray(~apart)


def _read_rows(file: IndexFile, start: int, stop: int) -> tuple[Boxes, Numbers]:
    """Return boxes and numbers of rows [start, stop)."""
    table = file.read(["bbox", "id"], start, stop)
    structs, numbers = one_array(table["bbox"]), one_array(table["id"])
    if structs.type != _BOX or not pa.types.is_uint64(numbers.type) or numbers.null_count:
        raise FormatError(f"rows of an R-tree are {structs.type} and {numbers.type}", file.path)
    return np.column_stack([side.to_numpy(zero_copy_only=False) for side in structs.flatten()]), (
        numbers.to_numpy()
    )


def _write(boxes: Boxes, numbers: Numbers, nulls: Numbers, target: SegmentTarget) -> dict[str, int]:
    """Write a tree and the rows without geometries; return file name -> bytes."""
    around = _around(boxes, np.zeros(1, np.int64))[0] if len(boxes) else np.full(4, np.nan)
    if len(boxes):
        order = np.argsort(_curve_places(boxes, around), kind="stable")
        boxes, numbers = boxes[order], numbers[order]
    levels = _levels(len(boxes), _PAGE_ROWS)
    sizes: dict[str, int] = {}
    with IndexFileWriter(target.store, f"{target.directory}/{DATA_FILE}", _SCHEMA, target.version) as data:
        for level in levels:
            if level.first_page:
                below = levels[levels.index(level) - 1]
                boxes = _around(boxes, np.arange(0, len(boxes), _PAGE_ROWS))
                numbers = np.arange(below.first_page, below.first_page + below.pages).astype(np.uint64)
            step = _PAGE_ROWS * _RUN_PAGES
            for start in range(0, level.rows, step):
                sides = [pa.array(side) for side in boxes[start : start + step].T]
                structs = pa.StructArray.from_arrays(sides, fields=list(_BOX))
                data.write([structs, pa.array(numbers[start : start + step], pa.uint64())])
        corners = [None if np.isnan(side) else float(side) for side in around]
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


def _around(boxes: Boxes, starts: npt.NDArray[np.int64]) -> Boxes:
    """Return the box around each run of boxes, given where runs start."""
    low = np.minimum.reduceat(boxes[:, :2], starts, axis=0)
    return np.hstack([low, np.maximum.reduceat(boxes[:, 2:], starts, axis=0)])


def _curve_places(boxes: Boxes, around: Boxes) -> npt.NDArray[np.uint64]:
    """Return where the middles of boxes lie on a Hilbert curve through the box around all."""
    most = (1 << _CURVE_BITS) - 1
    with np.errstate(all="ignore"):
        # Halves first: sums of large numbers may have no end.
        middles = boxes[:, :2] / 2 + boxes[:, 2:] / 2
        shares = (middles - around[:2]) / (around[2:] - around[:2])
        cells = np.clip(np.nan_to_num(shares) * most, 0, most).astype(np.uint64)
    x, y = cells[:, 0], cells[:, 1]
    places = np.zeros(len(boxes), np.uint64)
    for bit in reversed(range(_CURVE_BITS)):
        side = np.uint64(1 << bit)
        right, upper = (x & side) > 0, (y & side) > 0
        quarter = (np.uint64(3) * right) ^ upper.astype(np.uint64)
        places += side * side * quarter
        # The lower two quarters are turned, so that the curve enters and leaves where its neighbours do.
        flip = ~upper & right
        x, y = np.where(flip, np.uint64(most) - x, x), np.where(flip, np.uint64(most) - y, y)
        x, y = np.where(upper, x, y), np.where(upper, y, x)
    return places
