"""Functions on JSON documents: read the values at a path, or a member as a typed value.

    json_extract(j, path)               the value at a path, as JSON text; several values as a JSON array
    json_exists(j, path)                whether the path has a value
    json_array_length(j, path)          the number of items in the array at a path; 0 if it is not an array
    json_array_contains(j, path, v)     whether an item of the array equals v, as a string or as JSON text
    json_get(j, key)                    the member of an object, or the item of an array, as a document
    json_get_int, _float, _string, _bool(j, key)    its value; null if it is missing or JSON null

A value that does not fit the type is an error: a text that is not a number, a number beyond 64 bits, an
array. Numbers are rounded to integers, half away from 0. Booleans are 1 and 0. (Lance SQL, JSON functions.)

Paths are the subset of JSONPath that the reference supports:

    $ or nothing              the document
    .name  :name  ["name"]    a member of an object; names of letters, digits and _ need no quotes
    .*                        every member of an object
    [0]  [last]  [last-1]     items of an array; separate several with commas
    [*]                       every item of an array; a value that is not an array stays as it is

Spaces are allowed around steps and in brackets. Item ranges, filters and predicates are not supported.

`json_candidate(j, path, kind, test, values...)` finds documents whose value may pass a comparison of another
engine. Engines convert JSON to their own types in different ways. They differ in which texts are numbers, how
numbers are written, which values become null, and which are errors. The function excludes only documents that
fail in every engine, so the caller must apply its own comparison to the rest.

    kind      the engine compares           excluded documents
    any       nothing: a value must exist   documents without a value at the path
    text      text, by its bytes            other strings, and values that no engine writes as such a text
    int8, int16, int32, int64               other whole numbers in the range of the type
    double    numbers                       other numbers

`test` is =, <, <=, > or >=. With =, several values are allowed, and one of them has to match. JSON null
passes only text comparisons. Spark's `get_json_object` returns null for null members, but the text "null" for
null items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Bools
from spark_lance.errors import ExpressionError
from spark_lance.expressions.values import Value, as_column, is_typed
from spark_lance.jsonb.binary import decode_strings, to_json_texts
from spark_lance.jsonb.numbers import decode_numbers, rounded_doubles
from spark_lance.jsonb.values import (
    ARRAY,
    CONTAINER,
    FALSE,
    MISSING,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    JsonValues,
)

_NAME = re.compile(r"[.:]\s*(?:(\w+)|(\"(?:[^\"\\]|\\.)*\"))")
_QUOTED = re.compile(r"\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]")
_ITEMS = re.compile(r"\[\s*((?:last(?:\s*-\s*\d+)?|\d+)(?:\s*,\s*(?:last(?:\s*-\s*\d+)?|\d+))*)\s*\]")
_ALL_ITEMS = re.compile(r"\[\s*\*\s*\]")
_ALL_MEMBERS = re.compile(r"[.:]\s*\*")
_BARE = re.compile(r"\w+")


@dataclass(frozen=True)
class _Step:
    """One step of a path: a member by name, items by index, every member, or every item.

    A negative index counts from the end.
    """

    name: str | None = None
    items: tuple[int, ...] = ()
    every: str = ""


@dataclass(frozen=True)
class PathValues:
    """The values at a path.

    Attributes:
        owners: the document number of each value, ascending.
        values: the values.
    """

    owners: npt.NDArray[np.int64]
    values: JsonValues


@lru_cache(maxsize=256)
def parse_path(text: str) -> tuple[_Step, ...]:
    """Return the steps of a path.

    Raises:
        ExpressionError: the text is not a path, or has an unsupported step.
    """
    place = _spaces(text, 0)
    steps = []
    if text.startswith("$", place):
        place = _spaces(text, place + 1)
    elif bare := _BARE.match(text, place):
        steps.append(_Step(name=bare[0]))
        place = _spaces(text, bare.end())
    while place < len(text):
        for pattern, step in _STEPS:
            if match := pattern.match(text, place):
                steps.append(step(match))
                place = _spaces(text, match.end())
                break
        else:
            raise ExpressionError(
                f'JSON path {text!r} is not supported at {text[place:]!r}: use .name, ["name"], [0], [last], '
                "[*] and .*"
            )
    return tuple(steps)


def names_of_path(text: str) -> tuple[str, ...] | None:
    """Return the member names in a path; None if the text is not a path, or has steps other than members."""
    try:
        steps = parse_path(text)
    except ExpressionError:
        return None
    names = tuple(step.name for step in steps if step.name is not None)
    return names if len(names) == len(steps) else None


def _spaces(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _named(match: re.Match[str]) -> _Step:
    quoted = match[match.lastindex or 0]
    return _Step(name=json.loads(quoted, strict=False) if quoted.startswith('"') else quoted)


def _items(match: re.Match[str]) -> _Step:
    numbers = []
    for part in re.sub(r"\s", "", match[1]).split(","):
        numbers.append(-1 - int(part[5:] or 0) if part.startswith("last") else int(part))
    return _Step(items=tuple(numbers))


_STEPS = (
    (_ALL_MEMBERS, lambda _: _Step(every="members")),
    (_NAME, _named),
    (_QUOTED, _named),
    (_ALL_ITEMS, lambda _: _Step(every="items")),
    (_ITEMS, _items),
)


def find(documents: JsonValues, steps: tuple[_Step, ...]) -> PathValues:
    """Return the values at a path, in the order of the documents.

    Raises:
        FormatError, UnsupportedFormatError: a document is damaged, or has an unsupported type of value.
    """
    there = np.flatnonzero(documents.kinds != MISSING)
    matches = PathValues(there, documents.take(there))
    for step in steps:
        matches = _step(matches, step)
    return matches


def _step(matches: PathValues, step: _Step) -> PathValues:
    if step.name is not None:
        places, values = member(matches.values, step.name)
        return PathValues(matches.owners[places], values)
    if step.every == "items":
        return _every_item(matches)
    children = matches.values.children(OBJECT if step.every else ARRAY)
    if step.every:
        return PathValues(matches.owners[children.owners], children.values)
    counts = np.zeros(len(matches.values), np.int64)
    np.add.at(counts, children.owners, 1)
    parts = []
    for order, number in enumerate(step.items):
        positions = number if number >= 0 else counts[children.owners] + number
        places = np.flatnonzero(children.ranks == positions)
        parts.append((children.owners[places], np.full(len(places), order), places))
    owners, orders, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    first_places = places[np.lexsort((orders, owners))]
    return PathValues(matches.owners[children.owners[first_places]], children.values.take(first_places))


def _every_item(matches: PathValues) -> PathValues:
    """Return the items of arrays, and other values unchanged."""
    kinds, _ = matches.values.headers()
    children = matches.values.children(ARRAY)
    others = np.flatnonzero(kinds != ARRAY)
    rest = matches.values.take(others)
    owners = np.concatenate([children.owners, others])
    order = np.argsort(owners, kind="stable")
    both = children.values.joined(rest)
    return PathValues(matches.owners[owners[order]], both.take(order))


def member(values: JsonValues, name: str) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the positions of the objects with a member `name`, and the values of these members."""
    children = values.children(OBJECT)
    places = np.flatnonzero(children.keys.equal_bytes(name.encode("utf-8", "surrogatepass")))
    return children.owners[places], children.values.take(places)


_WHOLE = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
_PLACE = re.compile(r"\+?[0-9]+")
# The number of bytes of documents in one batch.
_WINDOW_BYTES = 32 << 20


def _function(kind: pa.DataType, compute: Callable[..., pa.Array], by_path: bool) -> Callable[..., Value]:
    """Return a function on documents and constants. A null constant makes every result null.

    Args:
        kind: the type of the results.
        compute: takes documents, the steps of a path or a key, and further constants.
        by_path: whether the first constant is a path.
    """

    def function(documents: Value, where: Value, *rest: Value) -> Value:
        column = to_json_documents(documents)
        where, rest = _text(where), tuple(map(_text, rest))
        if where is None or None in rest:
            return pa.chunked_array([pa.nulls(len(column), kind)])
        place = parse_path(where) if by_path else where
        parts = [compute(JsonValues.of(part), place, *rest) for part in split_documents(column)]
        return pa.chunked_array(parts, kind)

    return function


def to_json_documents(value: Value) -> pa.ChunkedArray:
    """Return a value as a column of JSON documents.

    Raises:
        ExpressionError: the value is another type of column, or a constant.
    """
    if not is_typed(value) or not (pa.types.is_large_binary(value.type) or pa.types.is_null(value.type)):
        description = value.type if is_typed(value) else f"the constant {value!r}"
        raise ExpressionError(f"JSON functions need a JSON column or a result of json_get, not {description}")
    column = as_column(value, 1)
    return column if pa.types.is_large_binary(column.type) else column.cast(pa.large_binary())


def split_documents(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the documents in batches of about `_WINDOW_BYTES`."""
    parts = []
    for chunk in column.chunks:
        step = max(1, len(chunk) * _WINDOW_BYTES // max(1, chunk.nbytes))
        parts += [chunk.slice(start, step) for start in range(0, len(chunk), step)]
    return parts


def _text(value: Value) -> str | None:
    """Return a constant as text, or None for null."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if is_typed(value) or isinstance(value, list):
        raise ExpressionError("paths, keys and search values of JSON functions must be constants")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bytes):
        raise ExpressionError("search values of JSON functions must be text or numbers, not bytes")
    return None if value is None else str(value)


def _first(matches: PathValues) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the numbers of the documents with a match, and the first match of each document."""
    firsts = np.flatnonzero(np.diff(matches.owners, prepend=-1))
    return matches.owners[firsts], matches.values.take(firsts)


def _spread(values: pa.Array, places: npt.NDArray[np.int64], rows: int) -> pa.Array:
    """Return an array of `rows` values, with `values` at `places` and null elsewhere."""
    if len(places) == rows:
        return values
    numbers = np.zeros(rows, np.int64)
    numbers[places] = np.arange(len(places))
    missing = np.ones(rows, np.bool_)
    missing[places] = False
    return values.take(pa.array(numbers, mask=missing))


def _extract(documents: JsonValues, steps: Any) -> pa.Array:
    matches = find(documents, steps)
    texts = to_json_texts(matches.values)
    rows = len(documents)
    counts = np.bincount(matches.owners, minlength=rows)
    if bool((counts > 1).any()):
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
        arrays = pc.binary_join_element_wise("[", joined, "]", "")
        texts = pc.if_else(pa.array(counts > 1), arrays, joined)
        return pc.if_else(pa.array(counts > 0), texts, pa.scalar(None, pa.string()))
    return _spread(texts, matches.owners, rows)


def _exists(documents: JsonValues, steps: Any) -> pa.Array:
    answer = np.zeros(len(documents), np.bool_)
    answer[find(documents, steps).owners] = True
    return pa.array(answer, mask=documents.kinds == MISSING)


def _length(documents: JsonValues, steps: Any) -> pa.Array:
    places, values = _first(find(documents, steps))
    kinds, counts = values.headers()
    return _spread(pa.array(np.where(kinds == ARRAY, counts, 0)), places, len(documents))


def _contains(documents: JsonValues, steps: Any, item: str) -> pa.Array:
    places, values = _first(find(documents, steps))
    children = values.children(ARRAY)
    items = children.values
    same = pc.fill_null(pc.equal(to_json_texts(items), item), False).to_numpy(zero_copy_only=False)
    same |= (items.kinds == STRING) & items.equal_bytes(item.encode())
    answer = np.zeros(len(documents), np.bool_)
    answer[places[children.owners[same]]] = True
    return pa.array(answer, mask=documents.kinds == MISSING)


def is_item_key(key: str) -> bool:
    """Return whether a key can also be an array index."""
    return _PLACE.fullmatch(key) is not None


def _at_key(documents: JsonValues, key: str) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the numbers of the documents with a member or array item `key`, and the values."""
    places, values = member(documents, key)
    if not is_item_key(key):
        return places, values
    children = documents.children(ARRAY)
    items = np.flatnonzero(children.ranks == int(key))
    owners = np.concatenate([places, children.owners[items]])
    order = np.argsort(owners, kind="stable")
    return owners[order], values.joined(children.values.take(items)).take(order)


def _get(documents: JsonValues, key: str) -> pa.Array:
    places, values = _at_key(documents, key)
    return _spread(values.documents(), places, len(documents))


def _getter(kind: pa.DataType, convert: Callable[[JsonValues], pa.Array]) -> Callable[..., Value]:
    """Return the function that reads a member or array item as a value of type `kind`."""

    def compute(documents: JsonValues, key: str) -> pa.Array:
        places, values = _at_key(documents, key)
        there = np.flatnonzero(values.kinds != NULL)
        values = values.take(there)
        return _spread(_converted(values, kind, convert), places[there], len(documents))

    return _function(kind, compute, by_path=False)


def _converted(values: JsonValues, kind: pa.DataType, convert: Callable[[JsonValues], pa.Array]) -> pa.Array:
    """Return values converted to a type.

    Raises:
        ExpressionError: a value does not fit the type.
    """
    result = convert(values)
    if result.null_count:
        bad = int(np.flatnonzero(result.is_null().to_numpy(zero_copy_only=False))[0])
        text = to_json_texts(values.take(np.array([bad])))[0].as_py()
        excerpt = text if len(text) <= 60 else f"{text[:60]}..."
        raise ExpressionError(f"the JSON value {excerpt} cannot be cast to {kind}")
    return result.cast(kind)


def _constant(value: Any, kind: pa.DataType) -> Callable[[JsonValues], pa.Array]:
    return lambda values: pa.array([value] * len(values), kind)


def _integers(values: JsonValues) -> pa.Array:
    def convert_numbers(some: JsonValues) -> pa.Array:
        whole, outside = decode_numbers(some).as_integers()
        return pa.array(whole, pa.int64(), mask=outside)

    def convert_strings(some: JsonValues) -> pa.Array:
        return pa.array([_as_integer(text) for text in decode_strings(some).to_pylist()], pa.int64())

    kind = pa.int64()
    converters = {
        NUMBER: convert_numbers,
        STRING: convert_strings,
        TRUE: _constant(1, kind),
        FALSE: _constant(0, kind),
    }
    return _by_kind(values, kind, converters)


def _by_kind(
    values: JsonValues, kind: pa.DataType, make: dict[int, Callable[[JsonValues], pa.Array]]
) -> pa.Array:
    """Return values converted by the function for their kind in `make`; null for other kinds."""
    places, parts = [], []
    for number in np.unique(values.kinds).tolist():
        here = np.flatnonzero(values.kinds == number)
        function = make.get(number)
        places.append(here)
        parts.append(pa.nulls(len(here), kind) if function is None else function(values.take(here)))
    if not parts:
        return pa.array([], kind)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


def _as_integer(text: str) -> int | None:
    if _WHOLE.fullmatch(text):
        value = int(text)
        if -(2**63) <= value < 2**63:
            return value
    number = _as_float(text)
    if number is None:
        return None
    whole, outside = rounded_doubles(np.array([number]))
    return None if outside[0] else int(whole[0])


def _as_float(text: str) -> float | None:
    return float(text) if _FLOAT.fullmatch(text) else None


def _floats(values: JsonValues) -> pa.Array:
    def convert_strings(some: JsonValues) -> pa.Array:
        return pa.array([_as_float(text) for text in decode_strings(some).to_pylist()], pa.float64())

    kind = pa.float64()
    return _by_kind(
        values,
        kind,
        {
            NUMBER: lambda some: pa.array(decode_numbers(some).as_doubles()),
            STRING: convert_strings,
            TRUE: _constant(1.0, kind),
            FALSE: _constant(0.0, kind),
        },
    )


def _strings(values: JsonValues) -> pa.Array:
    kind = pa.string()
    return _by_kind(
        values,
        kind,
        {
            NUMBER: lambda some: decode_numbers(some).texts(special=True),
            STRING: decode_strings,
            TRUE: _constant("true", kind),
            FALSE: _constant("false", kind),
        },
    )


def _booleans(values: JsonValues) -> pa.Array:
    def convert_strings(some: JsonValues) -> pa.Array:
        texts = pc.ascii_lower(decode_strings(some))
        is_boolean = pc.is_in(texts, pa.array(["true", "false"]))
        return pc.if_else(is_boolean, pc.equal(texts, "true"), pa.scalar(None, pa.bool_()))

    kind = pa.bool_()
    converters = {STRING: convert_strings, TRUE: _constant(True, kind), FALSE: _constant(False, kind)}
    return _by_kind(values, kind, converters)


# The implementation and the number of arguments of each function.
JSON_FUNCTIONS: dict[str, tuple[Callable[..., Value], int]] = {
    "json_extract": (_function(pa.string(), _extract, by_path=True), 2),
    "json_exists": (_function(pa.bool_(), _exists, by_path=True), 2),
    "json_array_length": (_function(pa.int64(), _length, by_path=True), 2),
    "json_array_contains": (_function(pa.bool_(), _contains, by_path=True), 3),
    "json_get": (_function(pa.large_binary(), _get, by_path=False), 2),
    "json_get_int": (_getter(pa.int64(), _integers), 2),
    "json_get_float": (_getter(pa.float64(), _floats), 2),
    "json_get_string": (_getter(pa.string(), _strings), 2),
    "json_get_bool": (_getter(pa.bool_(), _booleans), 2),
}


CANDIDATE = "json_candidate"

_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?")
_TESTS: dict[str, Callable[[Any, Any], pa.Array]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def json_candidate(documents: Value, path: Value, kind: Value, test: Value, *operands: Value) -> Value:
    """Return whether each document may pass a comparison (see the module docstring); false for nulls.

    Raises:
        ExpressionError: the path is invalid, or the first argument is not a JSON column.
        FormatError: a document is damaged.
    """
    steps = parse_path(str(path))
    values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in operands]
    may = _KINDS[str(kind)]
    parts = []
    for part in split_documents(to_json_documents(documents)):
        matches = find(JsonValues.of(part), steps)
        mask = np.zeros(len(part), np.bool_)
        mask[matches.owners[may(matches.values, str(test), values)]] = True
        parts.append(pa.array(mask))
    return pa.chunked_array(parts, pa.bool_())


def _meets(column: pa.Array, test: str, operands: Sequence[Any]) -> Bools:
    if test == "=":
        mask = pc.is_in(column, pa.array(operands, column.type))
    else:
        mask = _TESTS[test](column, pa.scalar(operands[0], column.type))
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)


def _texts(values: JsonValues, test: str, operands: Sequence[str]) -> Bools:
    mask = np.ones(len(values), np.bool_)
    places = np.flatnonzero(values.kinds == STRING)
    mask[places] = _meets(decode_strings(values.take(places)), test, operands)
    mask[values.kinds == NULL] = _meets(pa.array(["null"]), test, operands)[0]
    if test == "=":
        mask[values.kinds == TRUE] = "true" in operands
        mask[values.kinds == FALSE] = "false" in operands
        mask[values.kinds == CONTAINER] = any(text[:1] in ("{", "[") for text in operands)
        places = np.flatnonzero(values.kinds == NUMBER)
        mask[places] = _written(values.take(places), operands)
    return mask


def _written(values: JsonValues, operands: Sequence[str]) -> Bools:
    """Return whether each number may be written as one of `operands`, in any notation."""
    doubles = decode_numbers(values).as_doubles()
    numbers = []
    for text in operands:
        if _NUMBER.fullmatch(text) and any(letter.isdigit() for letter in text):
            numbers.append(float(text))
        elif "inf" in text.lower() or "nan" in text.lower():
            return np.ones(len(values), np.bool_)
    mask: Bools = np.isin(doubles, numbers) | ~np.isfinite(doubles)
    return mask


def _int_kind(bits: int) -> Callable[[JsonValues, str, Sequence[int]], Bools]:
    limit = 1 << (bits - 1)

    def may(values: JsonValues, test: str, operands: Sequence[int]) -> Bools:
        mask: Bools = values.kinds != NULL
        places = np.flatnonzero(values.kinds == NUMBER)
        numbers = decode_numbers(values.take(places))
        whole, outside = numbers.as_integers()
        unclear = outside | (whole < -limit) | (whole > limit - 1) | ~np.isin(numbers.which, ("i", "u"))
        mask[places] = unclear | _meets(pa.array(whole), test, operands)
        return mask

    return may


def _doubles(values: JsonValues, test: str, operands: Sequence[float]) -> Bools:
    mask: Bools = values.kinds != NULL
    places = np.flatnonzero(values.kinds == NUMBER)
    doubles = decode_numbers(values.take(places)).as_doubles()
    # Engines treat 0.0 and -0.0 as equal, but some of Arrow's functions do not.
    mask[places] = ~np.isfinite(doubles) | _meets(pa.array(doubles + 0.0), test, [v + 0.0 for v in operands])
    return mask


_KINDS: dict[str, Callable[[JsonValues, str, Sequence[Any]], Bools]] = {
    "any": lambda values, _test, _operands: np.ones(len(values), np.bool_),
    "text": _texts,
    **{f"int{bits}": _int_kind(bits) for bits in (8, 16, 32, 64)},
    "double": _doubles,
}
