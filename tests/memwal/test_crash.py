"""Processes are killed at every call of a store: what was acknowledged stays, nothing is there in part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lance
import pytest

import spark_lance
from tests.conftest import ROOT
from tests.memwal import crash_worker
from tests.memwal.tables import SHARD, Rows, by_pylance, make, plain, rows, seen

WORKER = Path(__file__).with_name("crash_worker.py")
EVERY = pytest.param(1, marks=pytest.mark.slow)


def crash(job: str, base: Path, out: Path, stride: int) -> dict[Path, bool]:
    """Leave what each crash leaves; return the tables in the order of the steps."""
    command = [sys.executable, str(WORKER), job, str(base), str(out), str(stride)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    assert len(steps) >= 5, steps
    numbers = sorted(int(path.name) for path in out.iterdir() if path.name.isdigit())
    return {out / str(number): number >= len(steps) for number in numbers}


STATES: list[Rows] = [
    {1: "base", 2: "base", 3: "base"},
    {1: "one", 2: "base", 3: "base", 4: "one"},
    {1: "one", 3: "base", 4: "one"},
    {1: "two", 3: "base", 4: "one"},
]


@pytest.mark.parametrize("stride", [19, EVERY])
def test_a_killed_writer_leaves_a_prefix_of_its_writes(tmp_path: Path, stride: int) -> None:
    make(tmp_path / "base", *STATES[0].items())
    reached = 0
    tables = crash("log", tmp_path / "base", tmp_path, stride)
    for path, whole in tables.items():
        result = STATES.index(seen(path))
        assert result >= reached, "a later crash left less"
        reached = result
        assert not whole or result == len(STATES) - 1
        # Whoever comes next goes on, pylance too.
        if int(path.name) % 2:
            crash_worker.log(str(path))
        else:
            with lance.dataset(str(path)).mem_wal_writer(str(SHARD)) as theirs:
                theirs.put(rows((1, "two"), (4, "one")))
                theirs.delete(rows((2, None)).select(["id"]))
        assert seen(path) == STATES[-1]
        assert by_pylance(path) == STATES[-1]
    assert reached == len(STATES) - 1


@pytest.mark.parametrize("stride", [31, EVERY])
def test_a_killed_compaction_changes_nothing_that_is_seen(tmp_path: Path, stride: int) -> None:
    make(tmp_path / "base", *STATES[0].items())
    crash_worker.log(str(tmp_path / "base"))
    with spark_lance.dataset(tmp_path / "base").mem_wal_writer(SHARD) as log:
        log.put(rows((7, "logged")))
        log.abandon()
    expected = STATES[-1] | {7: "logged"}
    for path in crash("compact", tmp_path / "base", tmp_path, stride):
        assert seen(path) == expected
        crash_worker.compact(str(path))
        assert plain(path) == seen(path) == by_pylance(path) == expected
        with spark_lance.dataset(path).mem_wal_writer(SHARD) as log:
            log.put(rows((1, "later")))
        assert seen(path) == expected | {1: "later"}


@pytest.mark.parametrize("stride", [13, EVERY])
def test_a_killed_collection_takes_nothing_that_is_needed(tmp_path: Path, stride: int) -> None:
    make(tmp_path / "base", *STATES[0].items())
    crash_worker.log(str(tmp_path / "base"))
    crash_worker.compact(str(tmp_path / "base"))
    with spark_lance.dataset(tmp_path / "base").mem_wal_writer(SHARD) as log:
        log.put(rows((7, "sst")))
        log.flush()
        log.put(rows((8, "logged")))
        log.abandon()
    expected = STATES[-1] | {7: "sst", 8: "logged"}
    for path in crash("collect", tmp_path / "base", tmp_path, stride):
        assert seen(path) == expected
        crash_worker.compact(str(path))
        assert plain(path) == by_pylance(path) == expected
