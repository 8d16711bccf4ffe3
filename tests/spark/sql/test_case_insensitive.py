"""Names in any case: DataFrames, streams, views and services; random statements next to a model."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance.namespace
import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import OptionError
from spark_lance.spark.sql.catalogs import OpenCatalog
from tests.conftest import interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("SEED", "34"))
# {t} and {u} are two of the tables; the model gets them in lower case.
STATEMENTS = (
    "INSERT INTO {t} VALUES ({n}, 'a{n}'), ({n} + 1, 'b')",
    "INSERT INTO {t} SELECT * FROM {u} WHERE id < {n}",
    "INSERT OVERWRITE {t} SELECT id + {n}, s FROM {u}",
    "UPDATE {t} SET s = 'u{n}' WHERE id % 2 = 0",
    "UPDATE {t} SET s = (SELECT max(s) FROM {u}) WHERE id = {n}",
    "DELETE FROM {t} WHERE id < {n}",
    "DELETE FROM {t} WHERE id IN (SELECT id FROM {u})",
    "MERGE INTO {t} AS x USING (SELECT DISTINCT id FROM {u}) AS y ON x.id = y.id "
    "WHEN MATCHED THEN UPDATE SET s = 'm{n}' WHEN NOT MATCHED THEN INSERT (id, s) VALUES (y.id, 'new')",
    "TRUNCATE TABLE {t}",
    "CREATE TABLE {t} (id INT, s STRING)",
    "CREATE TABLE IF NOT EXISTS {t} (id INT, s STRING)",
    "CREATE TABLE {t} AS SELECT * FROM {u}",
    "CREATE OR REPLACE TABLE {t} AS SELECT id, s FROM {u} WHERE id > {n}",
    "DROP TABLE {t}",
    "DROP TABLE IF EXISTS {t}",
    "ALTER TABLE {t} RENAME TO {v}",
    "ALTER TABLE {t} SET TBLPROPERTIES ('k' = '{n}')",
    "CACHE TABLE {t}",
    "UNCACHE TABLE IF EXISTS {t}",
    "CALL {c}.system.rollback_to_snapshot('{v}', 2)",
)
TABLES = ("db.one", "db.two", "db.three")


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A session with the catalog `folded`, which ignores case, and its namespace `db`."""
    result = interpreted(spark.newSession())
    spark_lance.enable(result, catalog="folded", root=str(tmp_path / "root"))
    result.conf.set("spark.sql.catalog.folded.case_sensitive", "false")
    result.sql("CREATE NAMESPACE folded.db")
    return result


def condition(session: SparkSession, sql: str) -> str | None:
    """Run a statement and return the condition with which it fails; None if it succeeds."""
    try:
        session.sql(sql).collect()
    except PySparkException as error:
        return error.getCondition() or type(error).__name__
    return None


def contents(session: SparkSession, name: str) -> Any:
    try:
        return sorted(map(tuple, session.table(name).collect()))
    except AnalysisException as error:
        return error.getCondition()


@pytest.mark.parametrize("count", [12, pytest.param(150, marks=pytest.mark.slow)])
def test_random_spellings_give_the_rows_of_lower_case_names(
    session: SparkSession, tmp_path: Path, count: int
) -> None:
    draw = random.Random(f"{SEED} {count}")
    spark_lance.enable(session, catalog="lower", root=str(tmp_path / "lower"))
    session.sql("CREATE NAMESPACE lower.db")

    def spell(text: str) -> str:
        return "".join(draw.choice((char.lower(), char.upper())) for char in text)

    for table in TABLES[:2]:
        for catalog in ("folded", "lower"):
            session.sql(f"CREATE TABLE {catalog}.{table} AS SELECT 1 AS id, 'a' AS s")
    for _ in range(count):
        statement, number = draw.choice(STATEMENTS), draw.randint(0, 9)
        # A rename may change only the case, so the model never renames a table to its own name.
        t, v = draw.sample(TABLES, 2)
        u = draw.choice(TABLES)
        lower = statement.format(t=f"lower.{t}", u=f"lower.{u}", v=v, n=number, c="lower")
        folded = statement.format(
            t=f"folded.{spell(t)}", u=f"folded.{spell(u)}", v=spell(v), n=number, c="folded"
        )
        assert condition(session, folded) == condition(session, lower), (folded, lower)
        for table in TABLES:
            expected = contents(session, f"lower.{table}")
            for _ in range(2):
                name = f"folded.{spell(table)}"
                assert contents(session, name) == expected, (folded, name)
        tables = [
            sorted(row.tableName.lower() for row in session.sql(f"SHOW TABLES IN {catalog}.db").collect())
            for catalog in ("lower", "folded")
        ]
        assert tables[0] == tables[1]
    session.sql("CLEAR CACHE")


def test_dataframes_ignore_the_case_of_names(session: SparkSession, tmp_path: Path) -> None:
    frame = session.range(2).selectExpr("id", "'a' AS s")
    frame.write.saveAsTable("folded.db.Orders", format="lance")
    frame.write.mode("append").saveAsTable("folded.DB.orders", format="lance")
    frame.write.insertInto("folded.db.ORDERS")
    frame.writeTo("folded.db.orderS").append()
    frame.write.mode("ignore").saveAsTable("folded.DB.orders", format="lance")
    assert session.table("folded.db.orders").count() == 8
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        frame.write.saveAsTable("folded.DB.orders", format="lance")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        frame.writeTo("folded.db.orders").create()
    assert session.catalog.tableExists("folded.DB.ORDERS")
    table = LanceTable.forName(session, "folded.Db.orders")
    table.delete("id = 1")
    assert table.toDF().collect() == [(0, "a")] * 4
    assert session.read.option("versionAsOf", 1).table("folded.Db.orders").count() == 2
    frame.write.mode("overwrite").saveAsTable("folded.db.ORDERS", format="lance")
    frame.writeTo("folded.db.oRDERS").using("lance").createOrReplace()
    assert session.sql("SHOW TABLES IN folded.db").collect() == [("db", "Orders", False)]
    LanceTable.createIfNotExists(session).tableName("folded.db.orders").addColumn("x", "int").execute()
    assert len(session.sql("SHOW TABLES IN folded.db").collect()) == 1


@pytest.mark.slow
def test_streams_ignore_the_case_of_names(session: SparkSession, tmp_path: Path) -> None:
    session.sql("CREATE TABLE folded.db.Orders AS SELECT id FROM range(2)")
    stream = session.readStream.table("folded.db.ORDERS").writeStream.trigger(availableNow=True)
    for target in ("folded.db.Copied", "folded.db.COPIED"):
        checkpoint = str(tmp_path / target)
        stream.option("checkpointLocation", checkpoint).toTable(target).awaitTermination()
    assert session.table("folded.db.copied").count() == 4
    assert len(session.sql("SHOW TABLES IN folded.db").collect()) == 2


@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="older releases keep no views in catalogs")
def test_views_ignore_the_case_of_names(session: SparkSession) -> None:
    session.sql("CREATE TABLE folded.db.t AS SELECT 1 AS a")
    session.sql("CREATE VIEW folded.DB.Seen AS SELECT * FROM folded.DB.T")
    assert session.table("folded.db.SEEN").collect() == [(1,)]
    assert [row.viewName for row in session.sql("SHOW VIEWS IN folded.db").collect()] == ["Seen"]
    for sql in (
        "CREATE VIEW folded.db.SEEN AS SELECT 1 AS a",
        "CREATE VIEW folded.db.T AS SELECT 1 AS a",
        "CREATE TABLE folded.db.seen (a INT)",
    ):
        assert condition(session, sql) == "TABLE_OR_VIEW_ALREADY_EXISTS"
    session.sql("CREATE OR REPLACE VIEW folded.db.seen AS SELECT 2 AS a")
    session.sql("ALTER VIEW folded.db.SEEN RENAME TO db.other")
    assert session.table("folded.db.OTHER").collect() == [(2,)]
    session.sql("DROP VIEW folded.db.Other")
    assert session.sql("SHOW VIEWS IN folded.db").collect() == []


def test_a_service_is_searched_without_regard_to_case(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    with lance.namespace.RestAdapter("dir", {"root": str(tmp_path / "root")}, port=0) as server:
        for key, value in {
            "impl": "rest",
            "uri": f"http://127.0.0.1:{server.port}",
            "case_sensitive": "false",
        }.items():
            session.conf.set(f"spark.sql.catalog.folded_service.{key}", value)
        spark_lance.enable(session, catalog="folded_service")
        session.sql("CREATE NAMESPACE folded_service.db")
        session.sql("CREATE TABLE folded_service.DB.Orders AS SELECT 1 AS id")
        session.sql("INSERT INTO folded_service.db.orders VALUES (2)")
        assert session.table("folded_service.dB.ORDERS").count() == 2
        assert session.sql("SELECT count(*) > 0 FROM folded_service.DB.orders.history").head() == (True,)
        assert condition(session, "CREATE TABLE folded_service.db.ORDERS (id INT)") is not None
        assert condition(session, "CREATE NAMESPACE folded_service.DB") == "SCHEMA_ALREADY_EXISTS"
        assert condition(session, "SELECT * FROM folded_service.db.nope") == "TABLE_OR_VIEW_NOT_FOUND"
        session.sql("DROP TABLE folded_service.DB.orders")
        assert session.sql("SHOW TABLES IN folded_service.db").collect() == []


def test_the_sessions_catalog_keeps_sparks_rule() -> None:
    with pytest.raises(OptionError, match="leave it out, as Spark's registry"):
        OpenCatalog.of("spark_catalog", {"case_sensitive": "false"})
