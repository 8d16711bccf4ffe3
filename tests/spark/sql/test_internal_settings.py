"""Settings that the package keeps for itself: neither shown nor accepted, on every face."""

from __future__ import annotations

import json
from pathlib import Path

import lance as pylance
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.cli.main import main
from spark_lance.errors import OptionError
from spark_lance.spark.table.table import LanceTable

KEY = "spark_lance.transactions"
RECORD = json.dumps({"through": 99, "applications": {"txn:job": [7, 1]}})


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    return spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))


def path_of(session: SparkSession, table: str) -> str:
    rows = session.sql(f"DESCRIBE EXTENDED {table}").collect()
    return next(str(row.data_type) for row in rows if row.col_name == "Location")


def write_once(session: SparkSession, path: str, number: int) -> None:
    options = {"txnAppId": "job", "txnVersion": str(number)}
    session.range(2).write.format("lance").mode("append").options(**options).save(path)


def texts(session: SparkSession, statement: str) -> str:
    return "\n".join(str(row) for row in session.sql(statement).collect())


def test_the_record_of_writes_is_not_shown(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.sql("CREATE TABLE lance.t (id BIGINT) TBLPROPERTIES ('team' = 'x')").collect()
    path = path_of(session, "lance.t")
    write_once(session, path, 7)
    manifest = spark_lance.dataset(path).manifest
    assert KEY in manifest.config
    for statement in ("SHOW CREATE TABLE lance.t", "SHOW TBLPROPERTIES lance.t", "DESCRIBE EXTENDED lance.t"):
        shown = texts(session, statement)
        assert "team" in shown, statement
        assert "spark_lance." not in shown, statement
    assert "spark_lance." not in texts(session, "SELECT * FROM lance.t.config")
    assert "team" in LanceTable.forPath(session, path).config
    assert KEY not in LanceTable.forPath(session, path).config
    assert KEY not in spark_lance.dataset(path).config()
    assert main(["inspect", path]) == 0
    assert "spark_lance.transactions" not in capsys.readouterr().out
    # A table made from what is shown takes the same writes.
    result = session.sql("SHOW CREATE TABLE lance.t").collect()[0][0].replace("lance.t ", "lance.u ", 1)
    session.sql(result).collect()
    copy = path_of(session, "lance.u")
    write_once(session, copy, 7)
    assert session.table("lance.u").count() == 2
    # The record still does its work.
    write_once(session, path, 7)
    assert session.table("lance.t").count() == 2


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TABLE lance.u (id BIGINT) TBLPROPERTIES ('{KEY}' = '{RECORD}')",
        f"CREATE TABLE lance.u TBLPROPERTIES ('{KEY}' = '{RECORD}') AS SELECT 1 AS id",
        f"CREATE OR REPLACE TABLE lance.t TBLPROPERTIES ('{KEY}' = '{RECORD}') AS SELECT 1 AS id",
        f"ALTER TABLE lance.t SET TBLPROPERTIES ('a' = 'b', '{KEY}' = '{RECORD}')",
        f"ALTER TABLE lance.t UNSET TBLPROPERTIES ('a', '{KEY}')",
        "ALTER TABLE lance.t SET TBLPROPERTIES ('spark_lance.other' = '1')",
    ],
)
def test_statements_with_internal_settings_are_refused(session: SparkSession, statement: str) -> None:
    session.sql("CREATE TABLE lance.t (id BIGINT)").collect()
    path = path_of(session, "lance.t")
    write_once(session, path, 7)
    before = spark_lance.dataset(path).version
    with pytest.raises(PySparkException, match="is internal and cannot be set or removed"):
        session.sql(statement).collect()
    assert spark_lance.dataset(path).version == before
    assert not session.catalog.tableExists("lance.u")


def test_programs_with_internal_settings_are_refused(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_once(session, path, 7)
    dataset, table = spark_lance.dataset(path), LanceTable.forPath(session, path)
    calls = (
        lambda: dataset.update_config({KEY: RECORD}),
        lambda: dataset.delete_config_keys([KEY]),
        lambda: table.setConfig({KEY: RECORD}),
        lambda: table.setConfig({KEY: None}),
        lambda: LanceTable.create(session).location(str(tmp_path / "u")).property(KEY, RECORD),
    )
    for call in calls:
        with pytest.raises(OptionError, match="is internal"):
            call()
    with pytest.raises(PySparkException, match="is internal"):
        session.range(1).write.format("lance").mode("append").option(KEY, RECORD).save(path)
    with pytest.raises(PySparkException, match="is internal"):
        session.range(1).writeTo("lance.v").tableProperty(KEY, RECORD).create()
    table.setConfig({"spark_lance.vacuum.min_retention": "7d"})
    assert table.config == {"spark_lance.vacuum.min_retention": "7d"}


def test_a_damaged_record_can_be_removed(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_once(session, path, 7)
    pylance.dataset(path).update_config({KEY: "{"})
    spark_lance.dataset(path).delete_config_keys([KEY])
    assert KEY not in spark_lance.dataset(path).manifest.config
