"""Workers that Spark forks from the package's own daemon have loaded what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = """
import sys
import spark_lance

builder = spark_lance.session_builder().master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.python.daemon.module", sys.argv[1]).getOrCreate()

def loaded(_):
    import sys
    return "spark_lance.spark.scan.rows" in sys.modules

print("loaded", spark.sparkContext.parallelize([0], 1).map(loaded).collect()[0])
spark.range(100).write.format("lance").mode("append").save(sys.argv[2])
frame = spark.read.format("lance").load(sys.argv[2])
print("some", frame.head().id, len(frame.limit(7).collect()), "sum", frame.agg({"id": "sum"}).head()[0])
spark.stop()
"""


def test_what_is_forked_has_its_modules_and_no_thread() -> None:
    program = (
        "import sys, threading; from spark_lance.spark import daemon; daemon.preload(); "
        "print(set(daemon._MODULES) <= set(sys.modules), callable(daemon.manager), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "loaded"), [("spark_lance.spark.daemon", True), ("pyspark.daemon", False)]
)
def test_workers_are_forked_with_their_modules(module: str, loaded: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, module, str(tmp_path / "t")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"loaded {loaded}", "some 0 7 sum 4950"]
