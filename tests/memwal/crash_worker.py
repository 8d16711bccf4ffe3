"""Runs one job on copies of a table with a MemWAL and is killed at its steps; run by `test_crash.py`.

    python crash_worker.py log|compact|collect BASE OUT STRIDE

As `tests/table/commits/crash_worker.py`, whose steps these are; only each STRIDE-th step kills.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import spark_lance
from tests.memwal.tables import SHARD, rows
from tests.table.commits.crash_worker import run


def log(path: str) -> None:
    writer = spark_lance.dataset(path).mem_wal_writer(
        SHARD, max_memtable_rows=2, max_unflushed_memtable_bytes=0, durability="synced"
    )
    writer.put(rows((1, "one"), (4, "one")))
    writer.delete({"id": [2]})
    writer.put(rows((1, "two")))
    writer.close()


def compact(path: str) -> None:
    spark_lance.dataset(path).wal.compact(flush=True)


def collect(path: str) -> None:
    spark_lance.dataset(path).wal.collect(older_than=timedelta(0))


OWN_JOBS = {"log": log, "compact": compact, "collect": collect}


def main() -> None:
    """Kill the job at one step after the other."""
    job, base, out, stride = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    fatal, killed = 0, True
    steps: list[str] = []
    while killed:
        killed, steps = run(job, base, out / str(fatal), fatal, OWN_JOBS)
        fatal += stride
    sys.stdout.write(json.dumps(steps))


if __name__ == "__main__":
    main()
