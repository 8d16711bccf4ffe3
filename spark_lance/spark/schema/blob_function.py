"""`lance_blob(blob, offset, length)`: bytes of blobs in queries, of which only the range is fetched.

    lance_blob(blob)                   all bytes
    lance_blob(blob, offset)           those from a position on, 0 is the first
    lance_blob(blob, offset, length)   at most so many of them

What lies behind the end of a blob is left out, so a range that begins there is empty. It is null if one of
its arguments is. `blob` is a column of descriptions as reads give it, wherever the row has been meanwhile, or
of plain bytes. Workers open the files with what their environment gives, as rows hold no credentials.

From Spark 4.1 on it works on batches: the ranges in one file are fetched together. Spark 4.0 calls it by row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as sf
import pyspark.sql.types as st

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.file.blob_references import BLOB_SOURCE, REFERENCE, runs_of
from spark_lance.io.store import Store
from spark_lance.spark.failures import one_line
from spark_lance.table.reading.blob_sources import BlobSources

__all__ = ["BLOB_FUNCTION", "batches_of_bytes", "bytes_of_row", "register_blob_function"]

BLOB_FUNCTION = "lance_blob"

_BATCH_BYTES = 16 << 20
_ARGUMENTS = 3
# Files of tables never change, objects outside of them may.
_KEPT_SECONDS = 10.0

_kept: tuple[float, BlobSources] | None = None


def register_blob_function(spark: Any) -> None:
    """Give a session, classic or of Spark Connect, the function `lance_blob`."""
    arrow_udf = getattr(sf, "arrow_udf", None)
    made = (
        sf.udf(bytes_of_row, st.BinaryType())
        if arrow_udf is None
        else arrow_udf(batches_of_bytes, st.BinaryType())
    )
    spark.udf.register(BLOB_FUNCTION, made)


def batches_of_bytes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield the bytes for batches of arguments, in batches of about 16 MiB.

    Raises:
        OptionError: an offset or a length is negative, or there are too many arguments.
        OptionTypeError: what is given is no blob.
        BlobSourceError, FormatError: the bytes are not where a description says.
    """
    with one_line():
        # Spark reads from the types how it is to call this, and gives the array itself if it is the only one.
        for given in cast("Iterator[Any]", batches):
            blobs, *numbers = given if isinstance(given, tuple) else (given,)
            yield from _ranges(blobs, numbers)


def bytes_of_row(blob: Any, *numbers: int | None) -> bytes | None:
    """Return the bytes for one row; errors as `batches_of_bytes`."""
    with one_line():
        plain = isinstance(blob, bytes | bytearray)
        given = pa.array([blob if blob is None or plain else blob.asDict()], pa.binary() if plain else None)
        (found,) = _ranges(given, [pa.array([number], pa.int64()) for number in numbers])
        data: bytes | None = found[0].as_py()
        return data


def _ranges(blobs: pa.Array, numbers: Sequence[pa.Array]) -> Iterator[pa.Array]:
    if len(numbers) >= _ARGUMENTS:
        raise OptionError(
            f"{BLOB_FUNCTION} takes a blob, an offset and a length, not {len(numbers) + 1} arguments"
        )
    valid = blobs.is_valid()
    counts = []
    for name, given in zip(("offset", "length"), numbers, strict=False):
        if not (pa.types.is_integer(given.type) or pa.types.is_null(given.type)):
            raise OptionTypeError(f"the {name} of {BLOB_FUNCTION} is a whole number, not {given.type}")
        valid = pc.and_(valid, given.is_valid())
        counts.append(pc.fill_null(given.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
        if len(given) and counts[-1].min() < 0:
            raise OptionError(f"the {name} of {BLOB_FUNCTION} is 0 or more, not {counts[-1].min()}")
    references = pc.if_else(valid, _references(blobs), pa.scalar(None, REFERENCE))
    starts = counts[0] if counts else np.zeros(len(blobs), np.int64)
    sources = _sources()
    sizes = np.maximum(sources.sizes(references) - starts, 0)
    if len(counts) > 1:
        sizes = np.minimum(sizes, counts[1])
    for start, stop in runs_of(sizes, _BATCH_BYTES) if len(sizes) else ((0, 0),):
        found = sources.read(references[start:stop], starts[start:stop], sizes[start:stop])
        yield found.cast(pa.binary())


def _references(blobs: pa.Array) -> pa.Array:
    """Return what is given as references; plain bytes as those that hold them."""
    given = {}
    if pa.types.is_binary(blobs.type) or pa.types.is_large_binary(blobs.type):
        given["data"] = blobs
    elif pa.types.is_struct(blobs.type) and blobs.type.get_field_index(BLOB_SOURCE) >= 0:
        given = {field.name: pc.struct_field(blobs, field.name) for field in blobs.type}
    elif not pa.types.is_null(blobs.type):
        raise OptionTypeError(
            f"{BLOB_FUNCTION} takes a blob column, as descriptions with {BLOB_SOURCE} or as bytes, "
            f"not {blobs.type}"
        )
    parts = [
        given[part.name].cast(part.type) if part.name in given else pa.nulls(len(blobs), part.type)
        for part in REFERENCE
    ]
    return pa.StructArray.from_arrays(parts, fields=list(REFERENCE), mask=blobs.is_null())


def _sources() -> BlobSources:
    """Return what finds blobs, which this process keeps for some seconds."""
    global _kept
    now = time.monotonic()
    if _kept is None or now - _kept[0] > _KEPT_SECONDS:
        _kept = now, BlobSources(Store("file"))
    return _kept[1]
