"""Several pages of one column at once.

Writers cut some columns (lists with null or empty rows above all) into many small pages, for which numpy's
cost per call is most of the work. The chunks of pages that are described alike are decoded like those of one.
(Lance file format, mini-block pages.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.buffers import as_bytes
from spark_lance.file.metadata import Page
from spark_lance.file.schema import Field
from spark_lance.file.source import PageSource
from spark_lance.file.v2_1.chunks import Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.layouts import mini_block
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage
from spark_lance.file.v2_1.read.page import RESOLVER, build, page_layout

__all__ = ["RUN_ITEMS", "decode_run", "run_key"]

# Items of a run at most: more of them save few calls and take memory.
RUN_ITEMS = 1 << 20


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
        found = mini_block.decode_chunks(layouts[0], Ranges(data, starts, sizes), counts, None, RESOLVER)
        _check_rows(found, pages, counts, firsts[:-1])
        return found.page

    array = build(path, decode)
    rows = sum(page.length for page in pages)
    if len(array) != rows:
        raise FormatError(f"pages of {rows} rows decode to {len(array)}")
    return array


def _check_rows(found: mini_block.DecodedChunks, pages: Sequence[Page], counts: Ints, firsts: Ints) -> None:
    """Check that every page begins with a row and has as many as it says.

    Raises:
        FormatError: one does not, so that its rows would be taken for those of its neighbour.
    """
    levels = found.levels
    if levels.rep is None:
        rows = np.add.reduceat(counts, firsts)
    else:
        at = exclusive_sum(found.level_counts)[firsts]
        if int(at[-1]) >= len(levels.rep) or bool((np.diff(at) <= 0).any()):
            raise FormatError("a page of lists has no levels")
        begins = levels.rep == levels.max_rep
        if not bool(begins[at].all()):
            raise FormatError("the first level of a page does not start a list")
        rows = np.array([np.count_nonzero(page) for page in np.split(begins, at[1:])])
    if not np.array_equal(rows, [page.length for page in pages]):
        raise FormatError("a page decodes to another number of rows than it has")
