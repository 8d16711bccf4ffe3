"""Comparison of two Arrow columns row by row, of every type that a table can hold.

Two values are equal if a reader cannot tell them apart: nulls are equal, NaN equals NaN, and 0.0 differs from
-0.0, because floats are compared by their bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numpy_type, one_array, pick_rows

__all__ = ["equal_values"]

Flags = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

_BITS = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def equal_values(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray) -> Flags:
    """Return for each row whether two columns of the same length and type hold the same value."""
    one, other = _plain(one_array(left)), _plain(one_array(right))
    valid, valid_other = _valid(one), _valid(other)
    result: Flags = valid == valid_other
    both = valid & valid_other
    if both.any():
        result &= ~both | _equal(one, other, both)
    return result


def _equal(left: pa.Array, right: pa.Array, both: Flags) -> Flags:
    """Compare rows where neither value is null; the other rows get any answer."""
    kind = left.type
    if pa.types.is_struct(kind):
        result: Flags = np.ones(len(left), np.bool_)
        for place in range(kind.num_fields):
            result &= equal_values(left.field(place), right.field(place))
        return result
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = [array.values.slice(array.offset * size, len(array) * size) for array in (left, right)]
        return np.asarray(equal_values(*items).reshape(len(left), size).all(axis=1), np.bool_)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _equal_lists(left, right, both)
    if pa.types.is_floating(kind):
        left, right = (_float_bits(array) for array in (left, right))
    try:
        answer = pc.equal(left, right)
    except pa.ArrowNotImplementedError:
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([one == other for one, other in pairs], np.bool_)
    return np.asarray(answer.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _equal_lists(left: pa.Array, right: pa.Array, both: Flags) -> Flags:
    offsets, others = (array.offsets.to_numpy().astype(np.int64) for array in (left, right))
    lengths = np.diff(offsets)
    result: Flags = both & (lengths == np.diff(others))
    rows = np.flatnonzero(result)
    counts = lengths[rows]
    ends = np.cumsum(counts)
    places = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    items = equal_values(
        _take(left.values, places + np.repeat(offsets[rows], counts)),
        _take(right.values, places + np.repeat(others[rows], counts)),
    )
    # How many items differ before each item, so that a list is equal if none is added within it.
    differing = np.concatenate([np.zeros(1, np.int64), np.cumsum(~items)])
    result[rows] = differing[ends] == differing[ends - counts]
    return result


def _plain(array: pa.Array) -> pa.Array:
    """Return an array without extension types and dictionaries."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain(array.storage)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _valid(array: pa.Array) -> Flags:
    flags: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _float_bits(array: pa.Array) -> pa.Array:
    bits = _BITS[array.type.bit_width]
    mask = array.is_null().to_numpy(zero_copy_only=False)
    numbers = np.array(array.to_numpy(zero_copy_only=False), numpy_type(array.type), copy=True)
    numbers[np.isnan(numbers)] = np.nan
    return pa.array(numbers.view(numpy_type(bits)), bits, mask=mask)


def _take(values: pa.Array, places: Int64Array) -> pa.ChunkedArray:
    return pick_rows(pa.table([values], names=["item"]), places).column(0)
