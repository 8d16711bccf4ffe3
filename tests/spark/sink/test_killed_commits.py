"""A driver and its JVM are killed right before or after they publish a version; the job is then run again.

One driver does all the jobs, each on a table of its own, until every one has come to its stop; the tasks of
one more are killed while they write. `tests/cluster` has more of that kind. The default run has a job that is
killed while it writes (`test_concurrent_jobs`), commits that fail in the process (`test_write_once`), and
processes without Spark that are killed at every step (`tests/table/commits/test_crash.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from tests.cluster.driver import Driver, until_one_ends
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
        refused: as for changes.
    """

    job: Callable[..., None]
    stop: str
    left: list[int]
    right: list[int]
    version: int = 2
    options: tuple[tuple[str, Any], ...] = tuple(PAIR.items())
    refused: str = ""

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
        stable: whether the table has stable row ids.
        refused: what is said when it is done again, if that fails.
    """

    job: Operation
    stop: str
    left: int
    right: int = 1
    stable: bool = True
    refused: str = ""

    def make(self, path: str) -> None:
        make_table(path, self.stable)
        if self.stable:
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
            check_changed(path, self.job, {row: row for row in range(CHANGED_ROWS)}, self.stable)


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
    Write(jobs.append, "after 2", OLD + NEW, sorted(OLD + NEW + NEW), version=3, options=()),
    *(Change(operation, "before 2", 0) for operation in MODEL if operation is not jobs.merge),
    *(Change(operation, "after 2", 1) for operation in (jobs.delete, jobs.merge, jobs.compact)),
    Change(jobs.add_columns, "after 2", 1, refused="exists already"),
    # An update that builds on old values changes them again.
    Change(jobs.update, "after 2", 1, right=2),
    Change(jobs.compact, "before 2", 0, stable=False),
    Change(jobs.compact, "after 2", 1, stable=False),
)


def kill(folder: Path, cases: Sequence[Case], writing: str = "") -> list[str]:
    """Run all jobs in one driver and kill it when each is at its stop; return the tables' paths.

    By then tasks of a further job have finished some files of the table `writing`, and write others.
    """
    paths = [str(folder / f"table-{number}") for number in range(len(cases))]
    with Driver("killed", "local[2]", folder).running() as driver:
        for case, path in zip(cases, paths, strict=True):
            case.make(path)
            driver.stops.ask(path, case.stop)
        pairs = list(zip(cases, paths, strict=True))
        calls = [case.call(path) for case, path in pairs]
        go = folder / "go"
        if writing:
            calls.append((jobs.append_without_end, (writing, ROWS, str(go))))
        ended = driver.start(until_one_ends, calls)

        def stopped() -> bool:
            return all(driver.stops.reached(path, case.stop) for case, path in pairs)

        eventually("all jobs are stopped", lambda: stopped() or ended.done(), 600)
        if not stopped():
            raise AssertionError("a job did not stop") from ended.exception()
        go.touch()
        if writing:
            eventually("tasks write", lambda: bool(orphans(writing)) or ended.done(), 120)
            assert not ended.done(), ended.exception()
        driver.kill()
        driver.stops.kill()
    return paths


def check(spark: SparkSession, case: Case, path: str) -> None:
    case.check_left(path)
    check_whole(path)
    had = orphans(path)
    job, arguments = case.call(path)
    again: AbstractContextManager[Any] = (
        nullcontext() if not case.refused else pytest.raises(Exception, match=case.refused)
    )
    with again:
        job(spark.newSession(), *arguments)
    case.check_right(path)
    if case.stop.startswith("before"):
        # A job that can be resumed takes up the files of the one that was killed.
        assert orphans(path) & had == (set() if case.job is jobs.add_columns else had)
    check_orphans_go(path)
    case.check_right(path)


@pytest.mark.slow
def test_jobs_that_are_killed_when_they_commit_land_once(spark: SparkSession, tmp_path: Path) -> None:
    writing = str(tmp_path / "writing")
    spark_lance.write_dataset(jobs.rows(0), writing)
    for case, path in zip(QUICK, kill(tmp_path, QUICK, writing), strict=True):
        check(spark, case, path)
    assert spark_lance.dataset(writing).version == 1
    check_whole(writing)
    assert jobs.ids(spark, writing) == OLD
    check_orphans_go(writing)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tables of `SLOW`, once their jobs have been killed."""
    return kill(tmp_path_factory.mktemp("killed"), SLOW)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", range(len(SLOW)), ids=[f"{case.job.__name__} {case.stop}" for case in SLOW]
)
def test_a_job_that_is_killed_when_it_commits(spark: SparkSession, killed: list[str], number: int) -> None:
    check(spark, SLOW[number], killed[number])
