"""Variable-length values: List, Binary and Fsst; and FixedSizeBinary and Dictionary.

    List             offsets    u64 end offset per list, counted from the page's first item; null lists have
                                no items
                     num_items  items of all lists of the page
    Binary           indices    u64 end offset per value, with nulls folded in
                     bytes      Flat of 8 bits: the values back to back, possibly compressed as a whole
    Fsst             a Binary whose values are FSST codes (file/base/fsst.py), and the symbol table
    FixedSizeBinary  bytes      Flat of 8 bits, byte_width per value; there are no nulls

Entry i of the end offsets is the end of value i, counted from the start of the page's bytes (or items). Value
i starts where value i - 1 ends, value 0 at 0. An entry at or above the page's adjustment is a null: subtract
the adjustment to get its end. Writers use the number of bytes (items) plus one as adjustment.

Example: "a", null, "", "bcd" with 4 bytes and adjustment 5 is 1, 6, 1, 4.

The items of lists are values of the child column. The items of page p start at the sum of `num_items` of the
earlier pages, independent of the page boundaries of the child column. Reading a range of strings needs its
index entries, then only its bytes.

(Lance file format 2.0, `List`, `Binary`, `Fsst`, `FixedSizeBinary`.)

Dictionary has indices into a list of items. There are two conventions. The type of the column determines
which one a page uses:

    string and binary types   indices start at 1, and index 0 is null
    Arrow dictionary types    indices start at 0 and have the width of the type's index; a null value refers
    to a
                              null item, or is null in a Nullable around the Dictionary

Example: "x", null, "y" as string has indices 1, 0, 2 and items "x", "y"; as dictionary it has indices 0, 2, 1
and items "x", "y", null.

(Lance file format 2.0, `Dictionary`.)
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import CapacityError
from spark_lance.arrow.buffers import as_bytes, is_ascii
from spark_lance.arrow.numpy_types import Bools
from spark_lance.arrow.texts import check_stored_text
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.fsst import decode_fsst
from spark_lance.file.v2_0.decoder import ByteRun, Decoder, Items, PageView, Range, compress, open_bytes
from spark_lance.file.v2_0.flat import encode_flat, encode_nullable
from spark_lance.proto import encodings20_pb2 as pb

_INT32_MAX = 2**31 - 1

Bounds: TypeAlias = npt.NDArray[np.int64]


def end_ranges(index: Decoder, start: int, stop: int) -> list[Range]:
    """Return the byte ranges of the entries for values [start, stop), including the entry before `start`."""
    return index.ranges(max(start - 1, 0), stop)


def read_ends(
    index: Decoder, start: int, stop: int, adjustment: int, limit: int
) -> tuple[Bounds, Bools | None]:
    """Read the entries for values [start, stop).

    Args:
        index: decoder of uint64 entries.
        start: first value.
        stop: one past the last value, greater than `start`.
        adjustment: the page's null adjustment.
        limit: number of bytes (items) that exist.

    Returns:
        stop - start + 1 ascending positions within 0..limit: value start + i is at [i], [i + 1]; and which
        values are null (bool, stop - start), None if none is.

    Raises:
        FormatError: positions do not ascend or exceed the limit.
    """
    lead = 1 if start else 0
    entries = index.read(start - lead, stop)
    if entries.null_count:
        raise FormatError("an offset is null")
    raw = np.frombuffer(entries.buffers()[1], dtype=np.uint64, count=len(entries))
    nulls: Bools | None = None
    if int(raw.max()) >= adjustment:
        nulls = raw >= np.uint64(adjustment)
        raw = np.subtract(raw, np.uint64(adjustment), out=raw.copy(), where=nulls)
        nulls = nulls[lead:]
    if int(raw.max()) > limit:
        raise FormatError(f"an offset of {int(raw.max())} is beyond the {limit} that exist")
    bounds = np.zeros(stop - start + 1, dtype=np.int64)
    bounds[1 - lead :] = raw
    if (bounds[1:] < bounds[:-1]).any():
        raise FormatError("offsets are not ascending")
    return bounds, nulls


def null_bitmap(nulls: Bools | None) -> pa.Buffer | None:
    """Return the Arrow validity bitmap for a mask of nulls."""
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def encode_ends(bounds: Bounds, nulls: Bools | None) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the entries for values at bounds[i], bounds[i + 1] (bounds[0] = 0), and the null adjustment.

    Null values must be empty.
    """
    adjustment = int(bounds[-1]) + 1
    ends = bounds[1:].astype(np.uint64)
    if nulls is not None:
        np.add(ends, np.uint64(adjustment), out=ends, where=nulls)
    return ends, adjustment


def is_variable(kind: pa.DataType) -> bool:
    """Return whether values of a type vary in length."""
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
        result = end_ranges(self._index, start, stop)
        if start == 0 and stop == self._count:
            result += self._data.full_ranges()
        return result

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
    """Return the Arrow array of checked offsets (from 0) and bytes.

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
        check_stored_text(array)
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
    """Return offsets from 0, nulls, and the bytes of the values. Null values are empty."""
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
    """Return the len + 1 offsets of an array unchanged."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.int64 if large else np.int32
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int64)
    skip = array.offset * np.dtype(width).itemsize
    offsets = np.frombuffer(buffer, dtype=width, count=len(array) + 1, offset=skip)
    return offsets.astype(np.int64)


class _List:
    def __init__(self, index: Decoder, count: int, message: pb.List, kind: pa.DataType, items: Items) -> None:
        self._index = index
        self._count = count
        self._adjustment = message.null_offset_adjustment
        self._num_items = message.num_items
        self._kind = kind
        self._items = items

    def ranges(self, start: int, stop: int) -> list[Range]:
        result = end_ranges(self._index, start, stop)
        if start == 0 and stop == self._count:
            result += self._items.ranges(0, self._num_items)
        return result

    def read(self, start: int, stop: int) -> pa.Array:
        bounds, nulls = read_ends(self._index, start, stop, self._adjustment, self._num_items)
        if stop == self._count and int(bounds[-1]) != self._num_items:
            raise FormatError(f"lists end at item {int(bounds[-1])} of {self._num_items}")
        first, last = int(bounds[0]), int(bounds[-1])
        large = pa.types.is_large_list(self._kind)
        if not large and last - first > _INT32_MAX:
            raise CapacityError
        items = self._items.read(first, last)
        offsets = pa.py_buffer((bounds - first).astype(np.int64 if large else np.int32))
        return pa.Array.from_buffers(
            self._kind, stop - start, [null_bitmap(nulls), offsets], children=[items]
        )


def open_list(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _List:
    """Open a List encoding, see `decoder.Open`. The page must have items."""
    if page.items is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise FormatError(f"lists cannot be {kind}")
    message = encoding.list
    return _List(page.open(message.offsets, pa.uint64(), count), count, message, kind, page.items)


def encode_list(bounds: Bounds, nulls: Bools | None) -> tuple[pb.ArrayEncoding, list[pa.Buffer]]:
    """Encode lists with items at bounds[i], bounds[i + 1]. bounds[0] is 0, and null lists are empty."""
    ends, adjustment = encode_ends(bounds, nulls)
    message = pb.List(
        offsets=encode_nullable(encode_flat(64, 0), None),
        null_offset_adjustment=adjustment,
        num_items=int(bounds[-1]),
    )
    return pb.ArrayEncoding(list=message), [pa.py_buffer(ends)]


_INDEX_TYPES = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


class _DictionaryStrings:
    """Strings. Reads the items once and keeps them while the page is open."""

    def __init__(self, indices: Decoder, items: Decoder, item_count: int, kind: pa.DataType) -> None:
        self._indices = indices
        self._items = items
        self._item_count = item_count
        self._kind = kind
        self._values: pa.Array | None = None

    def ranges(self, start: int, stop: int) -> list[Range]:
        result = self._indices.ranges(start, stop)
        if self._values is None and self._item_count:
            result += self._items.ranges(0, self._item_count)
        return result

    def read(self, start: int, stop: int) -> pa.Array:
        indices = self._indices.read(start, stop)
        if self._values is None:
            # Index 0 means null, so a null is prepended to the items.
            items = [self._items.read(0, self._item_count)] if self._item_count else []
            self._values = pa.concat_arrays([pa.nulls(1, self._kind), *items])
        _check_indices(indices, len(self._values))
        return self._values.take(indices)


class _DictionaryArrays:
    """Dictionary arrays. Null items become null indices, because Arrow's kernels check only these."""

    def __init__(self, indices: Decoder, items: Decoder, item_count: int, kind: pa.DictionaryType) -> None:
        self._indices = indices
        self._items = items
        self._item_count = item_count
        self._kind = kind
        self._values: pa.Array | None = None
        self._index_map: pa.Array | None = None

    def ranges(self, start: int, stop: int) -> list[Range]:
        result = self._indices.ranges(start, stop)
        if self._values is None and self._item_count:
            result += self._items.ranges(0, self._item_count)
        return result

    def _dictionary(self) -> pa.Array:
        if self._values is None:
            kind = self._kind.value_type
            values = self._items.read(0, self._item_count) if self._item_count else pa.nulls(0, kind)
            if values.null_count:
                valid = values.is_valid().to_numpy(zero_copy_only=False)
                places = np.cumsum(valid) - 1
                self._index_map = pa.array(places, mask=~valid).cast(self._kind.index_type)
                values = values.drop_null()
            self._values = values
        return self._values

    def read(self, start: int, stop: int) -> pa.Array:
        indices = self._indices.read(start, stop)
        values = self._dictionary()
        _check_indices(indices, self._item_count)
        if self._index_map is not None:
            indices = self._index_map.take(indices)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=self._kind.ordered, safe=False)


def _check_indices(indices: pa.Array, count: int) -> None:
    bounds = pc.min_max(indices).as_py()
    if bounds["max"] is not None and not 0 <= bounds["min"] <= bounds["max"] < count:
        raise FormatError(f"dictionary indices from {bounds['min']} to {bounds['max']} for {count} items")


def _index_type(encoding: pb.ArrayEncoding) -> pa.DataType:
    """Return the unsigned type of the indices. For strings, only the encoding determines it."""
    while encoding.nullable.WhichOneof("nullability") == "no_nulls":
        encoding = encoding.nullable.no_nulls.values
    arm = encoding.WhichOneof("array_encoding")
    bits = encoding.flat.bits_per_value if arm == "flat" else 8
    if bits not in _INDEX_TYPES:
        raise FormatError(f"dictionary indices of {bits} bits")
    return _INDEX_TYPES[bits]


def open_dictionary(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> Decoder:
    """Open a Dictionary encoding; see `decoder.Open`."""
    message = encoding.dictionary
    if pa.types.is_dictionary(kind):
        index_type, item_type = kind.index_type, kind.value_type
    elif is_variable(kind):
        index_type, item_type = _index_type(message.indices), kind
    else:
        raise UnsupportedFormatError(f"a 2.0 dictionary page of type {kind} is not supported")
    item_count = message.num_dictionary_items
    if message.items.nullable.HasField("all_nulls") and item_count > max(count, 1):
        # All-null items have no bytes, so only this check bounds a damaged count.
        raise FormatError(f"a dictionary of {item_count} nulls for {count} values")
    indices = page.open(message.indices, index_type, count)
    items = page.open(message.items, item_type, item_count)
    if pa.types.is_dictionary(kind):
        return _DictionaryArrays(indices, items, item_count, kind)
    return _DictionaryStrings(indices, items, item_count, kind)
