"""What is noted of runs of the tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import recording
from tests.conftest import ROOT
from tests.recording import Recorder, noted


def row(python: str, passed: int, tests: str = "tests") -> dict[str, str | int]:
    return {"python": python, "tests": tests, "passed": passed, "skipped": 0, "date": "2026-01-01"}


def test_a_later_run_of_the_same_takes_the_place() -> None:
    rows = noted(noted([], row("3.11", 5)), row("3.10", 4))
    assert rows == [row("3.10", 4), row("3.11", 5)]
    assert noted(rows, row("3.10", 9)) == [row("3.10", 9), row("3.11", 5)]
    assert len(noted(rows, row("3.10", 9, "tests/io"))) == 3


@pytest.mark.parametrize(("outcomes", "exit"), [("ppsp", 0), ("pfp", 1), ("ss", 0), ("pp", 2)])
def test_only_runs_without_a_failure_are_noted(
    outcomes: str, exit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "FILE", tmp_path / "tested.json")
    options = SimpleNamespace(keyword="", markexpr="not slow and not s3")
    config: Any = SimpleNamespace(rootpath=ROOT, args=[str(ROOT / "tests" / "io")], option=options)
    recorder = Recorder(config)
    words = {"p": "passed", "s": "skipped", "f": "failed"}
    for outcome in outcomes:
        report: Any = SimpleNamespace(when="call", outcome=words[outcome])
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish(exit)
    if exit or "p" not in outcomes:
        assert not (tmp_path / "tested.json").exists()
        return
    (result,) = json.loads((tmp_path / "tested.json").read_text())
    assert (result["tests"], result["passed"], result["skipped"]) == ("tests/io", 3, 1)
    assert {"python", "pyspark", "pyarrow", "pylance", "date"} < result.keys()


def test_every_release_that_is_named_has_passed_the_tests_of_compatibility() -> None:
    """The Makefile names the older releases of Spark and pylance, constraints.txt the newest."""
    makefile, pins = (ROOT / "Makefile").read_text(), (ROOT / "constraints.txt").read_text()
    named: dict[str, set[str]] = {
        what: set(re.findall(rf"^{name}_VERSIONS \?= (.*)$", makefile, re.MULTILINE)[0].split())
        for what, name in (("python", "PYTHON"), ("pyspark", "SPARK"), ("pylance", "PYLANCE"))
    }
    for package in ("pyspark", "pylance"):
        named[package] |= set(re.findall(rf"^{package}==([\d.]+)", pins, re.MULTILINE))
    project = (ROOT / "pyproject.toml").read_text()
    assert named["python"] == set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project))
    rows = [row for row in json.loads(recording.FILE.read_text()) if "tests/compatibility" in row["tests"]]
    for what, releases in named.items():
        assert releases <= {row[what] for row in rows}, "make test-compatibility"
