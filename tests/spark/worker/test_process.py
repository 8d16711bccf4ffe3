"""Python workers of Spark, which serve many queries, begin and end each of them quickly."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_lance.spark.driver.jobs import collect_answers

PROGRAM = """
import gc, importlib, sys, zipfile, zipimport
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
later = sys.argv[2].replace("given", "later")
sys.path.append(later)
import given_package.inner, later_module
from spark_lance.spark.worker import process as workers

read = []
original = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or original(archive)
frozen = gc.get_freeze_count()
workers.keep_worker_ready()
gone = not any(path.startswith(sys.argv[2]) for path in sys.path_importer_cache)
importlib.invalidate_caches()
print("forgotten", gone, "read given", sys.argv[2] in read, "frozen", gc.get_freeze_count() > frozen)
import given_package.other
with zipfile.ZipFile(later, "a") as archive:
    archive.writestr("later_still.py", "value = 2")
workers.keep_worker_ready()
importlib.invalidate_caches()
import given_package.last, later_still
print(given_package.last.value, later_still.value)
"""


@pytest.mark.parametrize("name", ["pyspark.daemon", "spark_lance.spark.daemon", "something.else"])
def test_archives_of_the_start_are_read_once_and_later_ones_again(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "given.zip", "w") as archive:
        archive.writestr("given_package/__init__.py", "")
        for module in ("inner", "other", "last"):
            archive.writestr(f"given_package/{module}.py", "value = 1")
    with zipfile.ZipFile(tmp_path / "later.zip", "w") as archive:
        archive.writestr("later_module.py", "")
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(tmp_path / "given.zip")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "given.zip"), root])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    is_worker = name.endswith("daemon")
    assert done.returncode == 0, done.stderr
    reads = not is_worker and sys.version_info < (3, 13)
    assert done.stdout.splitlines() == [
        f"forgotten {is_worker} read given {reads} frozen {is_worker}",
        "1 2",
    ]


def test_workers_of_spark_are_known_as_such(spark: SparkSession) -> None:
    def asked(batches: object) -> list[bool]:
        from spark_lance.spark.worker import process as workers

        return [workers._is_worker()]

    assert collect_answers(spark.range(1).repartition(1), asked) == [True]
