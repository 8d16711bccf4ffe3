"""DataFrames that were read from a table, written to tables; names alike to Spark; folders of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import LocationInUseError, SchemaError

QUERY = '{"column": "v", "q": [0, 0, 0, 0], "k": 3}'
TEXT = '{"query": "fox", "column": "t"}'


def make(path: Path) -> str:
    values = pa.array(np.arange(40, dtype=np.float32))
    rows = {
        "id": list(range(10)),
        "t": [f"fox {number}" for number in range(10)],
        "v": pa.FixedSizeListArray.from_arrays(values, 4),
    }
    spark_lance.write_dataset(pa.table(rows), path, enable_stable_row_ids=True, max_rows_per_file=4)
    return str(path)


def read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("lance").options(**texts).load(path)


def write(frame: DataFrame, path: str | Path, mode: str = "append", **options: Any) -> None:
    texts = {name: str(value) for name, value in options.items()}
    frame.write.format("lance").mode(mode).options(**texts).save(str(path))


def refused(words: str, frame: DataFrame, path: str | Path, mode: str = "append", **options: Any) -> None:
    with pytest.raises(Exception, match=words):
        write(frame, path, mode, **options)


def test_system_columns_and_feeds_are_not_written_back(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    rows = read(spark, path, with_row_id=True).select("id", "_rowid")
    refused("'_rowid' is not in the table: an option of the read adds it; leave it out", rows, path)
    refused("'_rowid' is reserved by Lance for what a read adds; leave", rows, tmp_path / "n")
    changes = read(spark, path, readChangeFeed=True, startingVersion=1)
    refused("'_change_type' is not in the table: a change feed adds it; leave it out", changes, path)
    refused("'_distance' is not in the table: a search adds it", read(spark, path, nearest=QUERY), path)
    fragments = read(spark, path, with_fragment_id=True)
    for frame, name in (
        (changes, "_change_type"),
        (read(spark, path, nearest=QUERY), "_distance"),
        (fragments, "_fragid"),
    ):
        refused(
            f"the table has no column '{name}', and .* adds it to what is read", frame, path, mergeSchema=True
        )
    table = LanceTable.forPath(spark, path)
    evolving = table.alias("t").merge(changes.alias("s"), "t.id = s.id").whenMatchedUpdateAll()
    with pytest.raises(SchemaError, match="no column '_change_type', and a change feed adds it"):
        evolving.withSchemaEvolution().execute()
    assert spark_lance.dataset(path).version == 1
    assert not (tmp_path / "n").exists()
    source = read(spark, path, with_row_id=True).withColumn("t", F.upper("t"))
    # As with Delta, `UPDATE *` takes the table's columns from the source, whatever else that has.
    table.alias("t").merge(source.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
    assert table.toDF().columns == ["id", "t", "v"]
    source = read(spark, path, with_row_id=True).withColumn("t", F.lower("t"))
    table.alias("t").merge(source.alias("s"), "t._rowid = s._rowid").whenMatchedUpdate(
        set={"t": "s.t"}
    ).execute()
    assert {row.t for row in read(spark, path).collect()} == {f"fox {number}" for number in range(10)}


def test_a_column_called_fragid_is_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    copy = str(tmp_path / "c")
    write(
        read(spark, path, with_fragment_id=True).select("id", (F.col("_fragid") + 40).alias("_fragid")), copy
    )
    values = {row.id: row._fragid for row in read(spark, copy).collect()}
    assert values == {number: 40 + number // 4 for number in range(10)}
    assert read(spark, copy).where("_fragid = 41").count() == 4
    assert read(spark, copy, filter="_fragid = 42").count() == 2
    LanceTable.forPath(spark, copy).delete("_fragid = 42")
    assert lance.dataset(copy).to_table().num_rows == read(spark, copy).count() == 8
    with pytest.raises(Exception, match="has a column '_fragid' of its own: leave out the option"):
        read(spark, copy, with_fragment_id=True).count()
    texts = str(tmp_path / "s")
    write(
        spark.createDataFrame([(number, f"f{9 - number}") for number in range(6)], "id long, _fragid string"),
        texts,
    )
    table = LanceTable.forPath(spark, texts)
    table.addColumns({"twice": "concat(_fragid, _fragid)"})
    table.updateColumns(spark.createDataFrame([("f9", "nine")], "_fragid string, twice string"), on="_fragid")
    table.optimize().executeSortBy("_fragid")
    assert [(row.id, row._fragid, row.twice) for row in table.toDF().collect()] == [
        (number, f"f{9 - number}", "nine" if number == 0 else f"f{9 - number}" * 2)
        for number in reversed(range(6))
    ]


def test_a_column_is_named_once(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    for options in ({}, {"nearest": QUERY}, {"readChangeFeed": True, "startingVersion": 0}):
        with pytest.raises(Exception, match="'id' and 'ID' are one column, 'id': name it once"):
            read(spark, path, columns="id,ID", **options)


def test_what_a_search_found_can_be_searched_again(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    copy = str(tmp_path / "c")
    result = (
        read(spark, path, nearest=QUERY).withColumn("_score", F.lit(7.0)).withColumn("query_id", F.lit(7))
    )
    vectors: dict[str, Any] = {"v.arrow.fixed-size-list.size": 4}
    write(result, copy, **vectors)
    table = LanceTable.forPath(spark, copy)
    expected = [(number, 14.0 + 0) for number in (0,)]
    again = read(spark, copy, nearest=QUERY)
    assert again.columns == ["id", "t", "v", "_score", "query_id", "_distance"]
    assert [(row.id, row._distance) for row in again.limit(1).collect()] == expected
    search = table.search([0.0] * 4, "v", 1, filter="id = 1")
    assert search.columns == again.columns
    assert [(row.id, row._distance) for row in search.collect()] == [(1, 126.0)]
    later = table.search([0.0] * 4, "v", 3, filter="id = 1", prefilter=False)
    assert [row.id for row in later.collect()] == [1]
    queries = spark.createDataFrame([(5, [0.0] * 4)], "id int, vector array<float>")
    batch = table.searchBatch(queries, "v", 1)
    assert batch.columns == ["query_id", "id", "t", "v", "_score", "_distance"]
    assert [(row.query_id, row.id) for row in batch.collect()] == [(5, 0)]
    words = table.textSearch("fox", "t", 3)
    assert words.columns == ["id", "t", "v", "_distance", "query_id", "_score"]
    assert all(0 < row._score < 7 for row in words.collect())
    assert sorted(read(spark, copy, full_text_query=TEXT).columns) == sorted(words.columns)


def test_two_indices_of_a_kind_give_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    dataset = spark_lance.dataset(path)
    for name in ("x", "y"):
        dataset = dataset.create_scalar_index("t", "INVERTED", name=name)
        dataset = dataset.create_index("v", "IVF_FLAT", name=f"v{name}", num_partitions=2)
        dataset = dataset.create_scalar_index("id", "BTREE", name=f"i{name}")
    table = LanceTable.forPath(spark, path)
    everything = list(range(10))
    assert sorted(row.id for row in table.textSearch("fox", "t", 50).collect()) == everything
    assert sorted(row.id for row in read(spark, path, full_text_query=TEXT).collect()) == everything
    assert sorted(row.id for row in table.search([0.0] * 4, "v", 50).collect()) == everything
    assert (
        sorted(r.id for r in read(spark, path, nearest=QUERY.replace("3}", "9}")).collect()) == everything[:9]
    )
    queries = spark.createDataFrame([(1, [0.0] * 4), (2, [1.0] * 4)], "id int, vector array<float>")
    batch = table.searchBatch(queries, "v", 50, nprobes=2).collect()
    assert sorted((r.query_id, r.id) for r in batch) == [(q, n) for q in (1, 2) for n in everything]
    assert read(spark, path).where("id >= 5").count() == 5


def test_names_that_differ_in_case_alone(spark: SparkSession, tmp_path: Path) -> None:
    two = spark.createDataFrame([(1, 2, 3)], "a int, b int, A int")
    words = "names that differ in case alone: a, A. Spark could select none of them: rename"
    for mode in ("append", "overwrite"):
        refused(words, two, tmp_path / "t", mode)
    nested = spark.sql("select array(named_struct('x', 1, 'X', 2)) s")
    refused("differ in case alone: s.x, s.X", nested, tmp_path / "t")
    builder = LanceTable.create(spark).location(str(tmp_path / "t"))
    with pytest.raises(SchemaError, match="differ in case alone: a, A"):
        builder.addColumn("a", "int").addColumn("A", "int").execute()
    assert not (tmp_path / "t").exists()
    write(two, tmp_path / "t", caseSensitive=True)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        row = read(spark, str(tmp_path / "t")).select("A", "a").collect()[0]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert tuple(row) == (3, 1)
    table = LanceTable.forPath(spark, make(tmp_path / "c"))
    for change in (
        lambda: table.addColumns({"ID": "id + 1"}),
        lambda: table.addColumns(spark.createDataFrame([(1, 2)], "id int, T int"), on="id"),
        lambda: table.addColumns(pa.schema([pa.field("V", pa.int32())])),
        lambda: table.addColumns({"n": "id", "N": "id"}),
        lambda: table.renameColumn("t", "Id"),
    ):
        with pytest.raises(SchemaError, match="differ in case alone"):
            change()
    table.renameColumn("id", "ID")
    assert table.toDF().columns[:2] == ["ID", "t"]
    refused("has no name", spark.createDataFrame([(1,)], "x int").toDF(""), tmp_path / "e")


def test_a_table_is_not_written_among_other_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    spark.range(3).write.parquet(str(folder))
    before = sorted(path.name for path in folder.iterdir())
    for mode in ("append", "overwrite"):
        refused("is not a Lance table and holds Parquet files .*empty folder", spark.range(3), folder, mode)
    for mode in ("create", "createOrReplace", "createIfNotExists"):
        builder = getattr(LanceTable, mode)(spark).location(str(folder)).addColumn("id", "bigint")
        with pytest.raises(LocationInUseError, match="Parquet files"):
            builder.execute()
    assert sorted(path.name for path in folder.iterdir()) == before
    assert spark.read.parquet(str(folder)).count() == 3
    (tmp_path / "t" / "_temporary").mkdir(parents=True)
    (tmp_path / "t" / "._SUCCESS.crc").write_bytes(b"")
    write(spark.range(3), tmp_path / "t")
    assert read(spark, str(tmp_path / "t")).count() == 3


def test_a_scheme_with_one_slash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused("dbfs:/x cannot be opened, for there is one slash", spark.range(3), "dbfs:/x")
    with pytest.raises(Exception, match="one slash behind dbfs"):
        read(spark, "dbfs:/x").count()
    write(spark.range(3), f"file:{tmp_path}/t")
    assert read(spark, str(tmp_path / "t")).count() == 3
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_extension_types_are_their_storage_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    tensors = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], kind.storage_type))
    rows = pa.table({"id": [1, 2], "v": tensors, "u": pa.array([b"0" * 16, None], pa.uuid())})
    path = str(tmp_path / "t")
    spark_lance.write_dataset(rows, path)
    write(read(spark, path), path)
    write(read(spark, path), path, "overwrite")
    result = spark_lance.dataset(path).to_table()
    assert result == pa.concat_tables([rows, rows]) == lance.dataset(path).to_table()
    near = read(spark, path, nearest='{"column": "v", "q": [5, 6, 7, 8], "k": 1}').collect()
    assert [(row.id, row.v, row.u) for row in near] == [(2, [5.0, 6.0, 7.0, 8.0], None)]
