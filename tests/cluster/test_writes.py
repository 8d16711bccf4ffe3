"""Writes on a cluster whose tasks are repeated, copied and killed: each row is there exactly once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import spark_lance
from tests.cluster import jobs
from tests.cluster.data_files import (
    attempts,
    attempts_of_first_task,
    check_orphans_go,
    check_whole,
    ids,
    orphans,
)
from tests.cluster.driver import Driver, JobFailedError
from tests.cluster.jobs import ROWS
from tests.cluster.standalone import Cluster, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]


def test_a_table_is_written_read_and_appended_to(driver: Driver, path: str) -> None:
    driver.run(jobs.append, path, 0)
    driver.run(jobs.append, path, ROWS)
    assert driver.run(jobs.ids, path) == ids(path) == list(range(2 * ROWS))
    check_orphans_go(path)


def test_what_is_read_as_columns_is_written(driver: Driver, path: str) -> None:
    driver.run(jobs.append, path, 0)
    driver.run(jobs.copied, path, path + ".parquet", path + ".copy")
    assert ids(path + ".copy") == list(range(ROWS))


def test_a_copy_of_a_slow_task_wins_and_rows_are_there_once(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0)
    driver.run(jobs.append, path, ROWS, jobs.stuck, str(marks))
    assert attempts_of_first_task(marks) >= 2
    assert len([done for done in attempts(marks, "done") if done.startswith("0.")]) == 1
    assert ids(path) == list(range(2 * ROWS))
    assert orphans(path)
    check_orphans_go(path)


def test_of_two_attempts_that_finish_one_is_committed(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0, jobs.meets_its_copy, str(marks))
    assert attempts_of_first_task(marks) >= 2
    assert ids(path) == list(range(ROWS))
    check_orphans_go(path)


def test_tasks_that_fail_once_are_repeated(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0, jobs.fails_once, str(marks))
    assert len(list(marks.glob("*.failed"))) == jobs.PARTITIONS
    assert ids(path) == list(range(ROWS))
    # Spark kills the process that writes when the one fails from which it gets its rows.
    check_orphans_go(path)


def test_a_job_that_fails_for_good_leaves_the_table_as_it_was(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0)
    with pytest.raises(JobFailedError, match="a failure of the test"):
        driver.run(jobs.append, path, ROWS, jobs.fails_for_good, str(marks))
    assert attempts(marks, "done")
    assert spark_lance.dataset(path).version == 1
    assert ids(path) == list(range(ROWS))
    # The files of tasks that finished are deleted at once.
    failed = [name for name in attempts(marks, "half") if name.startswith("0.")]
    assert len(orphans(path)) <= len(failed) * jobs.BATCHES // 2
    check_orphans_go(path)


def test_an_executor_that_is_killed_takes_no_rows_along(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0, jobs.kills_its_executor, str(marks))
    assert attempts_of_first_task(marks) >= 2
    assert ids(path) == list(range(ROWS))
    check_orphans_go(path)


def test_two_drivers_append_to_one_table_at_once(driver: Driver, second: Driver, path: str) -> None:
    running = [who.start(jobs.append, path, i * ROWS) for i in range(3) for who in (driver, second)]
    for job in running:
        job.result(300)
    both = [number for i in range(3) for number in range(i * ROWS, (i + 1) * ROWS)]
    assert ids(path) == sorted(both * 2)
    assert spark_lance.dataset(path).version == 6
    check_orphans_go(path)


def test_a_driver_that_is_killed_changes_nothing(
    cluster: Cluster, driver: Driver, second: Driver, path: str, marks: Path
) -> None:
    driver.run(jobs.append, path, 0)
    second.start(jobs.append, path, ROWS, jobs.all_stuck, str(marks))
    eventually("tasks have written files", lambda: bool(orphans(path)), 120)
    second.kill()
    eventually("the master has noticed", lambda: cluster.applications() == 1)
    eventually("the executors are gone", lambda: len(cluster.executors()) == 2)
    assert spark_lance.dataset(path).version == 1
    assert orphans(path)
    check_whole(path)
    driver.run(jobs.append, path, ROWS)
    assert ids(path) == list(range(2 * ROWS))
    check_orphans_go(path)
