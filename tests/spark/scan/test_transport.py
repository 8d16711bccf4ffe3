"""Batches of columns from Python workers: the rows of Spark's own way, whatever is done; no leak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.spark.base.compat import TimeType
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sql import scans
from tests.spark.carriers import spark_schema
from tests.strategies import canonical, random_array, tables

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

TRANSPORT = "spark.lance.transport"
ROWS = 300
FRAGMENTS = 3


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield session_without_local_answers(spark)
    spark.newSession()


def session_without_local_answers(spark: SparkSession) -> SparkSession:
    """A new session, and from now on `allocated` counts."""
    own = spark.newSession()
    own.conf.set("spark.lance.localRows", "0")
    _LEFT[0] = _held(own)
    return spark_lance.enable(own)


def texts(frame: DataFrame) -> list[str]:
    """Rows as text, as NaN is not equal to itself."""
    return list(map(str, frame.collect()))


def is_columnar(frame: DataFrame) -> bool:
    """Whether a query that has run took batches of columns."""
    return "ColumnarToRow" in frame._jdf.queryExecution().executedPlan().toString()


# Bytes that other tests of the process have left with Arrow in the JVM.
_LEFT = [0]


def _held(session: SparkSession) -> int:
    jvm: Any = session._jvm
    return int(jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory())


def allocated(session: SparkSession) -> int:
    """Bytes that Arrow holds in the JVM, beside those that other tests of the process have left there."""
    return max(0, _held(session) - _LEFT[0])


def eventually(what: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def each_way(session: SparkSession, ask: Callable[[], list[str]], *, held: bool = True) -> list[str]:
    """What a query finds by rows, and by batches of workers and (`held`) of the driver, which is the same."""
    session.conf.set(TRANSPORT, "rows")
    expected = ask()
    session.conf.set(TRANSPORT, "columns")
    assert ask() == expected
    if held:
        # More rows than one the driver does not hand over as rows.
        session.conf.set("spark.lance.localRows", "1")
        try:
            assert ask() == expected
        finally:
            session.conf.set("spark.lance.localRows", "0")
    return expected


def scan_of(frame: DataFrame) -> str:
    """What EXPLAIN says of a scan."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def kinds_of_rows() -> pa.Schema:
    """A column of every type that Spark reads."""
    item = pa.field("item", pa.float32())
    simple = {
        "none": pa.null(),
        "yes": pa.bool_(),
        "i8": pa.int8(),
        "i16": pa.int16(),
        "i32": pa.int32(),
        "i64": pa.int64(),
        "u8": pa.uint8(),
        "u32": pa.uint32(),
        "u64": pa.uint64(),
        "half": pa.float16(),
        "f": pa.float32(),
        "d": pa.float64(),
        "n9": pa.decimal128(9, 2),
        "n18": pa.decimal128(18, 6),
        "n38": pa.decimal128(38, 10),
        "n256": pa.decimal256(30, 3),
        "s": pa.string(),
        "large": pa.large_string(),
        "raw": pa.binary(),
        "raw4": pa.binary(4),
        "day": pa.date32(),
        "zoned": pa.timestamp("us", "UTC"),
        "berlin": pa.timestamp("ms", "Europe/Berlin"),
        "wall": pa.timestamp("us"),
        "wall_ns": pa.timestamp("ns"),
        "took": pa.duration("us"),
        "took_s": pa.duration("s"),
        "word": pa.dictionary(pa.int32(), pa.string()),
        "vector": pa.list_(item, 5),
        "halves": pa.list_(pa.field("item", pa.float16()), 3),
        "ids": pa.list_(pa.int64()),
        "words": pa.list_(pa.string()),
        "matrix": pa.list_(pa.list_(pa.float64())),
        "flags": pa.list_(pa.bool_()),
        "point": pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())]),
        "deep": pa.struct([pa.field("p", pa.struct([pa.field("q", pa.list_(pa.decimal128(20, 2)))]))]),
        "points": pa.list_(pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.string())])),
        "map": pa.map_(pa.string(), pa.int32()),
        "maps": pa.map_(pa.int32(), pa.list_(pa.string())),
    }
    if TimeType is not None:
        simple |= {"time": pa.time64("ns"), "time_s": pa.time32("s")}
    fields = [pa.field(name, kind) for name, kind in simple.items()]
    return pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])


def rows_of_all_kinds(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    schema = kinds_of_rows()
    columns = [pa.array(range(rows), pa.int64())]
    columns += [random_array(rng, field, rows) for field in list(schema)[1:]]
    return pa.Table.from_arrays(columns, schema=schema)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of all types in several fragments, some of whose rows are deleted."""
    place = str(tmp_path_factory.mktemp("transport") / "all.lance")
    for part in range(FRAGMENTS):
        rows = rows_of_all_kinds(part, ROWS // FRAGMENTS)
        rows = rows.set_column(0, "id", pa.array(range(part * rows.num_rows, (part + 1) * rows.num_rows)))
        spark_lance.write_dataset(rows, place, mode="append", data_storage_version="2.2")
    spark_lance.dataset(place).delete("id % 7 = 3 or id between 110 and 140")
    return place


def read(session: SparkSession, path: str, **options: str) -> DataFrame:
    return session.read.format("lance").options(**options).load(path)


@pytest.mark.parametrize(
    "size", ["5", *(pytest.param(size, marks=pytest.mark.slow) for size in ("1", "37", "100000"))]
)
def test_all_types(session: SparkSession, path: str, size: str) -> None:
    result = each_way(session, lambda: texts(read(session, path, batch_size=size).orderBy("id")))
    assert len(result) == lance.dataset(path).count_rows()
    assert allocated(session) == 0


def test_rows_are_those_of_pylance(session: SparkSession, path: str) -> None:
    # What Spark has no type of its own for is converted before it is transported; other tests look at that.
    names = [
        field.name
        for field in kinds_of_rows()
        if arrow_schema(spark_schema([field])).field(0).type == field.type and field.name != "time"
    ]
    assert len(names) >= 15
    expected = lance.dataset(path).to_table(names)
    for kind in ("rows", "columns"):
        session.conf.set(TRANSPORT, kind)
        result = read(session, path).select(names).orderBy("id").toArrow()
        for name in names:
            assert canonical(result[name]) == canonical(expected[name]), (kind, name)


@settings(max_examples=8)
@given(rows=tables("2.2", max_rows=40), size=st.sampled_from([1, 3, 1000]))
def test_random_tables(session: SparkSession, tmp_path_factory: Any, rows: pa.Table, size: int) -> None:
    check_random(session, tmp_path_factory, rows, size)


@pytest.mark.slow
@settings(max_examples=200)
@given(rows=tables("2.2", max_rows=60, max_columns=5), size=st.sampled_from([1, 3, 20, 1000]))
def test_more_random_tables(session: SparkSession, tmp_path_factory: Any, rows: pa.Table, size: int) -> None:
    check_random(session, tmp_path_factory, rows, size)


def check_random(
    session: SparkSession, folders: Any, rows: pa.Table, size: int, ways: Callable[..., object] | None = None
) -> None:
    """Rows of a random table are the same in all `ways` of asking for them, `each_way` by default."""
    try:
        spark_schema(rows.schema)
    except SchemaError:
        assume(False)
    place = str(folders.mktemp("random") / "t.lance")
    spark_lance.write_dataset(rows, place, data_storage_version="2.2")

    def ask() -> list[str]:
        try:
            return texts(read(session, place, batch_size=str(size)))
        except PySparkException as error:
            # A value that Spark's type cannot hold.
            return ["refused" if "SchemaError" in str(error) else str(error)]

    (ways or each_way)(session, ask)
    assert allocated(session) == 0


# What keeps values of a batch beyond the row they came with, or looks at batches in its own way.
QUERIES = (
    "select max(s), min(s), max(raw), max(large), min(word) from t",
    "select first(s), last(s), any_value(s), first(point), last(words), first(map['a']) from t",
    "select max_by(s, id), min_by(s, id), max_by(point, id), min_by(vector, id) from t",
    "select max(n9), min(n18), max(n38), sum(n9), sum(n18), sum(n38) from t",
    "select sum(vector[3]), sum(size(ids)), max(point.y), max(get(points, 0).y), max(get(words, 0)) from t",
    "select s, count(*), max(raw), min(point.y), min(vector) from t group by s order by s, 2",
    "select sort_array(collect_list(struct(id, s, point, words))), sort_array(collect_set(raw)) from t",
    "select id, exploded from t lateral view explode(words) w as exploded order by id, exploded",
    "select id, k, v from t lateral view explode(map) w as k, v order by id, k, v",
    "select id, p.x, p.y from t lateral view posexplode(points) w as n, p order by id, n",
    "select id, s, lag(s) over (order by id), max(s) over (order by id rows 3 preceding) from t order by id",
    "select * from t order by s, raw, id limit 40",
    "select * from (select * from t limit 1000) order by id",
    "select distinct s, point from t order by s, point",
    "select a.id, b.s, b.point, b.vector from t a join t b on a.id = b.id + 1 order by a.id",
    "select /*+ broadcast(b) */ a.id, b.s, b.words, b.point from t a join t b on a.id = b.id - 2 order by 1",
    "select /*+ merge(b) */ a.id, b.s, b.words, b.point from t a join t b on a.id = b.id - 2 order by 1",
    "select /*+ shuffle_hash(b) */ a.id, b.s, b.point from t a join t b on a.s = b.s order by 1, 2 limit 99",
    "select id, s from t where id in (select max(id) from t group by yes) order by id",
    "select s from t union all select word from t order by 1",
    "select count(*), count(s), count(distinct s), count(distinct point) from t",
    "select id from t where s is null or point.x > 0 or size(words) > 1 or get(ids, 0) < 0 order by id",
    "select transform(ids, x -> x + 1), filter(words, x -> x > 'm'), map_keys(map) from t order by id",
    "select id, hash(yes, s, deep, points, words, n38), xxhash64(raw, vector, point) from t order by id",
    "select id, to_json(struct(s, point, points, map, maps, words, n38, zoned)) from t order by id",
    "select approx_percentile(i32, 0.5), max(day), min(zoned), max(wall), max(took) from t where d > 0",
    "select id, struct(point, s, vector) as nested from t order by nested.point, id limit 100",
    "select id, s || '!', upper(s), substr(large, 2), length(raw), cast(n38 as string) from t order by id",
    "select array_distinct(words), array_join(words, ','), flatten(matrix), slice(vector, 2, 2) from t",
)  # fmt: skip
MODES: dict[str, dict[str, str]] = {
    "usual": {},
    "no code generation": {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
    "few fields": {"spark.sql.codegen.maxFields": "3", "spark.sql.adaptive.enabled": "false"},
}


@pytest.fixture
def modes(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Settings of the session."""
    chosen = MODES[request.param]
    for name, value in chosen.items():
        session.conf.set(name, value)
    yield chosen
    for name in chosen:
        session.conf.unset(name)


# By default only every fourth query, and as the driver's batches are those of workers, it hands them to few.
@pytest.mark.parametrize(
    ("modes", "step", "held"),
    [("usual", 4, 5), *(pytest.param(name, 1, 1, marks=pytest.mark.slow) for name in MODES)],
    indirect=["modes"],
)
def test_whatever_is_done_with_the_rows(
    session: SparkSession, path: str, modes: dict[str, str], step: int, held: int
) -> None:
    def ask(query: str) -> list[str]:
        read(session, path, batch_size="11").createOrReplaceTempView("t")
        frame = session.sql(query)
        result = texts(frame)
        assert is_columnar(frame) == (session.conf.get(TRANSPORT) != "rows"), query
        return result

    for number, query in enumerate(QUERIES[::step]):
        each_way(session, partial(ask, query), held=number % held == 0)
        assert allocated(session) == 0, query


def test_many_columns(session: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    kinds = [pa.int32(), pa.string(), pa.decimal128(12, 3), pa.list_(pa.int16())]
    fields = [pa.field(f"c{number}", kinds[number % 4]) for number in range(230)]
    rows = pa.Table.from_arrays([random_array(rng, field, 50) for field in fields], schema=pa.schema(fields))
    spark_lance.write_dataset(rows, str(tmp_path / "t.lance"))
    result = each_way(session, lambda: texts(read(session, str(tmp_path / "t.lance"), batch_size="7")))
    assert len(result) == 50


def test_nothing_to_read(session: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    spark_lance.write_dataset(kinds_of_rows().empty_table(), place, data_storage_version="2.2")
    assert each_way(session, lambda: texts(read(session, place))) == []
    assert each_way(session, lambda: texts(read(session, place).selectExpr("count(*)", "max(s)"))) == [
        "Row(count(1)=0, max(s)=None)"
    ]


def test_rows_without_columns(session: SparkSession, path: str) -> None:
    rows = lance.dataset(path).count_rows()

    def ask() -> list[str]:
        return texts(read(session, path).where("rand(3) >= 0").selectExpr("count(*) as n"))

    assert each_way(session, ask) == [f"Row(n={rows})"]


def test_names_and_views_and_caches(session: SparkSession, path: str) -> None:
    def ask() -> list[str]:
        named = session.table(f"lance.`{path}`")
        cached = named.selectExpr("id", "s", "point", "vector", "map").cache()
        try:
            first = texts(cached.orderBy("id"))
            assert texts(cached.orderBy("id")) == first
        finally:
            cached.unpersist(blocking=True)
        return [*first, *texts(named.where("i32 > 0").orderBy("id"))]

    each_way(session, ask)


def test_python_functions_over_batches(session: SparkSession, path: str) -> None:
    from pyspark.sql.functions import udf
    from pyspark.sql.pandas import functions

    pandas_udf: Any = functions.pandas_udf

    session.udf.register("longer", udf(lambda text: None if text is None else text + "!", "string"))

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    length = pandas_udf(lambda texts: texts.str.len().fillna(-1).astype("int64"), "long")

    def ask() -> list[str]:
        frame = read(session, path, batch_size="50").select("id", "s", "vector", "point")
        ways = [
            frame.selectExpr("id", "longer(s)"),
            frame.select("id", length("s")),
            frame.mapInArrow(doubled, frame.schema),
        ]
        return [text for way in ways for text in texts(way.orderBy("id"))]

    each_way(session, ask)
    assert allocated(session) == 0


def test_metrics(session: SparkSession, path: str) -> None:
    def ask() -> list[str]:
        frame = read(session, path).where("id >= 0")
        frame.collect()
        plan = frame._jdf.queryExecution().executedPlan()
        while not plan.nodeName().startswith("BatchScan"):
            inner = plan.executedPlan() if plan.nodeName() == "AdaptiveSparkPlan" else plan.children().head()
            plan = inner
        # Spark adds up what is said of Python in a process, so that is never twice the same.
        names = [name for name in ("pythonDataReceived", "pythonDataSent") if plan.metrics().contains(name)]
        values = [plan.metrics().apply(name).value() for name in names]
        assert all(value > 0 for value in values)
        return [f"numOutputRows {plan.metrics().apply('numOutputRows').value()}", *names]

    result = each_way(session, ask, held=False)
    assert f"numOutputRows {lance.dataset(path).count_rows()}" in result


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that does not fit into the buffers between a worker and its reader."""
    place = str(tmp_path_factory.mktemp("transport") / "long.lance")
    draw = np.random.default_rng(4)
    rows = [draw.bytes(8 << 10).hex() for _ in range(3000)]
    spark_lance.write_dataset(pa.table({"id": range(len(rows)), "s": rows}), place)
    return place


class Slow(threading.Thread):
    """A query of several seconds, which has begun to get batches."""

    def __init__(self, session: SparkSession, path: str) -> None:
        super().__init__()
        self.session = session
        self.error: Exception | None = None
        # It takes some ms per row.
        request = "length(reflect('java.lang.Thread', 'sleep', 3L)) + length(s) as x"
        self.frame = read(session, path, batch_size="20").selectExpr(request).selectExpr("sum(x)")
        self.start()
        assert eventually(lambda: allocated(session) > 0)
        time.sleep(0.2)

    def run(self) -> None:
        self.session.sparkContext.setJobGroup("slow", "to be interrupted", interruptOnCancel=True)
        try:
            self.frame.collect()
        except (PySparkException, Py4JError) as error:
            self.error = error


def test_cancelled_tasks_leave_nothing(session: SparkSession, long_path: str) -> None:
    session.conf.set(TRANSPORT, "columns")
    # Of the first task that a driver gives to Python Spark keeps some memory if it is cancelled, by rows too.
    read(session, long_path).selectExpr("rand(1) + length(s) as x").selectExpr("sum(x)").collect()
    query = Slow(session, long_path)
    session.sparkContext.cancelJobGroup("slow")
    query.join(30)
    assert "cancelled" in str(query.error)
    assert eventually(lambda: allocated(session) == 0)


def test_limits_leave_nothing(session: SparkSession, path: str) -> None:
    session.conf.set(TRANSPORT, "columns")
    for frame in (
        read(session, path, batch_size="3").where("rand(1) >= 0").limit(5),
        read(session, path, batch_size="3").where("rand(1) >= 0").selectExpr("id", "explode(words)").limit(4),
    ):
        assert frame.collect()
        assert eventually(lambda: allocated(session) == 0)


def workers_of(process: int) -> list[int]:
    """The Python processes below the daemon of Spark's workers (Linux only)."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])

    def is_below(one: int) -> bool:
        while one in parents and one != process:
            one = parents[one]
        return one == process

    daemons = [
        one
        for one in parents
        if is_below(one) and b"pyspark.daemon" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    return [one for one in daemons if parents[one] in daemons]


def busy_workers_of(process: int) -> list[int]:
    """Those of a query that has begun: Spark 4.1 has memory of Arrow some seconds before it has a worker."""
    assert eventually(lambda: bool(workers_of(process)))
    time.sleep(0.5)
    return workers_of(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_a_killed_worker_is_an_error(session: SparkSession, long_path: str) -> None:
    session.conf.set(TRANSPORT, "columns")
    query = Slow(session, long_path)
    killed = busy_workers_of(os.getpid())
    for one in killed:
        os.kill(one, signal.SIGKILL)
    query.join(60)
    assert "Python worker exited unexpectedly" in str(query.error)
    assert eventually(lambda: allocated(session) == 0)
    assert read(session, long_path).selectExpr("count(s)").head()[0] == 3000  # type: ignore[index]


def test_what_has_no_batches(session: SparkSession, path: str, tmp_path: Path) -> None:
    session.conf.set(TRANSPORT, "columns")
    place = str(tmp_path / "variant.lance")
    session.sql("select id, parse_json('[1, 2]') as v from range(5)").write.format("lance").save(
        place, mode="append"
    )
    for frame, columnar in (
        (read(session, place), False),
        (read(session, place).select("id"), True),
        (read(session, path).select("id", "s"), True),
        (session.sql(f"select s from lance.`{path}`"), True),
    ):
        frame.collect()
        assert is_columnar(frame) == columnar
    session.conf.set(TRANSPORT, "rows")
    frame = read(session, path)
    frame.collect()
    assert not is_columnar(frame)
    session.conf.set(TRANSPORT, "pigeons")
    with pytest.raises(PySparkException, match=r"spark\.lance\.transport is rows or columns, not pigeons"):
        read(session, path).collect()
    session.conf.set(TRANSPORT, "columns")


@pytest.fixture
def holding(session: SparkSession) -> Iterator[SparkSession]:
    """A session whose driver reads more rows than ten as columns."""
    session.conf.set(TRANSPORT, "columns")
    session.conf.set("spark.lance.localRows", "10")
    yield session
    session.conf.set("spark.lance.localRows", "0")
    session.conf.unset("spark.lance.localBytes")


def test_the_driver_reads_columns_within_its_bounds(holding: SparkSession, path: str, tmp_path: Path) -> None:
    count = lance.dataset(path).count_rows()
    frame = read(holding, path).select("id", "s")
    assert f"; {count} rows, read by the driver]" in scan_of(frame)
    assert frame.count() == count
    # Few rows stay rows, and what has too many bytes is left to tasks.
    assert "LocalTableScan" in scan_of(read(holding, path).where("id < 5"))
    holding.conf.set("spark.lance.localBytes", "1000")
    assert "LanceScan" in scan_of(frame.select("s"))
    holding.conf.unset("spark.lance.localBytes")
    holding.conf.set(TRANSPORT, "rows")
    assert "LanceScan" in scan_of(read(holding, path))
    holding.conf.set(TRANSPORT, "columns")
    # Rows that Spark must not take as batches are none here either.
    assert "LanceColumns" not in scan_of(read(holding, path, partition_bytes="1000"))


def test_columns_of_the_driver_are_cut_for_tasks(holding: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t.lance")
    rows = pa.table({"i": pa.array(range(500_000), pa.int64()), "wide": ["x" * 500] * 500_000})
    spark_lance.write_dataset(rows, place, max_rows_per_file=200_000)
    spark_lance.dataset(place).delete("i % 10 = 0")
    frame = read(holding, place).select("i")
    assert frame.rdd.getNumPartitions() == 4  # 3.6 MB
    # Of computed values the driver says nothing.
    assert tuple(frame.selectExpr("count(*)", "sum(i + 1)", "max(i + 1)").head() or ()) == (
        450_000,
        sum(i + 1 for i in range(500_000) if i % 10),
        500_000,
    )
    with_condition = frame.where("i % 3 = 1 and i > 5")
    assert "LanceColumns" in scan_of(with_condition)
    assert with_condition.count() == sum(i % 10 != 0 and i % 3 == 1 for i in range(6, 500_000))
    other = frame.selectExpr("i as j", "i % 7 as k")
    assert frame.join(other, frame.i == other.j).where("k = 3 and i < 100").count() == sum(
        i % 10 != 0 and i % 7 == 3 for i in range(100)
    )
    assert eventually(lambda: allocated(holding) == 0)


def test_columns_of_the_driver_leave_no_file(
    holding: SparkSession, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(3):
        frame = read(holding, path).selectExpr("count(upper(s))", "max(id + 1)")
        assert frame.head() is not None
    # A plan is read once, however often it runs.
    assert frame.collect() == frame.collect()
    assert not list(tmp_path.iterdir())


def test_a_driver_whose_files_the_jvm_does_not_see(
    holding: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = scans.columns_answer
    requests = []

    def elsewhere(*arguments: Any) -> dict[str, Any]:
        answer = plain(*arguments)
        requests.append(Path(answer["file"]))
        requests[-1].unlink()
        return answer

    monkeypatch.setattr(scans, "columns_answer", elsewhere)
    frame = read(holding, path).selectExpr("count(id + 1)")
    assert frame.head() == (lance.dataset(path).count_rows(),)
    assert requests
    assert "LanceScan" in scan_of(frame)


def test_a_plan_keeps_its_transport(session: SparkSession, path: str) -> None:
    session.conf.set(TRANSPORT, "columns")
    frame = read(session, path)
    assert "ColumnarToRow" in frame._jdf.queryExecution().executedPlan().toString()
    session.conf.set(TRANSPORT, "rows")
    assert len(frame.collect()) == lance.dataset(path).count_rows()
    session.conf.set(TRANSPORT, "columns")


# A program with a session of its own; `broken` is a text in a Java source, and what stands in its place.
PROGRAM = """
import sys, tempfile
from pathlib import Path
from spark_lance.spark.java import prepare_environment
prepare_environment()
import spark_lance
from pyspark.sql import SparkSession
from spark_lance.spark.driver import java_classes
from tests.spark.java_sources import changed_sources

master, path, file, old, new = sys.argv[1:]
if file:
    text = java_classes.source(file)
    assert old in text
    changed = {file: text.replace(old, new)}
    java_classes.FOLDER = changed_sources(Path(tempfile.mkdtemp()), changed)
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.lance.localRows": "0",
            "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
builder = SparkSession.builder.master(master)
for key, value in settings.items():
    builder = builder.config(key, value)
session = spark_lance.enable(builder.getOrCreate())
for kind in ("rows", "columns"):
    session.conf.set("spark.lance.transport", kind)
    frame = session.read.format("lance").load(path).drop("time", "time_s", "map", "maps")
    print("hash", kind, frame.selectExpr("sum(hash(*))").head()[0], frame.count())
    frame = session.read.format("lance").load(path).selectExpr("max(s)")
    frame.collect()
    print("batches", kind, "ColumnarToRow" in frame._jdf.queryExecution().executedPlan().toString())
session.stop()
"""


def run_program(
    master: str, path: str, file: str = "", old: str = "", new: str = ""
) -> tuple[list[str], str]:
    """Run the program; what it prints, and what it logs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, path, file, old, new],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("hash", "batches"))], done.stderr


def check_program(printed: list[str], *, batches: bool) -> None:
    hashes = {line.split(maxsplit=2)[2] for line in printed if line.startswith("hash")}
    assert len(hashes) == 1, printed
    messages = [line for line in printed if line.startswith("batches")]
    assert messages == [f"batches {kind} {batches and kind != 'rows'}" for kind in ("rows", "columns")]


# A program whose tasks may fail twice, and which says when batches have come from its workers.
RETRYING = """
import sys, threading, time
from spark_lance.spark.java import prepare_environment
prepare_environment()
import spark_lance
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
session = spark_lance.enable(builder.config("spark.driver.host", "127.0.0.1").getOrCreate())
session.conf.set("spark.lance.transport", sys.argv[2])
reader = session.read.format("lance").options(batch_size=20, partition_bytes=10_000_000)
slow = "length(reflect('java.lang.Thread', 'sleep', 3L)) * 0 + id as id"
query = reader.load(sys.argv[1]).selectExpr(slow, "length(s) as n")
query = query.selectExpr("count(*)", "count(distinct id)", "sum(id)", "sum(n)")
found = []
thread = threading.Thread(target=lambda: found.extend(query.collect()))
thread.start()
memory = session._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
while not memory.getAllocatedMemory():
    time.sleep(0.05)
time.sleep(0.5)
print("reading", flush=True)
thread.join()
print("found", *found[0], memory.getAllocatedMemory(), flush=True)
session.stop()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "rows"])
def test_a_task_that_fails_after_some_batches_is_repeated(long_path: str, tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    log = tmp_path / "log"
    command = [sys.executable, "-c", RETRYING, long_path, kind]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as done,
    ):
        assert done.stdout is not None
        try:
            output = next((line for line in done.stdout if line.startswith("reading")), None)
            assert output is not None, log.read_text()
            killed = busy_workers_of(done.pid)
            for one in killed:
                os.kill(one, signal.SIGKILL)
            result = next((line for line in done.stdout if line.startswith("found")), "")
            assert done.wait(60) == 0
        finally:
            done.kill()
    rows = lance.dataset(long_path).to_table()
    count, length = rows.num_rows, sum(map(len, rows["s"].to_pylist()))
    assert list(map(int, result.split()[1:])) == [count, count, count * (count - 1) // 2, length, 0]
    assert "Lost task" in log.read_text()


WARNING = "Lance tables are read row by row"


@pytest.mark.slow
def test_executors_of_their_own_get_the_classes(session: SparkSession, path: str) -> None:
    printed, log = run_program("local-cluster[2,1,512]", path)
    check_program(printed, batches=True)
    assert WARNING not in log


@pytest.mark.parametrize(
    ("master", "file", "old", "new", "reason"),
    [
        pytest.param(
            "local-cluster[1,1,512]",
            "org.lance.spark.transport.LanceTransport",
            "context.addJar(jar.getPath());",
            "",
            "executors do not load the classes",
            id="executors without the classes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "local[1]",
            "org.lance.spark.transport.LanceColumns",
            "createMapInBatchEvaluatorFactory",
            "createWhatIsNotThere",
            "NoSuchMethodException",
            id="Spark without a method",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "local[1]",
            "org.lance.spark.transport.LanceColumns",
            "runner.compute(",
            "runner.computeWhatIsNotThere(",
            "do not fit this release of Spark",
            id="classes that do not compile",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_where_batches_are_not_possible_rows_are(
    session: SparkSession, path: str, master: str, file: str, old: str, new: str, reason: str
) -> None:
    printed, log = run_program(master, path, file, old, new)
    check_program(printed, batches=False)
    warnings = [line for line in log.splitlines() if WARNING in line]
    assert len(warnings) == 1
    assert reason in warnings[0]
