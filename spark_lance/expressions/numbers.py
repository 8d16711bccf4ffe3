"""Arithmetic: which type two numbers meet in, and what is computed there.

    integers            the smallest type that holds both; decimal128(20, 0) for int64 and uint64
    float and any       the float's type, the wider of two
    decimal, integer    the integer as a decimal of its digits: 3, 5, 10 or 20
    date + integer      days later

A number in the text of an expression is an int64 (a uint64, where it needs one), with a point or exponent a
float64. So int8 + 100 is an int64, and does not overflow. Integers that overflow are an error, and so is a
division of integers by zero. (DataFusion's rules, except that it lets integers wrap.)
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import INTEGER_DIGITS, Value, cast, common, typed

__all__ = ["arithmetic", "bits", "divide", "modulo", "number", "shift"]

_NARROW, _WIDE = 38, 76
# Digits that a division of decimals adds behind the point.
_MORE_DIGITS = 4


def number(value: Value) -> Value:
    """Return a literal number in the type that it has by itself; anything else as it is."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return typed(value) if is_number else value


def arithmetic(name: str) -> Callable[[Value, Value], Value]:
    """Return addition, subtraction or multiplication ("add", ...)."""
    function = getattr(pc, f"{name}_checked")

    def compute(left: Value, right: Value) -> Value:
        left, right = _operands(left, right)
        if pa.types.is_date(left.type) or pa.types.is_date(right.type):
            return _days(name, left, right)
        if not pa.types.is_decimal(left.type):
            return function(left, right)
        kind = _result(name, left.type, right.type)
        # A product has a digit more than its factors together; no result has more than 38.
        most = (_WIDE - 1) // 2 if name == "multiply" else _NARROW
        return _as_decimal(function(_widened(left, most), _widened(right, most)), kind)

    return compute


def divide(left: Value, right: Value) -> Value:
    """Division; of integers without the fraction, of floats by zero infinite."""
    left, right = _operands(left, right)
    if pa.types.is_decimal(left.type):
        scale = left.type.scale + _MORE_DIGITS
        digits = left.type.precision + right.type.scale + _MORE_DIGITS
        return _quotient(left, right, _decimal(left.type, right.type, digits, scale))
    return pc.divide(left, right) if pa.types.is_floating(left.type) else pc.divide_checked(left, right)


def modulo(left: Value, right: Value) -> Value:
    """The rest of a division, with the sign of the dividend."""
    left, right = _operands(left, right)
    if pa.types.is_floating(left.type):
        return _fmod(left, right)
    if pa.types.is_decimal(left.type):
        one, other = left.type, right.type
        scale = max(one.scale, other.scale)
        digits = min(one.precision - one.scale, other.precision - other.scale) + scale
        # The product has a digit more than its factors together, and so has the difference.
        whole = _quotient(left, right, pa.decimal256(min(_NARROW, _WIDE - 2 - other.precision), 0))
        rest = pc.subtract_checked(_widened(left), pc.multiply_checked(whole, _widened(right)))
        return _as_decimal(rest, _decimal(one, other, digits, scale))
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def bits(name: str) -> Callable[[Value, Value], Value]:
    """Return an operation on the bits of integers ("and", "or", "xor")."""
    function = getattr(pc, f"bit_wise_{name}")
    return lambda left, right: function(*_integers(left, right))


def shift(name: str) -> Callable[[Value, Value], Value]:
    """Return a shift of integers ("left", "right"); by 64 or more it is one by the rest modulo 64.

    The same holds for the widths of narrower types.
    """
    function = getattr(pc, f"shift_{name}")

    def compute(left: Value, right: Value) -> Value:
        left, right = _integers(left, right)
        most = pa.scalar(left.type.bit_width - 1, left.type)
        return function(left, pc.bit_wise_and(right, most))

    return compute


def _integers(left: Value, right: Value) -> tuple[Any, Any]:
    left, right = number(left), number(right)
    kinds = [typed(value).type for value in (left, right)]
    if pa.uint64() in kinds and all(pa.types.is_integer(kind) for kind in kinds):
        # Bits have no sign, so there is no need of a type that holds all numbers of both.
        return tuple(pc.cast(value, pa.uint64(), safe=False) for value in (left, right))
    left, right = _operands(left, right)
    if not pa.types.is_integer(left.type):
        raise ExpressionError(f"bits are those of integers, not of {left.type}")
    return left, right


def _operands(left: Value, right: Value) -> tuple[Any, Any]:
    """Return two values in types that can be computed with."""
    if left is None and right is None:
        return pa.scalar(None, pa.int64()), pa.scalar(None, pa.int64())
    pair = [number(left), number(right)]
    kinds = [None if value is None else typed(value).type for value in pair]
    for i, other in ((0, 1), (1, 0)):
        one, two = kinds[i], kinds[other]
        if one is None or two is None or not pa.types.is_integer(one):
            continue
        if pa.types.is_decimal(two):
            pair[i] = pc.cast(pair[i], pa.decimal128(INTEGER_DIGITS[one.bit_width], 0))
            return pair[0], pair[1]
        if pa.types.is_date(two):
            return typed(pair[0]), typed(pair[1])
    if all(kind is not None and pa.types.is_decimal(kind) for kind in kinds):
        alike = pa.types.is_decimal256(kinds[0]) == pa.types.is_decimal256(kinds[1])
        return (pair[0], pair[1]) if alike else common(*pair)
    return _same(*common(*pair))


def _same(left: Any, right: Any) -> tuple[Any, Any]:
    if pa.types.is_boolean(left.type) or pa.types.is_nested(left.type):
        raise ExpressionError(f"values of type {left.type} have no arithmetic")
    if pa.types.is_null(left.type):
        return cast(left, pa.int64()), cast(right, pa.int64())
    return left, right


def _days(name: str, left: Any, right: Any) -> Value:
    """Return a date some days later or earlier."""
    if name == "add" and pa.types.is_integer(left.type):
        left, right = right, left
    kind = left.type
    if name == "multiply" or not (pa.types.is_date(kind) and pa.types.is_integer(right.type)):
        raise ExpressionError(f"{name} of {kind} and {right.type}: only whole days fit a date")
    function = pc.add_checked if name == "add" else pc.subtract_checked
    day = cast(left, pa.date32()).cast(pa.int32())
    return cast(function(day, pc.cast(right, pa.int32())).cast(pa.date32()), kind)


def _result(name: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type of a sum, difference or product of decimals."""
    if name == "multiply":
        return _decimal(left, right, left.precision + right.precision + 1, left.scale + right.scale)
    scale = max(left.scale, right.scale)
    return _decimal(
        left, right, max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale
    )


def _decimal(left: pa.DataType, right: pa.DataType, digits: int, scale: int) -> pa.DataType:
    if pa.types.is_decimal256(left) or pa.types.is_decimal256(right):
        return pa.decimal256(min(digits, _WIDE), scale)
    return pa.decimal128(min(digits, _NARROW), scale)


def _widened(value: Any, most: int = _WIDE) -> Any:
    """Return decimals with 256 bits, and with `most` digits at most."""
    kind = value.type
    return pc.cast(value, pa.decimal256(min(kind.precision, most), kind.scale))


def _as_decimal(value: Any, kind: pa.DataType) -> Value:
    return cast(value, kind)


def _quotient(left: Any, right: Any, kind: pa.DataType) -> Value:
    """Divide decimals; digits beyond those of `kind` are cut off."""
    one = left.type
    dividend = pc.cast(left, pa.decimal256(one.precision + _MORE_DIGITS, one.scale + _MORE_DIGITS))
    result = pc.divide_checked(dividend, _widened(right))
    return pc.cast(result, options=pc.CastOptions(kind, allow_decimal_truncate=True))


def _fmod(left: Any, right: Any) -> Value:
    with np.errstate(invalid="ignore"):
        rest = np.fmod(_floats(left), _floats(right))
    null = pc.or_(pc.is_null(left), pc.is_null(right))
    # The rest of two constants is a constant, which stands for as many rows as there are.
    value = pa.array(rest, left.type) if np.ndim(rest) else pa.scalar(rest.item(), left.type)
    return pc.if_else(null, pa.scalar(None, left.type), value)


def _floats(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return np.nan if value.as_py() is None else value.as_py()
    return value.to_numpy()
