"""Packed structs: all fields of a row side by side.

    PackedStruct { bits_per_value: [b0, b1, ...], values: Flat(b0 + b1 + ...) }

Row-major rows; field i of a row starts at the sum of the widths before it. Fields hold no nulls; nulls of the
struct are in the levels. Example {u8: 1, u16: 2}:  01 02 00
(Lance file format, encodings: packed struct.)
"""

from __future__ import annotations

import numpy as np

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.blocks import FixedWidth, PackedStruct
from spark_lance.file.v2_1.chunks import Chunks
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_mini_block"]


def decode_mini_block(packed: pb.PackedStruct, chunks: Chunks, resolver: Resolver) -> PackedStruct:
    """Decode all chunks of a page."""
    widths = list(packed.bits_per_value)
    if not widths or any(bits == 0 or bits % 8 for bits in widths):
        raise UnsupportedFormatError(f"packed structs with fields of {widths} bits are not supported")
    rows = resolver.mini_block(packed.values, chunks)
    if not isinstance(rows, FixedWidth) or rows.bits != sum(widths):
        raise FormatError(f"the rows of a packed struct are not {sum(widths)} bits wide")
    table = rows.data.reshape(rows.count, sum(widths) // 8)
    children: list[FixedWidth] = []
    at = 0
    for bits in widths:
        column = np.ascontiguousarray(table[:, at : at + bits // 8]).reshape(-1)
        children.append(FixedWidth(bits, rows.count, column))
        at += bits // 8
    return PackedStruct(rows.count, tuple(children))
