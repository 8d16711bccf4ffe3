"""Blob columns in Spark: their bytes, or descriptions that tell where the bytes are.

    blobs_descriptions   struct<position, size>, of blobs of version 2 struct<kind, position, size, blob_id,
                         blob_uri>; see `table.reading.blobs` for what they mean. No bytes are fetched.
    all_binary           binary: all bytes of the blob, wherever they are

A null blob is null either way. The schema decides which of the two a column is read as; the option
`blob_handling` decides for reads without a schema of the user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.file.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.spark.schema.types import spark_type
from spark_lance.table.bases import Bases
from spark_lance.table.reading.blobs import BlobFile, open_blobs
from spark_lance.table.reading.row_lookup import by_blob_bytes

__all__ = ["ALL_BINARY", "DESCRIPTIONS", "blob_type", "read_blobs"]

DESCRIPTIONS = "blobs_descriptions"
ALL_BINARY = "all_binary"

_MOST_BYTES = 2**31 - 1
_PARALLEL_READS = 16
# What version 2.0 writes for a null blob.
_NULL_POSITION = 1


def blob_type(field: Field, handling: str) -> st.DataType:
    """Return the Spark type of a top-level blob column; numbers of descriptions are bigint."""
    if handling == ALL_BINARY:
        return st.BinaryType()
    parts = []
    for part in field.described().arrow_field().type:
        kind = st.LongType() if pa.types.is_unsigned_integer(part.type) else spark_type(part.type)
        parts.append(st.StructField(part.name, kind, part.nullable))
    return st.StructType(parts)


def read_blobs(
    batch: pa.RecordBatch,
    blobs: Sequence[Field],
    asked: st.StructType,
    fragment: table_pb2.DataFragment,
    bases: Bases,
    limit: int,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch with blob columns as Spark was told of them, in batches of about `limit` bytes of blobs.

    Args:
        batch: rows of one fragment, blobs as descriptors.
        blobs: the blob columns among its columns.
        asked: the Spark schema, which has a type for each column of the batch.
        fragment: the fragment.
        bases: where its files are.
        limit: bytes.

    Raises:
        SchemaError: a blob is larger than Spark's binary can be.
        FormatError, UnsupportedFormatError, FileNotFoundError: a blob is not where its description says.
    """
    table = pa.Table.from_batches([batch])
    places = {field.name: table.schema.get_field_index(field.name) for field in blobs}
    for field in blobs:
        table = _with_nulls(table, places[field.name])
    read = [field for field in blobs if isinstance(asked.fields[places[field.name]].dataType, st.BinaryType)]
    cuts = [slice(0, table.num_rows)]
    if read:
        cuts = list(by_blob_bytes(table, [(places[field.name], field) for field in read], limit))
    for cut in cuts:
        rows = table.slice(cut.start, cut.stop - cut.start)
        for field in read:
            values = _values(rows.column(places[field.name]), field, fragment, bases)
            rows = rows.set_column(places[field.name], pa.field(field.name, pa.binary()), values)
        yield from rows.combine_chunks().to_batches()


def _with_nulls(table: pa.Table, place: int) -> pa.Table:
    """Return the table with null for descriptors that stand for null."""
    column = table.column(place)
    if column.type.get_field_index("kind") >= 0:
        return table
    position, size = (pc.struct_field(column, name) for name in ("position", "size"))
    null = pc.and_(pc.equal(position, _NULL_POSITION), pc.equal(size, 0))
    marked = pc.if_else(pc.fill_null(null, True), pa.scalar(None, column.type), column)
    return table.set_column(place, table.schema.field(place).with_nullable(True), marked)


def _values(
    column: pa.ChunkedArray, field: Field, fragment: table_pb2.DataFragment, bases: Bases
) -> pa.Array:
    found: list[dict[str, Any] | None] = column.to_pylist()
    files = open_blobs(bases, field, found, [fragment] * len(found))
    sizes = np.array([0 if file is None else file.size() for file in files], np.int64)
    if len(sizes) and sizes.max() > _MOST_BYTES:
        raise SchemaError(
            f"column {field.name!r} has a blob of {sizes.max()} bytes, more than Spark's binary can hold: "
            f"read it with option blob_handling={DESCRIPTIONS}"
        )
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return pa.array(pool.map(_bytes, files), pa.binary())


def _bytes(file: BlobFile | None) -> bytes | None:
    return None if file is None else file.readall()
