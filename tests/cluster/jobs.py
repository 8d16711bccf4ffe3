"""What the drivers of the cluster are sent to run, and the troubles that their tasks have.

Functions are found by name in drivers and tasks, so all of them are in this module.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.worker.write import pickled_write
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


def claim(marks: str, name: str) -> bool:
    """Whether this is the first to ask. A copy may overtake the attempt that began first."""
    try:
        Path(marks, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def none(partition: int, attempt: int, marks: str) -> None:
    """All goes well."""


def stuck(partition: int, attempt: int, marks: str) -> None:
    """An attempt of one task does not get on."""
    if partition == 0 and claim(marks, "stuck"):
        time.sleep(600)


def all_stuck(partition: int, attempt: int, marks: str) -> None:
    """No task gets on."""
    time.sleep(600)


def fails_once(partition: int, attempt: int, marks: str) -> None:
    """An attempt of each task fails."""
    if claim(marks, f"{partition}.failed"):
        raise RuntimeError("a failure of the test")


def fails_for_good(partition: int, attempt: int, marks: str) -> None:
    """One task fails again and again; others have finished by then."""
    if partition == 0:
        eventually("the others are done", lambda: len(list(Path(marks).glob("*.done"))) == PARTITIONS - 1)
        raise RuntimeError("a failure of the test")


def meets_its_copy(partition: int, attempt: int, marks: str) -> None:
    """Two attempts of one task go on together, so that both of them may come to commit."""
    if partition == 0:
        eventually("there are two attempts", lambda: len(list(Path(marks).glob("0.*.half"))) >= 2)


def kills_its_executor(partition: int, attempt: int, marks: str) -> None:
    """The executor of an attempt of one task dies."""
    if partition == 0 and claim(marks, "killed"):
        # The parent of a Python worker is a daemon, and that one's is the executor.
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
        time.sleep(600)


def copied_or_repeated(partition: int, attempt: int, marks: str) -> None:
    """An attempt of one task does not get on, and one of every other task fails."""
    stuck(partition, attempt, marks)
    if partition != 0:
        fails_once(partition, attempt, marks)


def fails_always(partition: int, attempt: int, marks: str) -> None:
    """One task fails again and again."""
    if partition == 0:
        raise RuntimeError("a failure of the test")


def rows(start: int) -> pa.Table:
    """What `append` appends, but for the width of the strings."""
    return pa.table({"id": range(start, start + ROWS), "s": ["x"] * ROWS})


def write(
    spark: SparkSession, path: str, job: Callable[..., None], start: int, options: Iterable[tuple[str, Any]]
) -> None:
    """Run one of the three jobs below, with options of the write."""
    job(spark, path, start, **dict(options))


def append(
    spark: SparkSession, path: str, start: int, trouble: Trouble = none, marks: str = "", **options: Any
) -> None:
    """Append `ROWS` rows from number `start` on, each task in files of `ROWS_PER_BATCH` rows."""
    _write(spark, path, "append", start, trouble, marks, {}, options)


def append_without_end(spark: SparkSession, path: str, start: int, go: str) -> None:
    """Append rows once the file `go` is there; the tasks write some files, and do not get on."""
    eventually("it may begin", Path(go).exists, 600)
    append(spark, path, start, all_stuck)


def append_with_column(
    spark: SparkSession, path: str, start: int, trouble: Trouble = none, marks: str = "", **options: Any
) -> None:
    """The same, with a column `more` that the table may lack."""
    _write(spark, path, "append", start, trouble, marks, {"more": "-id"}, {"mergeSchema": True, **options})


def overwrite(
    spark: SparkSession, path: str, start: int, trouble: Trouble = none, marks: str = "", **options: Any
) -> None:
    """Put such rows in the place of the table's."""
    _write(spark, path, "overwrite", start, trouble, marks, {}, options)


def _write(
    spark: SparkSession,
    path: str,
    mode: str,
    start: int,
    trouble: Trouble,
    marks: str,
    more: dict[str, str],
    options: dict[str, Any],
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_BATCH)
    numbers = spark.range(start, start + ROWS, 1, PARTITIONS)
    columns = [f"{value} AS {name}" for name, value in more.items()]
    frame = troubled(numbers.selectExpr("id", f"repeat('x', {WIDTH}) AS s", *columns), trouble, marks)
    writer = frame.write.format("lance").mode(mode).option("max_rows_per_file", ROWS_PER_BATCH)
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


@dataclass(frozen=True)
class TroubledWriter:
    """Lets trouble happen to a task that has written its rows, and has not said so."""

    writer: Any
    trouble: Trouble
    marks: str

    def write(self, rows: Iterator[pa.RecordBatch]) -> Any:
        """Write rows, then let trouble happen."""
        message = self.writer.write(rows)
        context = TaskContext.get()
        assert context is not None
        Path(self.marks, f"{context.partitionId()}.{context.attemptNumber()}.written").touch()
        self.trouble(context.partitionId(), context.attemptNumber(), self.marks)
        return message


def upsert_stream(spark: SparkSession, path: str, folder: str, trouble: Trouble, marks: str) -> None:
    """Let a stream upsert the Parquet files of a folder; tasks have trouble when the logs have their rows."""
    spark_lance.enable(spark)

    def troubled(writer: Any) -> bytes:
        return pickled_write(TroubledWriter(writer, trouble, marks))

    with patch("spark_lance.spark.sql.writes.pickled_write", troubled):
        stream = spark.readStream.schema("id long, val string").parquet(f"{folder}/in")
        out = stream.writeStream.format("lance").option("mode", "upsert").option("path", path)
        out = out.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        out.start().awaitTermination()


def copied(spark: SparkSession, path: str, parquet: str, other: str) -> None:
    """Write a table as Parquet, and that as a table, by tasks."""
    spark.read.format("lance").load(path).write.parquet(parquet)
    spark.conf.set("spark.lance.localRows", "0")
    try:
        spark.read.parquet(parquet).write.format("lance").mode("append").save(other)
    finally:
        spark.conf.unset("spark.lance.localRows")


def ids(spark: SparkSession, path: str) -> list[int]:
    """Read the table's numbers."""
    return sorted(row.id for row in spark.read.format("lance").option("columns", "id").load(path).collect())


@contextmanager
def troubled_jobs(spark: SparkSession, trouble: Trouble, marks: str) -> Iterator[None]:
    """Let trouble happen to all tasks that answer by `mapInArrow`, once they are done and have not said so.

    By then the files that they write are there.
    """
    kind = type(spark.range(1))
    usual = kind.mapInArrow

    def troubled_map(self: DataFrame, work: Any, *args: Any, **kwargs: Any) -> DataFrame:
        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            partition, attempt = context.partitionId(), context.attemptNumber()
            # A task whose input is lost, too, is tried again with its stage, and is a first attempt again.
            name = f"{partition}.{context.stageId()}-{context.taskAttemptId()}"
            Path(marks, f"{name}.begun").touch()
            answers = list(work(batches))
            Path(marks, f"{name}.half").touch()
            trouble(partition, attempt, marks)
            yield from answers

        return usual(self, run, *args, **kwargs)

    kind.mapInArrow = troubled_map  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        kind.mapInArrow = usual  # type: ignore[method-assign]


def delete(table: LanceTable, rows: int) -> None:
    """Delete one row in five."""
    table.delete("id % 5 = 2")


def update(table: LanceTable, rows: int) -> None:
    """Change one row in five."""
    table.update("id % 5 = 2", {"a": "a + 1"})


def merge(table: LanceTable, rows: int) -> None:
    """Change half of the rows, and insert half as many."""
    source = table.spark.range(rows // 2, rows + rows // 2, 1, 4).selectExpr("id", "-id AS a", "0L AS k")
    builder = table.alias("t").merge(source.alias("s"), "t.id = s.id")
    builder.whenMatchedUpdate(set={"a": "s.a"}).whenNotMatchedInsertAll().execute()


def add_columns(table: LanceTable, rows: int) -> None:
    """Add a column."""
    table.addColumns({"b": "a * 2"}, resume="b")


def update_columns(table: LanceTable, rows: int) -> None:
    """Change all values of a column."""
    table.updateColumns({"a": "a + 7"})


def compact(table: LanceTable, rows: int) -> None:
    """Make two fragments of four."""
    table.optimize(targetRowsPerFragment=rows // 2).executeCompaction()


def sort(table: LanceTable, rows: int) -> None:
    """Put the rows in another order, in two fragments."""
    table.optimize(targetRowsPerFragment=rows // 2).executeSortBy("k")


def change(
    spark: SparkSession,
    path: str,
    operation: Callable[[LanceTable, int], None],
    rows: int,
    trouble: Trouble = none,
    marks: str = "",
) -> None:
    """Run an operation on a table; its tasks have trouble."""
    table = LanceTable.forPath(spark, path)
    if marks:
        with troubled_jobs(spark, trouble, marks):
            operation(table, rows)
    else:
        operation(table, rows)
