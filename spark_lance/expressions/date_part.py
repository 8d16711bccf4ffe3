"""Parts of dates and times: date_part('year', t) and extract(year from t).

Every part is an int32, but nanoseconds are an int64 and `epoch`, the seconds since 1970, a double. Seconds
have no fraction; milliseconds, microseconds and nanoseconds are those of the minute. Weeks are ISO's; dow
counts days from Sunday, 0; isodow from Monday, 1. Times with a zone give the parts in their zone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import Value, cast, is_typed

__all__ = ["date_part"]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


def date_part(unit: Value, value: Value) -> Value:
    """Return a part of dates, times or timestamps, by its name.

    Raises:
        ExpressionError: there is no such part, or values have none.
    """
    name = str(unit.as_py() if isinstance(unit, pa.Scalar) else unit).lower().strip("'\"")
    part = _NAMES.get(name)
    if part is None:
        raise ExpressionError(f"{name!r} is not a part of a time; use one of {', '.join(_PARTS)}, epoch")
    if not is_typed(value):
        value = cast(value, pa.timestamp("ns"))
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        value = cast(value, pa.timestamp("us"))
    if part == "epoch":
        return _epoch(value)
    kind = value.type
    if pa.types.is_date(kind):
        value = pc.cast(value, pa.timestamp("us"))
    elif not (pa.types.is_timestamp(kind) or (pa.types.is_time(kind) and part in _OF_A_DAY)):
        raise ExpressionError(f"{kind} has no part {name!r}")
    result = _PARTS[part](value)
    return pc.cast(result, pa.int64() if part == "nanosecond" else pa.int32())


def _epoch(value: Any) -> Value:
    kind = value.type
    if pa.types.is_date32(kind):
        return pc.cast(pc.multiply(pc.cast(pc.cast(value, pa.int32()), pa.int64()), _DAY), pa.float64())
    if pa.types.is_date64(kind):
        value, kind = pc.cast(value, pa.timestamp("ms")), pa.timestamp("ms")
    if not (pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)):
        raise ExpressionError(f"{kind} has no part 'epoch'")
    stored = pc.cast(value, pa.int32() if pa.types.is_time32(kind) else pa.int64())
    numbers = pc.cast(stored, pa.float64(), safe=False)
    return pc.divide(numbers, pa.scalar(float(_PER_SECOND[kind.unit])))


def _of_the_minute(digits: int) -> Callable[[Any], Value]:
    def compute(value: Any) -> Value:
        result = pc.multiply(pc.second(value), 10**digits)
        for function, missing in ((pc.millisecond, 3), (pc.microsecond, 6), (pc.nanosecond, 9)):
            if missing <= digits:
                result = pc.add(result, pc.multiply(function(value), 10 ** (digits - missing)))
        return result

    return compute


_PARTS: dict[str, Callable[[Any], Value]] = {
    "year": pc.year,
    "isoyear": pc.iso_year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "doy": pc.day_of_year,
    "dow": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=7),
    "isodow": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=1),
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "millisecond": _of_the_minute(3),
    "microsecond": _of_the_minute(6),
    "nanosecond": _of_the_minute(9),
}
_OF_A_DAY = frozenset({"hour", "minute", "second", "millisecond", "microsecond", "nanosecond"})
_SHORT = {
    "year": "y yr yrs",
    "quarter": "qtr",
    "month": "mon mons",
    "week": "w",
    "day": "d",
    "hour": "h hr hrs",
    "minute": "m min mins",
    "second": "s sec secs",
    "millisecond": "ms msec msecs",
    "microsecond": "us usec usecs",
    "nanosecond": "ns nsec nsecs",
}
_PLURAL = {f"{name}s": name for name in _SHORT}
_NAMES = (
    {name: name for name in (*_PARTS, "epoch")}
    | _PLURAL
    | {short: name for name, shorts in _SHORT.items() for short in shorts.split()}
)
