"""What must work with every supported release of Spark and Python: sources, sinks, changes, SQL, searches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance import LanceTable
from tests.compatibility.tables import DIM, rows

# With the release that all other tests run with, they test the same in more depth.
pytestmark = pytest.mark.slow

SCHEMA = (
    "id long, kind int, words string, marks array<string>, "
    "place struct<x: double, s: string>, vec array<float>"
)


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session that may be enabled and changed."""
    return spark.newSession()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


@pytest.fixture
def filled(spark: SparkSession, path: str) -> str:
    """A table that Spark wrote in two commits."""
    for first, count in ((0, 300), (300, 100)):
        frame = spark.createDataFrame(rows(first, count).to_pylist(), SCHEMA)
        writer = frame.write.format("lance").mode("append").option("enable_stable_row_ids", True)
        writer.option("vec.arrow.fixed-size-list.size", DIM).save(path)
    return path


def ids(frame: object) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())  # type: ignore[attr-defined]


def test_rows_come_back_as_they_were_written(spark: SparkSession, filled: str) -> None:
    read = spark.read.format("lance").load(filled)
    result = sorted((row.asDict(recursive=True) for row in read.collect()), key=lambda row: int(row["id"]))
    assert result == [*rows(0, 300).to_pylist(), *rows(300, 100).to_pylist()]
    assert spark.read.format("lance").option("version", 1).load(filled).count() == 300
    assert spark_lance.dataset(filled).count_rows() == 400
    read.limit(5).write.format("lance").mode("overwrite").save(filled)
    assert spark.read.format("lance").load(filled).count() == 5


def test_filters_aggregates_and_joins(spark: SparkSession, filled: str) -> None:
    spark_lance.enable(spark)
    read = spark.read.format("lance").load(filled)
    assert ids(read.where("id > 395")) == [396, 397, 398, 399]
    expected = [row["id"] for row in rows(0, 300).to_pylist() if row["kind"] is None]
    assert ids(read.where("kind is null and id < 300")) == expected
    assert read.where("place.x < 1").count() == 4
    assert read.groupBy("kind").count().count() == 8
    assert read.agg({"id": "max"}).first()[0] == 399  # type: ignore[index]
    assert read.join(spark.range(390, 410), "id").count() == 10


def test_merge_update_delete_and_upkeep(spark: SparkSession, filled: str) -> None:
    table = LanceTable.forPath(spark, filled).alias("t")
    source = spark.range(390, 410).selectExpr("id", "cast(1000 AS int) AS kind").alias("s")
    changed = {"kind": "s.kind"}
    merge = table.merge(source, "t.id = s.id").whenMatchedUpdate(set=changed)
    merge.whenNotMatchedInsert(values={"id": "s.id", **changed}).execute()
    table.update(set={"words": "'seen'"}, condition="id = 3")
    table.delete("id < 3")
    table.optimize().executeCompaction()
    read = spark.read.format("lance").load(filled)
    assert (read.count(), ids(read.where("kind = 1000"))) == (407, list(range(390, 410)))
    assert ids(read.where("words = 'seen'")) == [3]
    assert [row.operation for row in table.history(1).select("operation").collect()]
    table.restoreToVersion(1)
    assert spark.read.format("lance").load(filled).count() == 300


def test_sql_by_name(spark: SparkSession, tmp_path: Path) -> None:
    spark_lance.enable(spark, catalog="compat", root=str(tmp_path / "root"))
    spark.sql("CREATE NAMESPACE compat.db")
    spark.sql("CREATE TABLE compat.db.t (id BIGINT, name STRING)")
    spark.sql("INSERT INTO compat.db.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark.sql("UPDATE compat.db.t SET name = upper(name) WHERE id > 1")
    spark.sql("DELETE FROM compat.db.t WHERE id = 3")
    spark.sql(
        "MERGE INTO compat.db.t AS t USING (SELECT 2L AS id, 'x' AS name UNION ALL SELECT 4L, 'd') AS s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    values = spark.sql("SELECT * FROM compat.db.t ORDER BY id").collect()
    assert [tuple(row) for row in values] == [(1, "a"), (2, "x"), (4, "d")]
    assert spark.sql("SELECT count(*) FROM compat.db.t VERSION AS OF 2").first() == (3,)


def test_searches(spark: SparkSession, filled: str) -> None:
    table = LanceTable.forPath(spark, filled)
    table.createIndex("vec", "IVF_PQ", numPartitions=2, numSubVectors=2)
    table.createScalarIndex("words", "INVERTED")
    point = rows(0, 300)["vec"][7].as_py()
    assert ids(table.search(point, "vec", k=1, refineFactor=30)) == [7]
    request = json.dumps({"column": "vec", "q": point, "k": 1, "refine_factor": 30})
    assert ids(spark.read.format("lance").option("nearest", request).load(filled)) == [7]
    quinces = {row["id"] for row in rows(0, 300).to_pylist() if "quince" in row["words"].split()}
    assert quinces < set(ids(table.textSearch("quince", "words", k=400)))


def test_streams_in_and_out(spark: SparkSession, filled: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    writer = spark.readStream.format("lance").load(filled).select("id", "words").writeStream
    if spark.version < "4.1":  # it has no sinks for Python's streams, and our error says to write so

        def append(batch: DataFrame, number: int) -> None:
            once = batch.write.format("lance").option("txnAppId", "copy").option("txnVersion", number)
            once.mode("append").save(copy)

        writer = writer.foreachBatch(append)
    else:
        writer = writer.format("lance").option("path", copy)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert spark.read.format("lance").load(copy).count() == 400
    feed = spark.read.format("lance").option("readChangeFeed", True).option("startingVersion", 1)
    assert feed.load(filled).groupBy("_change_type").count().collect() == [("insert", 400)]
