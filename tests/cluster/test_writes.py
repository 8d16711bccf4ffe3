"""Writes on a cluster whose tasks are repeated, copied and killed: each row is there exactly once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import spark_lance
from tests.cluster import jobs
from tests.cluster.driver import Driver, JobFailedError
from tests.cluster.jobs import ROWS
from tests.cluster.standalone import Cluster, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def ids(path: str) -> list[int]:
    return sorted(spark_lance.dataset(path).to_table(columns=["id"]).column("id").to_pylist())


def orphans(path: str) -> set[str]:
    """The data files that the newest version does not name."""
    named = {
        file.path for fragment in spark_lance.dataset(path).manifest.fragments for file in fragment.files
    }
    return {file.name for file in (Path(path) / "data").iterdir()} - named


def settled_orphans(path: str) -> set[str]:
    """The same, once the attempts that Spark no longer wants have ended."""
    found = [orphans(path)]

    def quiet() -> bool:
        time.sleep(0.5)
        found.append(orphans(path))
        return found[-1] == found[-2]

    eventually("no more files appear", quiet)
    return found[-1]


def attempts(marks: Path, what: str) -> set[str]:
    """The attempts, "partition.attempt", that left a mark."""
    return {mark.name.removesuffix(f".{what}") for mark in marks.glob(f"*.{what}")}


def check_orphans_go(path: str) -> None:
    """Clean-up leaves files alone that a running job may need, and removes them when told that none runs."""
    before = ids(path)
    found = settled_orphans(path)
    table = spark_lance.dataset(path)
    table.cleanup_old_versions()
    assert orphans(path) == found
    stats = table.cleanup_old_versions(delete_unverified=True)
    assert stats.data_files_removed == len(found)
    assert orphans(path) == set()
    assert ids(path) == before


def test_a_table_is_written_read_and_appended_to(driver: Driver, path: str) -> None:
    driver.run(jobs.append, path, 0)
    driver.run(jobs.append, path, ROWS)
    assert driver.run(jobs.ids, path) == ids(path) == list(range(2 * ROWS))
    check_orphans_go(path)


def test_a_copy_of_a_slow_task_wins_and_rows_are_there_once(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0)
    driver.run(jobs.append, path, ROWS, jobs.stuck, str(marks))
    assert {"0.0", "0.1"} <= attempts(marks, "half")
    assert "0.0" not in attempts(marks, "done")
    assert ids(path) == list(range(2 * ROWS))
    assert orphans(path)
    check_orphans_go(path)


def test_of_two_attempts_that_finish_one_is_committed(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0, jobs.meets_its_copy, str(marks))
    assert {"0.0", "0.1"} <= attempts(marks, "half")
    assert ids(path) == list(range(ROWS))
    check_orphans_go(path)


def test_tasks_that_fail_once_are_repeated(driver: Driver, path: str, marks: Path) -> None:
    driver.run(jobs.append, path, 0, jobs.fails_once, str(marks))
    assert {f"{partition}.1" for partition in range(jobs.PARTITIONS)} <= attempts(marks, "done")
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
    assert {"0.0", "0.1"} <= attempts(marks, "half")
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
    assert spark_lance.dataset(path).version == 1
    driver.run(jobs.append, path, ROWS)
    assert ids(path) == list(range(2 * ROWS))
    eventually("the executors are gone", lambda: len(cluster.executors()) == 2)
    assert orphans(path)
    check_orphans_go(path)
