"""Spark's conditions on values at a path of JSON documents, as conditions that skip documents.

    {"op": "DOCUMENT", "function": "get_json_object", "column": "doc", "path": "$.a.b",
     "types": ["\\"long\\""], "test": ">", "values": [{"type": "\\"long\\"", "value": "5"}]}

`function` is get_json_object or variant_get. `types` are the types to which Spark then casts its value; the
first type of variant_get is its own. `test` is a comparison with one of `values`, or IS_NOT_NULL. Every
document that Spark keeps meets the resulting condition, and so may others: Spark applies its own condition to
these.

Paths are names and single items. Wildcards lead to several values, which the two functions combine
differently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyspark.sql.types as st

from spark_lance.expressions.expressions import Call, Column, Expression, Literal
from spark_lance.expressions.json_candidates import CANDIDATE
from spark_lance.file.base.schema import Schema
from spark_lance.spark.scan.literals import NoValueError, literal_of

__all__ = ["condition_of"]

_STEP = re.compile(r"\.(\w+)|\[([0-9]{1,9})\]|\['(\w(?:[\w .-]*\w)?)'\]")
_KINDS = {
    "string": "text",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "double": "double",
}
_VARIANT = "variant"
_TESTS = {"=": "=", "<=>": "=", "IN": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# Spark writes these in place of characters that it cannot encode.
_REPLACED = re.compile("[?\ufffd]")


def condition_of(node: Mapping[str, Any], schema: Schema, seen: st.StructType) -> Expression | None:
    """Return a condition on a JSON column that all rows meet that Spark keeps; None if none is known.

    Args:
        node: the condition.
        schema: the table's schema.
        seen: the columns as Spark was told of them.
    """
    name, path = node["column"], path_of(node["path"])
    field = schema.along((name,))
    if path is None or field is None or not field[-1].is_json or name not in seen.names:
        return None
    plain = node["function"] == "get_json_object"
    if seen[name].dataType != st.StringType() if plain else not _is_variant(seen[name].dataType):
        return None
    if node["test"] == "IS_NOT_NULL":
        return _candidate(name, path, "any", "=", ())
    types = [json.loads(kind) for kind in node["types"]]
    if plain:
        types = types or ["string"]
    elif types[:1] == [_VARIANT]:
        types = types[1:]
    if len(types) != 1 or not isinstance(types[0], str) or node["test"] not in _TESTS:
        return None
    kind = _KINDS.get(types[0])
    try:
        values = [literal_of(value) for value in node["values"]]
    except NoValueError:
        return None
    if kind is None or not values or not all(_is_plain(value, kind) for value in values):
        return None
    return _candidate(name, path, kind, _TESTS[node["test"]], values)


def _candidate(name: str, path: str, kind: str, test: str, values: Sequence[Any]) -> Expression:
    constants = (path, kind, test, *values)
    return Call(CANDIDATE, (Column((name,)), *map(Literal, constants)))


def path_of(text: str) -> str | None:
    """Return a path of Spark's as one of ours; None if it has steps that may mean something else."""
    steps, place = ["$"], 1
    if not text.startswith("$") or len(text) == 1:
        return None
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None:
            return None
        name = step[1] or step[3]
        steps.append(f"[{step[2]}]" if name is None else f"[{json.dumps(name)}]")
        place = step.end()
    return "".join(steps)


def _is_variant(kind: st.DataType) -> bool:
    return isinstance(kind, st.VariantType)


def _is_plain(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str) and not _REPLACED.search(value)
    if kind == "double":
        return isinstance(value, float) and math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
