"""Which columns have the order for Spark that they have in the table, and which values Spark tells apart.

Columns whose values change on their way to Spark, as those of extension types may, and text with a collation
have another order there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.file.base.schema import EXTENSION_NAME, Field, Schema
from spark_lance.spark.schema.string_types import has_collation

__all__ = ["is_ordered_alike", "is_same_value", "spark_type_of"]

_Types = pa.types
# Test of the stored type -> Spark's type for it, whose order is the same.
_ALIKE = (
    (_Types.is_boolean, st.BooleanType),
    (_Types.is_signed_integer, st.IntegralType),
    (_Types.is_unsigned_integer, (st.IntegralType, st.DecimalType)),
    (_Types.is_floating, st.FractionalType),
    (_Types.is_decimal, st.DecimalType),
    (_Types.is_string, st.StringType),
    (_Types.is_large_string, st.StringType),
    (_Types.is_binary, st.BinaryType),
    (_Types.is_large_binary, st.BinaryType),
    (_Types.is_date32, st.DateType),
    (_Types.is_timestamp, (st.TimestampType, st.TimestampNTZType)),
)


def is_ordered_alike(path: Sequence[str], schema: Schema, seen: st.StructType) -> bool:
    """Return whether the order of a stored column, or field of a struct, is that of Spark.

    Several stored values may be one for Spark, such as times with nanoseconds.

    Args:
        path: the column.
        schema: of the table.
        seen: the columns as Spark was told of them.
    """
    kind, fields = spark_type_of(path, seen), schema.along(path)
    if kind is None or fields is None or _has_own_meaning(fields[-1]):
        return False
    if isinstance(kind, st.StringType) and kind != st.StringType():
        return False
    stored = fields[-1].arrow_type()
    return any(test(stored) and isinstance(kind, types) for test, types in _ALIKE)


def is_same_value(path: Sequence[str], schema: Schema, seen: st.StructType) -> bool:
    """Return whether two stored values of a column are one for Spark only if they are equal; see above."""
    if not is_ordered_alike(path, schema, seen):
        return False
    fields = schema.along(path)
    assert fields is not None
    stored = fields[-1].arrow_type()
    return not _Types.is_floating(stored) and not (_Types.is_timestamp(stored) and stored.unit == "ns")


def spark_type_of(path: Sequence[str], seen: st.StructType) -> st.DataType | None:
    """Return Spark's type of a column, or of a field of a struct; None if there is none."""
    kind: st.DataType = seen
    for name in path:
        if not isinstance(kind, st.StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind


def _has_own_meaning(field: Field) -> bool:
    if EXTENSION_NAME in field.metadata or has_collation(field.metadata):
        return True
    return isinstance(field.arrow_type(), pa.BaseExtensionType)
