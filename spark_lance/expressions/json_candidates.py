"""Documents whose value at a path may pass a comparison that another engine makes.

Engines differ in how they turn JSON into their own types: which texts are numbers, how numbers are written,
which values become null, which are errors. `json_candidate(j, path, kind, test, values...)` leaves out only
documents that fail in every engine. So the caller has to apply its own comparison to the others.

    kind      what the engine compares           what is left out
    any       whether there is something    documents without anything at the path
    text      text, by its bytes            other strings; of other values those that never have such a text
    int8, int16, int32, int64               other whole numbers that are in the range of the type
    double    numbers                       other numbers

`test` is =, <, <=, > or >=. With =, there may be several values, and one of them has to match. JSON's null
passes only comparisons of text: Spark's `get_json_object` returns null for null members, and the text "null"
for items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Bools
from spark_lance.expressions.json_functions import documents_of, windows_of
from spark_lance.expressions.json_path import find, parse_path
from spark_lance.expressions.values import Value
from spark_lance.jsonb.binary import strings_of
from spark_lance.jsonb.numbers import numbers_of
from spark_lance.jsonb.values import CONTAINER, FALSE, NULL, NUMBER, STRING, TRUE, JsonValues

CANDIDATE = "json_candidate"

_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?")
_TESTS: dict[str, Callable[[Any, Any], pa.Array]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def json_candidate(documents: Value, path: Value, kind: Value, test: Value, *operands: Value) -> Value:
    """Return which documents may meet a comparison; false for nulls. See above.

    Raises:
        ExpressionError: the path is none, or the first argument is no JSON column.
        FormatError: a document is damaged.
    """
    steps = parse_path(str(path))
    values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in operands]
    may = _KINDS[str(kind)]
    parts = []
    for part in windows_of(documents_of(documents)):
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
    mask[places] = _meets(strings_of(values.take(places)), test, operands)
    mask[values.kinds == NULL] = _meets(pa.array(["null"]), test, operands)[0]
    if test == "=":
        mask[values.kinds == TRUE] = "true" in operands
        mask[values.kinds == FALSE] = "false" in operands
        mask[values.kinds == CONTAINER] = any(text[:1] in ("{", "[") for text in operands)
        places = np.flatnonzero(values.kinds == NUMBER)
        mask[places] = _written(values.take(places), operands)
    return mask


def _written(values: JsonValues, operands: Sequence[str]) -> Bools:
    """Which numbers may be written as one of some texts, whatever the way of writing."""
    doubles = numbers_of(values).as_doubles()
    numbers = []
    for text in operands:
        if _NUMBER.fullmatch(text) and any(letter.isdigit() for letter in text):
            numbers.append(float(text))
        elif "inf" in text.lower() or "nan" in text.lower():
            return np.ones(len(values), np.bool_)
    mask: Bools = np.isin(doubles, numbers) | ~np.isfinite(doubles)
    return mask


def _integers(bits: int) -> Callable[[JsonValues, str, Sequence[int]], Bools]:
    limit = 1 << (bits - 1)

    def may(values: JsonValues, test: str, operands: Sequence[int]) -> Bools:
        mask: Bools = values.kinds != NULL
        places = np.flatnonzero(values.kinds == NUMBER)
        numbers = numbers_of(values.take(places))
        whole, outside = numbers.as_integers()
        unclear = outside | (whole < -limit) | (whole > limit - 1) | ~np.isin(numbers.which, ("i", "u"))
        mask[places] = unclear | _meets(pa.array(whole), test, operands)
        return mask

    return may


def _doubles(values: JsonValues, test: str, operands: Sequence[float]) -> Bools:
    mask: Bools = values.kinds != NULL
    places = np.flatnonzero(values.kinds == NUMBER)
    doubles = numbers_of(values.take(places)).as_doubles()
    # Zeros of both signs are equal to engines, and not to each of Arrow's functions.
    mask[places] = ~np.isfinite(doubles) | _meets(pa.array(doubles + 0.0), test, [v + 0.0 for v in operands])
    return mask


_KINDS: dict[str, Callable[[JsonValues, str, Sequence[Any]], Bools]] = {
    "any": lambda values, _test, _wanted: np.ones(len(values), np.bool_),
    "text": _texts,
    **{f"int{bits}": _integers(bits) for bits in (8, 16, 32, 64)},
    "double": _doubles,
}
