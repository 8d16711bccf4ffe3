"""Spark on tables that pylance wrote in the legacy format, and on tables with blob columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StructType

import spark_lance

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


def test_legacy_tables_are_read_and_not_written(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    data = {"id": range(3000), "name": [f"n{i}" for i in range(3000)], "vector": [[1.0, 2.0]] * 3000}
    table = pa.table(data).cast(
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("vector", pa.list_(pa.float32(), 2))])
    )
    lance.write_dataset(table, path, data_storage_version="legacy", max_rows_per_file=1000)
    frame = spark.read.format("lance").load(path)
    got = [row.asDict() for row in frame.orderBy("id").collect()]
    assert got == lance.dataset(path).to_table().to_pylist()
    with pytest.raises(PySparkException, match="legacy"):
        frame.limit(1).write.format("lance").mode("append").save(path)
    assert lance.dataset(path).version == 1


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_tables_with_blobs_are_read_without_their_bytes(
    tmp_path: Path, spark: SparkSession, version: Any
) -> None:
    path = str(tmp_path / "t")
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    columns = [pa.array([1, 2]), pa.array([b"x", None], pa.large_binary())]
    table = pa.table(columns, schema=pa.schema([pa.field("id", pa.int64()), blob]))
    lance.write_dataset(table, path, data_storage_version=version)
    frame = spark.read.format("lance").option("columns", "id").load(path)
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    frame = spark.read.format("lance").load(path)
    assert "position:bigint,size:bigint" in frame.schema["b"].dataType.simpleString()
    assert [(row.id, row.b and row.b.size) for row in frame.orderBy("id").collect()] == [(1, 1), (2, None)]
    assert frame.where("b is null").count() == 1
    bytes_too = spark.read.format("lance").option("blob_handling", "all_binary").load(path)
    assert [tuple(row) for row in bytes_too.orderBy("id").collect()] == [(1, bytearray(b"x")), (2, None)]


BLOBS = [b"small", b"", None, b"m" * 100_000, b"l" * 3_000_000, b"last"]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "v2"])
def test_bytes_of_blobs(tmp_path: Path, spark: SparkSession, version: str) -> None:
    path = str(tmp_path / "t")
    ids = pa.array(range(12))
    if version == "v2":
        outside = tmp_path / "outside"
        outside.write_bytes(b"elsewhere")
        values = [*BLOBS[:5], outside.as_uri()] * 2
        blobs, field = lance.blob_array(values), lance.blob_field("b")
        options: dict[str, Any] = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
    else:
        field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        blobs, options = pa.array(BLOBS * 2, pa.large_binary()), {"data_storage_version": version}
    table = pa.table([ids, blobs], schema=pa.schema([pa.field("id", pa.int64()), field]))
    lance.write_dataset(table, path, max_rows_per_file=5, **options)
    expected = [*BLOBS[:5], b"elsewhere" if version == "v2" else b"last"] * 2
    spark_lance.dataset(path).delete("id = 4")
    frame = spark.read.format("lance").option("blob_handling", "all_binary").load(path)
    assert frame.schema["b"].dataType == BinaryType()
    rows = frame.orderBy("id").collect()
    assert [row.id for row in rows] == [i for i in range(12) if i != 4]
    for row in rows:
        assert (None if row.b is None else bytes(row.b)) == expected[row.id], row.id
    schema = StructType().add("b", BinaryType()).add("id", "long")
    some = spark.read.format("lance").schema(schema).option("filter", "id in (3, 5)").load(path)
    assert sorted(len(row.b or b"") for row in some.collect()) == sorted([100_000, len(expected[5] or b"")])
    part = StructType().add("b", StructType().add("size", LongType()))
    sizes = spark.read.format("lance").schema(part).load(path)
    assert sizes.where("b.size > 2000000").count() == 1
    outer = spark.read.format("lance").load(path)
    assert "position:bigint" in outer.schema["b"].dataType.simpleString()
    with pytest.raises(PySparkException, match="blob_handling"):
        spark.read.format("lance").option("blob_handling", "all_descriptions").load(path)


def test_a_blob_that_is_gone_fails_and_is_not_empty(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    blobs = lance.blob_array([b"l" * 5_000_000])
    table = pa.table([blobs], schema=pa.schema([lance.blob_field("b")]))
    lance.write_dataset(table, path, data_storage_version="2.2")
    (sidecar,) = [file for file in Path(path).rglob("*.blob") if file.is_file()]
    sidecar.unlink()
    frame = spark.read.format("lance").option("blob_handling", "all_binary").load(path)
    with pytest.raises(PySparkException, match="does not exist"):
        frame.collect()
