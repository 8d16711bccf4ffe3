"""Writes constant pages: pages without a single valid value, or (2.2) whose values are all the same.

    null page      no buffers if the layers are [NULLABLE_ITEM]: every row is null
                   else 0 rep, 1 def: raw u16, empty if the page has none of them
    scalar page    fixed width: no buffers, the bytes of the value are in the layout (a bool is one byte)
                   variable width: 0 scalar: u32 2, u32 size of the offsets, u32 size of the bytes,
                   the offsets 0 and n (i32 or i64), the n bytes

Scalar pages may have levels too, but only as raw u16, so they are written only for pages without levels.
(Lance file format 2.2, constant pages; 2.1 says "all-null" and has no scalars.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.file.v2_1.encodings.plain_writer import is_variable
from spark_lance.file.v2_1.layouts.mini_block_writer import PageParts
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["MAX_INLINE_BYTES", "null_page", "scalar_page"]

MAX_INLINE_BYTES = 32

_ONLY_NULLS = (pb.REPDEF_NULLABLE_ITEM,)


def null_page(leaf: Leaf) -> PageParts:
    """Return the layout and buffers of a page in which every slot, if there is one, is null."""
    if leaf.layers == _ONLY_NULLS:
        return pb.PageLayout(constant_layout=pb.ConstantLayout(layers=leaf.layers)), []
    layout = pb.ConstantLayout(layers=leaf.layers)
    return pb.PageLayout(constant_layout=layout), [_raw(leaf.rep), _raw(leaf.definition)]


def scalar_page(leaf: Leaf, value: bytes) -> PageParts:
    """Return the layout and buffers of a page without levels, every slot of which holds `value`.

    `value` has at most `MAX_INLINE_BYTES` bytes if the type is of fixed width.
    """
    layout = pb.ConstantLayout(layers=leaf.layers)
    if not is_variable(leaf.values.type):
        layout.inline_value = value
        return pb.PageLayout(constant_layout=layout), []
    wide = leaf.values.type in (pa.large_string(), pa.large_binary())
    offsets = np.array([0, len(value)], np.int64 if wide else np.int32).tobytes()
    sizes = np.array([2, len(offsets), len(value)], np.uint32).tobytes()
    scalar = np.frombuffer(sizes + offsets + value, np.uint8)
    return pb.PageLayout(constant_layout=layout), [scalar]


def _raw(levels: npt.NDArray[np.uint16] | None) -> npt.NDArray[np.uint8]:
    if levels is None:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(levels).view(np.uint8)
