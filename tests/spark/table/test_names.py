"""`LanceTable` by name, and tables that are made by name."""

from __future__ import annotations

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
    UnsupportedFormatError,
)


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
    with pytest.raises(UnsupportedFormatError, match=r"df.withColumn\('n', ...\)"):
        LanceTable.columnBuilder("n").generatedAlwaysAsIdentity()
    with pytest.raises(OptionTypeError, match=r"LanceTable.columnBuilder\('id'\)"):
        LanceTable.columnBuilder()
    with pytest.raises(SchemaError, match=r"write .addColumn\('m', 'BIGINT'\)"):
        LanceTable.create(session).addColumn("m")


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
