"""Generated types, values and nulls between pylance, the data source and Spark, in every direction.

The property test plays Spark: it hands the reader's batches to the writer, as Spark does but for the JVM. One
test with many columns goes through Spark itself.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyspark.sql.types as t
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.spark.schema.string_types import declared_schema
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.source import LanceDataSource
from tests.spark.carriers import spark_schema
from tests.strategies import canonical, random_array, tables

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


def seen(path: str) -> tuple[Any, pa.Table]:
    """What Spark is told of a table, and what it is given."""
    source = LanceDataSource({"path": path})
    schema = source.schema()
    reader = source.reader(schema)
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    # As Spark takes them: by its own types.
    kinds = arrow_schema(schema)
    taken = [pa.RecordBatch.from_arrays(batch.columns, schema=kinds) for batch in batches]
    return schema, pa.Table.from_batches(taken, kinds)


def by_pylance(table: pa.Table, path: str) -> None:
    """Write with pylance, which fails on some tables with an assertion of its own."""
    try:
        lance.write_dataset(table, path)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        assume(False)


def save(path: str, schema: Any, rows: pa.Table, **options: str) -> None:
    writer = LanceDataSource({"path": path, **options}).writer(schema, False)
    assert isinstance(writer, LanceWriter)
    writer.commit([writer.write(iter(rows.to_batches()))])


def same(path: str) -> str:
    """The rows of a table by pylance, which must be those that we read."""
    theirs = lance.dataset(path).to_table()
    ours = spark_lance.dataset(path).to_table()
    assert ours.schema == theirs.schema
    texts = [canonical(table.column(i)) for table in (ours, theirs) for i in range(table.num_columns)]
    assert texts[: len(texts) // 2] == texts[len(texts) // 2 :]
    return str(texts)


def has_structs_in_fixed_lists(kind: pa.DataType, inside: bool = False) -> bool:
    """Return whether a type has structs anywhere within lists of a fixed size."""
    if inside and pa.types.is_struct(kind):
        return True
    inside = inside or pa.types.is_fixed_size_list(kind)
    return any(has_structs_in_fixed_lists(kind.field(i).type, inside) for i in range(kind.num_fields))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_spark_read_it_can_write(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("t")
    first, copy = str(folder / "first"), str(folder / "copy")
    table = data.draw(tables("2.2", max_columns=2, max_rows=20))
    # Pylance does not read lists of a fixed size of structs beside other columns.
    assume(not any(has_structs_in_fixed_lists(field.type) for field in table.schema))
    by_pylance(table, first)
    try:
        spark_schema(table.schema)
    except SchemaError as error:
        with pytest.raises(SchemaError, match=re.escape(str(error))):
            seen(first)
        return
    schema, rows = seen(first)
    before = same(first)
    # Appended to where they came from.
    save(first, schema, rows)
    if rows.num_rows:
        assert same(first) != before
    assert lance.dataset(first).schema == lance.dataset(first, version=1).schema
    again = seen(first)[1]
    assert [canonical(column) for column in again.slice(0, rows.num_rows).columns] == [
        canonical(column) for column in again.slice(rows.num_rows).columns
    ]
    # Written to a new table, in the types that Spark has.
    save(copy, schema, rows)
    same(copy)
    copied = seen(copy)[1]
    assert [canonical(column) for column in copied.columns] == [canonical(column) for column in rows.columns]


def _drawn(rng: np.random.Generator, depth: int) -> pa.DataType:
    """A type that Spark has or that is seen as one, nested up to `depth` levels."""
    leaves = [
        *(pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.date32(), pa.decimal128(12, 3)),
        *(pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.duration("us"), pa.list_(pa.float32(), 3)),
    ]
    choice = int(rng.integers(0, 4)) if depth else 0
    if choice == 1:
        return pa.struct([(name, _drawn(rng, depth - 1)) for name in "ab"])
    if choice == 2:
        return pa.list_(_drawn(rng, depth - 1))
    if choice == 3:
        return pa.map_(pa.string(), _drawn(rng, depth - 1))
    return leaves[int(rng.integers(0, len(leaves)))]


def test_many_types_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(20261121)
    fields = [pa.field(f"c{i}", _drawn(rng, 3)) for i in range(30)]
    arrays = [random_array(rng, field, 50) for field in fields]
    table = pa.table(
        [pa.array(range(50), pa.int64()), *arrays], schema=pa.schema([("id", pa.int64()), *fields])
    )
    first, copy = str(tmp_path / "first"), str(tmp_path / "copy")
    spark_lance.write_dataset(table, first)
    frame = spark.read.format("lance").load(first)
    frame.write.format("lance").mode("append").save(copy)
    frame.write.format("lance").mode("append").save(first)
    same(first)
    same(copy)
    whole = seen(first)[1].sort_by("id")
    copied = seen(copy)[1].sort_by("id")
    for name in table.schema.names:
        column = whole.column(name)
        halves = [canonical(column.take(list(range(start, 100, 2)))) for start in (0, 1)]
        assert halves[0] == halves[1] == canonical(copied.column(name)), name


def test_times_variants_and_intervals_inside_of_others(tmp_path: Path) -> None:
    leaves: list[tuple[t.DataType, Any]] = [
        (t.VariantType(), {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}),
        (t.DayTimeIntervalType(), dt.timedelta(days=-1, microseconds=3)),
        (t.VarcharType(5), "abc"),
        (t.CharType(3), "abc"),
    ]
    if hasattr(t, "TimeType"):
        leaves.append((t.TimeType(6), dt.time(23, 59, 59, 999999)))
    for number, (leaf, value) in enumerate(leaves):
        schema = t.StructType(
            [
                t.StructField("plain", leaf),
                t.StructField("array", t.ArrayType(leaf)),
                t.StructField("struct", t.StructType([t.StructField("x", leaf)])),
                t.StructField("map", t.MapType(t.StringType(), t.ArrayType(leaf))),
            ]
        )
        columns = [
            [value, None],
            [[value, None], None],
            [{"x": value}, {"x": None}],
            [[("k", [value])], None],
        ]
        rows = pa.table(columns, schema=arrow_schema(schema))
        path = str(tmp_path / str(number))
        for _ in range(2):
            save(path, schema, rows)
        same(path)
        message, result = seen(path)
        assert declared_schema(message) == schema
        assert result.to_pylist() == rows.to_pylist() * 2
