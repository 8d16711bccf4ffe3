"""Arithmetic of expressions: of integers, floats, decimals, and dates with numbers of days.

Both operands are converted to a common type:

    integers            the smallest type that holds both; decimal128(20, 0) for int64 and uint64
    float and any       the float's type, or the wider of two float types
    decimal, integer    the integer becomes a decimal of 3, 5, 10 or 20 digits, by its width
    date + integer      the date that many days later

A literal number in an expression is an int64, or a uint64 if it does not fit. With a point or exponent, it is
a float64. So int8 + 100 is an int64, and does not overflow. Integer overflow and integer division by zero are
errors. (DataFusion's rules, except that DataFusion lets integers wrap.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import (
    INTEGER_DIGITS,
    Value,
    as_column,
    cast,
    common,
    typed,
)

_NARROW, _WIDE = 38, 76
# The number of digits that a decimal division adds after the decimal point.
_MORE_DIGITS = 4
# More digits than any result of the arithmetic of two decimals has before it is rounded.
_ANY_DIGITS = Context(prec=4 * _WIDE)


def number(value: Value) -> Value:
    """Return a literal number as a scalar of its own type, and any other value unchanged."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return typed(value) if is_number else value


def arithmetic(name: str) -> Callable[[Value, Value], Value]:
    """Return the function for "add", "subtract" or "multiply"."""
    function = getattr(pc, f"{name}_checked")

    def compute(left: Value, right: Value) -> Value:
        left, right = _operands(left, right)
        if pa.types.is_date(left.type) or pa.types.is_date(right.type):
            return _days(name, left, right)
        if not pa.types.is_decimal(left.type):
            return function(left, right)
        kind = _result(name, left.type, right.type)
        return _exactly(name, left, right, kind, lambda: _add_or_multiply(name, left, right))

    return compute


def divide(left: Value, right: Value) -> Value:
    """Return the quotient. Integer division truncates; a float divided by zero is infinite."""
    left, right = _operands(left, right)
    if pa.types.is_decimal(left.type):
        scale = min(left.type.scale + _MORE_DIGITS, _most_digits(left.type, right.type))
        digits = left.type.precision - left.type.scale + right.type.scale + scale
        kind = _decimal(left.type, right.type, digits, scale)
        return _exactly("divide", left, right, kind, lambda: _quotient(left, right, kind))
    return pc.divide(left, right) if pa.types.is_floating(left.type) else pc.divide_checked(left, right)


def modulo(left: Value, right: Value) -> Value:
    """Return the remainder of a division, with the sign of the dividend."""
    left, right = _operands(left, right)
    if pa.types.is_floating(left.type):
        return _fmod(left, right)
    if pa.types.is_decimal(left.type):
        one, other = left.type, right.type
        scale = max(one.scale, other.scale)
        digits = min(one.precision - one.scale, other.precision - other.scale) + scale
        kind = _decimal(one, other, digits, scale)
        return _exactly("modulo", left, right, kind, lambda: _remainder(left, right))
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def bits(name: str) -> Callable[[Value, Value], Value]:
    """Return the bitwise operation "and", "or" or "xor" on integers."""
    function = getattr(pc, f"bit_wise_{name}")
    return lambda left, right: function(*_integers(left, right))


def shift(name: str) -> Callable[[Value, Value], Value]:
    """Return the bit shift "left" or "right" of integers.

    The shift distance is taken modulo the bit width of the type: a 64-bit shift by 65 shifts by 1.
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
        # Bits have no sign, so the common type need not hold all numbers of both types.
        return tuple(pc.cast(value, pa.uint64(), safe=False) for value in (left, right))
    left, right = _operands(left, right)
    if not pa.types.is_integer(left.type):
        raise ExpressionError(f"bits are those of integers, not of {left.type}")
    return left, right


def _operands(left: Value, right: Value) -> tuple[Any, Any]:
    """Return two values converted to types that Arrow can calculate with."""
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
    """Return dates plus or minus a number of days."""
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


def _most_digits(left: pa.DataType, right: pa.DataType) -> int:
    return _WIDE if pa.types.is_decimal256(left) or pa.types.is_decimal256(right) else _NARROW


def _exactly(name: str, left: Any, right: Any, kind: pa.DataType, compute: Callable[[], Any]) -> Value:
    """Return the result of `compute` as `kind`, or compute it with Python's integers if Arrow cannot.

    Arrow rejects operands whose types allow a result of more than 76 digits, whatever their values are.
    """
    try:
        result = compute()
    except ValueError:  # pyarrow's for a type of more than 76 digits; pa.ArrowInvalid is one, too
        return _with_integers(name, left, right, kind)
    return cast(result, kind)


def _add_or_multiply(name: str, left: Any, right: Any) -> Any:
    if name == "multiply":
        # The product has one digit more than its factors in total.
        pair = [_widened(value, (_WIDE - 1) // 2) for value in (left, right)]
    else:
        # The sum has one digit more than its operands.
        wide = pa.decimal256(_WIDE - 1, max(left.type.scale, right.type.scale))
        pair = [pc.cast(value, wide) for value in (left, right)]
    return getattr(pc, f"{name}_checked")(*pair)


def _widened(value: Any, most: int = _WIDE) -> Any:
    """Return decimals as decimal256 with at most `most` digits."""
    kind = value.type
    return pc.cast(value, pa.decimal256(min(kind.precision, most), kind.scale))


def _quotient(left: Any, right: Any, kind: pa.DataType) -> Value:
    """Return the quotient of decimals, truncated to the scale of `kind`."""
    one = left.type
    dividend = pc.cast(left, pa.decimal256(one.precision + _MORE_DIGITS, one.scale + _MORE_DIGITS))
    result = pc.divide_checked(dividend, _widened(right))
    return pc.cast(result, options=pc.CastOptions(kind, allow_decimal_truncate=True))


def _remainder(left: Any, right: Any) -> Any:
    # The product has one digit more than its factors in total, and the difference has one more again.
    digits = min(_NARROW, _WIDE - 2 - right.type.precision)
    whole = _quotient(left, right, pa.decimal256(digits, 0))
    return pc.subtract_checked(_widened(left), pc.multiply_checked(whole, _widened(right)))


def _truncated(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_ON_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _truncated,
    "modulo": lambda dividend, divisor: dividend - divisor * _truncated(dividend, divisor),
}


def _with_integers(name: str, left: Any, right: Any, kind: pa.DataType) -> Value:
    """Return the result of decimal arithmetic with any number of digits, as decimals of type `kind`.

    Raises:
        ExpressionError: a result has too many digits, or a divisor is zero.
    """
    scales = [left.type.scale, right.type.scale]
    if name == "divide":
        scales[0] = kind.scale + right.type.scale
    elif name != "multiply":
        scales = [max(scales)] * 2
    rows = max([len(value) for value in (left, right) if not isinstance(value, pa.Scalar)], default=1)
    columns = [as_column(value, rows).to_pylist() for value in (left, right)]
    results: list[Decimal | None] = []
    for pair in zip(*columns, strict=True):
        if None in pair:
            results.append(None)
            continue
        integers = [int(each.scaleb(scale, _ANY_DIGITS)) for each, scale in zip(pair, scales, strict=True)]
        try:
            result = _ON_INTEGERS[name](*integers)
        except ZeroDivisionError:
            raise ExpressionError(f"{name} of {left.type} and {right.type}: divide by zero") from None
        if abs(result) >= 10**kind.precision:
            raise ExpressionError(
                f"{name} of {left.type} and {right.type} overflows {kind}: cast the operands to fewer digits"
            )
        results.append(Decimal(result).scaleb(-kind.scale, _ANY_DIGITS))
    array = pa.array(results, kind)
    return array[0] if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar) else array


def _fmod(left: Any, right: Any) -> Value:
    with np.errstate(invalid="ignore"):
        rest = np.fmod(_floats(left), _floats(right))
    null = pc.or_(pc.is_null(left), pc.is_null(right))
    # The remainder of two constants is a constant, which applies to every row.
    value = pa.array(rest, left.type) if np.ndim(rest) else pa.scalar(rest.item(), left.type)
    return pc.if_else(null, pa.scalar(None, left.type), value)


def _floats(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return np.nan if value.as_py() is None else value.as_py()
    return value.to_numpy()
