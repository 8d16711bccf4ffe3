"""The statements of the .sql files here give the answers that stand below them; see answers.py."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource

import spark_lance
from spark_lance.spark.sql import register as register_module
from tests.conftest import interpreted
from tests.spark.driver.test_threads import foreign_launcher, plainly
from tests.spark.sql.answers import ALL_FILES, reason_to_skip, wrong_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What later sessions are given beside the rest shows in one file: catalog, the parser's errors.
ALSO_LATER = ("tables",)
# Other quick tests do some of this: random statements have subqueries, test_lateral.py has searches for each
# row, and test_faces.py runs advice.
LONG = ("subqueries", "lateral_search", "hints", "advice", "recursion", "repeated_values")
SESSIONS = [
    pytest.param(
        kind,
        file,
        id=f"{kind}-{file.stem}",
        marks=pytest.mark.slow
        if file.stem in LONG or (kind == "made later" and file.stem not in ALSO_LATER)
        else (),
    )
    for kind in ("enabled", "made later")
    for file in ALL_FILES
]


def session_of(kind: str, spark: SparkSession, root: str) -> SparkSession:
    """Return a session with a catalog of its own."""
    if kind == "enabled":
        return spark_lance.enable(interpreted(spark.newSession()), root=root)
    spark_lance.enable(spark.newSession(), new_sessions=True, root=root)
    return spark.newSession()


@pytest.mark.parametrize(("kind", "file"), SESSIONS)
def test_statements(later_sessions: SparkSession, kind: str, file: Path, tmp_path: Path) -> None:
    if reason := reason_to_skip(file):
        pytest.skip(reason)
    text = file.read_text().replace("{root}", str(tmp_path / "paths"))
    assert not wrong_answers(session_of(kind, later_sessions, str(tmp_path / "root")), text)


def test_catalogs_have_roots_options_and_no_paths_if_told_so(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    for name in ("one", "two"):
        spark_lance.enable(session, catalog=name, root=str(tmp_path / name))
        session.sql(f"CREATE TABLE {name}.t AS SELECT '{name}' AS x").collect()
    assert session.sql("SELECT * FROM one.t UNION SELECT * FROM two.t").count() == 2
    path = f"{tmp_path}/one/t.lance"
    spark_lance.enable(session, catalog="closed", root=str(tmp_path / "three"))
    session.conf.set("spark.sql.catalog.closed.paths", "false")
    session.conf.set("spark.sql.catalog.closed.storage.secret", "do not tell")
    for sql in (f"SELECT * FROM closed.`{path}`", f"SELECT * FROM closed.`{path}` VERSION AS OF 1"):
        with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
            session.sql(sql).collect()
    with pytest.raises(PySparkException):
        session.sql(f"CREATE TABLE closed.`{tmp_path}/new` (a INT)").collect()
    with pytest.raises(PySparkException):
        session.sql(f"CALL closed.system.compact('{path}')").collect()
    assert not (tmp_path / "new").exists()
    session.sql("CREATE TABLE closed.t (a INT)").collect()
    for verb in ("DESCRIBE EXTENDED", "SHOW TBLPROPERTIES", "EXPLAIN EXTENDED TABLE"):
        assert "do not tell" not in str(session.sql(f"{verb} closed.t").collect())


def test_a_catalog_without_root_has_paths_only(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), catalog="bare")
    session.sql(f"CREATE TABLE bare.`{tmp_path}/t` AS SELECT 5 AS a").collect()
    assert session.table(f"bare.`{tmp_path}/t`").collect() == [(5,)]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        session.table("bare.t").collect()
    with pytest.raises(PySparkException, match="SCHEMA_NOT_FOUND") as caught:
        session.sql("CREATE TABLE bare.t (a INT)").collect()
    assert "set spark.sql.catalog.bare.root" in str(caught.value)


def test_a_catalog_in_use_takes_another_root(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), catalog="moving")
    session.sql(f"CREATE TABLE moving.`{tmp_path}/t` AS SELECT 5 AS a").collect()
    for place in ("one", "two"):
        spark_lance.enable(session, catalog="moving", root=str(tmp_path / place))
        session.sql(f"CREATE TABLE moving.t AS SELECT '{place}' AS place").collect()
    session.conf.set("spark.sql.catalog.moving.root", str(tmp_path / "one"))
    assert session.table("moving.t").collect() == [("one",)]
    session.sql("DELETE FROM moving.t").collect()
    session.conf.set("spark.sql.catalog.moving.root", str(tmp_path / "two"))
    assert session.table("moving.t").collect() == [("two",)]
    session.conf.unset("spark.sql.catalog.moving.root")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        session.table("moving.t").collect()


def test_what_is_written_in_place_of_other_statements_names_the_right_catalog(
    later_sessions: SparkSession, tmp_path: Path
) -> None:
    """The table's own catalog, whose procedure runs; else that of the newest call, in later sessions, too."""

    def told(session: SparkSession, table: str) -> str:
        with pytest.raises(PySparkException) as caught:
            session.sql(f"OPTIMIZE {table}")
        return str(caught.value).partition("CALL `")[2].partition("`")[0]

    def runs(session: SparkSession, table: str) -> bool:
        with pytest.raises(PySparkException) as caught:
            session.sql(f"OPTIMIZE {table}")
        return "there is no table" in str(caught.value)

    first = spark_lance.enable(
        later_sessions.newSession(), new_sessions=True, catalog="first", root=str(tmp_path)
    )
    assert (told(first, "t"), told(first, "other.t")) == ("first", "first")
    assert runs(first, "first.t")
    for name in ("second", "third"):
        spark_lance.enable(first, new_sessions=True, catalog=name, root=str(tmp_path))
        for session in (first, later_sessions.newSession()):
            assert [told(session, table) for table in ("t", "db.t")] == [name, name]
            assert all(runs(session, table) for table in ("first.t", "`first`.db.`t`", f"{name}.t"))


def test_the_writer_and_reader_of_frames_take_names(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.range(3).writeTo("lance.t").create()
    session.range(3, 5).writeTo("lance.t").append()
    session.range(5, 6).write.insertInto("lance.t")
    session.range(9).write.mode("ignore").saveAsTable("lance.t")
    assert sorted(row.id for row in session.table("lance.t").collect()) == [0, 1, 2, 3, 4, 5]
    session.range(7, 8).write.mode("overwrite").saveAsTable("lance.t")
    assert session.table("lance.t").collect() == [(7,)]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        session.range(1).write.saveAsTable("lance.t")


DEFINITIONS = (
    "(id BIGINT NOT NULL COMMENT 'it\\'s a key', part STRING NOT NULL, n DECIMAL(10,2)) "
    "COMMENT 'a \\'table\\'' "
    "TBLPROPERTIES ('primary_key' = 'part, id', 'my.own' = 'x\\'y', 'enable_stable_row_ids' = 'true')",
    "(v ARRAY<FLOAT>, h ARRAY<FLOAT>, b BINARY, j STRING, big STRING, z STRING, "
    "st STRUCT<f: FLOAT, w: ARRAY<DOUBLE>>) "
    "TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '4', 'h.arrow.fixed-size-list.size' = '2', "
    "'h.arrow.float16' = 'true', 'b.lance.encoding' = 'blob', 'j.lance.json' = 'true', "
    "'big.arrow.large_var_char' = 'true', 'z.lance.compression' = 'zstd', 'z.lance.compression-level' = '7', "
    "'st.f.arrow.float16' = 'true', 'st.w.arrow.fixed-size-list.size' = '3')",
    '(`a "q"` INT, `x``y` STRING, m MAP<STRING, INT>, l ARRAY<STRUCT<t: TIMESTAMP_NTZ, d: DATE>>) '
    "TBLPROPERTIES ('data_storage_version' = '2.1')",
)


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("is_like", [False, True])
def test_what_show_create_table_prints_and_create_table_like_make_an_equal_table(
    spark: SparkSession, tmp_path: Path, definition: str, is_like: bool
) -> None:
    if is_like and tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        pytest.skip("catalogs have CREATE TABLE LIKE from Spark 4.2 on")
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql(f"CREATE TABLE lance.one {definition}").collect()
    (message,) = session.sql("SHOW CREATE TABLE lance.one").collect()
    assert "LOCATION" not in message[0]
    like = "CREATE TABLE lance.two LIKE lance.one"
    session.sql(like if is_like else message[0].replace("lance.one", "lance.two", 1)).collect()
    (again,) = session.sql("SHOW CREATE TABLE lance.two").collect()
    assert again[0].replace("lance.two", "lance.one", 1) == message[0]
    one, two = (spark_lance.dataset(str(tmp_path / f"{name}.lance")) for name in ("one", "two"))
    assert one.schema.equals(two.schema, check_metadata=True)
    assert one.config() == two.config()
    assert one.manifest.file_version is two.manifest.file_version
    assert one.manifest.uses_stable_row_ids == two.manifest.uses_stable_row_ids


def test_a_table_made_from_a_query_has_its_key_and_comment(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql(
        "CREATE TABLE lance.t COMMENT 'said' TBLPROPERTIES ('primary_key' = 'b, a') "
        "AS SELECT 1 AS a, 'x' AS b"
    ).collect()
    properties = {row.key: row.value for row in session.sql("SHOW TBLPROPERTIES lance.t").collect()}
    assert properties["primary_key"] == "b, a"
    assert spark_lance.dataset(str(tmp_path / "t.lance")).schema.metadata == {b"comment": b"said"}
    assert "COMMENT 'said'" in session.sql("SHOW CREATE TABLE lance.t").collect()[0][0]


def test_a_root_that_cannot_be_written_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    session = spark_lance.enable(spark.newSession(), catalog="bad", root=str(tmp_path / "file"))
    for sql in ("NAMESPACE bad.n", "TABLE bad.t (a INT)", "TABLE bad.t AS SELECT 1 AS a"):
        with pytest.raises(PySparkException, match="is not a folder; let the root be a folder") as caught:
            session.sql(f"CREATE {sql}").collect()
        assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "file").read_text() == "no folder"
    # What the system says of a path has its place, and what to do.
    with pytest.raises(PySparkException, match=r"/proc/nope\S*: No such file or directory; name a place"):
        session.sql("CREATE TABLE bad.`/proc/nope/t` (a INT)").collect()


def test_other_formats_are_refused_but_the_one_that_writers_name_themselves(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.range(1).write.saveAsTable("lance.by_default")
    session.catalog.createTable("lance.made", schema=session.range(1).schema)
    assert session.catalog.tableExists("lance.by_default")
    assert not session.catalog.tableExists("lance.nope")
    with pytest.raises(PySparkException, match="none USING orc"):
        session.range(1).write.format("orc").saveAsTable("lance.other")
    with pytest.raises(PySparkException, match="none USING parquet"):
        session.range(1).writeTo("lance.other").using("parquet").create()
    assert {row.tableName for row in session.sql("SHOW TABLES IN lance").collect()} == {"by_default", "made"}


def test_a_branch_that_is_missing_is_no_table_and_its_name_is_none_for_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql("CREATE NAMESPACE lance.db").collect()
    for table in ("lance.t", "lance.db.t"):
        session.range(3).writeTo(table).create()
        session.sql(f"CALL lance.system.create_branch('{table}', 'dev')").collect()
        missing, there = f"{table[:-1]}`t@nope`", f"{table[:-1]}`t@dev`"
        for sql in (
            f"SELECT * FROM {missing}",
            f"SELECT * FROM {missing} VERSION AS OF 1",
            f"INSERT INTO {missing} VALUES (1)",
            f"DELETE FROM {missing}",
            f"DESCRIBE {missing}",
        ):
            with pytest.raises(PySparkException) as caught:
                session.sql(sql).collect()
            assert caught.value.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
            (first, *_) = str(caught.value).splitlines()
            assert "t@nope` (branch 'nope' of " in first
            assert "does not exist; there are: main, dev)" in first
        assert not session.catalog.tableExists(missing)
        assert session.catalog.tableExists(there)
        session.sql(f"DROP TABLE IF EXISTS {missing}").collect()
        session.sql(f"UNCACHE TABLE IF EXISTS {missing}").collect()
        for sql in (
            f"DROP TABLE {missing}",
            f"SELECT count(*) FROM vector_search('{missing}', 'v', array(1), 3)",
        ):
            with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
                session.sql(sql).collect()
        # A name that is mistyped makes no table of its own beside the branches.
        for sql, verb, branch in (
            (f"CREATE TABLE {missing} (a INT)", "create", "nope"),
            (f"CREATE TABLE IF NOT EXISTS {missing} (a INT)", "create", "nope"),
            (f"CREATE OR REPLACE TABLE {missing} AS SELECT 1 AS a", "create", "nope"),
            (f"CREATE OR REPLACE TABLE {there} AS SELECT 1 AS a", "create", "dev"),
            (f"DROP TABLE {there}", "drop", "dev"),
        ):
            with pytest.raises(PySparkException) as caught:
                session.sql(sql).collect()
            assert f"CALL lance.system.{verb}_branch('{table[6:]}', '{branch}')" in str(caught.value)
        with pytest.raises(PySparkException, match="create_branch"):
            session.range(1).write.saveAsTable(missing)
        assert session.table(there).count() == 3
    assert session.sql("SHOW TABLES IN lance").count() == session.sql("SHOW TABLES IN lance.db").count() == 1


def test_the_catalog_lists_tables_where_it_is_the_current_one(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql("CREATE NAMESPACE lance.db").collect()
    session.range(1).writeTo("lance.one").create()
    session.range(1).writeTo("lance.db.two").create()
    session.catalog.setCurrentCatalog("lance")

    def listed(*namespace: str) -> list[tuple[str, list[str] | None]]:
        return [(table.name, table.namespace) for table in session.catalog.listTables(*namespace)]

    assert listed() == [("one", [])]
    assert listed("db") == [("two", ["db"])]
    session.catalog.setCurrentDatabase("db")
    assert listed() == [("two", ["db"])]
    with pytest.raises(PySparkException, match="PARSE_EMPTY_STATEMENT"):
        session.table("")


def test_a_table_without_partitions_is_one_partition(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.range(3).writeTo("lance.t").create()
    session.range(1).writeTo("lance.t").overwritePartitions()
    assert session.table("lance.t").count() == 1


@pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"), reason="Spark 4.0 writes no streams into tables"
)
@pytest.mark.parametrize("in_driver", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_streams_take_names(spark: SparkSession, tmp_path: Path, in_driver: str) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.conf.set("spark.lance.planInDriver", in_driver)
    session.range(5).writeTo("lance.source").create()
    session.range(5, 7).writeTo("lance.source").append()
    rows = session.readStream.table("lance.source").writeStream.option("checkpointLocation", f"{tmp_path}/c")
    rows.trigger(availableNow=True).toTable("lance.target").awaitTermination()
    assert sorted(row.id for row in session.table("lance.target").collect()) == list(range(7))


def test_where_no_classes_are_taken_there_is_one_warning_and_no_catalog(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register_module._log_no_catalog.cache_clear()

    def work() -> None:
        with foreign_launcher(spark):
            other = spark.newSession()
            for _ in range(2):
                spark_lance.enable(other, catalog="missing", root=str(tmp_path))

    with caplog.at_level(logging.WARNING, logger=register_module.__name__):
        plainly(work)
    (record,) = [record for record in caplog.records if record.name == register_module.__name__]
    assert record.message.startswith("Lance has no SQL catalog here, only paths: ")
