"""Decodes pages of one leaf column to Arrow arrays of the path's type, one page or several at once.

A *path* is the chain of fields from a top-level field down to the leaf that owns the column. The array has
the type of the top-level field reduced to that path: structs have one child, and maps become lists of structs
whose entries have only the key or the value.

Writers split some columns, mainly lists with null or empty rows, into many small pages, where numpy's cost
per call dominates. A *run* of consecutive mini-block pages with equal descriptions is decoded like a single
page.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import CapacityError
from spark_lance.arrow.buffers import as_bytes
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import PAGE_LAYOUT_URL, Page
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource
from spark_lance.file.v2_1 import ENCODINGS, LAYOUTS
from spark_lance.file.v2_1.base.blocks import to_arrow
from spark_lance.file.v2_1.base.chunks import Ranges, exclusive_sum
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.layouts import constant, full_zip, mini_block, sparse
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.sparse import SparseUnraveler
from spark_lance.file.v2_1.levels.unravel import Unraveler
from spark_lance.proto import encodings21_pb2 as pb
from spark_lance.proto import encodings23_pb2 as pb23

_INT32_MAX = 2**31 - 1
RESOLVER = Resolver(ENCODINGS)
# Maximum items of a run. More would save few calls and take memory.
RUN_ITEMS = 1 << 20
# Errors of numpy, Arrow and struct for damaged numbers. ArrowInvalid is a ValueError, ArrowIndexError an
# IndexError.
_DAMAGE_ERRORS = (ValueError, IndexError, OverflowError, struct.error)


def path_type(path: Sequence[Field]) -> pa.DataType:
    """Return the type of the arrays that a path decodes to."""
    top, *below = path
    if not below:
        return top.arrow_type()
    child = pa.field(below[0].name, path_type(below), below[0].nullable)
    if top.kind == "struct":
        return pa.struct([child])
    if top.kind == "fsl_struct":
        return pa.list_(child, top.list_size)
    return pa.large_list(child) if top.logical_type.startswith("large_") else pa.list_(child)


def page_rows(page: Page, path: Sequence[Field]) -> int:
    """Return the number of top-level rows of a page. Its length counts items of fixed-size lists of structs.

    Raises:
        FormatError: the number of items is not a whole number of rows.
    """
    items = 1
    for field in path:
        if field.kind == "fsl_struct":
            items *= field.list_size
    if items <= 0 or page.length % items:
        raise FormatError(f"a page of {page.length} items does not have whole rows of {items}")
    return page.length // items


def page_layout(page: Page) -> pb.PageLayout:
    """Return the description of a page in the form of version 2.2; it is empty for a sparse page of 2.3.

    Raises:
        UnsupportedFormatError: the page is not of format 2.1 to 2.3.
        FormatError: the description is damaged.
    """
    if sparse.is_planar(page):
        return sparse.dense_layout(sparse.planar_layout(page))
    return page.layout(pb.PageLayout, PAGE_LAYOUT_URL)


@dataclass(frozen=True)
class _PagePart:
    """The part of a page that must be read to get some of its rows.

    Attributes:
        layout: the page's description, adapted to the part.
        ranges: (offset, size) of every buffer in the file.
        length: length of the part, in the unit of `Page.length`.
        first: first row of the part, relative to the page.
    """

    layout: pb.PageLayout
    ranges: tuple[tuple[int, int], ...]
    length: int
    first: int


def _plan_part(page: Page, path: Sequence[Field], start: int, stop: int) -> _PagePart:
    layout = page_layout(page)
    rows = page_rows(page, path)
    if not 0 <= start <= stop <= rows:
        raise FormatError(f"rows {start} to {stop} of a page of {rows}")
    per_row = page.length // rows if rows else 1
    length = (stop - start) * per_row
    name = layout.WhichOneof("layout")
    if name == "constant_layout" and constant.is_uniform(layout.constant_layout, len(page.buffers)):
        return _PagePart(layout, page.buffers, length, start)
    width = full_zip.plain_width(layout.full_zip_layout) if name == "full_zip_layout" else None
    if width is not None and page.buffers:
        offset, size = page.buffers[0]
        if layout.full_zip_layout.num_items != page.length or page.length * width > size:
            raise FormatError(f"{page.length} values of {width} bytes in a buffer of {size}")
        layout.full_zip_layout.num_items = length
        return _PagePart(layout, ((offset + start * per_row * width, length * width),), length, start)
    buffers = page.buffers
    if name == "mini_block_layout":
        # The repetition index, the last buffer, is only needed to read single rows.
        buffers = buffers[: 3 if layout.mini_block_layout.HasField("dictionary") else 2]
    return _PagePart(layout, buffers, page.length, 0)


def page_ranges(page: Page, path: Sequence[Field], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (offset, size) byte ranges of the file that rows [start, stop) of a page need."""
    return list(_plan_part(page, path, start, stop).ranges)


def decode_page(
    page: Page, path: Sequence[Field], source: PageSource, start: int, stop: int
) -> tuple[pa.Array, int]:
    """Decode at least rows [start, stop) of a page.

    Args:
        page: page of the path's leaf column.
        path: fields from the top-level field to the leaf.
        source: source of the file's bytes.
        start, stop: rows of the page, 0 <= start <= stop <= its number of rows.

    Returns:
        An array of type `path_type(path)`, and the page row of its first element.

    Raises:
        FormatError: the page is damaged.
        UnsupportedFormatError: the page uses something that this release does not know.
    """
    sparse_layout = sparse.sparse_layout(page)
    if sparse_layout is not None:
        return _decode_sparse(sparse_layout, page, path, source), 0
    plan = _plan_part(page, path, start, stop)
    name = plan.layout.WhichOneof("layout")
    decode = LAYOUTS.get(name or "")
    if name is None or decode is None:
        raise UnsupportedFormatError(f"page layout {name!r} is not supported")
    buffers = [source.get(offset, size) for offset, size in plan.ranges]
    content = PageBytes(buffers, plan.length, path[-1].arrow_type())
    array = build(path, lambda: decode(getattr(plan.layout, name), content, RESOLVER))
    expected = page_rows(page, path) if plan.length == page.length else stop - start
    if len(array) != expected:
        raise FormatError(f"a page of {expected} rows decodes to {len(array)}")
    return array, plan.first


def _decode_sparse(
    layout: pb23.PlanarLayout, page: Page, path: Sequence[Field], source: PageSource
) -> pa.Array:
    """Decode a whole page with sparse structure."""
    rows = page_rows(page, path)
    buffers = [source.get(offset, size) for offset, size in page.buffers]
    content = PageBytes(buffers, rows, path[-1].arrow_type())
    array = build(path, lambda: sparse.decode(layout, content, RESOLVER))
    if len(array) != rows:
        raise FormatError(f"a page of {rows} rows decodes to {len(array)}")
    return array


def build(path: Sequence[Field], decode: Callable[[], DecodedPage]) -> pa.Array:
    """Return the result of `decode` as an array of type `path_type(path)`.

    Raises:
        CapacityError: one array cannot hold the values.
        FormatError: the bytes are damaged. Errors of numpy, Arrow and struct are converted to this.
        UnsupportedFormatError: the page uses an unknown encoding.
    """
    try:
        return _wrap_values(decode(), path, path[-1].arrow_type())
    except FormatError:
        raise
    except _DAMAGE_ERRORS as error:
        raise FormatError(f"the page is damaged: {error}") from error


def _wrap_values(decoded: DecodedPage, path: Sequence[Field], leaf: pa.DataType) -> pa.Array:
    """Wrap the values into their lists and structs, innermost first."""
    levels, values = decoded.levels, decoded.values
    levels.check()
    if levels.visible_count(values.count) != values.count:
        raise FormatError(
            f"{values.count} values do not fill the page's {levels.visible_count(values.count)} slots"
        )
    unraveler = levels.unraveler(values.count)
    array = to_arrow(values, leaf, unraveler.item())
    child = path[-1]
    for field in reversed(path[:-1]):
        inner = pa.field(child.name, array.type, child.nullable)
        if field.kind == "struct":
            array = _wrap(pa.struct([inner]), len(array), [unraveler.item()], array)
        elif field.kind == "fsl_struct":
            unraveler.every(field.list_size)
            array = _wrap(pa.list_(inner, field.list_size), unraveler.count, [unraveler.item()], array)
        else:
            array = _wrap_list(field, inner, unraveler, array)
        child = field
    unraveler.finish()
    return array


def _wrap_list(
    field: Field, inner: pa.Field, unraveler: Unraveler | SparseUnraveler, items: pa.Array
) -> pa.Array:
    offsets, validity = unraveler.list()
    if field.logical_type.startswith("large_"):
        return _wrap(pa.large_list(inner), unraveler.count, [validity, offsets], items)
    if len(items) > _INT32_MAX:
        raise CapacityError
    return _wrap(pa.list_(inner), unraveler.count, [validity, offsets.astype(np.int32)], items)


def _wrap(
    arrow: pa.DataType, count: int, buffers: Sequence[npt.NDArray[Any] | None], child: pa.Array
) -> pa.Array:
    arrow_buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(arrow, count, arrow_buffers, children=[child])


def run_key(page: Page, path: Sequence[Field]) -> tuple[bytes, int] | None:
    """Return (key, number of items). Consecutive pages with equal keys can be decoded together.

    Returns None if the page must be decoded alone.
    """
    layout = page_layout(page)
    if layout.WhichOneof("layout") != "mini_block_layout" or len(page.buffers) < 2:
        return None
    mini = layout.mini_block_layout
    items = mini.num_items
    if mini.HasField("dictionary") or items > RUN_ITEMS or any(field.kind == "fsl_struct" for field in path):
        return None
    mini.num_items = 0
    return mini.SerializeToString(deterministic=True), items


def decode_run(pages: Sequence[Page], path: Sequence[Field], source: PageSource) -> pa.Array:
    """Decode consecutive pages with equal keys, see `run_key`.

    Args:
        pages: two or more pages of the path's leaf column.
        path: fields from the top-level field to the leaf.
        source: source of the file's bytes, memory-mapped.

    Returns:
        An array of type `path_type(path)` with the rows of all pages.

    Raises:
        FormatError: a page is damaged.
        UnsupportedFormatError: the pages use something that this release does not know.
    """
    layouts = [page_layout(page).mini_block_layout for page in pages]
    words = [as_bytes(source.get(*page.buffers[0])) for page in pages]
    limits = [page.buffers[1][1] for page in pages]
    counts, bounds, firsts = mini_block.chunk_tables(
        layouts[0], [layout.num_items for layout in layouts], words, limits
    )
    sizes = np.diff(bounds)
    positions = np.array([page.buffers[1][0] for page in pages], dtype=np.int64)
    shifts = np.repeat(positions - bounds[firsts[:-1]], np.diff(firsts))
    data, starts = source.gather(bounds[:-1] + shifts, sizes)

    def decode() -> DecodedPage:
        chunks = mini_block.decode_chunks(layouts[0], Ranges(data, starts, sizes), counts, None, RESOLVER)
        _check_rows(chunks, pages, counts, firsts[:-1])
        return chunks.page

    array = build(path, decode)
    rows = sum(page.length for page in pages)
    if len(array) != rows:
        raise FormatError(f"pages of {rows} rows decode to {len(array)}")
    return array


def _check_rows(chunks: mini_block.DecodedChunks, pages: Sequence[Page], counts: Ints, firsts: Ints) -> None:
    """Check that every page starts with a new row and has the stated number of rows.

    Raises:
        FormatError: a page does not, so its rows would be assigned to the neighbouring page.
    """
    levels = chunks.levels
    if levels.rep is None:
        rows = np.add.reduceat(counts, firsts)
    else:
        at = exclusive_sum(chunks.level_counts)[firsts]
        if int(at[-1]) >= len(levels.rep) or bool((np.diff(at) <= 0).any()):
            raise FormatError("a page of lists has no levels")
        starts_row = levels.rep == levels.max_rep
        if not bool(starts_row[at].all()):
            raise FormatError("the first level of a page does not start a list")
        rows = np.array([np.count_nonzero(page) for page in np.split(starts_row, at[1:])])
    if not np.array_equal(rows, [page.length for page in pages]):
        raise FormatError("a page decodes to another number of rows than it has")
