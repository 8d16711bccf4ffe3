"""Spark's predicates of connectors, which come as JSON, as conditions on stored columns.

    {"op": "=", "args": [{"path": ["st", "x"]}, {"type": "\\"long\\"", "value": "5"}]}

`op` is the name of a predicate of Spark's connectors, `type` is the type of a literal as JSON, and `value` is
its value in Spark's own form, as text: days for a date, microseconds for a timestamp, hexadecimal digits for
bytes. Literals of one type may come together, as {"type": ..., "values": [...]}. A predicate without such a
form is `{}`. `filters` lists the conditions under which a predicate is pushed down.

Conditions on what stands in documents come as {"op": "CANDIDATE", "args": [...]}; see `json_conditions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyspark.sql.types as st

from spark_lance.file.schema import Schema
from spark_lance.spark.scan.filters import compared
from spark_lance.spark.scan.json_conditions import condition_of
from spark_lance.spark.scan.literals import NoValueError, literal_of, literals_of
from spark_lance.table.predicates.expressions import Call, Expression

__all__ = ["expression_of"]

Node = Mapping[str, Any]

# Predicates of one column and literals -> the filter of Spark's of the same meaning.
_TESTS = {
    "=": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "IN": "In",
    "IS_NULL": "IsNull",
    "IS_NOT_NULL": "IsNotNull",
    "STARTS_WITH": "StringStartsWith",
    "ENDS_WITH": "StringEndsWith",
    "CONTAINS": "StringContains",
}
_MIRRORED = {"=": "=", "<=>": "<=>", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def expression_of(node: Node, schema: Schema, seen: st.StructType) -> Expression | None:
    """Return a predicate as an expression over a table's columns; None if Spark has to apply it.

    Args:
        node: the predicate.
        schema: the table's schema.
        seen: the columns as Spark was told of them.
    """
    name, args = node.get("op", ""), node.get("args", [])
    if name == "CANDIDATE":
        return _candidate(args[0], schema, seen)
    if name in ("AND", "OR", "NOT"):
        parts = [expression_of(arg, schema, seen) for arg in args]
        translated = tuple(part for part in parts if part is not None)
        return Call(name.lower(), translated) if len(translated) == len(parts) else None
    if len(args) == 2 and "path" not in args[0] and name in _MIRRORED:
        name, args = _MIRRORED[name], [args[1], args[0]]
    if name == "<>":
        same = _tested("=", args, schema, seen)
        return None if same is None else Call("not", (same,))
    return _tested(name, args, schema, seen)


def _candidate(node: Node, schema: Schema, seen: st.StructType) -> Expression | None:
    """Return a condition that every row meets that meets another, as far as that is about documents."""
    name = node.get("op", "")
    if name not in ("AND", "OR"):
        return condition_of(node, schema, seen) if name == "DOCUMENT" else expression_of(node, schema, seen)
    parts = [_candidate(arg, schema, seen) for arg in node["args"]]
    translated = tuple(part for part in parts if part is not None)
    if not translated or (name == "OR" and len(translated) < len(parts)):
        return None
    return translated[0] if len(translated) == 1 else Call(name.lower(), translated)


def _tested(name: str, args: list[Node], schema: Schema, seen: st.StructType) -> Expression | None:
    if name not in _TESTS or not args or "path" not in args[0]:
        return None
    try:
        values = [
            value
            for arg in args[1:]
            for value in (literals_of(arg) if "values" in arg else (literal_of(arg),))
        ]
    except NoValueError:
        return None
    if name != "IN" and len(values) > 1:
        return None
    value = values if name == "IN" else values[0] if values else None
    return compared(_TESTS[name], tuple(args[0]["path"]), value, schema, seen)
