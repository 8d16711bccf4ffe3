"""Settings of a session by the names that Delta Lake gives them."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from tests.conftest import interpreted

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
DELTA = "spark.databricks.delta."


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(interpreted(spark.newSession()), root=str(tmp_path / "root"))
    session.sql("USE lance")
    return session


def test_new_tables_get_properties_of_the_session(session: SparkSession, tmp_path: Path) -> None:
    session.sql(f"SET {DELTA}properties.defaults.appendOnly = true")
    session.sql("CREATE TABLE t AS SELECT 1 AS id")
    session.sql("CREATE TABLE changing TBLPROPERTIES ('delta.appendOnly' = 'false') AS SELECT 1 AS id")
    built = LanceTable.create(session).location(str(tmp_path / "built")).addColumn("id", "INT").execute()
    session.conf.set(f"{DELTA}properties.defaults.enableRowTracking", "true")
    session.sql("CREATE TABLE tracked AS SELECT 1 AS id")
    for name in ("appendOnly", "enableRowTracking"):
        session.sql(f"RESET {DELTA}properties.defaults.{name}")
    with pytest.raises(PySparkException, match=r"its property 'delta.appendOnly' is true"):
        session.sql("DELETE FROM t")
    session.sql("DELETE FROM changing")
    assert built.dataset().config()["delta.appendOnly"] == "true"
    assert session.sql("SELECT _row_created_at_version FROM tracked").collect() == [(1,)]


@pytest.mark.skipif(RELEASE < (4, 1), reason="Spark does not tell catalogs of the columns to add")
def test_merges_add_columns_if_the_session_says_so(session: SparkSession, tmp_path: Path) -> None:
    session.sql("CREATE TABLE t AS SELECT 1 AS id, 'a' AS v")
    session.sql(f"SET {DELTA}schema.autoMerge.enabled = true")
    source = "SELECT explode(array(1, 2)) AS id, 'b' AS v, 7 AS fresh"
    clauses = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    session.sql(f"MERGE INTO t USING ({source}) AS s ON t.id = s.id {clauses};")
    assert sorted(session.table("t").collect()) == [(1, "b", 7), (2, "b", 7)]
    table = LanceTable.forName(session, "t").alias("t")
    more = session.sql("SELECT 2 AS id, 'c' AS v, 8 AS fresh, 9 AS more").alias("s")
    table.merge(more, "t.id = s.id").whenMatchedUpdateAll().execute()
    session.sql(f"RESET {DELTA}schema.autoMerge.enabled")
    assert sorted(session.table("t").collect()) == [(1, "b", 7, None), (2, "c", 8, 9)]


def test_settings_against_repeated_writes_are_refused(session: SparkSession) -> None:
    remedy = r"write df.write.option\('txnAppId', 'job'\).option\('txnVersion', 1\).mode\('append'\).saveAs"
    for name in ("txnAppId", "txnVersion"):
        with pytest.raises(PySparkException, match=remedy):
            session.sql(f"SET {DELTA}write.{name} = 7")
    session.sql("CREATE TABLE t AS SELECT 1 AS id")
    rows = session.sql("SELECT 2 AS id").write.option("txnAppId", "job").option("txnVersion", 1)
    for _ in range(2):
        rows.mode("append").saveAsTable("t")
    assert session.table("t").count() == 2
