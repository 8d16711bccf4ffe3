"""`readChangeFeed` by name answers as by path: in batches, SQL and streams."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance

FEED = {"readChangeFeed": "true", "startingVersion": "1"}
SQL_FEED = "lance.ev WITH ('readChangeFeed' = 'true', 'startingVersion' = '1')"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    for statement in (
        "CREATE TABLE lance.ev (id BIGINT, v STRING) TBLPROPERTIES ('enable_stable_row_ids' = 'true')",
        "INSERT INTO lance.ev VALUES (1, 'a'), (2, 'b')",
        "UPDATE lance.ev SET v = 'c' WHERE id = 1",
        "DELETE FROM lance.ev WHERE id = 2",
    ):
        session.sql(statement).collect()
    return session


@pytest.fixture
def path(session: SparkSession) -> str:
    rows = session.sql("DESCRIBE EXTENDED lance.ev").collect()
    return next(str(row.data_type) for row in rows if row.col_name == "Location")


def texts(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        {"startingVersion": "1"},
        {"startingVersion": "3"},
        {"startingVersion": "2", "endingVersion": "3"},
        {"startingTimestamp": "2020-01-01"},
        {"startingVersion": "1", "endingTimestamp": "2100-01-01"},
        {"startingVersion": "1", "filter": "id = 1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["readChangeFeed", "readChangeData", "READCHANGEFEED"])
def test_batches(session: SparkSession, path: str, name: str, options: dict[str, str]) -> None:
    by_path = session.read.format("lance").options(**options, **{name: "true"}).load(path)
    by_name = session.read.options(**options, **{name: "true"}).table("lance.ev")
    assert by_name.schema == by_path.schema
    assert "_change_type" in by_name.columns
    assert texts(by_name) == texts(by_path)
    assert by_path.count() > 0
    deleted = "_change_type = 'delete'"
    assert texts(by_name.where(deleted).select("id")) == texts(by_path.where(deleted).select("id"))


def test_sql(session: SparkSession, path: str) -> None:
    by_path = session.read.format("lance").options(**FEED).load(path)
    assert texts(session.sql(f"SELECT * FROM {SQL_FEED}")) == texts(by_path)
    # The table and its changes in one statement.
    joined = session.sql(
        f"SELECT e.v, f._change_type FROM lance.ev AS e JOIN {SQL_FEED} AS f ON e.id = f.id ORDER BY 2"
    )
    assert [tuple(row) for row in joined.collect()] == [
        ("c", "insert"),
        ("c", "update_postimage"),
        ("c", "update_preimage"),
    ]
    counted = session.sql(
        f"WITH f AS (SELECT * FROM {SQL_FEED}) SELECT (SELECT count(*) FROM f), count(*) FROM lance.ev"
    )
    assert tuple(counted.collect()[0]) == (5, 1)


def test_a_frame_keeps_its_last_version(session: SparkSession) -> None:
    frame = session.read.options(**FEED).table("lance.ev")
    before = texts(frame)
    session.sql("INSERT INTO lance.ev VALUES (9, 'z')").collect()
    assert texts(frame) == before
    assert session.read.options(**FEED).table("lance.ev").count() == len(before) + 1


@pytest.mark.slow
@pytest.mark.slow
def test_streams(session: SparkSession, path: str, tmp_path: Path) -> None:
    def deliver(frame: DataFrame, checkpoint: str) -> list[str]:
        name = f"feed_{uuid.uuid4().hex}"
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()
        return texts(session.table(name))

    by_path = deliver(session.readStream.format("lance").options(**FEED).load(path), "path")
    stream = session.readStream.options(**FEED).table("lance.ev")
    assert "_change_type" in stream.columns
    assert deliver(stream, "name") == by_path
    assert len(by_path) == 5


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "table", "message"),
    [
        ({"readChangeFeed": "true"}, "lance.ev", "needs one of the options startingVersion"),
        ({**FEED, "version": "2"}, "lance.ev", "option 'version' names one version"),
        ({**FEED, "startingVersion": "99"}, "lance.ev", "no version 99"),
        ({**FEED, "startVersion": "2"}, "lance.ev", "unknown option 'startVersion'"),
        (FEED, "lance.ev.history", "has no change feed"),
        (FEED, "lance.nothing", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_refusals(session: SparkSession, options: dict[str, str], table: str, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        session.read.options(**options).table(table).collect()


def test_switched_off_it_is_a_read_of_rows(session: SparkSession) -> None:
    assert session.read.option("readChangeFeed", "false").table("lance.ev").columns == ["id", "v"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("bounds", "options"),
    [
        ("1", {"startingVersion": "1"}),
        ("2, 3", {"startingVersion": "2", "endingVersion": "3"}),
        ("'2020-01-01', current_timestamp()", {"startingTimestamp": "2020-01-01"}),
        ("TIMESTAMP '2020-01-01 00:00:00', '2100-01-01'", {"startingTimestamp": "2020-01-01"}),
    ],
)
def test_table_changes(session: SparkSession, path: str, bounds: str, options: dict[str, str]) -> None:
    expected = texts(session.read.options(**options, readChangeFeed="true").table("lance.ev"))
    for name in ("lance.ev", f"lance.`{path}`", path):
        assert texts(session.sql(f"SELECT * FROM table_changes('{name}', {bounds})")) == expected
    changes = session.sql(f"SELECT * FROM table_changes_by_path('{path}', {bounds})")
    assert texts(changes) == expected


@pytest.mark.parametrize(
    "arguments", ["'lance.ev'", "'lance.ev', true", "'lance.ev', 1.5", "'lance.no', 1", "1"]
)
def test_table_changes_refuses(session: SparkSession, arguments: str) -> None:
    with pytest.raises(PySparkException):
        session.sql(f"SELECT * FROM table_changes({arguments})").collect()


def test_all_changes_are_a_metadata_table(session: SparkSession) -> None:
    expected = texts(session.sql(f"SELECT * FROM {SQL_FEED}"))
    assert texts(session.table("lance.ev.changes")) == expected
    count = session.sql("SELECT count(*) FROM lance.ev.changes WHERE _change_type = 'delete'").collect()
    assert count[0][0] == 1
    with pytest.raises(PySparkException, match="_commit_version <= n"):
        session.sql("SELECT * FROM lance.ev.changes VERSION AS OF 2").collect()


def test_a_changelog_view_has_no_row_that_stayed_as_it_was(session: SparkSession) -> None:
    session.sql("INSERT INTO lance.ev VALUES (3, 'd'), (3, 'd')").collect()
    merge = "MERGE INTO lance.ev USING (SELECT 1L AS id, '{}' AS v) AS s ON ev.id = s.id"
    for v in ("c", "e"):
        session.sql(f"{merge.format(v)} WHEN MATCHED THEN UPDATE SET *").collect()
    for updates, types in (("false", ["DELETE", "INSERT"]), ("true", ["UPDATE_AFTER", "UPDATE_BEFORE"])):
        call = f"table => 'ev', compute_updates => {updates}, identifier_columns => array('id')"
        session.sql(f"CALL lance.system.create_changelog_view({call})").collect()
        rows = session.sql("SELECT _change_type FROM ev_changes WHERE _commit_snapshot_id > 5").collect()
        assert sorted(row[0] for row in rows) == types
        assert session.sql("SELECT * FROM ev_changes WHERE _commit_snapshot_id = 5").count() == 2


def test_changes_clause(session: SparkSession) -> None:
    clause = "SELECT * FROM lance.ev CHANGES FROM VERSION 1"
    if tuple(map(int, session.version.split(".")[:2])) < (4, 2):
        with pytest.raises(Exception, match=r"SELECT \* FROM table_changes\('lance\.ev', start\[, end\]\)"):
            session.sql(clause).collect()
        return
    expected = texts(session.sql(f"SELECT * FROM {SQL_FEED}"))
    assert texts(session.sql(clause)) == expected
    assert texts(session.read.option("startingVersion", "1").changes("lance.ev")) == expected
    assert texts(session.sql("SELECT * FROM lance.ev CHANGES FROM TIMESTAMP '2020-01-01'")) == expected
    stream = session.readStream.option("startingVersion", "1").changes("lance.ev").writeStream
    stream.format("memory").queryName("streamed").trigger(availableNow=True).start().awaitTermination()
    assert texts(session.table("streamed")) == expected
    session.sql("DROP VIEW streamed").collect()
    some = session.sql("SELECT * FROM lance.ev CHANGES FROM VERSION 2 EXCLUSIVE TO VERSION 4 EXCLUSIVE")
    assert texts(some) == texts(session.sql("SELECT * FROM table_changes('lance.ev', 3, 3)"))
    net = "WITH (deduplicationMode = 'netChanges')"
    with pytest.raises(PySparkException, match="create_changelog_view") as caught:
        session.sql(f"{clause} {net}").collect()
    session.sql(str(caught.value)[str(caught.value).index("CALL ") :].splitlines()[0]).collect()
    assert [tuple(row)[:3] for row in session.table("ev_changes").collect()] == [(1, "c", "INSERT")]
    session.sql(
        "CREATE TABLE lance.k (id INT NOT NULL, v STRING) TBLPROPERTIES ('primary_key' = 'id')"
    ).collect()
    session.sql("INSERT INTO lance.k VALUES (1, 'a'), (2, 'b')").collect()
    session.sql("UPDATE lance.k SET v = 'c' WHERE id = 1").collect()
    session.sql("DELETE FROM lance.k WHERE id = 2").collect()
    rows = session.sql(f"SELECT id, v, _change_type FROM lance.k CHANGES FROM VERSION 1 {net}").collect()
    assert [tuple(row) for row in rows] == [(1, "c", "insert")]
