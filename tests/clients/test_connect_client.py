"""Clients of a Spark Connect server that Python has started: `pyspark-client` alone, and Spark's pipelines.

The client is another Python, which SPARK_CLIENT_PYTHON names:

    python -m venv client
    client/bin/pip install pyspark-client
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import spark_lance
from tests.conftest import ROOT
from tests.spark.sql.answers import statements
from tests.spark.test_connect import environment

pytestmark = pytest.mark.slow

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
SQL = ROOT / "tests" / "spark" / "sql"
_CLIENT = os.environ.get("SPARK_CLIENT_PYTHON")
_PIPELINE = """
name: daily
catalog: lance
database: d
storage: file://{folder}/state
libraries:
  - glob:
      include: steps/**
"""
_STEPS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as f

spark = SparkSession.active()


@dp.materialized_view
def numbers():
    return spark.range(10)


@dp.materialized_view
def even():
    return spark.read.table("numbers").where(f.col("id") % 2 == 0)
"""

_VIEWS = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()


def run(sql):
    return [tuple(row) for row in spark.sql(sql).collect()]


run("CREATE TABLE lance.d.viewed (id INT, c CHAR(4))")
run("INSERT INTO lance.d.viewed VALUES (1, 'a'), (2, 'b')")
run("CREATE VIEW lance.d.v (number COMMENT 'first', c) COMMENT 'all' AS SELECT id, c FROM lance.d.viewed")
assert run("SELECT * FROM lance.d.v WHERE c = 'a'") == [(1, "a   ")]
assert spark.table("lance.d.v").where("number > 1").count() == 1
run("CREATE OR REPLACE VIEW lance.d.v AS SELECT id * 10 AS ten FROM lance.d.viewed")
assert sorted(run("SELECT ten FROM lance.d.v")) == [(10,), (20,)]
run("ALTER VIEW lance.d.v AS SELECT 1 AS one FROM lance.d.viewed WHERE id = 1")
assert run("SELECT * FROM lance.d.v") == [(1,)]
assert "VIEW" in run("SHOW CREATE TABLE lance.d.v")[0][0]
assert ("v",) in [row[1:2] for row in run("SHOW VIEWS IN lance.d")]
run("ALTER VIEW lance.d.v RENAME TO w")
assert run("DESCRIBE lance.d.w")[0][:2] == ("one", "int")
run("DROP VIEW lance.d.w")
assert run("SHOW VIEWS IN lance.d") == []
try:
    run("SELECT * FROM lance.d.w")
except Exception as error:
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(error)
else:
    raise AssertionError("the view was dropped")
run("DROP TABLE lance.d.viewed")
print("done")
"""
# In another process: after a client of Connect a process makes no classic sessions.
_READ = """
import sys
from pyspark.sql import SparkSession
rows = SparkSession.builder.remote(sys.argv[1]).getOrCreate().table("lance.d.even").collect()
print(*sorted(row.id for row in rows))
"""


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        address: where clients find it.
        folder: of its tables.
        process: of the server.
    """

    address: str
    folder: Path
    process: subprocess.Popen[bytes]

    def outcomes(self, file: Path) -> list[str]:
        """Return the errors of a file of statements that the server runs without Connect."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{file}\n".encode())
        self.process.stdin.flush()
        errors: list[str] = json.loads(self.process.stdout.readline())
        return errors


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("connect")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.connect_server", str(port), str(folder)],
            cwd=folder,
            env={**environment(), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n", (folder / "log").read_text()[-3000:]
            yield Server(f"sc://127.0.0.1:{port}", folder, process)
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


@pytest.mark.skipif(RELEASE < (4, 2), reason="catalogs keep views since Spark 4.2")
def test_views_of_the_catalog(server: Server, tmp_path: Path) -> None:
    settings = {**environment(), "PYSPARK_PYTHON": sys.executable}
    assert run([sys.executable, "-W", "ignore", "-c", _VIEWS, server.address], tmp_path, settings) == "done\n"


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


def run_client(server: Server, folder: Path, argument: Path) -> str:
    """Run the program of the client alone, and return its output."""
    plain = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK_", "JAVA"))
    }
    program = ROOT / "tests" / "clients" / "connect_client.py"
    return run([str(_CLIENT), "-W", "ignore", str(program), server.address, str(argument)], folder, plain)


# The mode, folders and times.
_OF_ONE_RUN = re.compile(r"classic|remote|[0-9a-f]{8}_db|2\d{3}-\d\d-\d\d \d\d:\d\d:[\d.]+")


@pytest.mark.skipif(_CLIENT is None, reason="SPARK_CLIENT_PYTHON names no Python with pyspark-client")
@pytest.mark.parametrize("name", ["advice", "hints"])
def test_refused_statements_have_the_same_line(server: Server, tmp_path: Path, name: str) -> None:
    errors = []
    for mode in ("classic", "remote"):
        text = (SQL / f"{name}.sql").read_text().replace("{root}", str(tmp_path / mode))
        root = f"SET spark.sql.catalog.lance.root = {tmp_path}/{mode}-root"
        file = tmp_path / f"{mode}.json"
        file.write_text(json.dumps([root, *(sql for sql, *_ in statements(text))]))
        lines = server.outcomes(file) if mode == "classic" else json.loads(run_client(server, tmp_path, file))
        # Spark Connect appends the stack of the server to each error, and Spark the plan to some.
        texts = [line.partition("\n")[0] for line in lines]
        errors.append([_OF_ONE_RUN.sub("", text) for text in texts])
    classic, remote = errors
    assert sum(map(bool, remote)) > 20
    assert remote == classic


@pytest.mark.skipif(_CLIENT is None, reason="SPARK_CLIENT_PYTHON names no Python with pyspark-client")
def test_a_client_without_java_and_without_this_package(server: Server, tmp_path: Path) -> None:
    assert run_client(server, tmp_path, tmp_path) == "done\n"
    assert spark_lance.dataset(str(tmp_path / "p")).count_rows() == 12


@pytest.mark.skipif(
    importlib.util.find_spec("pyspark.pipelines") is None or importlib.util.find_spec("yaml") is None,
    reason="spark-pipelines needs Spark 4.1 and PyYAML",
)
def test_spark_pipelines_make_lance_tables(server: Server, tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "steps.py").write_text(_STEPS)
    (tmp_path / "spark-pipeline.yml").write_text(_PIPELINE.format(folder=tmp_path))
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    settings = {**environment(), "PYSPARK_PYTHON": sys.executable}
    for _ in range(2):  # the second run replaces the rows
        run([str(program), "--remote", server.address, "run"], tmp_path, settings)
    rows = run([sys.executable, "-W", "ignore", "-c", _READ, server.address], tmp_path, settings)
    assert rows == "0 2 4 6 8\n"
