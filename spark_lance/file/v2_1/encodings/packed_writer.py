"""Writes packed structs: all fields of a row side by side.

    fields of one width each   PackedStruct in mini-block chunks: the rows, one behind the other
    other fields (2.2)         VariablePackedStruct in full-zip values: per field its bytes, or, if they vary
                               in number, u32 or u64 length (the offset width of the type) and the bytes

Fixed-size lists count among the other fields, though all rows are of one width then, for PackedStruct knows
only plain numbers. Fields hold no nulls; a null struct is a level, and in full-zip pages has no bytes.
(Lance file format 2.1, packed structs; the reader is `encodings/packed_struct.py`.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import SchemaError
from spark_lance.file.arrays import flags_of
from spark_lance.file.schema import Field
from spark_lance.file.v2_1.encodings.plain_writer import (
    U8,
    Bools,
    ChunkBuffer,
    Indices,
    ZipVariable,
    flat,
    is_variable,
    value_bits,
    zip_fixed,
    zip_variable,
)
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.version import FileVersion
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["StructChunks", "check_packed", "is_plain_struct", "struct_chunks", "zip_structs"]


@dataclass(frozen=True)
class StructChunks:
    """Rows of a struct whose fields have one width each, in mini-block chunks; `rows` is (rows, bytes)."""

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

    def cost(self, positions: Indices) -> Indices:
        """Return the bytes of the rows before each position."""
        ends: Indices = positions * self.rows.shape[1]
        return ends

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return the one buffer."""
        return [ChunkBuffer(self.rows.reshape(-1), bounds * self.rows.shape[1])]


def check_packed(field: Field, path: str, version: FileVersion) -> None:
    """Refuse a packed struct with fields that cannot be packed in this version.

    Raises:
        SchemaError: with the field's name.
    """
    kind = field.arrow_type()
    if not kind.num_fields:
        raise SchemaError(f"column {path!r}: a packed struct without fields cannot be stored")
    for child in kind:
        if not _is_fixed(child.type) and not is_variable(child.type):
            raise SchemaError(f"column {path!r}: {child.type} ({child.name!r}) cannot be in a packed struct")
    if version is FileVersion.V2_1 and not is_plain_struct(kind):
        raise SchemaError(
            f"column {path!r}: packed structs of file version 2.1 hold numbers and other plain values of "
            f"fixed width only, not {kind}; version 2.2 packs strings and fixed-size lists too"
        )


def is_plain_struct(kind: pa.StructType) -> bool:
    """Tell whether rows of the type fit PackedStruct: every field is one plain value of fixed width."""
    return all(_is_fixed(child.type) and not pa.types.is_fixed_size_list(child.type) for child in kind)


def _is_fixed(kind: pa.DataType) -> bool:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or is_variable(kind):
        return False
    return not pa.types.is_dictionary(kind) and value_bits(kind) % 8 == 0


def struct_chunks(leaf: Leaf) -> StructChunks:
    """Return the slots of a struct for which `is_plain_struct` holds.

    Raises:
        SchemaError: a field is null where the struct is not.
    """
    children = _children(leaf)
    parts = [zip_fixed(child, None).data for child in children]
    return StructChunks(np.hstack(parts), tuple(value_bits(child.type) for child in children))


def zip_structs(leaf: Leaf) -> ZipVariable:
    """Return the slots of a struct for a full-zip page.

    Raises:
        SchemaError: a field is null where the struct is not, or so are items of a fixed-size list in it.
    """
    valid = leaf.slot_validity()
    packed = pb.VariablePackedStruct()
    parts: list[pa.Array] = []
    fixed: list[U8] = []
    for child in _children(leaf):
        if not is_variable(child.type):
            zipped = zip_fixed(child, valid)
            packed.fields.add(value=zipped.description, bits_per_value=8 * zipped.data.shape[1])
            fixed.append(zipped.data)
            continue
        strings = zip_variable(child, valid)
        packed.fields.add(value=strings.description, bits_per_length=strings.bits_per_offset)
        lengths = np.diff(np.frombuffer(strings.data.buffers()[1], np.int64)).astype("<u8")
        words = lengths.view(np.uint8).reshape(-1, 8)[:, : strings.bits_per_offset // 8]
        parts += [_as_binary([*fixed, words]), strings.data]
        fixed = []
    if fixed:
        parts.append(_as_binary(fixed))
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    if valid is not None:
        rows = pc.if_else(pa.array(valid), rows, pa.scalar(b"", pa.large_binary()))
    return ZipVariable(pb.CompressiveEncoding(variable_packed_struct=packed), rows, 32)


def _as_binary(columns: list[U8]) -> pa.LargeBinaryArray:
    """Return the rows of matrices that stand side by side as byte strings."""
    rows = np.hstack(columns)
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows).reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)


def _children(leaf: Leaf) -> list[pa.Array]:
    """Return the fields of all slots, after checking that none is null where it counts."""
    valid = leaf.slot_validity()
    children = []
    for i in range(leaf.values.type.num_fields):
        child = leaf.values.field(i)
        child = child.storage if isinstance(child, pa.ExtensionArray) else child
        if _has_nulls(child, valid):
            name = f"{leaf.field.name}.{leaf.values.type.field(i).name}"
            raise SchemaError(f"column {name!r}: a field of a packed struct cannot be null")
        children.append(child)
    return children


def _has_nulls(array: pa.Array, valid: Bools | None) -> bool:
    """Tell whether a value, or an item of one, is null in a row that is valid."""
    if array.null_count:
        nulls: Bools = flags_of(pc.is_null(array))
        if (nulls if valid is None else nulls & valid).any():
            return True
    if not pa.types.is_fixed_size_list(array.type):
        return False
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    return _has_nulls(items, None if valid is None else np.repeat(valid, size))
