"""Drivers of a cluster: child processes that hold a Spark session and run the jobs they are sent.

A process has one Spark session at most, and that of the other tests is in this one. Besides, a driver must
be one that can be killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import spark_lance
from spark_lance.spark.java import prepare_environment
from tests.cluster import stops

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Driver", "JobFailedError", "until_one_ends"]

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")

# One core in an executor on each of the two hosts, so that two drivers fit on the cluster, and copies of
# every task that takes longer than half of the others did.
SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.task.maxFailures": "3",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.task.duration.threshold": "2s",
    "spark.speculation.efficiency.enabled": "false",
}

_session: SparkSession | None = None


class JobFailedError(Exception):
    """A job raised. The message is the error's; Spark's own errors cannot travel between processes."""


class Driver:
    """A process with a session.

    Attributes:
        name: of the application.
        killed: whether it has been.
        stops: where its commits can be made to stop.
    """

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name = name
        self.killed = False
        self.stops = stops.Stops(folder / f"stops-{name}")
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(name, url, str(folder))
        )

    @contextmanager
    def running(self) -> Iterator[Driver]:
        """Stop the process in the end, whatever happened."""
        try:
            yield self
        finally:
            self.kill()
            self._pool.shutdown()

    def run(self, job: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `job(session, *args, **kwargs)` and return what it returns.

        Raises:
            JobFailedError: it raised.
            TimeoutError: it takes too long.
        """
        return self.start(job, *args, **kwargs).result(300)

    def start(self, job: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        """Begin a job, which comes after those that have not ended."""
        return self._pool.submit(_call, job, args, kwargs)

    def kill(self) -> None:
        """Kill the process and its JVM without notice.

        Python workers see that the JVM is gone and end, but for those that are stopped: see `stops`.
        """
        self.killed = True
        for process in list((self._pool._processes or {}).values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]


def until_one_ends(spark: SparkSession, calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    """Run jobs at the same time, each in a thread of its own, none of which is expected to end."""
    spark_lance.enable(spark)
    pool = ThreadPoolExecutor(len(calls))
    jobs = [pool.submit(call, spark, *arguments) for call, arguments in calls]
    for job in wait(jobs, return_when=FIRST_COMPLETED).done:
        job.result()


def _begin(name: str, url: str, folder: str) -> None:
    """Start the session, in a process group that the JVM belongs to as well."""
    global _session
    os.setsid()
    prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), stops.SITE])
    os.environ["SPARK_LOCAL_DIRS"] = f"{folder}/local-{name}"
    os.environ.pop("SPARK_LOCAL_IP", None)
    os.environ[stops.VARIABLE] = f"{folder}/stops-{name}"
    stops.install()
    log = os.open(f"{folder}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(url).appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    _session = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()


def _call(job: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    try:
        return job(_session, *args, **kwargs)
    except Exception as error:
        raise JobFailedError(f"{type(error).__name__}: {error}") from None
