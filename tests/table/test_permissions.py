"""What someone without the permissions is told, and that nothing is lost, passed over or done by half."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from tests.unprivileged import answer_of, set_modes

PROGRAM = """
import json, sys
from datetime import timedelta
import pyarrow as pa
import spark_lance
from spark_lance.errors import StoreAccessError

vector = pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 8, pa.float32()), 8)
one = pa.table({"id": [1000], "s": ["x"], "v": vector})
old = lambda: spark_lance.dataset(path)
all_old = {"older_than": timedelta(0), "dry_run": True, "error_if_tagged_old_versions": False}
steps = {
    "count": lambda: old().count_rows(),
    "scan": lambda: old().to_table(["s"]),
    "look-up": lambda: old().to_table(filter="id = 7"),
    "nearest": lambda: old().to_table(nearest={"column": "v", "q": [0.0] * 8, "k": 3}),
    "text": lambda: old().to_table(full_text_query="word1"),
    "tag": lambda: spark_lance.dataset(path, version="first"),
    "branch": lambda: spark_lance.dataset(path, version=("dev", None)),
    "tags": lambda: old().tags.list(),
    "branches": lambda: old().branches.list(),
    "transactions": lambda: old().get_transactions(3),
    "clean up": lambda: old().cleanup_old_versions(**all_old),
    "deep clone": lambda: old().deep_clone(path + "-clone"),
    "new tag": lambda: old().tags.create("new", 1),
    "new branch": lambda: old().create_branch("new"),
    "append": lambda: spark_lance.write_dataset(one, path, mode="append"),
    "delete": lambda: old().delete("id = 9"),
    "update": lambda: old().update({"s": "'z'"}, where="id = 5"),
    "merge": lambda: old().merge_insert("id").when_not_matched_insert_all().execute(one),
    "column": lambda: old().add_columns({"k": "id + 1"}),
    "index": lambda: old().create_scalar_index("id", "BITMAP", name="more"),
    "compact": lambda: old().compact_files(),
    "overwrite": lambda: spark_lance.write_dataset(one, path, mode="overwrite"),
    "restore": lambda: spark_lance.dataset(path, version=2).restore(),
}
told = {}
for path in sys.argv[1:]:
    told[path] = {}
    for name, step in steps.items():
        try:
            step()
        except StoreAccessError as error:
            told[path][name] = str(error)
print(json.dumps(told))
"""


READS = {"count", "scan", "look-up", "nearest", "text", "tag", "branch", "tags", "branches", "transactions"}
WRITES = {"append", "overwrite", "delete", "update", "merge", "column", "index", "compact", "restore"}
NAMES = {"new tag", "new branch"}
# Folders of a table that are closed -> steps that need them, and must not pass over what is in them.
CLOSED = {
    ".": {*READS, *WRITES, *NAMES, "clean up", "deep clone"},
    "_versions": {*READS, *WRITES, *NAMES, "clean up", "deep clone"} - {"restore"},
    "data": {"scan", "look-up", "append", "update", "column", "overwrite", "clean up", "deep clone"},
    "_transactions": {"append", "delete", "update", "merge", "overwrite", "restore", "clean up"},
    "_deletions": {"scan", "look-up", "nearest", "text", "delete", "clean up", "deep clone"},
    "_indices": {"look-up", "nearest", "text", "index", "clean up", "deep clone"},
    "_refs": {"tag", "branch", "tags", "branches", "clean up", *NAMES},
    "tree": {"branch", "new branch", "clean up"},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Tables of two fragments with deleted rows, three indices, a tag and a branch: one for each case."""
    root = tmp_path_factory.mktemp("permissions")
    path = root / "t"
    vectors = np.random.default_rng(0).random((200, 8), np.float32)
    rows: dict[str, Any] = {
        "id": range(200),
        "s": [f"word{number % 7} text" for number in range(200)],
        "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 8),
    }
    ds = spark_lance.write_dataset(pa.table(rows), path, max_rows_per_file=100)
    ds = ds.create_scalar_index("id", "BTREE").create_scalar_index("s", "INVERTED")
    ds = ds.create_index("v", "IVF_FLAT", num_partitions=2).delete("id = 3")
    ds.tags.create("first", 1)
    ds.create_branch("dev")
    results = {case: Path(shutil.copytree(path, root / f"{number}")) for number, case in enumerate(CLOSED)}
    results["read-only"] = path
    yield results
    set_modes(root, 0o755, 0o644)


@pytest.fixture(scope="module")
def refused(tables: dict[str, Path]) -> dict[str, dict[str, str]]:
    """What was refused, and in which words: by case and step."""
    for case, path in tables.items():
        if case == "read-only":
            set_modes(path, 0o555, 0o444)
        else:
            (path / case).chmod(0)
    message = answer_of(PROGRAM, *tables.values())
    for path in tables.values():
        path.chmod(0o755)
        set_modes(path, 0o755, 0o644)
    return {case: message[str(path)] for case, path in tables.items()}


def test_a_table_that_may_only_be_read(tables: dict[str, Path], refused: dict[str, dict[str, str]]) -> None:
    path, message = tables["read-only"], refused["read-only"]
    assert set(message) == WRITES | NAMES
    for text in message.values():
        assert text.startswith((f"writing {path}/", f"creating {path}/"))
        assert "this user may not do that: change the owner or the permissions of the path" in text
        assert "\n" not in text
    assert spark_lance.dataset(path).version == 5
    assert spark_lance.dataset(path).count_rows() == 199


@pytest.mark.parametrize("case", CLOSED)
def test_what_is_closed_is_neither_passed_over_nor_harmed(
    case: str, tables: dict[str, Path], refused: dict[str, dict[str, str]]
) -> None:
    path, message = tables[case], refused[case]
    assert CLOSED[case] <= set(message)
    closed = str(path if case == "." else path / case)
    for step, text in message.items():
        assert closed in text, step
    assert spark_lance.dataset(path, version=5).to_table().num_rows == 199
    assert spark_lance.dataset(path, version="first").to_table().num_rows == 200
    assert spark_lance.dataset(path, version=("dev", None)).to_table(filter="id = 7").num_rows == 1


def test_files_of_versions_that_cannot_be_deleted_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for number in range(3):
        spark_lance.write_dataset(pa.table({"a": [number]}), path, mode="overwrite")
    (path / "_versions").chmod(0o555)
    clean = (
        "import datetime, json, sys, spark_lance\n"
        "stats = spark_lance.dataset(sys.argv[1]).cleanup_old_versions(datetime.timedelta(0))\n"
        "print(json.dumps([stats.old_versions, stats.data_files_removed, stats.failed_deletes]))"
    )
    try:
        assert answer_of(clean, path) == [0, 0, 2]
        for number in range(3):
            assert spark_lance.dataset(path, version=number + 1).to_table()["a"].to_pylist() == [number]
    finally:
        (path / "_versions").chmod(0o755)
    assert answer_of(clean, path) == [2, 2, 0]
