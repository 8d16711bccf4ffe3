"""References: values of a blob column that refer to bytes in other files instead of containing them.

A reference is a struct with the fields of a descriptor (see `blob_writer`) and the file that a descriptor is
relative to:

    kind         null in descriptors of versions 2.0 and 2.1, whose blobs are inline
    position, size, blob_id     as in the descriptor
    blob_uri     as in the descriptor, with a relative location resolved to a URI
    blob_source  the URI of the data file that contains the descriptor; for an external blob with a relative
                 location, the URI of the directory that the location is relative to
    data         the bytes themselves; then the other fields are null

Fields other than position, size and blob_source are optional. `BlobWriter` accepts references as values and
copies the bytes that they refer to, in pieces.

Sidecar files contain blob bytes outside the data file. Sidecar number 1, 2, ... of data file data/NAME.lance
is data/NAME/BITS.blob. BITS are the 32 bits of the number as digits, lowest first: number 2 is
01000000000000000000000000000000.blob. (Lance file format 2.2, blobs.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.io.locations import join
from spark_lance.io.store import OutputFile, Store

logger = logging.getLogger(__name__)

_SUFFIX = ".lance"


def sidecar_folder(data_file: str) -> str:
    """Return the directory of the sidecars of a data file."""
    return data_file.removesuffix(_SUFFIX)


def sidecar_path(data_file: str, number: int) -> str:
    """Return the path of a sidecar."""
    return join(sidecar_folder(data_file), f"{number:032b}"[::-1] + ".blob")


class Sidecar:
    """A sidecar that is being written."""

    def __init__(self, number: int, path: str, out: OutputFile) -> None:
        self.number = number
        self.path = path
        self.out = out

    def append(self, data: object) -> int:
        """Write bytes and return the position of the first one."""
        position = self.out.tell()
        self.out.write(data)
        return position


class Sidecars:
    """The sidecars of one data file that is being written. Each becomes visible when it is finished."""

    def __init__(self, store: Store, data_file: str) -> None:
        self._store = store
        self._data_file = data_file
        self._last_number = 0
        self._open: list[Sidecar] = []
        self._finished: list[str] = []

    def create(self) -> Sidecar:
        """Create the next sidecar."""
        self._last_number += 1
        path = sidecar_path(self._data_file, self._last_number)
        sidecar = Sidecar(self._last_number, path, self._store.create(path))
        self._open.append(sidecar)
        return sidecar

    def finish(self, sidecar: Sidecar) -> None:
        """Make a sidecar visible."""
        sidecar.out.close()
        self._open.remove(sidecar)
        self._finished.append(sidecar.path)

    def finish_all(self) -> None:
        """Make all remaining sidecars visible."""
        for sidecar in list(self._open):
            self.finish(sidecar)

    def abort(self) -> None:
        """Discard all sidecars, including visible ones. A sidecar that cannot be deleted is logged."""
        for sidecar in self._open:
            sidecar.out.abort()
        self._open.clear()
        for path in self._finished:
            try:
                self._store.delete(path, self._data_file.rpartition("/")[0])
            except OSError as error:
                logger.warning("could not delete the uncommitted file %s: %s", path, error)
        self._finished.clear()


BLOB_SOURCE = "blob_source"
EXTERNAL = 3
_BLOB_KEY = b"lance-encoding:blob"
_TRUE = frozenset({b"true", b"1", b"yes"})

REFERENCE = pa.struct(
    [
        pa.field("data", pa.large_binary()),
        pa.field("kind", pa.uint8()),
        pa.field("position", pa.uint64()),
        pa.field("size", pa.uint64()),
        pa.field("blob_id", pa.uint32()),
        pa.field("blob_uri", pa.string()),
        pa.field(BLOB_SOURCE, pa.string()),
    ]
)
_FIELDS = frozenset(field.name for field in REFERENCE)
_NUM_FIELDS_V1, _NUM_FIELDS_V2 = 2, 5
_REQUIRED_FIELDS = frozenset({"position", "size", BLOB_SOURCE})


class ReferencedBlobs(Protocol):
    """Reads the bytes that references refer to. Arrays have the type `REFERENCE`."""

    def sizes(self, references: pa.StructArray) -> Ints:
        """Return the number of bytes of each blob; 0 for nulls."""

    def read(self, references: pa.StructArray) -> pa.Array:
        """Return the bytes of all blobs as large_binary; nulls remain null."""

    def chunks(self, references: pa.StructArray, row: int) -> Iterator[bytes]:
        """Yield the bytes of one blob in pieces; the sizes of all but the last are multiples of 64."""

    def uris(self, references: pa.StructArray) -> pa.Array:
        """Return the absolute URIs of external blobs; null for other blobs."""


def is_reference(kind: pa.DataType) -> bool:
    """Return whether a type is the type of references."""
    if not pa.types.is_struct(kind):
        return False
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return len(set(names)) == len(names) and _REQUIRED_FIELDS <= set(names) <= _FIELDS


def describes_blobs(kind: pa.DataType) -> bool:
    """Return whether a type is the type of descriptors without a source file."""
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(i).name for i in range(kind.num_fields)}
    return {"position", "size"} <= names <= _FIELDS - {BLOB_SOURCE, "data"}


def is_descriptor(kind: pa.DataType) -> bool:
    """Return whether a type is exactly the descriptor type that scans return for blobs."""
    if not describes_blobs(kind):
        return False
    parts = [kind.field(i) for i in range(kind.num_fields)]
    same = all(part.type == REFERENCE.field(part.name).type for part in parts)
    return same and len(parts) in (_NUM_FIELDS_V1, _NUM_FIELDS_V2)


def holds_references(kind: pa.DataType) -> bool:
    """Return whether a type is or contains the type of references."""
    if is_reference(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return False
    return any(holds_references(kind.field(i).type) for i in range(kind.num_fields))


def is_blob_field(field: pa.Field) -> bool:
    """Return whether an Arrow field of a table is a blob column."""
    metadata = field.metadata or {}
    is_marked = metadata.get(_BLOB_KEY, b"").lower() in _TRUE
    return is_marked or metadata.get(EXTENSION_NAME.encode()) == b"lance.blob.v2"


def references_as_blobs(field: pa.Field) -> pa.Field:
    """Return the field of a new table for data with references: they become blobs."""
    kind = field.type
    if is_reference(kind):
        metadata = {**(field.metadata or {}), _BLOB_KEY: b"true"}
        return field.with_type(pa.large_binary()).with_metadata(metadata).with_nullable(True)
    if not holds_references(kind):
        return field
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([references_as_blobs(part) for part in kind]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = references_as_blobs(kind.value_field)
        return field.with_type(pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item))
    return field


def map_references(
    array: pa.Array, target: pa.Field, change: Callable[[pa.StructArray, pa.Field], pa.Array]
) -> pa.Array:
    """Return an array with its references replaced, at the top level or in structs and lists.

    Args:
        array: values of the field `target`, with references in place of blobs or bytes.
        target: the field.
        change: (references, field) -> the array that replaces the references.
    """
    kind = array.type
    if is_reference(kind):
        return change(array, target)
    if not holds_references(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        reachable = array.flatten()
        parts, fields = [], []
        for i in range(kind.num_fields):
            inner = target.type.field(i)
            changes = holds_references(kind.field(i).type)
            part = map_references(reachable[i] if changes else array.field(i), inner, change)
            parts.append(part)
            fields.append(inner.with_type(part.type))
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    items = map_references(array.flatten(), target.type.value_field, change)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    item = target.type.value_field.with_type(items.type)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=pa.large_list(item), mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, type=pa.list_(item), mask=mask)


def split_by_bytes(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of runs of rows with at most `limit` bytes in total, or of one larger row."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield start, stop
        start = stop
