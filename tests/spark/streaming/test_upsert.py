"""Micro-batches of upserts that tasks append to logs themselves: once, whatever becomes of the tasks."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql import types as st

import spark_lance
from spark_lance.errors import CommitError, SchemaError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import Store
from spark_lance.memwal.entries import read_entry
from spark_lance.memwal.names import ShardPaths, list_shards, parse_numbers
from spark_lance.memwal.sharding import Router
from spark_lance.spark.options.options import write_options
from spark_lance.spark.sql import writes
from spark_lance.spark.streaming import upsert
from spark_lance.spark.streaming.upsert import Route, check_partition
from tests.memwal.tables import KEY, Rows, as_rows, make, rows

pytestmark = pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"),
    reason="Spark 4.0 hands no Arrow batches to streams",
)
STREAM = st.StructType([st.StructField("id", st.LongType()), st.StructField("val", st.StringType())])
SHARDS: dict[str, dict[str, Any]] = {
    "buckets": {"bucket_column": "id", "num_buckets": 5},
    "identity": {"identity_column": "id"},
    "one": {"unsharded": True},
}


def seen(path: Path) -> Rows:
    return as_rows(spark_lance.dataset(path).fresh().to_table(["id", "val"]))


def entries(path: Path) -> list[tuple[str, str, int]]:
    """Shard, epoch and rows of every entry of a stream in the logs."""
    dataset = spark_lance.dataset(path)
    results = []
    for shard in list_shards(dataset.table):
        paths = ShardPaths(dataset.table, shard)
        for position in parse_numbers(list(dataset.store.list(paths.entries))):
            entry = read_entry(paths, position, dataset.snapshot.schema)
            if entry.rows is not None and b"spark_lance.epoch" in entry.metadata:
                results.append(
                    (str(shard), entry.metadata[b"spark_lance.epoch"].decode(), entry.rows.num_rows)
                )
    return results


def writer(path: Path, epoch: int, most: int = 3) -> tuple[Any, Route]:
    """A writer as the driver plans it for a micro-batch."""
    planned = upsert.UpsertStreamWriter(write_options({"path": str(path), "mode": "upsert"}), STREAM, "q")
    route = planned.by_route(epoch, most)
    assert route is not None
    return planned, route


def parts(planned: Any, route: Route, pairs: Rows) -> list[Rows]:
    """What each task gets: Spark's partition of every row."""
    table = rows(*pairs.items()).select(["id"])
    places = np.zeros(len(pairs), np.int64)
    router = planned._staging.router
    for partition in range(route.partitions):
        for number in range(len(pairs)):
            try:
                check_partition(route, router, table.slice(number, 1), partition)
            except CommitError:
                continue
            places[number] = partition
    listed = list(pairs.items())
    return [dict(listed[i] for i in np.flatnonzero(places == part)) for part in range(route.partitions)]


def append(planned: Any, partition: int, part: Rows) -> int:
    """What a task does with its rows."""
    batch = pa.record_batch(
        {"id": list(part), "val": list(part.values())},
        schema=pa.schema([("id", pa.int64()), ("val", pa.string())]),
    )
    result: int = planned._staging.append(iter([batch]), "q", partition)
    return result


def in_process(planned: Any, partition: int, part: Rows, call: int, sign: int) -> int:
    """Let a process do the work of a task, and send itself a signal at some call of the store; 0: at none."""
    child = os.fork()
    if child:
        return child
    try:
        calls = 0
        for name in ("put_if_absent", "create", "list", "put_hint"):
            original = getattr(LocalStore, name)

            def counted(store: Store, *rest: Any, _original: Any = original, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == call and call % 2:
                    os.kill(os.getpid(), sign)
                result = _original(store, *rest, **named)
                if calls == call and not call % 2:
                    os.kill(os.getpid(), sign)
                return result

            setattr(LocalStore, name, counted)
        append(planned, partition, part)
        os._exit(0)
    except BaseException:  # noqa: BLE001 (a process of its own, whose end is all that is looked at)
        os._exit(1)


def history(path: Path, shards: dict[str, Any], seed: int, epochs: int) -> None:
    """Micro-batches whose tasks are killed, stopped and resumed later, beside another writer."""
    draw = random.Random(seed)
    base: Rows = dict.fromkeys(range(12), "base")
    make(path, *base.items(), **shards)
    state = dict(base)
    stopped: list[int] = []
    for epoch in range(epochs):
        batch: Rows = dict.fromkeys(draw.sample(range(30), draw.randrange(1, 20)), f"e{epoch}")
        ended = False
        while not ended:  # again after the driver died
            planned, route = writer(path, epoch, draw.choice((1, 3, 8)))
            for partition, part in enumerate(parts(planned, route, batch)):
                while True:
                    fate = draw.random()
                    sign = signal.SIGKILL if fate < 0.4 else signal.SIGSTOP
                    call = draw.randrange(1, 40) if fate < 0.6 else 0
                    child = in_process(planned, partition, part, call, sign)
                    _, status = os.waitpid(child, os.WUNTRACED)
                    if os.WIFSTOPPED(status):
                        stopped.append(child)
                    now = seen(path)
                    for key in range(30):
                        allowed = {state.get(key)} | ({batch[key]} if key in part else set())
                        assert now.get(key) in allowed, (seed, epoch, key)
                    state = now
                    if not os.WIFSTOPPED(status) and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                        break
                    if stopped and draw.random() < 0.5:
                        resume(stopped, state, path, part, batch)
                        state = seen(path)
            if draw.random() < 0.3:  # somebody else changes rows, which must not come back
                key = draw.randrange(30)
                with spark_lance.dataset(path).upsert_log() as log:
                    log.put(rows((key, "other")).select(["id", "val"]))
                state[key] = "other"
            if draw.random() < 0.7:
                planned.commit([upsert.UpsertMessage(()) for _ in range(route.partitions)], epoch)
                ended = True
            assert seen(path) == state, (seed, epoch)
        while stopped and draw.random() < 0.5:
            resume(stopped, state, path, {}, {})
        assert seen(path) == state, (seed, epoch)
        if draw.random() < 0.3:
            spark_lance.dataset(path).wal.compact(flush=draw.random() < 0.5)
            assert seen(path) == state, (seed, epoch)
    for child in stopped:
        resume([child], state, path, {}, {})
    assert seen(path) == state
    again = Counter((shard, epoch) for shard, epoch, _ in entries(path))
    assert set(again.values()) <= {1}, again


def resume(stopped: list[int], state: Rows, path: Path, part: Rows, batch: Rows) -> None:
    """Let a task go on that was thought dead; its rows may come now only if they are of the batch at work."""
    child = stopped.pop(0)
    status = None
    while status is None or os.WIFSTOPPED(status):  # each of its threads may have stopped it
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, os.WUNTRACED)
    now = seen(path)
    for key in range(30):
        assert now.get(key) == state.get(key) or (key in part and now.get(key) == batch[key]), key


@pytest.fixture(autouse=True)
def files_of_tasks_that_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks leave their files in a folder of the test, as those of a cluster do in one of the application."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


@pytest.mark.parametrize("shards", SHARDS)
def test_tasks_that_die_and_come_back(tmp_path: Path, shards: str) -> None:
    history(tmp_path / "t", SHARDS[shards], list(SHARDS).index(shards), 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_tasks_that_die_and_come_back_at_length(tmp_path: Path, seed: int) -> None:
    history(tmp_path / "t", list(SHARDS.values())[seed % 3], 100 + seed, 15)


def test_nothing_is_written_of_rows_that_do_not_fit(tmp_path: Path) -> None:
    make(tmp_path / "t", (1, "base"), unsharded=True)
    planned, _ = writer(tmp_path / "t", 0)
    good = pa.record_batch({"id": [1], "val": ["new"]})
    bad = pa.record_batch({"id": pa.array([None], pa.int64()), "val": ["new"]})
    with pytest.raises(SchemaError, match="must not be null"):
        planned._staging.append(iter([good, bad]), "q", 0)
    assert seen(tmp_path / "t") == {1: "base"}


def test_rows_of_other_tasks_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "t", bucket_column="id", num_buckets=5)
    planned, route = writer(tmp_path / "t", 0)
    first = parts(planned, route, dict.fromkeys(range(20), "new"))[0]
    with pytest.raises(CommitError, match="came to task 1, which is that of another"):
        append(planned, 1, first)
    assert seen(tmp_path / "t") == {}
    # Without shards there is one task.
    make(tmp_path / "one", unsharded=True)
    planned, _ = writer(tmp_path / "one", 0)
    with pytest.raises(CommitError, match="came to task 1"):
        append(planned, 1, {1: "new"})
    assert append(planned, 0, {1: "new"}) == 1


_SPARK: dict[str, st.DataType] = {
    "long": st.LongType(),
    "int": st.IntegerType(),
    "short": st.ShortType(),
    "byte": st.ByteType(),
    "string": st.StringType(),
    "boolean": st.BooleanType(),
}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "id long"), (pa.int32(), "id int"), (pa.int16(), "id short"), (pa.int8(), "id byte"),
        (pa.string(), "id string"), (pa.large_string(), "id string"), (pa.bool_(), "id boolean"),
        (pa.int64(), "id int"), (pa.uint32(), "id long"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shards", ["buckets", "identity"])
def test_which_columns_tell_the_way(tmp_path: Path, kind: pa.DataType, column: str, shards: str) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=False, metadata=KEY), pa.field("val", pa.string())])
    ds = spark_lance.write_dataset(schema.empty_table(), tmp_path / "t")
    ds = ds.initialize_mem_wal(**SHARDS[shards])
    options = write_options({"path": str(tmp_path / "t"), "mode": "upsert"})
    name, kind_in_spark = column.split()
    fields = [st.StructField(name, _SPARK[kind_in_spark]), st.StructField("val", st.StringType())]
    seen_by_spark = st.StructType(fields)
    planned = upsert.UpsertStreamWriter(options, seen_by_spark, "q")
    same = column.endswith({"int64": "long", "uint32": "-"}.get(str(kind), ""))
    assert (planned.by_route(0, 4) is not None) == same


@pytest.fixture(scope="module")
def enabled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield spark_lance.enable(spark.newSession(), root=str(tmp_path_factory.mktemp("root")))
    spark.newSession()


def streamed(
    session: SparkSession, folder: Path, path: Path, data: list[tuple[Any, Any]], schema: str
) -> None:
    """Write rows into the folder of a stream, and let the stream upsert them, then end."""
    session.createDataFrame(data, schema).repartition(3).write.mode("append").parquet(str(folder / "in"))
    stream = session.readStream.schema(schema).parquet(str(folder / "in"))
    out = stream.writeStream.format("lance").option("mode", "upsert").option("path", str(path))
    out = out.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    out.start().awaitTermination()


# A number, a text, and each way to choose a shard; the others differ in a cast.
QUICK = {("long", "buckets"), ("string", "identity"), ("long", "one")}
KINDS = [
    pytest.param(shards, kind, marks=() if (kind, shards) in QUICK else pytest.mark.slow)
    for shards in ("buckets", "identity", "one")
    for kind in ("long", "int", "short", "byte", "string", "boolean")
    if shards != "one" or kind == "long"  # the column does not matter there
]


@pytest.mark.parametrize(("shards", "kind"), KINDS)
def test_spark_sends_rows_of_a_shard_to_one_task(
    enabled: SparkSession, tmp_path: Path, shards: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = {"long": pa.int64(), "int": pa.int32(), "short": pa.int16(), "byte": pa.int8()}.get(kind)
    arrow = arrow or (pa.string() if kind == "string" else pa.bool_())
    schema = pa.schema([pa.field("id", arrow, nullable=False, metadata=KEY), pa.field("val", pa.string())])
    path = tmp_path / "t"
    spark_lance.write_dataset(schema.empty_table(), path).initialize_mem_wal(**SHARDS[shards])
    keys: list[Any] = [0, 1, -1, 7, 100, -128, 127, 55, 12]
    if kind == "string":
        keys = ["", "a", "é", "日本語", "hello", "x" * 40, "🎈"]
    if kind == "boolean":
        keys = [True, False]
    # By micro-batch. Spark 4.1 plans each several times, newer releases once.
    plans: dict[int, list[Any]] = {0: [], 1: []}
    plan = writes.plan_upserts

    def kept(request: Any) -> Any:
        result = plan(request)
        plans[request.body["epoch"]].append(result)
        return result

    monkeypatch.setattr(writes, "plan_upserts", kept)
    # The driver has nothing to append then.
    monkeypatch.setattr(upsert, "append_pieces", lambda _at, _router, pieces, _once: 1 / int(not pieces))
    for number in range(2):
        data = [(key, f"{number}") for key in keys[number:]]
        streamed(enabled, tmp_path, path, data, f"id {kind}, val string")
    result = spark_lance.dataset(path).fresh().to_table(["id", "val"])
    expected = {key: str(int(place > 0)) for place, key in enumerate(keys)}
    assert dict(zip(result["id"].to_pylist(), result["val"].to_pylist(), strict=True)) == expected
    assert set(Counter((shard, epoch) for shard, epoch, _ in entries(path)).values()) == {1}
    assert {epoch for _, epoch, _ in entries(path)} == {"0", "1"}
    for planned in plans.values():
        assert len(planned) == 1 or pyspark.__version__ < "4.2"
        assert planned
        assert all(one["route"] is not None for one in planned)
    if shards == "identity":
        assert len({shard for shard, _, _ in entries(path)}) == len(keys)


def test_without_the_drivers_plan_rows_come_in_any_way(enabled: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "t", (1, "base"), bucket_column="id", num_buckets=4)
    enabled.conf.set("spark.lance.planInDriver", "false")
    try:
        streamed(enabled, tmp_path, tmp_path / "t", [(1, "new"), (2, "new")], "id long, val string")
    finally:
        enabled.conf.unset("spark.lance.planInDriver")
    assert seen(tmp_path / "t") == {1: "new", 2: "new"}


def test_numbers_reach_every_partition() -> None:
    snapshot: Any = None
    router = Router(1, "bucket", "id", 1024)
    for most in (1, 2, 7, 200, 1024):
        snapshot = snapshot or _empty()
        route = Route.plan(snapshot, router, ("id",), STREAM, 0, most)
        assert route is not None
        assert len(set(route.values)) == most


def _empty() -> Any:
    import tempfile

    folder = tempfile.mkdtemp()
    return make(Path(folder) / "t", bucket_column="id", num_buckets=4).snapshot
