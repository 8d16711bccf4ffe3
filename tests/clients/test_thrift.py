"""SQL clients without Python: beeline and PyHive on a Thrift server that Python has started, and spark-sql.

PyHive is not installed by `make test`: `pip install pyhive thrift thrift-sasl pure-sasl`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import spark_lance
from tests.conftest import ROOT
from tests.spark.test_connect import environment

pytestmark = pytest.mark.slow

PROGRAMS = Path(pyspark.__file__).parent / "bin"
STATEMENTS = [
    "CREATE NAMESPACE lance.d",
    "CREATE TABLE lance.d.t (id BIGINT, name STRING)",
    "INSERT INTO lance.d.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "UPDATE lance.d.t SET name = 'x' WHERE id = 2",
    "DELETE FROM lance.d.t WHERE id = 3",
    "MERGE INTO lance.d.t t USING (SELECT 4L id, 'n' name) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
]
ROWS = [(1, "a"), (2, "x"), (4, "n")]
QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT * FROM lance.d.t ORDER BY id": ROWS,
    "SELECT version, operation FROM lance.d.t.history ORDER BY version LIMIT 2": [
        (1, "CREATE TABLE"),
        (2, "WRITE"),
    ],
    "SELECT count(*) FROM lance.d.t VERSION AS OF 2": [(3,)],
    "DELETE FROM lance.d.t WHERE id = 99": [(0,)],
    "SHOW TABLES IN lance.d": [("d", "t", False)],
}


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: where it listens.
        tables: the folder of its catalog.
    """

    port: int
    tables: Path

    def run_beeline(self, statement: str) -> list[str]:
        """Return the lines that beeline prints."""
        url = f"jdbc:hive2://127.0.0.1:{self.port}/;auth=noSasl"
        arguments = ["-u", url, "-n", "me", "--silent=true", "--outputformat=tsv2", "-e", statement]
        return run(PROGRAMS / "beeline", *arguments)


def run(program: Path, *arguments: str) -> list[str]:
    """Run a program of Spark, and return the lines that it prints."""
    process = subprocess.run(
        [str(program), *arguments],
        env={**environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout[-1000:] + process.stderr[-3000:]
    return process.stdout.splitlines()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("thrift")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.thrift_server", str(port), str(folder)],
            cwd=folder,
            env={**environment(), "PYTHONPATH": os.pathsep.join([str(ROOT), environment()["PYTHONPATH"]])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n", (folder / "log").read_text()[-3000:]
            running = Server(port, folder / "tables")
            running.run_beeline("; ".join(STATEMENTS))
            yield running
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


def test_beeline_reads_what_it_changed(server: Server) -> None:
    lines = server.run_beeline("SELECT * FROM lance.d.t ORDER BY id")
    assert lines[-3:] == [f"{number}\t{name}" for number, name in ROWS]


def test_jdbc_tools_list_lance_tables_of_the_session_catalog(server: Server) -> None:
    """The requests GetTables and GetColumns, by commands of beeline."""
    server.run_beeline(
        "CREATE TABLE listed (id BIGINT, name CHAR(3) COMMENT 'who') USING lance; "
        "ALTER TABLE listed ADD COLUMN price DECIMAL(6,2); INSERT INTO listed VALUES (1, 'a', 2.5)"
    )
    tables = [line.split("\t") for line in server.run_beeline("!tables listed")]
    assert [row[1:4] for row in tables[1:]] == [["default", "listed", "TABLE"]]
    columns = [line.split("\t") for line in server.run_beeline("!columns listed")]
    assert [(row[3], row[5], row[11]) for row in columns[1:]] == [
        ("id", "BIGINT", ""),
        ("name", "CHAR(3)", "who"),
        ("price", "DECIMAL(6,2)", ""),
    ]


@pytest.mark.skipif(
    importlib.util.find_spec("pyhive") is None or importlib.util.find_spec("thrift") is None,
    reason="PyHive is not installed: pip install pyhive thrift thrift-sasl pure-sasl",
)
def test_pyhive_gets_rows_with_their_types(server: Server) -> None:
    hive: Any = importlib.import_module("pyhive.hive")
    cursor = hive.connect("127.0.0.1", server.port, auth="NOSASL").cursor()
    for query, rows in QUERIES.items():
        cursor.execute(query)
        assert cursor.fetchall() == rows, query
    cursor.execute("OPTIMIZE lance.d.t")
    (result,) = cursor.fetchall()
    assert result[:4] == (3, 1, 4, 1)


def test_spark_sql_reads_by_path(tmp_path: Path) -> None:
    """Spark finds the format by itself; the catalog needs a driver in Python."""
    path = tmp_path / "t"
    spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), str(path))
    statements = (
        f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{path}'); "
        "SELECT count(*), sum(id) FROM v WHERE id > 1"
    )
    settings = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    lines = run(PROGRAMS / "spark-sql", *settings, "-e", statements)
    assert lines[-1].split() == ["2", "5"]


def test_spark_shell_reads_and_writes_by_path(tmp_path: Path) -> None:
    """A program in Scala has the format, too."""
    program, path = tmp_path / "program.scala", tmp_path / "t"
    program.write_text(
        f"""
val rows = spark.range(4).selectExpr("id", "id * 10 AS v")
rows.write.format("lance").mode("append").save("{path}")
val read = spark.read.format("lance").load("{path}").where("id > 1")
println("sum " + read.selectExpr("sum(v)").first().getLong(0))
System.exit(0)
"""
    )
    settings = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    lines = run(PROGRAMS / "spark-shell", *settings, "-i", str(program))
    assert "sum 50" in lines
    assert spark_lance.dataset(str(path)).count_rows() == 4
