"""Operations of LanceTable on a cluster whose tasks are copied, repeated and killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import spark_lance
from tests.cluster import jobs
from tests.cluster.changes import MODEL, ROWS, Operation, before, check_changed, make_table, row_ids, rows_in
from tests.cluster.data_files import attempts, attempts_of_first_task, check_orphans_go, check_whole, orphans
from tests.cluster.driver import Driver, JobFailedError
from tests.cluster.standalone import Cluster, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]

each_operation = pytest.mark.parametrize("operation", MODEL, ids=lambda operation: operation.__name__)
both_kinds_of_ids = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


@both_kinds_of_ids
@each_operation
def test_tasks_that_are_copied_or_repeated_count_once(
    driver: Driver, path: str, marks: Path, operation: Operation, stable: bool
) -> None:
    make_table(path, stable)
    ids = row_ids(path)
    driver.run(jobs.change, path, operation, ROWS, jobs.copied_or_repeated, str(marks))
    assert attempts_of_first_task(marks) >= 2
    check_changed(path, operation, ids, stable)
    check_orphans_go(path)
    check_changed(path, operation, ids, stable)


@pytest.mark.parametrize("operation", [jobs.merge, jobs.add_columns, jobs.compact], ids=lambda o: o.__name__)
def test_an_executor_that_is_killed_costs_no_rows(
    driver: Driver, path: str, marks: Path, operation: Operation
) -> None:
    make_table(path, stable=True)
    ids = row_ids(path)
    driver.run(jobs.change, path, operation, ROWS, jobs.kills_its_executor, str(marks))
    assert attempts_of_first_task(marks) >= 2
    check_changed(path, operation, ids, True)
    check_orphans_go(path)


@each_operation
def test_an_operation_that_fails_changes_nothing_and_can_be_repeated(
    driver: Driver, path: str, marks: Path, operation: Operation
) -> None:
    make_table(path, stable=True)
    ids = row_ids(path)
    with pytest.raises(JobFailedError, match="a failure of the test"):
        driver.run(jobs.change, path, operation, ROWS, jobs.fails_always, str(marks))
    assert attempts(marks, "half")
    assert spark_lance.dataset(path).version == 1
    assert rows_in(path) == before()
    driver.run(jobs.change, path, operation, ROWS)
    check_changed(path, operation, ids, True)
    check_orphans_go(path)


@pytest.mark.parametrize("operation", [jobs.update, jobs.merge], ids=lambda o: o.__name__)
def test_two_drivers_change_one_table_at_once(
    driver: Driver, second: Driver, path: str, operation: Operation
) -> None:
    make_table(path, stable=True)
    ids = row_ids(path)
    running = [who.start(jobs.change, path, operation, ROWS) for who in (driver, second)]
    for job in running:
        job.result(300)
    # The later one starts from what the earlier one left: a merge finds its keys, an update adds once more.
    once = MODEL[operation]
    assert rows_in(path) == once(once(before()) if operation is jobs.update else before())
    after = row_ids(path)
    assert {i: after[i] for i in ids} == ids
    check_orphans_go(path)


@pytest.mark.parametrize(
    "operation", [jobs.merge, jobs.add_columns, jobs.compact], ids=lambda operation: operation.__name__
)
def test_a_driver_that_is_killed_amid_an_operation_changes_nothing(
    cluster: Cluster, driver: Driver, second: Driver, path: str, marks: Path, operation: Operation
) -> None:
    make_table(path, stable=True)
    ids = row_ids(path)
    second.start(jobs.change, path, operation, ROWS, jobs.all_stuck, str(marks))
    eventually("tasks have written files", lambda: bool(orphans(path)), 120)
    second.kill()
    eventually("the master has noticed", lambda: cluster.applications() == 1)
    eventually("the executors are gone", lambda: len(cluster.executors()) == 2)
    assert rows_in(path) == before()
    check_whole(path)
    driver.run(jobs.change, path, operation, ROWS)
    check_changed(path, operation, ids, True)
    check_orphans_go(path)
