"""Java units of the SQL layer: where one does not fit a release of Spark, the others do their work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

# A session of its own, as classes are found once per JVM.
SCRIPT = """
import sys
from pyspark.sql import SparkSession
import spark_lance
from spark_lance.spark.java import prepare_environment
from spark_lance.spark.sql import units

prepare_environment()
units._sources()["LanceScan"] = "package spark_lance.sql; public class LanceScan extends Missing {}"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark_lance.enable(spark, root=sys.argv[1])
spark.sql("CREATE TABLE lance.t AS SELECT id FROM range(5)").collect()
for frame in (spark.table("lance.t"), spark.read.format("lance").load(sys.argv[1] + "/t.lance")):
    assert sorted(row.id for row in frame.where("id > 1").collect()) == [2, 3, 4]
    assert frame.count() == 5
    assert "BatchScan" in frame._jdf.queryExecution().executedPlan().toString()
print("all of it was read")
"""


def test_without_the_planner_in_the_driver_there_is_one_warning_and_spark_plans(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "root")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert "all of it was read" in done.stdout, done.stderr[-2000:]
    assert done.stderr.count("LanceScan does not fit this release of Spark") == 1


def test_who_asks_nothing_imports_nothing() -> None:
    script = (
        "import sys, spark_lance.spark.enable; print([m for m in sys.modules if 'spark_lance.table' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
