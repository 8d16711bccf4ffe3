"""Classic sessions in threads of the user's own, where they are not active by themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import InheritableThread

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.driver import java_classes
from spark_lance.spark.driver import start as enable_module
from spark_lance.spark.driver.start import FORMAT
from tests.spark.java_sources import changed_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Other test modules import pylance, which warns when Python's workers are forked.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

Work = Callable[[], None]


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session that may be enabled and changed."""
    return spark.newSession()


def in_pool(*works: Work) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def in_threads(kind: type[threading.Thread], *works: Work) -> None:
    errors: list[BaseException] = []

    def guarded(work: Work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [kind(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def plainly(*works: Work) -> None:
    in_threads(threading.Thread, *works)


def inheriting(*works: Work) -> None:
    in_threads(InheritableThread, *works)


def append(frame: DataFrame, path: str) -> None:
    frame.write.format("lance").mode("append").save(path)


def ids(path: str) -> list[int]:
    rows: list[int] = spark_lance.dataset(path).to_table()["id"].to_pylist()
    return sorted(rows)


@pytest.mark.parametrize("run", [in_pool, plainly, inheriting], ids=lambda run: run.__name__)
def test_one_call_lets_all_threads_write_and_read(
    spark: SparkSession, tmp_path: Path, run: Callable[..., None]
) -> None:
    spark_lance.enable(spark)
    path = str(tmp_path / "t")

    def work(start: int) -> None:
        append(spark.range(start, start + 3), path)
        reader = spark.read.format("lance")
        assert reader.load(path).where(f"id >= {start}").count() >= 3
        # With a schema of one's own Spark does not ask the source for it.
        named = spark.read.format("lance").schema("id long").load(path)
        assert {start, start + 1, start + 2} <= {row.id for row in named.collect()}

    run(lambda: work(0), lambda: work(10))
    run(lambda: spark.range(5).write.format("lance").mode("overwrite").save(f"{path}2"))
    assert ids(path) == [0, 1, 2, 10, 11, 12]
    assert ids(f"{path}2") == [0, 1, 2, 3, 4]


def test_threads_change_tables_and_use_views(spark: SparkSession, tmp_path: Path) -> None:
    spark_lance.enable(spark)
    path = str(tmp_path / "t")

    def work() -> None:
        append(spark.range(4), path)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW in_a_thread USING lance OPTIONS (path '{path}')")
        spark.sql("INSERT INTO in_a_thread SELECT id FROM range(10, 12)")
        LanceTable.forPath(spark, path).delete("id = 1")
        assert LanceTable.forPath(spark, path).toDF().where("id > 5").count() == 2

    plainly(work)
    assert ids(path) == [0, 2, 3, 10, 11]


def test_one_call_serves_the_threads_of_sessions_made_later(spark: SparkSession, tmp_path: Path) -> None:
    spark_lance.enable(spark)
    path = str(tmp_path / "t")
    later = spark.newSession()
    in_pool(lambda: append(later.range(3), path))
    assert ids(path) == [0, 1, 2]


def test_batches_of_streams_are_written_from_threads(spark: SparkSession, tmp_path: Path) -> None:
    spark_lance.enable(spark)
    source, target = str(tmp_path / "from"), str(tmp_path / "to")
    append(spark.range(6), source)

    def work() -> None:
        stream = spark.readStream.format("lance").load(source).writeStream
        stream = stream.foreachBatch(lambda frame, _: append(frame, target)).trigger(availableNow=True)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)

    plainly(work)
    assert ids(target) == [0, 1, 2, 3, 4, 5]


def test_a_stream_into_a_table_starts_in_a_thread(spark: SparkSession, tmp_path: Path) -> None:
    datasource = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        pytest.skip("Spark 4.0 hands no Arrow batches to streams")
    spark_lance.enable(spark)
    source, target = str(tmp_path / "from"), str(tmp_path / "to")
    append(spark.range(6), source)

    def work() -> None:
        stream = spark.readStream.format("lance").load(source).writeStream.format("lance")
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert stream.start(target).awaitTermination(120)

    plainly(work)
    assert ids(target) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_formats_are_found_and_refused_as_without_the_call(spark: SparkSession, tmp_path: Path) -> None:
    spark_lance.enable(spark)
    path = str(tmp_path / "t")
    writer = spark.range(3).write
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.format("lance").save(path)
    writer.format("LANCE").mode("append").save(path)
    assert spark.read.format("Lance").load(path).count() == 3


def test_classes_are_compiled_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_lance.enable(spark)

    def none(*_: Any) -> Any:
        raise AssertionError("a class is published again")

    monkeypatch.setattr(java_classes, "_archive_url", none)
    other = spark_lance.enable(spark.newSession())
    assert other.conf.get("spark.lance.planInDriver") == "true"


@contextmanager
def foreign_launcher(spark: Any) -> Iterator[None]:
    """Take from this thread the class loader that takes more classes; its parent knows none of them."""
    thread = spark._jvm.java.lang.Thread.currentThread()
    usual = thread.getContextClassLoader()
    taking = java_classes.open_loader(spark._jvm)
    assert taking is not None
    thread.setContextClassLoader(taking.getParent())
    try:
        yield
    finally:
        thread.setContextClassLoader(usual)


@pytest.mark.slow
def test_where_no_classes_are_taken_each_thread_calls_for_itself(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "t")
    enable_module._warn_of_threads.cache_clear()

    def work() -> None:
        with foreign_launcher(spark):
            other = spark.newSession()
            with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
                append(other.range(3), path)
            for _ in range(2):
                spark_lance.enable(other)
            append(other.range(3), path)
            read = other.read.format("lance").load(path)
            assert read.where("id > 0").count() == 2

    with caplog.at_level(logging.WARNING):
        plainly(work)
    assert [record.message for record in caplog.records] == [
        "Reads of Lance tables by path fetch all columns and rows here, and each thread that writes by path "
        "needs its own call of spark_lance.enable(spark): the driver's class loader accepts no classes"
    ]
    assert ids(path) == [0, 1, 2]


def test_a_class_that_does_not_compile_costs_threads_only(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, broken = str(tmp_path / "t"), "package lance; public final class DefaultSource extends NotThere {}"
    monkeypatch.setattr(java_classes, "FOLDER", changed_sources(tmp_path, {FORMAT: broken}))
    enable_module._warn_of_threads.cache_clear()

    def work() -> None:
        with foreign_launcher(spark), monkeypatch.context() as patch:
            patch.setattr(java_classes, "can_publish", lambda _: True)
            other = spark.newSession()
            for _ in range(2):
                spark_lance.enable(other)
            append(other.range(3), path)
            assert other.read.format("lance").load(path).where("id > 0").count() == 2

    with caplog.at_level(logging.WARNING):
        plainly(work)
    (record,) = caplog.records
    assert record.message.startswith("Reads of Lance tables by path fetch all columns")
    assert "NotThere" in record.message
    assert "\n" not in record.message
    assert ids(path) == [0, 1, 2]
