"""Tables whose columns and rows pylance has changed: more files per fragment, tombstones, missing columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from tests.strategies import canonical

ROWS = 40
# Pylance asks for a TypedDict and takes a dict.
RENAME: Any = {"path": "t", "name": "renamed"}
CAST: Any = {"path": "id", "data_type": pa.int32()}
Step = Callable[[lance.LanceDataset], object]


def start(version: str) -> pa.Table:
    columns = {
        "id": pa.array(range(ROWS)),
        "x": pa.array([i * 1.5 if i % 5 else None for i in range(ROWS)]),
        "t": pa.array([f"text {i % 7}" for i in range(ROWS)]),
        "s": pa.array([{"a": i, "b": {"c": f"c{i}", "d": i % 2 == 0}} for i in range(ROWS)]),
        "l": pa.array([[i, None] if i % 3 else [] for i in range(ROWS)]),
    }
    if version != "2.0":
        columns["n"] = pa.array([None if i % 4 == 0 else {"e": i, "f": None} for i in range(ROWS)])
    return pa.table(columns)


def merge_rows(ds: lance.LanceDataset) -> None:
    rows = ds.to_table(filter="id < 5").to_pylist()
    for row in rows:
        row["x"] = -1.0
    new = [{**rows[0], "id": 1000}]
    source = pa.Table.from_pylist(rows + new, schema=ds.schema)
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


STEPS: dict[str, Step] = {
    "add computed columns": lambda ds: ds.add_columns({"twice": "id * 2", "up": "upper(t)"}),
    "add a null column": lambda ds: ds.add_columns(pa.field("later", pa.list_(pa.int32()))),
    "delete rows": lambda ds: ds.delete("id % 7 = 3"),
    "update rows": lambda ds: ds.update({"x": "x + 100"}, where="id % 6 = 1"),
    "rename": lambda ds: ds.alter_columns(RENAME),
    "cast": lambda ds: ds.alter_columns(CAST),
    "drop": lambda ds: ds.drop_columns(["x"]),
    "drop nested": lambda ds: ds.drop_columns(["s.b.c"]),
    "merge rows": merge_rows,
    "join a column": lambda ds: ds.merge(
        pa.table({"id": range(0, ROWS, 2), "joined": range(0, ROWS, 2)}), "id"
    ),
    "compact": lambda ds: ds.optimize.compact_files(),
}
HISTORIES = [
    ["add computed columns", "delete rows", "add a null column", "update rows", "drop"],
    ["delete rows", "add computed columns", "cast", "rename", "drop nested", "compact"],
    ["merge rows", "delete rows", "join a column", "drop", "add computed columns2"],
    ["drop nested", "add a null column", "merge rows", "cast", "update rows2", "delete rows"],
    ["update rows", "compact", "delete rows", "drop", "add a null column", "drop nested"],
]
MORE: dict[str, Step] = {
    "add computed columns2": lambda ds: ds.add_columns({"x": "id * 3"}),
    "update rows2": lambda ds: ds.update({"renamed" if "renamed" in ds.schema.names else "t": "'new'"}),
}


def assert_equal_everywhere(path: str) -> None:
    """Compare every version, whole and by columns."""
    for entry in lance.dataset(path).versions():
        theirs = lance.dataset(path, version=entry["version"])
        ours = spark_lance.dataset(path, version=entry["version"])
        expected = theirs.to_table(with_row_id=True, with_row_address=True)
        got = ours.to_table(with_row_id=True, with_row_address=True)
        assert got.schema.remove_metadata() == expected.schema.remove_metadata()
        for name in expected.column_names:
            assert canonical(got[name]) == canonical(expected[name]), (entry["version"], name)
        assert ours.count_rows() == theirs.count_rows()
        name = theirs.schema.names[-1]
        assert canonical(ours.to_table([name])[name]) == canonical(expected[name])


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("history", HISTORIES, ids=lambda steps: "-".join(step.split()[0] for step in steps))
def test_every_version_reads_as_pylance_reads_it(
    tmp_path: Path, history: list[str], version: str, stable: bool
) -> None:
    path = str(tmp_path / "t.lance")
    table = start(version)
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(table, path, max_rows_per_file=15, **options)
    for name in history:
        (STEPS | MORE)[name](lance.dataset(path))
    assert_equal_everywhere(path)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_our_append_to_an_evolved_table(tmp_path: Path, version: str) -> None:
    path = str(tmp_path / "t.lance")
    options: dict[str, Any] = {"data_storage_version": version}
    lance.write_dataset(start(version), path, **options)
    for name in ("add computed columns", "delete rows", "drop nested", "add a null column"):
        STEPS[name](lance.dataset(path))
    rows = spark_lance.dataset(path).to_table(columns=["t", "id", "s", "twice"], limit=6)
    spark_lance.write_dataset(rows, path, "append")
    lance.dataset(path).optimize.compact_files()
    spark_lance.write_dataset(rows.select(["id"]), path, "append")
    assert_equal_everywhere(path)
