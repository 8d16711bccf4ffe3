"""Which shard rows go to: the hash of the format, compared with pylance, and the shards that are made."""

from __future__ import annotations

import datetime
import threading
import time
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec

import spark_lance
from spark_lance.errors import OptionError, SchemaError, WriterFencedError
from spark_lance.memwal.sharding import buckets, hashes
from tests.memwal.tables import SCHEMA, Rows, as_rows, make, rows, seen

TYPES = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=12),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)),
}


@pytest.mark.parametrize(
    ("values", "kind", "count", "expected"),
    [
        ([1, 2, 3, -5, None], pa.int32(), 8, [2, 7, 1, 0, 0]),
        ([1, 2, 3, -1, 10**12], pa.int64(), 1000, [556, 452, 635, 712, 700]),
        (["a", "b", "hello", "é€x"], pa.string(), 1000, [713, 757, 576, 429]),
        ([1.25, 0.0, -0.0], pa.float64(), 1000, [840, 676, 676]),
        ([4000000000], pa.uint32(), 1000, [915]),
        ([True, False], pa.bool_(), 1000, [170, 54]),
    ],
)
def test_known_buckets(values: list[Any], kind: pa.DataType, count: int, expected: list[int]) -> None:
    assert buckets(pa.array(values, kind), count).tolist() == expected


def test_the_hash_of_34_is_that_of_iceberg() -> None:
    assert hashes(pa.array([34], pa.int64())).tolist() == [2017239379]


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[pa.DataType, Any]:
    """Pylance's schema of a table with one column of each type."""
    path = tmp_path_factory.mktemp("schemas")
    results = {}
    for number, kind in enumerate(TYPES):
        table = pa.table({"v": pa.array([], kind)})
        results[kind] = lance.write_dataset(table, path / str(number)).lance_schema
    return results


@given(data=st.data())
def test_buckets_are_those_of_pylance(data: st.DataObject, schemas: dict[pa.DataType, Any]) -> None:
    kind = data.draw(st.sampled_from(list(TYPES)))
    values = data.draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=20))
    count = data.draw(st.integers(1, 1024))
    batch = pa.record_batch({"v": pa.array(values, kind)})
    field = ShardingField("bucket", [0], "bucket", None, "int32", {"num_buckets": str(count)})
    theirs = evaluate_sharding_spec(batch, ShardingSpec(1, [field]), schemas[kind])
    assert buckets(batch["v"], count).tolist() == theirs.column(0).to_pylist()


def test_sliced_arrays_and_nan() -> None:
    values = pa.array(["x", "abcd", None, "abcde"]).slice(1)
    assert hashes(values).tolist()[0] == hashes(pa.array(["abcd"])).tolist()[0]
    assert buckets(values, 16).tolist()[1] == 0
    numbers = pa.array([float("nan"), -float("nan")], pa.float64())
    assert len(set(hashes(numbers).tolist())) == 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.decimal128(5, 2), pa.float16(), pa.list_(pa.int8())])
def test_types_without_buckets_are_refused(kind: pa.DataType, tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(pa.table({"v": pa.array([], kind)}), tmp_path)
    with pytest.raises(SchemaError, match="cannot be of type"):
        dataset.initialize_mem_wal(bucket_column="v", num_buckets=4)


OPTIONS: dict[str, dict[str, Any]] = {
    "bucket": {"bucket_column": "id", "num_buckets": 4},
    "identity": {"identity_column": "id"},
    "unsharded": {"unsharded": True},
}


@pytest.mark.parametrize("mode", OPTIONS)
def test_rows_are_spread_over_shards(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(SCHEMA.empty_table(), path).initialize_mem_wal(**OPTIONS[mode])
    expected: Rows = {key: "ab"[key % 2] for key in range(8)}
    with spark_lance.dataset(path).upsert_log() as log:
        log.put(rows(*expected.items()))
        # A key of another type of integers goes to the same shard.
        log.delete(pa.table({"id": pa.array([7], pa.int32())}))
        del expected[7]
    shards = spark_lance.dataset(path).wal.shards()
    assert len(shards) == {"bucket": 4, "identity": 8, "unsharded": 1}[mode]
    assert seen(path) == expected
    # Another writer finds the same shards.
    with spark_lance.dataset(path).upsert_log() as log:
        log.put(rows((1, "c"), (2, "a")))
    expected |= {1: "c", 2: "a"}
    assert seen(path) == expected
    again = spark_lance.dataset(path).wal.shards()
    assert [shard.shard_id for shard in again] == [shard.shard_id for shard in shards]
    # pylance writes to a shard that the router made, and keeps what it says of its value.
    values = {shard.shard_id: shard.values for shard in again}
    own = again[0].values["bucket"]
    key = {
        "bucket": next(k for k in range(1000, 2000) if buckets(pa.array([k]), 4)[0] == own[0]),
        "identity": int.from_bytes(own, "little"),
        "unsharded": 1000,
    }[mode]
    with lance.dataset(str(path)).mem_wal_writer(again[0].shard_id) as writer:
        writer.put(rows((key, "a")))
    assert seen(path) == expected | {key: "a"}
    assert {s.shard_id: s.values for s in spark_lance.dataset(path).wal.shards()} == values


def test_two_routers_make_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(SCHEMA.empty_table(), path).initialize_mem_wal(unsharded=True)
    first, second = (spark_lance.dataset(path).upsert_log() for _ in range(2))
    first.put(rows((1, "a")))
    second.put(rows((2, "b")))
    first.abandon()
    second.close()
    assert len(spark_lance.dataset(path).wal.shards()) == 1
    assert seen(path) == {1: "a", 2: "b"}


def test_arguments_that_cannot_be_used(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(SCHEMA.empty_table(), tmp_path)
    for options in (
        {"bucket_column": "id"},
        {"bucket_column": "id", "num_buckets": 0},
        {"bucket_column": "id", "num_buckets": 1025},
        {"unsharded": True, "identity_column": "id"},
        {"max_memtable_apples": 3},
        {"maintained_indexes": ["none"]},
    ):
        with pytest.raises(OptionError):
            dataset.initialize_mem_wal(**options)
    with pytest.raises(SchemaError, match="integers, text or booleans"):
        dataset.initialize_mem_wal(identity_column="x")
    result = dataset.initialize_mem_wal()
    with pytest.raises(OptionError, match="already has a MemWAL"):
        result.initialize_mem_wal()
    with pytest.raises(OptionError, match="does not assign rows to shards"):
        result.upsert_log()
    with pytest.raises(OSError, match="already"):
        lance.dataset(str(tmp_path)).initialize_mem_wal()


def test_a_null_cannot_name_a_shard(tmp_path: Path) -> None:
    table = pa.table({"val": pa.array([], pa.string())})
    spark_lance.write_dataset(table, tmp_path).initialize_mem_wal(identity_column="val")
    log = spark_lance.dataset(tmp_path).upsert_log()
    with pytest.raises(SchemaError, match="has a null"):
        log.put(pa.table({"val": pa.array([None], pa.string())}))
    log.put({"val": ["ä", "b", "ä"]})
    log.close()
    values = [shard.values["bucket"] for shard in spark_lance.dataset(tmp_path).wal.shards()]
    assert sorted(values) == [b"b", "ä".encode()]
    assert sorted(spark_lance.dataset(tmp_path).fresh().to_table()["val"].to_pylist()) == ["b", "ä", "ä"]


def test_a_key_cannot_be_in_two_shards(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(SCHEMA.empty_table(), tmp_path)
    with pytest.raises(OptionError, match="not in the primary key"):
        dataset.initialize_mem_wal(bucket_column="val", num_buckets=2).upsert_log()


def test_nulls_are_in_bucket_0() -> None:
    assert buckets(pa.array([None, 1], pa.int32()), 7)[0] == 0


def test_threads_share_a_log(tmp_path: Path) -> None:
    """Each sees its own rows when its call returns; what waits together becomes one entry of each shard."""
    path = tmp_path / "t"
    actual = make(path, bucket_column="id", num_buckets=3)
    writing, failures = actual.upsert_log(), []

    def work(number: int) -> None:
        try:
            for turn in range(12):
                keys = range(number * 100, number * 100 + 5)
                writing.put(rows(*((key, f"{turn}") for key in keys)))
                result = as_rows(spark_lance.dataset(path).fresh().lookup(list(keys)))
                assert result == dict.fromkeys(keys, f"{turn}")
        except BaseException as error:  # noqa: BLE001 (raised below)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    entries = sum(writer.stats.wal_entries for writer in writing.writers.values())
    assert sum(writer.stats.put_rows for writer in writing.writers.values()) == 6 * 12 * 5
    assert entries <= 6 * 12 * 3
    writing.close()
    assert seen(path) == {number * 100 + place: "11" for number in range(6) for place in range(5)}


def test_puts_that_wait_are_one_entry(tmp_path: Path) -> None:
    result = make(tmp_path / "t", bucket_column="id", num_buckets=2)
    log = result.upsert_log()
    log.put(rows((1, "first"), (2, "first")))
    before = sum(writer.stats.wal_entries for writer in log.writers.values())
    with log._turn:  # somebody writes
        threads = [
            threading.Thread(target=log.put, args=(rows((1, f"{number}"), (2, f"{number}")),))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        while len(log._waiting) < 4:
            time.sleep(0.001)
        order = [call.rows["val"][0].as_py() for call in log._waiting]
    for thread in threads:
        thread.join()
    assert sum(writer.stats.wal_entries for writer in log.writers.values()) - before <= 2
    assert seen(tmp_path / "t") == {1: order[-1], 2: order[-1]}
    # A failure is told to all whose rows it concerns.
    second = spark_lance.dataset(tmp_path / "t").upsert_log()
    second.put(rows((1, "second"), (2, "second")))
    failed: list[Exception] = []

    def fenced() -> None:
        try:
            log.put(rows((1, "late"), (2, "late")))
        except WriterFencedError as error:
            failed.append(error)

    with log._turn:
        threads = [threading.Thread(target=fenced) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(log._waiting) < 3:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert len(failed) == 3
    assert seen(tmp_path / "t") == {1: "second", 2: "second"}
