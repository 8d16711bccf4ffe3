"""Tasks read only the columns and rows that a query needs, and find the same."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

import spark_lance

DAY = datetime.datetime(2024, 2, 1)
ROWS = 40


def table() -> pa.Table:
    ids = range(ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "i8": pa.array([i - 20 if i % 7 else None for i in ids], pa.int8()),
            "u64": pa.array([2**64 - 1 - i for i in ids], pa.uint64()),
            "x": pa.array([(-0.0, math.nan, 1.5, None, math.inf, 0.0, -2.5, 0.1)[i % 8] for i in ids]),
            "g": pa.array([(0.0, math.nan, 0.1, None)[i % 4] for i in ids], pa.float32()),
            "s": pa.array([(None, "", "ab", "a%b", "b_a", "é")[i % 6] for i in ids]),
            "big": pa.array([f"n{i}" for i in ids], pa.large_string()),
            "b": pa.array([(True, False, None)[i % 3] for i in ids]),
            "bin": pa.array([bytes([i % 3]) for i in ids], pa.binary()),
            "day": pa.array([DAY.date() + datetime.timedelta(days=i) for i in ids]),
            "at": pa.array([DAY + datetime.timedelta(hours=i) for i in ids], pa.timestamp("us", "UTC")),
            "ms": pa.array([DAY + datetime.timedelta(hours=i) for i in ids], pa.timestamp("ms")),
            "ns": pa.array([i * 1000 + 7 for i in ids], pa.timestamp("ns")),
            "m": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(9, 2)),
            "st": pa.array([{"a": i, "t": {"z": str(i)}} if i % 5 else None for i in ids]),
            "v": pa.array([[float(i)] * 4 for i in ids], pa.list_(pa.float32(), 4)),
            "d": pa.array([f"d{i % 3}" for i in ids]).dictionary_encode(),
        }
    )


@pytest.fixture(scope="module")
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    # Every row comes from a task.
    session.conf.set("spark.lance.localRows", "0")
    yield spark_lance.enable(session)
    spark.newSession()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = str(tmp_path_factory.mktemp("pruning") / "t.lance")
    data = table()
    spark_lance.write_dataset(data.slice(0, 25), location)
    spark_lance.write_dataset(data.slice(25), location, mode="append")
    return location


def load(session: SparkSession, path: str, **options: Any) -> DataFrame:
    return session.read.format("lance").options(**options).load(path)


def scans(frame: DataFrame) -> list[Any]:
    """The scans of an executed query, from the left."""
    results = []
    waiting = [frame._jdf.queryExecution().executedPlan()]
    while waiting:
        node = waiting.pop(0)
        if node.nodeName().startswith("BatchScan"):
            results.append(node)
        children = [node.children().apply(i) for i in range(node.children().size())]
        # What a broadcast or a code generation wraps is a child, too.
        waiting = children + waiting
    return results


def read_columns(frame: DataFrame) -> list[str]:
    (scan,) = scans(frame)
    return list(scan.scan().readSchema().fieldNames())


def read_rows(frame: DataFrame) -> int:
    """Run a query; how many rows its scan brought to Spark."""
    frame.collect()
    (scan,) = scans(frame)
    return int(scan.metrics().apply("numOutputRows").value())


def test_columns_that_are_not_used_are_not_read(enabled: SparkSession, path: str) -> None:
    frame = load(enabled, path)
    assert read_columns(frame.agg(f.sum("id"))) == ["id"]
    assert read_columns(frame.where("x > 5").select("s")) == ["s"]
    assert read_columns(frame.select(f.upper("big"), "id").where("i8 % 2 = 1")) == ["id", "i8", "big"]
    assert read_columns(frame) == table().column_names
    assert read_columns(frame.groupBy("d").agg(f.max("id"))) == ["id", "d"]
    assert frame.agg(f.sum("id")).first() == (sum(range(ROWS)),)
    frame.createOrReplaceTempView("pruned")
    assert read_columns(enabled.sql("select max(day) from pruned where b")) == ["day"]


def test_parts_of_structs_that_are_not_used_are_not_read(enabled: SparkSession, path: str) -> None:
    query = load(enabled, path).select("st.t.z", "id")
    (scan,) = scans(query)
    assert scan.scan().readSchema().toDDL() == "id BIGINT,st STRUCT<t: STRUCT<z: STRING>>"
    assert [row.z for row in query.orderBy("id").take(7)] == [None, "1", "2", "3", "4", None, "6"]


FILTERS = [
    "id = 7",
    "id in (1, 2, 39, 99)",
    "id not in (1, 2)",
    "id > 5 and id <= 20 and s like 'a%'",
    "i8 is null",
    "i8 = -3",
    "not (i8 = -3)",
    "u64 = 18446744073709551615",
    "x = 'NaN'",
    "x > 1.5D",
    "x = 0.0D",
    "x >= 0.1D",
    "x <=> null",
    "g = float('0.1')",
    "g > float('0.1')",
    "s = ''",
    "s like '%a'",
    "s like '%\\\\%%'",
    "s > 'a'",
    "s <> 'ab'",
    "s is not null",
    "big like 'n1%'",
    "b",
    "not b",
    "b is null",
    "bin = X'01'",
    "day > date '2024-02-20'",
    "at >= timestamp '2024-02-02 00:00:00'",
    "ms < timestamp_ntz '2024-02-02 00:00:00'",
    "ns = timestamp_ntz '1970-01-01 00:00:00.000005'",
    "m = 2.5",
    "m > 9.5",
    "st.a = 7",
    "st.t.z = '9'",
    "st is null",
    "d = 'd1'",
    "id = 3 or s = 'é'",
    "size(v) = 4 and v[0] > 30",
    "upper(s) = 'AB'",
    "id % 2 = 0 and id < 10",
]


@pytest.fixture(scope="module")
def without_pushing(spark: SparkSession, path: str) -> dict[str, list[int]]:
    """What each condition finds where Spark computes it for all rows."""
    rows = load(spark, path).selectExpr("id", *FILTERS).collect()
    return {one: sorted(row[0] for row in rows if row[place + 1]) for place, one in enumerate(FILTERS)}


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_find_what_they_find_without_pushing(
    enabled: SparkSession, path: str, without_pushing: dict[str, list[int]], condition: str
) -> None:
    query = load(enabled, path).where(condition).select("id")
    assert sorted(row.id for row in query.collect()) == without_pushing[condition]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("id = 7", 1),
        ("id in (1, 2, 39, 99)", 3),
        # Spark adds that s is not null.
        ("id > 5 and id <= 20 and upper(s) = 'AB'", 12),
        ("x = 'NaN'", 5),
        ("x = 0.0D", 10),
        ("s like 'a%'", 14),
        ("st.a = 7", 1),
        ("d = 'd1'", 13),
        ("at >= timestamp '2024-02-02 00:00:00'", 16),
        ("m > 9.5", 1),
        # Spark sees microseconds, the table holds nanoseconds: only nulls can be told from them.
        ("ns = timestamp_ntz '1970-01-01 00:00:00.000005'", ROWS),
        ("id = 3 or s = 'é'", 7),
        ("id = 3 or upper(s) = 'É'", ROWS),
    ],
)
def test_filters_reach_the_table(enabled: SparkSession, path: str, condition: str, rows: int) -> None:
    assert read_rows(load(enabled, path).where(condition)) == rows


def test_queries_of_one_frame_do_not_share_filters(enabled: SparkSession, path: str) -> None:
    frame = load(enabled, path)
    some, few = frame.where("id < 10"), frame.where("id > 37")
    for _ in range(2):
        counts = [len(query.collect()) for query in (some, few, frame, frame.select("id"), some.select("id"))]
        assert counts == [10, 2, ROWS, ROWS, 10]
    assert some.union(few).union(frame).count() == ROWS + 12
    joined = some.alias("l").join(frame.alias("r"), f.expr("l.id = r.id"))
    assert joined.count() == 10


def test_the_version_stays_pinned(enabled: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "t.lance")
    spark_lance.write_dataset(table().slice(0, 5), location)
    frame = load(enabled, location)
    assert frame.agg(f.sum("id")).first() == (10,)
    spark_lance.write_dataset(table().slice(5, 5), location, mode="append")
    assert frame.agg(f.sum("id")).first() == (10,)
    assert frame.where("id > 1").select("id").count() == 3
    assert load(enabled, location).where("id > 1").count() == 8


def test_small_tables_are_broadcast(enabled: SparkSession, path: str) -> None:
    left, right = load(enabled, path).select("id", "s"), load(enabled, path).select("id", "x")
    joined = left.join(right, "id")
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert joined.count() == ROWS
    enabled.conf.set("spark.sql.autoBroadcastJoinThreshold", "100")
    try:
        joined = load(enabled, path).join(load(enabled, path), "id")
        assert "SortMergeJoin" in joined._jdf.queryExecution().executedPlan().toString()
    finally:
        enabled.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize("condition", ["id > 5 and st.t.z = '7'", "x is null and id < 20", "ID = 3"])
def test_option_filter(spark: SparkSession, path: str, condition: str) -> None:
    expected = load(spark, path).where(condition).orderBy("id").collect()
    assert load(spark, path, filter=condition).orderBy("id").collect() == expected
    assert load(spark, path, filter=condition, columns="s").count() == len(expected)


def test_system_columns(spark: SparkSession, path: str) -> None:
    frame = load(spark, path, with_row_id=True, with_row_address=True, columns="id")
    assert frame.schema["_rowid"].dataType == st.LongType()
    results = {row.id: (row._rowid, row._rowaddr) for row in frame.collect()}
    assert results[3] == (3, 3)
    assert results[26] == (2**32 + 1, 2**32 + 1)
    expected = load(spark, path, columns="_rowaddr,_rowoffset,id").where("_rowaddr in (4294967297, 5)")
    assert sorted(row.id for row in expected.collect()) == [5, 26]
    assert [row._rowoffset for row in expected.orderBy("id").collect()] == [5, 26]


def test_tags_branches_and_times(spark: SparkSession, path: str) -> None:
    dataset = spark_lance.dataset(path)
    dataset.tags.create("first", 1)
    branch = dataset.create_branch("dev", 1)
    spark_lance.write_dataset(table().slice(0, 3), branch.uri, mode="append")
    assert load(spark, path, tag="first").count() == 25
    assert load(spark, path, branch="dev").count() == 28
    assert load(spark, path, branch="dev", version=1).count() == 25
    assert load(spark, path, branch="main").count() == ROWS
    assert load(spark, path, asof="2100-01-01T00:00:00Z").count() == ROWS
    with pytest.raises(Exception, match="no version at or before"):
        load(spark, path, timestampAsOf="2001-01-01T00:00:00Z")
    with pytest.raises(Exception, match="branch 'none'"):
        load(spark, path, branch="none")
    with pytest.raises(Exception, match="one of the options"):
        load(spark, path, tag="first", version=1)
