"""The 99 queries of TPC-DS, four of which have two parts, by table name, against Parquet files."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import CharType, StringType, StructField, StructType, VarcharType

import spark_lance
from tests.tpc import sources
from tests.tpc.comparing import answers_differ, make_tables, parquet_files, parquet_session

pytestmark = pytest.mark.tpc

SCALE = os.environ.get("SPARK_LANCE_TPCDS_SCALE", "0.01")
IN_PARTS = (14, 23, 24, 39)
NAMES = [name for i in range(1, 100) for name in ([f"q{i}a", f"q{i}b"] if i in IN_PARTS else [f"q{i}"])]
INDICES = ("store_sales.ss_sold_date_sk BTREE", "date_dim.d_date_sk BTREE", "item.i_category BITMAP")
# What Spark's own tests know of the columns.
SCHEMAS = "org.apache.spark.sql.execution.benchmark.TPCDSSchemaHelper$"


def schemas(spark: Any) -> dict[str, StructType]:
    """The columns of each table."""
    jvm = spark._jvm
    urls = spark._sc._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(sources.jars())).toURI().toURL()
    # A loader of its own: the jar has sources of data that Spark would look at.
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader = jvm.java.net.URLClassLoader(urls, parent)
    helper = loader.loadClass(SCHEMAS).getField("MODULE$").get(None)
    results = {}
    columns = helper.getTableColumns().iterator()
    while columns.hasNext():
        entry = columns.next()
        schema = StructType.fromJson(json.loads(entry._2().json()))
        results[entry._1()] = StructType([plain(field) for field in schema.fields])
    return results


def plain(field: StructField) -> StructField:
    """The column with text of any length: readers of files take no other."""
    limited = isinstance(field.dataType, (CharType, VarcharType))
    return StructField(field.name, StringType() if limited else field.dataType, field.nullable)


def lenient(session: SparkSession) -> SparkSession:
    """The session, in which a share of nothing is null: with few rows some queries divide by zero."""
    session.conf.set("spark.sql.ansi.enabled", "false")
    return session


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The rows in Parquet files, a folder each."""
    texts = sources.tpcds_rows(SCALE)
    target = tmp_path_factory.mktemp("tpcds-parquet")
    for name, schema in schemas(spark).items():
        rows = spark.read.csv(str(texts / f"{name}.dat"), schema=schema, sep="|", encoding="ISO-8859-1")
        rows.coalesce(2).write.parquet(str(target / f"{name}.parquet"))
    return parquet_files(target)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, files: dict[str, str]) -> SparkSession:
    return lenient(parquet_session(spark, files))


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> SparkSession:
    session = lenient(spark_lance.enable(spark.newSession(), root=str(tmp_path_factory.mktemp("tpcds"))))
    assert len(files) == 24
    make_tables(session, "tpcds", files, INDICES)
    return session


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_parquet(tables: SparkSession, parquet: SparkSession, name: str) -> None:
    assert not answers_differ(tables, parquet, sources.queries("tpcds")[name])
