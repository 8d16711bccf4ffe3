"""Structs: SimpleStruct, the page of a struct's own column, and PackedStruct, row-major structs.

    SimpleStruct  has no buffers, only a length
    PackedStruct  inner   one encoding per child; only the width of its values is used, the data is in
    `buffer`
                  buffer  rows x (sum of widths) bytes: a row is the contiguous bytes of its children

Version 2.0 stores no validity of structs: no struct is null. The children of a struct have their own columns,
so SimpleStruct is decoded only for structs without children. The children of a packed struct cannot be null,
either, and have fixed widths of whole bytes.

Example: {int32 1, int8 2}, {int32 3, int8 4} packed is 01 00 00 00 02 03 00 00 00 04.

(Lance file format 2.0, `SimpleStruct`, `PackedStruct`.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.file.v2_0.decoder import PageBuffer, PageView, Range
from spark_lance.file.v2_0.flat import encode_flat, encode_nullable, fixed_width
from spark_lance.proto import encodings20_pb2 as pb

_Rows = npt.NDArray[np.uint8]


def _byte_width(kind: pa.DataType) -> int | None:
    """Return the bytes of one packed value; None for types that cannot be packed."""
    if pa.types.is_fixed_size_list(kind):
        item = _byte_width(kind.value_type)
        return None if item is None else item * kind.list_size
    if pa.types.is_struct(kind):
        widths = [_byte_width(kind.field(i).type) for i in range(kind.num_fields)]
        return None if None in widths else sum(width or 0 for width in widths)
    bits = fixed_width(kind)
    return None if bits is None or bits % 8 else bits // 8


def _described_width(encoding: pb.ArrayEncoding) -> int:
    """Return the bits per value that an inner encoding states."""
    arm = encoding.WhichOneof("array_encoding")
    if arm == "nullable" and encoding.nullable.HasField("no_nulls"):
        return _described_width(encoding.nullable.no_nulls.values)
    if arm == "flat":
        return encoding.flat.bits_per_value
    if arm == "fixed_size_list":
        return encoding.fixed_size_list.dimension * _described_width(encoding.fixed_size_list.items)
    if arm == "packed_struct":
        return sum(_described_width(inner) for inner in encoding.packed_struct.inner)
    raise UnsupportedFormatError(f"a packed struct with a child in encoding {arm!r} is not supported")


class _PackedStruct:
    def __init__(self, buffer: PageBuffer, width: int, kind: pa.DataType) -> None:
        self._buffer = buffer
        self._width = width
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return [self._buffer.range(start * self._width, stop * self._width)] if self._width else []

    def read(self, start: int, stop: int) -> pa.Array:
        data = self._buffer.read(start * self._width, stop * self._width)
        rows = np.frombuffer(data, dtype=np.uint8).reshape(stop - start, self._width)
        return _unpack(self._kind, rows)


def _unpack(kind: pa.DataType, rows: _Rows) -> pa.Array:
    """Return the array of packed values, one per row of `rows` (n, byte width of the type)."""
    if pa.types.is_fixed_size_list(kind):
        width = rows.shape[1] // kind.list_size
        items = _unpack(kind.value_type, np.ascontiguousarray(rows).reshape(-1, width))
        return pa.Array.from_buffers(kind, len(rows), [None], null_count=0, children=[items])
    if pa.types.is_struct(kind):
        children = []
        position = 0
        for i in range(kind.num_fields):
            width = _byte_width(kind.field(i).type) or 0
            children.append(_unpack(kind.field(i).type, rows[:, position : position + width]))
            position += width
        return pa.Array.from_buffers(kind, len(rows), [None], null_count=0, children=children)
    values = pa.py_buffer(np.ascontiguousarray(rows).reshape(-1))
    return pa.Array.from_buffers(kind, len(rows), [None, values], null_count=0)


def open_packed_struct(
    encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView
) -> _PackedStruct:
    """Open a PackedStruct encoding; see `decoder.Open`."""
    message = encoding.packed_struct
    if not pa.types.is_struct(kind) or kind.num_fields != len(message.inner):
        raise FormatError(f"a packed struct with {len(message.inner)} children cannot be {kind}")
    for i, inner in enumerate(message.inner):
        width = _byte_width(kind.field(i).type)
        if width is None:
            raise UnsupportedFormatError(f"a packed struct with a child of type {kind.field(i).type}")
        if _described_width(inner) != width * 8:
            raise FormatError(f"packed {kind.field(i).type} of {_described_width(inner)} bits")
    total = _byte_width(kind) or 0
    buffer = page.buffer(message.buffer)
    if count * total > buffer.size:
        raise FormatError(f"{count} packed rows of {total} bytes do not fit {buffer.size} bytes")
    return _PackedStruct(buffer, total, kind)


def check_packed(kind: pa.StructType, name: str) -> None:
    """Check that a packed struct has fields, and that all have a fixed width of whole bytes.

    Raises:
        SchemaError: it has none, or a field has not; the error has the column's name.
    """
    if not kind.num_fields:
        raise SchemaError(f"column {name!r}: a packed struct without fields cannot be stored")
    if _byte_width(kind) is None or any(pa.types.is_struct(child.type) for child in kind):
        raise SchemaError(f"column {name!r}: a packed struct holds fixed-width children only, not {kind}")


def encode_packed_struct(array: pa.StructArray, name: str) -> tuple[pb.ArrayEncoding, list[pa.Buffer]]:
    """Encode structs row by row. `name` is the column's name, for messages.

    Raises:
        SchemaError: a struct or child is null.
    """
    kind = array.type
    rows = np.empty((len(array), _byte_width(kind) or 0), dtype=np.uint8)
    _pack(array, rows, name)
    message = pb.PackedStruct(buffer=pb.Buffer(buffer_index=0))
    for i in range(kind.num_fields):
        message.inner.append(_describe(kind.field(i).type))
    return pb.ArrayEncoding(packed_struct=message), [pa.py_buffer(rows)]


def _describe(kind: pa.DataType) -> pb.ArrayEncoding:
    if pa.types.is_fixed_size_list(kind):
        items = pb.FixedSizeList(dimension=kind.list_size, items=_describe(kind.value_type))
        return encode_nullable(pb.ArrayEncoding(fixed_size_list=items), None)
    return encode_nullable(encode_flat(kind.bit_width, 0), None)


def _pack(array: pa.Array, rows: _Rows, name: str) -> None:
    """Fill `rows` (n, byte width of the type) with the values of `array`."""
    if array.null_count:
        raise SchemaError(f"column {name!r}: a packed struct cannot hold nulls in file version 2.0")
    kind = array.type
    if pa.types.is_struct(kind):
        position = 0
        for i in range(kind.num_fields):
            child = array.field(i)
            width = _byte_width(child.type) or 0
            _pack(child, rows[:, position : position + width], name)
            position += width
    elif pa.types.is_fixed_size_list(kind):
        items = array.flatten()
        packed = np.empty((len(items), rows.shape[1] // kind.list_size), dtype=np.uint8)
        _pack(items, packed, name)
        rows[:] = packed.reshape(rows.shape)
    elif len(array):
        width = rows.shape[1]
        values = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        rows[:] = values.reshape(rows.shape)


SIMPLE_STRUCT = pb.ArrayEncoding(struct=pb.SimpleStruct())


class _EmptyStruct:
    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return []

    def read(self, start: int, stop: int) -> pa.Array:
        return pa.Array.from_buffers(self._kind, stop - start, [None], null_count=0)


def open_struct(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _EmptyStruct:
    """Open a SimpleStruct encoding; see `decoder.Open`."""
    if not pa.types.is_struct(kind) or kind.num_fields:
        raise FormatError(f"a struct without children cannot be {kind}")
    return _EmptyStruct(kind)
