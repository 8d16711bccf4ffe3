"""SQL by the names of a namespace service: a REST server that pylance brings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lance.namespace
import pytest
from pyspark.errors import PySparkException

import spark_lance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_statements_by_the_names_of_a_rest_service(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    with lance.namespace.RestAdapter("dir", {"root": str(tmp_path / "root")}, port=0) as server:
        session.conf.set("spark.sql.catalog.served.impl", "rest")
        session.conf.set("spark.sql.catalog.served.uri", f"http://127.0.0.1:{server.port}")
        spark_lance.enable(session, catalog="served")
        session.sql("CREATE NAMESPACE served.db")
        session.sql("CREATE TABLE served.db.t AS SELECT id, id * 2 AS x FROM range(4)")
        session.sql("INSERT INTO served.db.t VALUES (9, 9)")
        assert session.sql("SELECT count(*), sum(x) FROM served.db.t").collect() == [(5, 21)]
        assert [row.tableName for row in session.sql("SHOW TABLES IN served.db").collect()] == ["t"]
        with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
            session.table("served.db.nope")
        session.sql("DROP TABLE served.db.t")
        session.sql("DROP NAMESPACE served.db")
