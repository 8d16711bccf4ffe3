"""Functions of JSON documents: what stands at a path, and the value of a member in a type.

    json_extract(j, path)               what is at a path, as JSON text; several values as an array
    json_exists(j, path)                whether there is anything
    json_array_length(j, path)          items of the array at a path; 0 if it is no array
    json_array_contains(j, path, v)     whether an item of the array is v: as text, or as JSON text
    json_get(j, key)                    the member of an object, or the item of an array, as a document
    json_get_int, _float, _string, _bool(j, key)    its value; null if there is none, or JSON's null

A value that does not fit the type is an error: a text that is no number, a number beyond 64 bits, an array.
Numbers are rounded to integers, a half away from 0; booleans are 1 and 0. (Lance SQL, JSON functions.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.expressions.json_path import PathValues, find, member, parse_path
from spark_lance.expressions.values import Value, as_column, is_typed
from spark_lance.jsonb.binary import strings_of, texts_of
from spark_lance.jsonb.numbers import numbers_of, rounded_doubles
from spark_lance.jsonb.values import (
    ARRAY,
    FALSE,
    MISSING,
    NULL,
    NUMBER,
    STRING,
    TRUE,
    JsonValues,
)

_WHOLE = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
_PLACE = re.compile(r"\+?[0-9]+")
# Bytes of documents that are looked at together.
_WINDOW_BYTES = 32 << 20


def _function(kind: pa.DataType, compute: Callable[..., pa.Array], by_path: bool) -> Callable[..., Value]:
    """Return a function of documents and constants, which is null where one of them is.

    Args:
        kind: the type of its values.
        compute: from documents, the steps of a path or a key, and further constants.
        by_path: whether the first constant is a path.
    """

    def function(documents: Value, where: Value, *rest: Value) -> Value:
        column = documents_of(documents)
        where, rest = _text(where), tuple(map(_text, rest))
        if where is None or None in rest:
            return pa.chunked_array([pa.nulls(len(column), kind)])
        place = parse_path(where) if by_path else where
        parts = [compute(JsonValues.of(part), place, *rest) for part in windows_of(column)]
        return pa.chunked_array(parts, kind)

    return function


def documents_of(value: Value) -> pa.ChunkedArray:
    """Return a column of documents.

    Raises:
        ExpressionError: it is another one, or a constant.
    """
    if not is_typed(value) or not (pa.types.is_large_binary(value.type) or pa.types.is_null(value.type)):
        description = value.type if is_typed(value) else f"the constant {value!r}"
        raise ExpressionError(
            f"JSON functions take a JSON column or the result of json_get, not {description}"
        )
    column = as_column(value, 1)
    return column if pa.types.is_large_binary(column.type) else column.cast(pa.large_binary())


def windows_of(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the documents in parts of about `_WINDOW_BYTES`."""
    parts = []
    for chunk in column.chunks:
        step = max(1, len(chunk) * _WINDOW_BYTES // max(1, chunk.nbytes))
        parts += [chunk.slice(start, step) for start in range(0, len(chunk), step)]
    return parts


def _text(value: Value) -> str | None:
    """Return a constant as text."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if is_typed(value) or isinstance(value, list):
        raise ExpressionError("paths, keys and values that functions of JSON look for must be constants")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bytes):
        raise ExpressionError("functions of JSON look for text and numbers, not for bytes")
    return None if value is None else str(value)


def _first(matches: PathValues) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the documents in which something was found, and the first of each."""
    firsts = np.flatnonzero(np.diff(matches.owners, prepend=-1))
    return matches.owners[firsts], matches.values.take(firsts)


def _spread(values: pa.Array, places: npt.NDArray[np.int64], rows: int) -> pa.Array:
    """Return values at some places of so many rows, null at the others."""
    if len(places) == rows:
        return values
    numbers = np.zeros(rows, np.int64)
    numbers[places] = np.arange(len(places))
    missing = np.ones(rows, np.bool_)
    missing[places] = False
    return values.take(pa.array(numbers, mask=missing))


def _extract(documents: JsonValues, steps: Any) -> pa.Array:
    matches = find(documents, steps)
    texts = texts_of(matches.values)
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
    same = pc.fill_null(pc.equal(texts_of(items), item), False).to_numpy(zero_copy_only=False)
    same |= (items.kinds == STRING) & items.are(item.encode())
    answer = np.zeros(len(documents), np.bool_)
    answer[places[children.owners[same]]] = True
    return pa.array(answer, mask=documents.kinds == MISSING)


def is_item_key(key: str) -> bool:
    """Return whether a key may also be the number of an item of an array."""
    return _PLACE.fullmatch(key) is not None


def _at_key(documents: JsonValues, key: str) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the documents that have a member of a name or an item of a number, and its values."""
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
    """Return the function that gives the value of a member in a type."""

    def compute(documents: JsonValues, key: str) -> pa.Array:
        places, values = _at_key(documents, key)
        there = np.flatnonzero(values.kinds != NULL)
        values = values.take(there)
        return _spread(_converted(values, kind, convert), places[there], len(documents))

    return _function(kind, compute, by_path=False)


def _converted(values: JsonValues, kind: pa.DataType, convert: Callable[[JsonValues], pa.Array]) -> pa.Array:
    """Return values in a type.

    Raises:
        ExpressionError: one does not fit it.
    """
    result = convert(values)
    if result.null_count:
        bad = int(np.flatnonzero(result.is_null().to_numpy(zero_copy_only=False))[0])
        text = texts_of(values.take(np.array([bad])))[0].as_py()
        excerpt = text if len(text) <= 60 else f"{text[:60]}..."
        raise ExpressionError(f"the JSON value {excerpt} cannot become {kind}")
    return result.cast(kind)


def _constant(value: Any, kind: pa.DataType) -> Callable[[JsonValues], pa.Array]:
    return lambda values: pa.array([value] * len(values), kind)


def _integers(values: JsonValues) -> pa.Array:
    def of_numbers(some: JsonValues) -> pa.Array:
        whole, outside = numbers_of(some).as_integers()
        return pa.array(whole, pa.int64(), mask=outside)

    def of_strings(some: JsonValues) -> pa.Array:
        return pa.array([_as_integer(text) for text in strings_of(some).to_pylist()], pa.int64())

    kind = pa.int64()
    converters = {NUMBER: of_numbers, STRING: of_strings, TRUE: _constant(1, kind), FALSE: _constant(0, kind)}
    return _by_kind(values, kind, converters)


def _by_kind(
    values: JsonValues, kind: pa.DataType, make: dict[int, Callable[[JsonValues], pa.Array]]
) -> pa.Array:
    """Return values made of each kind of them by a function, in one array; null for other kinds."""
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
    def of_strings(some: JsonValues) -> pa.Array:
        return pa.array([_as_float(text) for text in strings_of(some).to_pylist()], pa.float64())

    kind = pa.float64()
    return _by_kind(
        values,
        kind,
        {
            NUMBER: lambda some: pa.array(numbers_of(some).as_doubles()),
            STRING: of_strings,
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
            NUMBER: lambda some: numbers_of(some).texts(special=True),
            STRING: strings_of,
            TRUE: _constant("true", kind),
            FALSE: _constant("false", kind),
        },
    )


def _booleans(values: JsonValues) -> pa.Array:
    def of_strings(some: JsonValues) -> pa.Array:
        texts = pc.ascii_lower(strings_of(some))
        is_boolean = pc.is_in(texts, pa.array(["true", "false"]))
        return pc.if_else(is_boolean, pc.equal(texts, "true"), pa.scalar(None, pa.bool_()))

    kind = pa.bool_()
    converters = {STRING: of_strings, TRUE: _constant(True, kind), FALSE: _constant(False, kind)}
    return _by_kind(values, kind, converters)


# Name -> what it computes, and how many arguments it takes.
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
