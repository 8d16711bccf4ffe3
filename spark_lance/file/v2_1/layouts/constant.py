"""Constant pages: every visible item is null, or all non-null items have the same value.

    no scalar   0 buffers: layers are [NULLABLE_ITEM] and the page is `length` nulls
                2 buffers: repetition levels, definition levels (empty if there are none)
    scalar      (2.2) inline_value = the bytes of one fixed-width value (a bool is one byte), 0 or 2 buffers;
                or, without inline_value, 1 or 3 buffers, the first of which is the scalar:
                u32 k, k * u32 sizes, then the k Arrow buffers of an array of length 1 (a string: two offsets
                of 4 or 8 bytes, then the bytes)

Levels are plain u16, or (2.2) num_rep_values and num_def_values levels in the block form of rep_compression
and def_compression. Example of a scalar, "hi":

    02 00 00 00  08 00 00 00 02 00 00 00  00 00 00 00 02 00 00 00  68 69

(Lance file format, constant page.)

The writer writes pages without a valid value, or (2.2) with one value for all rows:

    null page      no buffers if the layers are [NULLABLE_ITEM]: every row is null
                   else 0 rep, 1 def: raw u16, empty if the page has none of them
    scalar page    fixed width: no buffers, the bytes of the value are in the layout (a bool is one byte)
                   variable width: 0 scalar: u32 2, u32 size of the offsets, u32 size of the bytes,
                   the offsets 0 and n (i32 or i64), the n bytes

Scalar pages may also have levels, but only as raw u16, so the writer uses them only without levels.
(Lance file format 2.2, constant pages; 2.1 says "all-null" and has no scalars.)
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.buffers import as_bytes
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_fixed_size
from spark_lance.file.v2_1.base.blocks import AllNull, Block, FixedWidth, Variable
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.encodings.plain_writer import is_variable
from spark_lance.file.v2_1.layouts.mini_block import PageParts
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.v2_1.levels.unravel import Levels, number_layers
from spark_lance.proto import encodings21_pb2 as pb

# Limits of this reader for levels and values without stored bytes. Writers start a new page after 8 to 32 MB
# of values, so valid pages stay below them. A page without levels decodes only the requested rows.
_MAX_LEVELS = 1 << 28
_MAX_BYTES = 1 << 30
# End offset of a value of any length.
_OFFSET_BYTES = 8


def is_uniform(layout: pb.ConstantLayout, num_buffers: int) -> bool:
    """Return whether all rows of a page are equal. Then any number of its rows can be decoded."""
    return num_buffers < 2 and not any(layer.is_list for layer in number_layers(layout.layers))


def decode(layout: pb.ConstantLayout, page: PageBytes, resolver: Resolver) -> DecodedPage:
    """Decode a page. Without levels it has `page.rows` items.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the page uses an unknown encoding.
    """
    if len(page.buffers) > 3:
        raise FormatError(f"a constant page of {len(page.buffers)} buffers")
    rep: npt.NDArray[np.uint16] | None = None
    definition: npt.NDArray[np.uint16] | None = None
    if len(page.buffers) >= 2:
        first = len(page.buffers) - 2
        rep_encoding = layout.rep_compression if layout.HasField("rep_compression") else None
        def_encoding = layout.def_compression if layout.HasField("def_compression") else None
        rep = _decode_levels(rep_encoding, layout.num_rep_values, page.buffer(first), resolver)
        definition = _decode_levels(def_encoding, layout.num_def_values, page.buffer(first + 1), resolver)
    levels = Levels(number_layers(layout.layers), rep, definition)
    count = levels.visible_count(page.rows)
    if layout.HasField("inline_value"):
        return DecodedPage(levels, _repeat_fixed(layout.inline_value, count))
    if len(page.buffers) in (1, 3):
        return DecodedPage(levels, _repeat_scalar(page.buffer(0), count, page.arrow))
    check_fixed_size(page.arrow, count)
    return DecodedPage(levels, AllNull(count))


def _decode_levels(
    encoding: pb.CompressiveEncoding | None, count: int, data: Bytes, resolver: Resolver
) -> npt.NDArray[np.uint16] | None:
    if len(data) == 0:
        return None
    if encoding is not None:
        if count > _MAX_LEVELS:
            raise FormatError(f"a page of {count} levels; a limit of this reader is {_MAX_LEVELS}")
        return resolver.levels(encoding, Chunks.block(data, count))
    if len(data) % 2:
        raise FormatError(f"levels of {len(data)} bytes")
    return data.view("<u2")


def _check_bytes(width: int, count: int) -> None:
    if width * count > _MAX_BYTES:
        raise FormatError(
            f"a constant page repeats {width} bytes {count} times; "
            f"a limit of this reader is {_MAX_BYTES} bytes: read fewer rows"
        )


def _repeat_fixed(value: bytes, count: int) -> FixedWidth:
    _check_bytes(len(value), count)
    return FixedWidth(len(value) * 8, count, np.tile(as_bytes(value), count))


def _repeat_scalar(data: Bytes, count: int, arrow: pa.DataType) -> Block:
    """Repeat the value of a stored array of length 1 `count` times."""
    raw = data.tobytes()
    if len(raw) < 4:
        raise FormatError("the scalar of a constant page is cut short")
    (number,) = struct.unpack_from("<I", raw)
    if not 0 < number <= 2:
        raise UnsupportedFormatError(f"a scalar of {number} buffers is not supported")
    if len(raw) < 4 + 4 * number:
        raise FormatError("the scalar of a constant page is cut short")
    at = 4 + 4 * number
    buffers: list[bytes] = []
    for size in struct.unpack_from(f"<{number}I", raw, 4):
        buffers.append(raw[at : at + size])
        at += size
    if at > len(raw):
        raise FormatError("the scalar of a constant page is cut short")
    if number == 1:
        return _repeat_fixed(buffers[0], count)
    offsets, values = buffers
    if len(offsets) not in (8, 16):
        raise UnsupportedFormatError(
            f"a scalar of {arrow} with a buffer of {len(offsets)} bytes is not supported"
        )
    start, stop = struct.unpack("<2i" if len(offsets) == 8 else "<2q", offsets)
    if not 0 <= start <= stop <= len(values):
        raise FormatError("the scalar of a constant page has offsets beyond its bytes")
    value = values[start:stop]
    _check_bytes(len(value) + _OFFSET_BYTES, count)
    ends = np.arange(count + 1, dtype=np.int64) * len(value)
    return Variable(ends, np.tile(as_bytes(value), count) if value else as_bytes(b""))


MAX_INLINE_BYTES = 32

_ONLY_NULLS = (pb.REPDEF_NULLABLE_ITEM,)


def null_page(leaf: Leaf) -> PageParts:
    """Return the layout and buffers of a page whose slots are all null."""
    if leaf.layers == _ONLY_NULLS:
        return pb.PageLayout(constant_layout=pb.ConstantLayout(layers=leaf.layers)), []
    layout = pb.ConstantLayout(layers=leaf.layers)
    return pb.PageLayout(constant_layout=layout), [_raw_levels(leaf.rep), _raw_levels(leaf.definition)]


def scalar_page(leaf: Leaf, value: bytes) -> PageParts:
    """Return the layout and buffers of a page without levels whose slots are all `value`.

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


def _raw_levels(levels: npt.NDArray[np.uint16] | None) -> npt.NDArray[np.uint8]:
    if levels is None:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(levels).view(np.uint8)
