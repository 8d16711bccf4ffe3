"""Writes that the driver plans and commits, and does itself where there are few rows."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.errors import CommitOutcomeUnknownError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import Store
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

ROWS = "spark.lance.localRows"
PLANS = "spark.lance.planInDriver"


@pytest.fixture(scope="module")
def driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root = str(tmp_path_factory.mktemp("writes"))
    yield spark_lance.enable(spark.newSession(), root=root)
    spark.newSession()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def save(frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("lance").mode(mode).options(**options).save(path)


def local(session: SparkSession, rows: pa.Table) -> DataFrame:
    """A frame whose rows the driver has."""
    return session.createDataFrame(rows.to_pandas())


def row(session: SparkSession, number: int) -> DataFrame:
    return session.range(number, number + 1, 1, 1).selectExpr(
        "id", "cast(id AS string) AS name", "id / 2 AS x"
    )


def jobs(session: SparkSession, work: Callable[[], object]) -> int:
    """How many jobs of Spark's some work takes."""
    context = session.sparkContext
    group = str(uuid.uuid4())
    context.setJobGroup(group, "counted")
    try:
        work()
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    return len(context.statusTracker().getJobIdsForGroup(group))


def planners() -> set[str]:
    """What Python processes of this driver plan for data sources."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[folder.name] = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            commands[folder.name] = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
    result, waiting = set(), [str(os.getpid())]
    while waiting:
        parent = waiting.pop()
        waiting += [child for child, above in parents.items() if above == parent]
        words = [word for word in commands.get(parent, ()) if word.startswith("pyspark.sql.worker.")]
        result |= {f"{parent} {word}" for word in words}
    return result


def values(seed: int, count: int) -> list[tuple[Any, ...]]:
    draw = random.Random(seed)

    def one(choices: list[Any]) -> Any:
        return draw.choice([None, *choices])

    moments = [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2300, 2, 3, 4, 5, 6, 7)]
    return [
        (
            number,
            one([True, False]),
            one([-128, 127]),
            one([-(2**31), 7]),
            one([float("nan"), -0.0, 1.5]),
            one([1e300, float("-inf")]),
            one([Decimal("-12345.67891"), Decimal("0.00001")]),
            one(["", "größer 東京", "a" * 300]),
            one([bytearray(b""), bytearray(b"\x00\xff")]),
            one([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
            one(moments),
            one(moments),
            one([[1.5, None], []]),
            one([(1, "x"), (None, None)]),
            one([{"k": 1, "l": None}, {}]),
        )
        for number in range(count)
    ]


TYPES = (
    "id bigint, b boolean, i8 tinyint, i int, f float, d double, m decimal(20,5), s string, raw binary, "
    "day date, at timestamp, ntz timestamp_ntz, v array<float>, st struct<p: int, q: string>, "
    "kv map<string, int>"
)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_rows_of_all_types_are_those_that_tasks_write(
    driver: SparkSession, tmp_path: Path, seed: int
) -> None:
    rows = driver.createDataFrame(values(seed, 40), TYPES).coalesce(1)
    source = str(tmp_path / "rows.parquet")
    rows.write.parquet(source)
    frame = driver.read.parquet(source)
    tables = []
    for name, most in (("driver", "10000"), ("tasks", "0")):
        driver.conf.set(ROWS, most)
        try:
            place = str(tmp_path / name)
            save(frame, place)
            save(frame.where("id % 3 = 0"), place)
        finally:
            driver.conf.unset(ROWS)
        tables.append(spark_lance.dataset(place))
    ours, theirs = tables
    assert ours.schema == theirs.schema
    assert ours.version == theirs.version == 2
    # NaN is not equal to itself.
    assert str(ours.to_table().to_pylist()) == str(theirs.to_table().to_pylist())


def test_few_rows_take_one_job_at_most_and_no_python_worker(driver: SparkSession, path: str) -> None:
    before = planners()
    save(row(driver, 0), path)
    assert jobs(driver, lambda: save(row(driver, 1), path)) == 1
    known = local(driver, pa.table({"id": [2], "name": ["2"], "x": [1.0]}))
    # Older releases run a job to get at rows that came as Arrow.
    assert jobs(driver, lambda: save(known, path)) <= (0 if driver.version >= "4.3" else 1)
    listed = driver.createDataFrame([(3, "3", 1.5)], "id bigint, name string, x double")
    assert jobs(driver, lambda: save(listed, path)) == 1
    driver.sql("CREATE TABLE lance.few (id BIGINT, name STRING)")
    assert jobs(driver, lambda: driver.sql("INSERT INTO lance.few VALUES (1, 'a'), (2, 'b')")) == 0
    assert spark_lance.dataset(path).to_table().to_pydict() == {
        "id": [0, 1, 2, 3],
        "name": ["0", "1", "2", "3"],
        "x": [0.0, 0.5, 1.0, 1.5],
    }
    assert driver.table("lance.few").count() == 2
    if sys.platform == "linux":
        assert planners() <= before


def test_many_rows_are_written_by_tasks_that_the_driver_plans(driver: SparkSession, path: str) -> None:
    before = planners()
    save(driver.range(0, 30_000, 1, 3), path)
    driver.conf.set(ROWS, "5")
    try:
        assert "LanceWriteRows" not in explained(driver, "SELECT id FROM range(6)")
        save(driver.range(6), path)
    finally:
        driver.conf.unset(ROWS)
    assert spark_lance.dataset(path).count_rows() == 30_006
    assert len(spark_lance.dataset(path).get_fragments()) >= 4
    if sys.platform == "linux":
        assert planners() <= before


def explained(session: SparkSession, query: str) -> str:
    session.sql("CREATE TABLE IF NOT EXISTS lance.told (id BIGINT)")
    return str(session.sql(f"EXPLAIN INSERT INTO lance.told {query}").collect()[0].plan)


def test_a_plan_tells_who_writes(driver: SparkSession) -> None:
    assert "LanceWriteRows LanceWrite" in explained(driver, "SELECT id FROM range(6)")
    # What is not known to be small is left to tasks: joins, aggregates, values that grow.
    for query in (
        "SELECT a.id FROM range(6) a JOIN range(6) b ON a.id = b.id",
        "SELECT count(*) FROM range(6)",
        "SELECT length(repeat('x', 9)) + id FROM range(1000000)",
    ):
        assert "LanceWriteRows" not in explained(driver, query), query
    driver.sql("CREATE TABLE IF NOT EXISTS lance.told_text (s STRING)")
    for value, is_small in (
        ("repeat(cast(id AS string), 1000000)", False),
        ("repeat('x', 1000000)", False),
        ("cast(id AS string)", True),
        ("'x'", True),
    ):
        plan = driver.sql(f"EXPLAIN INSERT INTO lance.told_text SELECT {value} FROM range(6)").head()
        assert ("LanceWriteRows" in str(plan)) == is_small, value


def test_what_turns_out_to_be_more_is_written_by_tasks(driver: SparkSession, tmp_path: Path) -> None:
    """A small file may hold many rows, or large ones."""
    for name, rows in (
        ("many", pa.table({"s": ["x"] * 50_000})),
        ("large", pa.table({"s": [chr(65 + i % 26) * 100_000 for i in range(200)]})),
    ):
        source = tmp_path / f"{name}.parquet"
        pq.write_table(rows, source, compression="zstd")
        assert source.stat().st_size < 500_000
        frame = driver.read.parquet(str(source))
        place = str(tmp_path / f"{name}.lance")
        save(frame, place)
        table = spark_lance.dataset(place)
        assert (table.version, table.count_rows()) == (1, rows.num_rows)
        assert table.to_table().equals(rows)


def test_overwrites_and_conditions(driver: SparkSession, path: str) -> None:
    rows = local(driver, pa.table({"id": [1, 2, 3], "part": ["a", "a", "b"]}))
    save(rows, path)
    save(
        rows.where("id = 3").selectExpr("id + 10 AS id", "part"), path, "overwrite", replaceWhere="part = 'b'"
    )
    assert sorted(spark_lance.dataset(path).to_table()["id"].to_pylist()) == [1, 2, 13]
    save(row(driver, 7), path, "overwrite")
    assert spark_lance.dataset(path).to_table().to_pydict() == {"id": [7], "name": ["7"], "x": [3.5]}
    save(row(driver, 7).where("id < 0"), path)
    assert spark_lance.dataset(path).count_rows() == 1


def test_what_is_wrong_is_said_and_nothing_is_left(driver: SparkSession, path: str, tmp_path: Path) -> None:
    spark_lance.write_dataset(
        pa.table({"id": pa.array([1], pa.int64())}, pa.schema([("id", "int64", False)])), path
    )
    for most in ("10000", "0"):
        driver.conf.set(ROWS, most)
        try:
            with pytest.raises(PySparkException, match="name"):
                save(row(driver, 1), path)
            with pytest.raises(PySparkException, match="column 'id'"):
                save(driver.range(3).selectExpr("nullif(id, 1) AS id"), path)
            with pytest.raises(PySparkException, match="max_rows_per_file"):
                save(driver.range(3), path, max_rows_per_file="none")
        finally:
            driver.conf.unset(ROWS)
    assert len(list((Path(path) / "data").iterdir())) == 1
    assert spark_lance.dataset(path).version == 1


def test_a_commit_whose_outcome_is_unknown_is_not_repeated(
    driver: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(row(driver, 0), path)
    puts: list[str] = []

    def lost(store: Store, where: str, data: bytes) -> None:
        puts.append(where)
        raise OSError("the line is dead")

    monkeypatch.setattr(LocalStore, "put_if_absent", lost)
    monkeypatch.setattr("spark_lance.table.commits.commit.read_manifest", _dead)
    for most in ("10000", "0"):
        driver.conf.set(ROWS, most)
        before = len(list((Path(path) / "data").iterdir()))
        try:
            with pytest.raises(PySparkException, match=CommitOutcomeUnknownError.__name__):
                save(row(driver, 1), path)
        finally:
            driver.conf.unset(ROWS)
        # What may have been committed stays.
        assert len(list((Path(path) / "data").iterdir())) == before + 1
    assert len(puts) == 2


def _dead(*_: Any) -> None:
    raise OSError("the line is dead")


def test_numbered_writes_land_once(driver: SparkSession, path: str) -> None:
    for _ in range(2):
        for number in (1, 2):
            save(row(driver, number), path, txnAppId="job", txnVersion=number)
    assert sorted(spark_lance.dataset(path).to_table()["id"].to_pylist()) == [1, 2]


def test_caches_and_views_see_what_was_written(driver: SparkSession, path: str) -> None:
    driver.sql("CREATE TABLE lance.cached (id BIGINT)")
    driver.sql("CACHE TABLE lance.cached")
    assert driver.table("lance.cached").count() == 0
    driver.sql("INSERT INTO lance.cached VALUES (5)")
    assert driver.table("lance.cached").collect() == [(5,)]
    driver.sql("UNCACHE TABLE lance.cached")
    save(row(driver, 0), path)
    driver.sql(f"CREATE TEMPORARY VIEW seen USING lance OPTIONS (path '{path}')")
    driver.sql("INSERT INTO seen VALUES (1, 'one', 0.5)")
    assert driver.sql("SELECT count(*) FROM seen").head() == (2,)
    driver.catalog.dropTempView("seen")


def test_the_rows_are_in_the_metrics(driver: SparkSession, path: str) -> None:
    driver.sql("CREATE TABLE lance.metered (id BIGINT)")
    frame = driver.sql("INSERT INTO lance.metered VALUES (1), (2), (3)")
    plan = frame._jdf.queryExecution().commandExecuted()
    assert "LanceWriteRows" in str(plan.commandPhysicalPlan())
    assert int(plan.commandPhysicalPlan().metrics().apply("numOutputRows").value()) == 3


def test_threads_and_sessions_append_at_once(driver: SparkSession, path: str) -> None:
    save(row(driver, 0), path)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        session = spark_lance.enable(driver.newSession())
        try:
            for each in range(5):
                save(row(session, 100 * number + each), path)
        except BaseException as problem:  # noqa: BLE001 (told below)
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    expected = [0, *(100 * number + each for number in range(1, 5) for each in range(5))]
    assert sorted(spark_lance.dataset(path).to_table()["id"].to_pylist()) == expected
    assert spark_lance.dataset(path).version == 21


def test_without_the_driver_spark_writes_by_itself(driver: SparkSession, path: str) -> None:
    driver.conf.set(PLANS, "false")
    try:
        save(row(driver, 1), path)
        assert jobs(driver, lambda: save(row(driver, 2), path)) == 1
    finally:
        driver.conf.set(PLANS, "true")
    save(row(driver, 3), path)
    assert sorted(spark_lance.dataset(path).to_table()["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.skipif(not COUNTS_WITHOUT_COLUMNS, reason="Spark 4.0 hands no Arrow batches to streams")
def test_a_stream_is_planned_and_committed_by_the_driver(driver: SparkSession, tmp_path: Path) -> None:
    """Each file a micro-batch; a restart goes on, and repeats none."""
    source, place = str(tmp_path / "in"), str(tmp_path / "out.lance")
    before = planners()
    for round_ in range(2):
        for number in range(3):
            driver.range(10 * number, 10 * number + 10, 1, 1).write.mode("append").parquet(source)
        rows = driver.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(source)
        query = (
            rows.writeStream.format("lance")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(place)
        )
        query.awaitTermination()
        assert spark_lance.dataset(place).count_rows() == 30 * (round_ + 1)
    assert spark_lance.dataset(place).version == 6
    if sys.platform == "linux":
        assert planners() <= before
