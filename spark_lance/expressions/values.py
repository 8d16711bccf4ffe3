"""The values that expressions compute with: columns, typed scalars, and literals that have no type yet.

A literal that is compared with a column takes the column's type if it fits. Otherwise both become a type that
can represent both exactly. For comparisons of floats, see
comparisons.py.

Times are parsed in the same way on every Python, although 3.10 supports fewer ISO 8601 formats.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import to_scalar
from spark_lance.arrow.texts import is_text
from spark_lance.errors import ExpressionError

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?(?:([Zz])|([+-]\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)


def parse_moment(text: str) -> datetime.datetime:
    """Parse a time such as "2024-01-02 03:04:05.678Z"; digits after microseconds are truncated.

    Args:
        text: a date, optionally with a time of day (at least hours) and an offset from UTC.

    Raises:
        ValueError: the text has another format, or the day or time does not exist.
    """
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return datetime.datetime.fromisoformat(text.strip())
    day, hour, minute, second, fraction, utc, offset_hour, offset_minute = match.groups()
    plain = f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{(fraction or '').ljust(6, '0')[:6]}"
    if utc:
        return datetime.datetime.fromisoformat(f"{plain}+00:00")
    offset = f"{offset_hour}:{offset_minute or '00'}" if offset_hour else ""
    return datetime.datetime.fromisoformat(plain + offset)


# Digits of the longest integers, by bits.
INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
# A ChunkedArray, Array or Scalar; or a literal: None, bool, int, float, str, bytes, Decimal, date, datetime,
# or a list of literals.
Value = Any
# The classes of values with an Arrow type.
TYPED = (pa.ChunkedArray, pa.Array, pa.Scalar)


def is_typed(value: Value) -> bool:
    """Whether a value has an Arrow type, which literals do not have."""
    return isinstance(value, TYPED)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def as_column(value: Value, rows: int) -> pa.ChunkedArray:
    """Return a value as a column of `rows` rows; a constant is repeated."""
    if isinstance(value, pa.ChunkedArray):
        return value
    if isinstance(value, pa.Array):
        return pa.chunked_array([value])
    scalar = value if isinstance(value, pa.Scalar) else typed(value)
    if scalar.type == pa.null():
        return pa.chunked_array([pa.nulls(rows)])
    # pa.repeat fails for a nested value with a count of 0.
    return pa.chunked_array([pa.repeat(scalar, 1).take(pa.repeat(pa.scalar(0), rows))])


def plain(value: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionary, extension type or half floats, for which Arrow lacks functions."""
    if isinstance(value.type, pa.BaseExtensionType):
        storage = [chunk.storage for chunk in value.chunks]
        value = pa.chunked_array(storage, value.type.storage_type)
    if pa.types.is_dictionary(value.type):
        value = pc.cast(value, value.type.value_type)
    if pa.types.is_float16(value.type):
        value = pc.cast(value, pa.float32())
    return value


def typed(value: Value) -> pa.Scalar | pa.ChunkedArray | pa.Array:
    """Return a literal as a scalar of its natural type: int64, double, string, ..."""
    if is_typed(value):
        return value
    if isinstance(value, list):
        return _list(value)
    if isinstance(value, Decimal):
        return pa.scalar(float(value), pa.float64())
    if isinstance(value, bool) or not isinstance(value, int):
        return pa.scalar(value)
    if -(2**63) <= value < 2**63:
        return pa.scalar(value, pa.int64())
    if value < 2**64:
        return pa.scalar(value, pa.uint64())
    return pa.scalar(Decimal(value))


def _list(values: list[Any]) -> pa.Scalar:
    """Return a list of literals as one value; its elements take the type that holds all of them."""
    kind: pa.DataType = pa.null()
    for value in values:
        kind = _common_type(kind, typed(value).type) if value is not None else kind
    return pa.scalar([_in_python(value) for value in values], pa.list_(kind))


def _in_python(value: Any) -> Any:
    """Return a literal as pyarrow takes it inside a list."""
    if isinstance(value, list):
        return [_in_python(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _double(value: Any) -> Any:
    """Return decimals in double precision, the nearest ones if their digits fit.

    Arrow multiplies by a tenth, a hundredth, ..., which are not exact; these divide by ten, a hundred, ....
    """
    if isinstance(value, pa.Scalar):
        return pa.scalar(None if value.as_py() is None else float(value.as_py()), pa.float64())
    if isinstance(value, pa.ChunkedArray):
        return pa.chunked_array([_double(chunk) for chunk in value.chunks], pa.float64())
    kind = value.type
    make = pa.decimal256 if pa.types.is_decimal256(kind) else pa.decimal128
    digits = pc.cast(value.view(make(kind.precision, 0)), pa.float64())
    return pc.divide(digits, 10.0**kind.scale)


def cast(value: Value, target: pa.DataType) -> pa.Scalar | pa.ChunkedArray | pa.Array:
    """Cast a value to another type; fractions are truncated.

    Raises:
        ExpressionError: a value does not fit the type.
    """
    value = typed(value)
    options = pc.CastOptions(
        target, allow_float_truncate=True, allow_decimal_truncate=True, allow_time_truncate=True
    )
    try:
        if pa.types.is_float16(target):
            # Arrow casts to half floats from floats only.
            return pc.cast(pc.cast(value, pa.float32()), target)
        if pa.types.is_decimal(value.type) and pa.types.is_floating(target):
            value = _double(value)
        if pa.types.is_floating(value.type) and pa.types.is_integer(target):
            value = pc.trunc(value)
            options = pc.CastOptions(target)
        if (
            pa.types.is_decimal(value.type)
            and pa.types.is_decimal(target)
            and value.type.scale > target.scale
        ):
            value = pc.round(value, ndigits=target.scale, round_mode="half_towards_infinity")
        if pa.types.is_integer(value.type) and pa.types.is_decimal(target):
            # Arrow requires digits for the full range of the type, even if the values need fewer.
            value = pc.cast(value, pa.decimal128(INTEGER_DIGITS[value.type.bit_width], 0))
        return pc.cast(value, options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ExpressionError(f"a value of type {value.type} cannot become {target}: {error}") from error


def try_cast(value: Value, target: pa.DataType) -> pa.Scalar | pa.ChunkedArray | pa.Array:
    """Cast a value to another type; a value that does not fit becomes null.

    Raises:
        ExpressionError: there is no cast between the two types.
    """
    value = typed(value)
    if isinstance(value, pa.Scalar):
        return as_column(try_cast(pa.repeat(value, 1), target), 1).chunk(0)[0]
    try:
        return cast(value, target)
    except ExpressionError:
        cast(pa.array([], value.type), target)
    parts = value.chunks if isinstance(value, pa.ChunkedArray) else [value]
    results = []
    for part in parts:
        encoded = part.dictionary_encode()
        distinct = _cast_halves(encoded.dictionary, target)
        results.append(distinct.take(encoded.indices))
    return pa.chunked_array(results, target)


def _cast_halves(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast distinct values; those that fail are found by halving."""
    try:
        return cast(values, target)
    except ExpressionError:
        if len(values) == 1:
            return pa.nulls(1, target)
    half = len(values) // 2
    return pa.concat_arrays(
        [_cast_halves(values.slice(0, half), target), _cast_halves(values.slice(half), target)]
    )


def common(left: Value, right: Value) -> tuple[Value, Value]:
    """Return two values in a common type, for a comparison or for arithmetic.

    Raises:
        ExpressionError: the types have no common type.
    """
    if not is_typed(left) and not is_typed(right):
        return _literals([left, right])
    if not is_typed(left):
        right, left = common(right, left)
        return left, right
    if not is_typed(right):
        return _with_literal(left, right)
    if left.type == right.type:
        return left, right
    kind = _common_type(left.type, right.type)
    return (_cast_value(left, kind), _cast_value(right, kind))


def _literals(values: Sequence[Any]) -> tuple[Value, Value]:
    left, right = values
    if left is None or right is None:
        other = typed(left if right is None else right)
        return tuple(pa.scalar(None, other.type) if v is None else other for v in values)
    return common(typed(left), typed(right))


def _with_literal(column: Any, literal: Any) -> tuple[Value, Value]:
    """Return a typed value and a literal in one type: the column's if the literal fits it."""
    kind: pa.DataType = column.type
    if literal is None:
        return column, pa.scalar(None, kind)
    if pa.types.is_null(kind):
        other = typed(literal)
        return pa.scalar(None, other.type), other
    if isinstance(literal, list):
        return _with_list(column, literal)
    number = isinstance(literal, int | float | Decimal) and not isinstance(literal, bool)
    if number and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        return _with_number(column, literal)
    if number and pa.types.is_floating(kind):
        return _with_float(column, float(literal))
    if isinstance(literal, str) and pa.types.is_temporal(kind):
        return column, _instant(literal, kind)
    if isinstance(literal, datetime.date) and pa.types.is_timestamp(kind):
        return column, _moment(literal, kind)
    if isinstance(literal, datetime.datetime) and pa.types.is_date(kind):
        return common(_cast_value(column, pa.timestamp("us")), pa.scalar(literal, pa.timestamp("us")))
    # Not large_binary: JSON columns have that type, and their bytes are no text.
    if isinstance(literal, str) and pa.types.is_binary(kind):
        literal = literal.encode()
    fits = (
        (isinstance(literal, bool) and pa.types.is_boolean(kind))
        or (isinstance(literal, str) and is_text(kind))
        or (isinstance(literal, bytes) and _is_bytes(kind))
        or (isinstance(literal, datetime.date) and pa.types.is_date(kind))
    )
    if not fits:
        raise ExpressionError(
            f"a value of type {kind} cannot be compared or combined with {literal!r}{_remedy(kind, literal)}"
        )
    if pa.types.is_fixed_size_binary(kind):
        return pc.cast(column, pa.binary()), pa.scalar(literal, pa.binary())
    return column, pa.scalar(literal, kind)


def _remedy(kind: pa.DataType, literal: Any) -> str:
    """Return what to write instead of a literal that does not fit a column."""
    if pa.types.is_struct(kind):
        return f": compare one of its fields, {', '.join(kind.field(i).name for i in range(kind.num_fields))}"
    if is_text(kind) and isinstance(literal, int | float) and not isinstance(literal, bool):
        return f": write a text in quotes, '{literal}'"
    if isinstance(literal, str) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return ": write a number without quotes"
    if pa.types.is_fixed_size_list(kind):
        return ": search vectors by nearest={'column': ..., 'q': [...]}"
    if is_list(kind):
        return ": write array_has(column, value) to find a value in a list"
    return ": write a value of that type, or use cast()"


def _with_list(column: Any, literal: list[Any]) -> tuple[Value, Value]:
    """Return lists and a constant list, whose elements take the type of the lists'."""
    kind: pa.DataType = column.type
    if not is_list(kind):
        raise ExpressionError(f"a value of type {kind} cannot be compared or combined with {literal!r}")
    own = typed(literal)
    try:
        return column, pa.scalar(_in_python(literal), pa.list_(kind.value_type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        # Its elements do not fit: they are compared in a type that holds both.
        wide = pa.list_(_common_type(kind.value_type, own.type.value_type))
        return pc.cast(column, wide), pc.cast(own, wide)


def _with_number(column: Any, literal: Any) -> tuple[Value, Value]:
    """Return an integer or decimal column and a number, exactly."""
    if isinstance(literal, float) and (literal != literal or literal in (float("inf"), float("-inf"))):
        return _cast_value(column, pa.float64()), pa.scalar(literal)
    exact = Decimal(literal)
    kind: pa.DataType = column.type
    if pa.types.is_integer(kind) and exact == exact.to_integral_value():
        low, high = integer_range(kind)
        if low <= exact <= high:
            return column, to_scalar(int(exact), kind)
    if pa.types.is_integer(kind) and abs(exact) < 10**18:
        # Common to a fraction and any 64-bit integer without loss.
        scale = max(0, -int(exact.as_tuple().exponent))
        if scale > 18:
            return _cast_value(column, pa.float64()), pa.scalar(float(exact))
        wide = pa.decimal128(38, scale)
        return pc.cast(column, wide), pa.scalar(exact, wide)
    if pa.types.is_integer(kind):
        wide = pa.decimal256(76, 0)
        return pc.cast(column, wide), pa.scalar(exact.to_integral_value(), wide)
    return column, pa.scalar(exact)


def _with_float(column: Any, literal: float) -> tuple[Value, Value]:
    """Return a float column and a number, which takes the column's precision."""
    return column, pc.cast(pa.scalar(literal, pa.float64()), column.type, safe=False)


def _instant(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a date, time or timestamp from its text; a time without zone is in UTC."""
    try:
        if pa.types.is_timestamp(kind):
            return _moment(parse_moment(text), kind)
        return pc.cast(pa.scalar(text.strip()), kind)
    except (ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ExpressionError(f"{text!r} is not a {kind}: {error}") from error


def _moment(value: datetime.date, kind: pa.TimestampType) -> pa.Scalar:
    """Return a date or time of day and date as a timestamp of a type."""
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    unit = "us" if kind.unit in ("s", "ms") and value.microsecond else kind.unit
    return pc.cast(pa.scalar(value, pa.timestamp("us")), pa.timestamp(unit, kind.tz))


def _common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return a type that can represent the values of both types."""
    if left == right:
        return left
    for one, other in ((left, right), (right, left)):
        if pa.types.is_null(one):
            return other
        if pa.types.is_floating(one) and (pa.types.is_integer(other) or pa.types.is_decimal(other)):
            return one
        if pa.types.is_floating(one) and pa.types.is_floating(other):
            return max(one, other, key=lambda kind: int(kind.bit_width))
        if is_list(one) and is_list(other):
            return pa.list_(_common_type(one.value_type, other.value_type))
        if pa.types.is_decimal(one) and pa.types.is_integer(other):
            return _common_decimal(one, pa.decimal128(INTEGER_DIGITS[other.bit_width], 0))
        if pa.types.is_timestamp(one) and pa.types.is_date(other):
            return one
        if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
            unit = max(one.unit, other.unit, key=("s", "ms", "us", "ns").index)
            return pa.timestamp(unit, one.tz or other.tz)
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return _common_integer(left, right)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return _common_decimal(left, right)
    if is_text(left) and is_text(right):
        return pa.large_string()
    if _is_bytes(left) and _is_bytes(right):
        return pa.large_binary()
    if pa.types.is_date(left) and pa.types.is_date(right):
        return pa.date64()
    raise ExpressionError(f"values of {left} and of {right} cannot be compared or combined: use cast()")


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_unsigned_integer(left) and pa.types.is_unsigned_integer(right):
        return max(left, right, key=lambda kind: int(kind.bit_width))
    low = min(integer_range(left)[0], integer_range(right)[0])
    high = max(integer_range(left)[1], integer_range(right)[1])
    return next((kind for kind in _INTEGERS if _holds(kind, low, high)), pa.decimal128(20, 0))


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    wide = digits > 38 or pa.types.is_decimal256(left) or pa.types.is_decimal256(right)
    return pa.decimal256(min(digits, 76), scale) if wide else pa.decimal128(digits, scale)


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64())


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, 2**bits - 1)


def _holds(kind: pa.DataType, low: int, high: int) -> bool:
    least, most = integer_range(kind)
    return least <= low and high <= most


def _cast_value(value: Any, kind: pa.DataType) -> Any:
    if value.type == kind:
        return value
    if pa.types.is_decimal(value.type):
        return cast(value, kind)
    return pc.cast(value, kind, safe=not pa.types.is_floating(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
