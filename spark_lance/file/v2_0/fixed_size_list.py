"""FixedSizeList: the items of all lists, back to back; list i has items [i * dimension, (i + 1) * dimension).

Nulls of the lists are in a Nullable around this encoding, nulls of the items in a Nullable inside `items`.
Null lists have their (arbitrary) items too.

(Lance file format 2.0, `FixedSizeList`.)
"""

from __future__ import annotations

import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_0.decoder import Decoder, PageView, Range
from spark_lance.proto import encodings20_pb2 as pb


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
