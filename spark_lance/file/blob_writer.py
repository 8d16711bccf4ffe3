"""Writes the bytes of blobs and returns descriptors, which the column stores as packed structs.

Versions 2.0 and 2.1: field large_binary with the metadata key lance-encoding:blob; all bytes go into the data
file; descriptor struct<position, size>.
Version 2.2: field struct<data, uri> or struct<data, uri, position, size>, with the extension name
lance.blob.v2; descriptor struct<kind, position, size, blob_id, blob_uri>:

    0 inline     in the data file: blobs up to lance-encoding:blob-inline-size-threshold bytes (64 KiB)
    1 packed     in a shared sidecar: blobs up to blob-dedicated-size-threshold bytes (4 MiB); the sidecar has
             up to blob-pack-file-size-threshold bytes (1 GiB)
    2 dedicated  in a sidecar of its own: larger blobs
    3 external   not written: the value has a `uri` instead of `data`

`position` is the offset in the file that contains the bytes. Bytes are written as soon as they arrive, before
the pages of their rows. Values may also be references to bytes elsewhere (see `blob_references`), which are
copied in pieces. (Lance file format, blobs.)
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
from spark_lance.file.blob_references import ReferencedBlobs, Sidecar, Sidecars, is_reference, split_by_bytes

BLOB_KEY = "lance-encoding:blob"
_V2_NAME = "lance.blob.v2"
_V2_TYPE = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
_V2_CHILDREN = (("data", "uri"), ("data", "uri", "position", "size"))
_TRUE = frozenset({"true", "1", "yes"})
_INLINE, _PACKED, _DEDICATED, _EXTERNAL = range(4)
# Maximum referenced bytes in memory. A larger blob is copied in pieces.
_COPY_BYTES = 16 << 20


@dataclass(frozen=True)
class _Thresholds:
    """Maximum bytes of an inline blob, of a packed blob, and of a shared sidecar."""

    inline: int = 64 << 10
    dedicated: int = 4 << 20
    pack_file: int = 1 << 30

    @classmethod
    def of(cls, field: Field) -> _Thresholds:
        """Read the thresholds from the metadata of a blob field.

        Raises:
            SchemaError: a value is not a number of bytes.
        """
        return cls(
            _read_threshold(field, "blob-inline-size-threshold", cls.inline),
            _read_threshold(field, "blob-dedicated-size-threshold", cls.dedicated),
            _read_threshold(field, "blob-pack-file-size-threshold", cls.pack_file),
        )


def _read_threshold(field: Field, key: str, default: int) -> int:
    text = field.metadata.get(f"lance-encoding:{key}")
    if text is None:
        return default
    if not text.isdecimal():
        raise SchemaError(
            f"column {field.name!r}: lance-encoding:{key} is {text!r}, which is not a number of bytes"
        )
    return int(text)


def has_blobs(field: Field) -> bool:
    """Return whether a field is or contains a blob."""
    return any(node.kind == "blob" for node in field.walk())


def blobs_as_stored(field: pa.Field, version: FileVersion) -> pa.Field:
    """Return a field with the file version's type for its binary blobs, at the top level or nested.

    A (large_)binary with the metadata key lance-encoding:blob becomes struct<data, uri> from version 2.2 on,
    as in pylance, and large_binary in earlier versions.
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
    """Return a field for `blobs_as_stored` data with pylance's logical types for its lists.

    pylance uses the type of the input items: a list of binary blobs is a `list`, although its items are
        stored as
    structs. It cannot append to such a column if it is a `list.struct`.
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


def has_plain_blobs(field: Field) -> bool:
    """Return whether a field is or contains a version 1 blob."""
    return any(node.kind == "blob" and node.logical_type == "large_binary" for node in field.walk())


def check_blobs(field: Field, version: FileVersion, *, plain: bool = False) -> None:
    """Raise an error if a file version cannot store the blobs of a field.

    Args:
        field: the field.
        version: the file version.
        plain: whether version 2.2 may have blobs that are large_binary, as files outside of tables may.

    Raises:
        SchemaError: a blob has the type of another version, or is inside a map, a fixed-size list, a packed
            struct or, in 2.1, a list.
    """
    _check_field(field, field.name, version, "", plain)


def _check_field(field: Field, path: str, version: FileVersion, inside: str, plain: bool) -> None:
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
        elif plain and field.logical_type == "large_binary":
            return
        elif tuple(child.name for child in field.children) not in _V2_CHILDREN:
            raise SchemaError(
                f"column {path!r}: a blob is a struct<data: large_binary, uri: string>, to which "
                "position: uint64, size: uint64 may be added"
            )
        _Thresholds.of(field)
        return
    if field.kind == "packed_struct":
        inside = "in packed structs"
    elif field.kind in ("map", "fsl_struct"):
        inside = "in maps and fixed-size lists"
    elif field.kind == "list" and (version is FileVersion.V2_1 or (plain and has_plain_blobs(field))):
        inside = inside or "in lists, which version 2.0 and 2.2 have,"
    for child in field.children:
        _check_field(child, f"{path}.{child.name}", version, inside, plain)


class BlobWriter:
    """Replaces the blobs in values of one top-level field with descriptors and writes their bytes.

    Args:
        field: the field. It must pass `check_blobs`.
        sidecars: files for bytes outside the data file.
        put: writes bytes to the data file, at a multiple of 64, and returns their position.
        referenced: reads the bytes of references; None if no value is a reference.
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
        return self._describe_field(self._field, array)

    def _describe_field(self, field: Field, array: pa.Array) -> pa.Array:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if not has_blobs(field):
            return array
        mask = array.is_null() if array.null_count else None
        if field.kind == "struct":
            # Values under a null struct must be ignored; flatten() makes them null.
            reachable = array.flatten()
            children = [
                self._describe_field(child, reachable[i] if has_blobs(child) else array.field(i))
                for i, child in enumerate(field.children)
            ]
            fields = [pa.field(c.name, a.type) for c, a in zip(field.children, children, strict=True)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        if field.kind == "list":
            items = self._describe_field(field.children[0], array.flatten())
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            if pa.types.is_large_list(array.type):
                return pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=mask)
            return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, mask=mask)
        if is_reference(array.type):
            return self._copy_referenced(field, array)
        return self._write_blobs(field, array)

    def _write_blobs(self, field: Field, array: pa.Array) -> pa.Array:
        if field.logical_type == "large_binary":
            return self._write_to_data_file(array)
        return self._write_v2(field, array)

    def _copy_referenced(self, field: Field, references: pa.StructArray) -> pa.Array:
        """Write the blobs that references refer to and return their descriptors."""
        if self._referenced is None:
            raise SchemaError(f"blob column {field.name!r} has references, and nothing to find them by")
        if not len(references):
            return self._write_blobs(field, pa.nulls(0, field.arrow_type()))
        outside = _remains_external(field, references)
        inside = references
        if outside.any():
            inside = pc.if_else(pa.array(outside), pa.scalar(None, references.type), references)
        sizes = self._referenced.sizes(inside)
        parts = []
        for start, stop in split_by_bytes(sizes, _COPY_BYTES):
            rows = slice(start, stop)
            if sizes[start] > _COPY_BYTES and self._can_write_in_pieces(field, int(sizes[start])):
                parts.append(self._write_in_pieces(field, inside, start))
                continue
            data = self._referenced.read(inside[rows])
            values = data
            if field.logical_type != "large_binary":
                values = self._blob_structs(field, references[rows], data, outside[rows])
            parts.append(self._write_blobs(field, values))
        return pa.concat_arrays(parts)

    def _blob_structs(
        self, field: Field, references: pa.StructArray, data: pa.Array, outside: Bools
    ) -> pa.StructArray:
        """Return values of a 2.2 blob field: the bytes, and the uris of the blobs that remain external."""
        assert self._referenced is not None
        is_outside = pa.array(outside)
        nothing = pa.scalar(None, pa.uint64())
        columns = {"data": data, "uri": pa.nulls(len(data), pa.string())}
        for name in ("position", "size"):
            columns[name] = pc.if_else(is_outside, pc.struct_field(references, name), nothing)
        if outside.any():
            uris = self._referenced.uris(references)
            columns["uri"] = pc.if_else(is_outside, uris, pa.scalar(None, pa.string()))
        children = [columns[child.name].cast(child.arrow_type()) for child in field.children]
        mask = pc.and_(data.is_null(), pc.invert(is_outside))
        return pa.StructArray.from_arrays(children, fields=list(field.arrow_type()), mask=mask)

    def _can_write_in_pieces(self, field: Field, size: int) -> bool:
        """Return whether a blob can be written in pieces: to the data file, or to a dedicated sidecar."""
        return field.logical_type == "large_binary" or size > _Thresholds.of(field).dedicated

    def _write_in_pieces(self, field: Field, references: pa.StructArray, row: int) -> pa.Array:
        """Write one blob in pieces and return its descriptor."""
        assert self._referenced is not None
        names = [child.name for child in field.as_descriptor().children]
        types = [child.arrow_type() for child in field.as_descriptor().children]
        if field.logical_type == "large_binary":
            # Every piece but the last ends at a multiple of 64, so there are no gaps.
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

    def _write_to_data_file(self, array: pa.Array) -> pa.Array:
        """Write blobs of versions 2.0 and 2.1 to the data file and return their descriptors."""
        offsets, data = _offsets_and_bytes(array)
        positions = self._put_contiguous(offsets, data)
        parts = [pa.array(positions.astype(np.uint64)), pa.array(np.diff(offsets).astype(np.uint64))]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, names=["position", "size"], mask=mask)

    def _put_contiguous(self, offsets: Ints, data: npt.NDArray[np.uint8]) -> Ints:
        """Write contiguous values to the data file and return their positions; 0 for empty values."""
        if not len(data):
            return np.zeros(len(offsets) - 1, np.int64)
        return np.where(np.diff(offsets) > 0, self._put(data) + offsets[:-1], 0)

    def _write_v2(self, field: Field, array: pa.StructArray) -> pa.Array:
        """Write blobs of version 2.2 and return their descriptors. The size of a blob decides its kind."""
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
        position[inline] = self._put_contiguous(
            *_offsets_and_bytes(data if inline.all() else data.filter(pa.array(inline)))
        )
        if not inline.all():
            packed = kind == _PACKED
            number[packed], position[packed] = self._pack(field.id, data.filter(pa.array(packed)), limits)
            for row in np.flatnonzero(kind == _DEDICATED).tolist():
                number[row] = self._write_dedicated(data[row])
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
        names = [child.name for child in field.as_descriptor().children]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, names=names, mask=mask)

    def _pack(self, field_id: int, data: pa.Array, limits: _Thresholds) -> tuple[Ints, Ints]:
        """Append blobs to shared sidecars and return their sidecar numbers and positions."""
        offsets, content = _offsets_and_bytes(data)
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
            # A blob above the size limit of a sidecar gets a sidecar of its own.
            last = max(last, first + 1)
            assert pack is not None
            number[first:last] = pack.number
            begin = pack.append(content[offsets[first] : offsets[last]])
            position[first:last] = begin + offsets[first:last] - offsets[first]
            first = last
        return number, position

    def _write_dedicated(self, value: pa.Scalar) -> int:
        """Write one blob to a sidecar of its own and return the sidecar's number."""
        sidecar = self._sidecars.create()
        sidecar.append(value.as_buffer())
        self._sidecars.finish(sidecar)
        return sidecar.number


def _remains_external(field: Field, references: pa.StructArray) -> Bools:
    """Return which references remain external: external blobs whose location the field can represent."""
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


def _offsets_and_bytes(array: pa.Array) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return the offsets, starting at 0, and the bytes of large_binary values. Nulls are empty."""
    _, ends, data = array.buffers()
    if ends is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    offsets: Ints = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    if array.null_count and np.diff(offsets)[~_is_valid(array)].any():
        return _offsets_and_bytes(pc.fill_null(array, b""))
    first, last = int(offsets[0]), int(offsets[-1])
    empty = np.zeros(0, np.uint8)
    return offsets - first, empty if data is None else np.frombuffer(data, np.uint8)[first:last]
