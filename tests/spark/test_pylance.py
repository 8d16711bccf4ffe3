"""Spark and pylance on the same tables: each reads what the other wrote, and they take turns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import lance
import numpy as np
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

ROWS = 300


def table() -> pa.Table:
    """Columns of many types, a tenth of the values null."""
    rng = np.random.default_rng(7)
    holes = rng.random(ROWS) < 0.1

    def holed(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if hole else value for hole, value in zip(holes, values, strict=True)], kind)

    numbers = rng.integers(0, 200, ROWS).tolist()
    stamps = [dt.datetime(2020, 1, 1) + dt.timedelta(seconds=n, microseconds=7) for n in numbers]
    return pa.table(
        {
            "id": pa.array(range(ROWS)),
            "small": holed(numbers, pa.uint8()),
            "real": holed(rng.normal(size=ROWS).tolist(), pa.float64()),
            "text": holed([f"text {n}" for n in numbers], pa.string()),
            "large": holed([f"{n}" * 20 for n in numbers], pa.large_string()),
            "bytes": holed([bytes([n] * 3) for n in numbers], pa.binary(3)),
            "at": holed(stamps, pa.timestamp("us", "UTC")),
            "wall": holed(numbers, pa.timestamp("ms")),
            "day": holed(numbers, pa.date32()),
            "price": holed([Decimal(n) / 100 for n in numbers], pa.decimal128(12, 2)),
            "vector": holed([[float(n)] * 8 for n in numbers], pa.list_(pa.float32(), 8)),
            "tags": holed([[str(n)] * (n % 4) for n in numbers], pa.list_(pa.string())),
            "st": holed(
                [{"a": n, "b": [n, None]} for n in numbers],
                pa.struct({"a": pa.int32(), "b": pa.list_(pa.int64())}),
            ),
        }
    )


def rows(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: row["id"])


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_spark_reads_what_pylance_wrote_and_writes_it_back(
    spark: SparkSession, tmp_path: Path, version: Literal["2.0", "2.1", "2.2"]
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    data = table().drop_columns(["st"]) if version == "2.0" else table()
    lance.write_dataset(data, theirs, data_storage_version=version, max_rows_per_file=120)
    frame = spark.read.format("lance").load(theirs)
    expected = sorted(data.to_pylist(), key=lambda row: row["id"])
    result = rows(frame.drop("at", "bytes"))
    assert result == [{k: v for k, v in row.items() if k not in ("at", "bytes")} for row in expected]
    assert [row["n"] for row in rows(frame.selectExpr("id", "unix_micros(at) AS n"))] == [
        None if row["at"] is None else round(row["at"].timestamp() * 1e6) for row in expected
    ]
    # Overwriting a copy keeps the types that Spark does not have.
    lance.write_dataset(data.slice(0, 0), ours, data_storage_version=version)
    frame.write.format("lance").mode("overwrite").save(ours)
    copy = lance.dataset(ours)
    assert copy.data_storage_version == version
    assert copy.schema.remove_metadata() == data.schema
    assert copy.to_table().sort_by("id").to_pylist() == expected
    copy.validate()  # type: ignore[no-untyped-call]


def test_spark_and_pylance_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.range(0, 10).selectExpr("id", "cast(id AS string) AS s").write.format("lance").mode("append").save(
        path
    )
    lance.write_dataset(pa.table({"id": [10, 11], "s": ["10", None]}), path, mode="append")
    spark.range(12, 15).write.format("lance").mode("append").save(path)
    lance.dataset(path).delete("id < 5")
    lance.dataset(path).create_scalar_index("id", "BTREE")
    spark.range(15, 16).write.format("lance").mode("append").save(path)
    ds = lance.dataset(path)
    assert sorted(ds.to_table().column("id").to_pylist()) == list(range(5, 16))
    assert ds.to_table(filter="id = 15").num_rows == 1
    assert [index.name for index in ds.describe_indices()] == ["id_idx"]
    ds.validate()  # type: ignore[no-untyped-call]
    assert_df_equality(
        spark.read.format("lance").load(path).select("id"),
        spark.createDataFrame([(n,) for n in range(5, 16)], "id long"),
        ignore_nullable=True,
        ignore_row_order=True,
    )
