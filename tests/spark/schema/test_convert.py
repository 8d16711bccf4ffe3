"""Stored arrays as Spark's arrays: the same values, exactly the type that Spark expects."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark_types
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.table.reading.fragment_rows import batch_without_columns
from tests.spark.carriers import pyspark_schema, spark_schema
from tests.strategies import tables

# TIME came with Spark 4.1.
HAS_TIME = hasattr(spark_types, "TimeType")
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def plain(scalar: pa.Scalar) -> Any:
    """A value as Python sees it, times as whole numbers of Spark's units, NaN as text."""
    kind = scalar.type
    if pa.types.is_dictionary(kind):
        return plain(scalar.value) if scalar.is_valid else None
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(scalar[field.name]) for field in kind}
    if pa.types.is_map(kind) or hasattr(kind, "value_type"):
        return [plain(item) for item in scalar.values]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return scalar.value * 10**6 // TICKS[kind.unit]
    if pa.types.is_time(kind):
        return scalar.value * (10**9 // TICKS[kind.unit])
    if pa.types.is_date64(kind):
        return scalar.value // 86_400_000
    if pa.types.is_date32(kind):
        return scalar.value
    if pa.types.is_floating(kind):
        return repr(float(scalar.as_py()))
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return float(scalar.as_py()) if pa.types.is_decimal(kind) and kind.scale else int(scalar.as_py())
    return scalar.as_py()


def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
    target = arrow_schema(spark_schema(batch.schema))
    return BatchConverter.plan(batch.schema, target)(batch)


def as_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """The table's chunks one by one, offsets and all."""
    chunked = [table.column(i).chunks for i in range(table.num_columns)]
    return [
        pa.RecordBatch.from_arrays(list(arrays), schema=table.schema) for arrays in zip(*chunked, strict=True)
    ]


@settings(max_examples=150)
@given(tables("2.2"))
def test_values_stay_and_types_become_spark_s(table: pa.Table) -> None:
    if not HAS_TIME and re.search(r"time(32|64)\[", str(table.schema)):
        reject()
    for batch in as_batches(table):
        out = converted(batch)
        assert out.schema.equals(pyspark_schema(spark_schema(table.schema)))
        out.validate(full=True)
        for before, after in zip(batch.columns, out.columns, strict=True):
            assert [plain(v) for v in before] == [plain(v) for v in after]


def test_a_fixed_size_list_becomes_a_list_over_the_same_values() -> None:
    values = pa.array(np.arange(12, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, 3)
    for part, first in ((vectors, 0), (vectors.slice(1, 2), 3)):
        out = converted(pa.RecordBatch.from_arrays([part], names=["v"])).column(0)
        assert out.to_pylist() == part.to_pylist()
        assert out.values.buffers()[1].address == values.buffers()[1].address
        assert out.values.offset == first


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2], pa.timestamp("us", "UTC")),
        pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")),
        pa.array([1, 2], pa.timestamp("us")),
        pa.array([1, 2], pa.duration("us")),
        pa.array(["a", "b"]),
        pa.array([b"a", b"b"]),
        pa.array([[1, 2], [3]]),
        pa.array([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]),
        pa.array([1, 2]).cast(pa.decimal128(19, 0)),
    ],
    ids=lambda array: str(array.type),
)
def test_where_arrow_and_spark_agree_nothing_is_copied(array: pa.Array) -> None:
    source = pa.schema([pa.field("c", array.type)])
    target = arrow_schema(spark_schema(source))
    fitted = BatchConverter.plan(source, target)(pa.RecordBatch.from_arrays([array], schema=source)).column(0)
    before = {buffer.address for buffer in array.buffers() if buffer}
    assert {buffer.address for buffer in fitted.buffers() if buffer} <= before


def test_finer_times_are_cut_towards_the_past() -> None:
    ticks = pa.array([-1, 0, 1, 999, 1000, -1000, -1001, None], pa.int64())
    batch = pa.RecordBatch.from_arrays(
        [
            ticks.view(pa.timestamp("ns")),
            ticks.view(pa.timestamp("ns", "UTC")),
            ticks.view(pa.duration("ns")),
        ],
        names=["ntz", "tz", "d"],
    )
    for column in converted(batch.slice(0)).columns:
        assert column.view(pa.int64()).to_pylist() == [-1, 0, 0, 0, 1, -1, -2, None]
    assert converted(batch.slice(5)).column(0).view(pa.int64()).to_pylist() == [-1, -2, None]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([10**39], pa.decimal256(40, 0)),
        pa.array([2**60], pa.timestamp("s")),
        pa.array([-(2**60)], pa.duration("ms")),
        pa.array([[2**60]], pa.list_(pa.timestamp("ms", "UTC"))),
    ],
    ids=lambda array: str(array.type),
)
def test_a_value_out_of_spark_s_range_names_the_column(array: pa.Array) -> None:
    with pytest.raises(SchemaError, match="column 'x"):
        converted(pa.RecordBatch.from_arrays([array], names=["x"]))


@given(st.data())
@settings(max_examples=30)
def test_structs_may_be_read_in_part_and_in_another_order(data: st.DataObject) -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.large_string()), ("c", pa.struct([("d", pa.uint8())]))])
    rows = [{"a": 1, "b": "x", "c": {"d": 7}}, None, {"a": None, "b": None, "c": None}, {"a": 3}]
    array = pa.array(rows, kind).slice(data.draw(st.integers(0, 3)))
    names = data.draw(st.permutations(["a", "b", "c"])).copy()[: data.draw(st.integers(1, 3))]
    full = spark_schema([pa.field("s", kind)])
    part = arrow_schema(full).field("s").type
    target = pa.schema([pa.field("s", pa.struct([part.field(name) for name in names]))])
    batch = pa.RecordBatch.from_arrays([array], names=["s"])
    out = BatchConverter.plan(batch.schema, target)(batch)
    assert out.schema == target
    expected = [None if row is None else {name: row[name] for name in names} for row in array.to_pylist()]
    assert out.column(0).to_pylist() == expected


def test_batches_without_columns_keep_their_rows() -> None:
    assert batch_without_columns(7).num_rows == 7
    assert batch_without_columns(7).num_columns == 0
