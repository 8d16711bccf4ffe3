"""Aggregates and first rows that indices answer: what Spark says of all rows, and little is read for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.io.local import LocalStore
from spark_lance.io.store import Store
from spark_lance.spark.scan.rows import LanceReader
from tests.conftest import interpreted
from tests.spark.scan.test_driver_planning import values
from tests.spark.scan.test_pruning import scans

COLUMNS = ("f", "d", "n", "t", "w", "day", "s", "raw", "yes", "i", "st.x")
# What is told apart by Spark as it is by an index.
GROUPS = ("n", "t", "day", "s", "raw", "yes", "i", "st.x")
ROWS = 400


@pytest.fixture(scope="module")
def driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    # A table of which the driver may not read all rows.
    session.conf.set("spark.lance.localRows", "50")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    with pytest.MonkeyPatch.context() as patch:
        # What no index tells is left to tasks here; see test_small_aggregates.py.
        patch.setattr(LanceReader, "stream_if_small", lambda reader, most_bytes: None)
        yield spark_lance.enable(session, root=str(tmp_path_factory.mktemp("aggregates")))
    spark.newSession()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that this process reads from."""
    results: list[str] = []
    for name in ("read", "read_ranges", "map"):
        original = getattr(LocalStore, name)

        def counted(store: Store, path: str, *rest: Any, _original: Any = original) -> Any:
            results.append(path)
            return _original(store, path, *rest)

        monkeypatch.setattr(LocalStore, name, counted)
    return results


def made(place: Path, seed: int, kind: str, *, stable: bool = False) -> None:
    """A table of several fragments with deleted and changed rows, all of it covered by indices."""
    rows = values(seed)
    for part in range(3):
        piece = rows.slice(part * ROWS // 3, ROWS // 3)
        spark_lance.write_dataset(piece, str(place), mode="append", enable_stable_row_ids=stable)
    draw = random.Random(seed)
    for name in COLUMNS:
        spark_lance.dataset(str(place)).create_scalar_index(name, kind)
    spark_lance.dataset(str(place)).delete(f"id % 7 = {draw.randrange(7)} or i = 2147483647 or raw = X'FF'")
    if draw.random() < 0.7:
        which = f"id % 9 = {draw.randrange(9)}"
        spark_lance.dataset(str(place)).update({"i": "77", "s": "'zz'"}, where=which)
        spark_lance.dataset(str(place)).optimize.optimize_indices()
    if draw.random() < 0.3:
        spark_lance.dataset(str(place)).delete("s is null")


def plain(session: SparkSession, place: Path) -> DataFrame:
    """The rows in Spark's memory."""
    session.conf.set("spark.lance.planInDriver", "false")
    frame = session.read.format("lance").load(str(place))
    # Held by the JVM: hundreds of queries would each take them from Python again. A cache would leave out NaN
    # where `<=>` asks for it.
    result = session.createDataFrame(frame.collect(), frame.schema).coalesce(1).localCheckpoint()
    session.conf.set("spark.lance.planInDriver", "true")
    return result


def told(frame: DataFrame) -> list[str]:
    return sorted(str(row).replace("-0.0", "0.0") for row in frame.collect())


def is_answered(frame: DataFrame) -> bool:
    """Whether nothing is left to compute."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "LocalTableScan" in plan and "Aggregate" not in plan and not scans(frame)


# By default every second query.
@pytest.mark.parametrize(
    ("kind", "seed", "stable", "step"),
    [
        ("BTREE", 1, True, 2),
        pytest.param("BTREE", 1, True, 1, marks=pytest.mark.slow),
        pytest.param("BITMAP", 3, False, 1, marks=pytest.mark.slow),
        pytest.param("ZONEMAP", 5, False, 1, marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_of_all_rows(
    driver: SparkSession, tmp_path: Path, kind: str, seed: int, stable: bool, step: int
) -> None:
    place = tmp_path / "t.lance"
    made(place, seed, kind, stable=stable)
    plain(driver, place).createOrReplaceTempView("all_rows")
    driver.read.format("lance").load(str(place)).createOrReplaceTempView("table_rows")
    queries = [f"SELECT count({c}), min({c}), max({c}), count(*) FROM {{rows}}" for c in COLUMNS]
    queries += [f"SELECT count({c}) FROM {{rows}}" for c in COLUMNS[::3]]
    queries += [f"SELECT {c}, count(*) AS rows, count({c}) FROM {{rows}} GROUP BY {c}" for c in GROUPS]
    queries += [f"SELECT DISTINCT {c} FROM {{rows}}" for c in ("s", "f")]
    queries += [
        "SELECT count(DISTINCT s), count(DISTINCT i) FROM {rows}",
        "SELECT d, count(*) FROM {rows} GROUP BY d",
    ]
    answered = 0
    for query in queries[::step]:
        frame = driver.sql(query.format(rows="table_rows"))
        assert told(frame) == told(driver.sql(query.format(rows="all_rows"))), query
        answered += is_answered(frame)
    # Neither floats nor zones tell everything; see the next test for those that have to be answered.
    assert answered >= {"BTREE": 8, "BITMAP": 8, "ZONEMAP": 0}[kind] // step


# Conditions that an index answers, and some that none does.
WHERE = (
    "i > 0", "i in (0, 1, 77)", "i <= -1 or i = 77", "s = 'zz'", "s like 'a%'", "s is null", "s is not null",
    "s in ('a', 'é', null)", "n >= 0", "n = 1.5 and s > 'a'", "day = date'2024-02-29'",
    "raw = X'FF' or raw = X''",
    "t > timestamp'2024-02-29 00:00:00+01:00'", "yes", "not yes", "f = 0.0", "f > 1", "d < double('-0.0')",
    "d <=> double('nan')", "d in (0.1, double('nan'))", "st.x = 1", "st.x is null", "i = 1 and f is null",
    "s = 'nobody has this'", "i between -1 and 1 and (s = 'a' or n is null)",
    "id % 2 = 0", "i / 2 > 0 and s = 'a'",
)  # fmt: skip


# Some conditions are asked of each kind of index, all of them of all kinds by the slow tests.
@pytest.mark.parametrize(
    ("kind", "seed", "stable", "conditions"),
    [
        pytest.param("BTREE", 21, True, WHERE[::6], id="BTREE"),
        pytest.param("BITMAP", 23, False, WHERE[2::6], id="BITMAP"),
        pytest.param("BTREE", 22, False, WHERE, id="all-BTREE", marks=pytest.mark.slow),
        pytest.param("BTREE", 21, True, WHERE, id="changed-BTREE", marks=pytest.mark.slow),
        pytest.param("BITMAP", 23, False, WHERE, id="all-BITMAP", marks=pytest.mark.slow),
    ],
)
def test_answers_about_some_rows_are_those_of_these_rows(
    driver: SparkSession, tmp_path: Path, kind: str, seed: int, stable: bool, conditions: tuple[str, ...]
) -> None:
    place = tmp_path / "t.lance"
    made(place, seed, kind, stable=stable)
    plain(driver, place).createOrReplaceTempView("all_rows")
    driver.read.format("lance").load(str(place)).createOrReplaceTempView("table_rows")
    draw = random.Random(seed)
    answered = 0
    for condition in conditions:
        column, group = draw.choice(COLUMNS), draw.choice(GROUPS)
        queries = [
            f"SELECT count(*) FROM {{rows}} WHERE {condition}",
            f"SELECT count({column}), min({column}), max({column}) FROM {{rows}} WHERE {condition}",
            f"SELECT {group}, count(*), count({group}) FROM {{rows}} WHERE {condition} GROUP BY {group}",
        ]
        for query in queries:
            frame = driver.sql(query.format(rows="table_rows"))
            assert told(frame) == told(driver.sql(query.format(rows="all_rows"))), query
            answered += is_answered(frame)
        tail = f"WHERE {condition} ORDER BY {column} {draw.choice(['', 'DESC', 'NULLS LAST'])} LIMIT 5"
        got = driver.sql(f"SELECT {column} AS c FROM table_rows {tail}").collect()
        expected = driver.sql(f"SELECT {column} AS c FROM all_rows {tail}").collect()
        assert [str(row.c).replace("-0.0", "0.0") for row in got] == [
            str(row.c).replace("-0.0", "0.0") for row in expected
        ], tail
    assert answered >= {"BTREE": 15, "BITMAP": 30}[kind] * len(conditions) // len(WHERE)


def test_answers_about_some_rows_read_no_data(driver: SparkSession, tmp_path: Path, reads: list[str]) -> None:
    rows = 100_000
    table = pa.table(
        {
            "a": pa.array([(i * 7919) % rows for i in range(rows)], pa.int64()),
            "g": [f"g{i % 5}" for i in range(rows)],
            "free": range(rows),
        }
    )
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(table, place, max_rows_per_file=20_000)
    spark_lance.dataset(place).create_scalar_index("a", "BTREE")
    spark_lance.dataset(place).create_scalar_index("g", "BITMAP")
    spark_lance.dataset(place).delete("a < 10 or a >= 99990")
    left = table.filter((pc.field("a") >= 10) & (pc.field("a") < 99990))

    def some(condition: pc.Expression) -> pa.Table:
        return left.filter(condition)

    driver.table(f"lance.`{place}`").createOrReplaceTempView("t")
    high, third = some(pc.field("a") >= 60_000), some(pc.field("g") == "g3")
    questions: dict[str, list[Any]] = {
        "SELECT count(*), count(a), count(g) FROM t WHERE a >= 60000": [(len(high),) * 3],
        "SELECT count(*) FROM t WHERE g = 'g3' AND a >= 60000": [
            (third.filter(pc.field("a") >= 60_000).num_rows,)
        ],
        "SELECT g, count(*) FROM t WHERE a >= 60000 GROUP BY g": [
            (f"g{i}", high.filter(pc.field("g") == f"g{i}").num_rows) for i in range(5)
        ],
        "SELECT count(DISTINCT g) FROM t WHERE g > 'g1'": [(3,)],
    }
    for query, expected in questions.items():
        reads.clear()
        frame = driver.sql(query)
        assert sorted(frame.collect()) == expected, query
        assert is_answered(frame), query
        assert not [path for path in reads if "/data/" in path], query
    # Values are read from the rows that the index names, and no others.
    ends: dict[str, list[Any]] = {
        "SELECT min(a), max(a) FROM t WHERE g = 'g3'": [
            (pc.min(third["a"]).as_py(), pc.max(third["a"]).as_py())
        ],
        "SELECT a FROM t WHERE g = 'g3' ORDER BY a DESC LIMIT 3": [
            (a,) for a in sorted(third["a"].to_pylist())[-3:]
        ],
    }
    for query, expected in ends.items():
        reads.clear()
        frame = driver.sql(query)
        assert sorted(frame.collect()) == sorted(expected), query
        assert not scans(frame), query
        assert len({path for path in reads if "/data/" in path}) <= 3, query
    # A column without an index says nothing, nor does one that does not know all rows.
    assert not is_answered(driver.sql("SELECT max(a) FROM t WHERE free > 5"))
    spark_lance.write_dataset(table.slice(0, 10), place, mode="append")
    frame = driver.table(f"lance.`{place}`").where("a >= 60000")
    assert frame.count() == len(high) + table.slice(0, 10).filter(pc.field("a") >= 60_000).num_rows
    assert frame.groupBy("g").count().count() == 5


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
def test_little_is_read_for_them(driver: SparkSession, tmp_path: Path, kind: str, reads: list[str]) -> None:
    rows = 100_000
    table = pa.table({"a": pa.array(range(rows)).cast(pa.int64()), "g": [f"g{i % 5}" for i in range(rows)]})
    spark_lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=20_000)
    for name in ("a", "g") if kind != "BITMAP" else ("g",):
        spark_lance.dataset(str(tmp_path / "t.lance")).create_scalar_index(name, kind)
    spark_lance.dataset(str(tmp_path / "t.lance")).delete("a in (0, 99999) or g = 'g4' and a < 1000")
    named = driver.sql(f"SELECT * FROM lance.`{tmp_path}/t.lance`")
    for frame in (named, driver.read.format("lance").load(str(tmp_path / "t.lance"))):
        frame.createOrReplaceTempView("t")
        reads.clear()
        column = "g" if kind == "BITMAP" else "a"
        result = driver.sql(f"SELECT min({column}), max({column}), count({column}) FROM t")
        least, greatest = ("g0", "g4") if kind == "BITMAP" else (1, 99998)
        assert result.collect() == [(least, greatest, rows - 202)]
        assert is_answered(result)
        assert len({path for path in reads if "/data/" in path}) <= 2
        if kind != "BITMAP":
            continue
        reads.clear()
        groups = driver.sql("SELECT g, count(*) FROM t GROUP BY g")
        assert sorted(groups.collect())[-1] == ("g4", 19_799)
        assert is_answered(groups)
        assert sorted(driver.sql("SELECT g, count(*) FROM t GROUP BY g LIMIT 2").collect())[0][1] > 0
        assert driver.sql("SELECT g, count(*) FROM t GROUP BY g LIMIT 2").count() == 2
        fewest = driver.sql("SELECT count(*) AS n FROM t GROUP BY g ORDER BY n LIMIT 1")
        assert fewest.collect() == [(19_799,)]
        assert driver.sql("SELECT g FROM t GROUP BY g HAVING count(*) < 19900").collect() == [("g4",)]
        assert driver.sql("SELECT count(DISTINCT g) FROM t").collect() == [(5,)]
        assert not [path for path in reads if "/data/" in path]


def test_what_an_index_does_not_cover_is_left_to_tasks(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"a": [5, 6, None]}), place)
    spark_lance.dataset(place).create_scalar_index("a", "BTREE")
    query = f"SELECT min(a), max(a), count(a) FROM lance.`{place}`"
    assert is_answered(driver.sql(query))
    spark_lance.write_dataset(pa.table({"a": [1, 9, None]}), place, mode="append")
    assert not is_answered(driver.sql(query))
    assert driver.sql(query).collect() == [(1, 9, 4)]
    old = driver.sql(f"SELECT min(a), max(a), count(a) FROM lance.`{place}` VERSION AS OF 2")
    assert is_answered(old)
    assert old.collect() == [(5, 6, 2)]
    # Parts of a table are other rows than those an index tells of.
    spark_lance.dataset(place).optimize.optimize_indices()
    assert driver.sql(f"{query} WHERE a > 5").collect() == [(6, 9, 2)]
    part = driver.read.format("lance").option("filter", "a < 6").load(place)
    assert part.selectExpr("max(a)", "count(a)").collect() == [(5, 2)]
    half = driver.read.format("lance").option("fragments", "0").load(place)
    assert half.selectExpr("max(a)", "count(a)").collect() == [(6, 2)]
    assert driver.sql(f"SELECT max(a) FROM (SELECT * FROM lance.`{place}` LIMIT 2)").collect() == [(6,)]
    assert driver.sql(f"SELECT sum(a), max(a) FROM lance.`{place}`").collect() == [(21, 9)]
    assert driver.sql(f"SELECT max(a) FILTER (WHERE a < 6) FROM lance.`{place}`").collect() == [(5,)]
    driver.conf.set("spark.lance.localRows", "0")
    assert not is_answered(driver.sql(query))
    driver.conf.set("spark.lance.localRows", "50")


def test_an_empty_table_has_no_extremes(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"a": pa.array([1, 2], pa.int64())}), place)
    for kind in ("BTREE", "BITMAP"):
        spark_lance.dataset(place).create_scalar_index("a", kind, name=kind)
    spark_lance.dataset(place).delete("a = 1")
    assert driver.sql(f"SELECT min(a), count(a) FROM lance.`{place}`").collect() == [(2, 1)]
    spark_lance.dataset(place).delete("true")
    assert driver.sql(f"SELECT min(a), max(a), count(a) FROM lance.`{place}`").collect() == [(None, None, 0)]
    assert driver.sql(f"SELECT a, count(*) FROM lance.`{place}` GROUP BY a").collect() == []


@pytest.mark.parametrize(
    ("kind", "seed"), [("BTREE", 12), pytest.param("BITMAP", 13, marks=pytest.mark.slow)]
)
def test_first_rows_are_those_of_the_whole_order(
    driver: SparkSession, tmp_path: Path, kind: str, seed: int
) -> None:
    place = tmp_path / "t.lance"
    made(place, seed, kind, stable=kind == "BTREE" and seed == 12)
    plain(driver, place).createOrReplaceTempView("all_rows")
    driver.read.format("lance").load(str(place)).createOrReplaceTempView("table_rows")
    draw = random.Random(seed)
    used = 0
    for column in COLUMNS:
        for order in draw.sample(("", "DESC", "NULLS LAST", "DESC NULLS FIRST"), 2):
            # Of equal values any row will do, so only these are compared.
            tail = f"ORDER BY {column} {order} LIMIT {draw.choice([1, 7, 40])}"
            tail += draw.choice(["", " OFFSET 2"])
            frame = driver.sql(f"SELECT {column} AS c, id FROM table_rows {tail}")
            expected = driver.sql(f"SELECT {column} AS c FROM all_rows {tail}")
            got = frame.collect()
            assert [str(r.c).replace("-0.0", "0.0") for r in got] == [
                str(r.c).replace("-0.0", "0.0") for r in expected.collect()
            ], tail
            assert len({r.id for r in got}) == len(got)
            used += not scans(frame)
    assert used >= 8


def test_first_rows_are_read_alone(driver: SparkSession, tmp_path: Path, reads: list[str]) -> None:
    place = str(tmp_path / "t.lance")
    rows = 60_000
    table = pa.table({"a": [(i * 7919) % rows for i in range(rows)], "b": [str(i) for i in range(rows)]})
    spark_lance.write_dataset(table, place, max_rows_per_file=10_000)
    spark_lance.dataset(place).create_scalar_index("a", "BTREE")
    for frame in (driver.table(f"lance.`{place}`"), driver.read.format("lance").load(place)):
        reads.clear()
        top = frame.orderBy(frame.a.desc()).limit(3)
        assert [row.a for row in top.collect()] == [rows - 1, rows - 2, rows - 3]
        assert not scans(top)
        assert len({path for path in reads if "/data/" in path}) <= 3
        # By tasks, they are all that these read.
        driver.conf.set("spark.lance.localRows", "0")
        by_tasks = frame.orderBy("a").limit(5)
        assert [row.a for row in by_tasks.collect()] == [0, 1, 2, 3, 4]
        (scan,) = scans(by_tasks)
        assert int(scan.metrics().apply("numOutputRows").value()) == 5
        driver.conf.set("spark.lance.localRows", "50")
        # Two columns, a condition, a computed order: Spark reads all of it.
        assert [row.a for row in frame.orderBy("a", "b").limit(2).collect()] == [0, 1]
        assert [row.a for row in frame.where("b > '5'").orderBy("a").limit(2).collect()] == sorted(
            a for a, b in zip(*table.to_pydict().values(), strict=True) if b > "5"
        )[:2]
        assert [row.a for row in frame.orderBy(-frame.a).limit(1).collect()] == [rows - 1]
        assert frame.orderBy("a").limit(rows).count() == rows


def test_columns_have_statistics_where_an_index_has_them(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    rows = 20_000
    table = pa.table(
        {"a": range(rows), "g": [None if i % 4 == 0 else i % 5 for i in range(rows)], "x": range(rows)}
    )
    spark_lance.write_dataset(table, place)
    spark_lance.dataset(place).create_scalar_index("a", "BTREE")
    spark_lance.dataset(place).create_scalar_index("g", "BITMAP")

    def statistics() -> dict[str, Any]:
        frame = driver.table(f"lance.`{place}`").where("x >= 0")
        plan = frame._jdf.queryExecution().optimizedPlan()
        while plan.children().size():
            plan = plan.children().apply(0)
        stats = plan.stats().attributeStats()
        results = {}
        for i in range(plan.output().size()):
            column = plan.output().apply(i)
            if stats.contains(column):
                one = stats.apply(column)
                results[column.name()] = [
                    str(part.get()) if part.isDefined() else None
                    for part in (one.distinctCount(), one.nullCount(), one.min(), one.max())
                ]
        return results

    assert statistics() == {}
    driver.conf.set("spark.sql.cbo.enabled", "true")
    try:
        assert statistics() == {
            "a": [None, "0", "0", str(rows - 1)],
            "g": ["5", str(rows // 4), "0", "4"],
        }
        assert driver.table(f"lance.`{place}`").where("a < 3").count() == 3
    finally:
        driver.conf.unset("spark.sql.cbo.enabled")
