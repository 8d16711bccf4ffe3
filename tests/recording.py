"""Which releases the tests have passed with, for docs/compatibility.md: `pytest --record` notes it.

A run is noted in tests/tested.json if nothing failed. A row stands for the releases of Python, Spark, PyArrow
and pylance and for what was run; a later run of the same takes its place.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.near import DURATIONS

FILE = Path(__file__).parent / "tested.json"
USUAL = "not slow"  # how the marks of pyproject.toml begin
PACKAGES = ("pyspark", "pyarrow", "pylance")

Row = Mapping[str, str | int]


def noted(rows: Sequence[Row], row: Row) -> list[Row]:
    """Return the rows with another one, which takes the place of one of the same releases and tests."""
    changing = {"passed", "skipped", "date"}

    def key(one: Row) -> list[tuple[str, str]]:
        return [(name, str(one[name])) for name in sorted(one) if name not in changing]

    remaining = [one for one in rows if key(one) != key(row)]
    return sorted([*remaining, row], key=key)


def row_of(config: pytest.Config, counts: Mapping[str, int]) -> Row:
    """Return what is noted of a run."""
    root = config.rootpath
    request = sorted({str(Path(path).resolve().relative_to(root)) for path in config.args})
    request += [f"-k {config.option.keyword!r}"] if config.option.keyword else []
    # Without an expression there are no more tests than those asked for.
    if config.option.markexpr and not config.option.markexpr.startswith(USUAL):
        request.append(f"-m {config.option.markexpr!r}")
    releases = {name: version(name) for name in PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "python": python,
        **releases,
        "tests": " ".join(request),
        "passed": counts["passed"],
        "skipped": counts["skipped"],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


class Recorder:
    """Counts what comes of the tests, in the process that hears of all of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts = {"passed": 0, "skipped": 0, "failed": 0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._counts[report.outcome] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0 and self._counts["passed"] and not self._counts["failed"]:
            rows = json.loads(FILE.read_text()) if FILE.exists() else []
            FILE.write_text(json.dumps(noted(rows, row_of(self._config, self._counts)), indent=1) + "\n")


class DurationRecorder:
    """Writes the seconds that each test file took, setup included, for `python -m tests.near`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test."""
        path = report.nodeid.partition("::")[0]
        self._seconds[path] = self._seconds.get(path, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the files of this run; files that it did not run keep their seconds."""
        known = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
        known |= {path: round(seconds, 1) for path, seconds in self._seconds.items()}
        DURATIONS.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
