"""Times without a zone: in Spark they are in the session's zone, elsewhere in UTC."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.errors import OptionError
from spark_lance.spark.options.options import in_zone, parse_zone, read_options
from spark_lance.spark.table.table import LanceTable

# Both are far from UTC, so that another zone gives another version or an error.
ZONES = ["Asia/Tokyo", "-08:00"]


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path, zone: str) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.conf.set("spark.sql.session.timeZone", zone)
    session.sql("CREATE TABLE lance.t AS SELECT 1L AS id").collect()
    time.sleep(0.1)
    session.sql("INSERT INTO lance.t VALUES (2)").collect()
    return session


@pytest.fixture
def path(session: SparkSession) -> str:
    rows = session.sql("DESCRIBE EXTENDED lance.t").collect()
    return next(str(row.data_type) for row in rows if row.col_name == "Location")


@pytest.fixture
def moment(path: str, zone: str) -> str:
    """A time just after the first version and before the second, as a clock in the zone shows it."""
    first = spark_lance.dataset(path).versions()[0]["timestamp"]
    return local(first + timedelta(milliseconds=20), zone)


def local(moment: datetime, zone: str) -> str:
    return moment.astimezone(parse_zone(zone)).replace(tzinfo=None).isoformat(sep=" ")


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


@pytest.mark.parametrize("option", ["timestampAsOf", "asof"])
def test_reads_by_path(session: SparkSession, path: str, moment: str, option: str) -> None:
    assert ids(session.read.format("lance").option(option, moment).load(path)) == [1]
    with pytest.raises(PySparkException, match="no version at or before"):
        session.read.format("lance").option(option, "2020-01-01").load(path).collect()


def test_reads_by_name_and_sql(session: SparkSession, moment: str) -> None:
    assert ids(session.sql(f"SELECT * FROM lance.t TIMESTAMP AS OF '{moment}'")) == [1]
    assert ids(session.read.option("asof", moment).table("lance.t")) == [1]


def test_views(session: SparkSession, path: str, moment: str) -> None:
    session.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{path}', asof '{moment}')").collect()
    assert ids(session.table("v")) == [1]


def test_change_feeds(session: SparkSession, path: str, moment: str) -> None:
    def read(**options: str) -> list[int]:
        return ids(session.read.format("lance").options(readChangeFeed="true", **options).load(path))

    assert read(startingTimestamp=moment) == [2]
    assert read(startingVersion="1", endingTimestamp=moment) == [1]


def test_streams(session: SparkSession, path: str, moment: str, tmp_path: Path) -> None:
    stream = session.readStream.format("lance").option("startingTimestamp", moment).load(path)
    query = (
        stream.writeStream.format("memory")
        .queryName("zoned")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert ids(session.table("zoned")) == [2]


@pytest.mark.parametrize("make", [str, datetime.fromisoformat], ids=["text", "datetime"])
def test_restores(session: SparkSession, path: str, moment: str, make: Callable[[str], Any]) -> None:
    LanceTable.forPath(session, path).restoreToTimestamp(make(moment))
    assert ids(session.table("lance.t")) == [1]


def test_option_and_zone_in_the_text_go_before(
    session: SparkSession, path: str, moment: str, zone: str
) -> None:
    aware = in_zone(moment, zone).astimezone(timezone.utc)
    for text, options in (
        (aware.isoformat(), {}),
        (aware.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), {}),
        (local(aware, "America/New_York"), {"timeZone": "America/New_York"}),
    ):
        assert ids(session.read.format("lance").options(asof=text, **options).load(path)) == [1]


def test_zones_are_read_as_spark_reads_them() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    for name, hours in (
        ("UTC", 12),
        ("Z", 12),
        ("+02:00", 10),
        ("GMT+3", 9),
        ("UTC-1", 13),
        ("Europe/Berlin", 11),
    ):
        assert in_zone("2026-01-31 12:00:00", name) == noon.replace(hour=hours), name
    # Hours that a change of the clock skips or repeats.
    assert in_zone("2026-03-29 02:30:00", "Europe/Berlin").astimezone(timezone.utc).hour == 1
    assert in_zone("2026-10-25 02:30:00", "Europe/Berlin").astimezone(timezone.utc).hour == 0
    for name in ("Mars/Base", "+19:00", ""):
        with pytest.raises(OptionError, match="is unknown"):
            in_zone("2026-01-31 12:00:00", name)


def test_a_time_of_an_unknown_zone_is_refused() -> None:
    with pytest.raises(OptionError, match="has no zone"):
        read_options({"path": "/data/t", "asof": "2026-01-31 12:00:00"})
    options = read_options({"path": "/data/t", "asof": "2026-01-31 12:00:00", "timeZone": "Asia/Tokyo"})
    assert options.asof == datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("Asia/Tokyo")).isoformat()


def test_without_spark_times_are_in_utc(session: SparkSession, path: str) -> None:
    first = spark_lance.dataset(path).versions()[0]["timestamp"] + timedelta(milliseconds=20)
    assert spark_lance.dataset(path, asof=local(first, "UTC")).version == 1
