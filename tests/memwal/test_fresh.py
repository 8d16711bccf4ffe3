"""Reading a table together with the rows that are not in it yet."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import FormatError, OptionError
from spark_lance.memwal import entries
from spark_lance.memwal import fresh as fresh_module
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.table.versions import versions
from tests.memwal.tables import (
    KEY,
    OTHER,
    SCHEMA,
    SHARD,
    Rows,
    as_rows,
    by_pylance,
    files,
    make,
    plain,
    rows,
    seen,
)


def test_a_table_without_a_memwal_reads_as_ever(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(rows((1, "a"), (2, None)), tmp_path)
    fresh = dataset.fresh()
    assert fresh.to_table().equals(dataset.to_table())
    assert fresh.to_table(with_row_id=True).equals(dataset.to_table(with_row_id=True))
    assert fresh.count_rows() == 2
    assert fresh.schema == dataset.schema
    assert dataset.initialize_mem_wal().fresh().to_table().equals(dataset.to_table())


def layers(path: Path) -> Any:
    """Keys 0 to 9 in the table; 3 to 5 in an older SSTable, 4 to 6 in a newer one, 5 to 7, 20 in the log."""
    dataset = make(path, *((key, "base") for key in range(10)))
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((3, "gen 1"), (4, "gen 1"), (5, "old"), (5, "gen 1")))
    log.flush()
    log.put(rows((4, "gen 2"), (5, "gen 2"), (6, "gen 2")))
    log.delete({"id": [8]})
    log.flush()
    log.put(rows((5, "log"), (6, "log"), (20, "log")))
    log.delete({"id": [7, 6]})
    log.abandon()
    return dataset


EXPECTED = {
    0: "base",
    1: "base",
    2: "base",
    3: "gen 1",
    4: "gen 2",
    5: "log",
    9: "base",
    20: "log",
}


def test_the_newest_row_of_each_key_counts(tmp_path: Path) -> None:
    dataset = layers(tmp_path)
    fresh = dataset.fresh()
    assert as_rows(fresh.to_table()) == EXPECTED
    assert fresh.count_rows() == len(EXPECTED)
    assert as_rows(pa.Table.from_batches(fresh.to_batches(batch_size=2))) == EXPECTED
    assert as_rows(pa.table(fresh)) == EXPECTED
    assert sorted(fresh.to_table(["id"])["id"].to_pylist()) == sorted(EXPECTED)
    assert fresh.to_table({"twice": "2 * id"}, order_by="id").to_pydict() == {
        "twice": [2 * key for key in sorted(EXPECTED)]
    }
    assert fresh.scanner([], limit=5).count_rows() == 5
    assert "logged_rows=" in repr(fresh)
    old = as_rows(dataset.to_table())
    assert old == dict.fromkeys(range(10), "base")


@pytest.mark.parametrize("index", [False, True])
def test_filters_see_no_old_values(tmp_path: Path, index: bool) -> None:
    dataset = layers(tmp_path)
    if index:
        dataset = dataset.create_scalar_index("val", "BITMAP").create_scalar_index("id", "BTREE")
    fresh = dataset.fresh()
    for condition, remaining in (
        ("val = 'base'", lambda key, val: val == "base"),
        ("val in ('old', 'gen 1')", lambda key, val: val in ("old", "gen 1")),
        ("id in (3, 4, 5, 7, 8, 20)", lambda key, val: key in (3, 4, 5, 7, 8, 20)),
        ("x >= 2 and val != 'gen 2'", lambda key, val: key >= 4 and val != "gen 2"),
        ("_rowid is null", lambda key, val: val != "base"),
        ("id > 100", lambda key, val: False),
    ):
        expected = {key: val for key, val in EXPECTED.items() if remaining(key, val)}
        assert as_rows(fresh.to_table(filter=condition)) == expected, condition
        assert fresh.count_rows(condition) == len(expected)
        assert sorted(fresh.to_table(["x"], filter=condition)["x"].to_pylist()) == [
            k / 2 for k in sorted(expected)
        ]


def test_rows_are_looked_up_by_key(tmp_path: Path) -> None:
    fresh = layers(tmp_path).fresh()
    requests = [20, 8, 0, 5, 7, 100, 4, 5]
    result = fresh.lookup(requests)
    assert result["id"].to_pylist() == [key for key in requests if key in EXPECTED]
    assert result["val"].to_pylist() == [EXPECTED[key] for key in requests if key in EXPECTED]
    assert fresh.lookup({"id": [3]}, columns=["val"]).to_pydict() == {"val": ["gen 1"]}
    assert fresh.lookup([{"id": 8}]).num_rows == 0
    assert fresh.lookup([]).schema.names == SCHEMA.names
    with pytest.raises(OptionError, match="lack the primary key column"):
        fresh.lookup({"val": ["a"]})


def test_keys_of_several_columns(tmp_path: Path) -> None:
    def part(name: str, kind: pa.DataType, place: int) -> pa.Field:
        return pa.field(
            name, kind, False, {**KEY, "lance-schema:unenforced-primary-key:position": str(place)}
        )

    schema = pa.schema([pa.field("v", pa.int32()), part("b", pa.int16(), 2), part("a", pa.string(), 1)])

    def table(*triples: tuple[str, int, int]) -> pa.Table:
        a, b, v = zip(*triples, strict=True)
        return pa.table({"v": v, "b": b, "a": a}, schema=schema)

    dataset = spark_lance.write_dataset(table(("x", 1, 1), ("x", 2, 2), ("", 1, 3)), tmp_path)
    dataset = dataset.initialize_mem_wal(bucket_column="a", num_buckets=2)
    with dataset.upsert_log() as log:
        log.put(table(("x", 2, 20), ("y\0z", -1, 40)))
        log.delete(pa.table({"a": [""], "b": pa.array([1], pa.int16())}))
    expected = [("x", 1, 1), ("x", 2, 20), ("y\0z", -1, 40)]

    def found(data: pa.Table) -> list[tuple[Any, ...]]:
        return sorted(zip(*(data[name].to_pylist() for name in ("a", "b", "v")), strict=True))

    assert found(dataset.fresh().to_table()) == expected
    keys = pa.table({"a": ["x", "x"], "b": pa.array([2, 3], pa.int16())})
    assert dataset.fresh().lookup(keys)["v"].to_pylist() == [20]
    shards = {shard.shard_id: shard for shard in dataset.wal.shards()}
    shots = []
    for name, shard in shards.items():
        shot = lance.mem_wal.ShardSnapshot(name).with_spec_id(1)
        shot = shot.with_current_generation(shard.current_generation)
        for generation, directory in shard.sstables.items():
            shot = shot.with_sstable(generation, directory)
        shots.append(shot)
    theirs = lance.mem_wal.LsmScanner.from_snapshots(lance.dataset(str(tmp_path)), shots).to_table()
    assert found(theirs) == expected
    dataset.wal.compact()
    assert found(lance.dataset(str(tmp_path)).to_table()) == expected


@pytest.mark.parametrize("index", [None, "IVF_FLAT"])
def test_the_nearest_rows(tmp_path: Path, index: str | None) -> None:
    rng = np.random.default_rng(5)
    kind = pa.list_(pa.float32(), 8)
    schema = pa.schema([SCHEMA.field("id"), pa.field("tag", pa.int32()), pa.field("v", kind)])

    def table(keys: list[int]) -> tuple[pa.Table, dict[int, Any]]:
        actual = rng.random((len(keys), 8), np.float32)
        values = pa.FixedSizeListArray.from_arrays(pa.array(actual.ravel()), type=kind)
        data = pa.table({"id": keys, "tag": [key % 3 for key in keys], "v": values}, schema=schema)
        return data, dict(zip(keys, actual, strict=True))

    base, known = table(list(range(300)))
    dataset = spark_lance.write_dataset(base, tmp_path).initialize_mem_wal(unsharded=True)
    if index is not None:
        dataset = dataset.create_index("v", index, num_partitions=4)
    with dataset.upsert_log() as log:
        for keys in (list(range(50, 150)), list(range(280, 340)), list(range(60, 70))):
            data, new = table(keys)
            log.put(data)
            known |= new
            log.flush()
        log.delete({"id": list(range(200, 240))})
    for key in range(200, 240):
        del known[key]
    fresh = dataset.fresh()
    for condition, prefilter in ((None, False), ("tag = 1", True), ("tag = 1", False)):
        query = rng.random(8, np.float32)
        keys = [k for k in known if not (prefilter and k % 3 != 1)]
        distances = {key: float(((known[key] - query) ** 2).sum()) for key in keys}
        best = sorted(distances, key=lambda key: distances[key])[:10]
        if condition and not prefilter:
            best = [key for key in best if key % 3 == 1]
        request = {"column": "v", "q": query, "k": 10, "nprobes": 4}
        result = fresh.to_table(
            ["id"], filter=condition, nearest=request, prefilter=prefilter, with_row_id=True
        )
        assert result["id"].to_pylist() == best
        assert np.allclose(result["_distance"].to_numpy(), [distances[key] for key in best], rtol=1e-4)
    both = fresh.to_table(nearest={"column": "v", "q": rng.random((2, 8), np.float32), "k": 3})
    assert both["query_index"].to_pylist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(OptionError, match="cannot be used with fresh"):
        fresh.to_table(full_text_query="x")


def test_columns_may_change_while_rows_are_logged(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"), (2, "b"))
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((1, "sst")))
    open_writer = dataset.mem_wal_writer(OTHER)
    open_writer.put(rows((5, "log")))
    dataset = spark_lance.dataset(tmp_path)
    dataset = dataset.alter_columns({"path": "val", "name": "renamed"}).drop_columns(["x"])
    # The new column gets the field id that the mark of deletions has in the SSTable.
    dataset = dataset.add_columns(pa.schema([("x", pa.bool_()), ("more", pa.bool_())]))
    open_writer.put(rows((6, "log")))
    fresh = spark_lance.dataset(tmp_path).fresh().to_table(order_by="id")
    assert fresh.schema.names == ["id", "renamed", "x", "more"]
    assert fresh.to_pydict() == {
        "id": [1, 2, 5, 6],
        "renamed": ["sst", "b", "log", "log"],
        "x": [None] * 4,
        "more": [None] * 4,
    }
    open_writer.close()
    assert spark_lance.dataset(tmp_path).fresh().to_table(order_by="id").equals(fresh)
    spark_lance.dataset(tmp_path).wal.compact()
    assert spark_lance.dataset(tmp_path).to_table(order_by="id").to_pydict() == fresh.to_pydict()
    assert lance.dataset(str(tmp_path)).to_table().sort_by("id").to_pydict() == fresh.to_pydict()


def test_all_kinds_of_columns(tmp_path: Path) -> None:
    point = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.string()))])
    schema = pa.schema(
        [
            SCHEMA.field("id"),
            pa.field("p", point),
            pa.field("l", pa.list_(pa.field("item", point))),
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("n", pa.decimal128(10, 2)),
            pa.field("t", pa.timestamp("us", "UTC")),
            pa.field("must", pa.int64(), nullable=False),
            pa.field("b", pa.large_binary()),
        ]
    )

    def table(keys: list[int]) -> pa.Table:
        results = [
            {
                "id": key,
                "p": {"x": key, "y": ["a", None]} if key % 2 else None,
                "l": [{"x": 1, "y": None}] * (key % 3),
                "d": "xyz"[key % 3],
                "n": key,
                "t": key * 1000,
                "must": key,
                "b": b"\0" * key,
            }
            for key in keys
        ]
        arrays = [pa.array([row[field.name] for row in results], field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    dataset = spark_lance.write_dataset(table([1, 2, 3]), tmp_path).initialize_mem_wal(unsharded=True)
    with dataset.upsert_log() as log:
        log.put(table([2, 4]))
        log.delete({"id": [1]})
        log.flush()
        log.put(table([5, 6]))
        assert dataset.fresh().to_table(order_by="id").to_pylist() == table([2, 3, 4, 5, 6]).to_pylist()
    (shard,) = dataset.wal.shards()
    with lance.dataset(str(tmp_path)).mem_wal_writer(shard.shard_id) as theirs:
        theirs.put(table([7]))
    fresh = dataset.fresh().to_table(order_by="id")
    assert fresh.to_pylist() == table([2, 3, 4, 5, 6, 7]).to_pylist()
    assert fresh.schema.field("must").nullable is False
    dataset.wal.compact()
    assert lance.dataset(str(tmp_path)).to_table().sort_by("id").to_pylist() == fresh.to_pylist()


def test_an_open_view_does_not_change(tmp_path: Path) -> None:
    dataset = layers(tmp_path)
    fresh = dataset.fresh()
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((0, "later")))
    dataset.wal.compact()
    dataset.wal.collect()  # within the grace
    assert as_rows(fresh.to_table()) == EXPECTED
    assert seen(tmp_path) == EXPECTED | {0: "later"}


def test_what_happens_while_shards_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps of a read, a writer flushes, SSTables are compacted, and all is collected."""
    from datetime import timedelta

    dataset = make(tmp_path, (1, "a"))
    chance = random.Random(3)
    state: Rows = {1: "a"}
    real = {
        name: getattr(fresh_module, name)
        for name in ("load_latest", "read_tail", "open_sstable", "load_shard")
    }
    count = {"left": 0}

    def meddle() -> None:
        if count["left"] <= 0:
            return
        count["left"] -= 1
        key = chance.randrange(5)
        with spark_lance.dataset(tmp_path).mem_wal_writer(SHARD) as log:
            log.put(rows((key, f"v{chance.random()}")))
        spark_lance.dataset(tmp_path).wal.compact()
        spark_lance.dataset(tmp_path).wal.collect(older_than=timedelta(0))

    def meddled(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if chance.random() < 0.5:
                meddle()
            return real[name](*arguments, **named)

        return call

    for round in range(12):
        with dataset.mem_wal_writer(SHARD) as log:
            log.put(rows((round % 4, f"r{round}")))
            log.flush()
            log.put(rows((round % 3, f"s{round}")))
            log.abandon()
        state = seen(tmp_path)
        assert state[round % 3] == f"s{round}"
        with monkeypatch.context() as patch:
            count["left"] = 3
            for name in real:
                patch.setattr(fresh_module, name, meddled(name))
            result = as_rows(dataset.fresh().to_table())
        # Every key that was there before is still there, with what it had or something newer.
        assert result.keys() >= state.keys()
        after = seen(tmp_path)
        for key, value in result.items():
            assert value in (state.get(key), after[key]) or str(value).startswith("v")
    with dataset.mem_wal_writer(SHARD):
        pass
    spark_lance.dataset(tmp_path).wal.compact()
    assert plain(tmp_path) == seen(tmp_path) == by_pylance(tmp_path)


def test_a_writer_that_flushes_during_each_read_does_not_stop_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(tmp_path, (1, "a"))
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((2, "b")))
    real = entries.read_tail

    def read_tail(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        for key in (3, 4):
            log.put(rows((key, "later")))
        log.flush()
        return result

    monkeypatch.setattr(fresh_module, "read_tail", read_tail)
    assert seen(tmp_path) == {1: "a", 2: "b"}
    assert seen(tmp_path) == {1: "a", 2: "b", 3: "later", 4: "later"}


def test_rows_without_a_key_are_read_once_if_they_are_compacted_during_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_lance.write_dataset(pa.table({"a": [1]}), tmp_path).initialize_mem_wal()
    log = spark_lance.dataset(tmp_path).mem_wal_writer(SHARD)
    log.put({"a": [2]})
    real = versions.load_latest

    def load_latest(*arguments: Any) -> Any:
        log.flush()
        spark_lance.dataset(tmp_path).wal.compact()
        return real(*arguments)

    monkeypatch.setattr(fresh_module, "load_latest", load_latest)
    assert spark_lance.dataset(tmp_path).fresh().to_table()["a"].to_pylist() == [1, 2]


def test_an_sstable_that_is_gone_is_told(tmp_path: Path) -> None:
    import shutil

    dataset = layers(tmp_path)
    manifest = load_shard(ShardPaths(dataset.table, SHARD))
    assert manifest is not None
    shutil.rmtree(tmp_path / "_mem_wal" / str(SHARD) / manifest.sstables[0].path)
    with pytest.raises(FormatError, match="does not exist"):
        dataset.fresh()
    assert files(tmp_path)
