"""Spark's own SQL inputs over Lance tables give the rows and schemas that they give over Parquet tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_sql.inputs import input_files

pytestmark = pytest.mark.spark_sql

ROOT = Path(__file__).resolve().parents[2]
WRONG = ("other rows", "another schema")


@pytest.mark.parametrize("tasks", [False, True], ids=["driver", "tasks"])
def test_no_statement_has_other_rows_or_another_schema(tasks: bool, tmp_path: Path) -> None:
    assert len(list(input_files())) > 200
    report = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "tests.spark_sql.run", "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *(["--tasks"] if tasks else [])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in report.read_text().splitlines()]
    wrong = [f"{r['file']} #{r['number']}: {r['detail']}" for r in results if r["outcome"] in WRONG]
    assert not wrong, done.stdout[-3000:]
    assert done.returncode == 0, done.stderr[-3000:]
