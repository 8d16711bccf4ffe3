"""Classic sessions in threads of the user's own, where they are not active by themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_lance
from spark_lance import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_enable_and_table_objects_make_the_session_active(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark_lance.write_dataset(pa.table({"id": range(5)}), path)
    other = spark.newSession()

    def enabled() -> int:
        return spark_lance.enable(other).read.format("lance").load(path).where("id > 1").count()

    def by_table() -> int:
        return LanceTable.forPath(spark, path).toDF().count()

    for work, rows in ((enabled, 3), (by_table, 5)):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(work).result() == rows
