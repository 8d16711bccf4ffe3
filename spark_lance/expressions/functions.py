"""The functions and operators of expressions: one table, name -> how many arguments and how to compute them.

Every function takes and returns values of values.py. Null in gives null out, except where SQL says otherwise:
`and`, `or`, `is_null`, `coalesce`, `case`, `is_same`, `concat`.

Regular expressions over text.

RE2 searches, which has the syntax of Rust's regular expressions in all but rare corners. Flags are letters
such as "i" (any case), "s" and "m".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import ExpressionError
from spark_lance.expressions.comparisons import equal, extreme, is_in, less, unsigned_nan
from spark_lance.expressions.date_part import date_part
from spark_lance.expressions.geo_functions import GEO_FUNCTIONS, as_geometry
from spark_lance.expressions.json_candidates import CANDIDATE, json_candidate
from spark_lance.expressions.json_functions import JSON_FUNCTIONS
from spark_lance.expressions.list_functions import element, has, has_all, has_any, length, make_list
from spark_lance.expressions.numbers import arithmetic, bits, divide, modulo, number, shift
from spark_lance.expressions.values import Value, cast, common, is_typed, typed

__all__ = [
    "FUNCTIONS",
    "Function",
    "regexp_like",
    "regexp_match",
]

# An escaped character, a class of characters, or the beginning of a group.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?P?<\w+>", re.DOTALL)


def regexp_like(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Whether a pattern is found in texts."""
    if pattern is None:
        return pc.if_else(pc.is_valid(text), pa.scalar(None, pa.bool_()), None)
    return pc.match_substring_regex(text, _flagged(pattern, flags))


def regexp_match(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Return the groups of the first match, or the whole match if it has none; null without a match."""
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
    """How many arguments a function takes, and what it computes.

    Attributes:
        compute: from values to a value.
        least, most: numbers of arguments.
        takes_geometries: whether columns come with the names of their extension types, see `bind`.
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
    """Equality that takes two nulls for equal and never answers null."""
    both_null = pc.and_(_is_null(left), _is_null(right))
    return pc.or_(both_null, pc.fill_null(equal(left, right), False))


def _negate(value: Value) -> Value:
    return -value if not is_typed(value) else pc.negate_checked(value)


def _case(*values: Value) -> Value:
    """condition, value, condition, value, ..., and the value for all other rows."""
    conditions = [pc.fill_null(_boolean(value), False) for value in values[:-1:2]]
    results = _same_type([*values[1:-1:2], values[-1]])
    out = results[-1]
    for condition, result in zip(reversed(conditions), reversed(results[:-1]), strict=True):
        out = pc.if_else(condition, result, out)
    return out


def _same_type(values: list[Value]) -> list[Any]:
    """Return values in one type."""
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
    """Return the Python value of an argument that may not differ from row to row."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if is_typed(value):
        raise ExpressionError("this argument must be a constant")
    return value


def _like(ignore_case: bool) -> Callable[..., Value]:
    return _on_text(lambda text, pattern: pc.match_like(text, pattern, ignore_case=ignore_case))


def _substring(text: Value, start: int, count: int | None = None) -> Value:
    """Characters from the 1-based `start`; a start before the text uses up some of `count`."""
    first = start - 1
    stop = None if count is None else max(0, first + count)
    return pc.utf8_slice_codeunits(text, max(0, first), stop)


def _trim(side: str) -> Callable[..., Value]:
    function = getattr(pc, f"utf8_{side}")
    return _on_text(lambda text, characters=" ": function(text, characters=characters))


def _length(value: Value) -> Value:
    """Characters of a text, or bytes."""
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
    **{name: Function(compute, count, count) for name, (compute, count) in JSON_FUNCTIONS.items()},
    CANDIDATE: Function(json_candidate, 4, _MANY),
    "geometry": Function(as_geometry, 2, 2),
    **{
        name: Function(compute, count, count, takes_geometries=True)
        for name, (compute, count) in GEO_FUNCTIONS.items()
    },
}
