"""Four writers and a compactor, each a process that is killed at random moments: no acknowledged row is lost.

Two writers are pylance's, and every second compaction. `MEM_WAL_STEPS` sets the number of acknowledged steps.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spark_lance
from tests.conftest import ROOT
from tests.memwal.many_writers_worker import KEYS, WRITERS, shard_of
from tests.memwal.tables import Rows, by_pylance, make, plain, seen

pytestmark = [pytest.mark.reference, pytest.mark.slow]

STEPS = int(os.environ.get("MEM_WAL_STEPS", "5000"))
WORKER = Path(__file__).with_name("many_writers_worker.py")
Values = dict[int, set[str | None]]


class Processes:
    """The writers and the compactor, the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "t"
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.starts = 0

    def log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def start(self, number: int) -> None:
        self.starts += 1
        arguments = [str(self.table), str(self.log(number))]
        if number < WRITERS:
            package = ("lance", "spark_lance")[number % 2]
            arguments += [str(number), package, str(self.starts)]
        with (self.folder / f"errors-{number}").open("ab") as errors:
            command = [sys.executable, str(WORKER), *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.running[number] = subprocess.Popen(command, env=environment, stderr=errors)

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        errors = (self.folder / f"errors-{number}").read_text()
        assert process.poll() is None, f"process {number} ended by itself: {errors[-3000:]}"
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def lines(self) -> list[list[str]]:
        """Return the whole lines of each log."""
        logs = [self.log(number) for number in range(WRITERS)]
        return [log.read_text().split("\n")[:-1] if log.exists() else [] for log in logs]


def possible_values(base: Rows, before: list[list[str]], after: list[list[str]]) -> Values:
    """Return the values that a read may return for each key, None for no row.

    They are the value that was acknowledged last before the read, and all that were tried since.
    """
    values: Values = {key: {base.get(key)} for key in range(KEYS)}
    for early, late in zip(before, after, strict=True):
        step: list[tuple[int, str | None]] = []
        for position, line in enumerate(late):
            if line == "ok":
                if position < len(early):
                    values.update({key: {value} for key, value in step})
                continue
            step = json.loads(line)
            for key, value in step:
                values[key] = values[key] | {value}
    return values


def check(rows: Rows, values: Values) -> None:
    wrong = {key: (rows.get(key), tried) for key, tried in values.items() if rows.get(key) not in tried}
    assert not wrong
    assert rows.keys() <= values.keys()


def test_no_acknowledged_row_is_lost(tmp_path: Path) -> None:
    rng = random.Random(int(os.environ.get("MEM_WAL_SEED", "11")))
    base: Rows = dict.fromkeys(range(0, KEYS, 2), "base")
    processes = Processes(tmp_path)
    make(processes.table, *base.items(), max_memtable_rows=40)
    for number in range(WRITERS + 1):
        processes.start(number)
    acknowledged = kills = reads = 0
    try:
        while acknowledged < STEPS:
            time.sleep(rng.uniform(0.2, 2))
            if rng.random() < 0.7:
                number = rng.randrange(WRITERS + 1)
                processes.kill(number)
                processes.start(number)
                kills += 1
            before = processes.lines()
            rows = seen(processes.table)
            check(rows, possible_values(base, before, processes.lines()))
            acknowledged = sum(line == "ok" for log in before for line in log)
            reads += 1
        for number in range(WRITERS + 1):
            processes.kill(number)
    finally:
        processes.stop()
    lines = processes.lines()
    values = possible_values(base, lines, lines)
    check(seen(processes.table), values)
    spark_lance.dataset(processes.table).wal.compact([shard_of(n) for n in range(WRITERS)], flush=True)
    rows = plain(processes.table)
    check(rows, values)
    assert seen(processes.table) == by_pylance(processes.table) == rows
    sys.stdout.write(f"{acknowledged} steps, {kills} kills, {reads} reads\n")
    assert kills >= STEPS // 500
    assert set(processes.log(WRITERS).read_text().split()) == {"lance", "spark_lance"}
