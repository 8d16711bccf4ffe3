"""A driver and its JVM are killed right before or after they publish a version; the job is then run again.

One driver does all the jobs, each on a table of its own, until every one has come to its stop. How jobs are
killed while their tasks write is tested in `tests/cluster`, and in `test_concurrent_jobs`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_lance
from tests.cluster import jobs
from tests.cluster.changes import MODEL, Operation, before, check_changed, make_table, row_ids, rows_in
from tests.cluster.changes import ROWS as CHANGED_ROWS
from tests.cluster.data_files import check_orphans_go, check_whole, ids, orphans
from tests.cluster.driver import Driver, in_threads
from tests.cluster.jobs import ROWS
from tests.cluster.standalone import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="kills process groups"),
]

OLD = list(range(ROWS))
NEW = list(range(ROWS, 2 * ROWS))
PAIR = {"txnAppId": "nightly", "txnVersion": 1}


@dataclass(frozen=True)
class Write:
    """A write of the rows `NEW` to a table with the rows `OLD`.

    Attributes:
        job: of `jobs`.
        stop: where it is killed.
        left: the rows that are there then.
        right: the rows after it was done again.
        version: the last one in the end.
        options: of the write.
    """

    job: Callable[..., None]
    stop: str
    left: list[int]
    right: list[int]
    version: int = 2
    options: tuple[tuple[str, Any], ...] = tuple(PAIR.items())

    def make(self, path: str) -> None:
        spark_lance.write_dataset(jobs.rows(0), path)

    def call(self, path: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return jobs.write, (path, self.job, ROWS, self.options)

    def check_left(self, path: str) -> None:
        assert ids(path) == self.left

    def check_right(self, path: str) -> None:
        assert ids(path) == self.right
        assert spark_lance.dataset(path).version == self.version


@dataclass(frozen=True)
class Change:
    """An operation of LanceTable.

    Attributes:
        job: of `jobs`.
        stop: where it is killed.
        left: how often the rows are changed then.
        right: how often after it was done again.
    """

    job: Operation
    stop: str
    left: int
    right: int = 1

    def make(self, path: str) -> None:
        make_table(path, stable=True)
        assert row_ids(path) == {row: row for row in range(CHANGED_ROWS)}

    def call(self, path: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return jobs.change, (path, self.job, CHANGED_ROWS)

    def rows(self, times: int) -> list[dict[str, Any]]:
        rows = before()
        for _ in range(times):
            rows = MODEL[self.job](rows)
        return rows

    def check_left(self, path: str) -> None:
        assert rows_in(path) == self.rows(self.left)

    def check_right(self, path: str) -> None:
        assert rows_in(path) == self.rows(self.right)
        if self.right == 1:
            check_changed(path, self.job, {row: row for row in range(CHANGED_ROWS)}, True)


Case = Write | Change

QUICK: tuple[Case, ...] = (
    Write(jobs.append, "after 2", OLD + NEW, OLD + NEW),
    Change(jobs.merge, "before 2", 0),
)
SLOW: tuple[Case, ...] = (
    Write(jobs.append, "before 2", OLD, OLD + NEW),
    Write(jobs.overwrite, "before 2", OLD, NEW),
    Write(jobs.overwrite, "after 2", NEW, NEW),
    # A write that merges schemas makes two versions, the column and the rows.
    Write(jobs.append_with_column, "before 2", OLD, OLD + NEW, version=3),
    Write(jobs.append_with_column, "before 3", OLD, OLD + NEW, version=3),
    Write(jobs.append_with_column, "after 3", OLD + NEW, OLD + NEW, version=3),
    # Without txnAppId and txnVersion nothing tells that the rows are there.
    Write(jobs.append, "after 2", OLD + NEW, OLD + NEW + NEW, version=3, options=()),
    *(Change(operation, "before 2", 0) for operation in MODEL if operation is not jobs.merge),
    *(Change(operation, "after 2", 1) for operation in (jobs.delete, jobs.merge, jobs.add_columns)),
    # An update that builds on old values changes them again.
    Change(jobs.update, "after 2", 1, right=2),
    # Compaction first reserves the numbers of its fragments.
    Change(jobs.compact, "before 3", 0),
    Change(jobs.compact, "after 3", 1),
)


def kill(folder: Path, cases: Sequence[Case]) -> list[str]:
    """Run all jobs in one driver and kill it when each is at its stop; return the tables' paths."""
    paths = [str(folder / f"table-{number}") for number in range(len(cases))]
    with Driver("killed", "local[2]", folder).running() as driver:
        for case, path in zip(cases, paths, strict=True):
            case.make(path)
            driver.stops.ask(path, case.stop)
        running = driver.start(in_threads, [case.call(path) for case, path in zip(cases, paths, strict=True)])
        for case, path in zip(cases, paths, strict=True):
            eventually(
                f"{case} is stopped or failed",
                lambda: driver.stops.reached(path, case.stop) or running.done(),  # noqa: B023
                300,
            )
            if running.done():
                running.result()
                raise AssertionError(f"{case} did not stop")
        driver.kill()
        driver.stops.kill()
    return paths


def check(spark: SparkSession, case: Case, path: str) -> None:
    case.check_left(path)
    check_whole(path)
    had = orphans(path)
    job, arguments = case.call(path)
    job(spark.newSession(), *arguments)
    case.check_right(path)
    if case.stop.startswith("before"):
        assert had <= orphans(path)
    check_orphans_go(path)
    case.check_right(path)


def test_jobs_that_are_killed_when_they_commit_land_once(spark: SparkSession, tmp_path: Path) -> None:
    for case, path in zip(QUICK, kill(tmp_path, QUICK), strict=True):
        check(spark, case, path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, str]:
    """The tables of `SLOW`, once their jobs have been killed."""
    return dict(zip(SLOW, kill(tmp_path_factory.mktemp("killed"), SLOW), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: f"{case.job.__name__} {case.stop}")
def test_a_job_that_is_killed_when_it_commits(
    spark: SparkSession, killed: dict[Case, str], case: Case
) -> None:
    check(spark, case, killed[case])
