"""References: values of a blob column that name bytes in other files instead of holding them.

A reference is a struct with the parts of a descriptor (see `blob_writer`) and the part that a descriptor
leaves to the reader, the file it counts from:

    kind         null in descriptors of versions 2.0 and 2.1, whose blobs are inline
    position, size, blob_id     as in the descriptor
    blob_uri     as in the descriptor, or the URI that its relative location stands for
    blob_source  the URI of the data file that the descriptor was read from; of an external blob with a
                 relative location, that of the directory which the location counts from
    data         the bytes themselves; then the other parts are null

Parts other than position, size and blob_source may be missing. `BlobWriter` takes references for values and
copies the bytes that they name, piece by piece.

Sidecar files hold bytes of blobs next to a data file instead of in it. Sidecar number 1, 2, ... of data file
data/NAME.lance is data/NAME/BITS.blob, BITS = the 32 bits of the number as digits, lowest first: number 2 is
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
        """Write bytes and return where they begin."""
        position = self.out.tell()
        self.out.write(data)
        return position


class Sidecars:
    """All sidecars of one data file that is being written. They become visible one by one when finished."""

    def __init__(self, store: Store, data_file: str) -> None:
        self._store = store
        self._data_file = data_file
        self._last = 0
        self._open: list[Sidecar] = []
        self._finished: list[str] = []

    def create(self) -> Sidecar:
        """Begin the next sidecar."""
        self._last += 1
        path = sidecar_path(self._data_file, self._last)
        sidecar = Sidecar(self._last, path, self._store.create(path))
        self._open.append(sidecar)
        return sidecar

    def finish(self, sidecar: Sidecar) -> None:
        """Make a sidecar visible."""
        sidecar.out.close()
        self._open.remove(sidecar)
        self._finished.append(sidecar.path)

    def finish_all(self) -> None:
        """Make those visible that are not yet."""
        for sidecar in list(self._open):
            self.finish(sidecar)

    def abort(self) -> None:
        """Drop all of them, also those that are visible; what cannot be deleted is logged and left."""
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
_PARTS = frozenset(field.name for field in REFERENCE)
_PARTS_OF_V1, _PARTS_OF_V2 = 2, 5
_NEEDED = frozenset({"position", "size", BLOB_SOURCE})


class ReferencedBlobs(Protocol):
    """Finds the bytes that references name. Arrays are of the type `REFERENCE`."""

    def sizes(self, references: pa.StructArray) -> Ints:
        """Return the number of bytes of each blob, 0 for nulls."""

    def read(self, references: pa.StructArray) -> pa.Array:
        """Return the bytes of all blobs as large_binary; null for nulls."""

    def chunks(self, references: pa.StructArray, row: int) -> Iterator[bytes]:
        """Yield the bytes of one blob in pieces; the sizes of all but the last are multiples of 64."""

    def uris(self, references: pa.StructArray) -> pa.Array:
        """Return where external blobs are, as absolute URIs; null for the others."""


def is_reference(kind: pa.DataType) -> bool:
    """Tell whether values of a type are references."""
    if not pa.types.is_struct(kind):
        return False
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return len(set(names)) == len(names) and _NEEDED <= set(names) <= _PARTS


def describes_blobs(kind: pa.DataType) -> bool:
    """Tell whether values of a type are descriptors that do not say where they count from."""
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(i).name for i in range(kind.num_fields)}
    return {"position", "size"} <= names <= _PARTS - {BLOB_SOURCE, "data"}


def is_descriptor(kind: pa.DataType) -> bool:
    """Tell whether a type is the one in which scans yield blobs."""
    if not describes_blobs(kind):
        return False
    parts = [kind.field(i) for i in range(kind.num_fields)]
    same = all(part.type == REFERENCE.field(part.name).type for part in parts)
    return same and len(parts) in (_PARTS_OF_V1, _PARTS_OF_V2)


def holds_references(kind: pa.DataType) -> bool:
    """Tell whether there are references in a type, here or inside."""
    if is_reference(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return False
    return any(holds_references(kind.field(i).type) for i in range(kind.num_fields))


def is_blob_field(field: pa.Field) -> bool:
    """Tell whether an Arrow field of a table stands for a blob column."""
    metadata = field.metadata or {}
    marked = metadata.get(_BLOB_KEY, b"").lower() in _TRUE
    return marked or metadata.get(EXTENSION_NAME.encode()) == b"lance.blob.v2"


def references_as_blobs(field: pa.Field) -> pa.Field:
    """Return the field of a table that is made for data: blobs where the data has references."""
    kind = field.type
    if is_reference(kind):
        marked = {**(field.metadata or {}), _BLOB_KEY: b"true"}
        return field.with_type(pa.large_binary()).with_metadata(marked).with_nullable(True)
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
    """Return an array with other arrays in place of its references, here or in structs and lists.

    Args:
        array: values of the field `target`, but for references in place of blobs or bytes.
        target: the field.
        change: returns what takes the place of references that stand for a field.
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


def runs_of(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows of at most `limit` bytes, or of one row that has more."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield start, stop
        start = stop
