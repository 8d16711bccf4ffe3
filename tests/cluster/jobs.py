"""What the drivers of the cluster are sent to run, and the troubles that their tasks have.

Functions are found by name in drivers and tasks, so all of them are in this module.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from tests.cluster.standalone import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Rows are wide, because Spark hands on batches when some bytes have come together.
WIDTH = 100_000
ROWS_PER_BATCH = 10
BATCHES = 4
PARTITIONS = 4
ROWS = ROWS_PER_BATCH * BATCHES * PARTITIONS

# What happens in the middle of a task: (number of the partition, number of the attempt, folder for marks).
Trouble = Callable[[int, int, str], None]


def none(partition: int, attempt: int, marks: str) -> None:
    """All goes well."""


def stuck(partition: int, attempt: int, marks: str) -> None:
    """The first attempt of one task does not get on."""
    if (partition, attempt) == (0, 0):
        time.sleep(600)


def all_stuck(partition: int, attempt: int, marks: str) -> None:
    """No task gets on."""
    time.sleep(600)


def fails_once(partition: int, attempt: int, marks: str) -> None:
    """The first attempt of each task fails."""
    if attempt == 0:
        raise RuntimeError("a failure of the test")


def fails_for_good(partition: int, attempt: int, marks: str) -> None:
    """One task fails again and again; others have finished by then."""
    if partition == 0:
        eventually("the others are done", lambda: len(list(Path(marks).glob("*.done"))) == PARTITIONS - 1)
        raise RuntimeError("a failure of the test")


def meets_its_copy(partition: int, attempt: int, marks: str) -> None:
    """Two attempts of one task go on together, so that both of them may come to commit."""
    if partition == 0:
        eventually("there are two attempts", lambda: len(list(Path(marks).glob("0.*.half"))) == 2)


def kills_its_executor(partition: int, attempt: int, marks: str) -> None:
    """The executor of the first attempt of one task dies."""
    if (partition, attempt) == (0, 0):
        # The parent of a Python worker is a daemon, and that one's is the executor.
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)


def append(
    spark: SparkSession, path: str, start: int, trouble: Trouble = none, marks: str = "", **options: Any
) -> None:
    """Append `ROWS` rows from number `start` on, each task in files of `ROWS_PER_BATCH` rows."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_BATCH)
    numbers = spark.range(start, start + ROWS, 1, PARTITIONS)
    frame = troubled(numbers.selectExpr("id", f"repeat('x', {WIDTH}) AS s"), trouble, marks)
    writer = frame.write.format("lance").mode("append").option("max_rows_per_file", ROWS_PER_BATCH)
    writer.options(**options).save(path)


def troubled(frame: DataFrame, trouble: Trouble, marks: str) -> DataFrame:
    """Let trouble happen after half of the batches of each task; marks tell which attempts got where."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()

        def mark(what: str) -> None:
            if marks:
                Path(marks, f"{partition}.{attempt}.{what}").touch()

        mark("begun")
        for number, batch in enumerate(batches):
            if number == BATCHES // 2:
                mark("half")
                trouble(partition, attempt, marks)
            yield batch
        mark("done")

    return frame.mapInArrow(run, frame.schema)


def ids(spark: SparkSession, path: str) -> list[int]:
    """Read the table's numbers."""
    return sorted(row.id for row in spark.read.format("lance").option("columns", "id").load(path).collect())
