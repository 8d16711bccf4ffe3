"""Dictionary: indices into a list of items.

There are two conventions, and only the type of the column tells which one a page follows:

    string and binary types   indices count from 1, and index 0 is null
    Arrow dictionary types    indices count from 0 and have the width of the type's index; a null value refers
                              to an item that is null, or is null in a Nullable around the Dictionary

Example: "x", null, "y" as string has indices 1, 0, 2 and items "x", "y"; as dictionary it has indices 0, 2, 1
and items "x", "y", null.

(Lance file format 2.0, `Dictionary`.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_0.decoder import Decoder, PageView, Range
from spark_lance.file.v2_0.variable import is_variable
from spark_lance.proto import encodings20_pb2 as pb

_INDEX_TYPES = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


class _Plain:
    """Strings: reads the items once and keeps them for as long as the page is open."""

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
            # Index 0 means null: with a null in front, indices can be taken as they are.
            items = [self._items.read(0, self._item_count)] if self._item_count else []
            self._values = pa.concat_arrays([pa.nulls(1, self._kind), *items])
        _check_indices(indices, len(self._values))
        return self._values.take(indices)


class _Encoded:
    """Dictionary arrays: null items become null indices, which is what Arrow's kernels look at."""

    def __init__(self, indices: Decoder, items: Decoder, item_count: int, kind: pa.DictionaryType) -> None:
        self._indices = indices
        self._items = items
        self._item_count = item_count
        self._kind = kind
        self._values: pa.Array | None = None
        self._moved: pa.Array | None = None

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
                self._moved = pa.array(places, mask=~valid).cast(self._kind.index_type)
                values = values.drop_null()
            self._values = values
        return self._values

    def read(self, start: int, stop: int) -> pa.Array:
        indices = self._indices.read(start, stop)
        values = self._dictionary()
        _check_indices(indices, self._item_count)
        if self._moved is not None:
            indices = self._moved.take(indices)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=self._kind.ordered, safe=False)


def _check_indices(indices: pa.Array, count: int) -> None:
    bounds = pc.min_max(indices).as_py()
    if bounds["max"] is not None and not 0 <= bounds["min"] <= bounds["max"] < count:
        raise FormatError(f"dictionary indices from {bounds['min']} to {bounds['max']} for {count} items")


def _index_type(encoding: pb.ArrayEncoding) -> pa.DataType:
    """Return the unsigned type of the indices, which for strings only the encoding tells."""
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
        # All-null items take no bytes, so nothing else bounds a damaged count.
        raise FormatError(f"a dictionary of {item_count} nulls for {count} values")
    indices = page.open(message.indices, index_type, count)
    items = page.open(message.items, item_type, item_count)
    if pa.types.is_dictionary(kind):
        return _Encoded(indices, items, item_count, kind)
    return _Plain(indices, items, item_count, kind)
