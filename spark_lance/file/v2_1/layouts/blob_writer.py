"""Writes blob pages of version 2.1: see `layouts/blob.py` for their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_lance.file.v2_1.encodings.packed_writer import StructChunks
from spark_lance.file.v2_1.layouts.mini_block_writer import ChunkPolicy, PageParts, mini_block_page
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.version import FileVersion
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["blob_page"]


def blob_page(leaf: Leaf, policy: ChunkPolicy) -> PageParts:
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
    parts = mini_block_page(inner, chunks, None, policy, FileVersion.V2_1)
    assert parts is not None
    layout, buffers = parts
    return pb.PageLayout(blob_layout=pb.BlobLayout(inner_layout=layout, layers=leaf.layers)), buffers
