"""When nobody can tell whether a commit went through, nothing that it may need is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import CommitOutcomeUnknownError
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.publish import publish
from spark_lance.table.versions.versions import load_latest

ROWS = pa.table({"a": pa.array(range(6), pa.int64()), "b": [str(i) for i in range(6)]})


class DriverError(Exception):
    """What a store's driver might raise if nobody translates it: no OSError, no error of ours."""


def upsert(path: str) -> None:
    merge = spark_lance.dataset(path).merge_insert("a")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(ROWS.slice(3))


WORK: dict[str, Callable[[str], Any]] = {
    "create": lambda path: spark_lance.write_dataset(ROWS, f"{path}/new"),
    "append": lambda path: spark_lance.write_dataset(ROWS, path, mode="append"),
    "overwrite": lambda path: spark_lance.write_dataset(ROWS, path, mode="overwrite"),
    "delete": lambda path: spark_lance.dataset(path).delete("a = 1"),
    "update": lambda path: spark_lance.dataset(path).update({"b": "'x'"}, where="a < 3"),
    "upsert": upsert,
    "add columns": lambda path: spark_lance.dataset(path).add_columns({"c": "a + 1"}),
    "compact": lambda path: spark_lance.dataset(path).optimize.compact_files(),
}


def files(path: Path) -> set[Path]:
    return {file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".tmp")}


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
@pytest.mark.parametrize("error", [ConnectionError("reset"), DriverError("reset")], ids=["known", "unknown"])
@pytest.mark.parametrize("work", WORK)
def test_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, error: Exception, landed: bool
) -> None:
    path = str(tmp_path / "t")
    spark_lance.write_dataset(ROWS, path, max_rows_per_file=2)
    present: set[Path] = set()

    def fail(*arguments: Any) -> None:
        if landed:
            publish(*arguments)
        present.update(files(tmp_path))
        raise error

    def blind(*arguments: Any) -> Any:
        raise ConnectionError("no route to store")

    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "publish", fail)
        patch.setattr(commit_module, "read_manifest", blind)
        with pytest.raises((CommitOutcomeUnknownError, DriverError)):
            WORK[work](path)
    assert present
    assert present <= files(tmp_path)
    where = f"{path}/new" if work == "create" else path
    if landed or work != "create":
        store = spark_lance.dataset(where).store
        assert load_latest(TableRef(store, where)).version == (1 if work == "create" else 1 + landed)
        # What the commit may need is all there.
        assert spark_lance.dataset(where).to_table().num_rows >= 5
