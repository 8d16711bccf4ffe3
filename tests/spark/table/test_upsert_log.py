"""Upserts by the MemWAL of a table: batches, streams, fresh reads and upkeep by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql import functions as f
from pyspark.sql import types as st

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import NullValueError, OptionError, SchemaError
from spark_lance.memwal.names import list_shards
from spark_lance.memwal.sharding import buckets
from spark_lance.memwal.staged import append_staged
from spark_lance.spark.options.options import read_options, write_options
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.streaming import upsert
from spark_lance.table.format.table_ref import TableRef
from tests.memwal.tables import SCHEMA, Rows, as_rows, plain, rows, seen

needs_arrow = pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"),
    reason="Spark 4.0 hands no Arrow batches to streams",
)
COLUMNS = "id long, val string, x double"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of ten rows whose MemWAL has four shards."""
    place = tmp_path / "t"
    ds = spark_lance.write_dataset(rows(*((key, "base") for key in range(10))), place, max_rows_per_file=4)
    ds.initialize_mem_wal(bucket_column="id", num_buckets=4)
    return place


def frame(spark: SparkSession, *pairs: tuple[int, str | None]) -> Any:
    data = [(key, value, key / 2) for key, value in pairs]
    return spark.createDataFrame(data, COLUMNS)


def read(spark: SparkSession, path: Path, **options: Any) -> Any:
    return spark.read.format("lance").option("fresh", True).options(**options).load(str(path))


def by_spark(spark: SparkSession, path: Path) -> Rows:
    results = {row.id: row.val for row in read(spark, path).collect()}
    assert results == seen(path)
    return results


def test_batches_are_upserted_and_read(spark: SparkSession, path: Path) -> None:
    table = LanceTable.forPath(spark, str(path))
    log = table.upsertLog()
    assert log.upsert(frame(spark, *((key, "new") for key in range(5, 15))).repartition(3)) == 10
    assert log.delete(frame(spark, (0, None), (99, None)).select("id")) == 2
    expected: Rows = {key: "base" if key < 5 else "new" for key in range(1, 15)}
    assert by_spark(spark, path) == expected
    keys = [*range(5, 15), 0, 99]
    used = len(set(buckets(pa.array(keys), 4).tolist()))
    assert len(list_shards(TableRef(table.dataset().store, str(path)))) == used
    fresh = read(spark, path)
    assert fresh.count() == len(expected)
    assert fresh.where("val = 'base' and id > 2").count() == 2
    assert [row.id for row in fresh.where("val = 'new'").orderBy("id").select("id").limit(3).collect()] == [
        5,
        6,
        7,
    ]
    assert read(spark, path, filter="id = 7").collect()[0].val == "new"
    assert read(spark, path, columns="x", with_row_id=True).where("_rowid is null").count() == 10
    # The table itself, and what pylance reads, is as it was.
    assert plain(path) == dict.fromkeys(range(10), "base")
    done = table.compactWal()
    assert done.sstables == 0
    done = table.compactWal(flush=True)
    assert (done.rows_upserted, done.rows_deleted, done.shards) == (10, 1, used)
    assert plain(path) == expected
    assert by_spark(spark, path) == expected
    assert table.collectWal(retentionHours=0).bytes_removed > 0
    assert by_spark(spark, path) == expected
    assert not list((path / "_wal_staging").rglob("*.arrow"))


def test_a_repeated_write_is_done_once(spark: SparkSession, path: Path) -> None:
    log = LanceTable.forPath(spark, str(path)).upsertLog()
    assert log.upsert(frame(spark, (1, "first"), (2, "first")), txnAppId="job", txnVersion=1) == 2
    assert log.upsert(frame(spark, (1, "second")), txnAppId="job", txnVersion=2) == 1
    assert log.upsert(frame(spark, (1, "first"), (2, "first")), txnAppId="job", txnVersion=1) == 0
    assert seen(path)[1] == "second"
    with pytest.raises(OptionError, match="must be set together"):
        log.upsert(frame(spark, (1, "x")), txnAppId="job")


def test_rows_that_do_not_fit(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    log = LanceTable.forPath(spark, str(path)).upsertLog()
    with pytest.raises(SchemaError, match="'y' is not in the table"):
        log.upsert(frame(spark, (1, "a")).withColumnRenamed("x", "y"))
    with pytest.raises(NullValueError, match="must not be null"):
        log.upsert(frame(spark, (1, "a")).withColumn("id", f.lit(None).cast("long")))
    assert seen(path) == dict.fromkeys(range(10), "base")
    spark_lance.write_dataset(rows((1, "a")), tmp_path / "plain")
    with pytest.raises(OptionError, match="has no MemWAL"):
        LanceTable.forPath(spark, str(tmp_path / "plain")).upsertLog().upsert(frame(spark, (1, "a")))
    assert {row.id for row in read(spark, tmp_path / "plain").collect()} == {1}


def test_sql_sees_fresh_rows_and_compacts(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "root"))
    session.sql("CREATE TABLE lance.t AS SELECT id, 'base' AS val FROM range(3)").collect()
    (place,) = (tmp_path / "root").glob("*t.lance")
    spark_lance.dataset(place).initialize_mem_wal(unsharded=True)
    LanceTable.forPath(session, str(place)).upsertLog().upsert(session.sql("SELECT 7L AS id, 'new' AS val"))
    assert session.sql(f"SELECT sum(id) AS s FROM lance.`{place}`").collect()[0].s == 3
    session.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{place}', fresh 'true')").collect()
    assert session.sql("SELECT sum(id) AS s, count(*) AS n FROM v").collect()[0].asDict() == {"s": 10, "n": 4}
    assert session.sql("SELECT val FROM v WHERE id = 7").collect()[0].val == "new"
    (row,) = session.sql("CALL lance.system.compact_wal('t', flush => true)").collect()
    assert (row.sstables, row.rows_upserted) == (1, 1)
    assert session.sql("SELECT sum(id) AS s FROM lance.t").collect()[0].s == 10


@needs_arrow
def test_a_stream_upserts(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", str(tmp_path / "checkpoint")
    source.mkdir()

    def run() -> None:
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(source))
        writer = stream.writeStream.format("lance").option("mode", "upsert").option("path", str(path))
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    expected: Rows = dict.fromkeys(range(10), "base")
    for number in range(3):
        pairs: Rows = dict.fromkeys(range(number * 3, number * 3 + 6), f"batch {number}")
        frame(spark, *pairs.items()).coalesce(1).write.mode("append").json(str(source))
        expected |= pairs
        run()
        assert by_spark(spark, path) == expected
    run()
    assert by_spark(spark, path) == expected
    assert spark_lance.dataset(path).version == 2, "a micro-batch made a version"
    assert spark_lance.dataset(path).wal.compact(flush=True).rows_upserted == 12
    assert plain(path) == expected
    (records,) = (path / "_wal_staging").iterdir()
    assert [file.name for file in records.iterdir()] == [f"{2:020d}.done"]


STREAM = st.StructType([st.StructField("id", st.LongType()), st.StructField("val", st.StringType())])


def micro_batch(path: Path, number: int, *parts: Rows, commit: bool = True) -> Any:
    """Write a micro-batch as Spark does: a writer for each task, another one for the commit."""
    options = write_options({"path": str(path), "mode": "upsert"})
    messages: list[Any] = []
    for part in parts:
        writer = upsert.UpsertStreamWriter(options, STREAM, "q")
        batch = pa.record_batch(
            {"id": list(part), "val": list(part.values())},
            schema=pa.schema([("id", pa.int64()), ("val", pa.string())]),
        )
        messages.append(writer.write(iter([batch])))
    committer = upsert.UpsertStreamWriter(options, STREAM, "q")
    if commit:
        committer.commit(messages, number)
    return committer, messages


@needs_arrow
def test_a_micro_batch_that_is_repeated_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_batch(path, 0, {1: "a", 2: "a"}, {3: "a"})
    # The process dies when two shards have the next micro-batch, and before that is recorded.
    real, calls = append_staged, []

    def dying(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(upsert, "append_staged", dying)
        with pytest.raises(KeyboardInterrupt):
            micro_batch(path, 1, dict.fromkeys(range(8), "b"))
    half = as_rows(spark_lance.dataset(path).fresh().to_table(["id", "val"]))
    changed = [key for key in range(8) if half[key] == "b"]
    assert 0 < len(changed) < 8
    # Somebody else changes a row of a shard that has the micro-batch: it must not come back.
    with spark_lance.dataset(path).upsert_log() as log:
        log.put({"id": [changed[0]], "val": ["later"]})
    micro_batch(path, 1, dict.fromkeys(range(8), "b"))
    expected: Rows = {key: "b" if key < 8 else "base" for key in range(10)}
    expected[changed[0]] = "later"
    result = spark_lance.dataset(path).fresh().to_table(["id", "val"])
    assert as_rows(result) == expected
    micro_batch(path, 1, dict.fromkeys(range(8), "b"))
    micro_batch(path, 0, {1: "a"})
    assert as_rows(spark_lance.dataset(path).fresh().to_table(["id", "val"])) == expected


@needs_arrow
def test_what_failed_tasks_leave_is_deleted(path: Path) -> None:
    committer, messages = micro_batch(path, 0, {1: "a"}, {2: "a"}, commit=False)
    assert list((path / "_wal_staging").rglob("*.arrow"))
    committer.abort([*messages, None], 0)
    assert not list((path / "_wal_staging").rglob("*.arrow"))
    result = spark_lance.dataset(path).fresh().to_table(["id", "val"])
    assert as_rows(result) == dict.fromkeys(range(10), "base")


def test_options_that_do_not_go_together() -> None:
    for name, value in (
        ("version", "1"),
        ("table", "files"),
        ("readChangeFeed", "true"),
        ("full_text_query", "x"),
    ):
        with pytest.raises(OptionError, match="cannot be combined with option 'fresh'"):
            read_options({"path": "p", "fresh": "true", name: value})
    with pytest.raises(OptionError, match="append or upsert"):
        write_options({"path": "p", "mode": "replace"})


def test_a_batch_does_not_append_what_was_to_be_upserted(path: Path) -> None:
    options = write_options({"path": str(path), "mode": "upsert"})
    with pytest.raises(OptionError, match="is for streams: LanceTable"):
        LanceWriter(options, STREAM, False)


def test_nearest_rows(spark: SparkSession, tmp_path: Path) -> None:
    vectors = pa.list_(pa.float32(), 2)
    schema = pa.schema([SCHEMA.field("id"), pa.field("v", vectors)])
    table = pa.table({"id": range(4), "v": pa.array([[i, 0] for i in range(4)], vectors)}, schema=schema)
    result = spark_lance.write_dataset(table, tmp_path / "v").initialize_mem_wal(unsharded=True)
    with result.upsert_log() as log:
        log.put({"id": [0, 9], "v": pa.array([[50, 0], [0.25, 0]], vectors)})
    values = read(spark, tmp_path / "v", nearest='{"column": "v", "q": [0, 0], "k": 2}').collect()
    assert [(row.id, row._distance) for row in values] == [(9, 0.0625), (1, 1.0)]
    assert lance.dataset(str(tmp_path / "v")).count_rows() == 4
