"""Blobs as values: what the writer takes for a blob column, from the descriptors that a scan gives.

Copying rows copies the bytes of their blobs, because the descriptors point into the files that the rows
leave. A blob outside the table (version 2.2, kind 3) stays where it is: its value is its URI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.reading.blobs import open_blobs

_EXTERNAL = 3


def blob_sizes(descriptors: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the bytes that the value of each descriptor takes."""
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
    """Return the values of a blob column, of the field's Arrow type; reads the bytes of all of them.

    Args:
        bases: where the files of the table are.
        field: the blob field.
        descriptors: as read from the fragment.
        fragment: its message.

    Raises:
        FormatError: a descriptor points outside its file, or names a file that does not exist.
        UnsupportedFormatError: a blob outside the table whose place the field's type cannot tell.
    """
    values: list[dict[str, Any] | None] = descriptors.to_pylist()
    outside = [descriptor is not None and descriptor.get("kind") == _EXTERNAL for descriptor in values]
    inside = [None if out else descriptor for descriptor, out in zip(values, outside, strict=True)]
    files = open_blobs(bases, field, inside, [fragment] * len(inside))
    data = [None if file is None else file.read() for file in files]
    if field.logical_type == "large_binary":
        return pa.array(data, pa.large_binary())
    places = [descriptor if out else None for descriptor, out in zip(values, outside, strict=True)]
    columns = {"data": pa.array(data, pa.large_binary()), **_places(field, places)}
    children = [columns[child.name].cast(child.arrow_type()) for child in field.children]
    mask = pa.array([descriptor is None for descriptor in values])
    return pa.StructArray.from_arrays(children, fields=list(field.arrow_type()), mask=mask)


def _places(field: Field, outside: Sequence[Mapping[str, Any] | None]) -> dict[str, pa.Array]:
    """Return where blobs outside the table are; nulls for the others."""
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
