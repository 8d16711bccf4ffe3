"""Writes one top-level field of a 2.0 file with the minimal encodings that every 2.0 reader supports.

    fixed width, bool       Nullable(Flat)
    fixed-size list         Nullable(FixedSizeList(Nullable(Flat)))
    string, binary          Binary(Flat 64, Flat 8)
    dictionary              Nullable(Dictionary(Flat, items as above))
    list, large_list        List(Flat 64) and the items in the child's columns
    struct                  SimpleStruct and the children in their columns; structs cannot be null
    packed struct           PackedStruct
    blob                    PackedStruct of position and size, (1, 0) for null
    null                    Nullable.all_nulls

(Lance file format 2.0, writing.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.buffers import expand_ranges, pack_bits
from spark_lance.arrow.numpy_types import Bools
from spark_lance.errors import NullValueError, SchemaError
from spark_lance.file.base.metadata import BytesLike, EncodedPage
from spark_lance.file.base.schema import Field, owned_columns
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_0.flat import ALL_NULLS, encode_flat, encode_nullable, fixed_width
from spark_lance.file.v2_0.structs import SIMPLE_STRUCT, check_packed, encode_packed_struct
from spark_lance.file.v2_0.variable import Bounds, encode_binary, encode_list, is_variable
from spark_lance.proto import encodings20_pb2 as pb

_COMPRESSION = "lance-encoding:compression"
_UNSUPPORTED = {
    "map": "maps are stored by file version 2.2 and later, not 2.0",
    "fsl_struct": "fixed-size lists of structs are stored by file version 2.2 and later, not 2.0",
}

_Encoded = tuple[pb.ArrayEncoding, list[BytesLike]]


class FieldWriter:
    """Encodes one top-level field. Its columns are `column_base`, `column_base` + 1, ..."""

    def __init__(self, field: Field, column_base: int, version: FileVersion) -> None:
        """Check that 2.0 can store the field.

        Raises:
            SchemaError: the field is or contains a map, a fixed-size list of structs, or a packed struct or
                list that cannot be stored.
        """
        for node in field.walk():
            if node.kind in _UNSUPPORTED:
                raise SchemaError(f"column {field.name!r}: {_UNSUPPORTED[node.kind]}")
            node.refuse_packed_lists(field.name)
            if node.kind == "packed_struct":
                check_packed(node.arrow_type(), field.name)
        self._field = field
        owners = owned_columns([field], version)
        self._columns = {owner.id: column_base + i for i, owner in enumerate(owners)}

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        """Encode rows to one page per column, in column order.

        Args:
            array: rows of the field's Arrow type; may be a slice.
            row_start: number of the first row in the file.

        Raises:
            SchemaError: a struct, a non-nullable field, or a field of a packed struct has a null.
        """
        pages: list[EncodedPage] = []
        self._encode(self._field, array, row_start, pages)
        return pages

    def _encode(self, field: Field, array: pa.Array, row_start: int, pages: list[EncodedPage]) -> None:
        """Append the pages of a field and its descendants."""
        if not field.nullable and _has_nulls(array):
            raise NullValueError(f"column {self._name(field)} is not nullable but has nulls", field.name)

        def add(encoding: pb.ArrayEncoding, buffers: Sequence[BytesLike]) -> None:
            pages.append(EncodedPage(self._columns[field.id], buffers, encoding, len(array), row_start))

        if field.kind == "struct":
            if array.null_count:
                raise SchemaError(
                    f"column {self._name(field)} has {array.null_count} null structs, which file version 2.0"
                    " cannot store; 2.1 and later can"
                )
            add(SIMPLE_STRUCT, [])
            for i, child in enumerate(field.children):
                self._encode(child, array.field(i), row_start, pages)
        elif field.kind == "list":
            bounds, nulls, items = _list_parts(array)
            add(*encode_list(bounds, nulls))
            self._encode(field.children[0], items, row_start, pages)
        elif field.kind == "blob":
            add(*encode_packed_struct(_without_nulls(array), self._field.name))
        elif field.kind == "packed_struct":
            add(*encode_packed_struct(array, self._field.name))
        else:
            scheme = field.metadata.get(_COMPRESSION, "none").lower()
            add(*_encode_leaf(array, scheme if scheme in ("zstd", "lz4") else "none"))

    def _name(self, field: Field) -> str:
        top = self._field.name
        return repr(top) if field is self._field else f"{top!r} (field {field.name!r})"


def _list_parts(array: pa.Array) -> tuple[Bounds, Bools | None, pa.Array]:
    """Return the offsets of the lists (from 0), which lists are null, and the items.

    Items outside the slice or under null lists are omitted.
    """
    width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    skip = array.offset * np.dtype(width).itemsize
    bounds = np.zeros(1, dtype=np.int64)
    if len(array):
        raw = np.frombuffer(array.buffers()[1], dtype=width, count=len(array) + 1, offset=skip)
        bounds = raw.astype(np.int64)
    nulls: Bools | None = None
    items = array.values
    if array.null_count:
        nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
        lengths = np.diff(bounds)
        if lengths[nulls].any():
            lengths[nulls] = 0
            # take() returns wrong items for nested fixed-size lists with an offset; a copy has none.
            items = pa.concat_arrays([items]).take(pa.array(expand_ranges(bounds[:-1], lengths)))
            bounds = np.concatenate([[0], np.cumsum(lengths)])
    first = int(bounds[0])
    return bounds - first, nulls, items.slice(first, int(bounds[-1]) - first)


def _without_nulls(descriptors: pa.StructArray) -> pa.StructArray:
    """Return blob descriptors with (1, 0) in place of nulls."""
    if not descriptors.null_count:
        return descriptors
    valid = descriptors.is_valid()
    parts = [
        pc.if_else(valid, descriptors.field(i), pa.scalar(fill, pa.uint64())) for i, fill in ((0, 1), (1, 0))
    ]
    return pa.StructArray.from_arrays(parts, fields=list(descriptors.type))


def _has_nulls(array: pa.Array) -> bool:
    """Return whether a value is null. In dictionaries it may also refer to a null item."""
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count and not array.null_count:
        return bool(array.dictionary.is_null().take(array.indices).true_count)
    return bool(array.null_count)


def _encode_leaf(array: pa.Array, scheme: str = "none", first_buffer: int = 0) -> _Encoded:
    """Encode the values of one column. `first_buffer` is the number of their first buffer in the page."""
    kind = array.type
    if pa.types.is_struct(kind):
        return SIMPLE_STRUCT, []
    if is_variable(kind):
        return encode_binary(array, scheme, first_buffer)
    if array.null_count == len(array):
        return ALL_NULLS, []
    validity: pb.ArrayEncoding | None = None
    buffers: list[BytesLike] = []
    if array.null_count:
        validity = encode_flat(1, first_buffer)
        buffers = [pack_bits(pc.is_valid(array).to_numpy(zero_copy_only=False))]
    values, value_buffers = _encode_values(array, scheme, first_buffer + len(buffers))
    if pa.types.is_dictionary(kind) and validity is None:
        return values, value_buffers
    return encode_nullable(values, validity), [*buffers, *value_buffers]


def _encode_values(array: pa.Array, scheme: str, first_buffer: int) -> _Encoded:
    """Encode the values of an array whose validity is stored separately."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        indices = pc.fill_null(array.indices, 0)
        index_encoding, index_buffers = _encode_leaf(indices, first_buffer=first_buffer)
        items = array.dictionary
        item_encoding, item_buffers = _encode_leaf(items, scheme, first_buffer + len(index_buffers))
        dictionary = pb.Dictionary(
            indices=index_encoding, items=item_encoding, num_dictionary_items=len(items)
        )
        return pb.ArrayEncoding(dictionary=dictionary), [*index_buffers, *item_buffers]
    if pa.types.is_fixed_size_list(kind):
        first = array.offset * kind.list_size
        items = array.values.slice(first, len(array) * kind.list_size)
        encoding, buffers = _encode_leaf(items, first_buffer=first_buffer)
        lists = pb.FixedSizeList(dimension=kind.list_size, items=encoding)
        return pb.ArrayEncoding(fixed_size_list=lists), buffers
    bits = fixed_width(kind)
    if bits is None:
        raise SchemaError(f"file version 2.0 cannot store {kind}")
    return encode_flat(bits, first_buffer), [_values(array, bits)]


def _values(array: pa.Array, bits: int) -> BytesLike:
    """Return the bytes of fixed-width values, without bytes outside the slice."""
    data = array.buffers()[1]
    if bits > 1:
        return data.slice(array.offset * bits // 8, len(array) * bits // 8)
    if array.offset % 8 == 0:
        return data.slice(array.offset // 8, (len(array) + 7) // 8)
    return pack_bits(pc.fill_null(array, False).to_numpy(zero_copy_only=False))
