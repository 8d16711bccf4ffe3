"""Changes of rows that the driver has at hand: they take no job, and do what jobs do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import SchemaError
from spark_lance.spark.table import changing
from tests.spark.sink.test_driver_writes import jobs

ROWS = 200
BYTES = "spark.lance.localBytes"


@pytest.fixture(scope="module")
def driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root = str(tmp_path_factory.mktemp("hand"))
    session = spark_lance.enable(spark.newSession(), root=root)
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield session
    spark.newSession()


def made(path: Path, **more: Any) -> str:
    ids = list(range(ROWS))
    columns = {
        "id": pa.array(ids, pa.int64()),
        "name": [f"n{i}" for i in ids],
        "small": pa.array([i % 100 for i in ids], pa.int8()),
        "at": pa.array([i * 1_000_000 for i in ids], pa.timestamp("us", "UTC")),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(range(2 * ROWS), pa.float32()), 2),
        **more,
    }
    path.mkdir(exist_ok=True)
    place = str(path / "t.lance")
    spark_lance.write_dataset(pa.table(columns), place, max_rows_per_file=60, enable_stable_row_ids=True)
    spark_lance.dataset(place).create_scalar_index("id", "BTREE")
    return place


def rows_of(path: str) -> list[dict[str, Any]]:
    rows = spark_lance.dataset(path).to_table(with_row_id=True).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


STATEMENTS = (
    "DELETE FROM lance.`{path}` WHERE id = 61",
    "DELETE FROM lance.`{path}` WHERE id IN (4, 63, 62, 198, 500)",
    "DELETE FROM lance.`{path}` WHERE id = 500",
    "UPDATE lance.`{path}` SET name = concat(name, id), small = small + 1 WHERE id IN (199, 3, 61)",
    "UPDATE lance.`{path}` SET at = timestamp'2024-02-29 12:00:00', v = NULL WHERE id = 0",
    "UPDATE lance.`{path}` SET small = NULL WHERE id BETWEEN 58 AND 66 AND name <> 'n60'",
)


def test_what_a_key_names_is_changed_without_a_job(driver: SparkSession, tmp_path: Path) -> None:
    mine, by_tasks = made(tmp_path / "mine"), made(tmp_path / "theirs")

    def jobs_of(statement: str, path: str) -> int:
        return jobs(driver, lambda: driver.sql(statement.format(path=path)).collect())

    for statement in STATEMENTS:
        assert jobs_of(statement, mine) == 0
        driver.conf.set(BYTES, "0")
        try:
            assert jobs_of(statement, by_tasks) > 0
        finally:
            driver.conf.unset(BYTES)
        assert rows_of(mine) == rows_of(by_tasks)
        assert spark_lance.dataset(mine).version == spark_lance.dataset(by_tasks).version


def test_the_methods_of_a_table_do_so_too(driver: SparkSession, tmp_path: Path) -> None:
    path = made(tmp_path)
    table = LanceTable.forPath(driver, path)
    changed = table.update("id = 7", {"small": "9"})
    assert jobs(driver, lambda: table.delete("id = 8")) == 0
    assert changed.first()["num_updated_rows"] == 1  # type: ignore[index]
    assert [(row["id"], row["small"]) for row in rows_of(path)][6:9] == [(6, 6), (7, 9), (9, 9)]


def test_values_that_do_not_fit_are_refused_and_leave_nothing_behind(
    driver: SparkSession, tmp_path: Path
) -> None:
    path = made(tmp_path)
    table, before = LanceTable.forPath(driver, path), sorted(Path(path, "data").iterdir())
    with pytest.raises((ArithmeticException, SchemaError)):
        table.update("id = 7", {"small": "id * 1000"})
    assert sorted(Path(path, "data").iterdir()) == before
    assert spark_lance.dataset(path).latest_version == spark_lance.dataset(path).version


def test_rows_that_may_be_large_are_left_to_tasks(driver: SparkSession, tmp_path: Path) -> None:
    path = made(tmp_path, wide=[os.urandom(250).hex() for _ in range(ROWS)])
    table = LanceTable.forPath(driver, path)
    driver.conf.set(BYTES, "1000")
    try:
        assert jobs(driver, lambda: table.update("id = 7", {"small": "9"})) > 0
    finally:
        driver.conf.unset(BYTES)
    assert rows_of(path)[7]["small"] == 9


def test_where_the_class_is_missing_tasks_do_it(
    driver: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "_ROWS", "org.lance.spark.rowlevel.NoSuchClass")
    path = made(tmp_path)
    assert jobs(driver, lambda: LanceTable.forPath(driver, path).delete("id = 8")) > 0
    assert len(rows_of(path)) == ROWS - 1
