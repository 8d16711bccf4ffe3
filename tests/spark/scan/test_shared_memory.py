"""Batches that workers place in memory: the rows are those of the socket; nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.spark.worker import transport as task_read
from tests.spark.scan import placing_reads, test_transport
from tests.spark.scan.test_transport import (
    QUERIES,
    Slow,
    allocated,
    busy_workers_of,
    eventually,
    is_columnar,
    read,
    rows_of_all_kinds,
    session_without_local_answers,
    texts,
)
from tests.strategies import tables

pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
    pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="memory is shared on Linux"),
]

MEMORY = "spark.lance.sharedMemory"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield session_without_local_answers(spark)
    spark.newSession()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what tasks do."""

    def use(kind: Callable[..., Any], **options: str) -> None:
        monkeypatch.setattr(task_read, "TaskRead", partial(kind, **options))

    use(placing_reads.PlacingRead)
    return use


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of all types in several fragments."""
    place = str(tmp_path_factory.mktemp("shared") / "all.lance")
    for part in range(2):
        rows = rows_of_all_kinds(part, 150)
        rows = rows.set_column(0, "id", pa.array(range(part * 150, part * 150 + 150)))
        spark_lance.write_dataset(rows, place, mode="append", data_storage_version="2.2")
    spark_lance.dataset(place).delete("id % 7 = 3 or id between 110 and 140")
    return place


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of which many batches are placed."""
    place = str(tmp_path_factory.mktemp("shared") / "long.lance")
    rows = {"id": range(3000), "s": [f"{number:05d}" * 3200 for number in range(3000)]}
    spark_lance.write_dataset(pa.table(rows), place, max_rows_per_file=500)
    return place


SUM_OF_LONG = "sum(length(s)) + sum(cast(substr(s, -5) as long)) + count(distinct s)"
# Of 3,000 rows: 16,000 characters each, their numbers, and how many.
FOUND_IN_LONG = 3000 * 16_000 + sum(range(3000)) + 3000


def shared(frame: DataFrame) -> int:
    """How many bytes a query that has run was handed in shared memory."""
    plan = frame._jdf.queryExecution().executedPlan()
    while not plan.nodeName().startswith("BatchScan"):
        plan = plan.executedPlan() if plan.nodeName() == "AdaptiveSparkPlan" else plan.children().head()
    return int(plan.metrics().apply("lanceTaskShared").value())


def field_of_ring(session: SparkSession, name: str) -> Any:
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    field = loader.loadClass("org.lance.spark.transport.LanceRing").getDeclaredField(name)
    field.setAccessible(True)
    return field.get(None)


def names_in_memory() -> list[str]:
    return [entry.name for entry in Path("/dev/shm").glob("spark-lance-*")]


def nothing_is_leased(session: SparkSession) -> bool:
    """Whether all memory is there for other tasks, and has no name."""
    free = len(field_of_ring(session, "FREE")) == field_of_ring(session, "regions")
    return free and not names_in_memory() and allocated(session) == 0


def both_ways(session: SparkSession, ask: Callable[[], list[str]]) -> list[str]:
    """What a query finds through the socket and through memory, which is the same."""
    session.conf.set(MEMORY, "0")
    expected = ask()
    session.conf.set(MEMORY, "1m")
    try:
        assert ask() == expected
    finally:
        session.conf.unset(MEMORY)
    assert eventually(partial(nothing_is_leased, session))
    return expected


@pytest.mark.parametrize("size", ["100000", *(pytest.param(size, marks=pytest.mark.slow) for size in "17")])
def test_all_types(session: SparkSession, path: str, reads: object, size: str) -> None:
    def ask() -> list[str]:
        frame = read(session, path, batch_size=size).where("rand(1) >= 0")
        result = sorted(texts(frame))
        assert is_columnar(frame)
        assert (shared(frame) > 0) == (session.conf.get(MEMORY) != "0")
        return result

    assert len(both_ways(session, ask)) == spark_lance.dataset(path).count_rows()


@settings(max_examples=6)
@given(rows=tables("2.2", max_rows=40), size=st.sampled_from([1, 3, 1000]))
def test_random_tables(session: SparkSession, tmp_path_factory: Any, rows: pa.Table, size: int) -> None:
    check_random(session, tmp_path_factory, rows, size)


@pytest.mark.slow
@settings(max_examples=150)
@given(rows=tables("2.2", max_rows=60, max_columns=5), size=st.sampled_from([1, 3, 20, 1000]))
def test_more_random_tables(session: SparkSession, tmp_path_factory: Any, rows: pa.Table, size: int) -> None:
    check_random(session, tmp_path_factory, rows, size)


def check_random(session: SparkSession, folders: Any, rows: pa.Table, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_read, "TaskRead", placing_reads.PlacingRead)
        test_transport.check_random(session, folders, rows, size, both_ways)


def check_queries(session: SparkSession, path: str, queries: tuple[str, ...]) -> None:
    def ask(query: str) -> list[str]:
        read(session, path, batch_size="11").createOrReplaceTempView("t")
        return texts(session.sql(query))

    for query in queries:
        both_ways(session, partial(ask, query))


def test_whatever_is_done_with_the_rows(session: SparkSession, path: str, reads: object) -> None:
    check_queries(session, path, QUERIES[3::8])


@pytest.mark.slow
def test_whatever_else_is_done_with_the_rows(session: SparkSession, path: str, reads: object) -> None:
    check_queries(session, path, QUERIES)


def test_caches_and_functions_keep_what_they_need(session: SparkSession, path: str, reads: object) -> None:
    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def ask() -> list[str]:
        cached = read(session, path, batch_size="13").selectExpr("id", "s", "point", "vector", "map").cache()
        try:
            results = [*texts(cached.orderBy("id")), *texts(cached.where("id > 50").orderBy("id"))]
        finally:
            cached.unpersist(blocking=True)
        plain = read(session, path, batch_size="13").select("id", "s", "vector", "point")
        return [*results, *texts(plain.mapInArrow(doubled, plain.schema).orderBy("id"))]

    both_ways(session, ask)


def test_large_batches_go_through_memory(session: SparkSession, long_path: str) -> None:
    def asked() -> DataFrame:
        frame = read(session, long_path).selectExpr(SUM_OF_LONG)
        assert frame.head() == (FOUND_IN_LONG,)
        return frame

    session.conf.set(MEMORY, "0")
    frame = asked()
    assert shared_of_long(session, long_path) == 0
    session.conf.set(MEMORY, "2m")
    assert shared_of_long(session, long_path) > 40_000_000
    # Batches of a few rows are not worth it.
    small = read(session, long_path, batch_size="3").selectExpr("s || '!' as t")
    assert len(small.collect()) == 3000
    assert shared(small) == 0
    session.conf.unset(MEMORY)
    assert asked() is not frame
    assert shared_of_long(session, long_path) > 40_000_000


def shared_of_long(session: SparkSession, path: str) -> int:
    frame = read(session, path).selectExpr("length(s) as n")
    assert sum(row.n for row in frame.collect()) == 48_000_000
    return shared(frame)


def test_many_queries_use_the_same_memory(session: SparkSession, long_path: str) -> None:
    for number in range(6):
        request = read(session, long_path)
        # Half of them end their tasks early.
        if number % 2:
            assert len(request.where("rand(1) >= 0").limit(3).collect()) == 3
        else:
            assert request.selectExpr(SUM_OF_LONG).head() == (FOUND_IN_LONG,)
    assert eventually(partial(nothing_is_leased, session))
    assert field_of_ring(session, "regions") <= 2 * max(4, os.cpu_count() or 1)


def test_cancelled_and_killed_tasks_leave_nothing(session: SparkSession, long_path: str) -> None:
    session.conf.set(MEMORY, "1m")
    # Of the first task that a driver gives to Python Spark keeps some memory if it is cancelled.
    read(session, long_path).selectExpr("rand(1) + length(s) as x").selectExpr("sum(x)").collect()
    for way in ("cancelled", "killed"):
        query = Slow(session, long_path)
        assert not nothing_is_leased(session)
        if way == "cancelled":
            session.sparkContext.cancelJobGroup("slow")
        else:
            for one in busy_workers_of(os.getpid()):
                os.kill(one, signal.SIGKILL)
        query.join(60)
        assert "cancelled" in str(query.error) or "exited unexpectedly" in str(query.error)
        assert eventually(partial(nothing_is_leased, session))
        # Its memory is used again, and what is in it is not what that task had.
        assert read(session, long_path).selectExpr(SUM_OF_LONG).head() == (FOUND_IN_LONG,)
    session.conf.unset(MEMORY)


@pytest.mark.parametrize(
    "kind",
    [placing_reads.ReadElsewhere, placing_reads.ReadWithoutStream, placing_reads.ReadOfLatecomer],
    ids=lambda kind: kind.__name__,
)
def test_where_workers_cannot_share_memory_rows_come_through_the_socket(
    session: SparkSession, path: str, reads: Callable[..., None], kind: Callable[..., Any]
) -> None:
    reads(kind)
    frame = read(session, path, batch_size="20").select("id", "s", "point")
    assert sorted(row.id for row in frame.collect()) == sorted(
        spark_lance.dataset(path).to_table(["id"])["id"].to_pylist()
    )
    assert shared(frame) == 0


@pytest.mark.parametrize(
    "how",
    [
        *("other_number", "other_columns"),
        *(pytest.param(how, marks=pytest.mark.slow) for how in placing_reads.DAMAGES),
    ],
)
def test_damaged_records_and_messages_are_refused(
    session: SparkSession, path: str, reads: Callable[..., None], how: str
) -> None:
    reads(placing_reads.DamagingRead, how=how)
    frame = read(session, path).select("s", "words", "map", "point")
    with pytest.raises((PySparkException, Py4JError), match=r"a Python worker|IndexOutOfBounds"):
        frame.collect()
    assert eventually(partial(nothing_is_leased, session))


@pytest.mark.slow
def test_random_damage_ends_no_process(session: SparkSession, path: str, reads: Callable[..., None]) -> None:
    refused = 0
    for seed in range(40):
        reads(placing_reads.DamagingRead, how=str(seed))
        try:
            read(session, path).collect()
        except (PySparkException, Py4JError):
            refused += 1
    assert refused > 15
    reads(placing_reads.PlacingRead)
    assert len(read(session, path).collect()) == spark_lance.dataset(path).count_rows()


@pytest.mark.parametrize("asked", ["-1", "5", "2g", "much"])
def test_sizes_that_are_none(session: SparkSession, path: str, asked: str) -> None:
    session.conf.set(MEMORY, asked)
    with pytest.raises(PySparkException, match=rf"{MEMORY} is 0, or a size from 1m to 1g, not {asked}"):
        read(session, path).collect()
    session.conf.unset(MEMORY)


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and so on."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    results = [process]
    for one in results:
        results += [child for child, parent in parents.items() if parent == one]
    return results[1:]


# A program whose tasks read a table with memory of a size, and which says what came through it.
PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from spark_lance.spark.java import prepare_environment
prepare_environment()
import spark_lance
from pyspark.sql import SparkSession
from tests.spark.scan.test_shared_memory import SUM_OF_LONG, descendants, names_in_memory, shared_of_long

master, path, size, killing = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.lance.localRows": "0",
            "spark.executor.memory": "512m", "spark.lance.sharedMemory": size}
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config(name, value)
session = spark_lance.enable(builder.getOrCreate())
print("shared", shared_of_long(session, path), flush=True)
if killing:
    slow = "length(reflect('java.lang.Thread', 'sleep', 3L)) * 0 + id as id"
    frame = session.read.format("lance").load(path).selectExpr(slow, "s").selectExpr(SUM_OF_LONG)
    found = []
    thread = threading.Thread(target=lambda: found.append(frame.head()[0]))
    thread.start()
    time.sleep(3)
    for one in descendants(os.getpid()):
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
            os.kill(one, signal.SIGKILL)
            print("killed", one, flush=True)
    thread.join()
    print("after", found[0], flush=True)
print("found", session.read.format("lance").load(path).selectExpr(SUM_OF_LONG).head()[0], flush=True)
session.stop()
print("left", names_in_memory(), flush=True)
"""


def run_program(*arguments: str, before: tuple[str, ...] = ()) -> dict[str, str]:
    """What the program prints, by the first word of a line."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.slow
def test_executors_of_their_own_that_are_killed(session: SparkSession, long_path: str) -> None:
    message = run_program("local-cluster[1,2,512]", long_path, "1m", "killing")
    assert int(message["shared"]) > 40_000_000
    assert int(message["killed"])
    assert message["after"] == message["found"] == str(FOUND_IN_LONG)
    assert message["left"] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(("room", "least", "most"), [("64m", 1, 1 << 30), ("3m", 0, 0)])
def test_a_folder_of_memory_that_is_small(
    session: SparkSession, long_path: str, room: str, least: int, most: int
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], check=False).returncode:
        pytest.skip("a file system of one's own is not possible here")
    mounting = f'mount -t tmpfs -o size={room} tmpfs /dev/shm && exec "$@"'
    # The table itself may be in that folder.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        shutil.copytree(long_path, f"{folder}/long.lance")
        before = ("env", f"TMPDIR={folder}", unshare, "-Urm", "sh", "-c", mounting, "sh")
        message = run_program("local[6]", f"{folder}/long.lance", "16m", "", before=before)
    assert least <= int(message["shared"]) <= most
    assert message["found"] == str(FOUND_IN_LONG)
    assert message["left"] == "[]"
