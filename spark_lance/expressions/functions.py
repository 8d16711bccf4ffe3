"""The functions and operators of expressions. `FUNCTIONS` maps each name to its implementation.

Every function takes and returns values of values.py. A null argument gives a null result, except in functions
where SQL says otherwise: `and`, `or`, `is_null`, `coalesce`, `case`, `is_same`, `concat`.

Regular expressions: RE2 does the search. Its syntax is that of Rust's regular expressions, with rare
exceptions. Flags are letters such as "i" (ignore case), "s" and "m".

Parts of dates and times: date_part('year', t) and extract(year from t).

    nanosecond          int64
    epoch               seconds since 1970, as a double
    all others          int32
    second              without a fraction
    millisecond, microsecond, nanosecond    since the start of the minute
    week                ISO week
    dow                 days since Sunday: Sunday is 0
    isodow              Monday is 1

The parts of a timestamp with a time zone are in that zone.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import ExpressionError
from spark_lance.expressions.arithmetic import arithmetic, bits, divide, modulo, number, shift
from spark_lance.expressions.comparisons import equal, extreme, is_in, less, unsigned_nan
from spark_lance.expressions.geo_functions import GEO_FUNCTIONS, as_geometry
from spark_lance.expressions.json_functions import CANDIDATE, JSON_FUNCTIONS, json_candidate
from spark_lance.expressions.values import (
    Value,
    as_column,
    cast,
    common,
    is_list,
    is_typed,
    plain,
    typed,
)

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


def date_part(unit: Value, value: Value) -> Value:
    """Return a part of dates, times or timestamps.

    Args:
        unit: the name of the part, such as "year".
        value: dates, times, timestamps or text. Text is parsed as timestamps.

    Raises:
        ExpressionError: the part does not exist, or the type of the values does not have it.
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
    units = pc.cast(value, pa.int32() if pa.types.is_time32(kind) else pa.int64())
    numbers = pc.cast(units, pa.float64(), safe=False)
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
_PLURAL = {f"{title}s": title for title in _SHORT}
_NAMES = (
    {title: title for title in (*_PARTS, "epoch")}
    | _PLURAL
    | {short: title for title, shorts in _SHORT.items() for short in shorts.split()}
)


def make_list(*values: Value) -> Value:
    """Return a list per row with one element per value; a Python list if all values are literals."""
    if not any(is_typed(value) for value in values):
        return list(values)
    first: Value = None
    for value in (typed(value) for value in values if value is not None):
        first = value if first is None else common(first, value)[0]
    same = [common(first, value if value is None else typed(value))[1] for value in values]
    rows = max([len(value) for value in same if not isinstance(value, pa.Scalar)], default=1)
    flat = [one_array(as_column(value, rows)) for value in same]
    # Two adjacent elements of a row are `rows` positions apart.
    order = np.arange(rows)[:, None] + rows * np.arange(len(flat))[None, :]
    offsets = np.arange(rows + 1, dtype=np.int32) * len(flat)
    items = pa.concat_arrays(flat).take(pa.array(order.reshape(-1)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


def element(value: Value, position: Value) -> Value:
    """Return a list element by 1-based position (null if it does not exist), or a struct field by name."""
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
    """Return whether each list contains a constant. Null elements are ignored."""
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
    """Return whether each list contains at least one of several constants."""
    return _each(value, items, pc.or_, False)


def has_all(value: Value, items: Value) -> Value:
    """Return whether each list contains all of several constants."""
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
    """Return the number of elements of each list, nulls included."""
    return pc.cast(pc.list_value_length(_lists(value)), pa.uint64())


def half_floats(value: Value) -> Value:
    """Return lists of float32 as lists of float16 (pylance's function `_cast_list_f16`)."""
    value = typed(value)
    kind = value.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind)) or kind.value_type not in (pa.float32(), pa.float16()):
        raise ExpressionError(f"_cast_list_f16 takes lists of float32 or float16, not {kind}")
    item = kind.value_field.with_type(pa.float16())
    return pc.cast(value, pa.list_(item, kind.list_size) if fixed else pa.list_(item))


def _lists(value: Value) -> Any:
    """Return a list column as one array."""
    value = typed(value)
    kind = value.type
    if not is_list(kind):
        raise ExpressionError(f"functions of lists need a column of lists, not of {kind}: compare it with =")
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], kind)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.ChunkedArray):
        value = value.chunk(0)
    if pa.types.is_fixed_size_list(kind):
        value = pc.cast(value, pa.list_(kind.value_field))
    return value


# An escaped character, a character class, or the beginning of a capturing group.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?P?<\w+>", re.DOTALL)


def regexp_like(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Return whether each text contains a match of a pattern."""
    if pattern is None:
        return pc.if_else(pc.is_valid(text), pa.scalar(None, pa.bool_()), None)
    return pc.match_substring_regex(text, _flagged(pattern, flags))


def regexp_match(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Return the groups of each text's first match as a list; null without a match.

    A pattern without groups gives a list with the whole match.
    """
    if pattern is None:
        return pa.scalar(None, pa.list_(pa.string()))
    names: list[str] = []

    def named(match: re.Match[str]) -> str:
        if not match.group().startswith("("):
            return match.group()
        names.append(f"g{len(names)}")
        return f"(?P<{names[-1]}>"

    groups = _GROUP.sub(named, pattern)
    if not names:
        names, groups = ["g0"], f"(?P<g0>{pattern})"
    if isinstance(text, pa.Scalar):
        text = pa.array([text.as_py()], text.type)
    text = one_array(text)
    groups_of_rows = pc.extract_regex(text, _flagged(groups, flags))
    return _groups(groups_of_rows, len(names))


def _groups(matches: pa.StructArray, count: int) -> pa.Array:
    """Return the groups of matches as lists."""
    lists = make_list(*(pc.cast(pc.struct_field(matches, i), pa.string()) for i in range(count)))
    return pc.if_else(matches.is_valid(), lists, pa.scalar(None, lists.type))


def _flagged(pattern: str, flags: str | None) -> str:
    if flags and not re.fullmatch("[imsU]+", flags):
        raise ExpressionError(f"the flags of a regular expression are some of i, m, s and U, not {flags!r}")
    return f"(?{flags}){pattern}" if flags else pattern


_MANY = 1 << 30


@dataclass(frozen=True)
class Function:
    """The implementation of a function, and its number of arguments.

    Attributes:
        compute: takes the argument values and returns the result.
        least, most: the minimum and maximum number of arguments.
        takes_geometries: whether `bind` passes columns with the names of their extension types.
    """

    compute: Callable[..., Value]
    least: int
    most: int
    takes_geometries: bool = False


def _not(value: Value) -> Value:
    return pc.invert(_boolean(value))


def _boolean(value: Value) -> Value:
    value = typed(value)
    if pa.types.is_null(value.type):
        return cast(value, pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise ExpressionError(f"a condition is true or false, not of type {value.type}")
    return value


def _and(*values: Value) -> Value:
    result = _boolean(values[0])
    for value in values[1:]:
        result = pc.and_kleene(result, _boolean(value))
    return result


def _or(*values: Value) -> Value:
    result = _boolean(values[0])
    for value in values[1:]:
        result = pc.or_kleene(result, _boolean(value))
    return result


def _is_null(value: Value) -> Value:
    return pc.is_null(typed(value))


def _is_same(left: Value, right: Value) -> Value:
    """Return whether two values are equal. Two nulls are equal, and the result is never null."""
    both_null = pc.and_(_is_null(left), _is_null(right))
    return pc.or_(both_null, pc.fill_null(equal(left, right), False))


def _negate(value: Value) -> Value:
    return -value if not is_typed(value) else pc.negate_checked(value)


def _case(*values: Value) -> Value:
    """Return the result of CASE from condition, value, condition, value, ..., and the ELSE value."""
    conditions = [pc.fill_null(_boolean(value), False) for value in values[:-1:2]]
    results = _same_type([*values[1:-1:2], values[-1]])
    out = results[-1]
    for condition, result in zip(reversed(conditions), reversed(results[:-1]), strict=True):
        out = pc.if_else(condition, result, out)
    return out


def _same_type(values: list[Value]) -> list[Any]:
    """Return values converted to one common type."""
    values = [number(value) for value in values]
    first: Value = None
    for value in values:
        first = common(first, value)[0] if first is not None or is_typed(value) else value
    return [typed(value) if first is None else common(first, value)[1] for value in values]


def _coalesce(*values: Value) -> Value:
    return pc.coalesce(*_same_type(list(values)))


def _null_if(left: Value, right: Value) -> Value:
    left, right = _same_type([left, right])
    return pc.if_else(pc.fill_null(equal(left, right), False), pa.scalar(None, left.type), left)


def _text(value: Value) -> Value:
    value = typed(value)
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return value
    return cast(value, pa.string())


def _joined(nulls: str) -> Callable[..., Value]:
    def compute(*values: Value) -> Value:
        texts = [_text(value) for value in values]
        kind = pa.large_string() if any(pa.types.is_large_string(t.type) for t in texts) else pa.string()
        parts = [pc.cast(text, kind) for text in texts]
        return pc.binary_join_element_wise(*parts, pa.scalar("", kind), null_handling=nulls)

    return compute


def _on_text(function: Callable[..., Value]) -> Callable[..., Value]:
    """Return a function of a text column and constant arguments."""

    def compute(value: Value, *constants: Value) -> Value:
        return function(_text(value), *(_constant(constant) for constant in constants))

    return compute


def _constant(value: Value) -> Any:
    """Return the Python value of an argument that must be a constant."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if is_typed(value):
        raise ExpressionError("this argument must be a constant")
    return value


def _like(ignore_case: bool) -> Callable[..., Value]:
    return _on_text(lambda text, pattern: pc.match_like(text, pattern, ignore_case=ignore_case))


def _substring(text: Value, start: int, count: int | None = None) -> Value:
    """Return `count` characters, or the rest of the text, from the 1-based `start`.

    With a start before the text, the positions before the text count towards `count`.
    """
    first = start - 1
    stop = None if count is None else max(0, first + count)
    return pc.utf8_slice_codeunits(text, max(0, first), stop)


def _trim(side: str) -> Callable[..., Value]:
    function = getattr(pc, f"utf8_{side}")
    return _on_text(lambda text, characters=" ": function(text, characters=characters))


def _length(value: Value) -> Value:
    """Return the number of characters of a text, or the number of bytes of a binary value."""
    value = typed(value)
    if pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type):
        return pc.cast(pc.binary_length(value), pa.int32())
    return pc.cast(pc.utf8_length(_text(value)), pa.int32())


def _float(function: Callable[[Any], Value]) -> Callable[[Value], Value]:
    return lambda value: function(cast(value, pa.float64()))


def _round(value: Value, digits: Value = 0) -> Value:
    return pc.round(typed(value), ndigits=_constant(digits), round_mode="half_towards_infinity")


def _is_nan(value: Value) -> Value:
    value = typed(value)
    return pc.is_nan(value if pa.types.is_floating(value.type) else cast(value, pa.float64()))


def _part(name: str) -> Callable[[Value], Value]:
    function = getattr(pc, name)
    return lambda value: pc.cast(function(_time(value)), pa.int32())


def _time(value: Value) -> Value:
    return cast(value, pa.timestamp("us")) if not is_typed(value) else value


def _date_trunc(unit: Value, value: Value) -> Value:
    return pc.floor_temporal(_time(value), unit=str(_constant(unit)).lower())


def _now() -> Value:
    return pa.scalar(datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None), pa.timestamp("us"))


def _today() -> Value:
    return pa.scalar(datetime.datetime.now(datetime.timezone.utc).date())


FUNCTIONS: dict[str, Function] = {
    "=": Function(equal, 2, 2),
    "!=": Function(lambda left, right: _not(equal(left, right)), 2, 2),
    "<": Function(less, 2, 2),
    "<=": Function(lambda left, right: _not(less(right, left)), 2, 2),
    ">": Function(lambda left, right: less(right, left), 2, 2),
    ">=": Function(lambda left, right: _not(less(left, right)), 2, 2),
    "is_same": Function(_is_same, 2, 2),
    "and": Function(_and, 1, _MANY),
    "or": Function(_or, 1, _MANY),
    "not": Function(_not, 1, 1),
    "is_null": Function(_is_null, 1, 1),
    "in": Function(is_in, 1, _MANY),
    "+": Function(arithmetic("add"), 2, 2),
    "-": Function(arithmetic("subtract"), 2, 2),
    "*": Function(arithmetic("multiply"), 2, 2),
    "/": Function(divide, 2, 2),
    "%": Function(modulo, 2, 2),
    "<<": Function(shift("left"), 2, 2),
    ">>": Function(shift("right"), 2, 2),
    "&": Function(bits("and"), 2, 2),
    "|": Function(bits("or"), 2, 2),
    "^": Function(bits("xor"), 2, 2),
    "~": Function(lambda value: pc.bit_wise_not(typed(value)), 1, 1),
    "negate": Function(_negate, 1, 1),
    "unsigned_nan": Function(unsigned_nan, 1, 1),
    "case": Function(_case, 3, _MANY),
    "coalesce": Function(_coalesce, 1, _MANY),
    "nullif": Function(_null_if, 2, 2),
    "greatest": Function(lambda *values: extreme(_same_type(list(values)), True), 1, _MANY),
    "least": Function(lambda *values: extreme(_same_type(list(values)), False), 1, _MANY),
    "like": Function(_like(False), 2, 2),
    "ilike": Function(_like(True), 2, 2),
    "regexp_like": Function(_on_text(regexp_like), 2, 3),
    "regexp_match": Function(_on_text(regexp_match), 2, 3),
    "starts_with": Function(_on_text(pc.starts_with), 2, 2),
    "ends_with": Function(_on_text(pc.ends_with), 2, 2),
    "contains": Function(_on_text(pc.match_substring), 2, 2),
    "length": Function(_length, 1, 1),
    "octet_length": Function(lambda value: pc.cast(pc.binary_length(typed(value)), pa.int32()), 1, 1),
    "lower": Function(_on_text(pc.utf8_lower), 1, 1),
    "upper": Function(_on_text(pc.utf8_upper), 1, 1),
    "trim": Function(_trim("trim"), 1, 2),
    "ltrim": Function(_trim("ltrim"), 1, 2),
    "rtrim": Function(_trim("rtrim"), 1, 2),
    "||": Function(_joined("emit_null"), 2, 2),
    "concat": Function(_joined("replace"), 1, _MANY),
    "substring": Function(_on_text(_substring), 2, 3),
    "replace": Function(_on_text(pc.replace_substring), 3, 3),
    "abs": Function(lambda value: pc.abs_checked(typed(value)), 1, 1),
    "sign": Function(lambda value: pc.sign(typed(value)), 1, 1),
    "sqrt": Function(_float(pc.sqrt), 1, 1),
    "exp": Function(_float(pc.exp), 1, 1),
    "ln": Function(_float(pc.ln), 1, 1),
    "power": Function(lambda x, y: pc.power(cast(x, pa.float64()), cast(y, pa.float64())), 2, 2),
    "round": Function(_round, 1, 2),
    "floor": Function(lambda value: pc.floor(typed(value)), 1, 1),
    "ceil": Function(lambda value: pc.ceil(typed(value)), 1, 1),
    "isnan": Function(_is_nan, 1, 1),
    "year": Function(_part("year"), 1, 1),
    "month": Function(_part("month"), 1, 1),
    "day": Function(_part("day"), 1, 1),
    "hour": Function(_part("hour"), 1, 1),
    "minute": Function(_part("minute"), 1, 1),
    "second": Function(_part("second"), 1, 1),
    "date_part": Function(date_part, 2, 2),
    "date_trunc": Function(_date_trunc, 2, 2),
    "now": Function(_now, 0, 0),
    "current_date": Function(_today, 0, 0),
    "array_has": Function(has, 2, 2),
    "array_has_any": Function(has_any, 2, 2),
    "array_has_all": Function(has_all, 2, 2),
    "array_length": Function(length, 1, 1),
    "element": Function(element, 2, 2),
    "array": Function(make_list, 0, _MANY),
    "_cast_list_f16": Function(half_floats, 1, 1),
    **{name: Function(compute, count, count) for name, (compute, count) in JSON_FUNCTIONS.items()},
    CANDIDATE: Function(json_candidate, 4, _MANY),
    "geometry": Function(as_geometry, 2, 2),
    **{
        name: Function(compute, count, count, takes_geometries=True)
        for name, (compute, count) in GEO_FUNCTIONS.items()
    },
}
