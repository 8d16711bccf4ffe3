"""Small files of a table, damaged in every way: a typed error, or work that ends; never a worse table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.io.store import open_store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import list_versions

WORKER = Path(__file__).with_name("damage_worker.py")


def damaged(path: Path, stride: int, files: list[str]) -> dict[str, dict[str, int]]:
    """Return how often what happened, by file."""
    command = [sys.executable, str(WORKER), str(path), str(stride), *files]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, f"killed by {done.returncode}: {done.stderr[-2000:]}"
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["failures"] == {}
    outcomes: dict[str, dict[str, int]] = said["outcomes"]
    return outcomes


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with an index, deletion files of both kinds, tags and a branch."""
    path = tmp_path / "t"
    rows = pa.table({"a": pa.array(range(40), pa.int64()), "b": [str(i) for i in range(40)]})
    dataset: Any = lance.write_dataset(rows, path, max_rows_per_file=20, enable_stable_row_ids=request.param)
    dataset.create_scalar_index("a", "BTREE")
    for values in ("(1, 2)", "(22)"):
        dataset.delete(f"a in {values}")
    stale = lance.dataset(str(path), version=dataset.version)
    dataset.delete("a = 25")
    stale.delete("a = 27")
    dataset = lance.dataset(str(path))
    dataset.tags.create("one", 1)
    dataset.tags.create("two", 2)
    dataset.create_branch("side", 2)
    dataset.update_config({"k": "v"})
    return path


def files(path: Path) -> dict[str, list[str]]:
    """The files to damage, by what is to be done with the table then."""
    table = TableRef(*open_store(path))
    newest, previous = (Path(file.path) for file in list_versions(table)[:-3:-1])
    fragments = spark_lance.dataset(path).manifest.fragments
    deletions = [
        name
        for fragment in fragments
        for name in (path / "_deletions").glob(f"{fragment.id}-*-{fragment.deletion_file.id}.*")
    ]
    assert {name.suffix for name in deletions} == {".arrow", ".bin"}
    kinds = {
        "read+commit": [newest, previous],
        "read+delete": deletions,
        "look": [*path.glob("_refs/*/*.json")],
    }
    return {kind: [str(file.relative_to(path)) for file in result] for kind, result in kinds.items()}


def check(path: Path, stride: int) -> None:
    chosen = files(path)
    arguments = [f"{work}={file}" for work, result in chosen.items() for file in result]
    outcomes = damaged(path, stride, arguments)
    newest, previous = chosen["read+commit"]
    assert outcomes[newest]["read error"] > outcomes[newest].get("read fine", 0) / 4
    # A manifest whose frame is damaged counts as torn: the commit steps over it.
    assert outcomes[newest]["commit error"] > outcomes[newest].get("commit fine", 0) / 8
    assert outcomes[previous]["commit error"] > outcomes[previous].get("commit fine", 0) / 4
    assert set(outcomes[previous]) <= {"read fine", "commit error", "commit fine"}
    for file in chosen["read+delete"]:
        assert outcomes[file]["read error"] > outcomes[file].get("read fine", 0)
        assert outcomes[file]["delete error"] > 0
    for file in chosen["look"]:
        assert outcomes[file]["look error"] > outcomes[file].get("look fine", 0) / 4


def test_some_damage(table: Path) -> None:
    check(table, 97)


@pytest.mark.slow
def test_all_damage(table: Path) -> None:
    check(table, 1)
