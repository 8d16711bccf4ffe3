"""`LanceTable` by name, and tables that are made by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import OptionError, UnsupportedFormatError


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path_factory.mktemp("names")))
    session.sql("CREATE NAMESPACE lance.d").collect()
    session.sql("USE lance.d").collect()
    return session


def test_a_table_is_made_and_found_by_name(session: SparkSession) -> None:
    made = (
        LanceTable.create(session)
        .tableName("t")
        .addColumn("id", "INT", nullable=False, comment="the tenant's key")
        .addColumn("v", "ARRAY<FLOAT>", vectorSize=2)
        .primaryKey("id")
        .clusterBy("id")
        .property("team", "me")
        .comment("a table")
        .execute()
    )
    detail = LanceTable.forName(session, "lance.d.t").detail().first()
    assert detail is not None
    assert (detail.location, detail.primaryKey, detail.clusteringColumns) == (made.path, ["id"], ["id"])
    assert (detail.description, detail.properties["team"]) == ("a table", "me")
    session.sql("INSERT INTO t VALUES (1, array(1F, 2F))").collect()
    LanceTable.forName(session, "t").update(set={"id": "id + 1"})
    assert LanceTable.forName(session, "t").toDF().first().id == 2  # type: ignore[union-attr]


def test_mistakes_say_what_to_write(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no table d.nope.*Write LanceTable.forPath"):
        LanceTable.forName(session, "nope")
    builder = LanceTable.createOrReplace(session).addColumn("id", "INT")
    with pytest.raises(OptionError, match=r"write a column, or years, months, days"):
        builder.partitionedBy("weeks(id)")
    with pytest.raises(UnsupportedFormatError, match=r"df.withColumn\('day', ...\)"):
        builder.addColumn("day", "DATE", generatedAlwaysAs="CAST(time AS DATE)")
    with pytest.raises(OptionError, match=r"leave out .location"):
        builder.tableName("u").location(tmp_path / "u").execute()
