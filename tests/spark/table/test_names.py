"""`LanceTable` by name, and tables that are made by name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import (
    OptionError,
    OptionTypeError,
    SchemaError,
    TableExistsError,
)
from spark_lance.table.maintenance.retention import table_retention


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path_factory.mktemp("names")))
    session.sql("CREATE NAMESPACE lance.d").collect()
    session.sql("USE lance.d").collect()
    return session


def test_a_table_is_made_and_found_by_name(session: SparkSession) -> None:
    result = (
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
    assert (detail.location, detail.primaryKey, detail.clusteringColumns) == (result.path, ["id"], ["id"])
    assert (detail.description, detail.properties["team"]) == ("a table", "me")
    session.sql("INSERT INTO t VALUES (1, array(1F, 2F))").collect()
    LanceTable.forName(session, "t").update(set={"id": "id + 1"})
    assert LanceTable.forName(session, "t").toDF().first().id == 2  # type: ignore[union-attr]


def test_a_folder_of_parquet_files_becomes_a_table(session: SparkSession, tmp_path: Path) -> None:
    parts, flat = str(tmp_path / "parts"), str(tmp_path / "flat")
    rows = session.range(6).selectExpr("id", "CAST(id % 2 AS INT) AS part")
    rows.write.partitionBy("part").parquet(parts)
    rows.write.parquet(flat)
    with pytest.raises(OptionError, match=r"write PARTITIONED BY \(part int\)"):
        LanceTable.convertToLance(session, f"parquet.`{parts}`")
    assert not LanceTable.isLanceTable(session, parts)
    table = LanceTable.convertToLance(session, f"parquet.`{parts}`", "part int")
    assert sorted(table.toDF().collect()) == sorted(rows.collect())
    shown = session.sql(f"SHOW PARTITIONS lance.`{parts}`").collect()
    assert sorted(row[0] for row in shown) == ["part=0", "part=1"]
    session.sql(f"CONVERT TO LANCE parquet.`{flat}` NO STATISTICS").collect()
    assert session.sql(f"SELECT sum(id) FROM lance.`{flat}`").collect() == [(15,)]
    with pytest.raises(TableExistsError, match=r"write CALL <catalog>.system.add_files") as error:
        LanceTable.convertToLance(session, f"parquet.`{flat}`")
    extra = str(tmp_path / "extra")
    rows.write.parquet(extra)
    call = str(error.value).split("write ")[1].replace("<catalog>", "lance").replace("<path>", extra)
    session.sql(call).collect()
    assert session.sql(f"SELECT sum(id) FROM lance.`{flat}`").collect() == [(30,)]


def test_a_conversion_that_failed_goes_on(session: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "files")
    session.range(3).write.parquet(place)
    # The first of its two commits.
    builder = LanceTable.create(session).location(place).addColumn("id", "BIGINT")
    builder.in_place = True
    builder.execute()
    assert LanceTable.convertToLance(session, f"parquet.`{place}`").toDF().count() == 3
    # Another writer may have added the rows meanwhile.
    once = {"txnAppId": "spark_lance.convert", "txnVersion": "1"}
    session.range(3).write.format("lance").options(**once).mode("append").save(place)
    assert LanceTable.forPath(session, place).toDF().count() == 3


def test_columns_are_described_as_delta_describes_them(session: SparkSession) -> None:
    column = LanceTable.columnBuilder("n").dataType("INT").nullable(False).comment("a number").build()
    other = LanceTable.columnBuilder(session, "s").dataType("STRING").defaultValue("'x'").build()
    LanceTable.create(session).tableName("built").addColumn(column).addColumn(other).execute()
    session.sql("INSERT INTO built (n) VALUES (1)").collect()
    assert session.table("built").collect() == [(1, "x")]
    assert not session.table("built").schema["n"].nullable
    with pytest.raises(OptionTypeError, match=r"LanceTable.columnBuilder\('id'\)"):
        LanceTable.columnBuilder()
    with pytest.raises(SchemaError, match=r"write .addColumn\('m', 'BIGINT'\)"):
        LanceTable.create(session).addColumn("m")


def test_mistakes_say_what_to_write(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no table d.nope.*Or write LanceTable.forPath"):
        LanceTable.forName(session, "nope")
    builder = LanceTable.createOrReplace(session).addColumn("id", "INT")
    with pytest.raises(OptionError, match=r"write a column, or years, months, days"):
        builder.partitionedBy("weeks(id)")
    with pytest.raises(SchemaError, match=r"generatedAlwaysAsIdentity\(start=1, step=1\)"):
        builder.addColumn("day", "DATE", generatedByDefaultAs=object())
    with pytest.raises(OptionError, match=r"leave out .location"):
        builder.tableName("u").location(tmp_path / "u").execute()


def test_the_history_names_user_and_application(session: SparkSession) -> None:
    """By name, by path, in SQL and of LanceTable."""
    session.sql("CREATE TABLE who (id bigint) USING lance").collect()
    rows = session.range(1).write.format("lance").mode("append")
    rows.option("userMetadata", "by name").option("snapshot-property.load-id", "7").saveAsTable("who")
    table = LanceTable.forName(session, "who")
    rows.option("userMetadata", "by path").option("snapshot-property.load-id", "8").save(table.path)
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "by setting")
    session.sql("DELETE FROM who WHERE id = 0").collect()
    session.sql("INSERT INTO who VALUES (1)").collect()
    table.delete("id = 1")
    session.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    context = session.sparkContext
    history = table.history().select("version", "userId", "userName", "job.*", "userMetadata")
    messages = ["by setting"] * 3 + ["by path", "by name", None]
    assert [tuple(row) for row in history.collect()] == [
        (version, *[context.sparkUser()] * 2, context.applicationId, context.appName, message)
        for version, message in zip(range(6, 0, -1), messages, strict=True)
    ]
    described = session.sql("DESCRIBE HISTORY who").select("userName", "job.jobId").first()
    assert described == (context.sparkUser(), context.applicationId)
    summaries = session.sql("SELECT summary['load-id'] FROM lance.d.who.snapshots ORDER BY snapshot_id")
    assert [row[0] for row in summaries.collect()] == [None, "7", "8", None, None, None]


def test_vacuum_obeys_retention_properties(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE young TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '3600000') AS SELECT 1 a"
    )
    with pytest.raises(Exception, match="the table's retention of 1 hours is less than the 24 hours"):
        session.sql("VACUUM young").collect()
    session.sql("ALTER TABLE young SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 30 days')")
    assert session.sql("VACUUM young").first()["old_versions"] == 0  # type: ignore[index]
    dataset = LanceTable.forName(session, "young").dataset()
    assert table_retention(dataset.manifest) == (timedelta(days=30), None)
    session.sql("ALTER TABLE young UNSET TBLPROPERTIES ('delta.logRetentionDuration')")
    session.sql("ALTER TABLE young UNSET TBLPROPERTIES ('history.expire.max-snapshot-age-ms')")
    session.sql("ALTER TABLE young SET TBLPROPERTIES ('history.expire.min-snapshots-to-keep' = '3')")
    dataset = LanceTable.forName(session, "young").dataset()
    assert table_retention(dataset.manifest) == (timedelta(days=5), 3)
