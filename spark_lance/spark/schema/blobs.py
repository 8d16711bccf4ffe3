"""Reads blob columns in Spark: as bytes, or as descriptions of where the bytes are.

    blobs_descriptions   struct<position, size, blob_source>; for blobs of version 2 struct<kind, position,
                         size, blob_id, blob_uri, blob_source>; see `table.reading.blobs` for their meaning.
                         Positions refer to the data file `blob_source`. No bytes are fetched.
    all_binary           binary: all bytes of the blob, from any location
    none                 the column is left out, unless it is named

A null blob is null in both forms. The schema decides in which form a column is read. Without a user-defined
schema, the option `blob_handling` decides.

A description is enough to find the bytes, whatever Spark does with the row. So columns of this type are
written as blobs again: see `file.blob_references`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.file.blob_references import BLOB_SOURCE, EXTERNAL, REFERENCE, split_by_bytes
from spark_lance.file.blob_writer import has_blobs
from spark_lance.proto import table_pb2
from spark_lance.spark.schema.types import field_type, spark_field, spark_type
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import address_fragments
from spark_lance.table.reading.blob_sources import FileUris, data_files, map_blobs, with_source
from spark_lance.table.reading.blobs import BlobFile, open_blobs

DESCRIPTIONS = "blobs_descriptions"
ALL_BINARY = "all_binary"
LEFT_OUT = "none"

_MAX_BINARY_BYTES = 2**31 - 1
_PARALLEL_READS = 16
# The position of a null blob in files of version 2.0.
_NULL_POSITION = 1
_PART_NAMES = frozenset(field.name for field in REFERENCE)


def _descriptor_part_type(kind: pa.DataType) -> st.DataType:
    return st.LongType() if pa.types.is_unsigned_integer(kind) else spark_type(kind)


# The type of an expression's value for a blob column: its bytes, or a description.
BlobValue = st.StructType(
    [
        st.StructField(
            part.name, st.BinaryType() if part.name == "data" else _descriptor_part_type(part.type)
        )
        for part in REFERENCE
    ]
)


def blob_column_type(field: Field, target: str | st.DataType) -> st.DataType:
    """Return the Spark type of a blob column or of a column with nested blobs.

    Unsigned integers in descriptions become bigint.

    Args:
        field: the column.
        target: one of the first two values of `blob_handling`; or the requested type of the column, with
            binary for blobs whose bytes are requested.
    """
    if field.is_blob:
        if target == ALL_BINARY or isinstance(target, st.BinaryType):
            return st.BinaryType()
        parts = [
            st.StructField(part.name, _descriptor_part_type(part.type), part.nullable)
            for part in field.as_descriptor().arrow_field().type
        ]
        return st.StructType([*parts, st.StructField(BLOB_SOURCE, st.StringType(), True)])
    if not has_blobs(field):
        return field_type(field.read_field())
    if field.kind == "list":
        inner = target.elementType if isinstance(target, st.ArrayType) else target
        (item,) = field.children
        return st.ArrayType(blob_column_type(item, inner), item.nullable or item.is_blob)
    parts = []
    for child in field.children:
        inner = target
        if isinstance(target, st.StructType):
            inner = target[child.name].dataType if child.name in target.names else DESCRIPTIONS
        kind = blob_column_type(child, inner)
        if not has_blobs(child):
            parts.append(spark_field(child.read_field()))
        else:
            parts.append(st.StructField(child.name, kind, child.nullable or child.is_blob))
    return st.StructType(parts)


def is_description(kind: st.DataType) -> bool:
    """Return whether a Spark type is the type of descriptions with their source."""
    if not isinstance(kind, st.StructType):
        return False
    names = set(kind.names)
    if len(names) < len(kind.names) or not {"position", "size", BLOB_SOURCE} <= names <= _PART_NAMES:
        return False
    return all(
        isinstance(part.dataType, type(member.dataType))
        for part in kind
        for member in BlobValue
        if member.name == part.name
    )


def holds_descriptions(kind: st.DataType) -> bool:
    """Return whether a type is or contains the type of descriptions, in structs and arrays."""
    if is_description(kind):
        return True
    if isinstance(kind, st.ArrayType):
        return holds_descriptions(kind.elementType)
    return isinstance(kind, st.StructType) and any(holds_descriptions(part.dataType) for part in kind)


def read_blobs(
    batch: pa.RecordBatch,
    blobs: Sequence[Field],
    projection: st.StructType,
    fragment: table_pb2.DataFragment,
    bases: Bases,
    limit: int,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch with its blob columns in the types of a Spark schema.

    The batch is split into batches of about `limit` bytes of blobs.

    Args:
        batch: rows of one fragment, blobs as descriptors.
        blobs: the columns with blobs among the columns of the batch.
        projection: the Spark schema, which has a type for each column of the batch.
        fragment: the fragment.
        bases: locations of the fragment's files.
        limit: bytes of blobs per batch.

    Raises:
        SchemaError: a blob is too large for Spark's binary.
        FormatError, UnsupportedFormatError, FileNotFoundError: a blob is not at the location in its
            description.
    """
    positions = {field.name: batch.schema.get_field_index(field.name) for field in blobs}
    kinds = {name: projection.fields[position].dataType for name, position in positions.items()}
    file_uris = data_files(fragment, bases)
    total = np.zeros(batch.num_rows, np.int64)
    for field in blobs:
        total += _requested_bytes(batch.column(positions[field.name]), field, kinds[field.name], limit)
    for start, stop in split_by_bytes(total, limit) if total.any() else [(0, batch.num_rows)]:
        rows = batch.slice(start, stop - start)
        columns, fields = list(rows.columns), list(rows.schema)
        for field in blobs:
            position, kind = positions[field.name], kinds[field.name]
            reader = _BlobReader(kind, fragment, bases, file_uris)
            columns[position] = map_blobs(columns[position], field, np.arange(len(rows)), reader.convert)
            fields[position] = fields[position].with_type(columns[position].type).with_nullable(True)
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def describe_blobs(
    rows: pa.Table,
    addresses: npt.NDArray[np.uint64],
    projection: st.StructType,
    manifest: Manifest,
    bases: Bases,
) -> pa.Table:
    """Return rows of several fragments with blob columns as descriptions.

    Args:
        rows: the columns of `projection`, in that order; blobs as descriptors.
        addresses: the rows' addresses (uint64).
        projection: the Spark schema.
        manifest: the version.
        bases: locations of the version's files.
    """
    numbers = address_fragments(addresses).astype(np.int64)
    files = {fragment.id: data_files(fragment, bases) for fragment in manifest.fragments}

    def file_uris(field: Field, owners: Ints) -> pa.Array:
        fragment_ids, which = np.unique(numbers[owners], return_inverse=True)
        first = np.zeros(1, np.int64)
        uris = [files[fragment_id](field, first) for fragment_id in fragment_ids.tolist()]
        external = pa.concat_arrays(uris) if uris else pa.array([], pa.string())
        return external.take(pa.array(which.reshape(-1)))

    blobs = {field.name: field for field in manifest.schema.fields if has_blobs(field)}
    for position, column in enumerate(projection):
        field = blobs.get(rows.schema.field(position).name)
        if field is None:
            continue
        reader = _BlobReader(column.dataType, None, bases, file_uris)
        array = rows.column(position).combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
        descriptions = map_blobs(array, field, np.arange(len(array)), reader.convert)
        rows = rows.set_column(position, pa.field(field.name, descriptions.type), descriptions)
    return rows


class _BlobReader:
    """Converts the descriptors of one column to the requested type."""

    def __init__(
        self, target: st.DataType, fragment: table_pb2.DataFragment | None, bases: Bases, file_uris: FileUris
    ) -> None:
        self._target = target
        self._fragment = fragment
        self._bases = bases
        self._file_uris = file_uris

    def convert(self, array: pa.Array, field: Field, rows: Ints, path: tuple[str, ...]) -> pa.Array:
        """Return the bytes, or the descriptors with their source."""
        descriptors = _mark_nulls(array)
        target = _type_at(self._target, path)
        if isinstance(target, st.BinaryType) and self._fragment is not None:
            return _read_values(descriptors, field, self._fragment, self._bases)
        if isinstance(target, st.StructType) and BLOB_SOURCE in target.names:
            return with_source(descriptors, field, rows, self._file_uris, self._bases)
        return descriptors


def _type_at(kind: st.DataType, path: Sequence[str]) -> st.DataType:
    """Return the type at a path in a type; the null type for parts that are not requested."""
    for name in path:
        if isinstance(kind, st.ArrayType):
            kind = kind.elementType
        elif isinstance(kind, st.StructType) and name in kind.names:
            kind = kind[name].dataType
        else:
            return st.NullType()
    return kind


def _requested_bytes(array: pa.Array, field: Field, target: st.DataType, limit: int) -> Ints:
    """Return the number of requested bytes of blobs for each row."""
    total = np.zeros(len(array), np.int64)

    def count(values: pa.Array, _blob: Field, rows: Ints, path: tuple[str, ...]) -> pa.Array:
        if isinstance(_type_at(target, path), st.BinaryType):
            sizes = pc.fill_null(pc.struct_field(values, "size"), 0).to_numpy(zero_copy_only=False)
            sizes = sizes.astype(np.int64)
            if values.type.get_field_index("kind") >= 0:
                kinds = pc.fill_null(pc.struct_field(values, "kind"), 0).to_numpy(zero_copy_only=False)
                # The size of a whole object is unknown: batches have a few of them.
                sizes = np.where((kinds == EXTERNAL) & (sizes == 0), limit // _PARALLEL_READS, sizes)
            np.add.at(total, rows, sizes)
        return values

    map_blobs(array, field, np.arange(len(array)), count)
    return total


def _mark_nulls(array: pa.Array) -> pa.Array:
    """Replace descriptors that mean null by null."""
    if array.type.get_field_index("kind") >= 0:
        return array
    position, size = (pc.struct_field(array, name) for name in ("position", "size"))
    null = pc.and_(pc.equal(position, _NULL_POSITION), pc.equal(size, 0))
    return pc.if_else(pc.fill_null(null, True), pa.scalar(None, array.type), array)


def _read_values(array: pa.Array, field: Field, fragment: table_pb2.DataFragment, bases: Bases) -> pa.Array:
    rows: list[dict[str, Any] | None] = array.to_pylist()
    files = open_blobs(bases, field, rows, [fragment] * len(rows))
    sizes = np.array([0 if file is None else file.size() for file in files], np.int64)
    if len(sizes) and sizes.max() > _MAX_BINARY_BYTES:
        raise SchemaError(
            f"column {field.name!r} has a blob of {sizes.max()} bytes, more than Spark's binary can hold: "
            f"read it with option blob_handling={DESCRIPTIONS}"
        )
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return pa.array(pool.map(_read_bytes, files), pa.binary())


def _read_bytes(file: BlobFile | None) -> bytes | None:
    return None if file is None else file.readall()
