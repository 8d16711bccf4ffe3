"""Reads that Spark plans by itself: sessions without the driver's planner find the same rows, only slower."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_lance
from tests.conftest import interpreted
from tests.spark.driver.test_threads import foreign_launcher, plainly
from tests.spark.test_connect import environment

ROWS = 60
SETTING = "spark.sql.python.filterPushdown.enabled"
PLANS = "spark.lance.planInDriver"

# Few, because Spark starts a Python process to plan each of them.
QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns": lambda frame: frame.select("s", "id"),
    "count": lambda frame: frame.groupBy().count(),
    "filter": lambda frame: frame.where("(x = 'NaN' or s like 'a%') and st.a > 7").select("day", "st.t.z"),
    "parts": lambda frame: frame.where("id < 9").union(frame.where("id > 50").limit(20)),
    "join": lambda frame: frame.where("id < 20").alias("l").join(frame.alias("r"), f.expr("l.id = r.a")),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of three fragments with deleted rows, and the same rows in a Parquet file."""
    folder = str(tmp_path_factory.mktemp("plain"))
    ids = range(ROWS)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array([i // 2 for i in ids], pa.int32()),
            "s": pa.array([(None, "", "ab", "a%b", "é")[i % 5] for i in ids]),
            "x": pa.array([(float("nan"), 1.5, None, -0.0, 7.0)[i % 5] for i in ids]),
            "day": pa.array([date(2024, 2, 1) + timedelta(days=i) for i in ids]),
            "st": pa.array([{"a": i, "t": {"z": str(i)}} if i % 4 else None for i in ids]),
        }
    )
    spark_lance.write_dataset(rows, f"{folder}/t.lance", max_rows_per_file=ROWS // 3)
    spark_lance.dataset(f"{folder}/t.lance").delete("id % 11 = 3")
    remaining = [i for i in ids if i % 11 != 3]
    pq.write_table(rows.take(remaining), f"{folder}/t.parquet")
    return folder


def texts(frame: DataFrame) -> list[str]:
    """Rows as text, because NaN is not equal to itself."""
    return sorted(map(str, frame.collect()))


@pytest.fixture(scope="module")
def expected(spark: SparkSession, root: str) -> dict[str, list[str]]:
    """The rows of each query, from Parquet."""
    session = spark.newSession()
    # Parquet's own filters do not find NaN.
    session.conf.set("spark.sql.parquet.filterPushdown", "false")
    frame = session.read.parquet(f"{root}/t.parquet")
    return {name: texts(query(frame)) for name, query in QUERIES.items()}


def load(session: SparkSession, root: str) -> DataFrame:
    return session.read.format("lance").load(f"{root}/t.lance")


def not_enabled(session: SparkSession, root: str) -> DataFrame:
    return load(session, root)


def used_before_enable(session: SparkSession, root: str) -> DataFrame:
    frame = load(session, root)
    frame.where("id > 40").collect()
    spark_lance.enable(session, root=root)
    return frame


def with_own_schema(session: SparkSession, root: str) -> DataFrame:
    schema = load(session, root).schema
    frame = session.read.format("lance").schema(schema).load(f"{root}/t.lance")
    spark_lance.enable(session, root=root)
    return frame


def by_name_without_driver(session: SparkSession, root: str) -> DataFrame:
    spark_lance.enable(session, root=root)
    session.conf.set(PLANS, "false")
    return session.table("lance.t")


def with_filters_of_spark(session: SparkSession, root: str) -> DataFrame:
    session.conf.set(SETTING, "true")
    return load(session, root)


SESSIONS = (
    not_enabled,
    used_before_enable,
    with_own_schema,
    by_name_without_driver,
    with_filters_of_spark,
)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    session.conf.set("spark.sql.adaptive.enabled", "false")
    yield session
    spark.newSession()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prepare", SESSIONS, ids=lambda prepare: prepare.__name__)
def test_a_plain_read_finds_the_same_rows(
    session: SparkSession,
    root: str,
    expected: dict[str, list[str]],
    prepare: Callable[[SparkSession, str], DataFrame],
) -> None:
    frame = prepare(session, root)
    assert {name: texts(query(frame)) for name, query in QUERIES.items()} == expected


def test_a_driver_that_takes_no_classes_reads_plainly(
    spark: SparkSession, root: str, expected: dict[str, list[str]]
) -> None:
    rows: dict[str, list[str]] = {}

    def work() -> None:
        with foreign_launcher(spark):
            session = spark_lance.enable(interpreted(spark.newSession()))
            frame = load(session, root)
            rows.update((name, texts(query(frame))) for name, query in QUERIES.items())

    plainly(work)
    assert rows == expected


def test_a_frame_keeps_its_version(session: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"id": range(5)}), place)
    frame = session.read.format("lance").load(place)
    spark_lance.write_dataset(pa.table({"id": range(5, 9)}), place, mode="append")
    spark_lance.enable(session)
    assert frame.agg(f.sum("id")).first() == (10,)
    assert frame.where("id > 2").count() == 2
    assert session.read.format("lance").load(place).where("id > 2").count() == 6


_SCRIPT = """
import sys
from pyspark.sql import SparkSession
import spark_lance

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
load = lambda: spark.read.format("lance").load(sys.argv[1])
look = lambda frame: (
    [row.id for row in frame.where("id > 50 and s = 'ab'").orderBy("id").collect()], frame.count()
)
early, used = load(), load()
print("RESULT", look(used))
spark_lance.enable(spark)
for frame in (early, used, load()):
    print("RESULT", look(frame))
spark.conf.set("spark.lance.planInDriver", "false")
print("RESULT", look(load()))
"""


@pytest.mark.slow  # a driver of its own, in which nothing was published before the first frame
def test_a_submitted_program_reads_before_and_after_enable(root: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_SCRIPT)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", "local[2]", str(script), f"{root}/t.lance"],
        env={**environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results == [f"RESULT {([52, 57], 54)}"] * 5, done.stderr[-3000:]
