"""Columns of blobs: values to write, and columns of bytes as files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.file.base.extensions import EXTENSION_METADATA, EXTENSION_NAME
from spark_lance.table.reading.blobs import BlobFile

__all__ = [
    "Blob",
    "BlobArray",
    "BlobColumn",
    "BlobFile",
    "BlobType",
    "blob_array",
    "blob_field",
    "with_blob_types",
]

_EXTENSION_NAME = "lance.blob.v2"
_STORAGE = pa.struct(
    [("data", pa.large_binary()), ("uri", pa.string()), ("position", pa.uint64()), ("size", pa.uint64())]
)
_PARTS = (2, 4)  # Number of parts of the struct: with and without a range.


@dataclass(frozen=True)
class Blob:
    """A value of a blob column: bytes, or the URI of a file, with an optional range.

    Attributes:
        data: the bytes.
        uri: the file that has the bytes.
        position, size: the range of bytes in the file; both or none.
    """

    data: bytes | None = None
    uri: str | None = None
    position: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if self.data is not None and self.uri is not None:
            raise ValueError("Blob cannot have both data and uri")
        if self.uri == "":
            raise ValueError("Blob uri cannot be empty")
        if (self.position is not None or self.size is not None) and self.uri is None:
            raise ValueError("a range needs a uri: set uri, or leave position and size out")
        if (self.position is None) != (self.size is None):
            raise ValueError("External blob must set both position and size, or neither")
        if self.data is None and self.uri is None:
            raise ValueError("Blob must set `data` or `uri`; use None for a null blob")
        if self.size == 0:
            raise ValueError("External blob range size must be greater than zero")

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Blob:
        """Return a blob of bytes."""
        return Blob(data=bytes(data))

    @staticmethod
    def from_uri(uri: str, position: int | None = None, size: int | None = None) -> Blob:
        """Return a blob of a file, or of a range of a file."""
        if (position is not None and position < 0) or (size is not None and size < 0):
            raise ValueError("External blob position and size must be non-negative")
        return Blob(uri=uri, position=position, size=size)

    @staticmethod
    def empty() -> Blob:
        """Return a blob of no bytes, which is not null."""
        return Blob(data=b"")


class BlobType(pa.ExtensionType):  # type: ignore[misc]
    """The Arrow type of blob columns of format 2.2 and newer."""

    def __init__(self, storage_type: pa.DataType = _STORAGE) -> None:
        pa.ExtensionType.__init__(self, storage_type, _EXTENSION_NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> BlobType:
        parts = list(storage_type) if pa.types.is_struct(storage_type) else []
        expected = [_STORAGE.field(i) for i in range(len(parts))] if len(parts) in _PARTS else []
        if not parts or [(p.name, p.type) for p in parts] != [(p.name, p.type) for p in expected]:
            raise TypeError(f"the storage of {_EXTENSION_NAME} must be {_STORAGE}, got {storage_type}")
        return cls(storage_type)

    def __arrow_ext_class__(self) -> type[BlobArray]:
        return BlobArray

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__arrow_ext_deserialize__, (self.storage_type, b"")


class BlobArray(pa.ExtensionArray):  # type: ignore[misc]
    """Values of a blob column."""

    @classmethod
    def from_pylist(cls, values: Sequence[Any]) -> BlobArray:
        """Return an array of bytes, URIs, `Blob` values and None."""
        blobs = [_as_blob(value) for value in values]
        columns = [
            pa.array([None if blob is None else getattr(blob, part.name) for blob in blobs], part.type)
            for part in _STORAGE
        ]
        mask = pa.array([blob is None for blob in blobs], pa.bool_())
        storage = pa.StructArray.from_arrays(columns, fields=list(_STORAGE), mask=mask)
        array: BlobArray = pa.ExtensionArray.from_storage(BlobType(), storage)
        return array


def _as_blob(value: Any) -> Blob | None:
    if value is None or isinstance(value, Blob):
        return value
    if isinstance(value, str):
        return Blob(uri=value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Blob(data=bytes(value))
    raise TypeError(f"BlobArray values must be bytes-like, str (URI), Blob, or None; got {type(value)}")


def blob_array(values: Sequence[Any]) -> BlobArray:
    """Return an array of bytes, URIs, `Blob` values and None."""
    return BlobArray.from_pylist(values)


def blob_field(
    name: str,
    *,
    nullable: bool = True,
    inline_size_threshold: int | None = None,
    dedicated_size_threshold: int | None = None,
    pack_file_size_threshold: int | None = None,
) -> pa.Field:
    """Return the Arrow field of a blob column.

    Args:
        name, nullable: of the column.
        inline_size_threshold: the most bytes of a value that is stored in the data file.
        dedicated_size_threshold: the most bytes of a value that shares a file with others.
        pack_file_size_threshold: the most bytes of such a shared file.
    """
    thresholds = {
        "inline": inline_size_threshold,
        "dedicated": dedicated_size_threshold,
        "pack-file": pack_file_size_threshold,
    }
    metadata = {}
    for key, value in thresholds.items():
        if value is None:
            continue
        argument = f"{key.replace('-', '_')}_size_threshold"
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{argument} must be an int, got {type(value).__name__}")
        if value < 0 or (not value and key != "inline"):
            raise ValueError(f"{argument} must be {'non-negative' if key == 'inline' else 'positive'}")
        metadata[f"lance-encoding:blob-{key}-size-threshold"] = str(value)
    return pa.field(name, BlobType(), nullable=nullable, metadata=metadata or None)


def with_blob_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose top-level blob columns of format 2.2 have their Arrow type."""
    for number, field in enumerate(schema):
        metadata = dict(field.metadata or {})
        if metadata.pop(EXTENSION_NAME.encode(), b"").decode() != _EXTENSION_NAME:
            continue
        metadata.pop(EXTENSION_METADATA.encode(), None)
        kind = BlobType.__arrow_ext_deserialize__(field.type, b"")
        schema = schema.set(number, pa.field(field.name, kind, field.nullable, metadata or None))
    return schema


with suppress(pa.ArrowKeyError):  # pylance has registered its own.
    pa.register_extension_type(BlobType())


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
