"""Fixed-size lists of fixed-width items.

    FixedSizeList { items_per_value, values: Flat, FixedSizeList or Constant, has_validity }

    mini-block chunk   one bitmap per level with has_validity, outer level first, then the flat items.
                       A bitmap covers the items of its level in the chunk (1 = valid), padded to whole bytes.
    full-zip value     the same per value: bitmaps of ceil(items / 8) bytes, then the items

Validity here is the validity of the items; the lists' own nulls are in the levels. A constant without a value
means that all items are null: there are bitmaps but no items. If the items are lists, a constant may replace
the inner list.
(Lance file format, encodings: fixed-size list.)
"""

from __future__ import annotations

import numpy as np

from spark_lance.arrow.buffers import pack_bits
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base.blocks import AllNull, Block, FixedSizeList, FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks
from spark_lance.file.v2_1.base.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings import flat
from spark_lance.proto import encodings21_pb2 as pb

_MAX_ITEMS = 1 << 28


def _shape(fsl: pb.FixedSizeList) -> tuple[list[tuple[int, bool]], pb.Flat | None]:
    """Return (cumulative items per value, has validity) of every level, outer first, and the items' encoding.

    The encoding is None if there are no items, because all are null.
    """
    levels: list[tuple[int, bool]] = []
    items = 1
    while True:
        items *= fsl.items_per_value
        if not 0 < items < _MAX_ITEMS:
            raise FormatError(f"a fixed-size list of {items} items")
        levels.append((items, fsl.has_validity))
        name = compression_name(fsl.values)
        if name == "flat":
            return levels, fsl.values.flat
        # Without a bitmap no stored bytes would confirm the number of nulls.
        if name == "constant" and fsl.has_validity and not fsl.values.constant.HasField("value"):
            return levels, None
        if name != "fixed_size_list":
            raise UnsupportedFormatError(f"fixed-size lists of {name!r} values are not supported")
        fsl = fsl.values.fixed_size_list


def _wrap_lists(
    levels: list[tuple[int, bool]], validity: list[Bytes | None], count: int, items: Block
) -> FixedSizeList:
    """Wrap flat items level by level, innermost first."""
    block = items
    for depth in range(len(levels) - 1, -1, -1):
        outer = levels[depth - 1][0] if depth else 1
        block = FixedSizeList(levels[depth][0] // outer, count * outer, block, validity[depth])
    assert isinstance(block, FixedSizeList)
    return block


def decode_mini_block(fsl: pb.FixedSizeList, chunks: Chunks, resolver: Resolver) -> FixedSizeList:
    """Decode all chunks of a page."""
    levels, inner = _shape(fsl)
    bitmaps = sum(has_validity for _, has_validity in levels)
    if len(chunks.buffers) != bitmaps + (inner is not None):
        raise FormatError(f"{bitmaps} bitmaps and items do not fit {len(chunks.buffers)} buffers per chunk")
    buffers = iter(chunks.buffers)
    validity: list[Bytes | None] = [
        next(buffers).concat_bits(chunks.counts * items, "validity of list items") if has_validity else None
        for items, has_validity in levels
    ]
    counts = chunks.counts * levels[-1][0]
    if inner is None:
        return _wrap_lists(levels, validity, chunks.total, AllNull(int(counts.sum())))
    return _wrap_lists(
        levels, validity, chunks.total, flat.decode(inner, Chunks((next(buffers),), counts), resolver)
    )


def decode_zipped(fsl: pb.FixedSizeList, rows: Bytes, resolver: Resolver) -> FixedSizeList:
    """Decode full-zip values: `rows` has shape (values, bytes per value)."""
    levels, inner = _shape(fsl)
    bits = flat.flat_bits(inner) if inner is not None else 0
    items = levels[-1][0]
    sizes = _bitmap_sizes(levels)
    head = sum(sizes)
    if head + (items * bits + 7) // 8 != rows.shape[1]:
        raise FormatError(f"lists of {items} items of {bits} bits are zipped as {rows.shape[1]} bytes")
    validity: list[Bytes | None] = []
    at = 0
    for (level_items, has_validity), size in zip(levels, sizes, strict=True):
        validity.append(_row_bits(rows[:, at : at + size], level_items) if has_validity else None)
        at += size
    values: Block
    if inner is None:
        values = AllNull(len(rows) * items)
    elif bits == 1:
        values = FixedWidth(1, len(rows) * items, _row_bits(rows[:, head:], items))
    else:
        values = FixedWidth(bits, len(rows) * items, np.ascontiguousarray(rows[:, head:]).reshape(-1))
    return _wrap_lists(levels, validity, len(rows), values)


def decode_block(fsl: pb.FixedSizeList, chunks: Chunks, resolver: Resolver) -> FixedSizeList:
    """Decode one buffer of contiguous lists in full-zip form: a dictionary (2.3)."""
    levels, inner = _shape(fsl)
    bits = flat.flat_bits(inner) if inner is not None else 0
    width = sum(_bitmap_sizes(levels)) + (levels[-1][0] * bits + 7) // 8
    pieces = chunks.require_single("fixed_size_list")
    if len(pieces.starts) != 1:
        raise FormatError("fixed-size lists in block form come in one buffer")
    data = pieces.concat()
    if chunks.total * width > len(data):
        raise FormatError(f"{chunks.total} lists of {width} bytes in a buffer of {len(data)}")
    return decode_zipped(fsl, data[: chunks.total * width].reshape(chunks.total, width), resolver)


def _bitmap_sizes(levels: list[tuple[int, bool]]) -> list[int]:
    """Return the bytes of each level's bitmap in one value."""
    return [(items + 7) // 8 if has_validity else 0 for items, has_validity in levels]


def _row_bits(rows: Bytes, bits: int) -> Bytes:
    """Return one bitmap from rows of bytes, each with `bits` bits and padding."""
    packed = np.ascontiguousarray(rows)
    if bits % 8 == 0:
        return packed.reshape(-1)
    return pack_bits(np.unpackbits(packed, axis=1, bitorder="little")[:, :bits].reshape(-1))
