"""Runs Python functions as tasks of Spark jobs and returns their answers, which are small Python objects.

The jobs use DataFrames only, so that they run in Spark Connect, too. Functions and answers are sent pickled,
so the package must be installed where the tasks run.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from getpass import getuser
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_lance.errors import OptionError
from spark_lance.spark.base.compat import has_jvm, java_context
from spark_lance.spark.driver.interpreters import missing_package_error
from spark_lance.spark.worker.failures import from_tasks, hide_own_frames, one_line
from spark_lance.spark.worker.process import forget_archives, keep_worker_ready
from spark_lance.table.commits.commit_options import APPLICATION, APPLICATION_NAME, COMMIT_MESSAGE, USER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = TypeVar("Task")
Answer = TypeVar("Answer")

# Settings of a session: whether its driver does small work itself, and the most bytes of small work.
_PLANS = "spark.lance.planInDriver"
_BYTES = "spark.lance.localBytes"
_DEFAULT_BYTES = 8 << 20

# The setting of a session with the `userMetadata` of its commits.
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

# Must exceed spark.python.task.killTimeout: Spark kills the Python of a task two seconds after the task.
_MAX_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05

_ANSWER = pa.schema([pa.field("answer", pa.binary())])


def collect_answers(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[Answer]]
) -> list[Answer]:
    """Pass each partition of a DataFrame to `work` in a task, and return everything that the tasks yielded.

    Spark may run a task more than once; the result has the answers of exactly one run. Files of the other
    runs remain, so each run must use its own file names. If the job fails, this waits until none of its tasks
    is running, see `wait_for_tasks`. Spark Connect does not report running tasks, so some may still run.

    Args:
        frame: the rows.
        work: takes the batches of a partition and yields answers that can be pickled. It is also called for
            partitions without rows.

    Raises:
        LanceError: the error that a task raised, with its original type.
        WorkerPythonError: the workers have no spark_lance.
        PySparkException: the job failed for any other reason.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            keep_worker_ready()
            try:
                for answer in work(iter(batches)):
                    yield pa.record_batch([pa.array([pickle.dumps(answer)], pa.binary())], schema=_ANSWER)
            except Exception as error:
                hide_own_frames(error)
                raise
            forget_archives()

    try:
        with _wait_on_failure(frame.sparkSession), from_tasks():
            rows = frame.mapInArrow(run, "answer binary").collect()
    except PySparkException as error:
        if (problem := missing_package_error(error)) is not None:
            raise problem from error
        raise
    return [pickle.loads(row.answer) for row in rows]


@contextmanager
def _wait_on_failure(spark: Any) -> Iterator[None]:
    """If a job that the block starts fails, wait for its tasks before raising the error."""
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    tag = f"lance-{secrets.token_hex(8)}"
    context.addJobTag(tag)
    try:
        yield
    except BaseException:
        tracker = java_context(context).statusTracker()

        def stages() -> Iterator[int]:
            for job in tracker.getJobIdsForTag(tag):
                info = tracker.getJobInfo(job)
                yield from info.get().stageIds() if info.isDefined() else ()

        wait_for_tasks(spark, stages)
        raise
    finally:
        context.removeJobTag(tag)


def wait_for_tasks(spark: Any, stages: Callable[[], Iterable[int]]) -> None:
    """Wait until no task of a failed job is running, at most ten seconds.

    A job fails with its first failed task. Other tasks run until Spark kills them. They may still finish a
    file after the cleanup has listed the files.

    Args:
        spark: a classic session.
        stages: returns the ids of the job's stages.
    """
    end = time.monotonic() + _MAX_WAIT_SECONDS
    tracker = spark.sparkContext.statusTracker()
    with suppress(Py4JError):  # events are late, or the method has another name in this release
        java_context(spark.sparkContext).listenerBus().waitUntilEmpty(int(_MAX_WAIT_SECONDS * 1000))
    while time.monotonic() < end:
        infos = [tracker.getStageInfo(number) for number in stages()]
        if not any(info is not None and info.numActiveTasks for info in infos):
            return
        time.sleep(_POLL_SECONDS)


def local_bytes(spark: SparkSession) -> int:
    """Return the most stored bytes that the driver processes itself instead of starting tasks.

    This is 0 unless `spark.lance.planInDriver` is true, and in Spark Connect, whose client may be far from
    the store.

    Raises:
        OptionError: the setting is not a whole number.
    """
    if not has_jvm(spark) or spark.conf.get(_PLANS, "false") != "true":
        return 0
    value = spark.conf.get(_BYTES, str(_DEFAULT_BYTES))
    try:
        return int(value or "")
    except ValueError:
        raise OptionError(f"{_BYTES} is a whole number, not {value!r}") from None


def run_to_frame(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return a DataFrame of the batches that `work` yields for each of `tasks`, each a partition of its own.

    Args:
        spark: the session.
        tasks: objects that can be pickled.
        work: yields batches of the Arrow types that Spark exchanges for `schema`.
        schema: schema of the DataFrame.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            keep_worker_ready()
            for batch in batches:
                for task in batch["task"].to_pylist():
                    yield from work(pickle.loads(task))
            forget_archives()

    return _frame(spark, tasks).mapInArrow(run, schema)


def map_tasks(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Answer]) -> list[Answer]:
    """Run `work` on each of `tasks` in a Spark task of its own, and return the answers in the same order.

    Args:
        spark: the session.
        tasks: objects that can be pickled.
        work: returns the answer for a task. Spark may run it more than once, see `collect_answers`.
    """
    if not tasks:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
        for batch in batches:
            for number, task in zip(batch["number"].to_pylist(), batch["task"].to_pylist(), strict=True):
                yield number, work(pickle.loads(task))

    answers = dict(collect_answers(_frame(spark, tasks), run))
    return [answers[number] for number in range(len(tasks))]


def _frame(spark: SparkSession, tasks: Sequence[Task]) -> DataFrame:
    """Return a DataFrame of pickled tasks, each in a partition of its own."""
    rows = [(number, bytearray(pickle.dumps(task))) for number, task in enumerate(tasks)]
    frame = spark.createDataFrame(rows, "number bigint, task binary").coalesce(1)
    return frame.repartition(max(1, len(tasks)))


def commit_origin(spark: SparkSession) -> Mapping[str, str]:
    """Return the properties of a session's commits: user, application, and the user's message."""
    settings = ((APPLICATION, "spark.app.id"), (APPLICATION_NAME, "spark.app.name"))
    texts = {name: spark.conf.get(key, None) for name, key in (*settings, (COMMIT_MESSAGE, _USER_METADATA))}
    if has_jvm(spark):
        texts[USER] = spark.sparkContext.sparkUser()
    else:
        with suppress(OSError, KeyError, ImportError):  # the process has no named user
            texts[USER] = getuser()
    return {name: text for name, text in texts.items() if text}
