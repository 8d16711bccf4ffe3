"""Fixed-width values: Flat, Bitpacked, BitpackedForNonNeg; and FixedSizeList and Nullable around them.

    Flat                values back to back
                        bits_per_value = 1      a bitmap, least significant bit first
                        bits_per_value = 8 * k  k bytes per value, little-endian
    Bitpacked           value i has bits [i * W, (i + 1) * W) of the buffer, lowest bit first; if `signed`,
                        its highest bit is repeated to fill the type
    BitpackedForNonNeg  blocks of 1024 values, the last one padded, each 1024 * W / T words of T bits:
                        with L = 1024 / T lanes, word j of lane l is word j * L + l of the block; lane l is
                        a bit stream whose row r (0..T-1) is the value number
                        order[r div 8] * 16 + (r mod 8) * 128 + l,  order = 0 4 2 6 1 5 3 7

The whole buffer of Flat may be compressed (decoder.py). An uncompressed range of values is a slice of the
file, without a copy. Example: int16 values 1, 2 are the bytes 01 00 02 00.

Packed integers have fewer bits than their type: W is compressed_bits_per_value, T is
uncompressed_bits_per_value and the width of the type. Example: 3-bit values 1, 2, 3 as Bitpacked are the bits
100 010 110, the bytes d1 00. No 2.0 file written by pylance 14 has these; only early 2.x writers used them.

(Lance file format 2.0, `Flat`, `Bitpacked`, `BitpackedForNonNeg`.)

FixedSizeList has the items of all lists back to back. List i has items [i * dimension, (i + 1) * dimension).

Nulls of the lists are in a Nullable around this encoding, nulls of the items in a Nullable inside `items`.
Null lists have (arbitrary) items, too.

(Lance file format 2.0, `FixedSizeList`.)

Nullable has values and, if some values are null, a validity bitmap.

    no_nulls    values
    some_nulls  validity (Flat of 1 bit, 1 = valid), values with arbitrary content under nulls
    all_nulls   nothing at all

(Lance file format 2.0, `Nullable`.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_fixed_size
from spark_lance.file.v2_0.decoder import ByteRun, Decoder, PageBuffer, PageView, Range, open_bytes
from spark_lance.proto import encodings20_pb2 as pb

ALL_NULLS = pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))


class _SomeNulls:
    def __init__(self, validity: Decoder, values: Decoder) -> None:
        self._validity = validity
        self._values = values

    def ranges(self, start: int, stop: int) -> list[Range]:
        start &= -8
        return [*self._validity.ranges(start, stop), *self._values.ranges(start, stop)]

    def read(self, start: int, stop: int) -> pa.Array:
        # Starts at a multiple of eight, so that bitmap and values start at the same byte boundary.
        aligned = start & -8
        valid = self._validity.read(aligned, stop)
        values = self._values.read(aligned, stop)
        return _mask(values, valid).slice(start - aligned)


class _AllNulls:
    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return []

    def read(self, start: int, stop: int) -> pa.Array:
        check_fixed_size(self._kind, stop - start)
        return pa.nulls(stop - start, self._kind)


def _mask(values: pa.Array, valid: pa.BooleanArray) -> pa.Array:
    """Return `values` with nulls where `valid` is false. `values` must not have an offset."""
    if values.null_count:
        valid = pc.and_(valid, values.is_valid())
    kind = values.type
    if pa.types.is_dictionary(kind):
        indices = pc.if_else(valid, values.indices, pa.scalar(None, kind.index_type))
        return pa.DictionaryArray.from_arrays(indices, values.dictionary, ordered=kind.ordered, safe=False)
    bitmap = valid.buffers()[1]
    if pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, len(values), [bitmap], children=[values.values])
    if pa.types.is_struct(kind):
        children = [values.field(i) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(values), [bitmap], children=children)
    return pa.Array.from_buffers(kind, len(values), [bitmap, *values.buffers()[1:]])


def open_nullable(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> Decoder:
    """Open a Nullable encoding, see `decoder.Open`."""
    nullable = encoding.nullable
    arm = nullable.WhichOneof("nullability")
    if arm == "all_nulls":
        return _AllNulls(kind)
    if arm == "no_nulls":
        return page.open(nullable.no_nulls.values, kind, count)
    if arm != "some_nulls":
        raise FormatError("a nullable encoding states neither nulls nor their absence")
    if nullable.some_nulls.validity.WhichOneof("array_encoding") != "flat":
        raise FormatError("the validity of a nullable encoding is not a bitmap")
    validity = page.open(nullable.some_nulls.validity, pa.bool_(), count)
    return _SomeNulls(validity, page.open(nullable.some_nulls.values, kind, count))


def encode_nullable(values: pb.ArrayEncoding, validity: pb.ArrayEncoding | None) -> pb.ArrayEncoding:
    """Return the description of values with their validity bitmap, or without one if all are valid."""
    if validity is None:
        return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))
    some = pb.Nullable.SomeNull(validity=validity, values=values)
    return pb.ArrayEncoding(nullable=pb.Nullable(some_nulls=some))


class _FixedSizeList:
    def __init__(self, items: Decoder, kind: pa.DataType) -> None:
        self._items = items
        self._kind = kind
        self._dimension = kind.list_size

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._items.ranges(start * self._dimension, stop * self._dimension)

    def read(self, start: int, stop: int) -> pa.Array:
        items = self._items.read(start * self._dimension, stop * self._dimension)
        return pa.Array.from_buffers(self._kind, stop - start, [None], null_count=0, children=[items])


def open_fixed_size_list(
    encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView
) -> _FixedSizeList:
    """Open a FixedSizeList encoding; see `decoder.Open`."""
    message = encoding.fixed_size_list
    if not pa.types.is_fixed_size_list(kind) or message.dimension != kind.list_size:
        raise FormatError(f"fixed-size lists of length {message.dimension} cannot be {kind}")
    if message.has_validity:
        raise UnsupportedFormatError("a fixed-size list of a 2.0 page carries its own validity")
    return _FixedSizeList(page.open(message.items, kind.value_type, count * message.dimension), kind)


# The block size of BitpackedForNonNeg.
_BLOCK = 1024
_ORDER = np.array([0, 4, 2, 6, 1, 5, 3, 7])
# Values per step. During unpacking, a value needs one byte per bit.
_STEP = 1 << 17

_Values = npt.NDArray[Any]


def fixed_width(kind: pa.DataType) -> int | None:
    """Return the bits per value of a type that Flat can store; None for other types."""
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


class _Flat:
    def __init__(self, run: ByteRun, kind: pa.DataType, bits: int) -> None:
        self._run = run
        self._kind = kind
        self._bits = bits

    def _bytes(self, start: int, stop: int) -> Range:
        if self._bits == 1:
            return start // 8, (stop + 7) // 8
        return start * self._bits // 8, stop * self._bits // 8

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._run.ranges(*self._bytes(start, stop))

    def read(self, start: int, stop: int) -> pa.Array:
        data = self._run.read(*self._bytes(start, stop))
        # Arrow requires aligned values; the format does not guarantee alignment in 2.0 pages.
        if data.address % min(8, (self._bits & -self._bits) // 8 or 1):
            data = pa.py_buffer(np.frombuffer(data, dtype=np.uint8).copy())
        offset = start % 8 if self._bits == 1 else 0
        return pa.Array.from_buffers(self._kind, stop - start, [None, data], null_count=0, offset=offset)


def open_flat(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _Flat:
    """Open a Flat encoding; see `decoder.Open`."""
    flat = encoding.flat
    bits = fixed_width(kind)
    if bits is None or flat.bits_per_value != bits:
        raise FormatError(f"values of {flat.bits_per_value} bits cannot be {kind}")
    run = open_bytes(flat, page)
    # The size of compressed bytes is known only after decompression; `read` checks the bounds then.
    if flat.compression.scheme in ("", "none") and count * bits > run.size * 8:
        raise FormatError(f"{count} values of {bits} bits do not fit a buffer of {run.size} bytes")
    return _Flat(run, kind, bits)


def encode_flat(bits: int, buffer_index: int) -> pb.ArrayEncoding:
    """Return the description of values of `bits` bits in buffer `buffer_index` of the page."""
    flat = pb.Flat(bits_per_value=bits, buffer=pb.Buffer(buffer_index=buffer_index))
    return pb.ArrayEncoding(flat=flat)


def _bits_to_values(bits: npt.NDArray[np.uint8], target: int, signed: bool) -> _Values:
    """Return values of `target` bits, given one row of bits (uint8, lowest first) per value."""
    width = bits.shape[1]
    wide = np.zeros((len(bits), target), dtype=np.uint8)
    wide[:, :width] = bits
    if signed and width:
        wide[:, width:] = bits[:, -1:]
    return np.packbits(wide, axis=1, bitorder="little").view(f"<u{target // 8}").reshape(-1)


class _Bitpacked:
    def __init__(self, buffer: PageBuffer, width: int, kind: pa.DataType, signed: bool) -> None:
        self._buffer = buffer
        self._width = width
        self._kind = kind
        self._signed = signed

    def _bytes(self, start: int, stop: int) -> Range:
        return start * self._width // 8, (stop * self._width + 7) // 8

    def ranges(self, start: int, stop: int) -> list[Range]:
        return [self._buffer.range(*self._bytes(start, stop))]

    def read(self, start: int, stop: int) -> pa.Array:
        data = np.frombuffer(self._buffer.read(*self._bytes(start, stop)), dtype=np.uint8)
        skip = start * self._width % 8
        out = np.empty(stop - start, dtype=f"<u{self._kind.bit_width // 8}")
        for at in range(0, len(out), _STEP):
            count = min(_STEP, len(out) - at)
            # _STEP is a multiple of 8, so every step starts at the same bit of a byte.
            first = at * self._width // 8
            bits = np.unpackbits(data[first:], count=skip + count * self._width, bitorder="little")[skip:]
            rows = bits.reshape(count, self._width)
            out[at : at + count] = _bits_to_values(rows, self._kind.bit_width, self._signed)
        return pa.Array.from_buffers(self._kind, len(out), [None, pa.py_buffer(out)], null_count=0)


class _BitpackedForNonNeg:
    def __init__(self, buffer: PageBuffer, width: int, kind: pa.DataType) -> None:
        self._buffer = buffer
        self._width = width
        self._kind = kind
        self._block_bytes = _BLOCK * width // 8

    def _blocks(self, start: int, stop: int) -> Range:
        return start // _BLOCK, (stop + _BLOCK - 1) // _BLOCK

    def ranges(self, start: int, stop: int) -> list[Range]:
        first, last = self._blocks(start, stop)
        return [self._buffer.range(first * self._block_bytes, last * self._block_bytes)]

    def read(self, start: int, stop: int) -> pa.Array:
        first, last = self._blocks(start, stop)
        data = np.frombuffer(
            self._buffer.read(first * self._block_bytes, last * self._block_bytes), dtype=np.uint8
        )
        out = np.zeros((last - first, _BLOCK), dtype=f"<u{self._kind.bit_width // 8}")
        blocks = data.reshape(last - first, self._block_bytes)
        step = _STEP // _BLOCK
        for at in range(0, len(out) if self._width else 0, step):
            part = _unpack_blocks(blocks[at : at + step], self._width, self._kind.bit_width)
            out[at : at + step] = part
        array = pa.Array.from_buffers(self._kind, out.size, [None, pa.py_buffer(out)], null_count=0)
        # Copied: a slice would have an offset, but the bitmap of an outer encoding has none.
        return pa.concat_arrays([array.slice(start - first * _BLOCK, stop - start)])


def _unpack_blocks(blocks: npt.NDArray[np.uint8], width: int, target: int) -> _Values:
    """Return the (n, 1024) values of n blocks of `width`-bit values, uint8 (n, 128 * width)."""
    count, lanes, size = len(blocks), _BLOCK // target, target // 8
    streams = np.ascontiguousarray(blocks.reshape(count, width, lanes, size).transpose(0, 2, 1, 3))
    bits = np.unpackbits(streams, bitorder="little").reshape(-1, width)
    values = _bits_to_values(bits, target, signed=False).reshape(count, lanes, size, 8)
    # Number order[row div 8] * 16 + (row mod 8) * 128 + lane, as axes: [row mod 8][order of row div 8][lane].
    # order * 16 is a multiple of the number of lanes, the unit of the position.
    out = np.empty((count, 8, size, lanes), dtype=values.dtype)
    places = _ORDER[:size] * 16 // lanes
    out[:, :, places, :] = values.transpose(0, 3, 2, 1)
    return out.reshape(count, _BLOCK)


def _check_widths(message: pb.Bitpacked | pb.BitpackedForNonNeg, kind: pa.DataType) -> int:
    """Check the widths against the type and return the packed width."""
    bits = fixed_width(kind)
    if bits not in (8, 16, 32, 64) or message.uncompressed_bits_per_value != bits:
        raise FormatError(f"bit-packed values of {message.uncompressed_bits_per_value} bits cannot be {kind}")
    if message.compressed_bits_per_value > bits:
        raise FormatError(f"values of {bits} bits are packed to {message.compressed_bits_per_value}")
    return message.compressed_bits_per_value


def open_bitpacked(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _Bitpacked:
    """Open a Bitpacked encoding; see `decoder.Open`."""
    message = encoding.bitpacked
    width = _check_widths(message, kind)
    buffer = page.buffer(message.buffer)
    if count * width > buffer.size * 8:
        raise FormatError(f"{count} values of {width} bits do not fit a buffer of {buffer.size} bytes")
    return _Bitpacked(buffer, width, kind, message.signed)


def open_bitpacked_for_non_neg(
    encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView
) -> _BitpackedForNonNeg:
    """Open a BitpackedForNonNeg encoding; see `decoder.Open`."""
    message = encoding.bitpacked_for_non_neg
    width = _check_widths(message, kind)
    buffer = page.buffer(message.buffer)
    blocks = (count + _BLOCK - 1) // _BLOCK
    if blocks * _BLOCK * width > buffer.size * 8:
        raise FormatError(f"{blocks} blocks of {width}-bit values do not fit a buffer of {buffer.size} bytes")
    return _BitpackedForNonNeg(buffer, width, kind)
