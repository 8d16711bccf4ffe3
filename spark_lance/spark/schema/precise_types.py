"""Spark types whose values an Arrow type holds at a finer precision: TIME(p) and day-time intervals.

Lance stores TIME in nanoseconds and intervals in microseconds. The declared type is kept in the metadata of
the field, at any depth of a column; other engines ignore it. TIME(6) and INTERVAL DAY TO SECOND need none:

    spark.precise-type = "time(3)" | "interval day" | "interval hour to minute"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.spark.compat import TimeType

__all__ = [
    "PRECISE_TYPE",
    "check_widened",
    "is_widening",
    "plan_precision",
    "precise_metadata",
    "precise_type",
]

PRECISE_TYPE = "spark.precise-type"
_TIME = re.compile(r"time\(([0-6])\)")
_FIELDS = ("day", "hour", "minute", "second")
_INTERVAL = re.compile(rf"interval ({'|'.join(_FIELDS)})(?: to ({'|'.join(_FIELDS)}))?")
# Last field of an interval -> its length in microseconds. Seconds have all digits.
_MICROSECONDS = {0: 86_400_000_000, 1: 3_600_000_000, 2: 60_000_000}
_TIME_DIGITS = 9
_SPARK_TIME_DIGITS = 6


def precise_metadata(kind: st.DataType) -> dict[str, str]:
    """Return the field metadata that keeps the precision of a type; nothing where the Arrow type says all."""
    if isinstance(kind, st.DayTimeIntervalType) and kind != st.DayTimeIntervalType():
        return {PRECISE_TYPE: kind.simpleString()}
    if TimeType is not None and isinstance(kind, TimeType) and kind != TimeType():
        return {PRECISE_TYPE: kind.simpleString()}
    return {}


def precise_type(arrow: pa.DataType, metadata: Mapping[str, str]) -> st.DataType | None:
    """Return the declared type of a field; None if it has no declaration, or one for another Arrow type."""
    text = metadata.get(PRECISE_TYPE, "")
    if arrow == pa.duration("us") and (match := _INTERVAL.fullmatch(text)):
        first, last = _FIELDS.index(match[1]), _FIELDS.index(match[2] or match[1])
        return st.DayTimeIntervalType(first, last) if first <= last else None
    if arrow == pa.time64("ns") and TimeType is not None and (match := _TIME.fullmatch(text)):
        return TimeType(int(match[1]))  # type: ignore[call-arg]
    return None


def check_widened(name: str, stored: Field, field: pa.Field) -> None:
    """Refuse a declared type for a column whose values may not fit it.

    Raises:
        SchemaError: the new type has fewer digits, or a larger last field.
    """
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    kind = precise_type(field.type, metadata)
    if kind is None or stored.kind != "leaf" or stored.arrow_type() != field.type:
        return
    old = precise_type(field.type, stored.metadata)
    if _unit(kind) > (1 if old is None else _unit(old)):
        text = kind.simpleString()
        raise SchemaError(
            f"column {name!r} may have values with more digits than {text}: add a column of that type, "
            f"set it to cast({name} AS {text}), and drop {name!r}"
        )


def plan_precision(arrow: pa.DataType, metadata: Mapping[str, str], column: str) -> _Check | None:
    """Return a function that refuses arrays with values of a finer precision than a field declares.

    Spark checks this itself for tables by name. Tables by path take any schema of it.
    """
    kind = precise_type(arrow, metadata)
    unit = 1 if kind is None else _unit(kind)
    if kind is None or unit == 1:
        return None
    name = kind.simpleString()

    def check(array: pa.Array) -> pa.Array:
        values = array.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(values, unit), unit), values)).as_py():
            raise SchemaError(
                f"column {column!r} is {name}, but a batch has values with more digits: "
                f"write cast(... AS {name})"
            )
        return array

    return check


def is_widening(actual: st.DataType, target: st.DataType) -> bool:
    """Return whether both types are times, or both day-time intervals, and the target has all values."""
    times = (st.DayTimeIntervalType,) if TimeType is None else (st.DayTimeIntervalType, TimeType)
    return isinstance(actual, times) and type(actual) is type(target) and _unit(target) <= _unit(actual)


_Check = Callable[[pa.Array], pa.Array]


def _unit(kind: st.DataType) -> int:
    """Return the distance between two values of a type, in units of its Arrow type."""
    if isinstance(kind, st.DayTimeIntervalType):
        return _MICROSECONDS.get(kind.endField, 1)
    if TimeType is not None and isinstance(kind, TimeType):
        digits = int(kind.precision)  # type: ignore[attr-defined]
        return 1 if digits == _SPARK_TIME_DIGITS else int(10 ** (_TIME_DIGITS - digits))
    return 1
