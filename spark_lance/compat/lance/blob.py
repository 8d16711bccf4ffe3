"""Columns of bytes as files."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.table.reading.blobs import BlobFile

__all__ = ["BlobColumn", "BlobFile"]


@raises_os_errors
class BlobColumn:
    """Iterates over the values of a column of bytes as files; None for null."""

    def __init__(self, blob_column: pa.Array | pa.ChunkedArray) -> None:
        if not isinstance(blob_column, pa.Array | pa.ChunkedArray):
            raise ValueError(f"Expected a pyarrow.Array or pyarrow.ChunkedArray, got {type(blob_column)}")
        kind = blob_column.type
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise ValueError(f"Expected a binary array, got {kind}")
        self._column = blob_column

    def __iter__(self) -> Iterator[io.BytesIO | None]:
        for value in self._column:
            yield None if not value.is_valid else io.BytesIO(value.as_buffer())
