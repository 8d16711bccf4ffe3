"""Writes the bytes of blobs and yields descriptors, which the column then stores as packed structs.

Versions 2.0 and 2.1: field large_binary with the metadata key lance-encoding:blob; all bytes go into the data
file; descriptor struct<position, size>.
Version 2.2: field struct<data, uri>, or with position and size behind them, with the extension name
lance.blob.v2; descriptor struct<kind, position, size, blob_id, blob_uri>:

    0 inline     in the data file: up to lance-encoding:blob-inline-size-threshold bytes (64 KiB); also empty
    1 packed     one behind the other in a sidecar: up to blob-dedicated-size-threshold bytes (4 MiB); it
                 takes blobs up to blob-pack-file-size-threshold bytes in all (1 GiB)
    2 dedicated  in a sidecar of its own: larger ones
    3 external   not written: the value named a `uri` instead of holding `data`

`position` counts in the file that holds the bytes. Bytes are written as soon as they come, before the pages
of their rows. Values may also be references to bytes elsewhere (see `blob_references`), which are fetched and
written piece by piece. (Lance file format, blobs.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.errors import SchemaError
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.file.base.metadata import BytesLike
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.blob_references import ReferencedBlobs, Sidecar, Sidecars, is_reference, runs_of

BLOB_KEY = "lance-encoding:blob"
_V2_NAME = "lance.blob.v2"
_V2_TYPE = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
_V2_CHILDREN = (("data", "uri"), ("data", "uri", "position", "size"))
_TRUE = frozenset({"true", "1", "yes"})
_INLINE, _PACKED, _DEDICATED, _EXTERNAL = range(4)
# Referenced bytes that are held at a time; a larger blob goes through in pieces.
_COPY_BYTES = 16 << 20


@dataclass(frozen=True)
class _Thresholds:
    """Largest inline blob, largest packed one, and largest sidecar of packed ones, in bytes."""

    inline: int = 64 << 10
    dedicated: int = 4 << 20
    pack_file: int = 1 << 30

    @classmethod
    def of(cls, field: Field) -> _Thresholds:
        """Read the metadata of a blob field.

        Raises:
            SchemaError: a value is not a number of bytes.
        """
        return cls(
            _bytes(field, "blob-inline-size-threshold", cls.inline),
            _bytes(field, "blob-dedicated-size-threshold", cls.dedicated),
            _bytes(field, "blob-pack-file-size-threshold", cls.pack_file),
        )


def _bytes(field: Field, key: str, default: int) -> int:
    text = field.metadata.get(f"lance-encoding:{key}")
    if text is None:
        return default
    if not text.isdecimal():
        raise SchemaError(
            f"column {field.name!r}: lance-encoding:{key} is {text!r}, which is not a number of bytes"
        )
    return int(text)


def has_blobs(field: Field) -> bool:
    """Tell whether a field is, or contains, a blob."""
    return any(node.kind == "blob" for node in field.walk())


def blobs_as_stored(field: pa.Field, version: FileVersion) -> pa.Field:
    """Return a field that is to be written with its binary blobs, here or inside, as the version has them.

    A (large_)binary with the metadata key lance-encoding:blob is a struct<data, uri> from 2.2 on, as pylance
    has it, and large_binary before.
    """
    kind, metadata = field.type, dict(field.metadata or {})
    is_blob = metadata.get(BLOB_KEY.encode(), b"").decode().lower() in _TRUE
    if is_blob and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        if version in (FileVersion.V2_0, FileVersion.V2_1):
            return field.with_type(pa.large_binary())
        del metadata[BLOB_KEY.encode()]
        return field.with_type(_V2_TYPE).with_metadata({**metadata, EXTENSION_NAME: _V2_NAME})
    if pa.types.is_struct(kind):
        children = [blobs_as_stored(kind.field(i), version) for i in range(kind.num_fields)]
        return field if children == list(kind) else field.with_type(pa.struct(children))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = blobs_as_stored(kind.value_field, version)
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return field if item == kind.value_field else field.with_type(make(item))
    return field


def blobs_as_given(field: Field, kind: pa.DataType) -> Field:
    """Return a field for `blobs_as_stored` data with its lists named as pylance names them.

    That is by the items that were given: a list of binary blobs is a `list`, though its items are stored as
    structs, and pylance appends to no `list.struct` then.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if field.kind == "struct":
        parts = [blobs_as_given(c, kind.field(i).type) for i, c in enumerate(field.children)]
        return replace(field, children=tuple(parts))
    if field.kind != "list":
        return field
    (child,) = field.children
    item = kind.value_type
    logical = field.logical_type
    if child.kind == "blob" and (pa.types.is_binary(item) or pa.types.is_large_binary(item)):
        logical = logical.removesuffix(".struct")
    return replace(field, logical_type=logical, children=(blobs_as_given(child, item),))


def check_blobs(field: Field, version: FileVersion) -> None:
    """Refuse blobs that the version cannot store.

    Raises:
        SchemaError: a blob of the other kind, or inside a map, a fixed-size list or, in 2.1, a list.
    """
    _check(field, field.name, version, "")


def _check(field: Field, path: str, version: FileVersion, inside: str) -> None:
    if field.kind == "blob":
        if inside:
            raise SchemaError(f"column {path!r}: blobs {inside} cannot be stored")
        if version in (FileVersion.V2_0, FileVersion.V2_1):
            if field.logical_type != "large_binary":
                raise SchemaError(
                    f"column {path!r}: blobs of file version {version.text} are large_binary with the "
                    f"metadata key {BLOB_KEY}, not {field.logical_type}; version 2.2 has blobs that are "
                    "structs"
                )
        elif tuple(child.name for child in field.children) not in _V2_CHILDREN:
            raise SchemaError(
                f"column {path!r}: a blob is a struct<data: large_binary, uri: string>, to which "
                "position: uint64, size: uint64 may be added"
            )
        _Thresholds.of(field)
        return
    if field.kind in ("map", "fsl_struct"):
        inside = "in maps and fixed-size lists"
    elif field.kind == "list" and version is FileVersion.V2_1:
        inside = inside or "in lists, which version 2.0 and 2.2 have,"
    for child in field.children:
        _check(child, f"{path}.{child.name}", version, inside)


class BlobWriter:
    """Turns values of one top-level field into what its columns hold: descriptors in place of blobs.

    Args:
        field: the field, with blobs for which `check_blobs` holds.
        sidecars: where bytes go that do not stay in the data file.
        put: writes bytes into the data file, at a multiple of 64, and returns where they begin.
        referenced: finds the bytes of references; None if no value is one.
    """

    def __init__(
        self,
        field: Field,
        sidecars: Sidecars,
        put: Callable[[BytesLike], int],
        referenced: ReferencedBlobs | None = None,
    ) -> None:
        self._field = field
        self._sidecars = sidecars
        self._put = put
        self._referenced = referenced
        self._packs: dict[int, Sidecar] = {}

    def describe(self, array: pa.Array) -> pa.Array:
        """Write the blobs of a run of rows and return the rows with descriptors.

        Raises:
            SchemaError: a blob has neither data nor a uri, or both.
            BlobSourceError: the bytes of a reference cannot be found.
            OSError: the store failed.
        """
        return self._walk(self._field, array)

    def _walk(self, field: Field, array: pa.Array) -> pa.Array:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if not has_blobs(field):
            return array
        mask = array.is_null() if array.null_count else None
        if field.kind == "struct":
            # A value under a null struct is not a blob; flatten() makes it null.
            reachable = array.flatten()
            children = [
                self._walk(child, reachable[i] if has_blobs(child) else array.field(i))
                for i, child in enumerate(field.children)
            ]
            fields = [pa.field(c.name, a.type) for c, a in zip(field.children, children, strict=True)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        if field.kind == "list":
            items = self._walk(field.children[0], array.flatten())
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            if pa.types.is_large_list(array.type):
                return pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=mask)
            return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, mask=mask)
        if is_reference(array.type):
            return self._copied(field, array)
        return self._written(field, array)

    def _written(self, field: Field, array: pa.Array) -> pa.Array:
        if field.logical_type == "large_binary":
            return self._in_file(array)
        return self._placed(field, array)

    def _copied(self, field: Field, references: pa.StructArray) -> pa.Array:
        """Write the blobs that references name."""
        if self._referenced is None:
            raise SchemaError(f"blob column {field.name!r} has references, and nothing to find them by")
        if not len(references):
            return self._written(field, pa.nulls(0, field.arrow_type()))
        outside = _stays_outside(field, references)
        inside = references
        if outside.any():
            inside = pc.if_else(pa.array(outside), pa.scalar(None, references.type), references)
        sizes = self._referenced.sizes(inside)
        parts = []
        for start, stop in runs_of(sizes, _COPY_BYTES):
            rows = slice(start, stop)
            if sizes[start] > _COPY_BYTES and self._streams(field, int(sizes[start])):
                parts.append(self._streamed(field, inside, start))
                continue
            data = self._referenced.read(inside[rows])
            values = data
            if field.logical_type != "large_binary":
                values = self._blob_structs(field, references[rows], data, outside[rows])
            parts.append(self._written(field, values))
        return pa.concat_arrays(parts)

    def _blob_structs(
        self, field: Field, references: pa.StructArray, data: pa.Array, outside: Bools
    ) -> pa.StructArray:
        """Return values of a blob field of 2.2: bytes, and places of what stays outside."""
        assert self._referenced is not None
        there = pa.array(outside)
        nothing = pa.scalar(None, pa.uint64())
        columns = {"data": data, "uri": pa.nulls(len(data), pa.string())}
        for name in ("position", "size"):
            columns[name] = pc.if_else(there, pc.struct_field(references, name), nothing)
        if outside.any():
            uris = self._referenced.uris(references)
            columns["uri"] = pc.if_else(there, uris, pa.scalar(None, pa.string()))
        children = [columns[child.name].cast(child.arrow_type()) for child in field.children]
        mask = pc.and_(data.is_null(), pc.invert(there))
        return pa.StructArray.from_arrays(children, fields=list(field.arrow_type()), mask=mask)

    def _streams(self, field: Field, size: int) -> bool:
        """Whether a blob that is too large to be held has a place that takes it in pieces."""
        return field.logical_type == "large_binary" or size > _Thresholds.of(field).dedicated

    def _streamed(self, field: Field, references: pa.StructArray, row: int) -> pa.Array:
        """Write one blob in pieces and return its descriptor."""
        assert self._referenced is not None
        names = [child.name for child in field.described().children]
        types = [child.arrow_type() for child in field.described().children]
        if field.logical_type == "large_binary":
            # Every piece but the last ends at a multiple of 64, so that there are no gaps.
            positions, size = [], 0
            for piece in self._referenced.chunks(references, row):
                positions.append(self._put(piece))
                size += len(piece)
            values: tuple[object, ...] = (positions[0], size)
        else:
            sidecar, size = self._sidecars.create(), 0
            for piece in self._referenced.chunks(references, row):
                sidecar.append(piece)
                size += len(piece)
            self._sidecars.finish(sidecar)
            values = (_DEDICATED, 0, size, sidecar.number, "")
        parts = [pa.array([value], kind) for value, kind in zip(values, types, strict=True)]
        return pa.StructArray.from_arrays(parts, names=names)

    def _in_file(self, array: pa.Array) -> pa.Array:
        """Write blobs of 2.0 and 2.1 into the data file."""
        offsets, data = _content(array)
        positions = self._inline(offsets, data)
        parts = [pa.array(positions.astype(np.uint64)), pa.array(np.diff(offsets).astype(np.uint64))]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, names=["position", "size"], mask=mask)

    def _inline(self, offsets: Ints, data: npt.NDArray[np.uint8]) -> Ints:
        """Write values one behind the other into the data file; return their positions, 0 of empty ones."""
        if not len(data):
            return np.zeros(len(offsets) - 1, np.int64)
        return np.where(np.diff(offsets) > 0, self._put(data) + offsets[:-1], 0)

    def _placed(self, field: Field, array: pa.StructArray) -> pa.Array:
        """Write blobs of 2.2, each to the place that suits its size."""
        children = dict(zip((child.name for child in field.children), array.flatten(), strict=True))
        data, uri = children["data"], children["uri"]
        external = _is_valid(uri)
        if (_is_valid(array) & (_is_valid(data) == external)).any():
            raise SchemaError(f"blob column {field.name!r}: a value needs either data or a uri")
        limits = _Thresholds.of(field)
        size = pc.fill_null(pc.binary_length(data), 0).to_numpy().astype(np.int64)
        kind = np.where(size > limits.dedicated, _DEDICATED, np.where(size > limits.inline, _PACKED, _INLINE))
        number = np.zeros(len(array), np.int64)
        position = np.zeros(len(array), np.int64)
        inline = kind == _INLINE
        position[inline] = self._inline(*_content(data if inline.all() else data.filter(pa.array(inline))))
        if not inline.all():
            packed = kind == _PACKED
            number[packed], position[packed] = self._pack(field.id, data.filter(pa.array(packed)), limits)
            for row in np.flatnonzero(kind == _DEDICATED).tolist():
                number[row] = self._dedicate(data[row])
        kind[external] = _EXTERNAL
        for name, values in (("position", position), ("size", size)):
            if name in children:
                values[external] = pc.fill_null(children[name], 0).to_numpy()[external]
        columns = [
            pa.array(kind.astype(np.uint8)),
            pa.array(position.astype(np.uint64)),
            pa.array(size.astype(np.uint64)),
            pa.array(number.astype(np.uint32)),
            pc.fill_null(uri, ""),
        ]
        names = [child.name for child in field.described().children]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, names=names, mask=mask)

    def _pack(self, field_id: int, data: pa.Array, limits: _Thresholds) -> tuple[Ints, Ints]:
        """Append blobs to sidecars that they share; return which and where in it."""
        offsets, content = _content(data)
        number, position = np.zeros((2, len(data)), np.int64)
        first = 0
        while first < len(data):
            pack = self._packs.get(field_id)
            room = limits.pack_file - pack.out.tell() if pack else 0
            last = int(np.searchsorted(offsets, offsets[first] + room, side="right")) - 1
            if last <= first and (pack is None or pack.out.tell()):
                if pack is not None:
                    self._sidecars.finish(pack)
                self._packs[field_id] = self._sidecars.create()
                continue
            # One that is larger than a whole sidecar may be has one of its own.
            last = max(last, first + 1)
            assert pack is not None
            number[first:last] = pack.number
            begin = pack.append(content[offsets[first] : offsets[last]])
            position[first:last] = begin + offsets[first:last] - offsets[first]
            first = last
        return number, position

    def _dedicate(self, value: pa.Scalar) -> int:
        """Write one blob as a sidecar and return its number."""
        sidecar = self._sidecars.create()
        sidecar.append(value.as_buffer())
        self._sidecars.finish(sidecar)
        return sidecar.number


def _stays_outside(field: Field, references: pa.StructArray) -> Bools:
    """Tell which references a blob field keeps as they are: external ones whose place it can hold."""
    if field.logical_type == "large_binary":
        return np.zeros(len(references), np.bool_)
    kind, position, size = (
        pc.fill_null(pc.struct_field(references, name), 0).to_numpy(zero_copy_only=False)
        for name in ("kind", "position", "size")
    )
    ranges = any(child.name == "size" for child in field.children)
    outside: Bools = (kind == _EXTERNAL) & (ranges | ((position == 0) & (size == 0)))
    return outside


def _is_valid(array: pa.Array) -> Bools:
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _content(array: pa.Array) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return offsets from 0 and the bytes of large_binary values; nulls are empty."""
    _, ends, data = array.buffers()
    if ends is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    offsets: Ints = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    if array.null_count and np.diff(offsets)[~_is_valid(array)].any():
        return _content(pc.fill_null(array, b""))
    first, last = int(offsets[0]), int(offsets[-1])
    empty = np.zeros(0, np.uint8)
    return offsets - first, empty if data is None else np.frombuffer(data, np.uint8)[first:last]
