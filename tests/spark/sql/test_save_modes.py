"""df.write.format("lance").save(path) in all modes, for those who asked for it, and what it costs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from tests.conftest import ROOT

# A driver of its own, as this cannot be taken back. What must always work is tried in that of test_units.py.
SCRIPT = """
import os
import sys
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import spark_lance
from spark_lance.spark.java import prepare_environment

prepare_environment()
os.chdir(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark_lance.enable(spark, root=sys.argv[1] + "/root", save_modes=True)
two = spark.range(2)


def failure(work):
    try:
        work()
    except PySparkException as error:
        return str(error)
    raise AssertionError("it did not fail")


def rows(place, **options):
    return sorted(spark.read.format("lance").options(**options).load(place).collect())


def modes(session, place):
    frame = session.range(2)
    frame.write.format("lance").option("enable_stable_row_ids", "true").save(place)
    assert spark_lance.dataset(place).has_stable_row_ids
    assert "TABLE_OR_VIEW_ALREADY_EXISTS" in failure(lambda: frame.write.format("lance").save(place))
    session.range(9).write.format("lance").mode("ignore").save(place)
    assert rows(place) == [(0,), (1,)]
    session.range(5, 6).write.format("lance").mode("append").save(place)
    assert rows(place) == [(0,), (1,), (5,)]
    session.range(7, 8).write.format("lance").mode("overwrite").save(place)
    assert rows(place) == [(7,)]
    wide = session.range(8, 9).selectExpr("id", "'a' AS s")
    wide.write.format("lance").mode("append").option("mergeSchema", "true").save(place)
    assert rows(place)[1].s == "a"
    session.range(8, 9).write.format("lance").mode("overwrite").option("replaceWhere", "id = 8").save(place)


place = sys.argv[1] + "/a b.c"
other = spark.newSession()
modes(spark, place)
assert rows(place, version="1") == [(0,), (1,)]
assert rows(place, table="history")[0].version == 1
assert rows(place, columns='["id"]', filter="id > 7") == [(8,)]
frame = spark.read.format("lance").load(place)
before = frame.count()
two.write.format("lance").mode("append").save(place)
assert (frame.count(), len(rows(place))) == (before, before + 2)
spark.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{place}')")
spark.sql("DELETE FROM v WHERE id < 5").collect()
assert spark.sql("SELECT count(*) FROM v").first()[0] == 2
for mode in ("append", "overwrite", "ignore"):
    two.write.format("lance").mode(mode).save(f"{sys.argv[1]}/fresh-{mode}")
    assert rows(f"{sys.argv[1]}/fresh-{mode}") == [(0,), (1,)]
two.write.format("lance").save("relative")
assert rows(sys.argv[1] + "/relative") == [(0,), (1,)]
two.write.format("lance").save("file://" + sys.argv[1] + "/uri")
assert rows(sys.argv[1] + "/uri") == [(0,), (1,)]
spark.range(0).write.format("lance").save(sys.argv[1] + "/empty")
assert rows(sys.argv[1] + "/empty") == []
modes(other, sys.argv[1] + "/other")
two.write.format("lance").partitionBy("id").save(sys.argv[1] + "/parts")
assert rows(sys.argv[1] + "/parts") == [(0,), (1,)]
assert "path" in failure(lambda: two.write.format("lance").save())
assert "no Lance table" in failure(lambda: spark.read.format("lance").load(sys.argv[1] + "/none"))
told = failure(lambda: spark.read.format("lance").schema("id INT").load(place))
assert "schema" in told, told
memory = spark.readStream.format("lance").load(place).writeStream.format("memory").queryName("m")
query = memory.trigger(availableNow=True).start()
query.awaitTermination()
assert spark.table("m").count() == len(rows(place))
bad = spark.range(3).selectExpr("CASE WHEN id < 2 THEN id ELSE raise_error('no') END AS id")
assert "no" in failure(lambda: bad.write.format("lance").save(sys.argv[1] + "/bad"))
two.write.format("lance").save(sys.argv[1] + "/bad")
secret = two.write.format("lance").option("storage.secret_key", "do not tell")
assert "do not tell" not in failure(lambda: secret.save(sys.argv[1] + "/bad"))
print("all modes work")
"""


@pytest.mark.slow
def test_all_modes_work_for_those_who_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path / "data")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert "all modes work" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_without_asking_spark_refuses_them_in_one_line(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    session = spark_lance.enable(spark.newSession())
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE") as caught:
        session.range(2).write.format("lance").mode(mode).save(str(tmp_path / "t"))
    assert 'use either the "Append" or "Overwrite" mode instead' in str(caught.value)
    assert not (tmp_path / "t").exists()
