"""Merges separately read parts of a nested field.

Each part is an array of the field's type with only some of its leaves. All parts repeat the structure above
their
leaves: null structs and list lengths. The result takes the structure from the first part, except that a
struct is
null only where it is null in all parts: as in pylance, a part that was added later may have a value there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import flags_to_arrow, flags_to_numpy
from spark_lance.errors import FormatError
from spark_lance.file.base.schema import Field


def has_lists(field: Field) -> bool:
    """Return whether a field is or contains a list or map."""
    return field.kind in ("list", "map") or any(has_lists(child) for child in field.children)


def merge_paths(
    field: Field, arrays: Sequence[pa.Array], ignored: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Combine parts of a field.

    Args:
        field: the complete field.
        arrays: one or more arrays of the same rows, with the field's type reduced to different leaves. A
            map without its key or value is a list of structs with one child.
        ignored: rows in which the parts may differ; they become null.

    Returns:
        An array of type `field.arrow_type()`. Leaves that are in no part are null.

    Raises:
        FormatError: the parts do not have the same number of rows or lists of the same lengths.
    """
    if not arrays:
        raise FormatError(f"nothing to make field {field.name!r} of")
    if any(len(array) != len(arrays[0]) for array in arrays):
        lengths = ", ".join(str(len(array)) for array in arrays)
        raise FormatError(f"the parts of field {field.name!r} differ in length: {lengths}")
    target = field.arrow_type()
    if len(arrays) == 1 and arrays[0].type.equals(target, check_metadata=True):
        return arrays[0]
    if ignored is not None and ignored.any():
        arrays = [pc.if_else(flags_to_arrow(ignored), pa.nulls(1, array.type)[0], array) for array in arrays]
    return _merge(field, list(arrays), target)


def _merge(field: Field, arrays: list[pa.Array], target: pa.DataType) -> pa.Array:
    kind = field.kind
    if kind == "struct":
        return _merge_struct(field, arrays, target)
    if kind in ("list", "map"):
        return _merge_list(field, arrays, target)
    if kind == "fsl_struct":
        return _merge_fixed_list(field, arrays, target)
    return _retype(arrays[0], target)


def _retype(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array with another type, which differs only in names, nullability and metadata."""
    if array.type.equals(target, check_metadata=True):
        return array
    return array.cast(target)


def _merge_struct(field: Field, arrays: list[pa.Array], target: pa.StructType) -> pa.Array:
    children = []
    validity, agreed = _merge_validity(arrays)
    for i, child in enumerate(field.children):
        arrow = target.field(i).type
        parents = [array for array in arrays if array.type.get_field_index(child.name) >= 0]
        # The children of a struct that is null in this part but not in another one are arbitrary.
        parts = [
            array.field(child.name) if agreed else array.flatten()[array.type.get_field_index(child.name)]
            for array in parents
        ]
        if not parts:
            children.append(pa.nulls(len(arrays[0]), arrow))
        elif len(parts) == 1 and parts[0].type.equals(arrow, check_metadata=True):
            children.append(parts[0])
        else:
            children.append(_merge(child, parts, arrow))
    return pa.Array.from_buffers(target, len(arrays[0]), [validity], children=children)


def _merge_validity(arrays: list[pa.Array]) -> tuple[pa.Buffer | None, bool]:
    """Return the validity bitmap of what any array has a value for, and whether all are null in one place."""
    nulls = {array.null_count for array in arrays}
    if nulls == {0}:
        return None, True
    first = _validity(arrays[0])
    if len(arrays) == 1:
        return first, True
    valid = [flags_to_numpy(array.is_valid()) for array in arrays]
    if len(nulls) == 1 and all(np.array_equal(valid[0], other) for other in valid[1:]):
        return first, True
    all_valid = np.logical_or.reduce(valid)
    bitmap = None if all_valid.all() else pa.py_buffer(np.packbits(all_valid, bitorder="little"))
    return bitmap, False


def _merge_list(field: Field, arrays: list[pa.Array], target: pa.DataType) -> pa.Array:
    offsets = _offsets(arrays[0])
    first, last = int(offsets[0]), int(offsets[-1])
    for other in arrays[1:]:
        other_offsets = _offsets(other)
        same = np.array_equal(other_offsets - other_offsets[0], offsets - offsets[0])
        if not same:
            raise FormatError(f"the parts of field {field.name!r} have lists of different lengths")
    items = [_items(array) for array in arrays]
    if field.kind == "map" and any(item.null_count for item in items):
        raise FormatError(f"map {field.name!r} has null entries, and so null keys")
    child = field.children[0]
    child_type = _entries_type(target) if field.kind == "map" else target.value_type
    merged = _merge(child, items, child_type)
    if first:
        offsets = offsets - offsets.dtype.type(first)
    if len(merged) != last - first:
        raise FormatError(f"the lists of field {field.name!r} do not cover their items")
    # Arrow would crash the process on such a map instead of raising an error.
    if field.kind == "map" and (merged.null_count or merged.field(0).null_count):
        raise FormatError(f"map {field.name!r} has null keys")
    buffers = [_validity(arrays[0]), pa.py_buffer(np.ascontiguousarray(offsets))]
    return pa.Array.from_buffers(target, len(arrays[0]), buffers, children=[merged])


def _entries_type(arrow: pa.MapType) -> pa.StructType:
    return pa.struct([arrow.key_field, arrow.item_field])


def _merge_fixed_list(field: Field, arrays: list[pa.Array], target: pa.FixedSizeListType) -> pa.Array:
    size = target.list_size
    items = [array.values.slice(array.offset * size, len(array) * size) for array in arrays]
    merged = _merge(field.children[0], items, target.value_type)
    return pa.Array.from_buffers(target, len(arrays[0]), [_validity(arrays[0])], children=[merged])


def _offsets(array: pa.Array) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """Return the offsets of a list or map array, which may be a slice."""
    large = pa.types.is_large_list(array.type)
    dtype = np.int64 if large else np.int32
    if len(array) == 0:
        return np.zeros(1, dtype=dtype)
    raw = np.frombuffer(array.buffers()[1], dtype=dtype)
    return raw[array.offset : array.offset + len(array) + 1]


def _items(array: pa.Array) -> pa.Array:
    """Return the items of a list or map array that its offsets cover."""
    offsets = _offsets(array)
    if pa.types.is_map(array.type):
        entries = pa.struct([array.type.key_field, array.type.item_field])
        values = pa.StructArray.from_arrays([array.keys, array.items], fields=list(entries))
    else:
        values = array.values
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap of an array, starting at bit 0; None if nothing is null."""
    bitmap = array.buffers()[0] if array.null_count else None
    if bitmap is None:
        return None
    if array.offset == 0:
        return bitmap
    start, skip = divmod(array.offset, 8)
    if skip == 0:
        return bitmap.slice(start)
    bits = np.unpackbits(
        np.frombuffer(bitmap, dtype=np.uint8)[start : (array.offset + len(array) + 7) // 8], bitorder="little"
    )
    return pa.py_buffer(np.packbits(bits[skip : skip + len(array)], bitorder="little"))
