"""Runs one job on copies of a table and is killed at every step of it; run by `test_crash.py`.

    python crash_worker.py append|delete|update|upsert|compact BASE OUT

A step is a call that opens a file of the table for writing, links, renames or removes one. The copy `OUT/k`
is what the job leaves when it is killed before its k-th step; in the last one it is not killed. Prints
the steps of the whole job.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_lance
import spark_lance.datasets.dataset  # so that not every child has to

_EVENTS = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.truncate"}
# Events that may name a path relative to an open folder: the place of its descriptor among their arguments.
_FOLDERS = {"os.rename": 2, "os.remove": 1, "os.mkdir": 2, "os.link": 2}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def append(path: str) -> None:
    spark_lance.write_dataset(
        pa.table({"a": pa.array([7, 8], pa.int64()), "b": ["x", "y"]}), path, mode="append"
    )


def delete(path: str) -> None:
    spark_lance.dataset(path).delete("a = 1")


def update(path: str) -> None:
    spark_lance.dataset(path).update({"b": "'new'"}, where="a = 2")


def upsert(path: str) -> None:
    rows = pa.table({"a": pa.array([3, 9], pa.int64()), "b": ["up", "in"]})
    merge = spark_lance.dataset(path).merge_insert("a")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)


def compact(path: str) -> None:
    spark_lance.dataset(path).optimize.compact_files()


JOBS = {"append": append, "delete": delete, "update": update, "upsert": upsert, "compact": compact}


class Killer:
    """Counts the steps inside a directory and kills the process before one of them."""

    def __init__(self, directory: str, fatal: int | None) -> None:
        self.directory = directory
        self.fatal = fatal
        self.steps: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        folder = arguments[_FOLDERS[event]] if event in _FOLDERS else -1
        if folder != -1:  # deletions name files relative to a folder that they have opened
            path = str(Path(f"/proc/self/fd/{folder}").readlink() / path)
        if not path.startswith(self.directory) or (event == "open" and not arguments[2] & _WRITES):
            return
        if len(self.steps) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps.append(f"{event} {path[len(self.directory) + 1 :]}")


def run(
    job: str, base: Path, target: Path, fatal: int | None, jobs: Mapping[str, Callable[[str], None]] = JOBS
) -> tuple[bool, list[str]]:
    """Run a job in a process of its own; return whether it was killed, and its steps if not."""
    shutil.copytree(base, target)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        killer = Killer(str(target), fatal)
        sys.addaudithook(killer)
        jobs[job](str(target))
        os.write(writing, json.dumps(killer.steps).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status:
        raise RuntimeError(f"{job} failed at step {fatal}: {status}")
    return killed, json.loads(said) if said else []


def main() -> None:
    """Kill the job at one step after the other."""
    job, base, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    fatal, killed = 0, True
    steps: list[str] = []
    while killed:
        killed, steps = run(job, base, out / str(fatal), fatal)
        fatal += 1
    sys.stdout.write(json.dumps(steps))


if __name__ == "__main__":
    main()
