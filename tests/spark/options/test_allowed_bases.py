"""Places outside of a table: `allowed_bases` in DataFrames, `LanceTable`, catalogs and the command line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.cli.main import main
from spark_lance.errors import BaseNotAllowedError, OptionError
from spark_lance.spark.options.options import read_options, write_options
from spark_lance.spark.sql.catalogs import OpenCatalog

ROWS = pa.table({"id": range(4)})


@pytest.fixture
def far(tmp_path: Path) -> tuple[str, str]:
    """A clone in a catalog's folder, and the folder of its source."""
    source = spark_lance.write_dataset(ROWS, tmp_path / "lake" / "t")
    (tmp_path / "root").mkdir()
    source.shallow_clone(tmp_path / "root" / "clone.lance")
    return str(tmp_path / "root" / "clone.lance"), str(tmp_path / "lake")


def test_the_option_becomes_one_of_the_store() -> None:
    raw = {"path": "s3://b/t", "allowed_bases": "s3://c, s3://d", "storage.base_1.key": "k"}
    for options in (read_options(raw), write_options(raw)):
        assert options.storage == {"allowed_bases": "s3://c, s3://d", "base_1.key": "k"}
    with pytest.raises(OptionError, match="allowed_bases"):
        read_options({"path": "s3://b/t", "allowed_bases": " "})
    catalog = OpenCatalog.of("c", {"root": "s3://b", "allowed_bases": "s3://c"})
    assert catalog.options("s3://b/t") == {"path": "s3://b/t", "storage.allowed_bases": "s3://c"}


def test_dataframes(spark: SparkSession, far: tuple[str, str]) -> None:
    path, lake = far
    with pytest.raises((PySparkException, BaseNotAllowedError), match="allowed_bases"):
        spark.read.format("lance").load(path).collect()
    frame = spark.read.format("lance").option("allowed_bases", lake).load(path)
    assert sorted(row.id for row in frame.collect()) == [0, 1, 2, 3]
    frame.write.format("lance").option("allowed_bases", f'["{lake}"]').mode("append").save(path)
    assert spark_lance.dataset(path, allowed_bases=[lake]).count_rows() == 8


def test_lance_table(spark: SparkSession, far: tuple[str, str]) -> None:
    path, lake = far
    with pytest.raises((PySparkException, BaseNotAllowedError), match="allowed_bases"):
        spark_lance.LanceTable.forPath(spark, path).delete("id = 1")
    table = spark_lance.LanceTable.forPath(spark, path, allowed_bases=[lake])
    table.delete("id = 1")
    table.optimize()
    assert sorted(row.id for row in table.toDF().collect()) == [0, 2, 3]


def test_the_command_line(far: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    path, lake = far
    assert main(["head", path]) != 0
    assert "allowed_bases" in "".join(capsys.readouterr())
    assert main(["head", path, "--allowed-bases", lake]) == 0
    assert main(["head", path, "--storage", f"allowed_bases={lake}"]) == 0
