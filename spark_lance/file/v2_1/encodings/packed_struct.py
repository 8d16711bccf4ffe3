"""Packed structs: all fields of a row side by side; fields hold no nulls.

    PackedStruct { bits_per_value: [b0, b1, ...], values: Flat(b0 + b1 + ...) }

Row-major rows; field i of a row starts at the sum of the widths before it. Nulls of the struct are in the
levels. Example {u8: 1, u16: 2}:  01 02 00

    VariablePackedStruct { fields: [ { value, bits_per_value or bits_per_length } ... ] }

Fields of varying width, in full-zip pages of 2.2. A value is its fields in order: bits_per_value / 8 bytes,
or a length of bits_per_length / 8 bytes and that many bytes. Each field's own encoding (flat, variable, fsst,
...) then applies to the field's bytes of all rows. A null struct has no bytes at all.
Example {i8: 1, string: "xy"}:  01  02 00 00 00 78 79

(Lance file format, encodings: packed struct, variable packed struct.)
"""

from __future__ import annotations

import numpy as np

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.blocks import AllNull, Block, FixedWidth, PackedStruct, Variable
from spark_lance.file.v2_1.chunks import Bytes, Chunks, Ints, exclusive_sum, gather, gather_integers
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_mini_block", "decode_zipped"]


def decode_mini_block(packed: pb.PackedStruct, chunks: Chunks, resolver: Resolver) -> PackedStruct:
    """Decode all chunks of a page of PackedStruct."""
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


def decode_zipped(
    packed: pb.VariablePackedStruct, values: Variable, resolver: Resolver
) -> PackedStruct | AllNull:
    """Decode full-zip values of VariablePackedStruct."""
    offsets = values.offsets.astype(np.int64)
    present = np.flatnonzero(np.diff(offsets))
    if not len(present):
        # Then nothing proves that the widths are true.
        return AllNull(values.count)
    at, ends = offsets[:-1][present], offsets[1:][present]
    children: list[Block] = []
    for field in packed.fields:
        kind = field.WhichOneof("layout")
        if kind == "bits_per_value":
            width = _bytes(field.bits_per_value)
            _require(at, width, ends)
            rows = np.zeros((values.count, width), dtype=np.uint8)
            rows[present] = values.data[at[:, None] + np.arange(width)]
            children.append(resolver.zipped(field.value, rows))
            at = at + width
        elif kind == "bits_per_length":
            width = _bytes(field.bits_per_length)
            if width not in (4, 8):
                raise FormatError(f"lengths of {width * 8} bits in a packed struct")
            _require(at, width, ends)
            strings, at = _strings(values.data, at, ends, width)
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


def _bytes(bits: int) -> int:
    if bits % 8 or not bits:
        raise FormatError(f"a field of {bits} bits in a packed struct")
    return bits // 8


def _require(at: Ints, size: int, ends: Ints) -> None:
    if len(at) and size > int((ends - at).min()):
        raise FormatError("a row of a packed struct is cut short")


def _strings(data: Bytes, at: Ints, ends: Ints, width: int) -> tuple[Variable, Ints]:
    """Read a length and that many bytes at each position; return them and the positions behind them."""
    # A length of 2**63 or more turns negative.
    lengths = gather_integers(data, at, width).astype(np.int64)
    starts = at + width
    if bool((lengths < 0).any()) or bool((lengths > ends - starts).any()):
        raise FormatError("a field leaves its row of a packed struct")
    return Variable(exclusive_sum(lengths), gather(data, starts, lengths)), starts + lengths
