"""A standalone Spark cluster on this machine: a master, and two workers that Spark takes for two hosts.

Spark never runs a speculative copy of a task on the host that runs the task, hence 127.0.0.1 and 127.0.0.2.
What comes with pip has no scripts to start masters and workers, but their classes are there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from spark_lance.spark.java import prepare_environment

__all__ = ["HOSTS", "Cluster", "eventually", "free_ports"]

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
CORES = 2

# Runs a program until this process closes the pipe to it, which its death does, too.
GUARD = '"$@" </dev/null & read -r _; kill -9 $!; wait'


def eventually(what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is true.

    Raises:
        TimeoutError: it never was.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still not: {what}")
        time.sleep(0.1)


class Cluster:
    """A master and two workers, as long as the context lasts.

    Attributes:
        url: of the master, for sessions.
        folder: where logs and the workers' files go.
    """

    def __init__(self, folder: Path, pythonpath: str = str(ROOT)) -> None:
        prepare_environment()
        self.folder = folder
        self._pythonpath = pythonpath
        self._port, self._page = free_ports(2)
        self.url = f"spark://127.0.0.1:{self._port}"

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Start the processes; kill them in the end, whatever happened."""
        with ExitStack() as processes:
            self._start(
                processes, "master", "master.Master", "--host", "127.0.0.1", "--port", str(self._port)
            )
            for host in HOSTS:
                self._start(processes, host, "worker.Worker", "--host", host, self.url)
            eventually("two workers are registered", lambda: self._state().get("aliveworkers") == 2, 120)
            yield self

    def applications(self) -> int:
        """Return how many drivers the master knows to be running."""
        return len(self._state().get("activeapps", ()))

    def executors(self) -> dict[int, str]:
        """Return the process ids of the executors' JVMs, and their hosts (Linux only)."""
        results = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                below = (process / "cwd").resolve().is_relative_to(self.folder)
                words = (process / "cmdline").read_bytes().decode().split("\0")
            except OSError:  # gone meanwhile
                continue
            if below and "--executor-id" in words:
                results[int(process.name)] = words[words.index("--hostname") + 1]
        return results

    def kill_executor(self, host: str) -> None:
        """Kill the executors on a host, Python workers not included: those notice by themselves."""
        for process, where in self.executors().items():
            if where == host:
                os.kill(process, signal.SIGKILL)

    def _state(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                return dict(json.load(answer))
        except (OSError, json.JSONDecodeError):  # not up yet, or only its page for people
            return {}

    def _start(self, processes: ExitStack, name: str, kind: str, *arguments: str) -> None:
        page = self._page if name == "master" else 0
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
        command += [f"org.apache.spark.deploy.{kind}", "--webui-port", str(page)]
        if name != "master":
            command += [
                "--cores",
                str(CORES),
                "--memory",
                "3g",
                "--work-dir",
                str(self.folder / "work" / name),
            ]
        log = processes.enter_context((self.folder / f"{name}.log").open("w"))
        environment = {
            **os.environ,
            "PYTHONPATH": self._pythonpath,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_PUBLIC_DNS": "127.0.0.1",
        }
        guard = subprocess.Popen(
            ["sh", "-c", GUARD, name, *command, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
        )
        processes.callback(guard.wait, 30)
        assert guard.stdin is not None
        processes.callback(guard.stdin.close)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at just now."""
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]
