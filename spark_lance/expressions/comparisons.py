"""Comparisons, for every type that has an order or equality.

Floats compare in total order: NaN is greater than infinity, NaN with its sign bit set is less than minus
infinity, and each equals itself. -0.0 is less than 0.0, but a zero literal in a condition matches both. Lists
are equal if they have the same length, and each pair of elements is equal or both are null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.arrow.texts import is_text
from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import (
    TYPED,
    Value,
    common,
    integer_range,
    is_list,
    is_typed,
    plain,
)


def equal(left: Value, right: Value) -> Value:
    """Return whether values are equal; null if either is null."""
    exact = is_typed(left) and is_typed(right)
    left, right = common(left, right)
    if is_list(left.type):
        return _lists_equal(left, right)
    if exact and pa.types.is_floating(left.type):
        return pc.equal(_ordered(left), _ordered(right))
    nans = _nans(left, right)
    if nans is None:
        return pc.equal(left, right)
    left, right, one, other = nans
    return pc.and_kleene(pc.equal(one, other), pc.or_kleene(pc.equal(left, right), pc.not_equal(one, 0)))


def less(left: Value, right: Value) -> Value:
    """Return whether left values are less than right values; null if either is null."""
    exact = is_typed(left) and is_typed(right)
    left, right = common(left, right)
    if is_list(left.type):
        raise ExpressionError("lists are compared by = and != only")
    if exact and pa.types.is_floating(left.type):
        return pc.less(_ordered(left), _ordered(right))
    nans = _nans(left, right)
    if nans is None:
        return pc.less(left, right)
    left, right, one, other = nans
    return pc.if_else(
        pc.equal(one, other), pc.and_kleene(pc.less(left, right), pc.equal(one, 0)), pc.less(one, other)
    )


def _ordered(value: Any) -> Any:
    """Return integers that sort like the floats."""
    array = _array(value)
    bits = array.fill_null(0).to_numpy(zero_copy_only=False).view(f"i{array.type.bit_width // 8}")
    top = array.type.bit_width - 1
    # The bits of negative numbers sort in reverse order, so they are inverted.
    keys = bits ^ ((bits >> top) & np.array((1 << top) - 1, bits.dtype))
    result = pa.array(keys, mask=array.is_null().to_numpy(zero_copy_only=False))
    return result[0] if isinstance(value, pa.Scalar) else result


def _nans(left: Any, right: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return floats, and of each its kind: 1 for NaN, -1 for NaN with its sign bit set, 0 for other numbers.

    None if valid is no NaN.
    """
    if not pa.types.is_floating(left.type):
        return None
    if not any(pc.any(pc.is_nan(value)).as_py() for value in (_array(left), _array(right))):
        return None
    pair = [value if isinstance(value, pa.Scalar) else _array(value) for value in (left, right)]
    kinds = []
    for value in pair:
        array = _array(value)
        numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
        kind = np.where(np.isnan(numbers), np.where(np.signbit(numbers), -1, 1), 0).astype(np.int8)
        result = pa.array(kind, mask=array.is_null().to_numpy(zero_copy_only=False))
        kinds.append(result[0] if isinstance(value, pa.Scalar) else result)
    return pair[0], pair[1], kinds[0], kinds[1]


def _array(value: Any) -> pa.Array:
    """Return a value as one array."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, 1) if value.is_valid else pa.nulls(1, value.type)
    return one_array(value)


def unsigned_nan(value: Value) -> Value:
    """Return numbers with every NaN made positive, for engines with a single NaN."""
    if not is_typed(value) or not pa.types.is_floating(value.type):
        return value
    return pc.if_else(pc.is_nan(value), pa.scalar(float("nan"), value.type), value)


def extreme(values: list[Any], greatest: bool) -> Value:
    """Return the greatest or least of values of one type, row by row; nulls are ignored."""
    if not pa.types.is_floating(values[0].type):
        return (pc.max_element_wise if greatest else pc.min_element_wise)(*values)
    out = values[0]
    for value in values[1:]:
        better = less(out, value) if greatest else less(value, out)
        out = pc.if_else(pc.fill_null(better, pc.is_null(out)), value, out)
    return out


def is_in(value: Value, *options: Value) -> Value:
    """Return whether a value is among the options; null without a match if an option is null."""
    literals = [option for option in options if option is not None]
    has_null, kinds = len(literals) < len(options), set(map(type, literals))
    if any(issubclass(kind, (*TYPED, list)) for kind in kinds) or not is_typed(value):
        result: Value = False
        for option in options:
            result = pc.or_kleene(result, equal(value, option))
        return result
    groups: dict[pa.DataType, tuple[Any, list[Any]]] = {}
    if pa.types.is_integer(value.type) and kinds <= {int}:
        # Many numbers are the usual case. Numbers outside of the column's range match nothing.
        low, high = integer_range(value.type)
        if literals and not low <= min(literals) <= max(literals) <= high:
            literals = [option for option in literals if low <= option <= high]
        groups[value.type] = (value, literals)
        known_pairs: list[tuple[Value, Value]] = []
    elif is_text(value.type) and kinds <= {str}:
        groups[value.type] = (value, literals)
        known_pairs = []
    else:
        known_pairs = [common(value, option) for option in literals]
    for column, option in known_pairs:
        groups.setdefault(column.type, (column, []))[1].append(option.as_py())
    result = pa.scalar(False)
    for kind, (column, values) in groups.items():
        if pa.types.is_floating(kind) and 0.0 in values:
            values += [0.0, -0.0]
        result = pc.or_(result, pc.is_in(column, pa.array(values, kind)))
    unknown = pc.is_null(value)
    if has_null:
        unknown = pc.or_(unknown, pc.invert(result))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), result)


def _lists_equal(left: Any, right: Any) -> Value:
    """Compare lists, or a list with one constant list."""
    rows = next((len(value) for value in (left, right) if not isinstance(value, pa.Scalar)), 1)
    one, other = (_rows_of(value, rows) for value in (left, right))
    valid = np.flatnonzero(_flags(pc.and_(one.is_valid(), other.is_valid())))
    lengths = [pc.list_value_length(lists).fill_null(-1).to_numpy() for lists in (one, other)]
    same = valid[lengths[0][valid] == lengths[1][valid]]
    one, other = (lists.take(pa.array(same)) for lists in (one, other))
    flat = [_array(plain(pa.chunked_array([pc.list_flatten(lists)]))) for lists in (one, other)]
    matches = pc.fill_null(equal(*flat), False)
    both_null = pc.and_(pc.is_null(flat[0]), pc.is_null(flat[1]))
    differs = _flags(pc.invert(pc.or_(matches, both_null)))
    result = np.zeros(rows, np.bool_)
    result[same] = True
    result[same[pc.list_parent_indices(one).to_numpy()[differs]]] = False
    unknown = np.ones(rows, np.bool_)
    unknown[valid] = False
    return pa.array(result, mask=unknown)


def _rows_of(value: Any, rows: int) -> Any:
    """Return lists as one array of `rows` lists with offsets."""
    array = _array(value)
    if isinstance(value, pa.Scalar):
        array = array.take(pa.repeat(pa.scalar(0), rows))
    return pc.cast(array, pa.large_list(value.type.value_type))


def _flags(value: Any) -> Any:
    return np.asarray(value.to_numpy(zero_copy_only=False), np.bool_)
