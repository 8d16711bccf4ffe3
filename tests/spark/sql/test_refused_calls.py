"""A refused statement changes nothing, and its error has the statement to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import OptionError
from spark_lance.io.local import LocalStore
from spark_lance.table.maintenance.retention import MAX_REF_AGE
from tests.conftest import interpreted

DELTA_JOB = "spark.databricks.delta.write.txnAppId"


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    root = tmp_path_factory.mktemp("refused")
    session = spark_lance.enable(interpreted(spark.newSession()), root=str(root))
    session.sql("USE lance")
    return session


class Run:
    """Runs statements on the tables of a session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(sql).collect()]

    def refused(self, sql: str, message: str) -> None:
        with pytest.raises(PySparkException) as caught:
            self(sql)
        assert message in str(caught.value)

    def table(self, name: str) -> LanceTable:
        return LanceTable.forName(self.session, name)

    def refs(self, name: str) -> set[str]:
        return {*self.table(name).tags.list(), *self.table(name).branches.list()}


@pytest.fixture
def run(session: SparkSession) -> Run:
    return Run(session)


def test_refused_expiry_keeps_branches_and_tags(run: Run) -> None:
    run("CREATE OR REPLACE TABLE e AS SELECT 1 AS id")
    run("INSERT INTO e VALUES (2)")
    run("CALL lance.system.create_tag('e', 'old', '1')")
    run("CALL lance.system.create_branch('e', 'dev')")
    run(f"ALTER TABLE e SET TBLPROPERTIES ('{MAX_REF_AGE}' = '0')")
    expire, vacuum = "CALL lance.system.expire_snapshots('e', ", "CALL lance.system.vacuum('e', "
    run.refused(f"{expire}snapshot_ids => array(99))", "snapshot 99 does not exist (available: ")
    run.refused(f"{expire}snapshot_ids => array(3))", "is the newest and cannot expire")
    run.refused(f"{expire}older_than => current_timestamp())", "allow_short_retention => true")
    run.refused(f"{expire}retain_last => 0)", "retain_last is a number of snapshots, 1 or more, not 0")
    run.refused(f"{vacuum}retention_hours => 1)", "allow_short_retention => true")
    run.refused(f"{vacuum}retention_hours => -1)", "retention_hours")
    assert run.refs("e") == {"old", "dev"}
    run("CALL lance.system.expire_snapshots('e')")
    assert run.refs("e") == set()


def test_refused_publication_changes_nothing(run: Run) -> None:
    run("CREATE OR REPLACE TABLE p AS SELECT 1 AS id")
    run("ALTER TABLE p CREATE BRANCH `wap-1`")
    run("INSERT INTO p.`branch_wap-1` VALUES (2)")
    run.table("p").tags.create("kept", ("wap-1", 2))
    run.refused("CALL lance.system.publish_changes('p', '1')", "in use by tag kept")
    assert run("SELECT * FROM p") == [(1,)]


def test_refused_clone_makes_no_table(run: Run) -> None:
    run("CREATE OR REPLACE TABLE source AS SELECT 1 AS id")
    for name, problem in (
        ("partition-fields", "is set by PARTITIONED BY"),
        ("enable_stable_row_ids", "says how the table was made"),
    ):
        run.refused(f"CREATE TABLE copy SHALLOW CLONE source TBLPROPERTIES ('{name}' = 'true')", problem)
        assert not run("SHOW TABLES LIKE 'copy'")


def test_refused_wal_compaction_changes_nothing(run: Run) -> None:
    run("CREATE OR REPLACE TABLE wal AS SELECT 1 AS id")
    run.refused(
        "CALL lance.system.compact_wal('wal', retention_hours => -1)", "retention_hours must be 0 or more"
    )


RETENTIONS = (
    ("retain => '30'", "not '30': write '30 DAYS'"),
    ("retain => '30 DAYS or so'", "not '30 DAYS or so': write '30 DAYS'"),
    ("retain => '3 SNAPSHOTS'", "not '3 SNAPSHOTS': write '30 DAYS'"),
    ("retain => 'x DAYS'", "not 'x DAYS': write '30 DAYS'"),
    ("retain_versions => '3'", "not '3': write '3 SNAPSHOTS 2 DAYS'"),
    ("retain_versions => '3 SNAPSHOTS 2'", "not '3 SNAPSHOTS 2': write"),
    ("retain_versions => '3 SNAPSHOTS 4 SNAPSHOTS'", "not '3 SNAPSHOTS 4 SNAPSHOTS': write"),
    ("retain_versions => '2 DAYS 3 HOURS'", "not '2 DAYS 3 HOURS': write"),
)


def test_wrong_retentions_are_refused(run: Run) -> None:
    run("CREATE OR REPLACE TABLE r AS SELECT 1 AS id")
    for argument, problem in RETENTIONS:
        run.refused(f"CALL lance.system.create_branch('r', 'dev', {argument})", problem)
    assert run.refs("r") == set()
    arguments = "retain => '1 HOUR', retain_versions => '2 days 3 Snapshots'"
    run(f"CALL lance.system.create_branch('r', 'dev', {arguments})")
    query = "SELECT max_reference_age_in_ms, min_snapshots_to_keep, max_snapshot_age_in_ms FROM lance.r.refs"
    assert run(f"{query} WHERE name = 'dev'") == [(3_600_000, 3, 172_800_000)]


def test_a_failed_replacement_keeps_the_branch(run: Run) -> None:
    run("CREATE OR REPLACE TABLE b AS SELECT 1 AS id")
    run("ALTER TABLE b CREATE BRANCH dev")
    run("INSERT INTO b.branch_dev VALUES (2)")
    run.refused("ALTER TABLE b REPLACE BRANCH dev AS OF VERSION 9", "version 9")
    run.refused(
        "CALL lance.system.replace_branch('`b@dev`', 'dev')", "cannot be replaced by a version of its own"
    )
    put = LocalStore.put_if_absent

    def refuse(store: LocalStore, path: str, data: bytes, **more: Any) -> None:
        if "/tree/dev/_versions" in path:
            raise OSError(28, "No space left on device")
        put(store, path, data, **more)

    with mock.patch.object(LocalStore, "put_if_absent", refuse):
        run.refused("ALTER TABLE b REPLACE BRANCH dev", "No space left")
    assert sorted(run("SELECT * FROM b.branch_dev")) == [(1,), (2,)]
    assert run("SELECT * FROM b VERSION AS OF 'dev' ORDER BY id") == [(1,), (2,)]
    run("INSERT INTO b.branch_dev VALUES (3)")
    run("ALTER TABLE b REPLACE BRANCH dev")
    assert run("SELECT * FROM b.branch_dev") == [(1,)]


@pytest.fixture
def escaped(session: SparkSession) -> Iterator[None]:
    name = "spark.sql.parser.escapedStringLiterals"
    session.conf.set(name, "true")
    yield
    session.conf.unset(name)


def properties(run: Run, name: str) -> dict[str, str]:
    return {key: value for key, value in run(f"SHOW TBLPROPERTIES {name}") if key in ("a", "b", "c")}


def check_properties(run: Run) -> None:
    run("DROP TABLE IF EXISTS cloned")
    texts = r"""TBLPROPERTIES ('a' = 'x\\y\'z', 'b' = "it's", 'c' = 'a\tb')"""
    run(f"CREATE OR REPLACE TABLE made {texts} AS SELECT 1 AS id")
    run(f"CREATE TABLE cloned SHALLOW CLONE made {texts}")
    assert properties(run, "cloned") == properties(run, "made") == {"a": "x\\y'z", "b": "it's", "c": "a\tb"}


def test_properties_of_clones_have_the_escapes_of_spark(run: Run) -> None:
    check_properties(run)


def test_statements_with_quotes_and_literals_without_escapes(run: Run, escaped: None) -> None:
    check_properties(run)
    run("CREATE OR REPLACE TABLE q AS SELECT 'a' AS v")
    run("OPTIMIZE q WHERE v = 'a'")
    run("ALTER TABLE q ADD CONSTRAINT known CHECK (v IN ('a', 'b'))")
    run.refused("INSERT INTO q VALUES ('c')", "known")


def test_net_changes_of_maps_and_variants(run: Run) -> None:
    call = "CALL lance.system.create_changelog_view('{}', net_changes => true)"
    run("CREATE OR REPLACE TABLE maps AS SELECT 1 AS id, map('a', 1, 'b', 2) AS m")
    run("INSERT INTO maps VALUES (2, map('b', 2))")
    run("DELETE FROM maps WHERE id = 2")
    run(call.format("maps"))
    assert run("SELECT id, _change_type FROM maps_changes") == [(1, "INSERT")]
    run("CREATE OR REPLACE TABLE variants AS SELECT 1 AS id, named_struct('v', parse_json('1')) AS variant")
    run.refused(call.format("variants"), "cannot compare variants, as in column 'variant': leave out")


def test_delta_settings_against_repeated_writes_are_refused(run: Run, tmp_path: Path) -> None:
    run("CREATE OR REPLACE TABLE once AS SELECT 1 AS id")
    session, frame = run.session, run.session.sql("SELECT 2 AS id")
    session.conf.set(DELTA_JOB, "job")
    try:
        remedy = "write df.write.option('txnAppId', 'job').option('txnVersion', 1)"
        run.refused("INSERT INTO once VALUES (2)", remedy)
        run.refused("CREATE TABLE other AS SELECT 1 AS id", remedy)
        for change in ("DELETE FROM once", "UPDATE once SET id = 3", "TRUNCATE TABLE once"):
            run.refused(change, f"call spark.conf.unset('{DELTA_JOB}')")
        with pytest.raises(OptionError, match="has no effect on Lance tables"):
            run.table("once").delete("id = 1")
        with pytest.raises(PySparkException, match="has no effect on Lance tables"):
            frame.write.format("lance").mode("append").save(str(tmp_path / "t"))
        for _ in range(2):
            frame.write.option("txnAppId", "job").option("txnVersion", 1).mode("append").saveAsTable("once")
        assert sorted(run("SELECT id FROM once")) == [(1,), (2,)]
    finally:
        session.conf.unset(DELTA_JOB)
    run("DELETE FROM once")


def test_streams_of_one_version_are_refused(run: Run) -> None:
    run("CREATE OR REPLACE TABLE streamed AS SELECT 1 AS id")
    for option, value, remedy in (
        ("versionAsOf", "1", 'write spark.readStream.option("startingVersion", "1").table(...)'),
        ("timestampAsOf", "2099-01-01", 'write spark.readStream.option("startingTimestamp", "2099-01-01T'),
    ):
        with pytest.raises(PySparkException) as caught:
            run.session.readStream.option(option, value).table("streamed")
        assert remedy in str(caught.value)
    assert run.session.readStream.option("startingVersion", "1").table("streamed").isStreaming


def test_explain_makes_no_branch(run: Run) -> None:
    run("CREATE OR REPLACE TABLE wap TBLPROPERTIES ('write.wap.enabled' = 'true') AS SELECT 1 AS id")
    run("SET spark.wap.branch = staged")
    try:
        for statement in (
            "INSERT INTO wap VALUES (2)",
            "DELETE FROM wap WHERE id = 1",
            "UPDATE wap SET id = 3",
        ):
            run(f"EXPLAIN {statement}")
        assert run.refs("wap") == set()
        run("INSERT INTO wap VALUES (2)")
        run("EXPLAIN INSERT INTO wap VALUES (2)")
        assert run.refs("wap") == {"staged"}
    finally:
        run("RESET spark.wap.branch")
    assert run("SELECT * FROM wap") == [(1,)]


BUILDER_PROPERTIES = (
    ("primary_key", "a, b", ".primaryKey('a', 'b')"),
    ("data_storage_version", "2.1", ".option('data_storage_version', '2.1')"),
    ("v.arrow.fixed-size-list.size", "3", ".addColumn('v', 'ARRAY<FLOAT>', vectorSize=3)"),
    ("v.lance.compression", "zstd", ".addColumn('v', 'BINARY', encoding={'compression': 'zstd'})"),
    ("v.lance.json", "true", "CREATE TABLE t (v STRING) TBLPROPERTIES ('v.lance.json' = 'true')"),
)


def test_properties_of_builders_that_have_a_call(session: SparkSession) -> None:
    for key, value, remedy in BUILDER_PROPERTIES:
        with pytest.raises(OptionError) as caught:
            LanceTable.create(session).property(key, value)
        assert remedy in str(caught.value)
