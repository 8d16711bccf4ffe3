"""LanceTable: making tables, telling what they are, going back to versions, tags, branches and clones."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark.sql.types as t
import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import (
    BranchNotFoundError,
    OptionError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TagNotFoundError,
    VersionNotFoundError,
)
from spark_lance.spark.table.builder import option_texts

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, stop), pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of three versions: 10 rows, 15 rows, 12 rows."""
    result = str(tmp_path / "t")
    lance.write_dataset(numbers(0, 10), result)
    lance.write_dataset(numbers(10, 15), result, mode="append")
    theirs: Any = lance.dataset(result)
    theirs.delete("id < 3")
    return result


def ids(path: str) -> list[int]:
    theirs: Any = lance.dataset(path)
    theirs.validate()
    result = sorted(theirs.to_table()["id"].to_pylist())
    assert result == sorted(spark_lance.dataset(path).to_table()["id"].to_pylist())
    return result


def test_finding_tables(spark: SparkSession, path: str, tmp_path: Path) -> None:
    assert LanceTable.isLanceTable(spark, path)
    assert not LanceTable.isLanceTable(spark, str(tmp_path / "none"))
    with pytest.raises(TableNotFoundError, match="no Lance table"):
        LanceTable.forPath(spark, str(tmp_path / "none"))
    with pytest.raises(OptionError, match="did you mean 'batch_size'"):
        LanceTable.forPath(spark, path, bathc_size=1)
    with pytest.raises(BranchNotFoundError):
        LanceTable.forPath(spark, path, branch="nope")
    memory = LanceTable.create(spark).location("memory://object/t").addColumn("id", "int").execute()
    assert memory.version == 1
    assert option_texts({"storage": {"key": "k", "use": True}, "n": 5}) == {
        "storage.key": "k",
        "storage.use": "True",
        "n": "5",
    }


def test_rows_under_an_alias(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path, columns="id")
    named = table.alias("t").toDF().where("t.id = 5")
    assert named.collect() == [(5,)]
    assert table.toDF().count() == 12
    assert table.toDF(1).count() == 10


def test_detail(spark: SparkSession, path: str) -> None:
    spark_lance.dataset(path).update_config({"owner": "etl"})
    (row,) = LanceTable.forPath(spark, path).detail().collect()
    size = sum(file.stat().st_size for file in Path(path, "data").iterdir())
    assert (row.format, row.location, row.numFiles, row.sizeInBytes) == ("lance", path, 2, size)
    assert (row.version, row.numVersions, row.numRows, row.numDeletedRows) == (4, 4, 12, 3)
    assert (row.properties, row.branch, row.stableRowIds) == ({"owner": "etl"}, None, False)
    assert row.tableFeatures == ["deletion files", "table config"]
    assert row.createdAt < row.lastModified
    assert row.partitionColumns == row.clusteringColumns == row.indices == row.primaryKey == []


def test_history(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    rows = table.history().select("version", "operation", "readVersion", "isBlindAppend").collect()
    assert rows == [
        (3, "DELETE", 2, False),
        (2, "WRITE", 1, True),
        (1, "CREATE TABLE AS SELECT", None, False),
    ]
    assert [row.version for row in table.history(2).collect()] == [3, 2]


def test_going_back(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    table.tags.create("two", 2)
    moments = [version["timestamp"] for version in spark_lance.dataset(path).versions()]
    (row,) = table.restoreToVersion(1).collect()
    assert ids(path) == list(range(10))
    assert (row.num_of_files_after_restore, row.num_removed_files, row.num_restored_files) == (1, 1, 0)
    (row,) = table.restoreToTag("two").collect()
    assert ids(path) == list(range(15))
    assert (row.num_of_files_after_restore, row.num_removed_files, row.num_restored_files) == (2, 0, 1)
    size = sum(file.stat().st_size for file in Path(path, "data").iterdir())
    assert row.table_size_after_restore == size
    table.restoreToTimestamp(moments[0])
    assert ids(path) == list(range(10))
    table.restoreToTimestamp(moments[2].isoformat())
    assert ids(path) == list(range(3, 15))
    time.sleep(0.001)
    table.restoreToTimestamp(datetime.now(timezone.utc))
    assert table.version == 8
    with pytest.raises(VersionNotFoundError):
        table.restoreToVersion(77)
    with pytest.raises(TagNotFoundError):
        table.restoreToTag("nope")
    with pytest.raises(VersionNotFoundError, match="no version at or before"):
        table.restoreToTimestamp("2001-01-01")
    assert table.version == 8


def test_tags(spark: SparkSession, path: str) -> None:
    tags = LanceTable.forPath(spark, path).tags
    tags.create("now")
    tags.create("first", 1)
    assert {name: tag["version"] for name, tag in tags.list().items()} == {"first": 1, "now": 3}
    tags.update("first", 2)
    assert tags.toDF().select("name", "version").orderBy("name").collect() == [("first", 2), ("now", 3)]
    theirs: Any = lance.dataset(path, version="first")
    assert theirs.version == 2
    tags.delete("now")
    assert list(tags.list()) == ["first"]


def test_branches(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    dev = table.branches.create("dev", 2)
    spark.range(100, 102).write.format("lance").mode("append").save(dev.path)
    assert (dev.toDF().count(), table.toDF().count()) == (17, 12)
    assert LanceTable.forPath(spark, path, branch="dev").detail().collect()[0].branch == "dev"
    assert LanceTable.forPath(spark, path, branch="main").version == 3
    assert table.toDF(("dev", None)).count() == 17
    assert table.branches.toDF().select("name", "parent_version").collect() == [("dev", 2)]
    theirs: Any = lance.dataset(path)
    assert theirs.checkout_version(("dev", None)).count_rows() == 17
    dev.tags.create("on-dev")
    with pytest.raises(OptionError, match="on the line dev, not on main"):
        table.restoreToTag("on-dev")
    LanceTable.forPath(spark, dev.path).optimize().executeCompaction()
    assert table.branches.get("dev").toDF().count() == 17
    table.tags.delete("on-dev")
    table.branches.delete("dev")
    assert table.branches.list() == {}


def test_clones(spark: SparkSession, path: str, tmp_path: Path) -> None:
    table = LanceTable.forPath(spark, path)
    shallow = table.clone(str(tmp_path / "shallow"), version=2)
    deep = table.clone(str(tmp_path / "deep"), isShallow=False)
    assert (ids(shallow.path), ids(deep.path)) == (list(range(15)), list(range(3, 15)))
    assert not list(Path(shallow.path).glob("data/*.lance"))
    assert list(Path(deep.path).glob("data/*.lance"))
    with pytest.raises(TableExistsError):
        table.clone(deep.path)
    shallow.optimize().executeCompaction()
    assert ids(shallow.path) == list(range(15))


def test_settings(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    table.setConfig({"a": "1", "b": "2"})
    table.setConfig({"a": None})
    assert table.config == {"b": "2"}


def test_a_table_with_everything(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rest = t.StructType().add("n", t.IntegerType(), False, {"comment": "a number"})
    builder = (
        LanceTable.create(spark, enable_stable_row_ids=True)
        .location(path)
        .addColumn("id", "bigint", comment="the key")
        .addColumn("part", t.StringType(), nullable=False)
        .addColumn("v", "array<float>", vectorSize=3, encoding={"structural-encoding": "fullzip"})
        .addColumn("text", "string", encoding={"compression": "zstd", "compression-level": 3})
        .addColumn("half", pa.list_(pa.float16(), 2))
        .addColumn("image", "binary", encoding={"blob": True})
        .addColumns(rest)
        .addColumns("d decimal(10,2) NOT NULL, st struct<x: int, y: array<string>>, m map<string, int>")
        .primaryKey("part", "id")
        .property("owner", "etl")
        .comment("all there is")
        .option("data_storage_version", "2.2")
    )
    table = builder.execute()
    theirs: Any = lance.dataset(path)
    schema = theirs.schema
    assert schema.metadata == {b"comment": b"all there is"}
    assert theirs.config() == {"owner": "etl"}
    assert schema.field("v").type == pa.list_(pa.float32(), 3)
    assert schema.field("half").type == pa.list_(pa.float16(), 2)
    assert spark_lance.dataset(path).lance_schema.field("image").is_blob
    assert schema.field("text").metadata == {
        b"lance-encoding:compression": b"zstd",
        b"lance-encoding:compression-level": b"3",
    }
    assert {name for name in schema.names if not schema.field(name).nullable} == {"id", "part", "n", "d"}
    assert schema.field("n").metadata == {b"comment": b"a number"}
    (row,) = table.detail().collect()
    assert (row.primaryKey, row.description, row.stableRowIds) == (["part", "id"], "all there is", True)
    values = spark.sql("SELECT 1L id, 'p' part, array(1f, 2f, 3f) v, 'x' text, 5 n, 1.25BD d")
    values.write.format("lance").mode("append").save(path)
    assert table.toDF().select("id", "v", "n").collect() == [(1, [1.0, 2.0, 3.0], 5)]
    assert lance.dataset(path).to_table(columns=["v", "d"]).num_rows == 1


def test_who_makes_a_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with pytest.raises(TableNotFoundError, match="createOrReplace"):
        LanceTable.replace(spark).location(path).addColumn("a", "int").execute()
    LanceTable.createIfNotExists(spark).location(path).addColumn("a", "int").property("k", "v").execute()
    LanceTable.createIfNotExists(spark).location(path).addColumn("b", "int").execute()
    assert spark_lance.dataset(path).schema.names == ["a"]
    with pytest.raises(TableExistsError, match="createOrReplace"):
        LanceTable.create(spark).location(path).addColumn("b", "int").execute()
    spark_lance.write_dataset(pa.table({"a": pa.array([1, 2], pa.int32())}), path, mode="append")
    replaced = LanceTable.replace(spark).location(path).addColumn("b", "string").property("l", "w").execute()
    assert (replaced.version, replaced.config, replaced.toDF().columns) == (3, {"k": "v", "l": "w"}, ["b"])
    assert replaced.toDF(2).count() == 2
    again = LanceTable.createOrReplace(spark).location(path).addColumn("c", "int").execute()
    assert (again.version, again.toDF().count()) == (4, 0)
    theirs: Any = lance.dataset(path)
    assert theirs.schema.names == ["c"]
    with pytest.raises(OptionError, match="cannot change"):
        LanceTable.replace(spark, data_storage_version="2.0").location(path).addColumn("c", "int").execute()
    with pytest.raises(OptionError, match="is only for new tables"):
        LanceTable.replace(spark, enable_stable_row_ids=True).location(path).addColumn("c", "int").execute()


def test_tables_that_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    def builder() -> Any:
        return LanceTable.create(spark).location(str(tmp_path / "t"))

    with pytest.raises(OptionError, match="location"):
        LanceTable.create(spark).addColumn("a", "int").execute()
    with pytest.raises(SchemaError, match="needs columns"):
        builder().execute()
    with pytest.raises(SchemaError, match="twice"):
        builder().addColumn("a", "int").addColumn("a", "int").execute()
    with pytest.raises(SchemaError, match="reserved"):
        builder().addColumn("_rowid", "int").execute()
    with pytest.raises(SchemaError, match="names b"):
        builder().addColumn("a", "int").primaryKey("b").execute()
    with pytest.raises(SchemaError, match="primary key"):
        builder().addColumn("a", "struct<x: int>").primaryKey("a").execute()
    with pytest.raises(SchemaError):
        builder().addColumn("a", "string", vectorSize=3)
    with pytest.raises(SchemaError, match="Arrow type"):
        builder().addColumn("a", pa.list_(pa.int8()), vectorSize=3)
    assert not (tmp_path / "t").exists()
