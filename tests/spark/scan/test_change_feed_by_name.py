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
