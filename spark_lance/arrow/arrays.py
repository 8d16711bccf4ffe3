"""Arrow operations with workarounds for Arrow's bugs.

Observed in Arrow releases up to 26: `take` and `filter` return wrong items for fixed-size lists of fixed-size
lists that start at an offset. Concatenating half-float dictionaries returns wrong values. Dictionaries with
null items, or with more items in total than their index type can number, cannot be concatenated. Arrow reads
the offsets of strings and lists even if they are missing, as in empty arrays from Java's Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_VARIABLE = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


class CapacityError(Exception):
    """The values do not fit into one Arrow array of their type (32-bit offsets): request fewer rows."""


def join(arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """Return arrays of one type as one array.

    The arrays are returned unchanged if their dictionaries cannot be merged, or if together they exceed the
    offsets of their type.
    """
    if len(arrays) < 2:
        return list(arrays)
    if any(pa.types.is_float16(kind.value_type) for kind in dictionary_types(arrays[0].type)):
        return list(arrays)
    try:
        return [pa.concat_arrays(arrays)]
    except pa.ArrowInvalid:
        return list(arrays)


@cache
def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of an Arrow integer or float type. Arrow's `to_pandas_dtype` would import pandas.

    Raises:
        TypeError: the type is neither an integer nor a float type.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TypeError(f"{kind} is no type of numbers")
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. A single chunk is returned unchanged.

    Raises:
        pa.ArrowInvalid: the dictionaries of the chunks cannot be merged, or the chunks do not fit into one
            array.
    """
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def numbers_to_arrow(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array that shares their memory.

    On its first call `pa.array` imports pandas, if installed. This would cost every Python process of Spark
    0.3 s.
    """
    contiguous = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(contiguous.dtype), len(contiguous), [None, pa.py_buffer(contiguous)]
    )


def flags_to_arrow(flags: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return bools as an Arrow array; see `numbers_to_arrow`."""
    bits = np.packbits(flags, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(bits)])


def texts_to_arrow(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Return texts as an array of a string type; see `numbers_to_arrow`."""
    data = [text.encode() for text in texts]
    offsets = np.zeros(len(data) + 1, np.int64)
    np.cumsum([len(text) for text in data], out=offsets[1:])
    if pa.types.is_string(kind):
        if offsets[-1] > np.iinfo(np.int32).max:
            raise pa.ArrowCapacityError(f"{offsets[-1]} bytes of text do not fit into an array of {kind}")
        offsets = offsets.astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(data), buffers)


def to_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as `pa.scalar` does, which would import pandas for common values, too."""
    if type(value) is bool and pa.types.is_boolean(kind):
        return flags_to_arrow(np.array([value]))[0]
    if type(value) is float and pa.types.is_float64(kind):
        return numbers_to_arrow(np.array([value]))[0]
    if type(value) is int and pa.types.is_integer(kind):
        dtype = numpy_type(kind)
        if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            return numbers_to_arrow(np.array([value], dtype))[0]
    if type(value) is str and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return texts_to_arrow([value], kind)[0]
    return pa.scalar(value, kind)


def empty_text(arrow: pa.DataType) -> pa.Array:
    """Return an array of one empty value of a string or binary type; see `numbers_to_arrow`."""
    return pa.Array.from_buffers(arrow, 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])


def flags_to_numpy(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return bools as numpy flags, arbitrary for nulls. See `numbers_to_arrow`."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, np.bool_)
    first = array.offset // 8
    packed = np.frombuffer(buffer, np.uint8)[first : (array.offset + len(array) + 7) // 8]
    skip = array.offset - first * 8
    return np.unpackbits(packed, bitorder="little")[skip : skip + len(array)].view(np.bool_)


def mask_to_numpy(mask: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return bools as numpy flags; null counts as false. See `numbers_to_arrow`."""
    array = one_array(mask)
    flags = flags_to_numpy(array)
    return flags & flags_to_numpy(array.is_valid()) if array.null_count else flags


def filled_numbers(array: pa.Array, fill: int) -> npt.NDArray[Any]:
    """Return numbers with `fill` in the places of nulls; see `numbers_to_arrow`."""
    numbers = numbers_to_numpy(array)
    return np.where(flags_to_numpy(array.is_valid()), numbers, fill) if array.null_count else numbers


def numbers_to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of numbers, arbitrary for nulls, without a copy; see `numbers_to_arrow`."""
    buffer, dtype = array.buffers()[1], numpy_type(array.type)
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def dictionary_types(arrow: pa.DataType) -> Iterator[pa.DictionaryType]:
    """Yield the dictionary types in a type, including itself."""
    if isinstance(arrow, pa.BaseExtensionType):
        yield from dictionary_types(arrow.storage_type)
    elif pa.types.is_dictionary(arrow):
        yield arrow
    else:
        for i in range(arrow.num_fields):
            yield from dictionary_types(arrow.field(i).type)


def make_filterable(array: pa.Array) -> pa.Array:
    """Return an equal array for which `take` and `filter` return the correct rows."""
    return pa.concat_arrays([array]) if _nests_fixed_lists(array.type) else array


def filter_rows(table: pa.Table, keep: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows of a table for which `keep`, a bool per row, is true.

    Arrow filters a table in slices at the chunk boundaries of all columns, which returns wrong rows for
    nested fixed-size lists.
    """
    nested = [_nests_fixed_lists(field.type) for field in table.schema]
    if not any(nested):
        return table.filter(keep)
    mask = keep.combine_chunks() if isinstance(keep, pa.ChunkedArray) else keep
    columns = []
    for column, with_care in zip(table.columns, nested, strict=True):
        if not with_care:
            columns.append(column.filter(mask))
            continue
        start, parts = 0, []
        for chunk in column.chunks:
            parts.append(make_filterable(chunk).filter(mask.slice(start, len(chunk))))
            start += len(chunk)
        columns.append(pa.chunked_array(parts, column.type))
    return pa.Table.from_arrays(columns, schema=table.schema)


def normalise_offsets(array: pa.Array) -> pa.Array:
    """Return an equal array in which empty strings and lists have offsets, at any depth.

    Arrow reads the offsets to compute sizes and to cast, and would crash the process if they are missing.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        inner = normalise_offsets(array.storage)
        return array if inner is array.storage else pa.ExtensionArray.from_storage(kind, inner)
    if not len(array):
        return pa.nulls(0, kind) if kind.num_fields or any(check(kind) for check in _VARIABLE) else array
    if pa.types.is_struct(kind):
        fields = [array.field(i) for i in range(kind.num_fields)]
        better = [normalise_offsets(field) for field in fields]
        if all(new is old for new, old in zip(better, fields, strict=True)):
            return array
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(better, fields=list(kind), mask=mask)
    if _is_list(kind):
        values = array.values
        better = normalise_offsets(values)
        if better is values:
            return array
        buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
        return pa.Array.from_buffers(
            kind, len(array), buffers, array.null_count, array.offset, children=[better]
        )
    return array


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def pick_rows(table: pa.Table, indices: np.ndarray) -> pa.Table:
    """Return the rows at `indices` (int64), in that order."""
    columns = [_pick(column, indices) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema) if columns else table.slice(0, len(indices))


def _pick(column: pa.ChunkedArray, indices: np.ndarray) -> pa.ChunkedArray:
    chunks = join(column.chunks)
    if len(chunks) == 1:
        return pa.chunked_array([make_filterable(chunks[0]).take(numbers_to_arrow(indices))], column.type)
    # The dictionaries of the chunks cannot be merged, so every row keeps the dictionary of its chunk.
    ends = np.cumsum([len(chunk) for chunk in chunks])
    chunk_numbers = np.searchsorted(ends, indices, side="right")
    places = indices - np.concatenate([[0], ends])[chunk_numbers]
    rows = [
        chunks[chunk_number].slice(place, 1)
        for chunk_number, place in zip(chunk_numbers, places, strict=True)
    ]
    return pa.chunked_array(rows, column.type)


def _nests_fixed_lists(arrow: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(arrow) and pa.types.is_fixed_size_list(arrow.value_type):
        return True
    return any(_nests_fixed_lists(arrow.field(i).type) for i in range(arrow.num_fields))
