"""The code of the documentation of Iceberg and Delta works on Lance tables.

The pages are those of a fetched copy; the environment variable PEERS names its folder (see pages.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
COPIES = os.environ.get("PEERS", "")
# Shares of the statements; the copies change, so their number does.
WORKS, ELSE = 0.89, 0.01


@pytest.mark.skipif(
    not (Path(COPIES) / "iceberg").is_dir() or not COPIES,
    reason="needs copies of the documentation of Iceberg and Delta: set PEERS to their folder",
)
def test_most_statements_work_as_they_are_written(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "tests.peers.run", COPIES, "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    outcomes = Counter(json.loads(line)["outcome"] for line in report.read_text().splitlines())
    total = sum(outcomes.values())
    assert outcomes["works"] > WORKS * total, done.stdout
    assert outcomes["something else"] < ELSE * total, done.stdout
