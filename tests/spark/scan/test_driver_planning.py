"""Scans that the driver's own Python plans and answers: the rows of Spark's own way, and little is read."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.io.local import LocalStore
from spark_lance.io.store import Store
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.sql import bridge
from tests.conftest import interpreted
from tests.spark.scan.test_pruning import scans

PLANS = "spark.lance.planInDriver"
ROWS = 400
PARTS = 4


def values(seed: int) -> pa.Table:
    """Rows with the values that are easily compared in a wrong way."""
    draw = random.Random(seed)
    moments = [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 2, 29), datetime(2300, 1, 1)]
    floats = [float("nan"), -0.0, 0.0, 1.5, -1.5, float("inf"), -float("inf"), 0.1]

    def column(choices: list[Any], nulls: float = 0.2) -> list[Any]:
        return [None if draw.random() < nulls else draw.choice(choices) for _ in range(ROWS)]

    zoned = [moment.replace(tzinfo=timezone.utc) for moment in moments]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "f": pa.array(column(floats), pa.float32()),
            "d": pa.array(column(floats), pa.float64()),
            "n": pa.array(column([Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")]), pa.decimal128(9, 2)),
            "t": pa.array(column(zoned), pa.timestamp("us", "UTC")),
            "w": pa.array(column(moments), pa.timestamp("us")),
            "day": pa.array(column([date(1969, 12, 31), date(2024, 2, 29)]), pa.date32()),
            "s": pa.array(column(["", "a", "ab", "b%", "é", "a_"]), pa.string()),
            "raw": pa.array(column([b"", b"a", b"\xff"]), pa.binary()),
            "yes": pa.array(column([True, False]), pa.bool_()),
            "i": pa.array(column([-(2**31), -1, 0, 1, 2**31 - 1]), pa.int32()),
            "st": pa.array(column([{"x": 1, "y": "a"}, {"x": None, "y": "b"}])),
        }
    )


# Conditions of which some, but not all, have a form for sources.
CONDITIONS = (
    "f = 0.0", "f > 1", "d <=> double('nan')", "d > 1.4", "d < double('-0.0')",
    "d in (0.1, double('nan'), 7)", "f in (float(0.1), float('nan'))", "n = 1.5", "n >= 0",
    "n in (1.5, 0)", "t > timestamp'2024-02-29 00:00:00+01:00'", "t = timestamp'2024-02-29'",
    "w < timestamp_ntz'1970-01-01'", "day = date'2024-02-29'", "s like 'a%'", "s like '%b'",
    "s like '%%'", "s = ''", "s in ('a', 'é', null)", "s not in ('a', 'b%')", "raw = X'FF'", "yes",
    "not yes", "i / 2 > 0", "i between -1 and 1", "st.x = 1", "st.y is null", "st is not null",
    "f is null", "coalesce(i, 5) = 5", "s > 'a'", "id % 2 = 0", "id < 7", "id > 390", "i <=> null",
    "not (d > 1)", "s rlike 'a'",
    "id in (" + ", ".join(map(str, range(0, ROWS, 9))) + ")",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of several fragments with deleted rows, and half of it with an index that does not know all."""
    folder = str(tmp_path_factory.mktemp("driver"))
    place = f"{folder}/t.lance"
    rows = values(7)
    for part in range(PARTS):
        step = ROWS // PARTS
        spark_lance.write_dataset(rows.slice(part * step, step), place, mode="append")
        if part == PARTS // 2:
            for column, kind in (("id", "BTREE"), ("d", "BTREE"), ("s", "BITMAP"), ("i", "ZONEMAP")):
                spark_lance.dataset(place).create_scalar_index(column, kind)
    spark_lance.dataset(place).delete("id % 11 = 3 or id between 100 and 130")
    return folder


@pytest.fixture(scope="module")
def driver(spark: SparkSession, root: str) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    session.conf.set("spark.sql.adaptive.enabled", "false")
    yield spark_lance.enable(session, root=root)
    spark.newSession()


@pytest.fixture(scope="module")
def plain(driver: SparkSession, root: str) -> DataFrame:
    """All rows, in Spark's memory."""
    driver.conf.set(PLANS, "false")
    rows = driver.read.format("lance").load(f"{root}/t.lance").collect()
    schema = driver.read.format("lance").load(f"{root}/t.lance").schema
    driver.conf.set(PLANS, "true")
    return driver.createDataFrame(rows, schema)


def told(frame: DataFrame) -> list[str]:
    """Rows as text, for NaN is not equal to itself."""
    return sorted(map(str, frame.collect()))


def is_local(frame: DataFrame) -> bool:
    return not scans(frame) and "LocalTableScan" in frame._jdf.queryExecution().executedPlan().toString()


def frames(session: SparkSession, root: str) -> list[DataFrame]:
    return [session.table("lance.t"), session.read.format("lance").load(f"{root}/t.lance")]


def only_tasks(session: SparkSession, answers: bool) -> None:
    session.conf.set("spark.lance.localRows", "10000" if answers else "0")


def pairs() -> list[str]:
    """Conditions, alone and in pairs."""
    draw = random.Random(5)
    words = ("and", "or", "and not", "or not")
    joined = [f"({one}) {draw.choice(words)} ({draw.choice(CONDITIONS)})" for one in CONDITIONS]
    return [*CONDITIONS, *joined]


@pytest.fixture(scope="module")
def expected(plain: DataFrame) -> dict[str, list[int]]:
    """The ids that each condition keeps, as Spark computes it without any source."""
    request = pairs()
    columns = [f"coalesce({condition}, false) AS c{number}" for number, condition in enumerate(request)]
    rows = plain.selectExpr("id", *columns).collect()
    return {
        condition: sorted(row.id for row in rows if row[number + 1])
        for number, condition in enumerate(request)
    }


def test_conditions_keep_the_rows_that_spark_would(
    driver: SparkSession, expected: dict[str, list[int]], root: str
) -> None:
    frame = driver.read.format("lance").load(f"{root}/t.lance")
    for condition, ids in expected.items():
        remaining = frame.where(condition).select("id")
        assert is_local(remaining)
        assert sorted(row.id for row in remaining.collect()) == ids, condition


def test_conditions_of_tasks_and_counts_do_so_too(
    driver: SparkSession, expected: dict[str, list[int]], root: str
) -> None:
    frame = driver.table("lance.t")
    draw = random.Random(6)
    for condition in draw.sample(list(expected), 10):
        ids = expected[condition]
        assert frame.where(condition).count() == len(ids), condition
        only_tasks(driver, False)
        try:
            remaining = frame.where(condition).select("id")
            assert sorted(row.id for row in remaining.collect()) == ids, condition
            assert not is_local(remaining)
            assert frame.where(condition).count() == len(ids), condition
        finally:
            only_tasks(driver, True)


def test_counts_are_answered_from_the_manifest(
    driver: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    for name in ("read", "read_ranges", "map"):
        original = getattr(LocalStore, name)

        def counted(store: Store, path: str, *rest: Any, _original: Any = original) -> Any:
            read.append(path)
            return _original(store, path, *rest)

        monkeypatch.setattr(LocalStore, name, counted)
    live = spark_lance.dataset(f"{root}/t.lance").count_rows()
    for frame in frames(driver, root):
        read.clear()
        counted_rows = frame.groupBy().count()
        assert counted_rows.collect() == [(live,)]
        assert is_local(counted_rows)
        assert not [path for path in read if "/data/" in path]


def test_a_count_sees_its_own_version(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"a": [1, 2, 3]}), place)
    old = driver.read.format("lance").load(place)
    with_schema = driver.read.format("lance").schema("a bigint").load(place)
    assert with_schema.count() == 3
    spark_lance.dataset(place).delete("a = 2")
    assert (old.count(), with_schema.count()) == (3, 3)
    assert driver.read.format("lance").load(place).count() == 2
    assert driver.read.format("lance").option("version", 1).load(place).count() == 3
    # Another table in its place.
    spark_lance.write_dataset(pa.table({"a": [7]}), place, mode="overwrite")
    assert driver.read.format("lance").load(place).collect() == [(7,)]


def test_limits_and_offsets(driver: SparkSession, plain: DataFrame, root: str) -> None:
    live = plain.count()
    everything = {str(row) for row in plain.collect()}
    for answers in (True, False):
        only_tasks(driver, answers)
        try:
            for frame in frames(driver, root)[: 1 + answers]:
                for limit, offset in ((150, 0), (5, 90), (10**6, live - 2)):
                    result = told(frame.offset(offset).limit(limit))
                    assert len(result) == max(0, min(limit, live - offset))
                    assert set(result) <= everything
                assert frame.limit(7).count() == 7
                remaining = frame.where("d > 1").limit(3)
                assert len(remaining.collect()) == 3
                assert all(row.d > 1 for row in remaining.where("not isnan(d)").collect())
                # The first rows in scan order, then what is left of them.
                assert [row.id for row in frame.limit(9).where("id > 5").collect()] == [6, 7, 8, 9]
        finally:
            only_tasks(driver, True)


def test_a_limit_in_one_task_leaves_nothing_to_cut_off(driver: SparkSession, root: str) -> None:
    only_tasks(driver, False)
    try:
        for frame in frames(driver, root):
            plan = frame.limit(5)._jdf.queryExecution().executedPlan().toString()
            assert "Limit" not in plan
            assert len(frame.limit(5).collect()) == 5
    finally:
        only_tasks(driver, True)


def test_what_is_too_large_is_left_to_tasks(driver: SparkSession) -> None:
    for name, value in (("localRows", "50"), ("localBytes", "100")):
        driver.conf.set(f"spark.lance.{name}", value)
        try:
            assert not is_local(driver.table("lance.t"))
            assert not is_local(driver.table("lance.t").where("d > 0"))
            assert is_local(driver.table("lance.t").groupBy().count())
        finally:
            driver.conf.unset(f"spark.lance.{name}")
    driver.conf.set("spark.lance.localRows", "many")
    with pytest.raises(PySparkException, match=r"spark\.lance\.localRows is a whole number, not 'many'"):
        driver.table("lance.t").where("d > 0").collect()
    driver.conf.unset("spark.lance.localRows")


def test_a_join_with_few_keys_reads_only_their_rows(driver: SparkSession, root: str, tmp_path: Path) -> None:
    big = pa.table({"k": range(20_000), "v": [f"v{i}" for i in range(20_000)]})
    spark_lance.write_dataset(big, str(tmp_path / "big.lance"))
    spark_lance.dataset(str(tmp_path / "big.lance")).create_scalar_index("k", "BTREE")
    few = driver.createDataFrame([(5, "a"), (19_999, "b"), (None, "c"), (70_000, "d")], "k bigint, x string")
    few.createOrReplaceTempView("few")
    table = driver.read.format("lance").load(str(tmp_path / "big.lance"))
    driver.conf.set("spark.sql.sources.v2.bucketing.enabled", "false")
    # The driver would read the whole of it.
    driver.conf.set("spark.lance.localBytes", "1000")
    joined = table.join(few.where("x != 'zz'").hint("broadcast"), "k").select("k", "v", "x")
    assert sorted(joined.collect()) == [(5, "v5", "a"), (19_999, "v19999", "b")]
    (scan,) = scans(joined)
    assert int(scan.metrics().apply("numOutputRows").value()) == 2
    # A limit is cut off before the join, whatever its keys are.
    driver.conf.set("spark.lance.localRows", "0")
    cut = table.limit(10).join(few.where("x != 'zz'").hint("broadcast"), "k")
    assert [row.k for row in cut.collect()] == [5]
    driver.conf.unset("spark.lance.localRows")


def test_hidden_columns_and_metadata_tables(driver: SparkSession, root: str) -> None:
    result = driver.sql("SELECT id, _rowaddr FROM lance.t WHERE _rowid IN (4294967297, 1)")
    assert is_local(result)
    addresses = spark_lance.dataset(f"{root}/t.lance").to_table(
        ["id", "_rowaddr"], "_rowid in (4294967297, 1)"
    )
    assert sorted(map(tuple, result.collect())) == sorted(
        zip(*[column.to_pylist() for column in addresses.columns], strict=True)
    )
    history = driver.sql("SELECT version FROM lance.t.history WHERE version > 2 ORDER BY version")
    last = spark_lance.dataset(f"{root}/t.lance").version
    assert [row.version for row in history.collect()] == list(range(3, last + 1))
    assert driver.table("lance.t.fragments").count() == PARTS


def test_threads_read_tables_of_their_own_at_once(driver: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        spark_lance.write_dataset(pa.table({"a": [number] * (number + 1)}), str(tmp_path / f"{number}.lance"))
    problems: list[object] = []

    def work(number: int) -> None:
        session = spark_lance.enable(driver.newSession())
        for _ in range(5):
            frame = session.read.format("lance").load(str(tmp_path / f"{number}.lance"))
            result = (frame.count(), frame.where("a >= 0").limit(2).collect()[0].a)
            if result != (number + 1, number):
                problems.append(result)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_without_the_driver_spark_plans_by_itself(driver: SparkSession, plain: DataFrame, root: str) -> None:
    driver.conf.set(PLANS, "false")
    try:
        for frame in frames(driver, root):
            assert told(frame.where("id < 9")) == told(plain.where("id < 9"))
            assert frame.count() == plain.count()
            assert scans(frame)
            assert frame.limit(3).count() == 3
    finally:
        driver.conf.set(PLANS, "true")


def test_moments_beyond_python(driver: SparkSession, tmp_path: Path) -> None:
    far = pa.table({"t": pa.array([2**60, 0, None], pa.timestamp("us", "UTC"))})
    spark_lance.write_dataset(far, str(tmp_path / "far.lance"))
    frame = driver.read.format("lance").load(str(tmp_path / "far.lance"))
    later = datetime(9999, 12, 31, tzinfo=timezone.utc) - timedelta(days=9)
    assert frame.where(f"t > timestamp'{later:%Y-%m-%d}'").count() == 1
    assert frame.where("t < timestamp'+20000-01-01'").count() == 1


def test_searches_are_answered_where_an_index_has_the_rows(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "search.lance")
    draw = random.Random(3)
    vectors = pa.array([[draw.random() for _ in range(8)] for _ in range(600)], pa.list_(pa.float32(), 8))
    words = pa.array([f"word{i % 5} other{i}" for i in range(600)])
    spark_lance.write_dataset(pa.table({"id": range(600), "v": vectors, "s": words}), place)
    table = spark_lance.dataset(place)
    table.create_index("v", "IVF_FLAT", num_partitions=4)
    spark_lance.dataset(place).create_scalar_index("s", "INVERTED")
    spark_lance.dataset(place).delete("id = 7")
    table = spark_lance.dataset(place)
    query = {"column": "v", "q": [0.5] * 8, "k": 5, "nprobes": 4}
    nearest = driver.read.format("lance").option("nearest", json.dumps(query)).load(place)
    assert is_local(nearest)
    expected = table.to_table(["id"], nearest=query)["id"].to_pylist()
    assert [row.id for row in nearest.collect()] == expected
    assert {row.id for row in nearest.where("id % 2 = 0").collect()} == {i for i in expected if i % 2 == 0}
    text = driver.read.format("lance").option("full_text_query", '{"query": "other7 other8", "k": 5}')
    assert [row.id for row in text.load(place).collect()] == [8]
    assert is_local(text.load(place))
    # What no index has is compared one by one: by tasks, if it is much.
    driver.conf.set("spark.lance.localBytes", "100")
    spark_lance.write_dataset(table.to_table(), place, mode="append")
    result = driver.read.format("lance").option("nearest", json.dumps(query)).load(place)
    assert not is_local(result)
    assert len(result.collect()) == 5
    driver.conf.unset("spark.lance.localBytes")


def workers() -> set[int]:
    """The processes in which the Spark of this process runs Python of tasks."""
    commands: dict[int, list[bytes]] = {}
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = parent
    results = set()
    for number, command in commands.items():
        # A worker is forked from the daemon, and has its command.
        if command[-2:-1] == [b"pyspark.worker"] and command == commands.get(parents[number]):
            above = number
            while above in parents and above != os.getpid():
                above = parents[above]
            if above == os.getpid():
                results.add(number)
    return results


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_limit_that_a_task_meets_leaves_its_worker_alive(driver: SparkSession, root: str) -> None:
    only_tasks(driver, False)
    try:
        assert len(driver.table("lance.t").limit(150).collect()) == 150
        before = workers()
        assert before
        for _ in range(3):
            assert len(driver.table("lance.t").limit(150).collect()) == 150
        assert workers() & before
        # Whoever was there is there still: no worker was ended with rows to give.
        assert before <= workers()
    finally:
        only_tasks(driver, True)


def test_options_that_say_what_a_task_reads_are_kept(driver: SparkSession, root: str) -> None:
    reader = driver.read.format("lance").option("with_fragment_id", True)
    frame = reader.option("fragments", "0-2").load(f"{root}/t.lance")
    assert not is_local(frame)
    parts = frame.rdd.mapPartitions(lambda rows: [sorted({row._fragid for row in rows})]).collect()
    assert sorted(number for part in parts for number in part) == [0, 1, 2]
    assert not is_local(reader.option("partition_bytes", "1m").load(f"{root}/t.lance"))


def test_what_is_wrong_is_said_as_without_the_driver(driver: SparkSession, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for reader in (driver.read, driver.read.schema("a bigint")):
        with pytest.raises(PySparkException, match=r"no Lance table at .*missing"):
            reader.format("lance").load(missing).collect()
    with pytest.raises(PySparkException, match="option 'path' is missing"):
        driver.read.format("lance").load().collect()


def test_a_scan_is_one_question(driver: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs: list[str] = []
    answer_to = bridge._find_answer

    def noted(verb: str) -> Any:
        verbs.append(verb)
        return answer_to(verb)

    monkeypatch.setattr(bridge, "_find_answer", noted)
    for frame in frames(driver, root):
        for answers in (True, False):
            only_tasks(driver, answers)
            try:
                for query in (
                    frame.where("d > 1 AND s LIKE 'a%' AND id % 2 = 0").select("id"),
                    frame.where("st.x = 1 OR day IS NULL").limit(3),
                    frame.orderBy("id").limit(5),
                    frame.limit(5),
                ):
                    verbs.clear()
                    query.collect()
                    # Newer releases of Spark load a table by name again.
                    assert [verb for verb in verbs if verb != "load_table"] == ["plan_scan"]
            finally:
                only_tasks(driver, True)


def test_deletes_and_overwrites_take_the_predicates_of_scans(driver: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "gone.lance")
    numbers = [float("nan"), -0.0, 1.5, 2.5, None]
    spark_lance.write_dataset(pa.table({"id": range(5), "x": pa.array(numbers)}), place)

    def test(op: str, column: str, kind: str, value: str) -> dict[str, Any]:
        return {"op": op, "args": [{"path": [column]}, {"type": json.dumps(kind), "value": value}]}

    def delete(*predicates: dict[str, Any]) -> dict[str, Any]:
        request: dict[str, Any] = {"verb": "delete_where", "catalog": "lance", "name": ["gone"]}
        request["predicates"] = predicates
        request["options"] = {"root": str(tmp_path)}
        answer: dict[str, Any] = json.loads(
            bridge.Bridge(driver, LanceDataSource).apply(json.dumps(request), None)
        )
        return answer

    def ids() -> list[int]:
        rows: list[int] = spark_lance.dataset(place).to_table()["id"].to_pylist()
        return sorted(rows)

    # Spark's NaN is greater than all numbers.
    assert delete(test(">", "x", "double", "2.0"), test("<", "id", "long", "3")) == {"answer": None}
    assert ids() == [1, 2, 3, 4]
    refused = delete(test(">", "x", "interval", "2.0"))
    assert "cannot be evaluated as Spark does it" in refused["message"]
    new = driver.createDataFrame([(9, float("nan"))], "id bigint, x double")
    new.write.format("lance").mode("overwrite").option(
        "replaceWhere", json.dumps([test(">", "x", "double", "2.0")])
    ).save(place)
    assert ids() == [1, 2, 4, 9]
    assert delete() == {"answer": None}
    assert ids() == []


def test_explain_and_the_ui_say_what_is_skipped(driver: SparkSession, root: str) -> None:
    only_tasks(driver, False)
    try:
        for frame in frames(driver, root):
            result = frame.where("id > 310 AND i = 1")
            plan = result._jdf.queryExecution().executedPlan().toString()
            (line,) = (line for line in plan.splitlines() if "LanceScan" in line)
            ended = driver._jsc.sc().statusStore().jobsList(None).size()
            rows = result.collect()
            assert driver._jsc.sc().statusStore().jobsList(None).size() > ended
            said = re.search(
                r"LanceScan .*version: \d+; filter: \S.*; index: id_idx \(BTREE\); index: i_idx \(ZONEMAP\); "
                r"fragments: 1 read, 3 skipped; rows: at most (\d+)\]",
                line,
            )
            assert said is not None, line
            assert len(rows) <= int(said[1]) < 100
            shown = amounts(driver, result)
            assert shown.pop("bytes of these rows, about") > 0
            assert shown.pop("bytes read from the store") > 0
            assert shown.pop("requests to the store") >= 2  # of the data file, and of what is deleted in it
            assert shown.pop("cache hits") >= 0
            assert shown.pop("bytes handed over in shared memory") == 0  # they are few
            assert shown == {
                "fragments read": 1,
                "fragments skipped": 3,
                "rows looked at, at most": int(said[1]),
            }
    finally:
        only_tasks(driver, True)


def amounts(session: SparkSession, frame: DataFrame) -> dict[str, int]:
    """The numbers of ours that Spark's UI shows of the query that ran last, by their names there."""
    store = session._jsparkSession.sharedState().statusStore()
    runs = store.executionsList()
    number = max(runs.apply(at).executionId() for at in range(runs.size()))
    names = {metric.accumulatorId(): metric for metric in items(store.execution(number).get().metrics())}
    values = store.executionMetrics(number)
    ours = {key: metric for key, metric in names.items() if metric.metricType().endswith("LanceMetric")}
    assert ours
    return {metric.name(): int(values.apply(key).replace(",", "")) for key, metric in ours.items()}


def items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
