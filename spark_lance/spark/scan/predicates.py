"""Spark's predicates of connectors, which come as JSON, as conditions on stored columns.

    {"op": "=", "args": [{"path": ["st", "x"]}, {"type": "\\"long\\"", "value": "5"}]}

`op` is the name of a predicate of Spark's connectors, `type` is the type of a literal as JSON, and `value` is
its value in Spark's own form, as text: days for a date, microseconds for a timestamp, hexadecimal digits for
bytes. What has no such form is `{}`. A predicate is taken over under the conditions of `filters`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyspark.sql.types as st

from spark_lance.file.schema import Schema
from spark_lance.spark.scan.filters import compared
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
_EPOCH = datetime(1970, 1, 1)


def expression_of(node: Node, schema: Schema, seen: st.StructType) -> Expression | None:
    """Return a predicate as an expression over a table's columns; None if Spark has to apply it.

    Args:
        node: the predicate.
        schema: the table's schema.
        seen: the columns as Spark was told of them.
    """
    name, args = node.get("op", ""), node.get("args", [])
    if name in ("AND", "OR", "NOT"):
        parts = [expression_of(arg, schema, seen) for arg in args]
        known = tuple(part for part in parts if part is not None)
        return Call(name.lower(), known) if len(known) == len(parts) else None
    if len(args) == 2 and "path" not in args[0] and name in _MIRRORED:
        name, args = _MIRRORED[name], [args[1], args[0]]
    if name == "<>":
        same = _tested("=", args, schema, seen)
        return None if same is None else Call("not", (same,))
    return _tested(name, args, schema, seen)


def _tested(name: str, args: list[Node], schema: Schema, seen: st.StructType) -> Expression | None:
    if name not in _TESTS or not args or "path" not in args[0]:
        return None
    try:
        values = [_value(arg) for arg in args[1:]]
    except _NoValueError:
        return None
    if name != "IN" and len(values) > 1:
        return None
    value = values if name == "IN" else values[0] if values else None
    return compared(_TESTS[name], tuple(args[0]["path"]), value, schema, seen)


class _NoValueError(Exception):
    """Something is not a literal that has the same meaning here."""


def _value(node: Node) -> Any:
    if "type" not in node:
        raise _NoValueError
    kind, text = json.loads(node["type"]), node["value"]
    if text is None:
        return None
    read = _DECIMAL if isinstance(kind, str) and kind.startswith("decimal") else _LITERALS.get(str(kind))
    if read is None:
        raise _NoValueError
    try:
        return read(text)
    except OverflowError:  # Python's times end with the year 9999
        raise _NoValueError from None


def _moment(text: str) -> datetime:
    return _EPOCH.replace(tzinfo=timezone.utc) + timedelta(microseconds=int(text))


_DECIMAL: Callable[[str], Any] = Decimal
# Type of a literal -> its value from text. Others, such as strings with a collation, stay with Spark.
_LITERALS: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes.fromhex,
    "date": lambda text: date(1970, 1, 1) + timedelta(days=int(text)),
    "timestamp": _moment,
    "timestamp_ntz": lambda text: _EPOCH + timedelta(microseconds=int(text)),
}
