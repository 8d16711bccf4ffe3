"""Metadata tables as DataFrames: columns, filters, versions, views, with and without `enable`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps
from pyspark.errors import AnalysisException
from pyspark.sql.types import LongType, StringType, StructField, StructType

import spark_lance
from spark_lance.expressions.expressions import Call, Column, Literal
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan import metadata
from spark_lance.spark.source import LanceDataSource
from spark_lance.table.metadata import METADATA_TABLES
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS, pyspark_schema
from tests.table.histories import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of four versions, with a tag, a branch and a setting."""
    path = str(tmp_path_factory.mktemp("metadata") / "t")
    spark_lance.write_dataset(rows(0, 30), path, max_rows_per_file=8)
    table = spark_lance.dataset(path).delete("a % 10 = 3")
    with spark_lance.commit_options(message="more"):
        table = spark_lance.write_dataset(rows(30, 5), path, mode="append")
    table.tags.create("loaded", 3)
    table.create_branch("dev", 2)
    table.update_config({"owner": "etl"})
    return path


def table(spark: SparkSession, path: str, name: str, **options: object) -> DataFrame:
    reader = spark.read.format("lance").option("table", name)
    return reader.options(**{key: str(value) for key, value in options.items()}).load(path)


def test_every_table_comes_as_spark_expects_it(path: str) -> None:
    counts = {}
    for name in METADATA_TABLES:
        source = pickle.loads(dumps(LanceDataSource({"path": path, "table": name})))  # type: ignore[no-untyped-call]
        schema = source.schema()
        reader = pickle.loads(dumps(source.reader(schema)))  # type: ignore[no-untyped-call]
        batches = list(reader.read(reader.partitions()[0]))
        assert all(batch.schema.equals(pyspark_schema(schema)) for batch in batches), name
        counts[name] = sum(batch.num_rows for batch in batches)
    assert counts == {
        **{"versions": 4, "history": 4, "transactions": 4, "fragments": 5, "schema": 2, "files": 10},
        **{"tags": 1, "branches": 1, "config": 1, "indices": 0},
        **{"snapshots": 4, "refs": 3, "metadata_log_entries": 4, "manifests": 1, "partitions": 1},
        **{"entries": 8, "data_files": 5, "delete_files": 3, "position_deletes": 3},
        **{"all_data_files": 5, "all_delete_files": 3, "all_files": 8, "all_entries": 27, "all_manifests": 4},
    }


def test_history_has_delta_s_columns_and_order(spark: SparkSession, path: str) -> None:
    history = table(spark, path, "history")
    assert history.columns[:15] == [
        *("version", "timestamp", "userId", "userName", "operation", "operationParameters", "job"),
        *("notebook", "clusterId", "readVersion", "isolationLevel", "isBlindAppend", "operationMetrics"),
        *("userMetadata", "engineInfo"),
    ]
    assert dict(history.dtypes)["notebook"] == "struct<notebookId:string>"
    assert dict(history.dtypes)["operationMetrics"] == "map<string,string>"
    result = history.selectExpr("version", "operation", "operationMetrics.numOutputRows", "userMetadata")
    assert [tuple(row) for row in result.collect()] == [
        (4, "SET TBLPROPERTIES", None, None),
        (3, "WRITE", "5", "more"),
        (2, "DELETE", None, None),
        (1, "CREATE TABLE AS SELECT", "30", None),
    ]


def test_columns_filters_and_schemas(spark: SparkSession, path: str) -> None:
    some = table(
        spark, path, "history", columns="operation,version", filter="version > 1 and readVersion < 3"
    )
    assert [tuple(row) for row in some.collect()] == [("WRITE", 3), ("DELETE", 2)]
    by_schema = spark.read.format("lance").option("table", "history").schema("version bigint").load(path)
    assert [row.version for row in by_schema.where("version % 2 = 0").collect()] == [4, 2]


def test_versions_tags_times_and_branches(spark: SparkSession, path: str) -> None:
    def seen(**options: object) -> list[int]:
        result = table(spark, path, "versions", columns="version", **options)
        return [row.version for row in result.collect()]

    second = table(spark, path, "versions").where("version = 2").first()
    assert second is not None
    assert seen(version=2) == [2, 1]
    assert seen(branch="dev") == [2]
    assert seen(tag="loaded") == [3, 2, 1]
    assert seen(asof=second.timestamp.astimezone().isoformat()) == [2, 1]
    assert table(spark, path, "config", version=3).count() == 0


def test_a_view_of_a_metadata_table(spark: SparkSession, path: str) -> None:
    spark = spark.newSession()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW past USING lance "
        f"OPTIONS (path '{path}', `table` 'fragments', columns 'id, rows, columns')"
    )
    result = spark.sql("SELECT count(*), sum(rows), max(columns[1]) FROM past").first()
    assert result is not None
    assert tuple(result) == (5, 32, "b")


def test_enable_leaves_columns_out(spark: SparkSession, path: str) -> None:
    other = spark_lance.enable(spark.newSession())
    # The driver would answer it.
    other.conf.set("spark.lance.localRows", "0")
    history = table(other, path, "history")
    some = history.where("version >= 3").select("operation", "operationMetrics.numOutputRows")
    plan = some._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan lance[" in plan
    assert "engineInfo" not in plan
    assert [tuple(row) for row in some.collect()] == [("SET TBLPROPERTIES", None), ("WRITE", "5")]
    assert history.count() == 4
    assert history.where("operation = 'WRITE'").count() == 1
    inner = table(other, path, "schema").join(history, history.version == 1).selectExpr("path", "version")
    assert [tuple(row) for row in inner.orderBy("path").collect()] == [("a", 1), ("b", 1)]


def test_a_limit_counts_the_rows_that_meet_the_conditions(path: str) -> None:
    schema = StructType([StructField("version", LongType()), StructField("operation", StringType())])
    trees = [Call("<", (Column(("version",)), Literal(4)))]
    for limit, expected in ((None, [3, 2, 1]), (2, [3, 2])):
        reader = metadata.reader(read_options({"path": path, "table": "history"}), schema, None)
        reader.set_filters(trees, limit)
        batches = list(reader.read(reader.partitions()[0]))
        assert [number for batch in batches for number in batch["version"].to_pylist()] == expected


@pytest.mark.skipif(not COUNTS_WITHOUT_COLUMNS, reason="Spark 4.0 loses such rows")
def test_rows_without_columns_are_counted(path: str) -> None:
    source = LanceDataSource({"path": path, "table": "fragments", "columns": "[]"})
    reader = source.reader(source.schema())
    batches = list(reader.read(reader.partitions()[0]))
    assert sum(batch.num_rows for batch in batches if isinstance(batch, pa.RecordBatch)) == 5


def test_mistakes_say_what_is_right(spark: SparkSession, path: str, tmp_path: Path) -> None:
    with pytest.raises(
        AnalysisException, match="metadata table 'snapshot' does not exist; use one of versions, history"
    ):
        table(spark, path, "snapshot")
    with pytest.raises(AnalysisException, match="no column 'nope' in the table, which has id, rows"):
        table(spark, path, "fragments", columns="nope")
    with pytest.raises(AnalysisException, match="no Lance table at"):
        table(spark, str(tmp_path / "none"), "history")
