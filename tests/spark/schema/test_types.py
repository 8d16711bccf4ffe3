"""The table of types, in both directions and against PySpark's own idea of carriers."""

from __future__ import annotations

import pyarrow as pa
import pyspark.sql.types as t
import pytest

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.spark.options.column_options import VECTOR_SIZE
from spark_lance.spark.options.option_values import Projection
from spark_lance.spark.schema.new_fields import new_field
from spark_lance.spark.schema.read_schema import to_spark_schema
from spark_lance.spark.schema.types import arrow_schema, arrow_type, covers, spark_type, type_table
from tests.spark.carriers import pyspark_schema, spark_schema

TIME = getattr(t, "TimeType", None)

STORED = [
    *[t.NullType(), t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType()],
    *[t.FloatType(), t.DoubleType(), t.DecimalType(10, 2), t.DecimalType(38, 38), t.StringType()],
    *[t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType(), t.DayTimeIntervalType()],
    t.ArrayType(t.ArrayType(t.IntegerType(), False), True),
    t.MapType(t.StringType(), t.MapType(t.LongType(), t.BinaryType(), False), True),
    t.StructType().add("a", t.LongType(), False).add("b", t.StructType().add("c", t.StringType())),
    t.ArrayType(t.StructType().add("a", t.DateType(), False)),
    t.VariantType(),
    *([TIME(6)] if TIME else []),
]


@pytest.mark.parametrize("spark", STORED, ids=str)
def test_what_is_stored_is_read_back_as_it_was_but_for_not_null(spark: t.DataType) -> None:
    schema = t.StructType().add("x", spark, True).add("y", spark, isinstance(spark, t.NullType))
    stored = pa.schema([new_field(field, {}) for field in schema])
    assert spark_schema(stored) == schema.toNullable()
    assert arrow_schema(schema).equals(pyspark_schema(schema))


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.decimal256(30, 3), "decimal(30,3)"),
        (pa.decimal256(60, 3), "decimal(38,3)"),
        (pa.large_string(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.duration("ns"), "interval day to second"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.list_(pa.float16(), 8), "array<float>"),
        (pa.list_(pa.list_(pa.uint8(), 2), 3), "array<array<smallint>>"),
        (pa.large_list(pa.uint64()), "array<decimal(20,0)>"),
    ],
    ids=str,
)
def test_types_that_spark_lacks(arrow: pa.DataType, spark: str) -> None:
    assert spark_type(arrow).simpleString() == spark


@pytest.mark.skipif(TIME is None, reason="TIME came with Spark 4.1")
@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.time32("s"), "time(0)"),
        (pa.time32("ms"), "time(3)"),
        (pa.time64("us"), "time(6)"),
        (pa.time64("ns"), "time(6)"),
    ],
    ids=str,
)
def test_times_of_day(arrow: pa.DataType, spark: str) -> None:
    assert spark_type(arrow).simpleString() == spark


def test_nullability_is_kept_at_every_level() -> None:
    arrow = pa.schema(
        [
            pa.field("a", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
            pa.field("b", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
            pa.field("c", pa.struct([pa.field("d", pa.int32(), nullable=False)]), nullable=False),
        ]
    )
    assert spark_schema(arrow) == t.StructType(
        [
            t.StructField("a", t.ArrayType(t.IntegerType(), False), False),
            t.StructField("b", t.MapType(t.StringType(), t.IntegerType(), False), True),
            t.StructField("c", t.StructType().add("d", t.IntegerType(), False), False),
        ]
    )


def test_unreadable_columns_are_named_together() -> None:
    fields = [pa.field(f"c{i}", pa.decimal128(5, -2)) for i in range(2)] + [pa.field("ok", pa.int8())]
    with pytest.raises(SchemaError) as caught:
        to_spark_schema(Schema.from_arrow(pa.schema(fields)), Projection())
    assert "c0" in str(caught.value)
    assert "c1" in str(caught.value)
    assert "option 'columns'" in str(caught.value)


@pytest.mark.parametrize(
    "spark",
    [t.YearMonthIntervalType(), t.CalendarIntervalType(), t.ArrayType(t.CalendarIntervalType())],
    ids=str,
)
def test_types_that_lance_lacks_are_refused_by_name(spark: t.DataType) -> None:
    with pytest.raises(SchemaError, match="interval"):
        arrow_type(spark)
    with pytest.raises(SchemaError, match=r"x: .*interval"):
        arrow_schema(t.StructType().add("x", spark).add("y", t.LongType()))


def test_vectors_by_metadata_and_by_option() -> None:
    floats = t.ArrayType(t.FloatType(), False)
    by_metadata = new_field(t.StructField("v", floats, True, {VECTOR_SIZE: 4}), {})
    by_option = new_field(t.StructField("V", floats, False), {"v": {VECTOR_SIZE: 4}})
    assert by_metadata == pa.field("v", pa.list_(pa.float32(), 4))
    assert by_option == pa.field("V", pa.list_(pa.float32(), 4))
    inside = t.StructField("s", t.StructType([t.StructField("V", floats)]))
    assert new_field(inside, {"s.v": {VECTOR_SIZE: 2}}).type.field("V").type == pa.list_(pa.float32(), 2)
    # What was read is written as it was.
    assert new_field(spark_schema([by_metadata])["v"], {}) == by_metadata


@pytest.mark.parametrize("size", [0, -1, True, "many", 2.5])
def test_vector_lengths_that_are_none(size: object) -> None:
    with pytest.raises(SchemaError, match="not a length"):
        new_field(t.StructField("v", t.ArrayType(t.FloatType()), True, {VECTOR_SIZE: size}), {})


def test_only_arrays_can_be_vectors() -> None:
    with pytest.raises(SchemaError, match="not an array"):
        new_field(t.StructField("v", t.StringType()), {"v": {VECTOR_SIZE: 3}})


def test_metadata_that_users_set_goes_both_ways() -> None:
    metadata = {"comment": "a key", "lance-encoding:compression": "zstd"}
    column = t.StructField("k", t.LongType(), True, {**metadata, "__CHAR_VARCHAR_TYPE_STRING": "char(3)"})
    stored = new_field(column, {})
    assert stored.metadata == {key.encode(): value.encode() for key, value in metadata.items()}
    assert spark_schema([stored])["k"].metadata == metadata


def test_a_part_of_a_struct_is_covered_by_the_whole() -> None:
    whole = t.StructType().add("a", t.LongType()).add("b", t.ArrayType(t.StructType().add("c", t.LongType())))
    assert covers(whole, t.StructType().add("a", t.LongType()))
    assert covers(whole, t.StructType().add("b", t.ArrayType(t.StructType())))
    assert not covers(whole, t.StructType().add("a", t.IntegerType()))
    assert not covers(whole, t.StructType().add("a", t.LongType(), False))
    assert not covers(whole, t.StructType().add("b", t.ArrayType(t.StructType(), False)))
    assert not covers(whole, t.StructType().add("z", t.LongType()))


def test_the_table_names_every_row_once() -> None:
    rows = type_table()
    assert len({lance for lance, *_ in rows}) == len(rows)
    written = [spark for _, spark, new, _ in rows if new]
    assert len(set(written)) == len(written)
