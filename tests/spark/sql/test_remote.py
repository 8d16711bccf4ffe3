"""Every statement of the .sql files over Connect, to a server that Python has started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.sql.answers import FILES
from tests.spark.sql.remote import RELEASE
from tests.spark.test_connect import environment

pytestmark = pytest.mark.cluster

MODULE = [sys.executable, "-W", "ignore", "-m", "tests.spark.sql.remote"]


def test_statements_over_connect_in_threads(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "tables"
    folder.mkdir()
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*MODULE, "server", str(port)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n", (tmp_path / "log").read_text()[-3000:]
            client = subprocess.run(
                [*MODULE, "client", f"sc://127.0.0.1:{port}", str(folder)],
                cwd=ROOT,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=1200,
            )
        finally:
            server.stdin.close()
            server.wait(60)
            server.stdout.close()
    assert client.returncode == 0, client.stderr[-3000:]
    names = [*(file.stem for file in FILES), "writers", *(["pipeline"] if RELEASE >= (4, 3) else [])]
    assert json.loads(client.stdout.splitlines()[-1]) == {name: [] for name in names}
