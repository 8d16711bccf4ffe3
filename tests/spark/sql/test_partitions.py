# ruff: noqa: E501
"""Statements about partitions: the same rows as on Parquet, and what a declaration shows of itself."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import LanceError
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.table.format.partition_bounds import read_bounds, single_partition
from spark_lance.table.format.partitions import PartitionSpec
from tests.conftest import interpreted, share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[[str], list[tuple[Any, ...]]]
DYNAMIC = "spark.sql.sources.partitionOverwriteMode"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    return spark_lance.enable(interpreted(spark.newSession()), root=str(tmp_path / "root"))


@pytest.fixture
def run(session: SparkSession) -> Run:
    return lambda text: [tuple(row) for row in session.sql(text).collect()]


def test_buckets_of_hive_are_a_partition_field_and_an_order(session: SparkSession, run: Run) -> None:
    columns = "(id INT, b STRING) USING lance"
    run(f"CREATE TABLE lance.t {columns} CLUSTERED BY (id) SORTED BY (b ASC) INTO 4 BUCKETS")
    run("INSERT INTO lance.t SELECT id, string(100 - id) FROM range(100)")
    table = spark_lance.LanceTable.forName(session, "lance.t")
    assert table.config["sort-order"] == "b"
    assert [field.sql for field in PartitionSpec.of_config(table.config).fields] == ["bucket(4, id)"]
    assert run("SELECT count(*), sum(id) FROM lance.t") == [(100, 4950)]
    assert len(run("SELECT * FROM lance.t.partitions")) == 4
    rows = [row.b for row in session.table("lance.t").collect()]
    assert sum(one > other for one, other in pairwise(rows)) < 4
    with pytest.raises(Exception, match=r"\bc\b"):
        run(f"CREATE TABLE lance.u {columns} CLUSTERED BY (id) SORTED BY (c) INTO 4 BUCKETS")
    assert run("SHOW TABLES IN lance LIKE 'u'") == []


def test_a_declaration_shows_itself_and_changes(session: SparkSession, run: Run) -> None:
    run(
        "CREATE TABLE lance.t (id INT, s STRING, ts TIMESTAMP) PARTITIONED BY (days(ts), bucket(16, id), truncate(2, s))"
    )
    run("INSERT INTO lance.t VALUES (1, 'abc', TIMESTAMP'2026-01-01 10:00:00'), (3, null, null)")
    statement = run("SHOW CREATE TABLE lance.t")[0][0]
    # Spark 4.0 writes buckets as a clause of their own.
    assert "PARTITIONED BY (days(ts), bucket(16, id), truncate(2, s))" in statement or (
        "PARTITIONED BY (days(ts), truncate(2, s))\nCLUSTERED BY (id)\nINTO 16 BUCKETS" in statement
    )
    assert run("SHOW PARTITIONS lance.t") == [
        ("ts_day=2026-01-01/id_bucket=4/s_trunc=ab",),
        ("ts_day=null/id_bucket=3/s_trunc=null",),
    ]
    run("ALTER TABLE lance.t DROP PARTITION FIELD days(ts)")
    run("ALTER TABLE lance.t REPLACE PARTITION FIELD s_trunc WITH truncate(1, s) AS first")
    run("ALTER TABLE lance.t ADD PARTITION FIELD months(ts)")
    parts = [row[1] for row in run("DESCRIBE lance.t") if row[0].startswith("Part ")]
    assert parts == ["bucket(16, id)", "truncate(1, s)", "months(ts)"]
    assert run("SHOW PARTITIONS lance.t")[0] == ("id_bucket=3/first=null/ts_month=null",)
    run("ALTER TABLE lance.t RENAME COLUMN s TO name")
    assert "truncate(1, name)" in run("SHOW CREATE TABLE lance.t")[0][0]
    with pytest.raises(PySparkException, match="DROP PARTITION FIELD bucket"):
        run("ALTER TABLE lance.t DROP COLUMN id")
    run("CREATE OR REPLACE TABLE lance.t AS SELECT 1 AS id")
    assert "PARTITIONED" not in run("SHOW CREATE TABLE lance.t")[0][0]


def test_functions(run: Run) -> None:
    assert {f"lance.system.{name}" for name in ("bucket", "days", "lance_version")} <= {
        row[0] for row in run("SHOW USER FUNCTIONS IN lance.system")
    }
    assert run(
        "SELECT lance.bucket(2147483647, 34), lance.bucket(2147483647, 'iceberg'), lance.truncate(10, -1), "
        "lance.truncate(50, 10.65BD), lance.months(DATE'1969-12-31'), lance.system.bucket(4, CAST(null AS INT)), "
        "lance.hours(TIMESTAMP_NTZ'2017-11-16 22:31:08'), lance.bucket(2147483647, 14.20BD)"
    ) == [
        (
            2017239379,
            1210000089,
            -10,
            Decimal("10.50"),
            -1,
            None,
            419686,
            -500754589 & 0x7FFFFFFF,
        )
    ]
    assert run("SELECT lance.lance_version()") == [(spark_lance.__version__,)]


def test_writers_of_dataframes(session: SparkSession, run: Run, tmp_path: Path) -> None:
    frame: DataFrame = session.range(30_000).selectExpr("id", "CAST(id % 3 AS INT) AS p")
    frame.writeTo("lance.a").partitionedBy("p").create()
    writer = frame.write.format("lance").mode("append")
    writer.partitionBy("p").save(str(tmp_path / "by_path"))
    for items in (["id"], ["p", "id"]):
        with pytest.raises(PySparkException, match="partitioned by p, and option 'partitionBy' has"):
            frame.write.format("lance").mode("append").partitionBy(*items).save(str(tmp_path / "by_path"))
    with pytest.raises(PySparkException, match="'x', and the table has id, p"):
        frame.write.format("lance").mode("append").option("partitionBy", "x").save(str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    again = frame.write.format("lance").mode("overwrite")
    again.partitionBy("p").save(str(tmp_path / "by_path"))
    with_transform = frame.write.format("lance").mode("overwrite").option("partitionBy", "bucket(4, id), P")
    with_transform.save(str(tmp_path / "bucketed"))
    redeclared = (
        frame.where("id < 20").write.format("lance").mode("overwrite").option("overwriteSchema", "true")
    )
    redeclared.partitionBy("id").save(str(tmp_path / "bucketed"))
    stored = spark_lance.dataset(str(tmp_path / "bucketed"))
    assert [field["transform"] for field in json.loads(stored.config()["partition-fields"])] == ["identity"]
    with_transform.option("overwriteSchema", "true").save(str(tmp_path / "bucketed"))
    stored = spark_lance.dataset(str(tmp_path / "bucketed"))
    assert [field["transform"] for field in json.loads(stored.config()["partition-fields"])] == [
        "bucket[4]",
        "identity",
    ]
    for name in ("lance.a", f"lance.`{tmp_path / 'by_path'}`"):
        assert run(f"SHOW PARTITIONS {name}") == [("p=0",), ("p=1",), ("p=2",)]
        assert run(f"SELECT count(*) FROM {name} WHERE p = 1") == [(10_000,)]
    assert run("SELECT count(*) FROM lance.a.data_files") == [(3,)]
    session.sql("SELECT 7L AS id, 1 AS p").writeTo("lance.a").overwritePartitions()
    assert run("SELECT p, count(*) FROM lance.a GROUP BY p ORDER BY p") == [(0, 10_000), (1, 1), (2, 10_000)]


def test_streams_declare_partitions(session: SparkSession, run: Run, tmp_path: Path) -> None:
    frame = session.range(100).selectExpr("id", "CAST(id % 3 AS INT) AS p")
    frame.write.format("lance").mode("append").save(str(tmp_path / "source"))

    def stream() -> Any:
        return session.readStream.format("lance").option("startingVersion", 1).load(str(tmp_path / "source"))

    def append(batch: DataFrame, number: int) -> None:
        writer = (
            batch.write.format("lance").mode("append").option("txnAppId", "s").option("txnVersion", number)
        )
        writer.partitionBy("p").save(str(tmp_path / "batches"))

    names = [f"lance.`{tmp_path / 'batches'}`"]
    queries = [stream().writeStream.foreachBatch(append)]
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        names += [f"lance.`{tmp_path / 'streamed'}`", "lance.named"]
        queries += [
            stream().writeStream.format("lance").option("partitionBy", "p"),
            stream().writeStream.partitionBy("p"),
        ]
    for rounds in (1, 2):
        for place, (name, query) in enumerate(zip(names, queries, strict=True)):
            writer = query.option("checkpointLocation", str(tmp_path / f"c{place}")).trigger(
                availableNow=True
            )
            if name == "lance.named":
                done = writer.toTable("lance.named")
            else:
                done = writer.start(*([str(tmp_path / "streamed")] if place else []))
            done.awaitTermination(120)
            assert run(f"SELECT p, count(*) FROM {name} GROUP BY p ORDER BY p") == [
                (0, 34 * rounds),
                (1, 33 * rounds),
                (2, 33 * rounds),
            ]
            assert run(f"SHOW PARTITIONS {name}") == [("p=0",), ("p=1",), ("p=2",)]
        frame.write.format("lance").mode("append").save(str(tmp_path / "source"))


def column_bounds(session: SparkSession, name: str) -> list[tuple[Any, ...]]:
    """Return the only values of the partition fields of each file; None for a file of several."""
    stored = LanceTable.forName(session, name).dataset()
    spec = PartitionSpec.of_config(stored.config()).bound(stored.lance_schema)
    singles = [single_partition(spec, fragment) for fragment in stored.snapshot.fragments]
    return [() if single is None else tuple(each.low for each in single) for single in singles]


def files_of(session: SparkSession, name: str, column: str = "id") -> list[list[Any]]:
    """Return the values of a column, file by file, in the order in which they are stored."""
    stored = LanceTable.forName(session, name).dataset()
    return [part.to_table(columns=[column])[column].to_pylist() for part in stored.get_fragments()]


def test_writes_sort_rows_by_the_order_of_the_table(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE lance.o (id INT, s STRUCT<`x y`: INT>, m MAP<STRING, INT>)")
    run("ALTER TABLE lance.o WRITE ORDERED BY ID DESC NULLS LAST")
    run("INSERT INTO lance.o VALUES (3, null, null), (null, null, null), (1, null, null), (2, null, null)")
    assert list(chain(*files_of(session, "lance.o"))) == [3, 2, 1, None]
    # Nulls of a struct come first.
    run("ALTER TABLE lance.o WRITE LOCALLY ORDERED BY s.`x y`, id")
    run(
        "INSERT OVERWRITE lance.o VALUES (1, struct(7), null), (2, null, null), (3, struct(4), null), (0, struct(4), null)"
    )
    if len(files_of(session, "lance.o")) == 1:
        assert files_of(session, "lance.o") == [[2, 0, 3, 1]]
    if not session.version.startswith("4.0"):  # Spark 4.0 takes no rows without a column.
        session.sql("SELECT map('a', 1) AS m").writeTo("lance.o").append()
        assert run("SELECT id FROM lance.o WHERE m['a'] = 1") == [(None,)]
    with pytest.raises(PySparkException, match="has maps, which have no order"):
        run("ALTER TABLE lance.o WRITE ORDERED BY m")


@pytest.mark.slow
def test_optimize_clusters_what_is_new(session: SparkSession, run: Run, tmp_path: Path) -> None:
    draw = random.Random(5)
    run("CREATE TABLE lance.c (a INT, b INT) CLUSTER BY (a, b)")

    def insert(count: int) -> None:
        rows = ", ".join(f"({draw.randrange(1000)}, {draw.randrange(1000)})" for _ in range(count))
        run(f"INSERT INTO lance.c VALUES {rows}")

    def files() -> list[str]:
        return [row[0] for row in run("SELECT file_path FROM lance.c.data_files ORDER BY 1")]

    insert(600)
    insert(600)
    assert all(part == sorted(part) for part in files_of(session, "lance.c", "a"))
    before = sorted(run("SELECT a, b FROM lance.c"))
    optimize = "CALL lance.system.compact(table => 'c', target_rows => 150)"
    assert run(optimize)[0][0] > 0
    assert sorted(run("SELECT a, b FROM lance.c")) == before
    pairs = zip(files_of(session, "lance.c", "a"), files_of(session, "lance.c", "b"), strict=True)
    spans = [(max(a) - min(a)) * (max(b) - min(b)) for a, b in pairs]
    assert len(spans) >= 6
    # Sorted by the first column only, a file has about an eighth of the whole square, as here, or more.
    assert sum(spans) / len(spans) < 0.35 * 1000**2
    clustered = files()
    assert run(optimize)[0][:4] == (0, 0, 0, 0)
    insert(100)
    run(optimize)
    remaining = set(files()) & set(clustered)
    assert len(remaining) >= len(clustered) - 2
    # Clones have the files as they are, and so their order.
    run("CREATE TABLE lance.d SHALLOW CLONE lance.c")
    assert run("CALL lance.system.compact(table => 'd', target_rows => 150)")[0][:4] == (0, 0, 0, 0)
    run("OPTIMIZE lance.c FULL")
    assert not set(files()) & remaining
    assert run("SELECT count(*) FROM lance.c") == [(1300,)]


@pytest.mark.parametrize(("clause", "apart"), [("", True), ("LOCALLY ", False)])
def test_tasks_get_ranges_of_the_order(session: SparkSession, run: Run, clause: str, apart: bool) -> None:
    rows = session.range(4000).selectExpr("CAST(id * 7 % 4001 AS INT) AS id", "CAST(id % 3 AS INT) AS k")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    for declaration in ("", "PARTITIONED BY (k)"):
        run(f"CREATE OR REPLACE TABLE lance.r (id INT, k INT) {declaration}")
        run(f"ALTER TABLE lance.r WRITE {clause}ORDERED BY id")
        rows.repartition(4).write.insertInto("lance.r")
        files = files_of(session, "lance.r")
        assert sorted(chain(*files)) == sorted(row.id for row in rows.collect())
        ks = files_of(session, "lance.r", "k")
        if declaration:
            keys = [list(zip(k, ids, strict=True)) for k, ids in zip(ks, files, strict=True)]
            assert all(part == sorted(part) for part in keys)
        else:
            assert all(part == sorted(part) for part in files)
            bounds = sorted((part[0], part[-1]) for part in files if part)
            disjoint = all(one[1] < other[0] for one, other in pairwise(bounds))
            assert disjoint == apart
            assert len(bounds) > 1
        run("ALTER TABLE lance.r WRITE UNORDERED")
        assert "write.distribution-mode" not in dict(run("SHOW TBLPROPERTIES lance.r"))


def test_declared_columns_keep_name_and_type(run: Run) -> None:
    run("CREATE TABLE lance.t (a INT, b INT, c INT) PARTITIONED BY (bucket(2, a))")
    run("ALTER TABLE lance.t WRITE ORDERED BY c DESC, b")
    run("INSERT INTO lance.t VALUES (1, 2, 3)")
    for change, message in (
        ("ALTER COLUMN a TYPE DOUBLE", r"DROP PARTITION FIELD bucket\(2, a\) first"),
        ("DROP COLUMN b", "WRITE UNORDERED first"),
        ("RENAME COLUMN c TO d", "WRITE UNORDERED first"),
    ):
        with pytest.raises((LanceError, PySparkException), match=message):
            run(f"ALTER TABLE lance.t {change}")
    run("ALTER TABLE lance.t WRITE UNORDERED")
    run("CREATE TABLE lance.o (`a b` INT, `c, d` INT, a INT, s STRUCT<x: INT>) CLUSTER BY (`A b`, `c, d`)")
    run("INSERT INTO lance.o VALUES (1, 4, 5, null), (2, 1, 1, null)")
    for key, message in (("s.z", "column 's' has no field 'z'"), ("a.x", "column 'a' has no field 'x'")):
        with pytest.raises(PySparkException, match=message):
            run(f"ALTER TABLE lance.o WRITE ORDERED BY {key}")
    for order, names, statement in (
        (None, ("`a b`", "`C, d`"), "CLUSTER BY NONE"),
        ("CLUSTER BY (`c, d`, `a b`)", ("`a b`", "`c, d`"), "CLUSTER BY NONE"),
        ("WRITE ORDERED BY `A b` DESC NULLS LAST, s.x", ("`a b`", "s", "s.x"), "WRITE UNORDERED"),
    ):
        if order:
            run(f"ALTER TABLE lance.o {order}")
        for name in names:
            for change in (f"DROP COLUMN {name}", f"RENAME COLUMN {name} TO other"):
                with pytest.raises(
                    PySparkException, match=f"orders the rows of the table .*{statement} first"
                ):
                    run(f"ALTER TABLE lance.o {change}")
        run("OPTIMIZE lance.o FULL")
        run(f"ALTER TABLE lance.o {statement}")
    assert run("SELECT a FROM lance.o") == [(1,), (5,)]
    run("ALTER TABLE lance.o RENAME COLUMN s.x TO y")
    run("ALTER TABLE lance.t ALTER COLUMN b TYPE DOUBLE")
    run("ALTER TABLE lance.t ALTER COLUMN c TYPE DECIMAL(12,2)")
    run("ALTER TABLE lance.t RENAME COLUMN c TO d")
    assert run("SELECT * FROM lance.t WHERE b = 2.0 AND d < 3.5") == [(1, 2.0, Decimal(3))]


def test_sorted_rewrites_cut_files_at_partitions(session: SparkSession, run: Run) -> None:
    run(
        "CREATE TABLE lance.s (id INT, p STRING, x INT, d DECIMAL(3,1)) PARTITIONED BY (p, bucket(2, id), truncate(100, d))"
    )
    rows = "SELECT CAST(id AS INT), substr('ab', id % 2 + 1, 1), CAST(id * 7919 % 30011 AS INT), -99.9 FROM range({})"
    run(f"INSERT INTO lance.s SELECT /*+ REPARTITION(1) */ * FROM ({rows.format(30000)})")
    run("INSERT INTO lance.s VALUES (30000, null, 5, null)")
    before = sorted(run("SELECT * FROM lance.s"), key=repr)
    for statement in (
        "OPTIMIZE lance.s ZORDER BY (x, id)",
        "CALL lance.system.rewrite_data_files(table => 's', strategy => 'sort', sort_order => 'x')",
    ):
        run(statement)
        assert sorted(run("SELECT * FROM lance.s"), key=repr) == before, statement
        bounds = column_bounds(session, "lance.s")
        assert len(bounds) == len({*bounds, ()}) - 1 == 5, statement
    listed = run("SELECT partition, record_count FROM lance.s.partitions")
    names = {tuple(row[0][name] for name in ("p", "d_trunc", "id_bucket")): row[1] for row in listed}
    assert sum(names.values()) == 30001
    assert {("a", "-100.0", "0"), (None, None, "1")} < names.keys()
    counts = run("SELECT count(*) FROM lance.s WHERE d = -99.9 AND p = 'a'")
    assert counts == [(15000,)]


@pytest.mark.parametrize("table", ["lance.t", "spark_catalog.default.overwritten"])
@pytest.mark.parametrize("sql", [True, False])
def test_concurrent_dynamic_overwrites(
    session: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch, table: str, sql: bool
) -> None:
    if table.startswith("spark_catalog"):
        spark_lance.enable(session, catalog="spark_catalog")
    run(f"CREATE TABLE {table} (id INT, p STRING) USING lance PARTITIONED BY (p)")
    run(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    commit = LanceWriter.commit

    def overwrite(p: str) -> str:
        try:
            if sql:
                run(f"INSERT OVERWRITE {table} SELECT 10 AS id, '{p}' AS p")
            else:
                session.sql(f"SELECT 10 AS id, '{p}' AS p").writeTo(table).overwritePartitions()
        except (LanceError, PySparkException) as error:
            return str(error)
        return "done"

    session.conf.set(DYNAMIC, "dynamic")
    for partitions, expected in (("ab", [(3, "c"), (10, "a"), (10, "b")]), ("cc", [(10, p) for p in "abc"])):
        # Both statements have their rows before one of them commits.
        ready = threading.Barrier(2)

        def late(writer: LanceWriter, messages: Any, ready: threading.Barrier = ready) -> None:
            ready.wait(60)
            commit(writer, messages)

        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
            patch.setattr(LanceWriter, "commit", late)
            results = sorted(pool.map(overwrite, partitions), key=len)
        assert results[0] == "done"
        assert results[1] == "done" or (
            "overwrites (p=c)" in results[1] and "run the statement again" in results[1]
        )
        assert (results[1] == "done") == (partitions == "ab")
        assert sorted(run(f"SELECT * FROM {table}")) == expected
    run(f"DROP TABLE {table}")


BUCKETING = {
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.lance.localRows": "0",
}


def test_joins_by_partition_need_no_shuffle(session: SparkSession, run: Run) -> None:
    chance = random.Random(5)
    names = ["a", "\u00e4", None]
    frames = []
    for name, fields in (("l", "bucket(2, k), p"), ("r", "bucket(2, k), p")):
        run(f"CREATE TABLE lance.{name} (k INT, p STRING, d DATE, v INT) PARTITIONED BY ({fields})")
        rows = [(chance.choice([None, *range(9)]), chance.choice(names), None, n) for n in range(60)]
        frames.append(session.createDataFrame(rows, "k INT, p STRING, d DATE, v INT"))
        frames[-1].createOrReplaceTempView(f"rows_{name}")
        for bucket in range(2):  # a file for each partition
            for p in ["a", "\u00e4"]:
                run(
                    f"INSERT INTO lance.{name} SELECT * FROM rows_{name} WHERE lance.bucket(2, k) = {bucket} AND p = '{p}'"
                )
        run(f"INSERT INTO lance.{name} SELECT * FROM rows_{name} WHERE k IS NULL AND p IS NULL")
        run(f"INSERT INTO lance.{name} SELECT * FROM rows_{name} WHERE k IS NULL AND p = 'a'")
    joins = [
        "SELECT l.v, r.v FROM {l} l JOIN {r} r ON l.k = r.k AND l.p = r.p",
        "SELECT l.v, r.v FROM {l} l LEFT JOIN {r} r ON l.k = r.k AND l.p = r.p",
        "SELECT l.v, r.v FROM {l} l FULL JOIN {r} r ON l.k = r.k AND l.p = r.p AND l.v < r.v",
        "SELECT l.v, r.v FROM {l} l JOIN (SELECT * FROM {r} WHERE v > 30) r ON l.k = r.k AND l.p = r.p WHERE l.v < 20",
        "SELECT k, p, count(*) FROM {l} GROUP BY k, p",
    ]
    expected_rows = "(SELECT * FROM rows_{} WHERE (k IS NOT NULL AND p IS NOT NULL) OR (k IS NULL AND (p IS NULL OR p = 'a')))"
    for key, value in BUCKETING.items():
        session.conf.set(key, value)
    try:
        for join in joins:
            text = join.format(l="lance.l", r="lance.r")
            plain = join.format(l=expected_rows.format("l"), r=expected_rows.format("r"))
            assert sorted(run(text), key=repr) == sorted(run(plain), key=repr), join
            plan = session.sql(text)._jdf.queryExecution().executedPlan().toString()
            assert "Exchange" not in plan, plan
        # A file of several partitions, or of an older declaration, needs the shuffle again.
        run("INSERT INTO lance.r VALUES (1, 'a', null, 100), (2, '\u00e4', null, 101)")
        plan = (
            session.sql(joins[0].format(l="lance.l", r="lance.r"))
            ._jdf.queryExecution()
            .executedPlan()
            .toString()
        )
        assert "Exchange" in plan
        more = " UNION ALL VALUES (1, 'a', null, 100), (2, '\u00e4', null, 101)"
        plain = joins[0].format(l=expected_rows.format("l"), r=f"({expected_rows.format('r')[1:-1]}{more})")
        assert sorted(run(joins[0].format(l="lance.l", r="lance.r"))) == sorted(run(plain))
        run("ALTER TABLE lance.l REPLACE PARTITION FIELD p WITH d")
        plain = joins[0].format(l=expected_rows.format("l"), r=f"({expected_rows.format('r')[1:-1]}{more})")
        assert sorted(run(joins[0].format(l="lance.l", r="lance.r"))) == sorted(run(plain))
    finally:
        for key in BUCKETING:
            session.conf.unset(key)


def shuffle_bytes(session: SparkSession) -> int:
    """Return the bytes that all stages so far have written for shuffles."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    stages = (
        session._jsparkSession.sparkContext().statusStore().stageList(None, False, False, quantiles, None)
    )
    return sum(stages.apply(place).shuffleWriteBytes() for place in range(stages.size()))


@pytest.mark.slow
def test_a_join_by_partition_writes_no_shuffle(session: SparkSession, run: Run) -> None:
    rows = session.range(200_000).selectExpr("id AS k", "sha2(cast(id AS STRING), 256) AS text")
    for name in ("l", "r"):
        run(f"CREATE TABLE lance.{name} (k BIGINT, text STRING) PARTITIONED BY (bucket(16, k))")
        rows.writeTo(f"lance.{name}").append()
    figures = []
    for setting in ("true", "false"):
        for key, value in {**BUCKETING, "spark.sql.sources.v2.bucketing.enabled": setting}.items():
            session.conf.set(key, value)
        before = shuffle_bytes(session)
        joined = session.sql(
            "SELECT sum(length(l.text) + length(r.text)) FROM lance.l JOIN lance.r ON l.k = r.k"
        )
        assert joined.collect() == [(200_000 * 128,)]
        plan = joined._jdf.queryExecution().executedPlan().toString()
        figures.append((plan.count("Exchange hashpartitioning"), shuffle_bytes(session) - before))
    for key in BUCKETING:
        session.conf.unset(key)
    (exchanges, saved), (all_exchanges, written) = figures
    assert exchanges == 0 < all_exchanges
    assert saved < 10_000 < 10_000_000 < written, figures


@pytest.mark.slow
def test_a_condition_opens_no_file_of_999_other_partitions(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE lance.m (p INT, ts TIMESTAMP, v BIGINT) PARTITIONED BY (p, days(ts))")
    rows = session.range(40_000).selectExpr(
        "CAST(id % 1000 AS INT) AS p", "TIMESTAMP'2026-01-01' + make_dt_interval(id % 1000) AS ts", "id AS v"
    )
    rows.writeTo("lance.m").append()
    assert run("SELECT count(*) FROM lance.m.partitions") == [(1000,)]
    stored = LanceTable.forName(session, "lance.m").dataset()
    files = {file.path for fragment in stored.snapshot.fragments for file in fragment.files}
    assert len(files) == 1000
    # Without the files of other partitions, a query that opened one of them would fail.
    folder = Path(stored.uri) / "data"
    (kept,) = (name for name in files if read_bounds(name)[0].low == 17)
    for name in files - {kept}:
        (folder / name).unlink()
    session.conf.set("spark.lance.localRows", "0")
    for condition in (
        "p = 17",
        "ts = TIMESTAMP'2026-01-18'",
        "p IN (17, 2000)",
        "p > 16 AND p < 18 AND v > 0",
    ):
        frame = session.sql(f"SELECT count(v), sum(p) FROM lance.m WHERE {condition} AND v % 2 = 1")
        assert frame.collect() == [(40, 680)], condition
    with pytest.raises((LanceError, PySparkException)):
        run("SELECT sum(v) FROM lance.m WHERE p IN (17, 18)")
    session.conf.unset("spark.lance.localRows")


def test_random_statements_do_what_they_do_on_parquet(session: SparkSession, run: Run) -> None:
    chance = random.Random(7)
    run("CREATE OR REPLACE TEMPORARY VIEW source AS SELECT 0 AS id, 0 AS a, 'x' AS b LIMIT 0")
    tables = ("lance.r", "spark_catalog.default.partitions_parquet")
    run(f"DROP TABLE IF EXISTS {tables[1]}")
    for table, kind in zip(tables, ("lance", "parquet"), strict=True):
        run(f"CREATE TABLE {table} (id INT, a INT, b STRING) USING {kind} PARTITIONED BY (a, b)")

    def rows() -> str:
        return ", ".join(
            f"({chance.randrange(99)}, {chance.choice(['1', '2', 'null'])}, {chance.choice(['x', 'Y', 'null'])!r})"
            for _ in range(chance.randrange(1, 4))
        ).replace("'null'", "null")

    statements = (
        lambda: f"INSERT INTO {{t}} VALUES {rows()}",
        lambda: f"INSERT OVERWRITE {{t}} VALUES {rows()}",
        lambda: f"INSERT OVERWRITE {{t}} PARTITION (a = '1', b) SELECT col1, col3 FROM (VALUES {rows()})",
        lambda: f"INSERT OVERWRITE {{t}} PARTITION (A = 2, B = 'x') SELECT col1 FROM (VALUES {rows()})",
        lambda: f"INSERT INTO {{t}} PARTITION (a = null, b = 'x') VALUES ({chance.randrange(99)})",
        lambda: "ALTER TABLE {t} DROP IF EXISTS PARTITION (a = 1, b = 'x'), PARTITION (a = 2, b = 'Y')",
        lambda: "ALTER TABLE {t} ADD IF NOT EXISTS PARTITION (a = 1, b = 'Y')",
    )
    try:
        for number in range(share(60)):
            statement = chance.choice(statements)()
            session.conf.set(DYNAMIC, chance.choice(["static", "dynamic"]))
            for table in tables:
                run(statement.format(t=table))
            one, two = (sorted(run(f"SELECT id, a, b FROM {table}"), key=repr) for table in tables)
            assert one == two, (number, session.conf.get(DYNAMIC), statement)
    finally:
        session.conf.unset(DYNAMIC)
        run(f"DROP TABLE {tables[1]}")


def test_changed_rows_are_where_filters_look_for_them(session: SparkSession, run: Run) -> None:
    """Random changes move rows between partitions; a partitioned table answers like one without partitions."""
    chance = random.Random(11)
    tables = ("lance.moved", "lance.plain")
    for table, clause in zip(tables, ("PARTITIONED BY (p, bucket(3, id))", ""), strict=True):
        run(f"CREATE TABLE {table} (id INT, p STRING, v INT) USING lance {clause}")
        run(
            f"INSERT INTO {table} SELECT /*+ REPARTITION(1) */ id, substr('abcd', id % 4 + 1, 1), 0 FROM range(40)"
        )
    statements = (
        lambda: (
            f"UPDATE {{t}} SET p = '{chance.choice('abcx')}', v = v + 1 WHERE id % 7 = {chance.randrange(7)}"
        ),
        lambda: f"UPDATE {{t}} SET id = id + 100, p = null WHERE p = '{chance.choice('abcd')}' AND id < 9",
        lambda: f"DELETE FROM {{t}} WHERE p = '{chance.choice('abcd')}' AND id % 5 = 0",
        lambda: (
            f"MERGE INTO {{t}} t USING (SELECT CAST(id AS INT) AS id, '{chance.choice('aby')}' AS p FROM range(0, 60, 7)) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET p = s.p WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, 5)"
        ),
        lambda: "OPTIMIZE {t}",
        lambda: f"INSERT INTO {{t}} VALUES ({chance.randrange(99)}, '{chance.choice('abz')}', 1)",
    )
    filters = (
        "p = 'a'",
        "p IN ('b', 'x', 'y')",
        "p IS NULL",
        "p > 'b' AND id < 50",
        "id = 14",
        "NOT (p = 'c')",
    )
    for number in range(share(30)):
        statement = chance.choice(statements)()
        for table in tables:
            run(statement.format(t=table))
        condition = filters[number % len(filters)]
        one, two = (
            sorted(run(f"SELECT id, p, v FROM {table} WHERE {condition}"), key=repr) for table in tables
        )
        assert one == two, (number, statement, condition)
    one, two = (sorted(run(f"SELECT id, p, v FROM {table}"), key=repr) for table in tables)
    assert one == two
