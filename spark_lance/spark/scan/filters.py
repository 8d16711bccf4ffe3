"""Spark's filters as conditions on stored columns.

A filter is pushed down only if it keeps exactly the rows that Spark's own evaluation would keep. That holds
where a column's values are the same in Spark and on disk. Spark has only one NaN, which is greater than all
other numbers, so floats are compared without the sign of NaN. Columns that Spark sees in another way (times
finer than its own, blobs, 256-bit decimals) keep their filters in Spark, except for tests of null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.file.schema import EXTENSION_NAME, Field, Schema
from spark_lance.spark.schema.string_types import has_collation
from spark_lance.table.predicates.expressions import Call, Column, Expression, Literal
from spark_lance.table.reading.system_columns import ROW_OFFSET, system_names

__all__ = ["compared", "is_same_in_spark", "translate"]


def translate(filter: Any, schema: Schema, seen: st.StructType) -> Expression | None:
    """Return a filter of Spark's as an expression over a table's columns; None if Spark has to apply it.

    Args:
        filter: one of the filters of `pyspark.sql.datasource`.
        schema: the table's schema.
        seen: the columns as Spark was told of them.
    """
    name = type(filter).__name__
    if name == "Not":
        inner = translate(filter.child, schema, seen)
        return None if inner is None else Call("not", (inner,))
    return compared(name, tuple(filter.attribute), getattr(filter, "value", None), schema, seen)


def compared(
    name: str, path: tuple[str, ...], value: Any, schema: Schema, seen: st.StructType
) -> Expression | None:
    """Return a test of one column as an expression over a table's columns; None if Spark has to apply it.

    Args:
        name: the class of the filter in `pyspark.sql.datasource`.
        path: the column, or the field of a struct.
        value: what it is compared with, a list for `In`; of no meaning for tests of null.
        schema, seen: see `translate`.
    """
    if name not in _FILTERS:
        return None
    column = Column(path)
    system = system_names(field.name for field in schema.fields)
    if len(path) == 1 and path[0] in system and path[0] != ROW_OFFSET:
        return _FILTERS[name](column, value)
    fields = schema.along(path)
    if fields is None or any(field.described() != field for field in fields):
        return None
    field = fields[-1]
    if name in _NULL_TESTS:
        return _FILTERS[name](column, None)
    if not is_same_in_spark(field) or _has_collation(path, seen):
        return None
    return _FILTERS[name](_as_in_spark(column, field), value)


def _as_in_spark(column: Column, field: Field) -> Expression:
    kind = field.arrow_type()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return Call("unsigned_nan", (column,)) if pa.types.is_floating(kind) else column


def _compare(operator: str) -> Callable[[Expression, Any], Expression]:
    return lambda column, value: Call(operator, (column, Literal(value)))


_FILTERS: dict[str, Callable[[Expression, Any], Expression]] = {
    "IsNull": lambda column, _: Call("is_null", (column,)),
    "IsNotNull": lambda column, _: Call("not", (Call("is_null", (column,)),)),
    "EqualTo": _compare("="),
    "EqualNullSafe": _compare("is_same"),
    "GreaterThan": _compare(">"),
    "GreaterThanOrEqual": _compare(">="),
    "LessThan": _compare("<"),
    "LessThanOrEqual": _compare("<="),
    "In": lambda column, values: Call("in", (column, *(Literal(value) for value in values))),
    "StringStartsWith": _compare("starts_with"),
    "StringEndsWith": _compare("ends_with"),
    "StringContains": _compare("contains"),
}
_NULL_TESTS = frozenset({"IsNull", "IsNotNull"})


def _has_collation(path: tuple[str, ...], seen: st.StructType) -> bool:
    """Whether Spark was told to compare a column's strings in another way than by their bytes."""
    kind: st.DataType = seen
    for step in path:
        if not isinstance(kind, st.StructType) or step not in kind.names:
            return False
        kind = kind[step].dataType
    return isinstance(kind, st.StringType) and kind != st.StringType()


def is_same_in_spark(field: Field) -> bool:
    """Whether Spark sees the values of a field as they are stored, and compares them as Arrow does."""
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
