"""Binary, Fsst and FixedSizeBinary: strings and byte strings.

    Binary           indices  u64 end offset per value (ends.py), with nulls folded in
                     bytes    Flat of 8 bits: the values back to back, as a whole maybe compressed
    Fsst             a Binary whose values are FSST codes (file/fsst.py), and the symbol table
    FixedSizeBinary  bytes    Flat of 8 bits, byte_width per value; there are no nulls

A range of values needs its index entries, then just its bytes.

(Lance file format 2.0, `Binary`, `Fsst`, `FixedSizeBinary`.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.arrays import CapacityError
from spark_lance.file.buffers import as_bytes, is_ascii
from spark_lance.file.fsst import decode_fsst
from spark_lance.file.v2_0.compression import ByteRun, compress, open_bytes
from spark_lance.file.v2_0.decoder import Decoder, PageView, Range
from spark_lance.file.v2_0.ends import Bools, Bounds, encode_ends, end_ranges, null_bitmap, read_ends
from spark_lance.file.v2_0.flat import encode_flat
from spark_lance.file.v2_0.nullable import encode_nullable
from spark_lance.proto import encodings20_pb2 as pb

__all__ = ["encode_binary", "is_variable", "open_binary", "open_fixed_size_binary", "open_fsst"]

_INT32_MAX = 2**31 - 1


def is_variable(kind: pa.DataType) -> bool:
    """Tell whether values of a type have a length of their own each."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


class _Binary:
    def __init__(self, index: Decoder, count: int, data: ByteRun, adjustment: int, kind: pa.DataType) -> None:
        self._index = index
        self._count = count
        self._data = data
        self._adjustment = adjustment
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        found = end_ranges(self._index, start, stop)
        if start == 0 and stop == self._count:
            found += self._data.whole()
        return found

    def parts(self, start: int, stop: int) -> tuple[Bounds, Bools | None, pa.Buffer]:
        """Return offsets from 0, which values are null, and the bytes."""
        bounds, nulls = read_ends(self._index, start, stop, self._adjustment, self._data.size)
        first = int(bounds[0])
        data = self._data.read(first, int(bounds[-1]))
        if first:
            bounds -= first
        return bounds, nulls, data

    def read(self, start: int, stop: int) -> pa.Array:
        return _build(self._kind, *self.parts(start, stop))


class _Fsst:
    def __init__(self, codes: _Binary, symbol_table: bytes, kind: pa.DataType) -> None:
        self._codes = codes
        self._symbol_table = symbol_table
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._codes.ranges(start, stop)

    def read(self, start: int, stop: int) -> pa.Array:
        bounds, nulls, codes = self._codes.parts(start, stop)
        offsets, data = decode_fsst(self._symbol_table, bounds, as_bytes(codes))
        return _build(self._kind, offsets, nulls, pa.py_buffer(data))


class _FixedSizeBinary:
    def __init__(self, data: ByteRun, width: int, kind: pa.DataType) -> None:
        self._data = data
        self._width = width
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._data.ranges(start * self._width, stop * self._width)

    def read(self, start: int, stop: int) -> pa.Array:
        data = self._data.read(start * self._width, stop * self._width)
        bounds = np.arange(stop - start + 1, dtype=np.int64) * self._width
        return _build(self._kind, bounds, None, data)


def _build(
    kind: pa.DataType,
    bounds: Bounds | npt.NDArray[np.int32],
    nulls: Bools | None,
    data: pa.Buffer,
) -> pa.Array:
    """Build the Arrow array of checked offsets (from 0) and bytes.

    Raises:
        CapacityError: too many bytes for the 32-bit offsets of the type.
        FormatError: the type is text and the bytes are not UTF-8.
    """
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and int(bounds[-1]) > _INT32_MAX:
        raise CapacityError
    offsets = bounds.astype(np.int64 if large else np.int32, copy=False)
    array = pa.Array.from_buffers(kind, len(bounds) - 1, [null_bitmap(nulls), pa.py_buffer(offsets), data])
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not is_ascii(as_bytes(data)):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise FormatError(f"text is not UTF-8: {error}") from error
    return array


def _open_bytes(encoding: pb.ArrayEncoding, page: PageView) -> ByteRun:
    while encoding.nullable.WhichOneof("nullability") == "no_nulls":
        encoding = encoding.nullable.no_nulls.values
    arm = encoding.WhichOneof("array_encoding")
    if arm != "flat":
        raise UnsupportedFormatError(f"bytes of strings in encoding {arm!r} are not supported")
    if encoding.flat.bits_per_value != 8:
        raise FormatError(f"the bytes of strings have {encoding.flat.bits_per_value} bits")
    return open_bytes(encoding.flat, page)


def open_binary(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _Binary:
    """Open a Binary encoding; see `decoder.Open`."""
    if not is_variable(kind):
        raise FormatError(f"strings cannot be {kind}")
    message = encoding.binary
    index = page.open(message.indices, pa.uint64(), count)
    return _Binary(index, count, _open_bytes(message.bytes, page), message.null_adjustment, kind)


def open_fsst(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _Fsst:
    """Open an Fsst encoding; see `decoder.Open`."""
    message = encoding.fsst
    if message.binary.WhichOneof("array_encoding") != "binary":
        raise FormatError("FSST codes are not in a Binary encoding")
    return _Fsst(open_binary(message.binary, kind, count, page), message.symbol_table, kind)


def open_fixed_size_binary(
    encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView
) -> _FixedSizeBinary:
    """Open a FixedSizeBinary encoding; see `decoder.Open`."""
    if not is_variable(kind):
        raise FormatError(f"strings cannot be {kind}")
    message = encoding.fixed_size_binary
    data = _open_bytes(message.bytes, page)
    if count * message.byte_width > data.size:
        raise FormatError(f"{count} values of {message.byte_width} bytes do not fit {data.size} bytes")
    return _FixedSizeBinary(data, message.byte_width, kind)


def encode_binary(
    array: pa.Array, scheme: str = "none", first_buffer: int = 0
) -> tuple[pb.ArrayEncoding, list[pa.Buffer]]:
    """Encode strings or byte strings as Binary.

    Args:
        array: of any variable-width type.
        scheme: compression of the bytes: "none", "zstd" or "lz4".
        first_buffer: number of the first of the two buffers in the page.
    """
    bounds, nulls, data = _parts(array)
    ends, adjustment = encode_ends(bounds, nulls)
    raw = encode_flat(8, first_buffer + 1)
    if scheme != "none" and data.size:
        data = compress(data, scheme)
        raw.flat.compression.scheme = scheme
    indices = encode_nullable(encode_flat(64, first_buffer), None)
    message = pb.Binary(indices=indices, bytes=raw, null_adjustment=adjustment)
    return pb.ArrayEncoding(binary=message), [pa.py_buffer(ends), data]


def _parts(array: pa.Array) -> tuple[Bounds, Bools | None, pa.Buffer]:
    """Return offsets from 0, nulls, and the bytes of the values only; null values are empty."""
    nulls: Bools | None = None
    if array.null_count:
        nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
    bounds = _offsets(array)
    if nulls is not None and np.diff(bounds)[nulls].any():
        array = pc.fill_null(array, pa.scalar(b"").cast(array.type))
        bounds = _offsets(array)
    data = array.buffers()[2]
    first = int(bounds[0])
    size = int(bounds[-1]) - first
    data = data.slice(first, size) if size else pa.py_buffer(b"")
    return bounds - first, nulls, data


def _offsets(array: pa.Array) -> Bounds:
    """Return the len + 1 offsets of an array as they are."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.int64 if large else np.int32
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int64)
    skip = array.offset * np.dtype(width).itemsize
    offsets = np.frombuffer(buffer, dtype=width, count=len(array) + 1, offset=skip)
    return offsets.astype(np.int64)
