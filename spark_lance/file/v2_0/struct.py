"""SimpleStruct: the page of a struct's header column. It has no buffers and says nothing but its length.

Version 2.0 stores no validity of structs: none of them is null. The children are columns of their own, so
this codec is only asked for structs that have no children.

(Lance file format 2.0, `SimpleStruct`.)
"""

from __future__ import annotations

import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.v2_0.decoder import PageView, Range
from spark_lance.proto import encodings20_pb2 as pb

__all__ = ["SIMPLE_STRUCT", "open_struct"]

SIMPLE_STRUCT = pb.ArrayEncoding(struct=pb.SimpleStruct())


class _EmptyStruct:
    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind

    def ranges(self, start: int, stop: int) -> list[Range]:
        return []

    def read(self, start: int, stop: int) -> pa.Array:
        return pa.Array.from_buffers(self._kind, stop - start, [None], null_count=0)


def open_struct(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _EmptyStruct:
    """Open a SimpleStruct encoding; see `decoder.Open`."""
    if not pa.types.is_struct(kind) or kind.num_fields:
        raise FormatError(f"a struct without children cannot be {kind}")
    return _EmptyStruct(kind)
