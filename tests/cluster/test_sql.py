"""The statements of tests/spark/sql on a cluster, whose executors have none of the driver's Java classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_lance
from tests.cluster.driver import Driver
from tests.spark.sql.answers import FILES, wrong_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]


def run_file(spark: SparkSession, file: Path, folder: str) -> list[str]:
    """Run the statements of a file in a session of its own."""
    session = spark_lance.enable(spark.newSession(), root=f"{folder}/root")
    return wrong_answers(session, file.read_text().replace("{root}", f"{folder}/paths"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_statements(driver: Driver, file: Path, tmp_path: Path) -> None:
    assert driver.run(run_file, file, str(tmp_path)) == []
