"""Spark jobs whose tasks do something and answer with small Python objects.

Built on DataFrames only, so that they run in Spark Connect, too. Functions and answers travel pickled, so the
package must be installed where the tasks run.
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
from spark_lance.spark.driver.delta_settings import check_settings
from spark_lance.spark.driver.interpreters import lacks_package
from spark_lance.spark.worker.failures import from_tasks, one_line
from spark_lance.spark.worker.process import forget_archives, keep_worker_ready
from spark_lance.table.commits.commit_options import APPLICATION, APPLICATION_NAME, COMMIT_MESSAGE, USER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = TypeVar("Task")
Answer = TypeVar("Answer")

# Settings of a session: whether its driver does small work itself, and the bytes up to which work is small.
_PLANS = "spark.lance.planInDriver"
_BYTES = "spark.lance.localBytes"
_USUAL_BYTES = 8 << 20

# The setting of a session with the `userMetadata` of its commits.
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

# Spark kills the Python of a task two seconds after the task (spark.python.task.killTimeout).
_LONGEST_WAIT = 10.0
_SHORTEST_WAIT = 0.05

_ANSWER = pa.schema([pa.field("answer", pa.binary())])


def collect_answers(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[Answer]]
) -> list[Answer]:
    """Pass each partition of a DataFrame to `work` in a task, and return everything that the tasks yielded.

    Spark may run a task more than once; exactly one run's answers are returned. Files of the other runs stay,
    so each run needs file names of its own. When the job has failed, none of its tasks is running any more,
    see `wait_for_tasks`. In Spark Connect, which does not report it, some may be.

    Args:
        frame: the rows.
        work: takes the batches of a partition, yields answers that can be pickled. Called also for
            partitions without rows.

    Raises:
        LanceError: what a task raised; see its subclasses.
        WorkerPythonError: the workers have no spark_lance.
        PySparkException: any other failure of the job.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            keep_worker_ready()
            for answer in work(iter(batches)):
                yield pa.record_batch([pa.array([pickle.dumps(answer)], pa.binary())], schema=_ANSWER)
            forget_archives()

    try:
        with _waiting(frame.sparkSession), from_tasks():
            rows = frame.mapInArrow(run, "answer binary").collect()
    except PySparkException as error:
        if (problem := lacks_package(error)) is not None:
            raise problem from error
        raise
    return [pickle.loads(row.answer) for row in rows]


@contextmanager
def _waiting(spark: Any) -> Iterator[None]:
    """If jobs fail that the block starts, wait for their tasks before the error is raised."""
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
                about = tracker.getJobInfo(job)
                yield from about.get().stageIds() if about.isDefined() else ()

        wait_for_tasks(spark, stages)
        raise
    finally:
        context.removeJobTag(tag)


def wait_for_tasks(spark: Any, stages: Callable[[], Iterable[int]]) -> None:
    """Wait until no task of a failed job runs any more, or ten seconds.

    Spark calls a job failed when its first task has; others run on until they are killed, and may finish a
    file that whoever cleans up has not seen.

    Args:
        spark: a classic session.
        stages: returns the ids of the job's stages.
    """
    end = time.monotonic() + _LONGEST_WAIT
    tracker = spark.sparkContext.statusTracker()
    with suppress(Py4JError):  # the events are late, or this release has another name for it
        java_context(spark.sparkContext).listenerBus().waitUntilEmpty(int(_LONGEST_WAIT * 1000))
    while time.monotonic() < end:
        infos = [tracker.getStageInfo(number) for number in stages()]
        if not any(about is not None and about.numActiveTasks for about in infos):
            return
        time.sleep(_SHORTEST_WAIT)


def local_bytes(spark: SparkSession) -> int:
    """Return how many stored bytes the driver works on itself where it would otherwise start tasks.

    None in a session that leaves all to tasks, and in Spark Connect, whose client may be far from the store.

    Raises:
        OptionError: the setting is no number.
    """
    if not has_jvm(spark) or spark.conf.get(_PLANS, "false") != "true":
        return 0
    value = spark.conf.get(_BYTES, str(_USUAL_BYTES))
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
        tasks: what can be pickled.
        work: yields batches of the types that Spark exchanges for `schema`.
        schema: of the DataFrame.
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
    """Run `work` on every one of `tasks`, each in a Spark task of its own; return the answers in that order.

    Args:
        spark: the session.
        tasks: what can be pickled.
        work: see `collect_answers` for what happens when a run is repeated.
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
    """Return what commits of a session keep in the history: user, application, and the user's text.

    Raises:
        OptionError: a setting of the session has no effect on the commit.
    """
    settings = ((APPLICATION, "spark.app.id"), (APPLICATION_NAME, "spark.app.name"))
    check_settings(spark)
    texts = {name: spark.conf.get(key, None) for name, key in (*settings, (COMMIT_MESSAGE, _USER_METADATA))}
    if has_jvm(spark):
        texts[USER] = spark.sparkContext.sparkUser()
    else:
        with suppress(OSError, KeyError, ImportError):  # this process has no user with a name
            texts[USER] = getuser()
    return {name: text for name, text in texts.items() if text}
