"""The example programs run, and say so when their checks fail."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
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
