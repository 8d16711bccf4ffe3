"""Classic sessions in threads of the user's own, where they are not active by themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import spark_lance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_enable_lets_a_thread_write(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    other = spark.newSession()

    def write() -> None:
        spark_lance.enable(other).range(3).write.format("lance").mode("append").save(path)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    assert spark_lance.dataset(path).count_rows() == 3
