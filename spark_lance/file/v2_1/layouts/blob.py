"""Blob pages of version 2.1: descriptors of values that are stored elsewhere in the file.

    inner_layout   a mini-block page of packed (u64 position, u64 size), all valid
    layers         the actual layers, which replace those of the inner page

A value of size 0 has no bytes, and its position contains levels: definition << 16 | repetition. An empty
valid value therefore has position 0. Example, layers [NULLABLE_ITEM], rows "abc" (at 64), null, "":

    (64, 3)  (65536, 0)  (0, 0)

(Lance file format 2.1, blob pages.)

The writer writes blob pages of version 2.1, and in files outside of tables of version 2.2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_lance.arrow.buffers import view_as
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.base.blocks import Block, FixedWidth, PackedStruct
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.encodings.packed_struct import StructChunks
from spark_lance.file.v2_1.layouts import mini_block
from spark_lance.file.v2_1.layouts.mini_block import ChunkPolicy, PageParts, mini_block_page
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.v2_1.levels.unravel import Levels, number_layers
from spark_lance.proto import encodings21_pb2 as pb


def decode(layout: pb.BlobLayout, page: PageBytes, resolver: Resolver) -> DecodedPage:
    """Decode the descriptors of a page. Nulls become null structs.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: blobs are in lists, or the descriptors are not a mini-block page.
    """
    name = layout.inner_layout.WhichOneof("layout")
    if name != "mini_block_layout":
        raise UnsupportedFormatError(f"blob descriptors in a page of layout {name!r} are not supported")
    inner = mini_block.decode(layout.inner_layout.mini_block_layout, page, resolver)
    if not isinstance(inner.levels, Levels):
        raise FormatError("blob descriptors have no levels")
    if inner.levels.rep is not None or inner.levels.definition is not None:
        raise FormatError("blob descriptors have levels of their own")
    layers = number_layers(layout.layers)
    if any(layer.is_list for layer in layers):
        raise UnsupportedFormatError("lists of blobs are not supported in 2.1 files")
    position, size = _positions_and_sizes(inner.values)
    levels = np.where(size == 0, position, 0)
    if bool((levels & 0xFFFF).any()):
        raise FormatError("a blob outside of lists has a repetition level")
    definition = levels >> np.uint64(16)
    highest = layers[-1].upper if layers else 0
    if len(definition) and int(definition.max()) > highest:
        raise FormatError(f"a definition level is above {highest}")
    return DecodedPage(Levels(layers, None, definition.astype(np.uint16)), inner.values)


def _positions_and_sizes(values: Block) -> tuple[Ints, Ints]:
    """Return the positions and the sizes, as uint64."""
    if not isinstance(values, PackedStruct) or len(values.children) != 2:
        raise FormatError("blob descriptors are not pairs")
    first, second = values.children
    if not (isinstance(first, FixedWidth) and isinstance(second, FixedWidth)):
        raise FormatError("blob descriptors are not pairs of numbers")
    if first.bits != 64 or second.bits != 64:
        raise FormatError(f"blob descriptors of {first.bits} and {second.bits} bits")
    return view_as(first.data, "<u8"), view_as(second.data, "<u8")


def blob_page(leaf: Leaf, policy: ChunkPolicy, version: FileVersion) -> PageParts:
    """Return the layout and buffers of a page of descriptors struct<position, size> outside of lists."""
    rows = np.zeros((len(leaf.values), 2), np.uint64)
    for i in range(2):
        rows[:, i] = leaf.values.field(i).fill_null(0).to_numpy()
    if leaf.definition is not None:
        null = leaf.definition > 0
        rows[null, 0] = leaf.definition[null].astype(np.uint64) << np.uint64(16)
        rows[null, 1] = 0
    inner = replace(leaf, layers=(pb.REPDEF_ALL_VALID_ITEM,), definition=None)
    chunks = StructChunks(rows.view(np.uint8), (64, 64))
    parts = mini_block_page(inner, chunks, None, policy, version)
    assert parts is not None
    layout, buffers = parts
    return pb.PageLayout(blob_layout=pb.BlobLayout(inner_layout=layout, layers=leaf.layers)), buffers
