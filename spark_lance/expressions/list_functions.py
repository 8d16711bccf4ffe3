"""Functions of expressions on list columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import Value, as_column, common, is_list, is_typed, plain, typed

__all__ = ["element", "has", "has_all", "has_any", "length", "make_list"]


def make_list(*values: Value) -> Value:
    """Return lists of as many elements as there are values; constant ones stay literals."""
    if not any(is_typed(value) for value in values):
        return list(values)
    first: Value = None
    for value in (typed(value) for value in values if value is not None):
        first = value if first is None else common(first, value)[0]
    same = [common(first, value if value is None else typed(value))[1] for value in values]
    rows = max([len(value) for value in same if not isinstance(value, pa.Scalar)], default=1)
    flat = [one_array(as_column(value, rows)) for value in same]
    # The elements of a row lie `rows` apart from each other.
    order = np.arange(rows)[:, None] + rows * np.arange(len(flat))[None, :]
    offsets = np.arange(rows + 1, dtype=np.int32) * len(flat)
    items = pa.concat_arrays(flat).take(pa.array(order.reshape(-1)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


def element(value: Value, position: Value) -> Value:
    """Return a list's element by 1-based position, or a struct's field by name; null if there is none."""
    if isinstance(position, str) and is_typed(value):
        if not pa.types.is_struct(value.type):
            raise ExpressionError(f"{value.type} has no field {position!r}")
        return plain(pc.struct_field(value, position))
    lists = _lists(value)
    if isinstance(position, bool) or not isinstance(position, int):
        raise ExpressionError("the position in a list must be a constant integer")
    if position < 1:
        return pa.nulls(len(lists), lists.type.value_type)
    one = pc.list_slice(lists, position - 1, position, return_fixed_size_list=True)
    return plain(pa.chunked_array([pc.list_element(one, 0)]))


def has(value: Value, item: Value) -> Value:
    """Whether a list holds a constant; null elements are passed over."""
    lists = _lists(value)
    if is_typed(item) and not isinstance(item, pa.Scalar):
        raise ExpressionError("what a list is searched for must be a constant")
    if item is None:
        return pa.nulls(len(lists), pa.bool_())
    items, constant = common(plain(pa.chunked_array([pc.list_flatten(lists)])), item)
    hits = pc.fill_null(pc.equal(items, constant), False).to_numpy()
    parents = pc.list_parent_indices(lists).to_numpy()
    result = np.zeros(len(lists), dtype=bool)
    result[parents[hits]] = True
    return pa.array(result, mask=lists.is_null().to_numpy(zero_copy_only=False))


def has_any(value: Value, items: Value) -> Value:
    """Whether a list holds one of several constants."""
    return _each(value, items, pc.or_, False)


def has_all(value: Value, items: Value) -> Value:
    """Whether a list holds all of several constants."""
    return _each(value, items, pc.and_, True)


def _each(value: Value, items: Value, unite: Any, start: bool) -> Value:
    if not isinstance(items, list):
        raise ExpressionError("the second argument must be a list of constants, such as ['a', 'b']")
    lists = _lists(value)
    result = pc.if_else(lists.is_null(), pa.scalar(None, pa.bool_()), pa.scalar(start))
    for item in items:
        result = unite(result, has(lists, item))
    return result


def length(value: Value) -> Value:
    """The number of elements of a list; nulls count."""
    return pc.cast(pc.list_value_length(_lists(value)), pa.uint64())


def _lists(value: Value) -> Any:
    """Return a list column as one array."""
    value = typed(value)
    kind = value.type
    if not is_list(kind):
        raise ExpressionError(f"a list is needed here, not {kind}")
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], kind)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.ChunkedArray):
        value = value.chunk(0)
    if pa.types.is_fixed_size_list(kind):
        value = pc.cast(value, pa.list_(kind.value_field))
    return value
