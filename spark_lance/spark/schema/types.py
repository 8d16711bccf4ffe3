"""Maps Lance types to Spark types and back, by one table that is also printed in the documentation.

The type of a Lance column is its Arrow type. Spark exchanges columns with Python in a fixed set of Arrow
types, called carriers here. `convert.py` converts stored arrays to carriers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.expressions.geo_functions import extension_name
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
from spark_lance.spark.schema.spatial import carrier_type, is_spatial
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

_MAX_DIGITS = 38

# Field metadata that Spark users see and set as column metadata. The other metadata of a Lance field is about
# its storage, or names an Arrow extension whose storage type Spark reads.
_SHARED_METADATA = ("comment", "lance-encoding:", "lance-schema:", *DECLARATION_KEYS)
_PRIVATE_METADATA = ("lance-encoding:blob", "lance-encoding:packed")


@dataclass(frozen=True)
class _TypeMapping:
    """A mapping of some Arrow types to a Spark type, and the carrier in which Spark exchanges its values.

    If `written` is true, the mapping works in both directions: a new table gets this Arrow type for a column
    of this Spark type.
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
    if not 0 <= arrow.scale <= min(arrow.precision, _MAX_DIGITS):
        raise SchemaError(f"Spark has no decimal of precision {arrow.precision} and scale {arrow.scale}")
    return st.DecimalType(min(arrow.precision, _MAX_DIGITS), arrow.scale)


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
) -> _TypeMapping:
    """Return the mapping of a type without parameters. With `arrow` it works in both directions."""
    check = test if test is not None else (lambda t: t == arrow)
    carrier = None if arrow is None else (lambda _: arrow)
    return _TypeMapping(lance, spark().simpleString(), check, lambda _: spark(), spark, carrier, note)


_CHECKED = "checked"
_ROUNDED_DOWN = "cut"

_TYPE_MAPPINGS: tuple[_TypeMapping, ...] = (
    _plain("null", st.NullType, pa.null()),
    _plain("bool", st.BooleanType, pa.bool_()),
    _plain("int8", st.ByteType, pa.int8()),
    _plain("int16", st.ShortType, pa.int16()),
    _plain("int32", st.IntegerType, pa.int32()),
    _plain("int64", st.LongType, pa.int64()),
    _plain("uint8", st.ShortType, test=pa.types.is_uint8, note=_CHECKED),
    _plain("uint16", st.IntegerType, test=pa.types.is_uint16, note=_CHECKED),
    _plain("uint32", st.LongType, test=pa.types.is_uint32, note=_CHECKED),
    _TypeMapping(
        "uint64", "decimal(20,0)", pa.types.is_uint64, lambda _: st.DecimalType(20, 0), None, note=_CHECKED
    ),
    _plain("float16", st.FloatType, test=pa.types.is_float16, note=_CHECKED),
    _plain("float32", st.FloatType, pa.float32()),
    _plain("float64", st.DoubleType, pa.float64()),
    _TypeMapping(
        "decimal128(p,s)",
        "decimal(p,s)",
        pa.types.is_decimal128,
        _decimal,
        st.DecimalType,
        lambda spark: pa.decimal128(spark.precision, spark.scale),
    ),
    _TypeMapping(
        "decimal256(p,s)",
        "decimal(min(p,38),s)",
        pa.types.is_decimal256,
        _decimal,
        None,
        note="more than 38 digits are an error",
    ),
    _plain(
        "string",
        st.StringType,
        pa.string(),
        note="also char(n), varchar(n), collations",
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
        note="checked; see [JSON](json.md)",
    ),
    _plain("binary", st.BinaryType, pa.binary()),
    _plain(
        "binary (extension geoarrow.wkb or ogc.wkb)",
        st.BinaryType,
        test=lambda t: getattr(t, "extension_name", "") in WELL_KNOWN_BINARY,
        note="see [geometry](geometry.md)",
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
        note=_CHECKED,
    ),
    _plain("date32", st.DateType, pa.date32()),
    _plain("date64", st.DateType, test=pa.types.is_date64),
    _TypeMapping(
        "timestamp(us, zone)",
        "timestamp",
        _is_timestamp(True, "us"),
        lambda _: st.TimestampType(),
        st.TimestampType,
        lambda _: pa.timestamp("us", "UTC"),
        "zone UTC",
    ),
    _TypeMapping(
        "timestamp(s or ms, zone)",
        "timestamp",
        _is_timestamp(True, "s", "ms"),
        lambda _: st.TimestampType(),
        None,
        note=_CHECKED,
    ),
    _TypeMapping(
        "timestamp(ns, zone)",
        "timestamp",
        _is_timestamp(True, "ns"),
        lambda _: st.TimestampType(),
        None,
        note=_ROUNDED_DOWN,
    ),
    _TypeMapping(
        "timestamp(us)",
        "timestamp_ntz",
        _is_timestamp(False, "us"),
        lambda _: st.TimestampNTZType(),
        st.TimestampNTZType,
        lambda _: pa.timestamp("us"),
    ),
    _TypeMapping(
        "timestamp(s or ms)",
        "timestamp_ntz",
        _is_timestamp(False, "s", "ms"),
        lambda _: st.TimestampNTZType(),
        None,
        note=_CHECKED,
    ),
    _TypeMapping(
        "timestamp(ns)",
        "timestamp_ntz",
        _is_timestamp(False, "ns"),
        lambda _: st.TimestampNTZType(),
        None,
        note=_ROUNDED_DOWN,
    ),
    _TypeMapping(
        "time32(s)", "time(0)", lambda t: t == pa.time32("s"), _time(0), None, note="Spark 4.1; " + _CHECKED
    ),
    _TypeMapping(
        "time32(ms)",
        "time(3)",
        lambda t: t == pa.time32("ms"),
        _time(3),
        None,
        note="Spark 4.1; " + _CHECKED,
    ),
    _TypeMapping("time64(us)", "time(6)", lambda t: t == pa.time64("us"), _time(6), None, note="Spark 4.1"),
    _TypeMapping(
        "time64(ns)",
        "time(6)",
        lambda t: t == pa.time64("ns"),
        _time(6),
        TimeType,
        lambda _: pa.time64("ns"),
        "also time(p); Spark 4.1; finer digits are kept",
    ),
    _TypeMapping(
        "duration(us)",
        "interval day to second",
        _is_duration("us"),
        lambda _: st.DayTimeIntervalType(),
        st.DayTimeIntervalType,
        lambda _: pa.duration("us"),
        "also other fields, such as interval day",
    ),
    _TypeMapping(
        "duration(s or ms)",
        "interval day to second",
        _is_duration("s", "ms"),
        lambda _: st.DayTimeIntervalType(),
        None,
        note=_CHECKED,
    ),
    _TypeMapping(
        "duration(ns)",
        "interval day to second",
        _is_duration("ns"),
        lambda _: st.DayTimeIntervalType(),
        None,
        note=_ROUNDED_DOWN,
    ),
    _TypeMapping(
        "dictionary(values)",
        "type of the values",
        pa.types.is_dictionary,
        lambda arrow: _type_with_lengths(arrow.value_type),
        None,
    ),
    _TypeMapping("list(item)", "array<item>", pa.types.is_list, _array, st.ArrayType, _carrier_list),
    _TypeMapping("large_list(item)", "array<item>", pa.types.is_large_list, _array, None),
    _TypeMapping(
        "fixed_size_list(item, n)",
        "array<item>",
        pa.types.is_fixed_size_list,
        _array,
        None,
        note="checked; option [arrow.fixed-size-list.size](options.md#columns) in new tables",
    ),
    _TypeMapping(
        "struct(value: binary, metadata: binary), marked",
        "variant",
        is_variant,
        lambda _: st.VariantType(),
        st.VariantType,
        lambda _: _VARIANT,
        "the mark: metadata variant = true of the child `metadata`",
    ),
    _TypeMapping("struct(...)", "struct<...>", pa.types.is_struct, _struct, st.StructType, _carrier_struct),
    _TypeMapping(
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
    """Return rows for documentation: Lance type, Spark type, "yes" if new tables get the Lance type, note."""
    return [(row.lance, row.spark, "yes" if row.written else "", row.note) for row in _TYPE_MAPPINGS]


def spark_type(arrow: pa.DataType) -> st.DataType:
    """Return the Spark type in which a Lance column of this Arrow type is read.

    Nested strings have their declared collations. CHAR and VARCHAR are strings.

    Raises:
        SchemaError: Spark has no type for the Arrow type.
    """
    return readable_type(_type_with_lengths(arrow))


def field_type(field: pa.Field) -> st.DataType:
    """Return the Spark type of a column, with the digits of TIME(p) and the fields of an interval.

    Raises:
        SchemaError: Spark has no type for the Arrow type.
    """
    return precise_type(field.type, _decode_metadata(field.metadata)) or spark_type(field.type)


def _decode_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {
        key.decode("utf-8", "replace"): text.decode("utf-8", "replace")
        for key, text in (metadata or {}).items()
    }


def _type_with_lengths(arrow: pa.DataType) -> st.DataType:
    for row in _TYPE_MAPPINGS:
        if row.test(arrow):
            return row.to_spark(arrow)
    raise SchemaError(f"Spark has no type for {arrow}")


def _declared_type(field: pa.Field) -> st.DataType:
    """Return the declared Spark type of a field, including CHAR and VARCHAR."""
    kind = _type_with_lengths(field.type)
    metadata = _decode_metadata(field.metadata)
    if STRING_TYPE in metadata and isinstance(kind, st.StringType):
        return declared_string(metadata[STRING_TYPE]) or kind
    return precise_type(field.type, metadata) or kind


def arrow_type(spark: st.DataType) -> pa.DataType:
    """Return the carrier of a Spark type, which is also its Arrow type in a new table.

    Timestamps with a zone have zone UTC. The child of lists is named `element`, those of maps `key` and
    `value`.

    Raises:
        SchemaError: Lance has no type for the Spark type.
    """
    if isinstance(spark, st.UserDefinedType):
        return arrow_type(spark.sqlType())
    if isinstance(spark, (st.CharType, st.VarcharType)):
        # Spark passes them to data sources as strings, but a user-defined schema may still have them.
        return pa.string()
    if is_spatial(spark):
        return carrier_type(spark)
    for row in _TYPE_MAPPINGS:
        if row.carrier is not None and row.spark_class is not None and isinstance(spark, row.spark_class):
            return row.carrier(spark)
    raise SchemaError(f"Lance has no type for {spark.simpleString()}")


def spark_field(field: pa.Field) -> st.StructField:
    """Return the Spark field of a column: its type, nullability and the metadata that Spark users set.

    The metadata has the length of a fixed-size list and the declared type of a column with CHAR or VARCHAR.
    So both are kept if the column is written to another table.
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
    if (extension := extension_name(field)) in GEOMETRY_TYPES:
        metadata[AS_GEOMETRY] = extension
        parameters = (field.metadata or {}).get(EXTENSION_METADATA.encode())
        if parameters:
            metadata[GEOMETRY_METADATA] = parameters.decode("utf-8", "replace")
    if pa.types.is_list(field.type):
        inside = _spark_metadata(field.type.value_field)
        metadata |= {INNER + key: inside[key] for key in (VECTOR_SIZE, AS_JSON) if key in inside}
    return metadata


def is_shared(key: str) -> bool:
    """Return whether Spark users see and set this field metadata as column metadata."""
    return key.startswith(_SHARED_METADATA) and not key.startswith(_PRIVATE_METADATA)


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark exchanges for this schema.

    Raises:
        SchemaError: Lance has no type for some columns. The message names all of them.
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
    """Return whether data of type `actual` can be read as `target` by leaving out struct fields."""
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return all(
            field.name in actual.names
            and (field.nullable or not actual[field.name].nullable)
            and covers(actual[field.name].dataType, field.dataType)
            for field in target
        )
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType):
        is_nullable_enough = target.containsNull or not actual.containsNull
        return is_nullable_enough and covers(actual.elementType, target.elementType)
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType):
        is_nullable_enough = target.valueContainsNull or not actual.valueContainsNull
        return (
            is_nullable_enough
            and covers(actual.keyType, target.keyType)
            and covers(actual.valueType, target.valueType)
        )
    if isinstance(actual, st.StringType):
        # Any collation fits: it only changes how Spark compares strings.
        return isinstance(target, st.StringType)
    return actual == target
