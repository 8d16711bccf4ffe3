"""What a write does to the table's columns and rows: mergeSchema, overwriteSchema, replaceWhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

import spark_lance
from spark_lance.errors import ExpressionError, OptionError, SchemaError
from spark_lance.spark.source import LanceDataSource

Save = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def save(frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("lance").mode(mode).options(**options).save(path)


def rows(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    result = spark.read.format("lance").load(path)
    assert [tuple(row.values()) for row in lance.dataset(path).to_table().to_pylist()] == [
        tuple(row.values()) for row in spark_lance.dataset(path).to_table().to_pylist()
    ]
    return sorted((tuple(row) for row in result.collect()), key=str)


def test_merge_schema(spark: SparkSession, path: str) -> None:
    save(spark.sql("SELECT 1L AS id, named_struct('x', 1) AS s"), path)
    second = spark.sql(
        "SELECT 'n' AS name, 2L AS ID, named_struct('y', 2.5D) AS s, array(1f, 2f) AS v, map('k', 1) AS m"
    )
    with pytest.raises(PySparkException, match="is not in the table"):
        save(second, path)
    vector: dict[str, Any] = {"v.arrow.fixed-size-list.size": 2}
    save(second, path, mergeSchema=True, **vector)
    assert str(lance.dataset(path).schema.field("v").type) == "fixed_size_list<item: float>[2]"
    assert spark.read.format("lance").load(path).columns == ["id", "s", "name", "v", "m"]
    assert rows(spark, path) == [
        (1, (1, None), None, None, None),
        (2, (None, 2.5), "n", [1.0, 2.0], {"k": 1}),
    ]


@pytest.mark.parametrize("merge", ["true", "false"])
def test_types_are_not_changed(path: str, merge: str) -> None:
    lance.write_dataset(pa.table({"id": pa.array([1], pa.int32()), "s": ["x"]}), path)
    wide = StructType().add("id", LongType()).add("s", LongType())
    with pytest.raises(SchemaError) as caught:
        LanceDataSource({"path": path, "mergeSchema": merge}).writer(wide, False)
    assert "column 'id' is bigint in the data and int in the table: write cast(id AS int)" in str(
        caught.value
    )
    assert "column 's' is bigint in the data and string in the table" in str(caught.value)
    assert ("mergeSchema" in str(caught.value)) == (merge == "true")


def test_overwrite_schema(spark: SparkSession, path: str) -> None:
    kinds = pa.schema([pa.field("u", pa.uint8()), pa.field("v", pa.list_(pa.float32(), 2))])
    lance.write_dataset(pa.table({"u": [1], "v": [[1, 2]]}, schema=kinds), path)
    frame = spark.sql("SELECT cast(7 AS smallint) AS u, 'x' AS w")
    save(frame, path, "overwrite")
    assert lance.dataset(path).schema == pa.schema({"u": pa.uint8(), "w": pa.string()})
    save(frame, path, "overwrite", overwriteSchema=True)
    assert lance.dataset(path).schema == pa.schema({"u": pa.int16(), "w": pa.string()})
    with pytest.raises(PySparkException, match="'z' is not in the table"):
        save(spark.sql("SELECT 1 AS z"), path, "overwrite", overwriteSchema=False)
    save(spark.sql("SELECT 'y' AS w"), path, "overwrite", overwriteSchema=False)
    assert rows(spark, path) == [(None, "y")]
    save(spark.sql("SELECT 1 AS z, 'q' AS W"), path, "overwrite", mergeSchema=True)
    assert rows(spark, path) == [(None, "q", 1)]
    assert lance.dataset(path).schema.names == ["u", "w", "z"]


def test_replace_where(spark: SparkSession, path: str) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 AS part", "cast(id AS string) AS s")
    save(frame, path, max_rows_per_file=100)
    new = spark.range(5).selectExpr("1L AS part", "id")
    save(new, path, "overwrite", replaceWhere="part = 1 and id < 500")
    assert spark_lance.dataset(path).version == 2
    table = spark_lance.dataset(path).to_table()
    assert table.num_rows == 1000 - 167 + 5
    remaining = table.filter(pa.compute.is_valid(table["s"]))
    assert all(row["part"] != 1 or row["id"] >= 500 for row in remaining.to_pylist())
    with pytest.raises(PySparkException, match=r"5 of 5 rows .* do not match the condition .* part = 2"):
        save(new.repartition(1), path, "overwrite", replaceWhere="part = 2")
    assert spark_lance.dataset(path).version == 2
    used = {
        file.path
        for version in (1, 2)
        for fragment in lance.dataset(path, version=version).get_fragments()
        for file in fragment.data_files()
    }
    assert {file.name for file in (Path(path) / "data").iterdir()} == used


def test_replace_where_through_a_view(spark: SparkSession, path: str) -> None:
    save(spark.range(10), path)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW part USING lance OPTIONS (path '{path}', replaceWhere 'id >= 5')"
    )
    spark.sql("INSERT OVERWRITE part SELECT 7L AS id")
    assert rows(spark, path) == [(0,), (1,), (2,), (3,), (4,), (7,)]
    spark.catalog.dropTempView("part")


@pytest.mark.parametrize(
    ("options", "overwrite", "error", "message"),
    [
        ({"replaceWhere": "id > 1"}, False, OptionError, "for mode overwrite"),
        (
            {"replaceWhere": "id > 1", "overwriteSchema": "true"},
            True,
            OptionError,
            "leave out .overwriteSchema.",
        ),
        ({"replaceWhere": "id >"}, True, ExpressionError, "id >"),
        ({"replaceWhere": "other > 1"}, True, ExpressionError, "other"),
    ],
)
def test_refusals(
    path: str, options: dict[str, str], overwrite: bool, error: type[Exception], message: str
) -> None:
    lance.write_dataset(pa.table({"id": [1]}), path)
    schema = StructType().add("id", LongType())
    with pytest.raises(error, match=message):
        LanceDataSource({"path": path, **options}).writer(schema, overwrite)


def test_columns_that_differ_in_case_only(path: str) -> None:
    """At the top they are the table's; inside of structs, where Spark tells them apart, they are refused."""
    inner = StructType().add("x", LongType())
    lance.write_dataset(pa.table({"s": [{"X": 1}]}), path)
    schema = StructType().add("S", inner).add("n", StringType())
    with pytest.raises(SchemaError, match="differ only in the case"):
        LanceDataSource({"path": path, "mergeSchema": "true"}).writer(schema, False)
