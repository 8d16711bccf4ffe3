"""Reading through Spark: what a DataFrame shows, which version it sees, and what errors look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructType

import spark_lance
from spark_lance.table.format.table_ref import TableRef
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

ID = StructType().add("id", LongType())


@pytest.fixture
def path(tmp_path: Path) -> str:
    location = str(tmp_path / "t.lance")
    append(location, 0, 10)
    return location


def append(location: str, start: int, stop: int) -> None:
    ids = np.arange(start, stop)
    table = pa.table({"id": ids, "half": ids / 2, "name": [f"n{i}" for i in ids]})
    spark_lance.write_dataset(table, location, mode="append")


def load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("lance").options(**options).load(path)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("id").collect())


def error_of(action: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_a_read_equals_the_rows_in_order(spark: SparkSession, path: str) -> None:
    expected = spark.createDataFrame(
        [(i, i / 2, f"n{i}") for i in range(10)], "id long, half double, name string"
    )
    assert_df_equality(load(spark, path), expected)


def test_columns_are_chosen_by_option_and_by_schema(spark: SparkSession, path: str) -> None:
    expected = spark.createDataFrame([(f"n{i}", i) for i in range(10)], "name string, id long")
    assert_df_equality(load(spark, path, columns="name,id"), expected)
    schema = StructType().add("name", StringType()).add("id", LongType())
    assert_df_equality(spark.read.format("lance").schema(schema).load(path), expected)


@pytest.mark.skipif(not COUNTS_WITHOUT_COLUMNS, reason="Spark 4.0 loses such rows")
def test_rows_without_columns_are_counted(spark: SparkSession, path: str) -> None:
    append(path, 10, 25)
    assert load(spark, path, columns="[]").count() == 25
    assert spark.read.format("lance").schema(StructType()).load(path).count() == 25


def test_filters_and_aggregates(spark: SparkSession, path: str) -> None:
    append(path, 10, 20)
    frame = load(spark, path)
    assert frame.where("id >= 5 and name like 'n1%'").agg(f.sum("half")).first()[0] == 72.5  # type: ignore[index]
    assert frame.rdd.getNumPartitions() == 1
    assert load(spark, path, partition_bytes=1).rdd.getNumPartitions() == 2


def test_a_commit_between_load_and_action_changes_nothing(spark: SparkSession, path: str) -> None:
    plain, chosen = load(spark, path), load(spark, path, columns="id")
    append(path, 10, 12)
    assert ids(plain) == ids(chosen) == list(range(10))
    assert plain.where("id < 100").count() == 10
    assert load(spark, path).count() == 12


def test_a_read_keeps_its_version_when_the_driver_no_longer_plans(spark: SparkSession, path: str) -> None:
    spark = spark_lance.enable(spark.newSession())
    frame, given = load(spark, path), spark.read.format("lance").schema(ID).load(path)
    assert given.count() == 10
    append(path, 10, 12)
    spark.conf.set("spark.lance.planInDriver", "false")
    for one in (frame, given):
        assert ids(one.where("id > 7")) == [8, 9]
        assert one.count() == 10
    assert load(spark, path).count() == 12


@pytest.mark.parametrize("way", ["plain", "enabled", "pruned only"])
def test_with_a_schema_of_its_own_a_read_is_fixed_at_its_first_action(
    spark: SparkSession, path: str, way: str
) -> None:
    spark = spark.newSession()
    if way != "plain":
        spark_lance.enable(spark).conf.set("spark.lance.planInDriver", str(way == "enabled").lower())
    frame = spark.read.format("lance").schema(ID).load(path)
    assert frame.count() == 10
    append(path, 10, 12)
    assert frame.count() == 10
    assert frame.where("id < 100").count() == 10
    assert ids(frame.where("id > 5")) == [6, 7, 8, 9]
    assert frame.union(frame).count() == 20
    pinned = spark.read.format("lance").schema(ID).option("version", 1).load(path)
    assert pinned.count() == 10


def test_both_sides_of_a_self_join_see_one_version(spark: SparkSession, path: str) -> None:
    frame = load(spark, path)
    append(path, 10, 12)
    joined = frame.alias("a").join(frame.alias("b"), "id")
    assert joined.count() == 10
    schemaful = spark.read.format("lance").schema(ID).load(path)
    assert schemaful.union(schemaful).count() == 24


def test_a_temporary_view_serves_sql(spark: SparkSession, path: str) -> None:
    spark = spark.newSession()
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW numbers USING lance OPTIONS (path '{path}', columns 'id,half')"
    )
    assert spark.sql("SELECT sum(half) FROM numbers WHERE id > 7").first()[0] == 8.5  # type: ignore[index]
    spark.sql("INSERT INTO numbers VALUES (100, 1.5)")
    assert spark_lance.dataset(path).to_table().slice(10).to_pylist() == [
        {"id": 100, "half": 1.5, "name": None}
    ]


def test_old_versions_and_deleted_rows(spark: SparkSession, path: str) -> None:
    lance = pytest.importorskip("lance")
    append(path, 10, 20)
    lance.dataset(path).delete("id % 2 = 0")
    assert ids(load(spark, path)) == list(range(1, 20, 2))
    assert load(spark, path, columns="half").count() == 10
    if COUNTS_WITHOUT_COLUMNS:
        assert load(spark, path, columns="[]").count() == 10
    assert ids(load(spark, path, version=1)) == list(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 9}, "VersionNotFoundError: version 9 of"),
        ({"columns": "id,nope"}, "SchemaError: no column 'nope' in the table, which has id, half, name"),
        ({"bathc_size": 5}, "OptionError: unknown option 'bathc_size': did you mean 'batch_size'?"),
    ],
)
def test_mistakes_show_as_one_line_when_loading(
    spark: SparkSession, path: str, options: dict[str, Any], message: str
) -> None:
    error = error_of(lambda: load(spark, path, **options))
    assert message in error.splitlines()[0]
    assert "Traceback" not in error


def test_a_wrong_path_shows_as_one_line(spark: SparkSession, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for action in (
        lambda: load(spark, missing),
        lambda: spark.read.format("lance").schema(ID).load(missing).count(),
    ):
        error = error_of(action)
        assert f"TableNotFoundError: no Lance table at {missing}" in error.splitlines()[0]
        assert "Traceback" not in error


@pytest.mark.parametrize("way", ["plain", "enabled", "pruned only"])
def test_a_schema_that_does_not_fit_is_refused_whatever_is_read_of_it(
    spark: SparkSession, path: str, way: str
) -> None:
    spark = spark.newSession()
    if way != "plain":
        spark_lance.enable(spark).conf.set("spark.lance.planInDriver", str(way == "enabled").lower())
    frame = spark.read.format("lance").schema("half double, id string, zz int").load(path)
    for action in (
        frame.count,
        frame.collect,
        frame.select("half").collect,
        frame.where("half > 1").limit(1).select("half").collect,
    ):
        first = error_of(action).splitlines()[0]
        assert "column 'id' is bigint, not string" in first
        assert "no column zz" in first
    versions = spark.read.format("lance").option("table", "versions").schema("version string").load(path)
    assert "column 'version' is bigint, not string" in error_of(versions.count)


def test_a_table_newer_than_this_release_shows_as_one_line(spark: SparkSession, path: str) -> None:
    from spark_lance.io.store import open_store
    from spark_lance.proto import table_pb2
    from spark_lance.table.format.manifest import pack_manifest
    from spark_lance.table.versions.versions import load_latest

    store, root = open_store(path)
    manifest = load_latest(TableRef(store, root))
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    message.reader_feature_flags |= 1 << 40
    store.put(manifest.path, pack_manifest(message, b"", b""))
    error = error_of(lambda: load(spark, path))
    assert "UnsupportedFormatError: reading this table needs unknown feature flag" in error.splitlines()[0]
    assert "Traceback" not in error


def test_damage_found_by_a_task_shows_as_one_line(spark: SparkSession, path: str) -> None:
    (file,) = (Path(path) / "data").iterdir()
    data = bytearray(file.read_bytes())
    data[-60:-40] = bytes(20)
    file.write_bytes(data[:-1] + b"?")
    error = error_of(load(spark, path).collect)
    assert "FormatError" in error
    assert file.name in error
    assert "Traceback" not in error


def test_a_catalog_table_says_what_to_do_instead(spark: SparkSession, path: str) -> None:
    own = spark.newSession()
    own.conf.unset("spark.sql.catalog.lance")  # with a catalog of Lance the table is refused
    own.sql(f"CREATE TABLE lost_options (id BIGINT) USING lance OPTIONS (path '{path}')")
    try:
        assert "CREATE TEMPORARY VIEW" in error_of(own.table("lost_options").count)
        assert "CREATE TEMPORARY VIEW" in error_of(lambda: own.sql("INSERT INTO lost_options VALUES (1)"))
    finally:
        own.sql("DROP TABLE lost_options")


def test_vectors_stream_and_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "vectors")
    values = np.arange(5_000 * 768, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), 768)
    spark_lance.write_dataset(pa.table({"id": np.arange(5_000), "v": vectors}), location)
    frame = load(spark, location)
    assert frame.schema["v"].metadata == {"arrow.fixed-size-list.size": 768}
    row = frame.agg(f.sum(f.size("v")), f.sum(f.element_at("v", 1))).first()
    assert row is not None
    assert row[0] == values.size
    assert row[1] == float(np.arange(5_000, dtype=np.float64).sum() * 768)
