"""Fitting data to a schema: names, lossless casts, and one error with all differences."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.table.writing.align import Aligner
from tests.strategies import canonical, tables


def fit(array: pa.Array, target: pa.DataType, nullable: bool = True) -> pa.Array:
    """Align one column called x."""
    batch = pa.record_batch([array], names=["x"])
    aligner = Aligner(batch.schema, Schema.from_arrow(pa.schema([pa.field("x", target, nullable)])))
    out = aligner.align(batch)
    out.validate(full=True)
    assert out.schema.field("x").type == target
    return out.column("x")


def vector(size: int, item: pa.DataType | None = None) -> pa.DataType:
    return pa.list_(pa.field("item", item or pa.float32()), size)


@settings(max_examples=60)
@given(table=tables("2.2"))
def test_data_of_the_same_schema_is_unchanged(table: pa.Table) -> None:
    aligner = Aligner(table.schema, Schema.from_arrow(table.schema))
    for batch in table.to_batches():
        out = aligner.align(batch)
        assert out.schema == table.schema
        assert [canonical(column) for column in out.columns] == [
            canonical(column) for column in batch.columns
        ]


LOSSLESS = [
    (pa.array([1, None, -5], pa.int8()), pa.int64()),
    (pa.array([1, None, 255], pa.uint8()), pa.int16()),
    (pa.array([1, None, 300], pa.int64()), pa.uint16()),
    (pa.array([1.5, None], pa.float32()), pa.float64()),
    (pa.array([1.5, None, float("inf")], pa.float32()), pa.float16()),
    (pa.array([None, []], pa.list_(pa.float32())), pa.list_(pa.float16())),
    (pa.array(["a", None]), pa.large_string()),
    (pa.array(["a", None], pa.large_string()), pa.string()),
    (pa.array([b"ab", None]), pa.binary(2)),
    (pa.array([b"ab", None], pa.binary(2)), pa.large_binary()),
    (pa.array(["a", "b", "a", None]).dictionary_encode(), pa.string()),
    (pa.array(["a", "b", "a", None]), pa.dictionary(pa.int8(), pa.string())),
    (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), pa.decimal128(9, 3)),
    (pa.array([Decimal(2**63), None], pa.decimal128(20, 0)), pa.uint64()),
    (pa.array([dt.datetime(2020, 1, 2), None], pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array([dt.datetime(2020, 1, 2), None], pa.timestamp("us", "UTC")), pa.timestamp("ms", "Asia/Tokyo")),
    (pa.array([dt.date(2020, 1, 2), None], pa.date32()), pa.date64()),
    (pa.array([dt.timedelta(3), None], pa.duration("us")), pa.duration("s")),
    (pa.array([[1, 2], None, []], pa.list_(pa.int32())), pa.large_list(pa.int64())),
    (pa.array([None, None]), pa.list_(pa.int32())),
    (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("array", "target"), LOSSLESS, ids=lambda value: str(getattr(value, "type", value)))
@pytest.mark.parametrize("sliced", [False, True])
def test_lossless_casts_keep_the_values(array: pa.Array, target: pa.DataType, sliced: bool) -> None:
    source = pa.concat_arrays([array, array]).slice(1) if sliced else array
    values = fit(source, target)
    expected = source.to_pylist()
    if pa.types.is_timestamp(target):
        assert values.cast("int64").to_pylist() == source.cast(target).cast("int64").to_pylist()
    elif pa.types.is_duration(target) or not pa.types.is_temporal(target):
        assert values.to_pylist() == expected
    else:
        assert [None if v is None else v.isoformat()[:10] for v in values.to_pylist()] == [
            None if v is None else v.isoformat()[:10] for v in expected
        ]


LOSSY = [
    (pa.array([300, -1], pa.int64()), pa.uint8()),
    (pa.array([0.1], pa.float32()), pa.float16()),
    (pa.array([b"abc"]), pa.binary(2)),
    (pa.array([Decimal("1.55")], pa.decimal128(5, 2)), pa.decimal128(5, 1)),
    (pa.array([Decimal(-1)], pa.decimal128(20, 0)), pa.uint64()),
    (pa.array([1], pa.timestamp("us")), pa.timestamp("s")),
]


@pytest.mark.parametrize(("array", "target"), LOSSY, ids=lambda value: str(getattr(value, "type", value)))
def test_a_value_that_would_change_is_an_error(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'x'"):
        fit(array, target)


UNFIT = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.int32(), pa.float64()),
    (pa.string(), pa.binary()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.list_(pa.string()), pa.list_(pa.int32())),
    (pa.list_(pa.float64()), vector(3)),
    (vector(3), vector(4)),
    (pa.struct([("a", pa.string())]), pa.struct([("a", pa.int8())])),
]


@pytest.mark.parametrize(("source", "target"), UNFIT, ids=str)
def test_types_that_do_not_fit_are_refused_before_any_row(source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="in the data and"):
        Aligner(pa.schema([("x", source)]), Schema.from_arrow(pa.schema([("x", target)])))


@given(
    rows=st.lists(
        st.none() | st.lists(st.none() | st.integers(-50, 50), min_size=3, max_size=3), max_size=20
    ),
    start=st.integers(0, 5),
)
def test_lists_become_vectors(rows: list[list[float | None] | None], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.float32())).slice(start)
    assert fit(array, vector(3)).to_pylist() == rows[start:]


def test_a_vector_of_another_length_is_named() -> None:
    with pytest.raises(SchemaError, match=r"'x' holds vectors of length 3; a value has 2 elements"):
        fit(pa.array([[1.0, 2.0, 3.0], [1.0, 2.0]], pa.list_(pa.float32())), vector(3))


def test_null_lists_with_hidden_items_become_null_vectors() -> None:
    items = pa.array(np.arange(6, dtype=np.float32))
    array = pa.ListArray.from_arrays(pa.array([0, 3, 6]), items, mask=pa.array([True, False]))
    assert fit(array, vector(3)).to_pylist() == [None, [3.0, 4.0, 5.0]]


def test_columns_are_matched_by_name_and_may_be_missing() -> None:
    table = Schema.from_arrow(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int8())]))
    batch = pa.record_batch({"c": pa.array([1], pa.int8()), "a": [2]})
    aligner = Aligner(batch.schema, table)
    assert aligner.align(batch).to_pydict() == {"a": [2], "c": [1]}
    assert [field.id for field in aligner.schema.fields] == [0, 2]


def test_struct_fields_are_matched_by_name_and_may_be_missing() -> None:
    target = pa.struct([("a", pa.int64()), ("b", pa.string())])
    array = pa.array([{"b": "x"}, None], pa.struct([("b", pa.string())]))
    assert fit(array, target).to_pylist() == [{"a": None, "b": "x"}, None]


def test_all_differences_are_reported_at_once() -> None:
    table = pa.schema(
        [("a", pa.int32()), pa.field("b", pa.string(), False), ("s", pa.struct([("x", pa.int8())]))]
    )
    data = pa.schema(
        [("a", pa.string()), ("z", pa.int8()), ("s", pa.struct([("x", pa.int8()), ("y", pa.int8())]))]
    )
    with pytest.raises(SchemaError) as caught:
        Aligner(data, Schema.from_arrow(table))
    message = str(caught.value)
    for part in (
        "'a' is string",
        "'b' must not be null",
        "'z' is not in the table",
        "'s.y' is not in the table",
    ):
        assert part in message


def test_a_null_where_none_is_allowed() -> None:
    with pytest.raises(SchemaError, match="'x' must not be null"):
        fit(pa.array([1, None]), pa.int64(), nullable=False)
