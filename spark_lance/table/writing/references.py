"""Split batches with blob references, so that the blobs can be copied with little memory.

References in blob columns stay references: the file writer fetches their bytes. References in columns of
plain bytes are replaced by the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.file.blob_references import (
    ReferencedBlobs,
    holds_references,
    is_blob_field,
    is_reference,
    map_references,
    split_by_bytes,
)

_BATCH_BYTES = 16 << 20
_MAX_COLUMN_BYTES = 2**31 - 1


def replace_references(
    batches: Iterable[pa.RecordBatch], schema: Schema, sources: ReferencedBlobs
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches; references in columns of bytes are replaced by the bytes.

    Args:
        batches: batches from `Aligner`.
        schema: the schema of the batches.
        sources: reads the bytes of references.

    Yields:
        Batches without references unchanged. Other batches are split to about 16 MiB of blobs, at least one
        row each.

    Raises:
        SchemaError: a blob is larger than the type of its column can hold.
        BlobSourceError: the bytes of a reference cannot be read.
    """
    fields = [field.arrow_field() for field in schema.fields]
    for batch in batches:
        places = [
            i
            for i, column in enumerate(batch.columns)
            if holds_references(column.type) and (column.type != fields[i].type or is_blob_field(fields[i]))
        ]
        if not places or not batch.num_rows:
            yield batch
            continue
        sizes = sum(
            (_row_sizes(batch.column(i), sources) for i in places), np.zeros(batch.num_rows, np.int64)
        )
        for start, stop in split_by_bytes(sizes, _BATCH_BYTES):
            rows = batch.slice(start, stop - start)
            columns, kinds = list(rows.columns), list(rows.schema)
            for i in places:
                columns[i] = _replace_references(columns[i], fields[i], sources)
                kinds[i] = kinds[i].with_type(columns[i].type)
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(kinds, rows.schema.metadata))


def _row_sizes(array: pa.Array, sources: ReferencedBlobs) -> Ints:
    """Return the number of bytes that the references of each row point to."""
    if is_reference(array.type):
        return sources.sizes(array)
    total = np.zeros(len(array), np.int64)
    if not holds_references(array.type):
        return total
    if pa.types.is_struct(array.type):
        return sum((_row_sizes(part, sources) for part in array.flatten()), total)
    items = _row_sizes(array.flatten(), sources)
    np.add.at(total, pc.list_parent_indices(array).to_numpy(zero_copy_only=False), items)
    return total


def _replace_references(array: pa.Array, field: pa.Field, sources: ReferencedBlobs) -> pa.Array:
    def change(references: pa.StructArray, target: pa.Field) -> pa.Array:
        if is_blob_field(target):
            return references
        sizes = sources.sizes(references)
        if not pa.types.is_large_binary(target.type) and sizes.sum() > _MAX_COLUMN_BYTES:
            raise SchemaError(
                f"column {field.name!r} has a blob of {sizes.max()} bytes, more than {target.type} can hold: "
                "store it as a blob"
            )
        return sources.read(references).cast(target.type)

    return map_references(array, field, change)
