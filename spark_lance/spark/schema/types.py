"""Lance types as Spark types and back: one table, which the documentation prints too.

A Lance column is described by its Arrow type. Spark exchanges columns with Python in a fixed set of Arrow
types (below: carriers); `convert.py` turns the arrays of one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.expressions.geo_functions import extension_of
from spark_lance.file.base.extensions import EXTENSION_METADATA, GEOMETRY_TYPES, WELL_KNOWN_BINARY
from spark_lance.jsonb.columns import is_json_text
from spark_lance.spark.base.compat import TimeType
from spark_lance.spark.options.column_options import (
    AS_GEOMETRY,
    AS_JSON,
    GEOMETRY_METADATA,
    INNER,
    VECTOR_SIZE,
)
from spark_lance.spark.schema.spatial import carrier_of, is_spatial
from spark_lance.spark.schema.string_types import (
    DECLARED_TYPE,
    STRING_TYPE,
    declared_string,
    has_lengths,
    precise_type,
    readable_type,
)
from spark_lance.spark.schema.variants import is_variant
from spark_lance.table.schema.defaults import DECLARATION_KEYS

_MOST_DIGITS = 38

# Field metadata that Spark users see and set as column metadata. The rest of a Lance field's metadata is
# about how it is stored, or names an Arrow extension whose storage is what Spark gets.
_SHARED_METADATA = ("comment", "lance-encoding:", "lance-schema:", *DECLARATION_KEYS)
_PRIVATE_METADATA = ("lance-encoding:blob", "lance-encoding:packed")


@dataclass(frozen=True)
class _Row:
    """One row: which Arrow types it is about, the Spark type, and the carrier Spark exchanges it in.

    `written` marks the rows that are also read from right to left: a new table gets this Arrow type for a
    column of this Spark type.
    """

    lance: str
    spark: str
    test: Callable[[pa.DataType], bool]
    to_spark: Callable[[pa.DataType], st.DataType]
    spark_class: type[st.DataType] | None
    carrier: Callable[[Any], pa.DataType] | None = None
    note: str = ""

    @property
    def written(self) -> bool:
        return self.carrier is not None


def _is_timestamp(zoned: bool, *units: str) -> Callable[[pa.DataType], bool]:
    return lambda t: pa.types.is_timestamp(t) and (t.tz is not None) == zoned and t.unit in units


def _is_duration(*units: str) -> Callable[[pa.DataType], bool]:
    return lambda t: pa.types.is_duration(t) and t.unit in units


def _decimal(arrow: pa.DataType) -> st.DataType:
    if not 0 <= arrow.scale <= min(arrow.precision, _MOST_DIGITS):
        raise SchemaError(f"Spark has no decimal of precision {arrow.precision} and scale {arrow.scale}")
    return st.DecimalType(min(arrow.precision, _MOST_DIGITS), arrow.scale)


def _time(precision: int) -> Callable[[pa.DataType], st.DataType]:
    def build(arrow: pa.DataType) -> st.DataType:
        if TimeType is None:
            raise SchemaError(f"{arrow} needs Spark's TIME type, which came with Spark 4.1")
        return TimeType(precision)  # type: ignore[call-arg]

    return build


def _array(arrow: pa.DataType) -> st.DataType:
    return st.ArrayType(_declared_type(arrow.value_field), arrow.value_field.nullable)


def _struct(arrow: pa.DataType) -> st.DataType:
    fields = [
        st.StructField(child.name, _declared_type(child), child.nullable, _spark_metadata(child))
        for child in arrow
    ]
    return st.StructType(fields)


def _map(arrow: pa.DataType) -> st.DataType:
    key, value = arrow.key_field, arrow.item_field
    return st.MapType(_declared_type(key), _declared_type(value), value.nullable)


def _carrier_list(spark: st.ArrayType) -> pa.DataType:
    return pa.list_(pa.field("element", arrow_type(spark.elementType), spark.containsNull))


def _carrier_struct(spark: st.StructType) -> pa.DataType:
    return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in spark])


def _carrier_map(spark: st.MapType) -> pa.DataType:
    value = pa.field("value", arrow_type(spark.valueType), spark.valueContainsNull)
    return pa.map_(pa.field("key", arrow_type(spark.keyType), nullable=False), value)


_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)


def _plain(
    lance: str,
    spark: type[st.DataType],
    arrow: pa.DataType | None = None,
    test: Callable[[pa.DataType], bool] | None = None,
    note: str = "",
) -> _Row:
    """Return the row of a type without parameters; with `arrow` it is read from right to left too."""
    check = test if test is not None else (lambda t: t == arrow)
    carrier = None if arrow is None else (lambda _: arrow)
    return _Row(lance, spark().simpleString(), check, lambda _: spark(), spark, carrier, note)


_CHECKED = "values are checked when written"
_CUT = "cut to microseconds (towards the past) when read"

_ROWS: tuple[_Row, ...] = (
    _plain("null", st.NullType, pa.null()),
    _plain("bool", st.BooleanType, pa.bool_()),
    _plain("int8", st.ByteType, pa.int8()),
    _plain("int16", st.ShortType, pa.int16()),
    _plain("int32", st.IntegerType, pa.int32()),
    _plain("int64", st.LongType, pa.int64()),
    _plain("uint8", st.ShortType, test=pa.types.is_uint8, note=_CHECKED),
    _plain("uint16", st.IntegerType, test=pa.types.is_uint16, note=_CHECKED),
    _plain("uint32", st.LongType, test=pa.types.is_uint32, note=_CHECKED),
    _Row("uint64", "decimal(20,0)", pa.types.is_uint64, lambda _: st.DecimalType(20, 0), None, note=_CHECKED),
    _plain(
        "float16", st.FloatType, test=pa.types.is_float16, note="must be exact in half precision when written"
    ),
    _plain("float32", st.FloatType, pa.float32()),
    _plain("float64", st.DoubleType, pa.float64()),
    _Row(
        "decimal128(p,s)",
        "decimal(p,s)",
        pa.types.is_decimal128,
        _decimal,
        st.DecimalType,
        lambda spark: pa.decimal128(spark.precision, spark.scale),
    ),
    _Row(
        "decimal256(p,s)",
        "decimal(min(p,38),s)",
        pa.types.is_decimal256,
        _decimal,
        None,
        note="a value of more than 38 digits is an error when read",
    ),
    _plain(
        "string",
        st.StringType,
        pa.string(),
        note="char(n), varchar(n) and collations are kept as metadata of the field",
    ),
    _plain(
        "large_string",
        st.StringType,
        test=lambda t: pa.types.is_large_string(t) or pa.types.is_string_view(t),
    ),
    _plain(
        "json (extension arrow.json)",
        st.StringType,
        test=lambda t: getattr(t, "extension_name", "") == "arrow.json",
        note=f"column metadata {AS_JSON} = true, also to make one; checked when written; read as variant on "
        "request; variants are written, too",
    ),
    _plain("binary", st.BinaryType, pa.binary()),
    _plain(
        "binary (extension geoarrow.wkb or ogc.wkb)",
        st.BinaryType,
        test=lambda t: getattr(t, "extension_name", "") in WELL_KNOWN_BINARY,
        note="geometry or geography of Spark 4.1 on request, and so written",
    ),
    _plain(
        "large_binary",
        st.BinaryType,
        test=lambda t: pa.types.is_large_binary(t) or pa.types.is_binary_view(t),
    ),
    _plain(
        "fixed_size_binary(n)",
        st.BinaryType,
        test=pa.types.is_fixed_size_binary,
        note="lengths are checked when written",
    ),
    _plain("date32", st.DateType, pa.date32()),
    _plain("date64", st.DateType, test=pa.types.is_date64),
    _Row(
        "timestamp(us, zone)",
        "timestamp",
        _is_timestamp(True, "us"),
        lambda _: st.TimestampType(),
        st.TimestampType,
        lambda _: pa.timestamp("us", "UTC"),
        "an instant; a new table gets zone UTC",
    ),
    _Row(
        "timestamp(s or ms, zone)",
        "timestamp",
        _is_timestamp(True, "s", "ms"),
        lambda _: st.TimestampType(),
        None,
        note=_CHECKED,
    ),
    _Row(
        "timestamp(ns, zone)",
        "timestamp",
        _is_timestamp(True, "ns"),
        lambda _: st.TimestampType(),
        None,
        note=_CUT,
    ),
    _Row(
        "timestamp(us)",
        "timestamp_ntz",
        _is_timestamp(False, "us"),
        lambda _: st.TimestampNTZType(),
        st.TimestampNTZType,
        lambda _: pa.timestamp("us"),
    ),
    _Row(
        "timestamp(s or ms)",
        "timestamp_ntz",
        _is_timestamp(False, "s", "ms"),
        lambda _: st.TimestampNTZType(),
        None,
        note=_CHECKED,
    ),
    _Row(
        "timestamp(ns)",
        "timestamp_ntz",
        _is_timestamp(False, "ns"),
        lambda _: st.TimestampNTZType(),
        None,
        note=_CUT,
    ),
    _Row(
        "time32(s)", "time(0)", lambda t: t == pa.time32("s"), _time(0), None, note="Spark 4.1; " + _CHECKED
    ),
    _Row(
        "time32(ms)",
        "time(3)",
        lambda t: t == pa.time32("ms"),
        _time(3),
        None,
        note="Spark 4.1; " + _CHECKED,
    ),
    _Row("time64(us)", "time(6)", lambda t: t == pa.time64("us"), _time(6), None, note="Spark 4.1"),
    _Row(
        "time64(ns)",
        "time(6)",
        lambda t: t == pa.time64("ns"),
        _time(6),
        TimeType,
        lambda _: pa.time64("ns"),
        "Spark 4.1; finer digits are passed through; time(p) is kept as metadata of the field",
    ),
    _Row(
        "duration(us)",
        "interval day to second",
        _is_duration("us"),
        lambda _: st.DayTimeIntervalType(),
        st.DayTimeIntervalType,
        lambda _: pa.duration("us"),
        "other fields, such as interval day, are kept as metadata of the field",
    ),
    _Row(
        "duration(s or ms)",
        "interval day to second",
        _is_duration("s", "ms"),
        lambda _: st.DayTimeIntervalType(),
        None,
        note=_CHECKED,
    ),
    _Row(
        "duration(ns)",
        "interval day to second",
        _is_duration("ns"),
        lambda _: st.DayTimeIntervalType(),
        None,
        note=_CUT,
    ),
    _Row(
        "dictionary(values)",
        "type of the values",
        pa.types.is_dictionary,
        lambda arrow: _type_with_lengths(arrow.value_type),
        None,
    ),
    _Row("list(item)", "array<item>", pa.types.is_list, _array, st.ArrayType, _carrier_list),
    _Row("large_list(item)", "array<item>", pa.types.is_large_list, _array, None),
    _Row(
        "fixed_size_list(item, n)",
        "array<item>",
        pa.types.is_fixed_size_list,
        _array,
        None,
        note=f"column metadata {VECTOR_SIZE} = n, also to make one; lengths are checked when written",
    ),
    _Row(
        "struct(value: binary, metadata: binary), marked",
        "variant",
        is_variant,
        lambda _: st.VariantType(),
        st.VariantType,
        lambda _: _VARIANT,
        "the mark is metadata variant = true on the child `metadata`",
    ),
    _Row("struct(...)", "struct<...>", pa.types.is_struct, _struct, st.StructType, _carrier_struct),
    _Row(
        "map(key, value)",
        "map<key, value>",
        pa.types.is_map,
        _map,
        st.MapType,
        _carrier_map,
        "file version 2.2 and newer",
    ),
)


def type_table() -> list[tuple[str, str, str, str]]:
    """Return rows for documentation: Lance type, Spark type, "yes" if new tables get it for that, note."""
    return [(row.lance, row.spark, "yes" if row.written else "", row.note) for row in _ROWS]


def spark_type(arrow: pa.DataType) -> st.DataType:
    """Return the Spark type in which a Lance column of this Arrow type is read.

    Nested strings have the collations that they were declared with; CHAR and VARCHAR are strings.

    Raises:
        SchemaError: Spark has no type for it.
    """
    return readable_type(_type_with_lengths(arrow))


def field_type(field: pa.Field) -> st.DataType:
    """Return the Spark type of a column, with the digits of TIME(p) and the fields of an interval.

    Raises:
        SchemaError: Spark has no type for it.
    """
    return precise_type(field.type, _texts(field.metadata)) or spark_type(field.type)


def _texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {
        key.decode("utf-8", "replace"): text.decode("utf-8", "replace")
        for key, text in (metadata or {}).items()
    }


def _type_with_lengths(arrow: pa.DataType) -> st.DataType:
    for row in _ROWS:
        if row.test(arrow):
            return row.to_spark(arrow)
    raise SchemaError(f"Spark has no type for {arrow}")


def _declared_type(field: pa.Field) -> st.DataType:
    """Return the Spark type that a field was declared with, CHAR and VARCHAR too."""
    kind = _type_with_lengths(field.type)
    metadata = _texts(field.metadata)
    if STRING_TYPE in metadata and isinstance(kind, st.StringType):
        return declared_string(metadata[STRING_TYPE]) or kind
    return precise_type(field.type, metadata) or kind


def arrow_type(spark: st.DataType) -> pa.DataType:
    """Return the carrier of a Spark type, which is also its Arrow type in a new table.

    Instants have zone UTC. Lists name their child `element`, maps name theirs `key` and `value`.

    Raises:
        SchemaError: Lance has no type for it.
    """
    if isinstance(spark, st.UserDefinedType):
        return arrow_type(spark.sqlType())
    if isinstance(spark, (st.CharType, st.VarcharType)):
        # Spark hands them to data sources as strings; a schema of the user's own may still name them.
        return pa.string()
    if is_spatial(spark):
        return carrier_of(spark)
    for row in _ROWS:
        if row.carrier is not None and row.spark_class is not None and isinstance(spark, row.spark_class):
            return row.carrier(spark)
    raise SchemaError(f"Lance has no type for {spark.simpleString()}")


def spark_field(field: pa.Field) -> st.StructField:
    """Return the Spark field of a column: its type, nullability and the metadata that Spark users set.

    A fixed-size list carries its length as metadata, so that writing the column elsewhere keeps it, and so
    does a column in which CHAR or VARCHAR occurs.
    """
    kind, metadata = _declared_type(field), _spark_metadata(field)
    if has_lengths(kind):
        metadata[DECLARED_TYPE] = kind.simpleString()
    return st.StructField(field.name, readable_type(kind), field.nullable, metadata)


def _spark_metadata(field: pa.Field) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for raw_key, raw_value in (field.metadata or {}).items():
        key = raw_key.decode("utf-8", "replace")
        if is_shared(key):
            metadata[key] = raw_value.decode("utf-8", "replace")
    if pa.types.is_fixed_size_list(field.type):
        metadata[VECTOR_SIZE] = field.type.list_size
    if is_json_text(field):
        metadata[AS_JSON] = True
    if (extension := extension_of(field)) in GEOMETRY_TYPES:
        metadata[AS_GEOMETRY] = extension
        parameters = (field.metadata or {}).get(EXTENSION_METADATA.encode())
        if parameters:
            metadata[GEOMETRY_METADATA] = parameters.decode("utf-8", "replace")
    if pa.types.is_list(field.type):
        inside = _spark_metadata(field.type.value_field)
        metadata |= {INNER + key: inside[key] for key in (VECTOR_SIZE, AS_JSON) if key in inside}
    return metadata


def is_shared(key: str) -> bool:
    """Whether Spark users see, and set, this field metadata as column metadata."""
    return key.startswith(_SHARED_METADATA) and not key.startswith(_PRIVATE_METADATA)


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark takes for, and gives with, this schema.

    Raises:
        SchemaError: some types have none; the message names all their columns.
    """
    fields, reasons = [], []
    for field in schema.fields:
        try:
            fields.append(pa.field(field.name, arrow_type(field.dataType), field.nullable))
        except SchemaError as error:
            reasons.append(f"{field.name}: {error}")
    if reasons:
        raise SchemaError(f"these columns cannot be stored: {'; '.join(reasons)}")
    return pa.schema(fields)


def covers(actual: st.DataType, target: st.DataType) -> bool:
    """Whether data of the actual type can be read as the asked one by leaving out struct fields."""
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return all(
            field.name in actual.names
            and (field.nullable or not actual[field.name].nullable)
            and covers(actual[field.name].dataType, field.dataType)
            for field in target
        )
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType):
        loose = target.containsNull or not actual.containsNull
        return loose and covers(actual.elementType, target.elementType)
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType):
        loose = target.valueContainsNull or not actual.valueContainsNull
        return loose and covers(actual.keyType, target.keyType) and covers(actual.valueType, target.valueType)
    if isinstance(actual, st.StringType):
        # Any collation: it says how Spark compares the strings.
        return isinstance(target, st.StringType)
    return actual == target
