"""SQL: temporary views for reading and writing, and what tables of Spark's catalog say instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import spark_lance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session that was not enabled, whatever other tests have done to all sessions."""
    own = spark.newSession()
    own.conf.unset("spark.sql.catalog.lance")
    return own


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two versions, in a folder whose name needs quoting in SQL."""
    path = str(tmp_path / 'it\'s a \\ "table" 100%20 ü')
    spark_lance.write_dataset(pa.table({"id": [1, 2, 3], "Größe": ["a", "b", None]}), path)
    spark_lance.write_dataset(pa.table({"id": [4], "Größe": ["d"]}), path, mode="append")
    return path


def literal(text: str) -> str:
    """Return a text as Spark SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def view(spark: SparkSession, name: str, path: str, **options: str) -> None:
    given = {"path": path, **options}
    listed = ", ".join(f"`{key}` {literal(value)}" for key, value in given.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING lance OPTIONS ({listed})")


def stored(path: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = spark_lance.dataset(path).to_table().to_pylist()
    return rows


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_paths_columns_and_conditions_may_need_quotes(spark: SparkSession, path: str) -> None:
    view(spark, "quoted", path, columns='["Größe", "id"]', filter="`Größe` <> 'it''s' and id < 4")
    rows = spark.sql("SELECT `Größe` FROM quoted WHERE `Größe` >= 'b' ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [("b",)]


def test_one_set_of_options_serves_reading_and_writing(spark: SparkSession, path: str) -> None:
    view(
        spark,
        "mixed",
        path,
        columns="id",
        batch_size="1",
        commit_message="from a view",
        max_rows_per_file="2",
    )
    spark.sql("INSERT INTO mixed SELECT id + 100 FROM mixed DISTRIBUTE BY 1")
    table = spark_lance.dataset(path)
    assert [row["id"] for row in stored(path)] == [1, 2, 3, 4, 101, 102, 103, 104]
    assert [fragment.physical_rows for fragment in table.get_fragments()] == [3, 1, 2, 2]
    (last,) = table.get_transactions(1)
    assert last is not None
    assert last.properties["__lance_commit_message"] == "from a view"
    assert "option 'columns' is a part of the table" in refusal(
        lambda: spark.sql("INSERT OVERWRITE mixed VALUES (1L)")
    )


def test_a_view_sees_the_version_at_its_making(spark: SparkSession, path: str) -> None:
    view(spark, "before", path)
    spark.sql("INSERT INTO before VALUES (5L, 'e')")
    assert spark.sql("SELECT count(*) FROM before").first() == (4,)
    view(spark, "before", path)
    assert spark.sql("SELECT count(*) FROM before").first() == (5,)


def test_insert_by_name_and_overwrite(spark: SparkSession, path: str) -> None:
    view(spark, "whole", path)
    spark.sql("INSERT INTO whole BY NAME SELECT 'five' AS `Größe`, 5L AS id")
    assert stored(path)[-1] == {"id": 5, "Größe": "five"}
    spark.sql("INSERT OVERWRITE whole VALUES (7L, 'seven')")
    assert stored(path) == [{"id": 7, "Größe": "seven"}]
    assert spark_lance.dataset(path).version == 4


def test_a_view_of_an_old_version_is_read_only(spark: SparkSession, path: str) -> None:
    view(spark, "old", path, version="1")
    assert spark.sql("SELECT count(*) FROM old").first() == (3,)
    assert "old version cannot be written" in refusal(lambda: spark.sql("INSERT INTO old VALUES (9L, 'x')"))
    view(spark, "past", path, table="history")
    message = refusal(lambda: spark.sql("INSERT INTO past SELECT * FROM past"))
    assert "metadata tables cannot be written to" in message
    assert len(stored(path)) == 4


def test_a_view_without_a_path_says_so(spark: SparkSession) -> None:
    message = refusal(lambda: spark.sql("CREATE OR REPLACE TEMPORARY VIEW none USING lance"))
    assert "option 'path' is missing" in message
    assert "Traceback" not in message


@pytest.fixture
def catalog_tables(spark: SparkSession, path: str) -> Iterator[str]:
    """Catalog tables `t_options` and `t_location`, made in the two ways; the path."""
    columns = "(id BIGINT, `Größe` STRING) USING lance"
    spark.sql(f"CREATE TABLE t_options {columns} OPTIONS (path {literal(path)})")
    spark.sql(f"CREATE TABLE t_location {columns} LOCATION '/some/where'")
    yield path
    for name in ("t_options", "t_location"):
        spark.sql(f"DROP TABLE {name}")


def test_every_way_in_which_spark_drops_options_says_what_to_do(
    spark: SparkSession, catalog_tables: str
) -> None:
    row = spark.range(1).selectExpr("id", "'x' AS `Größe`")
    for action in (
        lambda: spark.sql("SELECT * FROM t_options").collect(),
        lambda: spark.table("t_location").count(),
        lambda: spark.sql("INSERT INTO t_options VALUES (9L, 'x')"),
        lambda: spark.sql("INSERT OVERWRITE t_location VALUES (9L, 'x')"),
        lambda: row.write.option("path", catalog_tables).insertInto("t_options"),
        lambda: row.writeTo("t_options").append(),
        lambda: spark.sql(
            f"CREATE TABLE c USING lance OPTIONS (path {literal(catalog_tables)}) AS SELECT 1 a"
        ),
        lambda: row.write.format("lance").mode("append").saveAsTable("s"),
        lambda: row.writeTo("w").using("lance").create(),
    ):
        message = refusal(action)
        assert "CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')" in message
        assert "SELECT * FROM t WITH (path '...')" in message
    assert len(stored(catalog_tables)) == 4


def test_options_named_in_the_statement_reach_catalog_tables(
    spark: SparkSession, catalog_tables: str
) -> None:
    place = f"WITH (path {literal(catalog_tables)}, version '1')"
    assert spark.sql(f"SELECT sum(id) FROM t_options {place}").first() == (6,)
    spark.sql(f"INSERT INTO t_location WITH (path {literal(catalog_tables)}) VALUES (9L, 'x')")
    row = spark.range(10, 11).selectExpr("id", "'y' AS `Größe`")
    row.writeTo("t_options").option("path", catalog_tables).append()
    assert [row["id"] for row in stored(catalog_tables)][4:] == [9, 10]
    frame = spark.read.option("path", catalog_tables).option("columns", "id,Größe").table("t_options")
    assert frame.count() == 6


def test_save_as_table_writes_the_data_to_its_path(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hands the path to this write only. It cannot be told from save(), so it is done."""
    path = str(tmp_path / "t")
    spark.range(3).write.format("lance").mode("append").option("path", path).saveAsTable("saved")
    try:
        assert len(stored(path)) == 3
        assert "option 'path' is missing" in refusal(spark.table("saved").count)
        assert spark.sql(f"SELECT count(*) FROM saved WITH (path {literal(path)})").first() == (3,)
    finally:
        spark.sql("DROP TABLE saved")
    assert len(stored(path)) == 3


def test_what_spark_itself_refuses(spark: SparkSession, path: str) -> None:
    view(spark, "plain", path)
    # DELETE and UPDATE are refused, too, but only where no session of the JVM was enabled.
    for statement in (
        "SELECT * FROM plain VERSION AS OF 1",
        f"SELECT * FROM lance.`{path}`",
    ):
        refusal(partial(spark.sql, statement))
    assert len(stored(path)) == 4
