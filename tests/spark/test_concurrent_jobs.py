"""Several jobs on one table at once, and a job that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from tests.cluster.data_files import check_orphans_go, check_whole

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

ROOT = Path(__file__).resolve().parents[2]

# Writes for a minute: one batch of rows per half second.
ENDLESS_JOB = """
import sys, time
from pyspark.sql import SparkSession
from spark_lance.spark.java import prepare_environment

prepare_environment()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)

def slowly(batches):
    for batch in batches:
        time.sleep(0.5)
        yield batch

# Wide rows, for Spark hands on batches when some bytes have come together.
wide = spark.range(0, 2400, 1, 2).selectExpr("id", "repeat('x', 100000) AS s")
rows = wide.mapInArrow(slowly, "id long, s string")
rows.write.format("lance").mode("append").option("max_rows_per_file", 10).save(sys.argv[1])
"""


def at_once(spark: SparkSession, jobs: list[Callable[[], None]]) -> None:
    """Run jobs in threads that start together; an error in one of them is raised."""
    barrier = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            # Spark looks for Python data sources in the thread's active session, and only this call of its
            # public ones makes a session active in a thread that did not create it.
            spark.createDataFrame([(0,)], "id long")
            barrier.wait(60)
            job()
        except Exception as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("created", [True, False], ids=["existing table", "no table yet"])
def test_jobs_that_append_at_the_same_time_lose_nothing(
    spark: SparkSession, tmp_path: Path, created: bool
) -> None:
    path = str(tmp_path / "t.lance")

    def append(start: int, stop: int) -> None:
        frame = spark.range(start, stop, 1, 1)
        frame.write.format("lance").mode("append").save(path)

    if created:
        append(0, 10)

    def append_twice(first: int) -> None:
        append(first, first + 10)
        append(first + 10, first + 20)

    at_once(spark, [partial(append_twice, first) for first in (10, 30, 50)])
    result = sorted(spark_lance.dataset(path).to_table().column("id").to_pylist())
    assert result == list(range(0 if created else 10, 70))
    assert spark_lance.dataset(path).version == 6 + created


def test_a_reader_never_sees_half_a_write(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    spark.range(100).write.format("lance").mode("overwrite").save(path)
    counts: set[int] = set()

    def overwrite() -> None:
        for _ in range(3):
            spark.range(100).write.format("lance").mode("overwrite").save(path)

    def read() -> None:
        for _ in range(6):
            counts.add(spark.read.format("lance").load(path).count())

    at_once(spark, [overwrite, read])
    assert counts == {100}


# In a JVM of its own; test_jobs.py has tasks that fail, table/commits/test_crash.py writers that die.
@pytest.mark.slow
def test_a_killed_job_leaves_the_table_readable(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    spark.range(5).selectExpr("id", "'x' AS s").write.format("lance").mode("append").save(str(path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(tmp_path)}
    log = (tmp_path / "log").open("w+")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-c", ENDLESS_JOB, str(path)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as job,
    ):
        try:
            deadline = time.monotonic() + 90
            while len(list((path / "data").glob("*.lance"))) < 3:
                log.seek(0)
                assert job.poll() is None, log.read()
                assert time.monotonic() < deadline, "the job wrote nothing"
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert spark_lance.dataset(str(path)).version == 1
    check_whole(str(path))
    assert spark.read.format("lance").load(str(path)).count() == 5
    spark.range(5, 8).selectExpr("id", "'y' AS s").write.format("lance").mode("append").save(str(path))
    assert spark.read.format("lance").load(str(path)).count() == 8
    check_orphans_go(str(path))
