"""The bytes of blob columns: convert descriptors to file-like objects that read only the requested bytes.

A scan yields descriptors. Versions 2.0 and 2.1: struct<position, size>, bytes in the data file itself; null
is a null struct or, in 2.0, (1, 0). Version 2.2: struct<kind, position, size, blob_id, blob_uri>. The kind
determines the place of the bytes:

    0 inline     at `position` in the data file
    1 packed     at `position` in a sidecar file that several blobs share
    2 dedicated  the whole of a sidecar file
    3 external   at `position` in the object `blob_uri`; the whole object if size is 0. A relative location
                 starts from the base path of id `blob_id`

For the names of sidecars, which come from `blob_id`, see `file.blob_references`. (Lance file format,
blobs.)

Writers take the descriptors of a scan as values of a blob column (`blob_values`). Copying rows copies the
bytes of their blobs, because the descriptors point into the files that the rows leave. A blob outside the
table (version 2.2, kind 3) stays where it is: its value is its URI.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.blob_references import sidecar_path
from spark_lance.io.display import size_text
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import known_size

_INLINE, _PACKED, _DEDICATED, _EXTERNAL = range(4)


class BlobFile(io.RawIOBase):
    """One blob as a read-only binary file. Only the requested bytes are fetched.

    Wrap it in `io.BufferedReader` for many small reads. All reads raise FormatError if a file of the table is
    missing or too short. For an external object they raise FileNotFoundError or StoreError.
    """

    def __init__(self, store: Store, path: str, position: int, size: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._position = position
        self._size = size
        self._offset = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._offset:,}"
        return f"BlobFile({size_text(self._size)} of {self._path}, {state})"

    @property
    def place(self) -> tuple[int, str]:
        """The key of the object with the blob: equal for blobs in the same object of the same store."""
        return id(self._store), self._path

    def read_together(self, blobs: Sequence[BlobFile]) -> list[bytes]:
        """Return the bytes of each of some blobs with the same `place` as this one."""
        ranges = [(blob._position, blob._size) for blob in blobs if blob._size]
        parts = iter(self._store.read_ranges(self._path, ranges) if ranges else ())
        return [bytes(next(parts)) if blob._size else b"" for blob in blobs]

    def size(self) -> int:
        """Return the number of bytes of the blob."""
        return self._size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position in the blob."""
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it; reads beyond the end return no bytes.

        Raises:
            ValueError: the position is before the start, or `whence` is unknown.
        """
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}
        if whence not in bases:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if bases[whence] + offset < 0:
            raise ValueError(f"position {bases[whence] + offset} is before the start")
        self._offset = bases[whence] + offset
        return self._offset

    def read_range(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` without moving.

        Raises:
            ValueError: a number is negative, or the file is closed.
        """
        if self.closed:
            raise ValueError("the blob is closed")
        if offset < 0 or length < 0:
            raise ValueError("offset and length cannot be negative")
        count = min(length, max(0, self._size - offset))
        if not count:
            return b""
        return bytes(self._store.read_ranges(self._path, [(self._position + offset, count)])[0])

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, fewer at the end; all the rest if `size` is negative or None."""
        length = self._size if size is None or size < 0 else size
        data = self.read_range(self._offset, length)
        self._offset += len(data)
        return data

    def readall(self) -> bytes:
        """Return all bytes from the current position to the end."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer and return their number."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def blob_path(schema: Schema, column: str) -> tuple[Field, ...]:
    """Return the fields from the top-level field down to the blob column; dots separate struct fields.

    Raises:
        SchemaError: the column does not exist, or it is not a blob column.
    """
    path = schema.find(column, only_structs=True)
    if path[-1].kind != "blob":
        raise SchemaError(f"column {column!r} of type {path[-1].logical_type} is not a blob column")
    return path


def descriptors(column: pa.ChunkedArray, path: Sequence[Field]) -> list[dict[str, Any] | None]:
    """Return the blob descriptors of the last field of `path`, from the values of its first field."""
    for child in path[1:]:
        column = pc.struct_field(column, child.name)
    values: list[dict[str, Any] | None] = column.to_pylist()
    return values


def open_blobs(
    bases: Bases,
    field: Field,
    descriptors: Sequence[Mapping[str, Any] | None],
    fragments: Sequence[table_pb2.DataFragment],
) -> list[BlobFile | None]:
    """Return one file per descriptor, None for nulls.

    Args:
        bases: the base paths of the version.
        field: the blob field.
        descriptors: blob descriptors; None for null.
        fragments: for each descriptor, the fragment that it was read from.

    Raises:
        FormatError: a descriptor points outside its data file, or names a sidecar that does not exist.
        FileNotFoundError: an external object does not exist.
        BaseNotAllowedError: the user did not allow the location of an external object.
        UnsupportedFormatError: the kind of a descriptor is unknown.
    """
    files: list[BlobFile | None] = []
    sizes: dict[tuple[str, str], int] = {}
    for descriptor, fragment in zip(descriptors, fragments, strict=True):
        if descriptor is None or _is_null(descriptor):
            files.append(None)
            continue
        opener = _BlobOpener(bases, _data_file(fragment, field), sizes)
        files.append(opener.open(descriptor))
    return files


def open_file_blobs(
    store: Store, path: str, descriptors: Sequence[Mapping[str, Any] | None]
) -> list[BlobFile | None]:
    """Return one file per descriptor of a version 1 blob in a data file, None for nulls.

    Raises:
        FormatError: a descriptor points outside the file.
    """
    size = store.size(path)
    files: list[BlobFile | None] = []
    for descriptor in descriptors:
        if descriptor is None or _is_null(descriptor):
            files.append(None)
            continue
        if descriptor["position"] + descriptor["size"] > size:
            raise FormatError(f"a blob ends after the end of the file of {size} bytes", path)
        files.append(BlobFile(store, path, descriptor["position"], descriptor["size"]))
    return files


def _is_null(descriptor: Mapping[str, Any]) -> bool:
    return "kind" not in descriptor and (descriptor["position"], descriptor["size"]) == (1, 0)


def _data_file(fragment: table_pb2.DataFragment, field: Field) -> table_pb2.DataFile:
    for file in fragment.files:
        if field.id in file.fields:
            return file
    raise FormatError(f"fragment {fragment.id} has no file with column {field.name!r}")


class _BlobOpener:
    """Opens the blobs of one data file; `sizes` caches the lengths of files."""

    def __init__(self, bases: Bases, file: table_pb2.DataFile, sizes: dict[tuple[str, str], int]) -> None:
        self._bases = bases
        self._store, self._path = bases.data_file(file)
        self._sizes = sizes
        if size := known_size(file):
            sizes.setdefault((self._store.protocol, self._path), size)

    def open(self, descriptor: Mapping[str, Any]) -> BlobFile:
        position, size = descriptor["position"], descriptor["size"]
        kind = descriptor.get("kind", _INLINE)
        if kind == _EXTERNAL:
            return self._external(descriptor)
        if kind == _INLINE:
            path = self._path
        elif kind in (_PACKED, _DEDICATED):
            path = self._sidecar(descriptor["blob_id"])
        else:
            raise UnsupportedFormatError(f"blobs of kind {kind} are not supported", self._path)
        if not size:
            return BlobFile(self._store, path, 0, 0)
        try:
            length = self._length(self._store, path)
        except FileNotFoundError as error:
            raise FormatError("a file that a blob points into does not exist", path) from error
        if position + size > length:
            raise FormatError(f"a blob of {size} bytes at {position} in a file of {length} bytes", path)
        return BlobFile(self._store, path, position, size)

    def _length(self, store: Store, path: str) -> int:
        key = store.protocol, path
        if key not in self._sizes:
            self._sizes[key] = store.size(path)
        return self._sizes[key]

    def _sidecar(self, blob_id: int) -> str:
        return sidecar_path(self._path, blob_id)

    def _external(self, descriptor: Mapping[str, Any]) -> BlobFile:
        uri, position, size = descriptor["blob_uri"], descriptor["position"], descriptor["size"]
        if "://" not in uri:
            store, path = self._bases.external(descriptor["blob_id"], uri)
        else:
            store, path = self._bases.outside(uri)
        if not size and not position:
            size = store.size(path)
        return BlobFile(store, path, position, size)


def read_blobs(files: Sequence[BlobFile | None]) -> list[bytes | None]:
    """Return the bytes of blobs, None for None. Blobs in the same object are fetched together.

    Raises:
        FormatError: a file is missing or too short.
    """
    contents: list[bytes | None] = [None] * len(files)
    by_object: dict[tuple[int, str], list[int]] = {}
    for number, file in enumerate(files):
        if file is not None:
            by_object.setdefault(file.place, []).append(number)
    for numbers in by_object.values():
        same = [file for file in (files[number] for number in numbers) if file is not None]
        for number, data in zip(numbers, same[0].read_together(same), strict=True):
            contents[number] = data
    return contents


def blob_sizes(descriptors: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the number of bytes that each value has in the table; 0 for external blobs."""
    sizes: npt.NDArray[np.int64] = (
        pc.fill_null(pc.struct_field(descriptors, "size"), 0).to_numpy().astype(np.int64)
    )
    if descriptors.type.get_field_index("kind") < 0:
        return sizes
    kinds = pc.fill_null(pc.struct_field(descriptors, "kind"), 0).to_numpy()
    result: npt.NDArray[np.int64] = np.where(kinds == _EXTERNAL, 0, sizes)
    return result


def blob_values(
    bases: Bases, field: Field, descriptors: pa.ChunkedArray, fragment: table_pb2.DataFragment
) -> pa.Array:
    """Read all bytes of a blob column and return its values in the field's Arrow type.

    Args:
        bases: the base paths of the version.
        field: the blob field.
        descriptors: the descriptors, as read from the fragment.
        fragment: the fragment's message.

    Raises:
        FormatError: a descriptor points outside its file, or names a file that does not exist.
        UnsupportedFormatError: the field's type cannot express the location of an external blob.
    """
    values: list[dict[str, Any] | None] = descriptors.to_pylist()
    is_external = [descriptor is not None and descriptor.get("kind") == _EXTERNAL for descriptor in values]
    inner = [
        None if external else descriptor for descriptor, external in zip(values, is_external, strict=True)
    ]
    files = open_blobs(bases, field, inner, [fragment] * len(inner))
    data = [None if file is None else file.read() for file in files]
    if field.logical_type == "large_binary":
        return pa.array(data, pa.large_binary())
    external_descriptors = [
        descriptor if external else None for descriptor, external in zip(values, is_external, strict=True)
    ]
    columns = {"data": pa.array(data, pa.large_binary()), **_external_columns(field, external_descriptors)}
    children = [columns[child.name].cast(child.arrow_type()) for child in field.children]
    mask = pa.array([descriptor is None for descriptor in values])
    return pa.StructArray.from_arrays(children, fields=list(field.arrow_type()), mask=mask)


def _external_columns(field: Field, outside: Sequence[Mapping[str, Any] | None]) -> dict[str, pa.Array]:
    """Return the columns `uri`, `position` and `size` of external blobs; nulls for other blobs."""
    parts = {child.name for child in field.children}
    for place in outside:
        if place is None:
            continue
        whole = not place["position"] and not place["size"]
        if "://" not in place["blob_uri"] or not (whole or "size" in parts):
            raise UnsupportedFormatError(
                f"column {field.name!r} has a blob at {place['blob_uri']!r} that cannot be copied"
            )
    return {
        name: pa.array([None if place is None else place[key] or none for place in outside], kind)
        for name, key, none, kind in (
            ("uri", "blob_uri", "", pa.string()),
            ("position", "position", None, pa.uint64()),
            ("size", "size", None, pa.uint64()),
        )
    }
