"""The SQL function `lance_blob(blob, offset, length)`, which fetches byte ranges of blobs.

    lance_blob(blob)                   all bytes
    lance_blob(blob, offset)           the bytes from an offset on, 0 is the first byte
    lance_blob(blob, offset, length)   at most `length` bytes from an offset on

A range ends at the end of the blob, so a range that begins after it is empty. The result is null if an
argument is null. `blob` is a column of descriptions as reads return it, even after joins or shuffles, or a
column of plain bytes. Workers open the files with the settings of their environment, because rows contain no
credentials.

From Spark 4.1 on, it works on batches and fetches the ranges of a file together. Spark 4.0 calls it per row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as sf
import pyspark.sql.types as st

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.file.blob_references import BLOB_SOURCE, REFERENCE, split_by_bytes
from spark_lance.io.base_options import ALLOWED_BASES, read_base_options
from spark_lance.io.local import LocalStore
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.reading.blob_sources import BlobSources

# Rows contain no options, so the environment of the workers lists the allowed locations of external blobs.
BASES_VARIABLE = "LANCE_ALLOWED_BASES"
_BATCH_BYTES = 16 << 20
_ARGUMENTS = 3
# Files of tables never change, but external objects may.
_CACHE_SECONDS = 10.0

_cached_sources: tuple[float, BlobSources] | None = None


def blob_ranges(blobs: pa.Array, numbers: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """Yield the bytes of blobs, in batches of about 16 MiB.

    Args:
        blobs: descriptions with their sources, or bytes.
        numbers: nothing, offsets, or offsets and lengths (integers).

    Raises:
        OptionError: an offset or a length is negative, or there are too many arguments.
        OptionTypeError: the first argument is not a blob.
        BlobSourceError, FormatError: the bytes are not at the location in a description.
    """
    if len(numbers) >= _ARGUMENTS:
        raise OptionError(
            f"lance_blob takes a blob, an offset and a length, not {len(numbers) + 1} arguments"
        )
    valid = blobs.is_valid()
    counts = []
    for name, array in zip(("offset", "length"), numbers, strict=False):
        if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            raise OptionTypeError(f"the {name} of lance_blob is a whole number, not {array.type}")
        valid = pc.and_(valid, array.is_valid())
        counts.append(pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
        if len(array) and counts[-1].min() < 0:
            raise OptionError(f"the {name} of lance_blob is 0 or more, not {counts[-1].min()}")
    references = pc.if_else(valid, _references(blobs), pa.scalar(None, REFERENCE))
    starts = counts[0] if counts else np.zeros(len(blobs), np.int64)
    sources = _sources()
    sizes = np.maximum(sources.sizes(references) - starts, 0)
    if len(counts) > 1:
        sizes = np.minimum(sizes, counts[1])
    for start, stop in split_by_bytes(sizes, _BATCH_BYTES) if len(sizes) else ((0, 0),):
        contents = sources.read(references[start:stop], starts[start:stop], sizes[start:stop])
        yield contents.cast(pa.binary())


def _references(blobs: pa.Array) -> pa.Array:
    """Convert blobs to references. References to plain bytes contain the bytes."""
    fields = {}
    if pa.types.is_binary(blobs.type) or pa.types.is_large_binary(blobs.type):
        fields["data"] = blobs
    elif pa.types.is_struct(blobs.type) and blobs.type.get_field_index(BLOB_SOURCE) >= 0:
        fields = {field.name: pc.struct_field(blobs, field.name) for field in blobs.type}
    elif not pa.types.is_null(blobs.type):
        raise OptionTypeError(
            f"lance_blob takes a blob column, as descriptions with {BLOB_SOURCE} or as bytes, "
            f"not {blobs.type}"
        )
    parts = [
        fields[part.name].cast(part.type) if part.name in fields else pa.nulls(len(blobs), part.type)
        for part in REFERENCE
    ]
    return pa.StructArray.from_arrays(parts, fields=list(REFERENCE), mask=blobs.is_null())


def _sources() -> BlobSources:
    """Return the sources of blobs, cached in this process for some seconds."""
    global _cached_sources
    now = time.monotonic()
    if _cached_sources is None or now - _cached_sources[0] > _CACHE_SECONDS:
        allowed = os.environ.get(BASES_VARIABLE, "")
        _cached_sources = now, BlobSources(LocalStore(bases=read_base_options({ALLOWED_BASES: allowed})))
    return _cached_sources[1]


BLOB_FUNCTION = "lance_blob"


def blob_function() -> Any:
    """Return `lance_blob` as a user-defined function of Spark."""
    arrow_udf = getattr(sf, "arrow_udf", None)
    if arrow_udf is None:
        return sf.udf(bytes_of_row, st.BinaryType())
    return arrow_udf(batches_of_bytes, st.BinaryType())


def batches_of_bytes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield the bytes for batches of arguments, in batches of about 16 MiB.

    Raises:
        OptionError: an offset or a length is negative, or there are too many arguments.
        OptionTypeError: the first argument is not a blob.
        BlobSourceError, FormatError: the bytes are not at the location in a description.
    """
    from spark_lance.spark.worker.blob_function import blob_ranges

    with one_line():
        # Spark derives the calling convention from the annotations. A single argument is not in a tuple.
        for columns in cast("Iterator[Any]", batches):
            blobs, *numbers = columns if isinstance(columns, tuple) else (columns,)
            yield from blob_ranges(blobs, numbers)


def bytes_of_row(blob: Any, *numbers: int | None) -> bytes | None:
    """Return the bytes for one row. Raises the errors of `batches_of_bytes`."""
    from spark_lance.spark.worker.blob_function import blob_ranges

    with one_line():
        plain = isinstance(blob, bytes | bytearray)
        value = blob.asDict() if isinstance(blob, st.Row) else blob
        column = pa.array([value], pa.binary() if plain else None)
        (result,) = blob_ranges(column, [pa.array([number], pa.int64()) for number in numbers])
        data: bytes | None = result[0].as_py()
        return data
