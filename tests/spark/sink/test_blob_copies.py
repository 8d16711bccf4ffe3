"""Blob columns that Spark reads and writes: every way of writing copies the bytes."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark.sql.functions as F
import pyspark.sql.types as st
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance import LanceTable

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

BLOB = {"lance-encoding:blob": "true"}
Blobs = dict[int, bytes | None]


def make(path: str, rng: random.Random, version: Any, first: int = 0, count: int = 40) -> Blobs:
    """Make a table of several fragments, with deleted rows; return its blobs by id."""
    sizes = [0, 1, 1000, 70_000, 70_001, 5_000_000]
    weights = [4, 4, 8, 4, 4, 1]
    blobs: list[bytes | None] = [
        None if rng.random() < 0.2 else rng.randbytes(rng.choices(sizes, weights)[0]) for _ in range(count)
    ]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=BLOB)])
    ids = range(first, first + count)
    table = pa.table([pa.array(ids), pa.array(blobs, pa.large_binary())], schema=schema)
    lance.write_dataset(table, path, data_storage_version=version, max_rows_per_file=count // 3)
    lance.dataset(path).delete("id % 7 = 3")
    return {key: blob for key, blob in zip(ids, blobs, strict=True) if key % 7 != 3}


def load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("lance").options(**options).load(path)


def save(frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("lance").mode(mode).options(**options).save(path)


def bytes_of(path: str, column: str = "b") -> Blobs:
    """The blobs of a table by id, as this project reads them; pylance agrees."""
    ours, theirs = spark_lance.dataset(path), lance.dataset(path)
    ids = ours.to_table(["id"])["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    blobs = ours.take_blobs(column, indices=list(range(len(ids))))
    results = {key: None if blob is None else blob.readall() for key, blob in zip(ids, blobs, strict=True)}
    there = [place for place, key in enumerate(ids) if results[key]]
    by_pylance = theirs.take_blobs(column, indices=there) if there else []
    assert [blob and blob.readall() for blob in by_pylance] == [results[ids[place]] for place in there]
    return results


def refusal(spark: SparkSession, frame: DataFrame, path: str, mode: str = "append", **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        save(frame, path, mode, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "version", [*(pytest.param(old, marks=pytest.mark.slow) for old in ("2.0", "2.1")), "2.2"]
)
def test_a_table_over_itself_and_a_union_of_two(tmp_path: Path, spark: SparkSession, version: str) -> None:
    rng = random.Random(version)
    one, two, both = (str(tmp_path / name) for name in ("one", "two", "both"))
    first, second = make(one, rng, version), make(two, rng, version, 1000)
    save(load(spark, one), one, "overwrite")
    lance.dataset(one).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert bytes_of(one) == first
    left = load(spark, one).where("id % 3 != 0").withColumnRenamed("b", "c").select("c", "id")
    right = load(spark, two).select(F.col("b").alias("c"), "id").where(F.col("c").isNotNull())
    joined = left.union(right).repartition(3).join(spark.range(2000), "id").cache()
    joined.count()
    save(
        joined.select("id", F.col("c").alias("b")),
        both,
        data_storage_version=rng.choice(["2.0", "2.1", "2.2"]),
    )
    joined.unpersist()
    expected = {key: blob for key, blob in first.items() if key % 3 != 0}
    expected.update({key: blob for key, blob in second.items() if blob is not None})
    assert bytes_of(both) == expected
    # Rows that went through Python, and a column that has lost its metadata.
    frame = load(spark, two)
    rows = spark.createDataFrame(frame.collect(), frame.schema).select(
        (F.col("id") + 5000).alias("id"), F.expr("if(id < 0, null, b)").alias("b")
    )
    save(rows, both)
    assert bytes_of(both) == {**expected, **{key + 5000: blob for key, blob in second.items()}}


def test_sql_append_replace_and_merged_schemas(tmp_path: Path, spark: SparkSession) -> None:
    spark = spark.newSession()
    rng = random.Random(1)
    source, target, third = (str(tmp_path / name) for name in ("s", "t", "u"))
    blobs, others = make(source, rng, "2.2"), make(target, rng, "2.2", 1000)
    for name, path in (("blob_source_view", source), ("blob_target_view", target)):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING lance OPTIONS (path '{path}')")
    spark.sql("INSERT INTO blob_target_view SELECT id, b FROM blob_source_view WHERE id < 20")
    expected = {**others, **{key: blob for key, blob in blobs.items() if key < 20}}
    assert bytes_of(target) == expected
    save(load(spark, source).where("id between 5 and 9"), target, "overwrite", replaceWhere="id < 10")
    assert bytes_of(target) == {
        key: blob for key, blob in expected.items() if key > 9 or (key in blobs and key > 4)
    }
    ids = pa.table({"id": pa.array([5000, 5001])})
    for version in ("2.1", "2.2"):
        path = third + version
        lance.write_dataset(ids, path, data_storage_version=version)
        save(load(spark, source), path, mergeSchema="true")
        assert bytes_of(path) == {5000: None, 5001: None, **blobs}


def test_other_columns_of_targets(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random(2)
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    blobs = make(source, rng, "2.2")
    frame = load(spark, source)
    save(frame.limit(0), target, **{"b.lance.encoding": "binary"})
    assert lance.dataset(target).schema.field("b").type == pa.binary()
    save(frame, target)
    rows = lance.dataset(target).to_table().to_pylist()
    assert {row["id"]: row["b"] for row in rows} == blobs
    # An overwrite makes blobs of them again, unless it keeps the table's columns.
    save(frame, target, "overwrite", overwriteSchema="false")
    assert lance.dataset(target).schema.field("b").type == pa.binary()
    save(frame, target, "overwrite")
    assert bytes_of(target) == blobs
    assert "is blob, but" not in refusal(spark, frame, target, **{"b.lance.encoding": "binary"})
    # Plain structs, for whoever asks for them.
    plain = str(tmp_path / "plain")
    described = frame.withColumn("b", F.col("b").dropFields("blob_source"))
    save(described, plain)
    kind = lance.dataset(plain).schema.field("b").type
    assert [kind.field(i).name for i in range(kind.num_fields)][:3] == ["kind", "position", "size"]
    assert "blob_source" in refusal(spark, frame, plain)
    before = bytes_of(target)
    message = refusal(spark, described, target)
    assert "blob_handling=all_binary" in message
    assert "'b'" in message
    lost = frame.withColumn("b", F.col("b").withField("blob_source", F.lit(None).cast("string")))
    assert "blob_handling=all_binary" in refusal(spark, lost, target)
    assert bytes_of(target) == before


def test_a_source_that_was_cleaned_up(tmp_path: Path, spark: SparkSession) -> None:
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    make(source, random.Random(3), "2.1", count=9)
    frame = load(spark, source)
    remaining = spark.createDataFrame(frame.collect(), frame.schema)
    lance.write_dataset(pa.table({"id": [1]}), source, mode="overwrite")
    lance.dataset(source).cleanup_old_versions(timedelta(0), delete_unverified=True)
    message = refusal(spark, remaining, target)
    assert "cleaned up" in message
    assert "blob_handling=all_binary" in message
    assert not list(Path(target).rglob("*.lance"))


@pytest.mark.parametrize("version", [pytest.param("2.1", marks=pytest.mark.slow), "2.2"])
def test_merge_and_update(tmp_path: Path, spark: SparkSession, version: str) -> None:
    rng = random.Random(version)
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    new, old = make(source, rng, "2.2" if version == "2.1" else "2.1", 20), make(target, rng, version)
    table = LanceTable.forPath(spark, target)
    table.alias("t").merge(
        load(spark, source).alias("s"), "t.id = s.id"
    ).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    expected = {**old, **new}
    assert bytes_of(target) == expected
    # Bytes in one clause, descriptions in the other; and those of the table itself.
    (
        table.alias("t")
        .merge(load(spark, source).withColumn("id", F.col("id") + 20).alias("s"), "t.id = s.id")
        .whenMatchedUpdate("s.id % 2 = 0", set={"b": "s.b"})
        .whenMatchedUpdate(set={"b": F.expr("cast('bytes' as binary)")})
        .execute()
    )
    for key, blob in new.items():
        if key + 20 in expected:
            expected[key + 20] = blob if key % 2 == 0 else b"bytes"
    assert bytes_of(target) == expected
    table.update("id < 10", set={"b": "if(id = 1, null, b)"})
    table.update("id = 2", set={"b": "cast('two' as binary)"})
    expected[1], expected[2] = None, b"two"
    assert bytes_of(target) == expected
    # A column that only the source has.
    evolved = load(spark, source).select("id", F.col("b").alias("more"))
    merge = table.alias("t").merge(evolved.alias("s"), "t.id = s.id").withSchemaEvolution()
    merge.whenMatchedUpdateAll().execute()
    assert bytes_of(target) == expected
    assert bytes_of(target, "more") == {key: new.get(key) for key in expected}


def test_addition_of_columns_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    make(path, random.Random(4), "2.2", count=9)
    table = LanceTable.forPath(spark, path)
    with pytest.raises(spark_lance.errors.SchemaError, match="all_binary"):
        table.addColumns({"c": "b"})


def test_blobs_inside_of_columns(tmp_path: Path, spark: SparkSession) -> None:
    source, target, plain = (str(tmp_path / name) for name in ("s", "t", "p"))
    item = pa.field("item", pa.large_binary(), metadata=BLOB)
    inner = pa.struct([pa.field("n", pa.int32()), pa.field("b", pa.large_binary(), metadata=BLOB)])
    schema = pa.schema([("id", pa.int64()), ("s", inner), ("l", pa.list_(item))])
    rng = random.Random(5)
    rows = [
        {
            "id": i,
            "s": None if i % 5 == 4 else {"n": i, "b": None if i % 3 == 2 else rng.randbytes(i * 20_000)},
            "l": None if i % 7 == 6 else [rng.randbytes(100) for _ in range(i % 4)],
        }
        for i in range(20)
    ]
    lance.write_dataset(
        pa.Table.from_pylist(rows, schema), source, data_storage_version="2.2", max_rows_per_file=6
    )
    frame = load(spark, source)
    assert "blob_source:string" in frame.schema["l"].dataType.simpleString()
    save(frame.repartition(2), target)

    def content(frame: DataFrame) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]

    assert content(load(spark, source, blob_handling="all_binary")) == rows
    assert content(load(spark, target, blob_handling="all_binary")) == rows
    options = {"s.b.lance.encoding": "binary", "l.element.lance.encoding": "binary"}
    save(frame, plain, **options)
    assert lance.dataset(plain).to_table().sort_by("id").to_pylist() == rows


def test_streams_and_searches(tmp_path: Path, spark: SparkSession) -> None:
    source, target, result = (str(tmp_path / name) for name in ("s", "t", "f"))
    blobs = make(source, random.Random(6), "2.2")
    if hasattr(st, "TimeType"):
        stream = spark.readStream.format("lance").load(source)
        query = stream.writeStream.format("lance").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start(target).awaitTermination()
        assert bytes_of(target) == blobs
    vectors = pa.table({"id": list(blobs), "v": [[float(key), 0.0] for key in blobs]})
    vectors = vectors.cast(pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 2))]))
    lance.dataset(source).merge(vectors, "id")
    table = LanceTable.forPath(spark, source)
    save(table.search([0.0, 0.0], "v", k=5).select("id", "b"), result)
    nearest = load(spark, source, nearest='{"column": "v", "q": [40.0, 0.0], "k": 5}').select("id", "b")
    save(nearest, result)
    ordered = sorted(blobs)
    assert bytes_of(result) == {key: blobs[key] for key in (*ordered[:5], *ordered[-5:])}


def test_the_thresholds_of_a_column_stay(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    limits = {"lance-encoding:blob-inline-size-threshold": "10"}
    field = pa.field("b", pa.large_binary(), metadata={**BLOB, **limits})
    table = pa.table([pa.array([b"x" * 100], pa.large_binary())], schema=pa.schema([field]))
    spark_lance.write_dataset(table, path, data_storage_version="2.2")
    save(load(spark, path), path, "overwrite")
    assert [row["kind"] for row in lance.dataset(path).to_table()["b"].to_pylist()] == [1]
