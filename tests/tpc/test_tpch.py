"""The 22 queries of TPC-H by table name, against the same queries over Parquet files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from tests.tpc import sources
from tests.tpc.comparing import answers_differ, make_tables, parquet_files, parquet_session

pytestmark = pytest.mark.tpc

SCALE = os.environ.get("SPARK_LANCE_TPCH_SCALE", "0.05")
INDICES = (
    "lineitem.l_orderkey BTREE",
    "lineitem.l_shipdate ZONEMAP",
    "lineitem.l_returnflag BITMAP",
    "orders.o_orderkey BTREE",
    "orders.o_orderdate BTREE",
    "part.p_size BITMAP",
    "supplier.s_acctbal BTREE",
)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession) -> SparkSession:
    return parquet_session(spark, parquet_files(sources.tpch_rows(SCALE)))


@pytest.fixture(scope="module", params=["plain", "indexed"])
def tables(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path_factory.mktemp("tpch")))
    files = parquet_files(sources.tpch_rows(SCALE))
    assert len(files) == 8
    make_tables(session, "tpch", files, INDICES if request.param == "indexed" else ())
    return session


@pytest.mark.parametrize("number", range(1, 23))
def test_answers_are_those_of_parquet(tables: SparkSession, parquet: SparkSession, number: int) -> None:
    query = sources.queries("tpch")[f"q{number}"]
    assert not answers_differ(tables, parquet, query)


def test_rows_come_by_name_from_the_catalog(tables: SparkSession, tmp_path: Path) -> None:
    assert tables.sql("SELECT current_catalog(), current_schema()").collect() == [("lance", "tpch")]
    assert tables.table("lineitem").count() > 1000
