"""Everything works in Spark Connect: with a server inside the process, and with a server of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from spark_lance.spark.java import prepare_environment
from tests.conftest import PRELOADING, ROOT
from tests.spark.connect_checks import CHECKS, LONG

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SHORT = sorted(CHECKS.keys() - LONG)
STARTS_IN = 120.0


@dataclass(frozen=True)
class Outcome:
    """What came of the checks: their errors by name, None for success; and what the process said besides."""

    errors: dict[str, str | None]
    log: str


def environment() -> dict[str, str]:
    prepare_environment()
    places = [str(ROOT), str(PRELOADING), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A classic session of the tests leaves a gateway here that is not for other processes.
    remaining = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    return {
        **remaining,
        "PYTHONPATH": os.pathsep.join(places),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }


def run_checks(remote: str, folder: Path, names: Sequence[str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.spark.connect_checks", remote, str(folder), *names],
        cwd=ROOT,
        # With this Spark puts the server inside the process on a free port; it is 15002 otherwise.
        env={**environment(), "SPARK_TESTING": "1"} if remote.startswith("local") else environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Outcome({line["name"]: line["error"] for line in lines}, done.stderr[-3000:])


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start a server as users do, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--class",
        SERVER,
    ]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(process, port, folder / "log")
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + STARTS_IN
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no server: {log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The checks with a server in the client's process."""
    return run_checks("local[2]", tmp_path_factory.mktemp("inside"), SHORT)


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The checks with a server in a process of its own."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "checks").mkdir()
    with server(folder) as address:
        return run_checks(address, folder / "checks", list(CHECKS))


@pytest.mark.parametrize("name", SHORT)
def test_inside_the_process(inside: Outcome, name: str) -> None:
    assert name in inside.errors, inside.log
    assert inside.errors[name] is None


@pytest.mark.cluster
@pytest.mark.parametrize("name", CHECKS)
def test_a_server_process(outside: Outcome, name: str) -> None:
    assert name in outside.errors, outside.log
    assert outside.errors[name] is None
