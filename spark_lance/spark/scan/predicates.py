"""Translates Spark's connector predicates, sent as JSON, into conditions on stored columns.

    {"op": "=", "args": [{"path": ["st", "x"]}, {"type": "\\"long\\"", "value": "5"}]}

`op` is the name of the connector predicate, `type` is the type of a literal as JSON, and `value` is its value
in Spark's own form, as text: days for a date, microseconds for a timestamp, hexadecimal digits for bytes.
Several literals of one type can be sent as {"type": ..., "values": [...]}. A predicate without such a form is
`{}`.

A predicate is pushed down only if it keeps exactly the rows that Spark's own evaluation would keep. This
requires that a column's values are the same in Spark and on disk. Spark has only one NaN, which is greater
than all other numbers, so floats are compared without the sign of NaN. For columns that Spark represents
differently (times finer than its own, blobs, 256-bit decimals), only tests of null are pushed down.

Conditions on values inside documents are sent as {"op": "CANDIDATE", "args": [...]}. Each of them is a
condition on the value at a path, and skips documents:

    {"op": "DOCUMENT", "function": "get_json_object", "column": "doc", "path": "$.a.b",
     "types": ["\\"long\\""], "test": ">", "values": [{"type": "\\"long\\"", "value": "5"}]}

`function` is get_json_object or variant_get. `types` are the types to which Spark then casts the value; the
first type of variant_get is its own. `test` is a comparison with one of `values`, or IS_NOT_NULL. The
resulting condition keeps every document that Spark keeps, and perhaps others: Spark applies its own condition
to them.

Paths contain names and single items. Paths with wildcards are not pushed down: they lead to several values,
which the two functions combine differently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import MIRRORED, Call, Column, Expression, Literal
from spark_lance.expressions.json_functions import CANDIDATE
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.options.option_fields import OPTIONS, ReadOptions, options_that_choose
from spark_lance.spark.options.option_values import Projection
from spark_lance.spark.schema.read_schema import to_spark_schema
from spark_lance.spark.schema.string_types import has_collation
from spark_lance.table.reading.system_columns import ROW_OFFSET, system_names

_PATH_STEP = re.compile(r"\.(\w+)|\[([0-9]{1,9})\]|\['(\w(?:[\w .-]*\w)?)'\]")
_JSON_VALUE_KINDS = {
    "string": "text",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "double": "double",
}
_VARIANT = "variant"
_JSON_TESTS = {"=": "=", "<=>": "=", "IN": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# Spark writes one of these characters instead of a character that it cannot encode.
_REPLACEMENT = re.compile("[?\ufffd]")


def translate_json_condition(
    node: Mapping[str, Any], schema: Schema, scan_schema: st.StructType
) -> Expression | None:
    """Return a condition on a JSON column that keeps all rows that Spark keeps; None if there is none.

    Args:
        node: the condition, with op DOCUMENT.
        schema: the table's schema.
        scan_schema: the Spark schema of the scan.
    """
    name, path = node["column"], convert_json_path(node["path"])
    field = schema.find_path((name,))
    if path is None or field is None or not field[-1].is_json or name not in scan_schema.names:
        return None
    plain = node["function"] == "get_json_object"
    if (
        scan_schema[name].dataType != st.StringType()
        if plain
        else not _is_variant(scan_schema[name].dataType)
    ):
        return None
    if node["test"] == "IS_NOT_NULL":
        return _json_candidate(name, path, "any", "=", ())
    types = [json.loads(kind) for kind in node["types"]]
    if plain:
        types = types or ["string"]
    elif types[:1] == [_VARIANT]:
        types = types[1:]
    if len(types) != 1 or not isinstance(types[0], str) or node["test"] not in _JSON_TESTS:
        return None
    kind = _JSON_VALUE_KINDS.get(types[0])
    try:
        values = [parse_literal(value) for value in node["values"]]
    except NoValueError:
        return None
    if kind is None or not values or not all(_is_plain(value, kind) for value in values):
        return None
    return _json_candidate(name, path, kind, _JSON_TESTS[node["test"]], values)


def _json_candidate(name: str, path: str, kind: str, test: str, values: Sequence[Any]) -> Expression:
    constants = (path, kind, test, *values)
    return Call(CANDIDATE, (Column((name,)), *map(Literal, constants)))


def convert_json_path(text: str) -> str | None:
    """Convert a JSON path of Spark to one of ours; None if it has steps that may have another meaning."""
    steps, position = ["$"], 1
    if not text.startswith("$") or len(text) == 1:
        return None
    while position < len(text):
        step = _PATH_STEP.match(text, position)
        if step is None:
            return None
        name = step[1] or step[3]
        steps.append(f"[{step[2]}]" if name is None else f"[{json.dumps(name)}]")
        position = step.end()
    return "".join(steps)


def _is_variant(kind: st.DataType) -> bool:
    return isinstance(kind, st.VariantType)


def _is_plain(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str) and not _REPLACEMENT.search(value)
    if kind == "double":
        return isinstance(value, float) and math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


_EPOCH = datetime(1970, 1, 1)


class NoValueError(Exception):
    """A node is not a literal, or has a type whose values cannot be represented here."""


def parse_literal(node: Mapping[str, Any]) -> Any:
    """Return the value of a literal: {"type": its type as JSON, "value": text}.

    Raises:
        NoValueError: the node is not a literal, or its value cannot be represented here.
    """
    if "type" not in node:
        raise NoValueError
    text = node["value"]
    if text is None:
        return None
    read = _parser_for(node["type"])
    if read is None:
        raise NoValueError
    try:
        return read(text)
    except OverflowError:  # Python's times end with the year 9999
        raise NoValueError from None


def parse_literals(node: Mapping[str, Any]) -> list[Any]:
    """Return the values of literals of one type: {"type": its type as JSON, "values": texts}.

    Raises:
        NoValueError: values of this type cannot be represented here.
    """
    read = _parser_for(node["type"])
    if read is None:
        raise NoValueError
    try:
        return [None if text is None else read(text) for text in node["values"]]
    except OverflowError:
        raise NoValueError from None


@lru_cache(64)
def _parser_for(kind: str) -> Callable[[str], Any] | None:
    """Return the parser of values of a type, given as JSON; None if there is none.

    It is cached because lists of literals have thousands of one type.
    """
    parsed = json.loads(kind)
    return (
        _DECIMAL if isinstance(parsed, str) and parsed.startswith("decimal") else _LITERALS.get(str(parsed))
    )


def _parse_timestamp(text: str) -> datetime:
    return _EPOCH.replace(tzinfo=timezone.utc) + timedelta(microseconds=int(text))


_DECIMAL: Callable[[str], Any] = Decimal
# Type of a literal -> parser of its text. Predicates with other types, such as strings with a collation, are
# not pushed down.
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
    "timestamp": _parse_timestamp,
    "timestamp_ntz": lambda text: _EPOCH + timedelta(microseconds=int(text)),
}


Node = Mapping[str, Any]

# Comparison -> the comparison with its sides swapped, by Spark's names.
_MIRRORED = {**MIRRORED, "<=>": "<=>", "<>": "<>"}


def translate_predicate(node: Node, schema: Schema, scan_schema: st.StructType) -> Expression | None:
    """Translate a predicate to an expression over a table's columns; None if Spark must apply it.

    Args:
        node: the predicate.
        schema: the table's schema.
        scan_schema: the Spark schema of the scan.
    """
    name, args = node.get("op", ""), node.get("args", [])
    if name == "CANDIDATE":
        return _candidate(args[0], schema, scan_schema)
    if name in ("AND", "OR", "NOT"):
        parts = [translate_predicate(arg, schema, scan_schema) for arg in args]
        translated = tuple(part for part in parts if part is not None)
        return Call(name.lower(), translated) if len(translated) == len(parts) else None
    if len(args) == 2 and "path" not in args[0] and name in _MIRRORED:
        name, args = _MIRRORED[name], [args[1], args[0]]
    if name == "<>":
        same = _column_test("=", args, schema, scan_schema)
        return None if same is None else Call("not", (same,))
    return _column_test(name, args, schema, scan_schema)


def translate_conjunction(nodes: Sequence[Node], schema: Schema) -> Expression:
    """Return the conjunction of predicates, as the condition of a statement that changes rows.

    Raises:
        ExpressionError: a predicate does not keep the same rows as in Spark.
    """
    scan_schema = to_spark_schema(schema, Projection())
    trees = [translate_predicate(node, schema, scan_schema) for node in nodes]
    exact = tuple(tree for tree in trees if tree is not None)
    if len(exact) < len(trees):
        raise ExpressionError(f"the condition {json.dumps(list(nodes))} cannot be evaluated as Spark does it")
    return Call("and", exact)


def _candidate(node: Node, schema: Schema, scan_schema: st.StructType) -> Expression | None:
    """Return a condition that keeps at least the rows that `node` keeps; None if there is none."""
    name = node.get("op", "")
    if name not in ("AND", "OR"):
        return (
            translate_json_condition(node, schema, scan_schema)
            if name == "DOCUMENT"
            else translate_predicate(node, schema, scan_schema)
        )
    parts = [_candidate(arg, schema, scan_schema) for arg in node["args"]]
    translated = tuple(part for part in parts if part is not None)
    if not translated or (name == "OR" and len(translated) < len(parts)):
        return None
    return translated[0] if len(translated) == 1 else Call(name.lower(), translated)


def _column_test(
    name: str, args: list[Node], schema: Schema, scan_schema: st.StructType
) -> Expression | None:
    """Translate a test of one column to an expression; None if Spark must apply it."""
    if name not in _TESTS or not args or "path" not in args[0]:
        return None
    try:
        values = [
            value
            for arg in args[1:]
            for value in (parse_literals(arg) if "values" in arg else (parse_literal(arg),))
        ]
    except NoValueError:
        return None
    if name != "IN" and len(values) > 1:
        return None
    value = values if name == "IN" else values[0] if values else None
    path = tuple(args[0]["path"])
    if len(path) == 1 and path[0] != ROW_OFFSET and path[0] in system_names(f.name for f in schema.fields):
        return _TESTS[name](Column(path), value)
    fields = schema.find_path(path)
    if fields is None or any(field.as_descriptor() != field for field in fields):
        return None
    if name in _NULL_TESTS:
        return _TESTS[name](Column(path), None)
    if not is_same_in_spark(fields[-1]) or _has_collation(path, scan_schema):
        return None
    return _TESTS[name](_as_in_spark(Column(path), fields[-1]), value)


def pushdown_description(
    options: ReadOptions, schema: Schema | None, scan_schema: st.StructType
) -> dict[str, Any]:
    """Return the description of a scan that Java uses for Spark's push-down of predicates and limits.

    Java accepts a predicate if `translate_predicate` translates it, by the same rules.

    Args:
        options: options of the read.
        schema: the table's schema; None if Spark applies all predicates.
        scan_schema: the Spark schema of the scan.

    Returns:
        `values` has the paths of columns and fields whose values compare as in Spark, `nulls` the paths for
        which only tests of null are pushed down. `whole` is true if the scan reads all rows of a version.
    """
    paths: dict[bool, list[list[str]]] = {True: [], False: []}
    if schema is not None:
        for path, is_same in _pushable_paths(schema.fields, scan_schema):
            paths[is_same].append(list(path))
        hidden = system_names(field.name for field in schema.fields)
        paths[True] += [[name] for name in hidden if name != ROW_OFFSET]
    parts = options_that_choose("part")
    is_whole = options.kind == "rows" and all(getattr(options, n) == OPTIONS[n].default for n in parts)
    return {"values": paths[True], "nulls": paths[False], "whole": is_whole}


def _pushable_paths(
    fields: Iterable[Field], scan_schema: st.StructType
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the paths of columns and struct fields, each with whether its values compare as in Spark."""
    by_name = {field.name: field for field in fields}
    for column in scan_schema.fields:
        field = by_name.get(column.name)
        if field is None or field.as_descriptor() != field:
            continue
        yield (field.name,), is_same_in_spark(field) and not _is_collated(column.dataType)
        if field.kind == "struct" and isinstance(column.dataType, st.StructType):
            for path, is_same in _pushable_paths(field.children, column.dataType):
                yield (field.name, *path), is_same


def _as_in_spark(column: Column, field: Field) -> Expression:
    kind = field.arrow_type()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return Call("unsigned_nan", (column,)) if pa.types.is_floating(kind) else column


def _compare(operator: str) -> Callable[[Expression, Any], Expression]:
    return lambda column, value: Call(operator, (column, Literal(value)))


# Predicate of one column and literals -> expression.
_TESTS: dict[str, Callable[[Expression, Any], Expression]] = {
    "IS_NULL": lambda column, _: Call("is_null", (column,)),
    "IS_NOT_NULL": lambda column, _: Call("not", (Call("is_null", (column,)),)),
    "=": _compare("="),
    "<=>": _compare("is_same"),
    ">": _compare(">"),
    ">=": _compare(">="),
    "<": _compare("<"),
    "<=": _compare("<="),
    "IN": lambda column, values: Call("in", (column, *(Literal(value) for value in values))),
    "STARTS_WITH": _compare("starts_with"),
    "ENDS_WITH": _compare("ends_with"),
    "CONTAINS": _compare("contains"),
}
_NULL_TESTS = frozenset({"IS_NULL", "IS_NOT_NULL"})


def _has_collation(path: tuple[str, ...], scan_schema: st.StructType) -> bool:
    """Return whether a column of the scan has a collation, so that Spark does not compare its bytes."""
    kind: st.DataType = scan_schema
    for step in path:
        if not isinstance(kind, st.StructType) or step not in kind.names:
            return False
        kind = kind[step].dataType
    return _is_collated(kind)


def _is_collated(kind: st.DataType) -> bool:
    return isinstance(kind, st.StringType) and kind != st.StringType()


def is_same_in_spark(field: Field) -> bool:
    """Return whether Spark has the same values of a field as the file, and compares them as Arrow does."""
    if EXTENSION_NAME in field.metadata or has_collation(field.metadata):
        return False
    kind = field.arrow_type()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return bool(kind.unit != "ns")
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_date32(kind)
    )
