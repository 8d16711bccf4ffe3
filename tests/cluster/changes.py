"""A table, and what the operations of `jobs` make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import spark_lance
from spark_lance import LanceTable
from tests.cluster import jobs
from tests.cluster.data_files import rows_of

__all__ = ["MODEL", "ROWS", "Operation", "before", "check_changed", "make_table", "row_ids", "rows_in"]

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


def make_table(path: str, stable: bool) -> None:
    """Make a table of four fragments."""
    table = pa.Table.from_pylist(before())
    spark_lance.write_dataset(table, path, max_rows_per_file=ROWS // 4, enable_stable_row_ids=stable)


def rows_in(path: str) -> list[Row]:
    return rows_of(spark_lance.dataset(path))


def row_ids(path: str) -> dict[int, int]:
    table = spark_lance.dataset(path).to_table(columns=["id"], with_row_id=True)
    return dict(zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True))


def check_changed(path: str, operation: Operation, ids: dict[int, int], stable: bool) -> None:
    """The table is what the model says; stable row ids have survived."""
    assert rows_in(path) == MODEL[operation](before())
    table = spark_lance.dataset(path)
    assert table.count_rows() == len(MODEL[operation](before()))
    if stable:
        after = row_ids(path)
        assert {i: row for i, row in after.items() if i in ids} == {i: ids[i] for i in after if i in ids}
        assert len(set(after.values())) == len(after)
    if operation is jobs.sort:
        assert table.to_table()["k"].to_pylist() == list(range(ROWS))
