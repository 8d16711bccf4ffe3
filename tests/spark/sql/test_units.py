"""Java units of the SQL layer: where one does not fit a release of Spark, the others do their work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.conftest import ROOT

# A session of its own, as classes are found once per JVM.
SCRIPT = """
import sys
from pathlib import Path
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import spark_lance
from spark_lance.spark.java import prepare_environment
from spark_lance.spark.driver import java_classes
from tests.spark.java_sources import changed_sources

prepare_environment()
root, broken = sys.argv[1:]
package, name = broken.split(".")
text = f"package org.lance.spark.{package}; public class {name} extends Missing {{}}"
java_classes.FOLDER = changed_sources(Path(root), {"org.lance.spark." + broken: text})
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.lance.localRows", "0")  # what is read, tasks read
spark_lance.enable(spark, root=root)
spark.sql("CREATE TABLE lance.t AS SELECT id FROM range(5)").collect()
for frame in (spark.table("lance.t"), spark.read.format("lance").load(root + "/t.lance")):
    assert sorted(row.id for row in frame.where("id > 1").collect()) == [2, 3, 4]
    assert frame.count() == 5
    assert "BatchScan" in frame._jdf.queryExecution().executedPlan().toString()
print("all of it was read")

# This driver ends soon, so it may ask for what cannot be taken back; test_save_modes.py has more of it.
spark_lance.enable(spark, save_modes=True)
rows = spark.range(2).write.format("lance")
rows.save(root + "/new")
rows.mode("ignore").save(root + "/new")
try:
    spark.range(2).write.format("lance").save(root + "/new")
except PySparkException as error:
    assert "TABLE_OR_VIEW_ALREADY_EXISTS" in str(error)
else:
    raise AssertionError("it did not fail")
assert spark.read.format("lance").load(root + "/new").count() == 2
print("all save modes work")
"""


# Each compiles all units in a JVM of its own; test_row_level.py leaves one out in the session of all tests.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "lines"),
    [
        pytest.param("transport.LanceColumns", ["are read row by row"], id="rows in place of columns"),
        pytest.param("scan.LanceScan", [], id="workers plan"),
    ],
)
def test_where_a_unit_is_missing_there_is_one_warning_and_the_rest_works(
    tmp_path: Path, unit: str, lines: list[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "root"), unit]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert "all of it was read" in done.stdout, done.stderr[-2000:]
    assert "all save modes work" in done.stdout, done.stderr[-2000:]
    for line in (f"{unit.rpartition('.')[2]} does not fit this release of Spark", *lines):
        assert done.stderr.count(line) == 1, done.stderr[-4000:]


UNKNOWN_RELEASE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import spark_lance
from spark_lance.spark.java import prepare_environment
from spark_lance.spark.driver import java_classes
from tests.spark.java_sources import changed_sources

prepare_environment()
(root,) = sys.argv[1:]
shim = "org.lance.spark.shim.Shim"
text = java_classes.source(shim)
assert "PushDownUtils" in text
java_classes.FOLDER = changed_sources(Path(root), {shim: text.replace("PushDownUtils", "PushDownRules")})
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.version == "4.9.0"
for session in (spark, spark.newSession()):
    spark_lance.enable(session, root=root)
path = root + "/t.lance"
for start in (0, 5):
    spark.range(start, start + 5).write.format("lance").mode("append").save(path)
frame = spark.read.format("lance").load(path)
assert sorted(row.id for row in frame.where("id > 6").collect()) == [7, 8, 9]
assert frame.count() == 10
spark_lance.LanceTable.forPath(spark, path).delete("id < 8")
assert sorted(row.id for row in spark.read.format("lance").load(path).collect()) == [8, 9]
spark.range(1).write.format("lance").mode("overwrite").save(path)
assert [row.id for row in spark.read.format("lance").load(path).collect()] == [0]
print("all answers were right")
"""


@pytest.mark.slow
def test_an_unknown_release_of_spark_gets_one_warning_and_right_answers(tmp_path: Path) -> None:
    """Spark says that it is 4.9.0, and lacks a class that the shim needs."""
    jars = Path(pyspark.__file__).parent / "jars"
    (archive,) = jars.glob("spark-common-utils_*.jar")
    with zipfile.ZipFile(archive) as entries:
        release = entries.read("spark-version-info.properties").decode()
    (tmp_path / "classes").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "classes" / "spark-version-info.properties").write_text(
        re.sub("^version=.*$", "version=4.9.0", release, flags=re.MULTILINE)
    )
    script = tmp_path / "script.py"
    script.write_text(UNKNOWN_RELEASE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {tmp_path / 'classes'} pyspark-shell",
    }
    command = [sys.executable, str(script), str(tmp_path / "root")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert "all answers were right" in run.stdout, run.stderr[-4000:]
    warnings = [line for line in run.stderr.splitlines() if "lance" in line.lower()]
    assert len(warnings) == 1, warnings
    start = "Lance has no SQL catalog here, only paths: Shim does not fit Spark 4.9.0: "
    assert warnings[0].startswith(start)
    assert "PushDownRules" in warnings[0]


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
