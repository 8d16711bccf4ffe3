"""Spark on tables that pylance wrote in the legacy format, and on tables with blob columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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
def test_tables_with_blobs_are_read_without_them(tmp_path: Path, spark: SparkSession, version: Any) -> None:
    path = str(tmp_path / "t")
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    columns = [pa.array([1, 2]), pa.array([b"x", None], pa.large_binary())]
    table = pa.table(columns, schema=pa.schema([pa.field("id", pa.int64()), blob]))
    lance.write_dataset(table, path, data_storage_version=version)
    frame = spark.read.format("lance").option("columns", "id").load(path)
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    with pytest.raises(PySparkException, match="blob column 'b'"):
        spark.read.format("lance").load(path).collect()
