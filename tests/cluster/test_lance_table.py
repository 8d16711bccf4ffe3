"""Operations of LanceTable on a cluster whose tasks are copied, repeated and killed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance import LanceTable
from tests.cluster import jobs
from tests.cluster.data_files import attempts, attempts_of_first_task, check_orphans_go, orphans
from tests.cluster.driver import Driver, JobFailedError
from tests.cluster.standalone import Cluster, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]

ROWS = 400
Operation = Callable[[LanceTable, int], None]
Row = dict[str, Any]


def before() -> list[Row]:
    return [{"id": i, "a": i * 10, "k": i * 7919 % ROWS} for i in range(ROWS)]


def merged(rows: list[Row]) -> list[Row]:
    updated = [{**row, "a": -row["id"]} if row["id"] >= ROWS // 2 else row for row in rows]
    return updated + [{"id": i, "a": -i, "k": 0} for i in range(ROWS, ROWS + ROWS // 2)]


# Each operation, and what it does to a list of rows.
MODEL: dict[Operation, Callable[[list[Row]], list[Row]]] = {
    jobs.delete: lambda rows: [row for row in rows if row["id"] % 5 != 2],
    jobs.update: lambda rows: [{**row, "a": row["a"] + (row["id"] % 5 == 2)} for row in rows],
    jobs.merge: merged,
    jobs.add_columns: lambda rows: [{**row, "b": row["a"] * 2} for row in rows],
    jobs.update_columns: lambda rows: [{**row, "a": row["a"] + 7} for row in rows],
    jobs.compact: lambda rows: rows,
    jobs.sort: lambda rows: rows,
}
each_operation = pytest.mark.parametrize("operation", MODEL, ids=lambda operation: operation.__name__)
both_kinds_of_ids = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


def make_table(path: str, stable: bool) -> None:
    """Make a table of four fragments."""
    table = pa.Table.from_pylist(before())
    spark_lance.write_dataset(table, path, max_rows_per_file=ROWS // 4, enable_stable_row_ids=stable)


def rows_of(path: str) -> list[Row]:
    rows: list[Row] = spark_lance.dataset(path).to_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


def row_ids(path: str) -> dict[int, int]:
    table = spark_lance.dataset(path).to_table(columns=["id"], with_row_id=True)
    return dict(zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True))


def check_changed(path: str, operation: Operation, ids: dict[int, int], stable: bool) -> None:
    """The table is what the model says; stable row ids have survived."""
    assert rows_of(path) == MODEL[operation](before())
    table = spark_lance.dataset(path)
    assert table.count_rows() == len(MODEL[operation](before()))
    if stable:
        after = row_ids(path)
        assert {i: row for i, row in after.items() if i in ids} == {i: ids[i] for i in after if i in ids}
        assert len(set(after.values())) == len(after)
    if operation is jobs.sort:
        assert table.to_table()["k"].to_pylist() == list(range(ROWS))


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
    assert rows_of(path) == before()
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
    assert rows_of(path) == once(once(before()) if operation is jobs.update else before())
    after = row_ids(path)
    assert {i: after[i] for i in ids} == ids
    check_orphans_go(path)


def test_a_driver_that_is_killed_in_an_operation_changes_nothing(
    cluster: Cluster, driver: Driver, second: Driver, path: str, marks: Path
) -> None:
    make_table(path, stable=True)
    ids = row_ids(path)
    second.start(jobs.change, path, jobs.merge, ROWS, jobs.all_stuck, str(marks))
    eventually("tasks have written files", lambda: bool(orphans(path)), 120)
    second.kill()
    eventually("the master has noticed", lambda: cluster.applications() == 1)
    assert rows_of(path) == before()
    driver.run(jobs.change, path, jobs.merge, ROWS)
    check_changed(path, jobs.merge, ids, True)
    assert orphans(path)
    check_orphans_go(path)
