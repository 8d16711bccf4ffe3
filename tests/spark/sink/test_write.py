"""Writing through Spark: every type, what append accepts and refuses, overwrite, and failures."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.types as t
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.proto import transaction_pb2
from spark_lance.spark.options.column_options import VECTOR_SIZE
from spark_lance.spark.source import LanceDataSource

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

UTC = dt.timezone.utc
FLOATS = t.ArrayType(t.FloatType())
TIME = getattr(t, "TimeType", None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def save(frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("lance").mode(mode).options(**options).save(path)


def vectors(column: str) -> dict[str, Any]:
    """The option that makes a column one of vectors of length 2."""
    return {f"{column}.arrow.fixed-size-list.size": 2}


def load(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("lance").load(path)


def data_files(path: str) -> set[str]:
    return {file.name for file in (Path(path) / "data").glob("*")}


def versions(path: str) -> int:
    return spark_lance.dataset(path).latest_version


def error_of(action: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


VALUES: list[tuple[str, t.DataType, list[Any]]] = [
    ("bool", t.BooleanType(), [True, False]),
    ("byte", t.ByteType(), [-128, 127]),
    ("short", t.ShortType(), [-32768, 32767]),
    ("int", t.IntegerType(), [-(2**31), 2**31 - 1]),
    ("long", t.LongType(), [-(2**63), 2**63 - 1]),
    ("float", t.FloatType(), [1.5, float("-inf")]),
    ("double", t.DoubleType(), [-0.0, 1e300]),
    ("decimal", t.DecimalType(20, 5), [Decimal("-12345.67891"), Decimal("0.00001")]),
    ("wide_decimal", t.DecimalType(38, 0), [Decimal(10**38 - 1), Decimal(-1)]),
    ("string", t.StringType(), ["", "größer 東京"]),
    ("binary", t.BinaryType(), [bytearray(b""), bytearray(b"\x00\xff")]),
    ("date", t.DateType(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("stamp", t.TimestampType(), [dt.datetime(1969, 7, 20, 20, 17, 40, 1), dt.datetime(2038, 1, 19)]),
    ("ntz", t.TimestampNTZType(), [dt.datetime(1900, 1, 1, 0, 0, 0, 999999), dt.datetime(2100, 1, 1)]),
    ("interval", t.DayTimeIntervalType(), [dt.timedelta(days=-3, microseconds=7), dt.timedelta(0)]),
    ("array", t.ArrayType(t.StringType()), [[], ["a", None, "b"]]),
    ("dense", t.ArrayType(t.LongType(), False), [[1, 2, 3], []]),
    ("arrays", t.ArrayType(t.ArrayType(t.DoubleType())), [[[1.0], None, []], []]),
    ("map", t.MapType(t.StringType(), t.IntegerType()), [{"a": 1, "b": None}, {}]),
    (
        "struct",
        t.StructType().add("a", t.LongType()).add("b", t.StructType().add("c", t.StringType())),
        [(1, ("x",)), (None, None)],
    ),
    (
        "deep",
        t.MapType(t.LongType(), t.ArrayType(t.StructType().add("k", t.DateType(), False))),
        [{1: [(dt.date(2020, 2, 29),), None], 2: None}, {}],
    ),
    ("void", t.NullType(), [None, None]),
]


def test_every_type_comes_back_as_it_was(spark: SparkSession, path: str) -> None:
    schema = t.StructType([t.StructField(name, kind) for name, kind, _ in VALUES]).toNullable()
    rows = [tuple(values[i] for *_, values in VALUES) for i in range(2)]
    frame = spark.createDataFrame([*rows, (None,) * len(VALUES), rows[0]], schema).coalesce(1)
    save(frame, path)
    assert_df_equality(load(spark, path), frame)
    # What Spark read, it can append to the table that it came from.
    save(load(spark, path), path)
    assert_df_equality(load(spark, path), frame.union(frame))


@pytest.mark.skipif(TIME is None, reason="TIME came with Spark 4.1")
def test_times_and_variants_come_back_as_they_were(spark: SparkSession, path: str) -> None:
    assert TIME is not None
    schema = t.StructType([t.StructField("t", TIME(6))])
    rows = [(dt.time(23, 59, 59, 999999),), (None,)]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame = frame.withColumn("v", f.parse_json(f.lit('{"a": [1, "x"]}')))
    save(frame, path)
    result = load(spark, path)
    assert result.schema["t"].dataType == TIME(6)
    assert result.schema["v"].dataType == t.VariantType()
    answer = result.selectExpr("t", "variant_get(v, '$.a[1]', 'string') AS x").collect()
    assert [tuple(row) for row in answer] == [(dt.time(23, 59, 59, 999999), "x"), (None, "x")]


def test_new_tables_may_hold_nulls_and_old_ones_keep_their_not_null(spark: SparkSession, path: str) -> None:
    inner = pa.struct([pa.field("k", pa.int64(), nullable=False)])
    stored = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.list_(pa.field("item", inner, nullable=False)), nullable=False),
            pa.field("c", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        ]
    )
    rows = [{"a": 1, "b": [{"k": 2}], "c": [("x", 3)]}, {"a": 2, "b": [], "c": None}]
    spark_lance.write_dataset(pa.Table.from_pylist(rows, stored), path)
    frame = load(spark, path)
    k = t.StructType([t.StructField("k", t.LongType(), False)])
    assert frame.schema["a"] == t.StructField("a", t.LongType(), False)
    assert frame.schema["b"] == t.StructField("b", t.ArrayType(k, False), False)
    assert frame.schema["c"].dataType == t.MapType(t.StringType(), t.LongType(), False)
    # Overwritten with what was read from it, the table keeps it; a new table does not take it over.
    save(frame, path, "overwrite")
    assert spark_lance.dataset(path).schema == stored
    save(frame, path + ".copy")
    assert load(spark, path + ".copy").schema == frame.schema.toNullable()
    assert load(spark, path + ".copy").collect() == frame.collect()


def test_types_that_cannot_be_stored_are_refused_before_any_task(spark: SparkSession, path: str) -> None:
    frame = spark.range(3).selectExpr("id", "INTERVAL '1' MONTH AS m", "array(INTERVAL '2' YEAR) AS y")
    error = error_of(lambda: save(frame, path))
    assert "m: Lance has no type for interval month" in error
    assert "y: Lance has no type for interval year" in error
    assert not Path(path).exists()


def test_append_takes_columns_by_name_in_any_order_and_a_part_of_them(spark: SparkSession, path: str) -> None:
    schema = "id long, name string, n int, st struct<a:int,b:string>"
    save(spark.createDataFrame([(1, "x", 5, (1, "y"))], schema), path)
    save(spark.sql("SELECT CAST(7 AS SMALLINT) AS n, 'z' AS NAME, 2L AS id"), path)
    save(spark.sql("SELECT named_struct('b', 'only') AS st, 3L AS id"), path)
    rows = [(1, "x", 5, (1, "y")), (2, "z", 7, None), (3, None, None, (None, "only"))]
    expected = spark.createDataFrame(rows, schema)
    assert_df_equality(load(spark, path).orderBy("id"), expected)


def test_append_lists_all_differences(spark: SparkSession, path: str) -> None:
    id_field = pa.field("id", pa.int64(), nullable=False)
    stored = pa.schema([id_field, ("name", pa.string()), ("n", pa.int32())])
    spark_lance.write_dataset(
        pa.table({"id": [1], "name": ["x"], "n": pa.array([5], pa.int32())}, stored), path
    )
    before = versions(path), data_files(path)
    error = error_of(lambda: save(spark.sql("SELECT 5 AS name, 6L AS n, 'x' AS other"), path))
    for difference in ("column 'other'", "column 'name'", "column 'n'", "column 'id'"):
        assert difference in error, difference
    assert "Traceback" not in error
    assert (versions(path), data_files(path)) == before


def test_append_refuses_nulls_where_the_table_has_none(spark: SparkSession, path: str) -> None:
    stored = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    spark_lance.write_dataset(pa.table({"id": [1]}, stored), path)
    save(spark.createDataFrame([(2,)], "id long"), path)
    before = versions(path), data_files(path)
    error = error_of(lambda: save(spark.createDataFrame([(3,), (None,)], "id long").coalesce(1), path))
    assert "column 'id' must not be null" in error
    assert (versions(path), data_files(path)) == before


def test_vectors_by_option_and_by_metadata(spark: SparkSession, path: str, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, [1.0, 2.0]), (2, None)], "id long, Vec array<float>").coalesce(1)
    save(frame, path, **vectors("Vec"))
    assert spark_lance.dataset(path).schema.field("Vec").type == pa.list_(pa.float32(), 2)
    save(frame, path)
    result = load(spark, path)
    assert result.collect() == frame.union(frame).collect()
    # The length travels with the DataFrame to other tables.
    other = str(tmp_path / "other")
    save(result.select("Vec"), other)
    assert spark_lance.dataset(other).schema.field("Vec").type == pa.list_(pa.float32(), 2)
    third = str(tmp_path / "third")
    save(frame.withMetadata("Vec", {VECTOR_SIZE: 2}), third)
    assert spark_lance.dataset(third).schema.field("Vec").type == pa.list_(pa.float32(), 2)


def test_a_vector_of_another_length_fails_the_write_by_name(spark: SparkSession, path: str) -> None:
    save(spark.sql("SELECT array(1f, 2f) AS v"), path, **vectors("v"))
    before = versions(path), data_files(path)
    frame = spark.range(0, 100, 1, 1).selectExpr("IF(id < 99, array(1f, 2f), array(1f)) AS v")
    error = error_of(lambda: save(frame, path))
    assert "column 'v' holds vectors of length 2" in error
    assert "Traceback" not in error
    assert (versions(path), data_files(path)) == before
    assert "no column 'w'" in error_of(lambda: save(frame, path, "overwrite", **vectors("w")))


def test_columns_of_types_that_spark_lacks_are_appended_to(spark: SparkSession, path: str) -> None:
    table = pa.table(
        {
            "u8": pa.array([255, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "half": pa.array([1.5, None], pa.float32()).cast(pa.float16()),
            "large": pa.array(["x", None], pa.large_string()),
            "fixed": pa.array([b"abc", None], pa.binary(3)),
            "ms": pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
            "days": pa.array([86_400_000, None], pa.date64()),
            "dict": pa.array(["a", None], pa.string()).dictionary_encode(),
            "vecs": pa.array([[1.5, None], None], pa.list_(pa.float16(), 2)),
        }
    )
    spark_lance.write_dataset(table, path)
    frame = load(spark, path)
    expected = frame.collect()
    save(frame, path)
    assert load(spark, path).collect() == expected * 2
    assert spark_lance.dataset(path).schema.remove_metadata() == table.schema
    assert "u8" in error_of(lambda: save(spark.sql("SELECT CAST(256 AS SMALLINT) AS u8"), path))
    assert "fixed" in error_of(lambda: save(spark.sql("SELECT X'00' AS fixed"), path))
    # Overwriting with what was read keeps the types as well; other Spark types bring their own.
    save(frame.withColumn("u8", f.lit(1)), path, "overwrite")
    after = spark_lance.dataset(path).schema
    assert after.field("u8").type == pa.int32()
    assert after.remove_metadata().remove(0) == table.schema.remove(0)


def test_overwrite_replaces_rows_and_schema_and_keeps_the_old_version(spark: SparkSession, path: str) -> None:
    old = spark.createDataFrame([(1, "x")], "id long, name string")
    save(old, path)
    new = spark.createDataFrame([(2.5,), (3.5,)], "score double").coalesce(1)
    save(new, path, "overwrite")
    assert_df_equality(load(spark, path), new)
    assert_df_equality(spark.read.format("lance").option("version", 1).load(path), old)
    # Reading the table that is overwritten is fine: the old version stays as it is.
    save(load(spark, path).selectExpr("score * 2 AS score"), path, "overwrite")
    assert [row[0] for row in load(spark, path).collect()] == [5.0, 7.0]


def test_empty_dataframes(spark: SparkSession, path: str) -> None:
    empty = spark.createDataFrame([], "id long, name string")
    save(empty, path)
    assert_df_equality(load(spark, path), empty)
    assert load(spark, path).count() == 0
    save(empty.select("id"), path)
    assert versions(path) == 1
    save(spark.createDataFrame([(1, "x")], "id long, name string"), path)
    save(empty, path, "overwrite")
    assert (versions(path), load(spark, path).count()) == (3, 0)


def test_files_are_cut_by_rows_and_options_reach_the_table(spark: SparkSession, path: str) -> None:
    options: dict[str, Any] = {
        "max_rows_per_file": 30,
        "data_storage_version": "2.1",
        "enable_stable_row_ids": "true",
        "commit_message": "first load",
    }
    # Two tasks, also in a session whose driver would write so few rows by itself.
    spark.conf.set("spark.lance.localRows", "0")
    try:
        save(spark.range(0, 200, 1, 2), path, **options)
    finally:
        spark.conf.unset("spark.lance.localRows")
    dataset = spark_lance.dataset(path)
    assert [fragment.physical_rows for fragment in dataset.get_fragments()] == [30, 30, 30, 10] * 2
    assert dataset.manifest.file_version.text == "2.1"
    assert dataset.manifest.uses_stable_row_ids
    transaction = transaction_pb2.Transaction.FromString(read_inline(path))
    assert transaction.transaction_properties["__lance_commit_message"] == "first load"
    assert "is 2.2, but the table's is 2.1" in error_of(
        lambda: save(spark.range(1), path, data_storage_version="2.2")
    )
    assert "is only for new tables" in error_of(
        lambda: save(spark.range(1), path, enable_stable_row_ids="false")
    )


def read_inline(path: str) -> bytes:
    manifest = spark_lance.dataset(path).manifest
    assert manifest.inline_transaction is not None
    return manifest.inline_transaction


def test_other_save_modes_are_refused_by_spark(spark: SparkSession, path: str) -> None:
    for mode in ("error", "ignore"):
        assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in error_of(
            lambda mode=mode: save(spark.range(1), path, mode)
        )


def test_a_failing_task_leaves_the_table_as_it_was(spark: SparkSession, path: str) -> None:
    save(spark.range(5), path)
    failing = spark.range(0, 50_000, 1, 2).selectExpr("IF(id = 49000, raise_error('boom'), id) AS id")
    # A failure on the JVM's side reaches the task as the end of its rows: its file stays, unused.
    assert "boom" in error_of(lambda: save(failing, path))
    assert versions(path) == 1
    assert load(spark, path).count() == 5


def test_a_session_in_another_time_zone_stores_the_same_instants(spark: SparkSession, path: str) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        save(
            spark.sql(
                "SELECT TIMESTAMP '2024-03-10 05:30:00' AS at, TIMESTAMP_NTZ '2024-03-10 05:30:00' AS wall"
            ),
            path,
        )
        assert (
            load(spark, path).selectExpr("string(at)", "string(wall)").first() == ("2024-03-10 05:30:00",) * 2
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    (row,) = spark_lance.dataset(path).to_table().to_pylist()
    assert row["at"] == dt.datetime(2024, 3, 10, tzinfo=UTC)
    assert row["wall"] == dt.datetime(2024, 3, 10, 5, 30)


def test_char_varchar_and_user_defined_types_are_stored_as_what_they_hold(
    spark: SparkSession, path: str
) -> None:
    from pyspark.ml.linalg import Vectors

    frame = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["vector"])
    save(frame.selectExpr("vector", "CAST('ab' AS STRING) AS s"), path)
    assert load(spark, path).first()["vector"]["values"] == [1.0, 2.0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "options", "error", "message"),
    [
        (t.StructType(), {}, SchemaError, "no columns"),
        (t.StructType().add("a", "long").add("a", "long"), {}, SchemaError, "occur twice: a"),
        (t.StructType().add("_rowid", "long"), {}, SchemaError, "reserved"),
        (
            t.StructType().add("V", FLOATS).add("v", FLOATS),
            {"v.arrow.fixed-size-list.size": "2", "casesensitive": "true"},
            OptionError,
            "several columns",
        ),
        (t.StructType().add("a", "long"), {"data_storage_version": "9"}, OptionError, "unknown data storage"),
        (
            t.StructType().add("a", t.MapType(t.LongType(), t.LongType())),
            {"data_storage_version": "2.1"},
            SchemaError,
            "no maps",
        ),
    ],
    ids=["empty", "doubled", "reserved", "ambiguous", "version", "map in 2.1"],
)
def test_new_tables_that_cannot_be(
    path: str, schema: t.StructType, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        LanceDataSource({"path": path, **options}).writer(schema, False)
    assert message in str(caught.value)
    assert not Path(path).exists()


def test_lists_that_are_all_empty(spark: SparkSession, tmp_path: Path) -> None:
    """Java's Arrow sends the empty lists within them without offsets."""
    path = str(tmp_path / "t.lance")
    frame = spark.range(4).selectExpr(
        "id",
        "cast(array() AS array<array<string>>) AS lists",
        "IF(id > 1, NULL, cast(map() AS map<string, array<string>>)) AS mapped",
        "named_struct('x', cast(array() AS array<array<struct<y: array<int>>>>)) AS nested",
    )
    frame.write.format("lance").mode("append").save(path)
    frame.where("id < 0").write.format("lance").mode("append").save(path)
    assert spark.read.format("lance").load(path).orderBy("id").collect() == frame.orderBy("id").collect()
