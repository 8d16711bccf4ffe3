"""DELETE, UPDATE and MERGE as users write them, and with several sessions, threads and writers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import spark_lance
from spark_lance.spark.driver import java_classes
from spark_lance.spark.sql import register as register_module
from spark_lance.spark.sql import row_level
from spark_lance.spark.table import row_commits
from tests.conftest import ROOT
from tests.spark.driver.test_threads import foreign_launcher, plainly
from tests.spark.java_sources import changed_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A session with a catalog of its own, and a table of ten rows at version 1."""
    result = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    spark_lance.write_dataset(
        pa.table({"id": range(10), "v": [0] * 10}), str(tmp_path / "t.lance"), max_rows_per_file=5
    )
    return result


def rows(session: SparkSession, table: str = "lance.t") -> list[tuple[Any, ...]]:
    return sorted(map(tuple, session.table(table).collect()))


def test_slowly_changing_dimensions_of_type_2(session: SparkSession) -> None:
    # The shape in which dbt writes snapshots: rows to close and rows to insert in one source.
    session.sql(
        "CREATE TABLE lance.dim AS SELECT * FROM VALUES "
        "(1, 'Ann', DATE '2024-01-01', CAST(NULL AS DATE)), (2, 'Bob', DATE '2024-01-01', NULL) "
        "AS t(k, name, since, until)"
    )
    session.sql(
        "SELECT * FROM VALUES (1, 'Anna'), (2, 'Bob'), (3, 'Cid') AS t(k, name)"
    ).createOrReplaceTempView("now")
    session.sql(
        """
        MERGE INTO lance.dim AS d
        USING (
          SELECT k AS merge_key, k, name FROM now
          UNION ALL
          SELECT NULL, n.k, n.name FROM now n JOIN lance.dim d ON n.k = d.k
          WHERE d.until IS NULL AND n.name <> d.name
        ) AS s
        ON d.k = s.merge_key AND d.until IS NULL
        WHEN MATCHED AND d.name <> s.name THEN UPDATE SET until = DATE '2024-06-01'
        WHEN NOT MATCHED THEN INSERT (k, name, since, until) VALUES (s.k, s.name, DATE '2024-06-01', NULL)
        """
    )
    values = session.sql(
        "SELECT k, name, string(since), string(until) FROM lance.dim ORDER BY k, since"
    ).collect()
    assert list(map(tuple, values)) == [
        (1, "Ann", "2024-01-01", "2024-06-01"),
        (1, "Anna", "2024-06-01", None),
        (2, "Bob", "2024-01-01", None),
        (3, "Cid", "2024-06-01", None),
    ]


def test_an_upsert_that_drops_duplicates_of_its_source_first(session: SparkSession) -> None:
    session.sql(
        "SELECT * FROM VALUES (1, 5, 'old'), (1, 6, 'new'), (50, 1, 'x'), (50, 1, 'x') AS t(id, at, note)"
    ).createOrReplaceTempView("changes")
    merge = (
        "MERGE INTO lance.t USING {} AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.at "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.at)"
    )
    with pytest.raises(PySparkException, match="several rows of the source match"):
        session.sql(merge.format("changes"))
    assert rows(session) == [(i, 0) for i in range(10)]
    latest = "(SELECT id, max(at) AS at FROM changes GROUP BY id)"
    session.sql(merge.format(latest))
    assert [row for row in rows(session) if row[1]] == [(1, 6), (50, 1)]
    # Again: nothing new is inserted.
    session.sql(merge.format(latest))
    assert session.table("lance.t").count() == 11


def test_the_writer_of_frames_merges(session: SparkSession) -> None:
    source = session.range(8, 12).select("id", F.lit(7).alias("v")).alias("s")
    (
        source.mergeInto("lance.t", F.expr("t.id = s.id"))
        .whenMatched(F.expr("s.id = 8"))
        .delete()
        .whenMatched()
        .updateAll()
        .whenNotMatched()
        .insertAll()
        .whenNotMatchedBySource(F.expr("t.id < 2"))
        .update({"v": F.lit(1)})
        .merge()
    )
    assert rows(session) == [(0, 1), (1, 1), *((i, 0) for i in range(2, 8)), *((i, 7) for i in (9, 10, 11))]


def test_each_session_is_told_of_its_own_changes(
    session: SparkSession, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    call = "CALL lance.system.last_change()"
    with caplog.at_level(logging.INFO, logger=row_level.__name__):
        session.sql("UPDATE lance.t SET v = 1 WHERE id < 3")
    assert other.sql(call).collect() == []
    other.sql("DELETE FROM lance.t WHERE id = 9")
    mine, theirs = session.sql(call).collect()[0], other.sql(call).collect()[0]
    assert (mine.statement, mine.table, mine.version, mine.num_updated_rows) == ("UPDATE", "lance.t", 2, 3)
    assert (theirs.statement, theirs.version, theirs.num_deleted_rows) == ("DELETE", 3, 1)
    assert mine.seconds > 0
    (record,) = [record for record in caplog.records if record.name == row_level.__name__]
    assert record.message.startswith("UPDATE lance.t: 3 rows updated, 0 deleted, 0 inserted, version 2, ")


def test_a_view_of_another_version_or_of_a_part_is_not_changed(session: SparkSession, tmp_path: Path) -> None:
    session.sql("DELETE FROM lance.t WHERE id = 0")
    for reader, name in [
        (session.read.option("version", 1).table("lance.t"), "version"),
        (session.read.format("lance").option("filter", "id > 3").load(str(tmp_path / "t.lance")), "filter"),
    ]:
        reader.createOrReplaceTempView("seen")
        with pytest.raises(PySparkException, match=f"by its option '{name}': name the table itself"):
            session.sql("DELETE FROM seen")
    assert session.table("lance.t").count() == 9


def test_statements_return_counts(session: SparkSession, tmp_path: Path) -> None:
    affected = ["num_affected_rows"]
    of_merge = [*affected, "num_updated_rows", "num_deleted_rows", "num_inserted_rows"]
    path = f"lance.`{tmp_path}/t.lance`"
    source = "(SELECT id, 1 AS v FROM range(5, 12)) AS s"
    merge = (
        f"MERGE INTO lance.t USING {source} ON t.id = s.id WHEN MATCHED AND s.id = 5 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    session.read.format("lance").load(f"{tmp_path}/t.lance").createOrReplaceTempView("counted")
    for statement, columns, counts in (
        ("DELETE FROM lance.t WHERE id < 2", affected, (2,)),
        (f"DELETE FROM {path} WHERE id IN (SELECT 2L)", affected, (1,)),
        ("UPDATE counted SET v = v + 1 WHERE id > 7", affected, (2,)),
        (f"UPDATE {path} AS p SET v = 3 WHERE p.id > 70", affected, (0,)),
        (merge, of_merge, (7, 4, 1, 2)),
        ("WITH k AS (SELECT 3L AS id) DELETE FROM lance.t WHERE id IN (SELECT id FROM k)", affected, (1,)),
        ("DELETE FROM lance.t", affected, (7,)),
    ):
        result = session.sql(statement)
        assert (result.columns, result.collect()) == (columns, [counts]), statement
    results = [session.sql("UPDATE lance.t SET v = 1") for _ in range(2)]
    assert results[0].crossJoin(results[1]).collect() == [(0, 0)]


def test_explaining_a_statement_runs_nothing(session: SparkSession) -> None:
    result = session.sql(
        "EXPLAIN MERGE INTO lance.t USING (SELECT id FROM range(3)) s ON t.id = s.id WHEN MATCHED THEN DELETE"
    ).collect()
    assert "LanceRowLevel MERGE lance.t" in result[0][0]
    assert session.table("lance.t").count() == 10


@contextmanager
def other_writer(monkeypatch: pytest.MonkeyPatch, path: Path, *changes: str) -> Iterator[list[str]]:
    """Let another writer delete rows when a statement has planned, and before it commits."""
    waiting = list(changes)
    usual = row_commits.Attempt.run

    def meanwhile(self: row_commits.Attempt, job: Any) -> Any:
        result = usual(self, job)
        if waiting:
            spark_lance.dataset(str(path)).delete(waiting.pop(0))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(row_commits.Attempt, "run", meanwhile)
        yield waiting


@pytest.mark.parametrize("theirs", ["id = 9", "id = 1"], ids=["other rows", "the same rows"])
def test_what_others_commit_meanwhile_is_kept(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    with other_writer(monkeypatch, tmp_path / "t.lance", theirs) as waiting:
        session.sql("UPDATE lance.t SET v = id * 10 WHERE id IN (SELECT id FROM range(3))")
    assert waiting == []
    gone = int(theirs[-1])
    assert rows(session) == [(i, i * 10 if i < 3 else 0) for i in range(10) if i != gone]
    assert session.sql("CALL lance.system.last_change()").collect()[0].num_updated_rows == (
        3 if gone == 9 else 2
    )


def test_threads_of_a_session_change_one_table_at_once(session: SparkSession) -> None:
    def work(place: int) -> None:
        session.sql(f"UPDATE lance.t SET v = v + 1 WHERE id >= {place * 3} AND id < {place * 3 + 3}")
        session.sql(
            f"MERGE INTO lance.t USING (SELECT {100 + place}L AS id) s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 5)"
        )

    plainly(*[lambda place=place: work(place) for place in range(3)])
    assert rows(session) == [*((i, 1) for i in range(9)), (9, 0), *((100 + i, 5) for i in range(3))]


def test_sessions_change_one_table_at_once(
    session: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    other = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    ready = threading.Barrier(2)

    def work(own: SparkSession) -> None:
        ready.wait(60)
        own.sql("UPDATE lance.t SET v = v + 1")

    plainly(lambda: work(session), lambda: work(other))
    assert rows(session) == [(i, 2) for i in range(10)]


def test_a_name_of_a_session_that_was_made_later_is_changed(
    later_sessions: SparkSession, tmp_path: Path
) -> None:
    spark_lance.enable(later_sessions.newSession(), new_sessions=True, catalog="late", root=str(tmp_path))
    later = later_sessions.newSession()
    later.range(5).writeTo("late.t").create()
    later.sql("DELETE FROM late.t WHERE id IN (SELECT id FROM range(3))")
    assert rows(later, "late.t") == [(3,), (4,)]


def test_sessions_of_a_context_that_came_later_change_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that stops its session and makes another keeps its classes, not the rules of the first."""
    spark_lance.enable(spark.newSession())
    jvm: Any = spark._jvm
    # With extensions of its own, as the first session of a context has them.
    other = type(spark)(spark.sparkContext, jvm.org.apache.spark.sql.classic.SparkSession.builder().create())
    spark_lance.enable(other, root=str(tmp_path))
    other.range(5).selectExpr("id", "id AS v").writeTo("lance.t").create()
    other.sql("UPDATE lance.t SET v = 9 WHERE id = 1")
    other.sql("DELETE FROM lance.t WHERE id IN (SELECT id FROM range(3, 9))")
    assert rows(other) == [(0, 0), (1, 9), (2, 2)]


AGAIN = """
import sys
from spark_lance.spark.java import prepare_environment
prepare_environment()
import spark_lance
from pyspark.sql import SparkSession
for name in ("one", "two"):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = spark_lance.enable(builder.getOrCreate(), new_sessions=True, root=sys.argv[1])
    later = spark.newSession()
    later.sql(f"CREATE TABLE lance.{name} AS SELECT id, id AS v FROM range(5)")
    later.sql(f"UPDATE lance.{name} SET v = 9 WHERE id = 1")
    source = "(SELECT 2 AS id) s"
    later.sql(f"MERGE INTO lance.{name} t USING {source} ON t.id = s.id WHEN MATCHED THEN DELETE")
    print([tuple(row) for row in later.sql(f"SELECT * FROM lance.{name} ORDER BY id").collect()])
    call = later.sql(f"CALL lance.system.compact('{name}')")
    print(later.sql(f"OPTIMIZE lance.{name}").columns == call.columns)
    spark.stop()
"""


@pytest.mark.slow
def test_a_driver_that_stops_its_session_and_makes_another(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AGAIN, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    output = [line for line in done.stdout.splitlines() if line.startswith(("[(", "True", "False"))]
    assert output == ["[(0, 0), (1, 9), (3, 3), (4, 4)]", "True"] * 2


def test_a_unit_that_does_not_fit_leaves_its_statements_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "package org.lance.spark.rowlevel; class LanceRowLevel { Nope x; }"
    sources = changed_sources(tmp_path, {"org.lance.spark.rowlevel.LanceRowLevel": text})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # All sessions of the driver have the rules by now; those of another loader would stay in them, too.
    spark_lance.enable(spark.newSession())
    monkeypatch.setattr(java_classes, "FOLDER", sources)
    monkeypatch.setattr(register_module, "PARTS", register_module.PARTS[:1])
    jvm: Any = spark._jvm

    def work() -> None:
        with foreign_launcher(spark), warnings_of(jvm) as text:
            # A loader of its own, which has none of the classes that other tests have compiled.
            thread = jvm.java.lang.Thread.currentThread()
            gateway: Any = spark._sc._gateway
            none = gateway.new_array(jvm.java.net.URL, 0)
            parent = thread.getContextClassLoader()
            thread.setContextClassLoader(jvm.org.apache.spark.util.MutableURLClassLoader(none, parent))
            session = spark_lance.enable(spark.newSession(), catalog="partly", root=str(tmp_path))
            session.range(5).writeTo("partly.t").create()
            session.sql("DELETE FROM partly.t WHERE id = 3")
            for _ in range(2):
                with pytest.raises(PySparkException, match="UPDATE TABLE"):
                    session.sql("UPDATE partly.t SET id = 1")
            assert rows(session, "partly.t") == [(0,), (1,), (2,), (4,)]
            messages = [line for line in text.toString().splitlines() if "does not fit" in line]
            assert len(messages) == 1
            assert messages[0].startswith("LanceRowLevel does not fit this release of Spark")

    plainly(work)


@contextmanager
def warnings_of(jvm: Any) -> Iterator[Any]:
    """Collect what the Java side warns of."""
    log4j = jvm.org.apache.logging.log4j
    text = jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.newBuilder().setTarget(text).setName("test").build()
    appender.start()
    config = log4j.LogManager.getContext(False).getConfiguration()
    level = log4j.Level.WARN
    own = log4j.core.config.LoggerConfig("spark_lance", level, False)
    own.addAppender(appender, level, None)
    config.addLogger("spark_lance", own)
    log4j.LogManager.getContext(False).updateLoggers()
    try:
        yield text
    finally:
        config.removeLogger("spark_lance")
        log4j.LogManager.getContext(False).updateLoggers()


def test_where_spark_takes_no_rules_there_is_one_warning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register_module._warn_no_statements.cache_clear()

    # Statements are the last part.
    monkeypatch.setattr(register_module, "PARTS", (*register_module.PARTS[:-1], "spark_lance.Missing"))
    monkeypatch.setattr(register_module, "_STATEMENTS", "spark_lance.Missing")
    with caplog.at_level(logging.WARNING, logger=register_module.__name__):
        for _ in range(2):
            spark_lance.enable(spark.newSession(), catalog="named", root=str(tmp_path))
    (record,) = [record for record in caplog.records if record.name == register_module.__name__]
    assert record.message.startswith("UPDATE, MERGE and DELETE with subqueries are missing in SQL here: ")
