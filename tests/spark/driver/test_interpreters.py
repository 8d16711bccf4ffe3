"""The Python of Spark's workers, and packages that Spark imports: faults are told before a job fails."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import WorkerPythonError
from spark_lance.spark.driver import interpreters
from spark_lance.spark.driver.interpreters import (
    Interpreter,
    check_package,
    check_workers,
    missing_package_error,
    probe,
)
from spark_lance.spark.worker.process import pickled_function

ROOT = Path(__file__).resolve().parents[3]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
OLD_PYTHON = Interpreter("3.8", None, (("pyspark_bad", "ImportError: no y"),))

PROGRAM = """
import sys
import spark_lance
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_lance.errors import WorkerPythonError
from spark_lance.spark.java import ensure_java

ensure_java()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark_lance.enable(spark).conf.set("spark.lance.localRows", "0")
try:
    print("rows", spark.read.format("lance").load(sys.argv[1]).count())
    spark_lance.LanceTable.forPath(spark, sys.argv[1]).delete("id = 1")
    print("deleted")
except (WorkerPythonError, PySparkException) as error:
    print("failed", type(error).__name__, error)
"""

# Every way to give work to tasks, by path and by name.
TASKS = """
spark = spark_lance.enable(spark, root=sys.argv[1] + ".root")
rows = spark.range(1000)
spark.sql("CREATE NAMESPACE IF NOT EXISTS lance.db")
spark.sql("CREATE TABLE IF NOT EXISTS lance.db.t (id BIGINT)")
ways = {
    "read": lambda: spark.read.format("lance").load(sys.argv[1]).distinct().collect(),
    "write": lambda: rows.write.format("lance").mode("append").save(sys.argv[1]),
    "saveAsTable": lambda: rows.write.format("lance").mode("append").saveAsTable("lance.db.t"),
    "writeTo": lambda: rows.writeTo("lance.db.t").append(),
    "insert": lambda: spark.sql("INSERT INTO lance.db.t SELECT id FROM range(1000)"),
    "readname": lambda: spark.table("lance.db.t").selectExpr("id % 2 AS k").distinct().collect(),
}
for name, way in ways.items():
    try:
        way()
        print(name, "ok")
    except Exception as error:
        print(name, "failed", repr(str(error)))
"""


@pytest.fixture(autouse=True)
def forgotten() -> None:
    probe.cache_clear()
    interpreters._warn.cache_clear()


def session(python: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))


def script(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


def bare(folder: Path) -> str:
    """A Python without packages."""
    return script(folder, f'exec {sys.executable} -S -I "$@"')


def test_the_drivers_own_python_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "probe", lambda program: pytest.fail(program))
    monkeypatch.setattr(interpreters, "_other_packages", lambda: [])
    assert check_workers(session(sys.executable))
    beside = Path(sys.executable).parent / "python3"
    if beside.exists() and beside.samefile(sys.executable):
        assert check_workers(session(str(beside)))
    assert not caplog.records


def test_programs_are_asked_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(sys.executable) == Interpreter(OWN, spark_lance.__version__, ())
    (tmp_path / "pyspark_bad.py").write_text("raise ImportError('no\\nmodule x')")
    (tmp_path / "pyspark_rude.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    probe.cache_clear()
    broken = (("pyspark_bad", "ImportError: no module x"), ("pyspark_rude", "SystemExit: 3"))
    assert probe(sys.executable) == Interpreter(OWN, spark_lance.__version__, broken)
    without = probe(bare(tmp_path / "bare"))
    assert without is not None
    assert (without.version, without.release) == (OWN, None)
    assert probe(script(tmp_path / "other", "exit 1")) is None
    assert probe(script(tmp_path / "talks", "echo hello")) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Interpreter(OWN, "0.1.0", ()), []),
        (Interpreter("3.8", "0.1.0", ()), ["(Python 3.8), this driver runs Python"]),
        (Interpreter(OWN, None, ()), ["which has no spark_lance"]),
        (None, ["does not start"]),
        (
            OLD_PYTHON,
            ["Python 3.8", "has no spark_lance", "pyspark_bad cannot be imported (ImportError: no y)"],
        ),
    ],
)
def test_each_fault_is_one_line_with_the_remedy(
    found: Interpreter | None,
    said: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interpreters, "probe", lambda program: found)
    other = script(tmp_path / "other", "exit 1")
    good = found is not None and found.release is not None and not found.broken
    assert check_workers(session(other)) == good
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert words in line
        assert "\n" not in line
        assert f"PYSPARK_PYTHON={sys.executable}" in line or "repair or uninstall" in line


def test_a_python_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    assert not check_workers(session("/no/such/python"))
    (record,) = caplog.records
    assert "/no/such/python, does not exist: set PYSPARK_PYTHON=" in record.getMessage()


def test_what_a_failed_job_lacks() -> None:
    result = missing_package_error(
        RuntimeError("worker: ModuleNotFoundError: No module named 'spark_lance'\n  at x")
    )
    assert isinstance(result, WorkerPythonError)
    assert "PYSPARK_PYTHON=" in str(result)
    assert missing_package_error(RuntimeError("No module named 'torch'")) is None


def context(**attributes: Any) -> Any:
    values = {
        "pythonExec": "python",
        "master": "local[2]",
        "environment": {},
        "getConf": dict,
        "_python_includes": [],
    }
    return SimpleNamespace(sparkContext=SimpleNamespace(**values | attributes))


def test_tasks_without_the_package_are_refused_before_they_start(tmp_path: Path) -> None:
    other = bare(tmp_path / "bare")
    with pytest.raises(WorkerPythonError, match=f"{other}, has no spark_lance: install it there, or set"):
        check_package(context(pythonExec=other))


@pytest.mark.parametrize(
    "attributes",
    [
        {"pythonExec": sys.executable},
        {"pythonExec": "/no/such/python"},
        {"master": "spark://host:7077"},
        {"_python_includes": ["spark_lance.zip"]},
        {"environment": {"PYTHONPATH": "/packages"}},
        {"getConf": lambda: {"spark.executorEnv.PYTHONPATH": "/packages"}},
    ],
)
def test_workers_that_may_have_the_package_are_not_refused(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    check_package(context(**{"pythonExec": bare(tmp_path / "bare"), **attributes}))


def run(table: Path, program: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    remaining = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(table)],
        env={**remaining, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        cwd=table.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_broken_package_hides_nothing(tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "t.lance")
    (tmp_path / "pyspark_bad.py").write_text("raise ImportError('no such driver')")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    done = run(tmp_path / "t.lance", PYTHONPATH=path, PYSPARK_PYTHON=sys.executable)
    assert done.stdout.splitlines() == ["rows 3", "deleted"]
    assert done.stderr.count("the package pyspark_bad cannot be imported (ImportError: no such driver)") == 1


def without_package(tmp_path: Path) -> str:
    """Return a Python with everything but this package."""
    # pyspark itself finds its workers' Python; this package is missing there.
    packages = Path(pa.__file__).parents[1]
    program = (
        "import importlib.machinery as m, sys; "
        "find = m.PathFinder.find_spec; "
        "m.PathFinder.find_spec = classmethod(lambda c, n, *a: None if 'lance' in n else find(n, *a))"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(program)
    place = f"{tmp_path / 'site'}{os.pathsep}{packages}"
    return script(tmp_path / "other", f'PYTHONPATH="{place}:$PYTHONPATH" exec {sys.executable} "$@"')


@pytest.mark.slow
def test_workers_without_the_package(tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "t.lance")
    other = without_package(tmp_path)
    done = run(tmp_path / "t.lance", PYSPARK_PYTHON=other)
    assert done.stderr.count(f"run {other}, which has no spark_lance") == 1
    (line,) = done.stdout.splitlines()
    assert f"the Python of Spark's workers, {other}, has no spark_lance: install it there" in line


def test_a_worker_without_the_package_says_so(tmp_path: Path) -> None:
    (tmp_path / "function").write_bytes(pickled_function(check_package, None))
    program = f"import pickle; pickle.load(open({str(tmp_path / 'function')!r}, 'rb'))"
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", program], capture_output=True, text=True, check=False
    )
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"ImportError: the Python of Spark's workers, {sys.executable} on host ")
    assert line.endswith("has no spark_lance: install it there")
    assert pickle.loads((tmp_path / "function").read_bytes()) == (check_package, None)


@pytest.mark.slow
def test_workers_of_a_cluster_without_the_package(tmp_path: Path) -> None:
    # PYTHONPATH might bring the package to executors, so that nothing is refused before they start.
    other = without_package(tmp_path)
    head = PROGRAM.partition("try:")[0].replace(
        "getOrCreate()", "config('spark.executorEnv.PYTHONPATH', '/none').getOrCreate()"
    )
    done = run(tmp_path / "t.lance", head + TASKS, PYSPARK_PYTHON=other)
    # By path Spark itself asks a worker for the format, and reports what that says.
    named = ("saveAsTable failed ", "writeTo failed ", "insert failed ")
    lines = [line for line in done.stdout.splitlines() if line.startswith(named)]
    assert len(lines) == 3
    for line in lines:
        assert "has no spark_lance: install it there" in line
        assert "Traceback" not in line


@pytest.mark.slow
def test_every_read_and_write_without_the_package_fails_in_one_line(tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "t.lance")
    other = without_package(tmp_path)
    done = run(tmp_path / "t.lance", PROGRAM.partition("try:")[0] + TASKS, PYSPARK_PYTHON=other)
    lines = [line for line in done.stdout.splitlines() if " failed " in line or line.endswith(" ok")]
    remedy = f"workers, {other}, has no spark_lance: install it there, or set PYSPARK_PYTHON="
    # An empty table is read without tasks.
    assert lines.pop() == "readname ok"
    assert len(lines) == 5
    for line in lines:
        assert remedy in line
        assert "Traceback" not in line
        assert len(line) < 600
