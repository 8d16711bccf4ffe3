"""Nullable: values and, if some are null, a validity bitmap.

    no_nulls    values
    some_nulls  validity (Flat of 1 bit, 1 = valid), values with arbitrary content under nulls
    all_nulls   nothing at all

(Lance file format 2.0, `Nullable`.)
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError
from spark_lance.file.base.limits import check_fixed_size
from spark_lance.file.v2_0.decoder import Decoder, PageView, Range
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
        # From a multiple of eight, so that bitmap and values start together, on a byte.
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
    """Return `values`, which have no offset, with nulls where `valid` is false."""
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
    """Open a Nullable encoding; see `decoder.Open`."""
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
    """Describe values, with the bitmap that tells which are valid unless all are."""
    if validity is None:
        return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))
    some = pb.Nullable.SomeNull(validity=validity, values=values)
    return pb.ArrayEncoding(nullable=pb.Nullable(some_nulls=some))
