"""`lance_blob(blob, offset, length)`: ranges of bytes of blobs in queries; only the range is fetched.

    lance_blob(blob)                   all bytes
    lance_blob(blob, offset)           those from a position on, 0 is the first
    lance_blob(blob, offset, length)   at most so many of them

Bytes after the end of a blob are left out, so a range that begins there is empty. It is null if one of its
arguments is. `blob` is a column of descriptions as reads return it, wherever the row has been meanwhile, or
of plain bytes. Workers open the files with the settings of their environment, as rows hold no credentials.

From Spark 4.1 on it works on batches: the ranges in one file are fetched together. Spark 4.0 calls it by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyspark.sql.functions as sf
import pyspark.sql.types as st

from spark_lance.spark.worker.failures import one_line

BLOB_FUNCTION = "lance_blob"


def blob_function() -> Any:
    """Return `lance_blob` as a function of Spark's for columns."""
    arrow_udf = getattr(sf, "arrow_udf", None)
    if arrow_udf is None:
        return sf.udf(bytes_of_row, st.BinaryType())
    return arrow_udf(batches_of_bytes, st.BinaryType())


def batches_of_bytes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield the bytes for batches of arguments, in batches of about 16 MiB.

    Raises:
        OptionError: an offset or a length is negative, or there are too many arguments.
        OptionTypeError: what is given is no blob.
        BlobSourceError, FormatError: the bytes are not where a description says.
    """
    from spark_lance.spark.worker.blob_ranges import blob_ranges

    with one_line():
        # Spark reads from the types how it is to call this, and gives the array itself if it is the only one.
        for columns in cast("Iterator[Any]", batches):
            blobs, *numbers = columns if isinstance(columns, tuple) else (columns,)
            yield from blob_ranges(blobs, numbers)


def bytes_of_row(blob: Any, *numbers: int | None) -> bytes | None:
    """Return the bytes for one row; errors as `batches_of_bytes`."""
    from spark_lance.spark.worker.blob_ranges import blob_ranges

    with one_line():
        plain = isinstance(blob, bytes | bytearray)
        value = blob.asDict() if isinstance(blob, st.Row) else blob
        column = pa.array([value], pa.binary() if plain else None)
        (result,) = blob_ranges(column, [pa.array([number], pa.int64()) for number in numbers])
        data: bytes | None = result[0].as_py()
        return data
