"""Blob columns: values to write, and binary columns as file objects."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.building import locate_table
from spark_lance.errors import OptionError
from spark_lance.file.base.extensions import EXTENSION_METADATA, EXTENSION_NAME
from spark_lance.file.blob_references import BLOB_SOURCE, EXTERNAL, REFERENCE
from spark_lance.io.store import STORES
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.blob_sources import BlobSources
from spark_lance.table.reading.blobs import BlobFile
from spark_lance.table.writing.inputs import as_reader

__all__ = [
    "Blob",
    "BlobArray",
    "BlobColumn",
    "BlobFile",
    "BlobType",
    "blob_array",
    "blob_field",
    "with_blob_bytes",
    "with_blob_types",
]

_EXTENSION_NAME = "lance.blob.v2"
_STORAGE = pa.struct(
    [("data", pa.large_binary()), ("uri", pa.string()), ("position", pa.uint64()), ("size", pa.uint64())]
)
_PARTS = (2, 4)  # Number of fields of the struct: with and without a range.
BLOB_BUFFER_BYTES = 512 << 10
# Most rows, and most bytes of external blobs, in memory at a time. A larger blob is read by itself.
_INGEST_ROWS = 256
_INGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Blob:
    """A value of a blob column: bytes, or the URI of a file, with an optional range.

    Attributes:
        data: the bytes.
        uri: the file that contains the bytes.
        position, size: the byte range in the file; both or neither.
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
        """Return an empty blob, which is not null."""
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
        name, nullable: the name and the nullability of the column.
        inline_size_threshold: the maximum size in bytes of a value in the data file.
        dedicated_size_threshold: the maximum size in bytes of a value that shares a file with other values.
        pack_file_size_threshold: the maximum size in bytes of a shared file.
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
    """Return the schema with the Arrow blob type for top-level blob columns of format 2.2."""
    for number, field in enumerate(schema):
        metadata = dict(field.metadata or {})
        if metadata.pop(EXTENSION_NAME.encode(), b"").decode() != _EXTENSION_NAME:
            continue
        metadata.pop(EXTENSION_METADATA.encode(), None)
        kind = BlobType.__arrow_ext_deserialize__(field.type, b"")
        schema = schema.set(number, pa.field(field.name, kind, field.nullable, metadata or None))
    return schema


def with_blob_bytes(
    data: Any, schema: pa.Schema | None, target: Any, options: Mapping[str, Any]
) -> tuple[Any, pa.Schema | None]:
    """Return data and its schema, prepared for the `external_blob_mode` of a write.

    "ingest" reads the files behind blob URIs, in the writing process. The caller chooses this mode, so
    the files can be anywhere. The table's storage options are used only in its own store.

    Raises:
        ValueError: the mode is not "reference" or "ingest".
        OptionError: the mode is "ingest" and allow_external_blob_outside_bases is set.
    """
    mode = options.get("external_blob_mode") or "reference"
    if mode not in ("reference", "ingest"):
        raise ValueError(f"external_blob_mode must be 'reference' or 'ingest', got {mode!r}")
    if mode == "reference":
        return data, schema
    if options.get("allow_external_blob_outside_bases"):
        raise OptionError(
            'allow_external_blob_outside_bases only applies to external_blob_mode="reference": leave it out'
        )
    table = locate_table(target, options.get("storage_options")).table
    anywhere = TableRef(table.store.with_bases([f"{scheme}://" for scheme in STORES]), table.root)
    sources = BlobSources(table.store, anywhere)
    reader = as_reader(data, schema)
    batches = (
        _ingest(piece, sources)
        for batch in reader
        for start in range(0, batch.num_rows, _INGEST_ROWS)
        for piece in _small_batches(batch.slice(start, _INGEST_ROWS), sources)
    )
    return pa.RecordBatchReader.from_batches(reader.schema, batches), None


def _ingest(batch: pa.RecordBatch, sources: BlobSources) -> pa.RecordBatch:
    """Return the rows with blob URIs replaced by the bytes of their files."""

    def read(blobs: pa.StructArray) -> pa.StructArray:
        references = _references(blobs)
        external = references.is_valid()
        columns = {name: pc.struct_field(blobs, name) for name in (part.name for part in blobs.type)}
        columns["data"] = pc.if_else(external, sources.read(references), columns["data"])
        for name in columns.keys() - {"data"}:
            columns[name] = pc.if_else(external, pa.scalar(None, columns[name].type), columns[name])
        return pa.StructArray.from_arrays(
            list(columns.values()), fields=list(blobs.type), mask=blobs.is_null()
        )

    arrays = [
        _map_blobs(array, field, read) for array, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _small_batches(batch: pa.RecordBatch, sources: BlobSources) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts with at most _INGEST_BYTES of external blobs, or with one row."""
    total = 0

    def add(blobs: pa.StructArray) -> pa.StructArray:
        nonlocal total
        total += int(sources.sizes(_references(blobs)).sum())
        return blobs

    for array, field in zip(batch.columns, batch.schema, strict=True):
        _map_blobs(array, field, add)
    if total <= _INGEST_BYTES or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _small_batches(batch.slice(0, middle), sources)
    yield from _small_batches(batch.slice(middle), sources)


def _references(blobs: pa.StructArray) -> pa.StructArray:
    """Return references to external blobs; null for other values, including values with data and a URI."""
    uris = pc.struct_field(blobs, "uri")
    external = pc.and_(uris.is_valid(), pc.struct_field(blobs, "data").is_null())
    places = [
        uri if uri is None or "://" in uri else f"file://{Path(uri).absolute()}" for uri in uris.to_pylist()
    ]
    columns: dict[str, Any] = {"kind": pa.repeat(pa.scalar(EXTERNAL, pa.uint8()), len(blobs))}
    columns["blob_uri"] = columns[BLOB_SOURCE] = pa.array(places, pa.string())
    for name in {"position", "size"} & {part.name for part in blobs.type}:
        columns[name] = pc.struct_field(blobs, name)
    parts = [columns.get(part.name, pa.nulls(len(blobs), part.type)) for part in REFERENCE]
    return pa.StructArray.from_arrays(parts, fields=list(REFERENCE), mask=pc.invert(external))


def _map_blobs(array: pa.Array, field: pa.Field, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the array with `change` applied to blobs of format 2.2, also inside structs and lists."""
    kind, metadata = field.type, field.metadata or {}
    is_extension = isinstance(kind, pa.BaseExtensionType)
    name = kind.extension_name if is_extension else metadata.get(EXTENSION_NAME.encode(), b"").decode()
    if name == _EXTENSION_NAME:
        values = change(array.storage if is_extension else array)
        return pa.ExtensionArray.from_storage(kind, values) if is_extension else values
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [_map_blobs(part, child, change) for part, child in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _map_blobs(array.flatten(), kind.value_field, change)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        width = pa.int32() if pa.types.is_list(kind) else pa.int64()
        return make.from_arrays(pa.array(offsets, width), items, type=kind, mask=mask)
    return array


with suppress(pa.ArrowKeyError):  # pylance has already registered its own type.
    pa.register_extension_type(BlobType())


@raises_os_errors
class BlobColumn:
    """Iterates over the values of a binary column as file objects; None for null."""

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
