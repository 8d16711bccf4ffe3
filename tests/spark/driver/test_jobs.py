"""Jobs that fail: none of their tasks runs any more when the caller hears of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.driver.jobs import collect_answers, wait_for_tasks

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


class FailAndLinger:
    """The work of two tasks: the second fails once the first has begun, which goes on for some seconds."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.began, self.ended, self.seconds = folder / "began", folder / "ended", seconds

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
        (number,) = [value for batch in batches for value in batch.column(0).to_pylist()]
        if number == 0:
            self.began.write_text(str(os.getpid()))
            time.sleep(self.seconds)
            self.ended.touch()
            yield 0
        while not (self.began.exists() and self.began.read_text()):
            time.sleep(0.01)
        raise ValueError("the second task")


def fail(spark: SparkSession, folder: Path, seconds: float) -> FailAndLinger:
    work = FailAndLinger(folder, seconds)
    with pytest.raises(PySparkException, match="the second task"):
        collect_answers(spark.range(0, 2, 1, 2), work)
    return work


def test_a_task_that_goes_on_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    assert fail(spark, tmp_path, 1.0).ended.exists()


def test_a_task_that_would_not_end_is_dead(spark: SparkSession, tmp_path: Path) -> None:
    work = fail(spark, tmp_path, 60.0)
    worker = int(work.began.read_text())
    end = time.monotonic() + 1.0
    while time.monotonic() < end and _lives(worker):
        time.sleep(0.01)
    assert not _lives(worker)
    assert not work.ended.exists()


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waiting_for_nothing_takes_no_time(spark: SparkSession) -> None:
    began = time.monotonic()
    wait_for_tasks(spark, lambda: [])
    assert time.monotonic() - began < 5


def slow_and_broken(value: int) -> int:
    """Fail in one partition at once, and write in the other a second later."""
    if value == 0:
        raise ZeroDivisionError
    time.sleep(1.0)
    return value


@pytest.mark.parametrize("planner", ["driver", pytest.param("workers", marks=pytest.mark.slow)])
def test_late_files_of_a_failed_write_go(spark: SparkSession, tmp_path: Path, planner: str) -> None:
    """Where Spark's workers plan, its driver cannot wait: what is late stays until a clean-up."""
    session = spark_lance.enable(spark.newSession())
    session.conf.set("spark.lance.planInDriver", str(planner == "driver").lower())
    path = str(tmp_path / "t")
    session.range(2).write.format("lance").mode("append").save(path)
    rows = session.range(0, 2, 1, 2).select(
        F.udf(lambda value: slow_and_broken(value), "long")("id").alias("id")
    )
    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        rows.write.format("lance").mode("append").option("commit_retries", 0).save(path)
    named = {
        file.path for fragment in spark_lance.dataset(path).get_fragments() for file in fragment.data_files()
    }

    def unnamed() -> set[str]:
        return {file.name for file in (Path(path) / "data").iterdir()} - named

    if planner == "workers":
        end = time.monotonic() + 3
        while time.monotonic() < end and not unnamed():
            time.sleep(0.05)
        LanceTable.forPath(session, path).vacuum(0, deleteUnverified=True, allowShortRetention=True)
    assert not unnamed()
