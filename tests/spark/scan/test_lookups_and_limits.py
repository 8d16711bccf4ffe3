"""Row look-ups, system columns and limits through Spark: the right rows, and hardly more is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

import spark_lance
from tests.conftest import interpreted
from tests.spark.scan.test_pruning import scans

ROWS = 60
SYSTEM = (
    "_rowid",
    "_rowaddr",
    "_rowoffset",
    "_fragid",
    "_row_created_at_version",
    "_row_last_updated_at_version",
)
ALL_BY_OPTION = {
    "with_row_id": True,
    "with_row_address": True,
    "with_row_offset": True,
    "with_fragment_id": True,
    "with_row_versions": True,
}


@pytest.fixture(scope="module")
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    session.conf.set("spark.sql.adaptive.enabled", "false")
    # Every row comes from a task.
    session.conf.set("spark.lance.localRows", "0")
    yield spark_lance.enable(session)
    spark.newSession()


def made(folder: Path, stable: bool) -> str:
    """Make a table of six fragments, two of which have deleted rows; one was moved by an update."""
    location = str(folder / "t.lance")
    for start in range(0, ROWS, 10):
        rows = pa.table(
            {"id": range(start, start + 10), "s": [f"s{i % 7}" for i in range(start, start + 10)]}
        )
        spark_lance.write_dataset(rows, location, mode="append", enable_stable_row_ids=stable)
    table = spark_lance.dataset(location)
    table.delete("id in (3, 4, 25)")
    spark_lance.dataset(location).update({"s": "'new'"}, where="id in (11, 12)")
    return location


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("lookups"), request.param)


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("stable"), True)


def load(session: SparkSession, path: str, **options: Any) -> DataFrame:
    return session.read.format("lance").options(**options).load(path)


def facts(path: str) -> pa.Table:
    return spark_lance.dataset(path).to_table(["id", "s", *SYSTEM])


def ran(frame: DataFrame) -> tuple[list[Any], int, int]:
    """Run a query; its rows, and how many rows in how many partitions its scan brought to Spark."""
    rows = frame.collect()
    (scan,) = scans(frame)
    read = int(scan.metrics().apply("numOutputRows").value())
    return rows, read, scan.inputRDD().getNumPartitions()


def test_system_columns_by_option_by_name_and_by_schema(spark: SparkSession, path: str) -> None:
    expected = [tuple(row.values()) for row in facts(path).to_pylist()]
    schema = StructType().add("id", "long").add("s", "string")
    for name in SYSTEM:
        schema = schema.add(name, LongType(), False)
    for frame in (
        load(spark, path, **ALL_BY_OPTION),
        load(spark, path, columns=f"id,s,{','.join(SYSTEM)}"),
        spark.read.format("lance").schema(schema).load(path),
    ):
        assert frame.columns == ["id", "s", *SYSTEM]
        assert sorted(map(tuple, frame.collect())) == sorted(expected)
    some = load(spark, path, columns="_fragid,_rowoffset", filter="_fragid in (2, 5) and id % 2 = 1")
    expected_rows = [(row[5], row[4]) for row in expected if row[5] in (2, 5) and row[0] % 2 == 1]
    assert sorted(map(tuple, some.collect())) == sorted(expected_rows)


def test_system_columns_of_a_fragment_that_is_cut(enabled: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"id": range(20_000)}), location)
    spark_lance.dataset(location).delete("id % 3 = 0")
    frame = load(enabled, location, partition_bytes=50_000, **ALL_BY_OPTION)
    query = frame.where("id > 500 and _rowaddr % 2 = 0").select("id", "_rowoffset", "_rowaddr", "_fragid")
    rows, _, partitions = ran(query)
    assert partitions > 2
    live = [i for i in range(20_000) if i % 3]
    expected = [(i, at, i, 0) for at, i in enumerate(live) if i > 500 and i % 2 == 0]
    assert [tuple(row) for row in rows] == expected


def test_look_ups_read_just_the_rows(enabled: SparkSession, path: str) -> None:
    known = {row["id"]: row for row in facts(path).to_pylist()}
    frame = load(enabled, path, **ALL_BY_OPTION)
    for name in ("_rowid", "_rowaddr"):
        one = known[37][name]
        rows, read, partitions = ran(frame.where(f"{name} = {one}").select("id"))
        assert ([row.id for row in rows], read, partitions) == ([37], 1, 1)
        numbers = [known[i][name] for i in (0, 11, 26, 59)] + [2**40, 2**62, -1]
        rows, read, _ = ran(frame.where(frame[name].isin(numbers)).select("id", "s"))
        assert (sorted(row.id for row in rows), read) == ([0, 11, 26, 59], 4)
        by_option = load(enabled, path, filter=f"{name} in ({', '.join(map(str, numbers))})")
        assert sorted(row.id for row in by_option.collect()) == [0, 11, 26, 59]
        assert by_option.count() == 4
    assert ran(frame.where("_fragid = 5").select("id"))[1:] == (10, 1)
    assert frame.where("_fragid = 77").count() == 0
    deleted = 3 if known[5]["_rowid"] == 5 else -1
    assert load(enabled, path, filter=f"_rowid = {deleted}").collect() == []


def test_limits_reach_the_reader(enabled: SparkSession, stable: str) -> None:
    frame = load(enabled, stable, partition_bytes=1)
    assert ran(frame)[2] >= 6
    assert ran(frame.limit(5))[1:] == (5, 1)
    rows, read, partitions = ran(frame.select("s", (frame.id * 2).alias("x")).limit(12))
    assert (len(rows), read, partitions) == (12, 12, 1)
    rows, read, _ = ran(frame.where("id >= 30 and s = 's1'").limit(2))
    assert all(row.id >= 30 and row.s == "s1" for row in rows)
    assert len(rows) == 2
    assert read <= 2 * 6


# With 57 live rows; what a query must answer, as a number of rows or as its only value.
LIMITED: list[tuple[str, int, int | None]] = [
    ("select * from t limit 5", 5, None),
    ("select count(*) from (select * from t limit 50) where id >= 0", 1, 50),
    ("select * from t where id % 7 = 2 limit 4", 4, None),
    ("select * from t where id > 20 and id % 7 = 3 limit 4", 4, None),
    ("select * from t where s = 's1' or id = 5 limit 30", 10, None),
    ("select max(id) from (select id from t order by id desc limit 3)", 1, 59),
    ("select min(id) from (select id from t order by id desc limit 3)", 1, 57),
    ("select id from t limit 7 offset 5", 7, None),
    ("select count(*) from (select * from t limit 13)", 1, 13),
    ("select count(distinct id) from t limit 1", 1, 57),
    ("select s, count(*) from t group by s limit 2", 2, None),
    ("select explode(array(id, id)) from t limit 70", 70, None),
    ("(select * from t limit 5) union all select * from t", 62, None),
    ("select * from t tablesample (100 percent) limit 3", 3, None),
    ("select * from t l join (select id from t limit 40) r on l.id = r.id", 40, None),
    ("select max(n) from (select row_number() over (order by id) n from t limit 4)", 1, None),
    ("select * from t where id in (select id from t limit 30)", 30, None),
    ("with c as (select * from t limit 6) select * from c union all select * from c", 12, None),
    ("select * from t limit 0", 0, None),
    ("select * from t limit 1000", 57, None),
    ("select * from (select * from t limit 20) limit 10", 10, None),
    ("select max(id) from t limit 5", 1, 59),
]


@pytest.mark.parametrize("asked", [LIMITED[::2], pytest.param(LIMITED, marks=pytest.mark.slow)], ids=len)
def test_limits_change_no_results(
    enabled: SparkSession, stable: str, asked: list[tuple[str, int, int | None]]
) -> None:
    load(enabled, stable, partition_bytes=1).createOrReplaceTempView("t")
    for query, count, value in asked:
        rows = enabled.sql(query).collect()
        assert len(rows) == count, query
        assert value is None or rows[0][0] == value, query


@pytest.fixture(scope="module")
def in_memory(enabled: SparkSession, stable: str) -> DataFrame:
    rows = facts(stable)
    kinds = [pa.int64() if pa.types.is_uint64(field.type) else field.type for field in rows.schema]
    signed = rows.cast(pa.schema(list(zip(rows.column_names, kinds, strict=True))))
    return enabled.createDataFrame(signed.to_pandas()).cache()


PREDICATES = [
    "id > {}",
    "id <= {}",
    "s = 's{}'",
    "id % 10 = {}",
    "_rowaddr = {}",
    "_rowid in ({}, 4294967298, 21474836483)",
    "_fragid >= {}",
    "_rowoffset < {}",
    "s is not null",
    "s like 's%' or id = {}",
    "upper(s) = 'S{}'",
]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_queries_answer_as_on_rows_in_memory(
    enabled: SparkSession, stable: str, in_memory: DataFrame, data: st.DataObject
) -> None:
    frame = load(enabled, stable, partition_bytes=1, **ALL_BY_OPTION)
    pair = [frame, in_memory]
    chosen = data.draw(st.lists(st.sampled_from(PREDICATES), max_size=3))
    for text in chosen:
        condition = text.format(data.draw(st.integers(0, 30)))
        pair = [one.where(condition) for one in pair]
    columns = data.draw(st.lists(st.sampled_from(["id", "s", *SYSTEM]), min_size=1, unique=True))
    limit = data.draw(st.none() | st.integers(1, 70))
    pair = [one.select(*columns) for one in pair]
    result, expected = ([tuple(row) for row in one.collect()] for one in pair)
    assert sorted(result, key=repr) == sorted(expected, key=repr)
    if limit is not None:
        some = [tuple(row) for row in pair[0].limit(limit).collect()]
        assert len(some) == min(limit, len(expected))
        left = list(expected)
        for row in some:
            left.remove(row)  # each is one of the rows, and no row comes twice
    assert pair[0].count() == len(expected)
