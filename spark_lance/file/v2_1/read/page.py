"""Pages of one leaf column to Arrow arrays of the path's type: one page, or several at once.

A *path* is the chain of fields from a top-level field down to the leaf that owns the column. The array has
the type of the top-level field with everything but that path left out: structs with one child, and maps
(whose entries then lack their key or value) as lists of structs.

Writers cut some columns (lists with null or empty rows above all) into many small pages, for which numpy's
cost per call is most of the work. The chunks of mini-block pages that are described alike, a *run*, are
decoded like those of one.
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
# Items of a run at most: more of them save few calls and take memory.
RUN_ITEMS = 1 << 20
# What numpy, Arrow and struct raise when damaged numbers reach them; ArrowInvalid and ArrowIndexError are
# a ValueError and an IndexError.
_DAMAGE = (ValueError, IndexError, OverflowError, struct.error)


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
    """Return how many top-level rows a page has: below fixed-size lists of structs its length counts items.

    Raises:
        FormatError: its items do not make whole rows.
    """
    items = 1
    for field in path:
        if field.kind == "fsl_struct":
            items *= field.list_size
    if items <= 0 or page.length % items:
        raise FormatError(f"a page of {page.length} items does not have whole rows of {items}")
    return page.length // items


def page_layout(page: Page) -> pb.PageLayout:
    """Return the description of a page in the way of 2.2; it says nothing for a sparse page of 2.3.

    Raises:
        UnsupportedFormatError: it is not one of format 2.1 to 2.3.
        FormatError: it is damaged.
    """
    if sparse.is_planar(page):
        return sparse.dense_layout(sparse.planar_layout(page))
    return page.layout(pb.PageLayout, PAGE_LAYOUT_URL)


@dataclass(frozen=True)
class _Plan:
    """The part of a page that is read to get some of its rows.

    Attributes:
        layout: the page's description, changed to describe the part if it is not the whole page.
        ranges: (offset, size) in the file of every buffer.
        length: the part's number of rows, in the unit of `Page.length`.
        first: the page's row with which the part begins.
    """

    layout: pb.PageLayout
    ranges: tuple[tuple[int, int], ...]
    length: int
    first: int


def _plan(page: Page, path: Sequence[Field], start: int, stop: int) -> _Plan:
    layout = page_layout(page)
    rows = page_rows(page, path)
    if not 0 <= start <= stop <= rows:
        raise FormatError(f"rows {start} to {stop} of a page of {rows}")
    per_row = page.length // rows if rows else 1
    length = (stop - start) * per_row
    name = layout.WhichOneof("layout")
    if name == "constant_layout" and constant.is_uniform(layout.constant_layout, len(page.buffers)):
        return _Plan(layout, page.buffers, length, start)
    width = full_zip.plain_width(layout.full_zip_layout) if name == "full_zip_layout" else None
    if width is not None and page.buffers:
        offset, size = page.buffers[0]
        if layout.full_zip_layout.num_items != page.length or page.length * width > size:
            raise FormatError(f"{page.length} values of {width} bytes in a buffer of {size}")
        layout.full_zip_layout.num_items = length
        return _Plan(layout, ((offset + start * per_row * width, length * width),), length, start)
    buffers = page.buffers
    if name == "mini_block_layout":
        # The repetition index behind these serves only reads of single rows.
        buffers = buffers[: 3 if layout.mini_block_layout.HasField("dictionary") else 2]
    return _Plan(layout, buffers, page.length, 0)


def page_ranges(page: Page, path: Sequence[Field], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (offset, size) byte ranges of the file that rows [start, stop) of a page need."""
    return list(_plan(page, path, start, stop).ranges)


def decode_page(
    page: Page, path: Sequence[Field], source: PageSource, start: int, stop: int
) -> tuple[pa.Array, int]:
    """Decode a page so that at least rows [start, stop) are there.

    Args:
        page: the page of the path's leaf column.
        path: fields from the top-level field to the leaf.
        source: the file's bytes.
        start, stop: rows of the page, 0 <= start <= stop <= its number of rows.

    Returns:
        An array of type `path_type(path)`, and the page's row that its first element is.

    Raises:
        FormatError: the page is damaged.
        UnsupportedFormatError: the page uses something that this release does not know.
    """
    sparse_layout = sparse.sparse_layout(page)
    if sparse_layout is not None:
        return _decode_sparse(sparse_layout, page, path, source), 0
    plan = _plan(page, path, start, stop)
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
    """Decode all of a page with sparse structure."""
    rows = page_rows(page, path)
    buffers = [source.get(offset, size) for offset, size in page.buffers]
    content = PageBytes(buffers, rows, path[-1].arrow_type())
    array = build(path, lambda: sparse.decode(layout, content, RESOLVER))
    if len(array) != rows:
        raise FormatError(f"a page of {rows} rows decodes to {len(array)}")
    return array


def build(path: Sequence[Field], decode: Callable[[], DecodedPage]) -> pa.Array:
    """Return what `decode` yields as an array of type `path_type(path)`.

    Raises:
        CapacityError: one array cannot hold the values.
        FormatError: the bytes are damaged, whatever way that showed.
        UnsupportedFormatError: an encoding that is not known.
    """
    try:
        return _nest(decode(), path, path[-1].arrow_type())
    except FormatError:
        raise
    except _DAMAGE as error:
        raise FormatError(f"the page is damaged: {error}") from error


def _nest(decoded: DecodedPage, path: Sequence[Field], leaf: pa.DataType) -> pa.Array:
    """Wrap the values into the lists and structs around them, from the inside out."""
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
    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(arrow, count, wrapped, children=[child])


def run_key(page: Page, path: Sequence[Field]) -> tuple[bytes, int] | None:
    """Return what pages that can be decoded together have in common, and the page's number of items.

    None if the page has to be decoded alone.
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
    """Decode pages that follow each other and have equal keys.

    Args:
        pages: two or more pages of the path's leaf column.
        path: fields from the top-level field to the leaf.
        source: the file's bytes, mapped.

    Returns:
        An array of type `path_type(path)` with the rows of all the pages.

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
    places = np.array([page.buffers[1][0] for page in pages], dtype=np.int64)
    shifts = np.repeat(places - bounds[firsts[:-1]], np.diff(firsts))
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
    """Check that every page begins with a row and has as many as it says.

    Raises:
        FormatError: one does not, so that its rows would be taken for those of its neighbour.
    """
    levels = chunks.levels
    if levels.rep is None:
        rows = np.add.reduceat(counts, firsts)
    else:
        at = exclusive_sum(chunks.level_counts)[firsts]
        if int(at[-1]) >= len(levels.rep) or bool((np.diff(at) <= 0).any()):
            raise FormatError("a page of lists has no levels")
        begins = levels.rep == levels.max_rep
        if not bool(begins[at].all()):
            raise FormatError("the first level of a page does not start a list")
        rows = np.array([np.count_nonzero(page) for page in np.split(begins, at[1:])])
    if not np.array_equal(rows, [page.length for page in pages]):
        raise FormatError("a page decodes to another number of rows than it has")
