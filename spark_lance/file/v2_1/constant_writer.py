"""Writes constant pages: pages without a single valid value.

    page buffers   none if the layers are [NULLABLE_ITEM]: every row is null
                   else 0 rep, 1 def: raw u16, empty if the page has none of them

(Lance file format 2.1, constant pages; 2.1 itself says "all-null".)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.mini_block_writer import PageParts
from spark_lance.file.v2_1.ravel import Leaf
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["null_page"]

_ONLY_NULLS = (pb.REPDEF_NULLABLE_ITEM,)


def null_page(leaf: Leaf) -> PageParts:
    """Return the layout and buffers of a page in which every slot, if there is one, is null."""
    if leaf.layers == _ONLY_NULLS:
        return pb.PageLayout(constant_layout=pb.ConstantLayout(layers=leaf.layers)), []
    layout = pb.ConstantLayout(layers=leaf.layers)
    return pb.PageLayout(constant_layout=layout), [_raw(leaf.rep), _raw(leaf.definition)]


def _raw(levels: npt.NDArray[np.uint16] | None) -> npt.NDArray[np.uint8]:
    if levels is None:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(levels).view(np.uint8)
