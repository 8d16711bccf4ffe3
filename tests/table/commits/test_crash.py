"""A writer is killed at every step: the table is the old or the new version, and goes on working."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.versions.versions import load_latest
from tests.conftest import ROOT
from tests.table.commits.crash_worker import JOBS

WORKER = Path(__file__).with_name("crash_worker.py")
Rows = list[tuple[int, str]]
OLD: Rows = [(i, str(i)) for i in range(6)]
# What each job makes of the rows.
NEW: dict[str, Callable[[Rows], Rows]] = {
    "append": lambda rows: [*rows, (7, "x"), (8, "y")],
    "delete": lambda rows: [row for row in rows if row[0] != 1],
    "update": lambda rows: [(a, "new" if a == 2 else b) for a, b in rows],
    "upsert": lambda rows: [*((a, "up" if a == 3 else b) for a, b in rows), (9, "in")],
    "compact": lambda rows: rows,
}
FEWEST_STEPS = 8
SLOW = dict.fromkeys(("append", "update", "upsert", "compact"), pytest.mark.slow)


def rows_of(path: Path) -> Rows:
    """The rows, which both implementations must agree on."""
    results = [
        sorted(zip(*table.to_pydict().values(), strict=True))
        for table in (spark_lance.dataset(path).to_table(), lance.dataset(str(path)).to_table())
    ]
    assert results[0] == results[1]
    return results[0]


def crash(job: str, base: Path, out: Path) -> list[str]:
    """Leave in `out` what each crash leaves; return the steps of the job."""
    command = [sys.executable, str(WORKER), job, str(base), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    steps: list[str] = json.loads(done.stdout)
    return steps


@pytest.mark.parametrize("job", [pytest.param(job, marks=SLOW.get(job, ())) for job in JOBS])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_version(tmp_path: Path, job: str) -> None:
    base = tmp_path / "base"
    columns = {"a": pa.array([a for a, _ in OLD], pa.int64()), "b": [b for _, b in OLD]}
    lance.write_dataset(pa.table(columns), base, max_rows_per_file=3)
    steps = crash(job, base, tmp_path)
    new = sorted(NEW[job](OLD))
    assert len(steps) >= FEWEST_STEPS
    (commit,) = [k for k, step in enumerate(steps) if step.startswith("os.link")][-1:]
    for k in range(len(steps) + 1):
        path = tmp_path / str(k)
        landed = k > commit
        assert rows_of(path) == (new if landed else OLD), steps[k - 1 : k + 1]
        version = load_latest(TableRef(spark_lance.dataset(path).store, str(path))).version
        if not landed or job != "append":
            JOBS[job](str(path))
        assert rows_of(path) == new
        table = spark_lance.dataset(path)
        assert table.version >= version
        assert read_transaction(table.table, table.manifest).name is not None
        row = pa.table({"a": pa.array([100], pa.int64()), "b": ["z"]})
        lance.write_dataset(row, path, mode="append")
        assert rows_of(path) == sorted([*new, (100, "z")])
