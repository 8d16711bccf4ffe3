"""List: where the lists of one page end in the child column.

    offsets   u64 end offset per list (ends.py), counted from the page's first item; null lists have no items
    num_items items of all lists of the page

The items are values of the child column: those of page p start at the sum of `num_items` of the pages before
it, wherever the pages of the child column begin.

(Lance file format 2.0, `List`.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.arrays import CapacityError
from spark_lance.file.v2_0.decoder import Decoder, Items, PageView, Range
from spark_lance.file.v2_0.ends import Bools, Bounds, encode_ends, end_ranges, null_bitmap, read_ends
from spark_lance.file.v2_0.flat import encode_flat
from spark_lance.file.v2_0.nullable import encode_nullable
from spark_lance.proto import encodings20_pb2 as pb

__all__ = ["encode_list", "open_list"]

_INT32_MAX = 2**31 - 1


class _List:
    def __init__(self, index: Decoder, count: int, message: pb.List, kind: pa.DataType, items: Items) -> None:
        self._index = index
        self._count = count
        self._adjustment = message.null_offset_adjustment
        self._num_items = message.num_items
        self._kind = kind
        self._items = items

    def ranges(self, start: int, stop: int) -> list[Range]:
        found = end_ranges(self._index, start, stop)
        if start == 0 and stop == self._count:
            found += self._items.ranges(0, self._num_items)
        return found

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
    """Open a List encoding; see `decoder.Open`. Needs a page that knows the items."""
    if page.items is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise FormatError(f"lists cannot be {kind}")
    message = encoding.list
    return _List(page.open(message.offsets, pa.uint64(), count), count, message, kind, page.items)


def encode_list(bounds: Bounds, nulls: Bools | None) -> tuple[pb.ArrayEncoding, list[pa.Buffer]]:
    """Encode lists whose items are at bounds[i], bounds[i + 1]; bounds[0] is 0 and null lists are empty."""
    ends, adjustment = encode_ends(bounds, nulls)
    message = pb.List(
        offsets=encode_nullable(encode_flat(64, 0), None),
        null_offset_adjustment=adjustment,
        num_items=int(bounds[-1]),
    )
    return pb.ArrayEncoding(list=message), [pa.py_buffer(ends)]
