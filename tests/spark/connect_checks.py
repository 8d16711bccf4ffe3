"""What is checked in Spark Connect sessions, and the program that checks it in a process of its own.

    python -m tests.spark.connect_checks REMOTE FOLDER NAME ...

prints one JSON object for each named check: its name, the seconds it took, and its error if it failed.
REMOTE is `local[2]`, for a server inside the same process, or `sc://...`. Every check gets a folder of its
own. A process has one kind of session, hence the process.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.driver.jobs import collect_answers, map_tasks
from spark_lance.spark.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHECKS", "LONG"]


WORDS = ["the red one", "a blue one", "green"]


def made(folder: Path, *, stable: bool = False) -> str:
    """Make a table of two versions, of 10 and of 15 rows, and return its path."""
    path = str(folder / "t")
    for start, stop in ((0, 10), (10, 15)):
        ids = range(start, stop)
        rows = pa.table(
            {"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids], "x": [i / 2 for i in ids]}
        )
        spark_lance.write_dataset(rows, path, mode="append", enable_stable_row_ids=stable)
    return path


def load(spark: SparkSession, path: str, **options: object) -> DataFrame:
    reader = spark.read.format("lance")
    return reader.options(**{key: str(value) for key, value in options.items()}).load(path)


def stored(path: str) -> list[int]:
    """Return the ids in a table, ascending."""
    result: list[int] = sorted(spark_lance.dataset(path).to_table(columns=["id"])["id"].to_pylist())
    return result


def refusal(action: Callable[[], object]) -> str:
    """Return the message with which something fails."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 (its text is what is looked at)
        return str(error)
    raise AssertionError("nothing was refused")


def check_reads(spark: SparkSession, folder: Path) -> None:
    path = made(folder)
    spark_lance.dataset(path, 1).tags.create("first")
    assert load(spark, path).count() == 15
    some = load(spark, path, filter="id > 7 and name like 'n%'", columns="x,id", version=1)
    assert [tuple(row) for row in some.collect()] == [(4.0, 8), (4.5, 9)]
    assert load(spark, path, tag="first").where("id % 2 = 1").agg({"x": "sum"}).collect()[0][0] == 12.5
    pinned = spark.read.format("lance").schema("id bigint").load(path)
    assert pinned.where("id >= 13").collect() == [(13,), (14,)]
    rows = load(spark, path, with_row_id="true", with_fragment_id="true", columns="id")
    assert sorted(tuple(row) for row in rows.where("id in (9, 10)").collect()) == [
        (9, 9, 0),
        (10, 1 << 32, 1),
    ]


def check_writes(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "t")
    rows = spark.range(6).selectExpr("id", "array(id * 1f, 2f) AS v", "named_struct('a', id) AS st")
    rows.write.format("lance").option("v.arrow.fixed-size-list.size", 2).mode("append").save(path)
    rows.select("id", "v").write.format("lance").option("commit_message", "again").mode("append").save(path)
    table = spark_lance.dataset(path)
    assert table.schema.field("v").type.list_size == 2
    assert table.to_table(columns=["st"])["st"].null_count == 6
    assert stored(path) == sorted([*range(6), *range(6)])
    rows.limit(2).write.format("lance").mode("overwrite").save(path)
    assert stored(path) == [0, 1]
    assert spark_lance.dataset(path).version == 3
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refusal(lambda: rows.write.format("lance").save(path))


def check_bytes_of_blobs(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "t")
    rows = spark.range(3).selectExpr("id", "cast(repeat(id, 1000) AS binary) AS b")
    rows.write.format("lance").option("b.lance.encoding", "blob").mode("append").save(path)
    spark_lance.enable(spark)
    parts = load(spark, path).selectExpr("id", "lance_blob(b, 998, 9) AS p", "length(lance_blob(b)) AS n")
    assert [(row.id, bytes(row.p), row.n) for row in parts.orderBy("id").collect()] == [
        (i, str(i).encode() * 2, 1000) for i in range(3)
    ]


def check_once(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "t")
    for start in (0, 100):
        writer = spark.range(start, start + 3).write.format("lance").mode("append")
        writer.option("txnAppId", "job").option("txnVersion", 1).save(path)
    assert stored(path) == [0, 1, 2]


def check_views(spark: SparkSession, folder: Path) -> None:
    path = made(folder)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW rows USING lance OPTIONS (path '{path}', columns 'id,name')")
    assert spark.sql("SELECT max(name) FROM rows WHERE id < 5").collect() == [("n4",)]
    spark.sql("INSERT INTO rows SELECT 100, 'more'")
    assert stored(path) == [*range(15), 100]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW whole USING lance OPTIONS (path '{path}')")
    spark.sql("INSERT OVERWRITE whole VALUES (1L, 'one', 0.5D)")
    assert stored(path) == [1]
    assert "option 'columns' is a part" in refusal(
        lambda: spark.sql("INSERT OVERWRITE rows VALUES (1L, 'a')")
    )


def check_metadata_tables(spark: SparkSession, folder: Path) -> None:
    path = made(folder)
    history = load(spark, path, table="history").select(
        "version", "operation", "operationMetrics.numOutputRows"
    )
    assert history.collect() == [(2, "WRITE", "5"), (1, "CREATE TABLE AS SELECT", "10")]
    fragments = load(spark, path, table="fragments", columns="rows,columns", filter="rows < 10")
    assert fragments.collect() == [(5, ["id", "name", "x"])]
    assert "metadata table 'nope' does not exist" in refusal(
        lambda: load(spark, path, table="nope").collect()
    )


def check_errors(spark: SparkSession, folder: Path) -> None:
    path = made(folder)
    for action, words in (
        (lambda: load(spark, str(folder / "none")).collect(), "no Lance table at"),
        (lambda: load(spark, path, version=7).collect(), "version 7 of"),
        (lambda: load(spark, path, columns="id,nope").collect(), "no column 'nope' in the table"),
        (lambda: load(spark, path, bathc_size=1).collect(), "did you mean 'batch_size'"),
        (lambda: spark.read.format("lance").load().collect(), "option 'path' is missing"),
        (lambda: load(spark, path, filter="id >").collect(), "ExpressionError"),
    ):
        message = refusal(action)
        assert words in message, message
        assert "Traceback" not in message, message


def check_enable(spark: SparkSession, folder: Path) -> None:
    assert spark_lance.enable(spark_lance.enable(spark)) is spark
    frame = load(spark, made(folder))
    assert frame.where("id > 3 and name <> 'n9'").count() == 10
    assert frame.where("id = 5").select("name").collect() == [("n5",)]
    assert frame.count() == 15


def check_jobs(spark: SparkSession, folder: Path) -> None:
    def total(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int]]:
        columns = [batch["id"].to_pylist() for batch in batches]
        yield sum(map(len, columns)), sum(map(sum, columns))

    answers = collect_answers(load(spark, made(folder), partition_bytes=1), total)
    assert [sum(parts) for parts in zip(*answers, strict=True)] == [15, 105]
    assert map_tasks(spark, [3, 4, 5], lambda task: {"squared": task * task}) == [
        {"squared": n * n} for n in (3, 4, 5)
    ]
    assert map_tasks(spark, [], lambda task: task) == []


def check_changes(spark: SparkSession, folder: Path) -> None:
    path = made(folder, stable=True)
    spark_lance.dataset(path).delete("id = 12")
    feed = load(spark, path, readChangeFeed="true", startingVersion=2)
    result = feed.groupBy("_commit_version", "_change_type").count().orderBy("_commit_version")
    assert result.collect() == [(2, "insert", 5), (3, "delete", 1)]


def check_streams(spark: SparkSession, folder: Path) -> None:
    source, sink = made(folder), str(folder / "sink")
    for start in (15, 20):
        stream = spark.readStream.format("lance").option("startingVersion", 1).load(source)
        writer = stream.writeStream.format("lance").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(sink)
        query.awaitTermination(120)
        assert query.exception() is None
        assert stored(sink) == list(range(start))
        more = pa.table({"id": range(15, 20), "name": ["more"] * 5, "x": [0.0] * 5})
        spark_lance.write_dataset(more, source, mode="append")


def check_partitions(spark: SparkSession, folder: Path) -> None:
    frame = spark.range(30).selectExpr("id", "id % 3 AS p")

    def write(mode: str, fields: str) -> None:
        frame.write.format("lance").mode(mode).option("partitionBy", fields).save(str(folder / "t"))

    for mode in ("append", "overwrite"):
        write(mode, "p, bucket(4, id)")
    declared = spark_lance.dataset(str(folder / "t")).config()["partition-fields"]
    assert [field["source"] for field in json.loads(declared)] == ["p", "id"]
    assert stored(str(folder / "t")) == list(range(30))
    assert "is partitioned by p, bucket(4, id)" in refusal(lambda: write("append", "id"))


def check_upserts(spark: SparkSession, folder: Path) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False, metadata=key), pa.field("val", pa.string())]
    )
    path, source = str(folder / "t"), str(folder / "source")
    rows = pa.table({"id": range(5), "val": ["base"] * 5}, schema=schema)
    spark_lance.write_dataset(rows, path).initialize_mem_wal(bucket_column="id", num_buckets=2)
    table = LanceTable.forPath(spark, path)
    new = spark.createDataFrame([(3, "new"), (7, "new")], "id long, val string")
    assert table.upsertLog().upsert(new) == 2
    assert table.upsertLog().delete(new.where("id = 3").select("id")) == 1
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        spark_lance.write_dataset(pa.table({"id": [1, 7], "val": ["stream"] * 2}), source)
        stream = spark.readStream.format("lance").option("startingVersion", 1).load(source)
        out = stream.writeStream.format("lance").option("mode", "upsert").option("path", path)
        out = out.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        query = out.start()
        query.awaitTermination(120)
        assert query.exception() is None
    else:
        table.upsertLog().upsert(spark.createDataFrame([(1, "stream"), (7, "stream")], "id long, val string"))
    results = {row.id: row.val for row in load(spark, path, fresh=True).collect()}
    assert results == {0: "base", 1: "stream", 2: "base", 4: "base", 7: "stream"}
    assert table.compactWal(flush=True).rows_deleted == 1
    assert {row.id: row.val for row in load(spark, path).collect()} == results


def check_which_version_a_frame_sees(spark: SparkSession, folder: Path) -> None:
    """A DataFrame of Connect is a plan: it sees one version while the server remembers its analysis."""
    path = made(folder)
    frame, fixed = load(spark, path), load(spark, path, version=2)
    assert (frame.count(), fixed.count()) == (15, 15)
    spark_lance.write_dataset(pa.table({"id": [15]}), path, mode="append")
    # Spark 4.0 remembers whole plans only, newer releases the parts of a plan, too.
    assert frame.where("id >= 0").count() == (16 if spark.version < "4.1" else 15)
    spark.conf.set("spark.connect.session.planCache.enabled", "false")
    try:
        assert (frame.count(), fixed.count()) == (16, 15)
    finally:
        spark.conf.unset("spark.connect.session.planCache.enabled")


def check_rows_of_a_table_object(spark: SparkSession, folder: Path) -> None:
    table = LanceTable.forPath(spark, made(folder))
    table.delete("id in (1, 3)")
    table.update("id = 2", {"name": "'two'"})
    source = spark.createDataFrame([(4, "four", 0.0), (50, "fifty", 1.0)], "id bigint, name string, x double")
    merge = table.alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    rows = {row.id: row.name for row in table.toDF().collect()}
    assert sorted(rows) == [0, 2, *range(4, 15), 50]
    assert (rows[2], rows[4], rows[50]) == ("two", "four", "fifty")


def check_columns_of_a_table_object(spark: SparkSession, folder: Path) -> None:
    table = LanceTable.forPath(spark, made(folder))
    table.addColumns({"twice": "id * 2"})
    table.renameColumn("name", "label")
    table.dropColumns("x")
    assert table.toDF().where("id = 7").collect() == [(7, "n7", 14)]

    def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"length": pa.array(map(len, batch["label"].to_pylist()), pa.int32())})

    table.addColumns(longer, inputs=["label"], schema="length int")
    table.addColumns(spark.createDataFrame([(7, "seven")], "id bigint, word string"), on="id")
    table.updateColumns({"twice": "twice + 1"}, where="id > 6")
    table.alterColumn("length", type="bigint", comment="of the label")
    rows = table.toDF().where("id in (6, 7)").orderBy("id")
    assert rows.collect() == [(6, "n6", 12, 2, None), (7, "n7", 15, 2, "seven")]
    assert rows.dtypes[3] == ("length", "bigint")
    assert "one row at a time" in refusal(lambda: table.addColumns({"w": "sum(id)"}))
    assert "exists already" in refusal(lambda: table.addColumns({"id": "1"}))
    short = refusal(lambda: table.addColumns(lambda b: b.slice(1), inputs=["id"], schema="w bigint"))
    assert short in ("9 new values came back for 10 rows", "4 new values came back for 5 rows")


def check_clustering_of_a_table_object(spark: SparkSession, folder: Path) -> None:
    builder = LanceTable.create(spark, enable_stable_row_ids=True).location(str(folder / "t"))
    table = builder.addColumns("id bigint NOT NULL, name string, x double").primaryKey("id").execute()
    rows = spark.range(40).selectExpr("id", "concat('n', pmod(id * 7, 10)) AS name", "id / 2 AS x")
    rows.write.format("lance").mode("append").save(table.path)
    table.optimize().where("id >= 0").executeSortBy("name", "id")
    result = spark_lance.dataset(table.path).to_table()
    keys = list(zip(result["name"].to_pylist(), result["id"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    table.optimize(targetRowsPerFragment=10).executeZOrderBy("name", "x")
    assert stored(table.path) == list(range(40))
    assert len(spark_lance.dataset(table.path).get_fragments()) >= 4


def check_upkeep_of_a_table_object(spark: SparkSession, folder: Path) -> None:
    table = LanceTable.forPath(spark, made(folder))
    table.tags.create("whole")
    table.optimize().executeCompaction()
    assert load(spark, table.path, table="fragments").count() == 1
    assert table.history(1).select("operation").collect() == [("OPTIMIZE",)]
    assert table.detail().select("format", "numRows").collect() == [("lance", 15)]
    table.delete("id > 3")
    table.restoreToTag("whole")
    assert table.toDF().count() == 15
    branch = table.branches.create("dev")
    spark.range(3).write.format("lance").mode("append").save(branch.path)
    assert (branch.toDF().count(), table.toDF().count()) == (18, 15)
    assert table.vacuum(dryRun=True).count() >= 0


def check_indices_of_a_table_object(spark: SparkSession, folder: Path) -> None:
    vectors = [[float(i), 0.5] for i in range(300)]
    rows = pa.table({"id": range(300), "v": pa.array(vectors, pa.list_(pa.float32(), 2)), "t": WORDS * 100})
    spark_lance.write_dataset(rows, folder / "t", max_rows_per_file=120)
    table = LanceTable.forPath(spark, str(folder / "t"))
    table.createIndex("v", "IVF_FLAT", numPartitions=3)
    table.createScalarIndex("id", "BTREE")
    table.createScalarIndex("t", "INVERTED")
    covered = {row.name: (row.type, row.rows_not_indexed) for row in table.indices().collect()}
    assert covered["v_idx"] == ("IVF_FLAT", 0)
    assert covered["id_idx"] == ("BTree", 0)
    result = table.search(vectors[41], "v", 2, filter="id > 40", columns=["id"], nprobes=3)
    assert [row.id for row in result.collect()] == [41, 42]
    queries = spark.createDataFrame([(i, vectors[i]) for i in (3, 200)], "id long, vector array<double>")
    best = table.searchBatch(queries, "v", 1, nprobes=3, columns=["id"])
    assert sorted((row.query_id, row.id) for row in best.collect()) == [(3, 3), (200, 200)]
    words = table.textSearch("red", "t", 5, columns=["id"]).collect()
    assert [row.id % 3 for row in words] == [0] * 5
    nearest = json.dumps({"column": "v", "q": vectors[41], "k": 2, "nprobes": 3})
    near = load(spark, table.path, nearest=nearest, filter="id in (7, 41, 250)")
    assert [row.id for row in near.collect()] == [41, 7]
    assert load(spark, table.path, filter="id in (7, 299)").count() == 2


def check_types(spark: SparkSession, folder: Path) -> None:
    rows = spark.sql(
        "SELECT 1Y a, 2S b, 3 c, 4L d, 1.5F e, 2.5D f, 1.25BD g, 'x' h, X'00ff' i, true j, "
        "DATE'2026-01-31' k, TIMESTAMP'2026-01-31 12:00:00Z' l, TIMESTAMP_NTZ'2026-01-31 12:00:00' m, "
        "array(1, null) n, map('k', 1) o, named_struct('p', array('q')) p, "
        "INTERVAL '1 2:03:04' DAY TO SECOND q, "
        "parse_json('{\"a\": 1}') r"
    )
    path = str(folder / "t")
    rows.write.format("lance").mode("append").save(path)
    frame = load(spark, path)
    shown = "* EXCEPT (r)", "to_json(r) AS r"
    assert frame.selectExpr(*shown).collect() == rows.selectExpr(*shown).collect()
    assert frame.dtypes == rows.dtypes


CHECKS = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}

# Those that take many jobs.
LONG = {
    "types",
    "bytes_of_blobs",
    "which_version_a_frame_sees",
    "upserts",
    "once",
    "changes",
    "streams",
    "metadata_tables",
    "views",
    "jobs",
}
LONG |= {f"{name}_of_a_table_object" for name in ("rows", "columns", "upkeep", "clustering", "indices")}


def tell(name: str, start: float, error: str | None) -> None:
    """Print what came of a check."""
    results = {"name": name, "seconds": time.monotonic() - start, "error": error}
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()


def main(remote: str, folder: Path, names: list[str]) -> None:
    """Run checks and print what comes of them."""
    prepare_environment()
    from pyspark.sql import SparkSession

    start = time.monotonic()
    builder = SparkSession.builder.remote(remote)
    if remote.startswith("local"):
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Spark's default, but not where it is being tested.
    spark.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true")
    tell("start", start, None)
    for name in names:
        (folder / name).mkdir()
        start, error = time.monotonic(), None
        try:
            CHECKS[name](spark, folder / name)
        except Exception as problem:  # noqa: BLE001 (told to the caller)
            place = traceback.extract_tb(problem.__traceback__)[1]
            error = f"line {place.lineno}: {type(problem).__name__}: {str(problem)[:2000]}"
        tell(name, start, error)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
