"""Packed structs: all fields of a row are adjacent. Fields have no nulls.

    PackedStruct { bits_per_value: [b0, b1, ...], values: Flat(b0 + b1 + ...) }

Row-major rows; field i of a row starts at the sum of the widths before it. Nulls of the struct are in the
levels. Example {u8: 1, u16: 2}:  01 02 00. In 2.3 full-zip pages have such rows, too.

    VariablePackedStruct { fields: [ { value, bits_per_value or bits_per_length } ... ] }

Fields of varying width, in full-zip pages of 2.2. A value is its fields in order: bits_per_value / 8 bytes,
or a length of bits_per_length / 8 bytes and that many bytes. Each field's own encoding (flat, variable, fsst,
variable_packed_struct, ...) then applies to the field's bytes of all rows. A null struct has no bytes at all.
Example {i8: 1, string: "xy"}:  01  02 00 00 00 78 79

(Lance file format, encodings: packed struct, variable packed struct.)

The writer:

    fixed-width fields         PackedStruct in mini-block chunks: contiguous rows
    other fields (2.2)         VariablePackedStruct in full-zip values: the bytes of each field. Before bytes
                               of varying number a u32 or u64 length (the offset width of the type)
    nested structs (2.2)       VariablePackedStruct again, as the bytes of a field, with a u32 length

Fixed-size lists belong to the other fields although their width is fixed, because PackedStruct supports only
plain numbers. Fields have no nulls, but items of fixed-size lists can be null. A null struct is a level; in
full-zip pages it has no bytes. Version 2.1 stores other fields only if all structs of a page are null.
(Lance file format 2.1, packed structs.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import flags_to_numpy
from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.base.blocks import AllNull, Block, FixedWidth, PackedStruct, Variable
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks, exclusive_sum, gather, gather_integers
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.encodings.plain_writer import (
    U8,
    ChunkBuffer,
    ZipVariable,
    flat,
    is_variable,
    value_bits,
    zip_fixed,
    zip_variable,
)
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.proto import encodings21_pb2 as pb


def decode_mini_block(packed: pb.PackedStruct, chunks: Chunks, resolver: Resolver) -> PackedStruct:
    """Decode all chunks of a page of PackedStruct."""
    return _columns(packed, resolver.mini_block(packed.values, chunks))


def decode_zipped_rows(packed: pb.PackedStruct, rows: Bytes, resolver: Resolver) -> PackedStruct:
    """Decode full-zip values of PackedStruct, (rows, bytes)."""
    return _columns(packed, resolver.zipped(packed.values, rows))


def _columns(packed: pb.PackedStruct, rows: Block) -> PackedStruct:
    widths = list(packed.bits_per_value)
    if not widths or any(bits == 0 or bits % 8 for bits in widths):
        raise UnsupportedFormatError(f"packed structs with fields of {widths} bits are not supported")
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


def decode_zipped(
    packed: pb.VariablePackedStruct, values: Variable, resolver: Resolver
) -> PackedStruct | AllNull:
    """Decode full-zip values of VariablePackedStruct."""
    offsets = values.offsets.astype(np.int64)
    present = np.flatnonzero(np.diff(offsets))
    if not len(present):
        # Without bytes nothing confirms the widths.
        return AllNull(values.count)
    at, ends = offsets[:-1][present], offsets[1:][present]
    children: list[Block] = []
    for field in packed.fields:
        kind = field.WhichOneof("layout")
        if kind == "bits_per_value":
            width = _num_bytes(field.bits_per_value)
            _check_ends(at, width, ends)
            rows = np.zeros((values.count, width), dtype=np.uint8)
            rows[present] = values.data[at[:, None] + np.arange(width)]
            children.append(resolver.zipped(field.value, rows))
            at = at + width
        elif kind == "bits_per_length":
            width = _num_bytes(field.bits_per_length)
            if width not in (4, 8):
                raise FormatError(f"lengths of {width * 8} bits in a packed struct")
            _check_ends(at, width, ends)
            strings, at = _read_strings(values.data, at, ends, width)
            lengths = np.zeros(values.count, dtype=np.int64)
            lengths[present] = np.diff(strings.offsets)
            children.append(
                resolver.zipped_variable(field.value, Variable(exclusive_sum(lengths), strings.data))
            )
        else:
            raise FormatError("a field of a packed struct has no width")
    if bool((at != ends).any()):
        raise FormatError("the fields of a packed struct do not fill its rows")
    return PackedStruct(values.count, tuple(children))


def _num_bytes(bits: int) -> int:
    if bits % 8 or not bits:
        raise FormatError(f"a field of {bits} bits in a packed struct")
    return bits // 8


def _check_ends(at: Ints, size: int, ends: Ints) -> None:
    if len(at) and size > int((ends - at).min()):
        raise FormatError("a row of a packed struct is cut short")


def _read_strings(data: Bytes, at: Ints, ends: Ints, width: int) -> tuple[Variable, Ints]:
    """Read a length and that many bytes at each position. Return the bytes and the positions after them."""
    # A length of 2**63 or more becomes negative.
    lengths = gather_integers(data, at, width).astype(np.int64)
    starts = at + width
    if bool((lengths < 0).any()) or bool((lengths > ends - starts).any()):
        raise FormatError("a field leaves its row of a packed struct")
    return Variable(exclusive_sum(lengths), gather(data, starts, lengths)), starts + lengths


@dataclass(frozen=True)
class StructChunks:
    """Rows of a struct with fixed-width fields, in mini-block chunks. `rows` is (rows, bytes)."""

    rows: U8
    bits: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows.nbytes

    @property
    def description(self) -> pb.CompressiveEncoding:
        """PackedStruct of Flat rows."""
        packed = pb.PackedStruct(bits_per_value=self.bits, values=flat(sum(self.bits)))
        return pb.CompressiveEncoding(packed_struct=packed)

    def cost(self, positions: Ints) -> Ints:
        """Return the bytes of the rows before each position."""
        ends: Ints = positions * self.rows.shape[1]
        return ends

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return the one buffer."""
        return [ChunkBuffer(self.rows.reshape(-1), bounds * self.rows.shape[1])]


def check_packed(field: Field, path: str) -> None:
    """Check that a packed struct has a layout for all of its fields.

    Raises:
        SchemaError: it has none; the error names the field.
    """
    kind = field.arrow_type()
    if not kind.num_fields:
        raise SchemaError(f"column {path!r}: a packed struct without fields cannot be stored")
    for child in kind:
        if not _is_fixed(child.type) and not is_variable(child.type) and not _is_variable_struct(child.type):
            raise SchemaError(f"column {path!r}: {child.type} ({child.name!r}) cannot be in a packed struct")


def is_plain_struct(kind: pa.StructType) -> bool:
    """Return whether PackedStruct supports the type: every field is a plain value of fixed width."""
    return all(_is_fixed(child.type) and not pa.types.is_fixed_size_list(child.type) for child in kind)


def _is_fixed(kind: pa.DataType) -> bool:
    bits = 1
    while pa.types.is_fixed_size_list(kind):
        bits *= kind.list_size
        kind = kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or is_variable(kind):
        return False
    return not pa.types.is_dictionary(kind) and bits * value_bits(kind) % 8 == 0


def _is_variable_struct(kind: pa.DataType) -> bool:
    """Return whether a nested struct can be stored: like pylance, only if its values vary in width."""
    if not pa.types.is_struct(kind):
        return False
    is_variable_width = [is_variable(child.type) or _is_variable_struct(child.type) for child in kind]
    fits = all(width or _is_fixed(child.type) for width, child in zip(is_variable_width, kind, strict=True))
    return fits and any(is_variable_width)


def struct_chunks(leaf: Leaf) -> StructChunks:
    """Return the slots of a struct for which `is_plain_struct` is true.

    Raises:
        SchemaError: a field of a non-null struct is null.
    """
    children = [child for child, _ in _fields(leaf.values, leaf.slot_validity(), leaf.field.name)]
    parts = [zip_fixed(child, None).data for child in children]
    return StructChunks(np.hstack(parts), tuple(value_bits(child.type) for child in children))


def zip_structs(leaf: Leaf, version: FileVersion) -> ZipVariable:
    """Return the slots of a struct for a full-zip page.

    Raises:
        SchemaError: a field of a non-null struct is null, or this version has no such pages.
    """
    if version is FileVersion.V2_1:
        raise SchemaError(
            f"column {leaf.field.name!r}: packed structs of file version 2.1 hold numbers and other plain "
            f"values of fixed width only, not {leaf.values.type}; version 2.2 packs strings, lists of fixed "
            "size and structs too"
        )
    valid = leaf.slot_validity()
    packed, rows = _zip_fields(leaf.values, valid, leaf.field.name)
    if valid is not None:
        rows = pc.if_else(pa.array(valid), rows, pa.scalar(b"", pa.large_binary()))
    return ZipVariable(pb.CompressiveEncoding(variable_packed_struct=packed), rows, 32)


def _zip_fields(
    structs: pa.StructArray, valid: Bools | None, path: str
) -> tuple[pb.VariablePackedStruct, pa.LargeBinaryArray]:
    """Return the encoding of a struct, and the bytes of each struct."""
    packed = pb.VariablePackedStruct()
    parts: list[pa.Array] = []
    fixed: list[U8] = []
    for child, name in _fields(structs, valid, path):
        if pa.types.is_struct(child.type):
            inner, data = _zip_fields(child, valid, name)
            description, bits = pb.CompressiveEncoding(variable_packed_struct=inner), 32
        elif is_variable(child.type):
            strings = zip_variable(child, valid)
            description, data, bits = strings.description, strings.data, strings.bits_per_offset
        else:
            zipped = zip_fixed(child, valid)
            packed.fields.add(value=zipped.description, bits_per_value=8 * zipped.data.shape[1])
            fixed.append(zipped.data)
            continue
        packed.fields.add(value=description, bits_per_length=bits)
        lengths = np.diff(np.frombuffer(data.buffers()[1], np.int64)).astype("<u8")
        words = lengths.view(np.uint8).reshape(-1, 8)[:, : bits // 8]
        parts += [_as_binary([*fixed, words]), data]
        fixed = []
    if fixed:
        parts.append(_as_binary(fixed))
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    return packed, rows


def _as_binary(columns: list[U8]) -> pa.LargeBinaryArray:
    """Return the rows of adjacent matrices as byte strings."""
    rows = np.hstack(columns)
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows).reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)


def _fields(structs: pa.StructArray, valid: Bools | None, path: str) -> list[tuple[pa.Array, str]]:
    """Return the fields of all slots and their paths, after checking that none is null in a valid slot.

    Items of fixed-size lists can be null, except bits.
    """
    fields = []
    for i, field in enumerate(structs.type):
        child = structs.field(i)
        child = child.storage if isinstance(child, pa.ExtensionArray) else child
        name = f"{path}.{field.name}"
        if _has_nulls(child, valid):
            raise SchemaError(f"column {name!r}: a field of a packed struct cannot be null")
        if _has_null_bits(child, valid):
            raise SchemaError(f"column {name!r}: a bool of a list in a packed struct cannot be null")
        fields.append((child, name))
    return fields


def _has_nulls(array: pa.Array, valid: Bools | None) -> bool:
    """Return whether a value is null in a valid row."""
    if not array.null_count:
        return False
    nulls: Bools = flags_to_numpy(pc.is_null(array))
    return bool((nulls if valid is None else nulls & valid).any())


def _has_null_bits(array: pa.Array, valid: Bools | None) -> bool:
    """Return whether a fixed-size list of bools has a null item in a valid row."""
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
        valid = None if valid is None else np.repeat(valid, size)
        if pa.types.is_boolean(array.type):
            return _has_nulls(array, valid)
    return False
