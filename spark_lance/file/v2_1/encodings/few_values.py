"""Constant and Dictionary as encodings of a block of integers (positions and counts of 2.3 only).

Constant { value }                                   value = the little-endian bytes of every value;
                                                     without value: a block of no values
Dictionary { indices, items, num_dictionary_items }  one buffer: u64 size of the indices, u64 size of the
                                                     items, then both blocks
"""

from __future__ import annotations

import numpy as np

from spark_lance.arrow.buffers import as_bytes
from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Chunks
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

_MAX_BYTES = 1 << 34
_HEADER = 16


def decode_constant(constant: pb.Constant, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Repeat the value. There are no bytes to decode."""
    size, count = len(constant.value), chunks.total
    if count == 0:
        return FixedWidth(8 * size or 64, 0, as_bytes(b""))
    if not 0 < size <= 16 or size * count > _MAX_BYTES:
        raise FormatError(f"{count} constant values of {size} bytes")
    return FixedWidth(8 * size, count, np.tile(as_bytes(constant.value), count))


def decode_dictionary(dictionary: pb.Dictionary, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode indices and items from one buffer and replace the indices with their items."""
    pieces = chunks.require_single("dictionary")
    if len(pieces.starts) != 1:
        raise FormatError("a dictionary in block form comes in one buffer")
    data = pieces.concat()
    if len(data) < _HEADER:
        raise FormatError("the buffer of a dictionary is cut short")
    first, second = (int(size) for size in data[:_HEADER].view("<u8"))
    if _HEADER + first + second > len(data):
        raise FormatError(f"a dictionary of {first} and {second} bytes in a buffer of {len(data)}")
    # More items than values are useless, and a range of items has no bytes that confirm their number.
    if dictionary.num_dictionary_items > chunks.total:
        raise FormatError(f"a dictionary of {dictionary.num_dictionary_items} items")
    split = _HEADER + first
    indices = resolver.block(dictionary.indices, Chunks.block(data[_HEADER:split], chunks.total))
    items = resolver.block(
        dictionary.items, Chunks.block(data[split : split + second], dictionary.num_dictionary_items)
    )
    if not isinstance(indices, FixedWidth) or indices.bits not in (8, 16, 32, 64):
        raise FormatError("dictionary indices must be numbers")
    if not isinstance(items, FixedWidth) or items.bits not in (8, 16, 32, 64):
        raise FormatError("the items of a dictionary in block form must be numbers")
    size = items.bits // 8
    places = indices.data.view(f"<u{indices.bits // 8}")[: chunks.total]
    if len(places) and int(places.max()) >= items.count:
        raise FormatError(f"dictionary index {int(places.max())} of {items.count} items")
    values = items.data[: items.count * size].view(f"<u{size}")[places]
    return FixedWidth(items.bits, chunks.total, values.view(np.uint8))
