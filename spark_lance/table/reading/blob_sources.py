"""Blob references: descriptors with the URI of their data file, and the bytes that they point to.

A descriptor is relative to the data file of its row (see `blobs`). `with_source` adds the file's URI, so that
the descriptor survives filters, joins and unions of several tables, up to a process that copies the blob.
`BlobSources` finds the bytes there. Data files never change, so the file identifies the version that was
read, wherever the version keeps it (base paths, branches). URIs contain no credentials: the copying process
opens the file with its own storage options.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import BaseNotAllowedError, BlobSourceError, FormatError, StoreError
from spark_lance.file.base.metadata import MAGIC
from spark_lance.file.base.schema import Field
from spark_lance.file.blob_references import BLOB_SOURCE, EXTERNAL, sidecar_path
from spark_lance.io.base_options import Location
from spark_lance.io.locations import join
from spark_lance.io.store import STORES, Store, open_store
from spark_lance.io.stored_names import check_key, check_uri, path_fault
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases, open_place
from spark_lance.table.format.table_ref import TableRef

# Returns the URI of the data file that holds a blob field, for each of some rows.
FileUris = Callable[[Field, Ints], pa.Array]
ChangeBlobs = Callable[[pa.Array, Field, Ints, tuple[str, ...]], pa.Array]

_INLINE, _PACKED, _DEDICATED = range(3)
# A multiple of 64: see `ReferencedBlobs.chunks`.
_CHUNK_BYTES = 16 << 20
_MAX_OPEN_FILES = 1024
_ADVICE = "read the column with blob_handling=all_binary"


def data_files(fragment: table_pb2.DataFragment, bases: Bases) -> FileUris:
    """Return a function that maps rows of one fragment to the URIs of their data files.

    The URI is null if no file of the fragment has the column, because all its values are null.
    """
    file_names: dict[int, str | None] = {}

    def file_uris(field: Field, rows: Ints) -> pa.Array:
        if field.id not in file_names:
            file = next((file for file in fragment.files if field.id in file.fields), None)
            file_names[field.id] = None
            if file is not None:
                store, path = bases.data_file(file)
                file_names[field.id] = store.uri(path)
        return pa.repeat(pa.scalar(file_names[field.id], pa.string()), len(rows))

    return file_uris


def map_blobs(
    array: pa.Array, field: Field, rows: Ints, change: ChangeBlobs, path: tuple[str, ...] = ()
) -> pa.Array:
    """Return a column whose blob descriptors are replaced by the result of `change`, at any depth.

    Args:
        array: blob descriptors, or structs and lists of them, as a scan yields them.
        field: the field of the table schema.
        rows: int64, the row position of each value.
        change: called with descriptors, their field, their row positions, and their path inside the column:
            names of struct fields, "element" for lists.
        path: the path of `array` inside the column.
    """
    if field.kind == "blob":
        return change(array, field, rows, path)
    if not any(node.kind == "blob" for node in field.walk()):
        return array
    mask = array.is_null() if array.null_count else None
    if field.kind == "struct":
        children = {child.name: child for child in field.children}
        names = [array.type.field(i).name for i in range(array.type.num_fields)]
        # The scan may have read only some fields of the struct.
        parts = [
            map_blobs(part, children[name], rows, change, (*path, name))
            for part, name in zip(array.flatten(), names, strict=True)
        ]
        fields = [array.type.field(i).with_type(part.type) for i, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    item_rows = np.repeat(rows, lengths)
    items = map_blobs(array.flatten(), field.children[0], item_rows, change, (*path, "element"))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if pa.types.is_large_list(array.type):
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, mask=mask)


def with_source(array: pa.Array, field: Field, rows: Ints, file_uris: FileUris, bases: Bases) -> pa.Array:
    """Return blob references: descriptors with the field `blob_source` and with absolute locations.

    Args:
        array: descriptors.
        field: their blob field.
        rows: int64, the row position of each descriptor.
        file_uris: maps rows to the URIs of their data files.
        bases: the base paths of the version.

    Raises:
        FormatError: an external blob is relative to a base path that the version does not have.
    """
    sources = file_uris(field, rows)
    uris: pa.Array | None = None
    if array.type.get_field_index("kind") >= 0:
        outside = pc.fill_null(pc.equal(pc.struct_field(array, "kind"), EXTERNAL), False)
        absolute = pc.match_substring(pc.struct_field(array, "blob_uri"), "://")
        relative = pc.and_(outside, pc.invert(pc.fill_null(absolute, True)))
        if pc.any(relative).as_py():
            uris = _absolute_uris(array, relative, field, bases)
    fields = [array.type.field(i) for i in range(array.type.num_fields)]
    parts = [
        array.field(i) if part.name != "blob_uri" or uris is None else uris for i, part in enumerate(fields)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(
        [*parts, sources], fields=[*fields, pa.field(BLOB_SOURCE, pa.string())], mask=mask
    )


def _absolute_uris(array: pa.Array, relative: pa.Array, field: Field, bases: Bases) -> pa.Array:
    """Return the locations of blobs; locations relative to a base path become absolute."""
    uris, numbers = pc.struct_field(array, "blob_uri"), pc.struct_field(array, "blob_id")
    for number in pc.unique(numbers.filter(relative)).to_pylist():
        here = pc.and_(relative, pc.fill_null(pc.equal(numbers, number), False))
        base = bases.external_base(number, field.name)
        whole = base if "://" in base else f"file://{base}"
        for uri in pc.unique(uris.filter(here)).to_pylist():
            check_key(uri or "", f"external blob below base path {number}")
        uris = pc.if_else(here, pc.binary_join_element_wise(whole.rstrip("/"), uris, "/"), uris)
    return uris


@dataclass(frozen=True)
class _Object:
    """A file or other stored object that contains blobs."""

    store: Store
    path: str
    size: int


class BlobSources:
    """Reads the bytes that blob references point to.

    References are untrusted, because any row may contain one. So only bytes of Lance files are read. External
    blobs are read only if the target table or the source table may use their location (see
    `bases.open_place`). The storage options of the target table are used in its own store.

    Args:
        store: has the user's storage options and the locations that the user allows.
        table: the target table of a copy; None if the bytes are not copied into a table.
    """

    def __init__(self, store: Store, table: TableRef | None = None) -> None:
        self._store = store
        self._table = table
        self._objects: OrderedDict[tuple[str, int], _Object] = OrderedDict()

    def sizes(self, references: pa.StructArray) -> Ints:
        """Return the number of bytes of each blob, 0 for nulls.

        Raises:
            BlobSourceError: an external blob does not exist, and its reference has no size.
        """
        parts = _ReferenceColumns.of(references)
        sizes = np.where(parts.inline, parts.lengths, parts.size)
        for row in np.flatnonzero(parts.external & (parts.size == 0)).tolist():
            sizes[row] = self._external(parts, row).size - int(parts.position[row])
        return np.where(parts.valid, sizes, 0)

    def read(
        self, references: pa.StructArray, starts: Ints | None = None, lengths: Ints | None = None
    ) -> pa.Array:
        """Return the bytes of all blobs as large_binary; null for nulls.

        Args:
            references: the blobs.
            starts, lengths: int64, the first byte to read of each blob, and the number of bytes. Ranges are
                clipped at the end of the blob. Whole blobs by default.

        Raises:
            BlobSourceError: a reference has no source, or the source's files cannot be read.
            FormatError: a reference points outside its file.
        """
        parts = _ReferenceColumns.of(references)
        pieces: list[object] = [b""] * len(references)

        def clip_range(row: int, offset: int, size: int) -> tuple[int, int]:
            start = 0 if starts is None else min(int(starts[row]), size)
            return offset + start, size - start if lengths is None else min(int(lengths[row]), size - start)

        for row in np.flatnonzero(parts.inline).tolist():
            whole = parts.data[row].as_buffer()
            pieces[row] = whole.slice(*clip_range(row, 0, whole.size))
        for rows, place in self._group_by_object(parts, parts.valid & ~parts.inline):
            ranges = [clip_range(row, *_byte_range(place, parts, row)) for row in rows]
            for row, piece in zip(rows, _read_ranges(place, ranges), strict=True):
                pieces[row] = piece
        sizes = [memoryview(piece).nbytes for piece in pieces]  # type: ignore[arg-type]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        content = pa.py_buffer(b"".join(pieces))  # type: ignore[arg-type]
        values = pa.Array.from_buffers(pa.large_binary(), len(pieces), [None, pa.py_buffer(offsets), content])
        if parts.valid.all():
            return values
        return pc.if_else(pa.array(parts.valid), values, pa.scalar(None, pa.large_binary()))

    def chunks(self, references: pa.StructArray, row: int) -> Iterator[bytes]:
        """Yield the bytes of one blob in pieces; raises the errors of `read`."""
        parts = _ReferenceColumns.of(references[row : row + 1])
        if parts.inline[0]:
            yield bytes(parts.data[0].as_buffer())
            return
        ((_, blob_object),) = self._group_by_object(parts, np.array([True]))
        start, size = _byte_range(blob_object, parts, 0)
        for offset in range(0, size, _CHUNK_BYTES):
            yield bytes(_read_ranges(blob_object, [(start + offset, min(_CHUNK_BYTES, size - offset))])[0])

    def uris(self, references: pa.StructArray) -> pa.Array:
        """Return the absolute URIs of external blobs; null for other blobs."""
        parts = _ReferenceColumns.of(references)
        uris = [
            _absolute_uri(parts, row, is_trusted=True) if out else None
            for row, out in enumerate(parts.external.tolist())
        ]
        return pa.array(uris, pa.string())

    def _group_by_object(
        self, parts: _ReferenceColumns, mask: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[list[int], _Object]]:
        """Yield the objects that contain blobs, each with the rows of its blobs."""
        lacks_source = mask & ~parts.has_source
        if lacks_source.any():
            raise BlobSourceError(
                f"a value describes a blob without telling where it was read from ({BLOB_SOURCE} is null): "
                f"{_ADVICE}"
            )
        for row in np.flatnonzero(mask & parts.external).tolist():
            yield [row], self._external(parts, row)
        rest = np.flatnonzero(mask & ~parts.external)
        # Blobs in the same data file or in the same sidecar are read together.
        groups: dict[tuple[str, int, int], list[int]] = {}
        for row in rest.tolist():
            kind = int(parts.kind[row])
            number = 0 if kind == _INLINE else int(parts.blob_id[row])
            groups.setdefault((parts.source[row], kind, number), []).append(row)
        for (source, kind, number), rows in groups.items():
            if kind not in (_INLINE, _PACKED, _DEDICATED):
                raise BlobSourceError(
                    f"a value describes a blob of kind {kind}, which is not known: {_ADVICE}"
                )
            yield rows, self._data_file(source) if kind == _INLINE else self._sidecar(source, number)

    def _data_file(self, source: str) -> _Object:
        return self._open_cached((source, 0), lambda: self._open_data_file(source))

    def _open_data_file(self, source: str) -> _Object:
        data_file = _open_object(self._source_table(source), source, "the data file")
        # The URI in a value is not trusted: only bytes of Lance files are copied.
        is_lance = data_file.path.endswith(".lance") and data_file.size > len(MAGIC)
        if (
            not is_lance
            or _read_ranges(data_file, [(data_file.size - len(MAGIC), len(MAGIC))])[0].to_pybytes() != MAGIC
        ):
            raise BlobSourceError(f"a value refers to the blobs of {source}, which is not a Lance data file")
        return data_file

    def _source_table(self, source: str) -> TableRef:
        """Return a table whose user may read any location in a store, but not on any web server."""
        scheme = Location.of(source).scheme
        store = self._store.with_bases([f"{scheme}://"]) if scheme in STORES else self._store
        return TableRef(store, "/" if self._table is None else self._table.root)

    def _sidecar(self, source: str, number: int) -> _Object:
        self._data_file(source)
        home, path = self._source_table(source), sidecar_path(source, number)
        return self._open_cached((source, number), lambda: _open_object(home, path, "the file of blobs"))

    def _external(self, parts: _ReferenceColumns, row: int) -> _Object:
        uri = _absolute_uri(parts, row, is_trusted=self._table is not None)
        return self._open_cached((uri, -1), lambda: self._open_external(uri, parts.source[row]))

    def _open_external(self, uri: str, source: str | None) -> _Object:
        what = "the external blob"
        if self._table is not None:
            try:
                return _open_object(self._table, uri, what)
            except BaseNotAllowedError:
                if not source or not source.endswith(".lance"):
                    raise
        elif not source:
            raise BlobSourceError(
                f"a value describes an external blob, and its {BLOB_SOURCE} is null: {_ADVICE}"
            )
        # Objects that the source table may use can be copied, too. Its data files are {root}/data/{file}.
        self._data_file(source)
        store, path = open_store(source)
        root = path.rpartition("/")[0].rpartition("/")[0] or "/"
        return _open_object(TableRef(replace(store, bases=self._store.bases), root), uri, what)

    def _open_cached(self, key: tuple[str, int], make: Callable[[], _Object]) -> _Object:
        if key not in self._objects:
            self._objects[key] = make()
            if len(self._objects) > _MAX_OPEN_FILES:
                self._objects.popitem(last=False)
        self._objects.move_to_end(key)
        return self._objects[key]


def _open_object(home: TableRef, uri: str, what: str) -> _Object:
    """Open an object that a table refers to; raises the errors of `BlobSources.read`."""
    try:
        store, path = open_place(home, check_uri(uri, what), what)
        return _Object(store, path, store.size(path))
    except FileNotFoundError as error:
        raise BlobSourceError(
            f"{what} {uri}, with bytes of blobs, does not exist: was the version that "
            f"was read cleaned up meanwhile? Read the table again, or {_ADVICE}"
        ) from error
    except BaseNotAllowedError:
        raise
    except StoreError as error:
        raise BlobSourceError(
            f"{what} {uri}, with bytes of blobs, cannot be read with the storage options at "
            f"hand ({error}): give options or an environment that reaches it, or {_ADVICE}"
        ) from error


@dataclass(frozen=True)
class _ReferenceColumns:
    """The fields of references as arrays; 0 where a field is null."""

    valid: npt.NDArray[np.bool_]
    inline: npt.NDArray[np.bool_]
    has_source: npt.NDArray[np.bool_]
    external: npt.NDArray[np.bool_]
    kind: Ints
    position: Ints
    size: Ints
    blob_id: Ints
    lengths: Ints
    data: pa.Array
    uri: Sequence[str | None]
    source: Sequence[str]

    @classmethod
    def of(cls, references: pa.StructArray) -> _ReferenceColumns:
        def numbers(name: str) -> Ints:
            whole = pc.fill_null(pc.struct_field(references, name), 0)
            try:
                values: Ints = whole.cast(pa.int64()).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid as error:
                raise FormatError(f"a blob's {name} is not a position in a file") from error
            return values

        data = pc.struct_field(references, "data")
        source = pc.struct_field(references, BLOB_SOURCE)
        valid = references.is_valid().to_numpy(zero_copy_only=False)
        kind = numbers("kind")
        inline = valid & data.is_valid().to_numpy(zero_copy_only=False)
        return cls(
            valid,
            inline,
            source.is_valid().to_numpy(zero_copy_only=False),
            valid & ~inline & (kind == EXTERNAL),
            kind,
            numbers("position"),
            numbers("size"),
            numbers("blob_id"),
            pc.fill_null(pc.binary_length(data), 0).to_numpy(zero_copy_only=False),
            data,
            pc.struct_field(references, "blob_uri").to_pylist(),
            source.to_pylist(),
        )


def _byte_range(blob_object: _Object, parts: _ReferenceColumns, row: int) -> tuple[int, int]:
    """Return the (offset, size) of a blob in its object.

    Raises:
        FormatError: the range is not inside the object.
    """
    position, size = int(parts.position[row]), int(parts.size[row])
    if parts.external[row] and not size:
        size = blob_object.size - position
    if size < 0 or position + size > blob_object.size:
        raise FormatError(
            f"a blob of {size} bytes at {position} in a file of {blob_object.size} bytes", blob_object.path
        )
    return position, size


def _read_ranges(blob_object: _Object, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
    """Read ranges of an object; empty ranges cause no request."""
    spans = [span for span in ranges if span[1]]
    pieces = iter(blob_object.store.read_ranges(blob_object.path, spans))
    return [next(pieces) if size else pa.py_buffer(b"") for _, size in ranges]


def _absolute_uri(parts: _ReferenceColumns, row: int, *, is_trusted: bool) -> str:
    """Return the URI of an external blob; a trusted relative location is resolved against the source."""
    uri, base = parts.uri[row] or "", parts.source[row]
    if "://" in uri:
        return uri
    if not is_trusted or not base or path_fault(uri, is_key=True) is not None:
        raise BlobSourceError(f"a value names an external blob at {uri!r}, which is not a path: {_ADVICE}")
    whole = join(base, uri)
    return whole if "://" in whole else f"file://{whole}"
