"""Commits that come to a stop right before or right after they publish a version, to be killed there.

    SPARK_LANCE_TEST_STOPS=FOLDER    PYTHONPATH=..:SITE

Spark commits a write in a Python worker of the driver, hence SITE, by which those workers get the stops; what
`LanceTable` does is committed by the driver's own process. A commit stops where a test has asked for it: it
leaves the number of its process in the folder and waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["SITE", "VARIABLE", "Stops", "install"]

VARIABLE = "SPARK_LANCE_TEST_STOPS"
SITE = str(Path(__file__).parent / "site")


class Stops:
    """What tests say of the stops.

    Args:
        folder: by which they and the processes that stop talk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, path: str, stop: str) -> None:
        """Ask for a stop in commits to a table: "before 2" or "after 2", that being the version."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / _name(path, stop)).touch()

    def reached(self, path: str, stop: str) -> bool:
        """Whether a commit has come to the stop."""
        return (self._folder / f"{_name(path, stop)}.pid").exists()

    def kill(self) -> None:
        """Kill the processes whose commits have stopped."""
        for file in self._folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


def install() -> None:
    """Let this process and those that it forks stop when they commit, if the variable names a folder."""
    if VARIABLE not in os.environ:
        return
    # Threads must not be there when a process is forked; numpy's BLAS starts some unless told not to.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit: Any = import_module("spark_lance.table.commits.commit")
    folder = Path(os.environ[VARIABLE])
    usual = commit.publish

    def publish(table: Any, version: int, *arguments: Any) -> None:
        _stop(folder / _name(table.root, f"before {version}"))
        usual(table, version, *arguments)
        _stop(folder / _name(table.root, f"after {version}"))

    commit.publish = publish


def _name(path: str, stop: str) -> str:
    return f"{Path(path).name} {stop}"


def _stop(asked: Path) -> None:
    if asked.exists():
        written = asked.with_name(f"{asked.name}.writing")
        written.write_text(str(os.getpid()))
        written.rename(f"{asked}.pid")
        time.sleep(600)
