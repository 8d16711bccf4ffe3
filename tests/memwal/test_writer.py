"""The writer of a shard: what it writes, who may write, and what becomes of logs that are damaged."""

from __future__ import annotations

import os
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    OptionError,
    SchemaError,
    ShardSealedError,
    UnsupportedFormatError,
    WalEntryError,
    WalHoleError,
    WriterFencedError,
)
from spark_lance.io.store import open_store
from spark_lance.memwal import flush_claims, sstables, writer
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import change_shard, load_shard
from spark_lance.memwal.sstables import encoded_keys
from spark_lance.proto.index_pb2 import ShardManifest
from spark_lance.table.format.table_ref import TableRef
from tests.memwal.tables import KEY, SCHEMA, SHARD, by_pylance, files, make, plain, rows, seen


def paths_of(path: Path) -> ShardPaths:
    return ShardPaths(TableRef(*open_store(path)), SHARD)


def test_the_bytes_of_an_entry(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((2, "B"), (4, "D")))
    log.delete({"id": [3]})
    names = sorted(file for file in files(tmp_path) if "/wal/" in file)
    assert [name.rpartition("/")[2] for name in names] == [
        "01" + "0" * 62 + ".arrow",
        "1" + "0" * 63 + ".arrow",
    ]
    with pa.ipc.open_stream((tmp_path / names[1]).read_bytes()) as reader:
        table = reader.read_all()
    assert table.schema.metadata == {b"writer_epoch": b"1", b"generation": b"1"}
    assert table.to_pydict() == {
        "id": [2, 4],
        "val": ["B", "D"],
        "x": [1.0, 2.0],
        "_tombstone": [False, False],
    }
    assert [field.nullable for field in table.schema] == [False, True, True, False]
    assert (table.schema.field("val").metadata or {})[b"lance:field_id"] == b"1"
    assert (table.schema.field("id").metadata or {}).keys() >= {k.encode() for k in KEY}
    with pa.ipc.open_stream((tmp_path / names[0]).read_bytes()) as reader:
        assert reader.read_all().to_pydict() == {"id": [3], "val": [None], "x": [None], "_tombstone": [True]}
    log.abandon()


def test_a_writer_that_is_displaced_stops(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    first = dataset.mem_wal_writer(SHARD)
    first.put(rows((1, "a")))
    second = dataset.mem_wal_writer(SHARD)
    assert (first.epoch, second.epoch) == (1, 2)
    for _ in range(2):
        with pytest.raises(WriterFencedError, match="its epoch is 2, this writer's is 1"):
            first.put(rows((1, "zombie")))
    with pytest.raises(WriterFencedError):
        first.close()
    second.put(rows((2, "b")))
    second.close()
    assert seen(tmp_path) == by_pylance(tmp_path) == {1: "a", 2: "b"}


def test_a_flush_of_a_displaced_writer_changes_nothing(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    first = dataset.mem_wal_writer(SHARD)
    first.put(rows((1, "a")))
    second = dataset.mem_wal_writer(SHARD)
    with pytest.raises(WriterFencedError):
        first.flush()
    second.close()
    manifest = load_shard(paths_of(tmp_path))
    assert manifest is not None
    assert [entry.generation for entry in manifest.sstables] == [1]
    assert seen(tmp_path) == by_pylance(tmp_path) == {1: "a"}


def test_a_stalled_writer_is_stopped_though_its_place_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(tmp_path)
    stalled = dataset.mem_wal_writer(SHARD)
    stalled.put(rows((1, "a")))
    with dataset.mem_wal_writer(SHARD) as other:
        other.put(rows((2, "b")))
        other.flush()
        other.put(rows((3, "c")))
    for name in files(tmp_path):
        if "/wal/" in name:
            (tmp_path / name).unlink()
    monkeypatch.setattr(writer, "_EPOCH_CHECK_SECONDS", -1.0)
    monkeypatch.setattr(flush_claims, "_SENTINEL_SECONDS", 0.0)
    with pytest.raises(WriterFencedError):
        stalled.put(rows((1, "lost")))
    assert seen(tmp_path) == {1: "a", 2: "b", 3: "c"}


def test_a_sealed_shard_takes_no_rows(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    dataset.mem_wal_writer(SHARD).close()

    def seal(message: ShardManifest) -> bool:
        message.status = ShardManifest.SEALED
        return True

    change_shard(paths_of(tmp_path), seal)
    with pytest.raises(ShardSealedError):
        dataset.mem_wal_writer(SHARD)
    assert dataset.wal.shards()[0].status == "sealed"


def test_rows_that_do_not_fit(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    with dataset.mem_wal_writer(SHARD) as log:
        with pytest.raises(SchemaError):
            log.put({"id": [1], "val": ["a"], "y": [1]})
        with pytest.raises(SchemaError, match="must not be null"):
            log.put(pa.table({"id": pa.array([None], pa.int64()), "val": ["a"], "x": [0.5]}))
        with pytest.raises(SchemaError, match="must not be null"):
            log.put({"val": ["a"]})
        with pytest.raises(SchemaError, match="lack the primary key column 'id'"):
            log.delete({"val": ["a"]})
        log.put({"x": [0.5], "id": [1]})  # what may be null may be missing
    assert seen(tmp_path) == {1: None}
    with pytest.raises(OptionError, match="is closed"):
        log.put(rows((1, "a")))


def test_a_table_without_a_key_is_appended_to(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 1], "b": ["x", "y"]})
    dataset = spark_lance.write_dataset(table, tmp_path).initialize_mem_wal(unsharded=True)
    with dataset.upsert_log() as log:
        log.put(table)
        log.flush()
        log.put(table.slice(1))
        with pytest.raises(OptionError, match="needs a primary key"):
            log.delete({"a": [1]})
    assert dataset.fresh().to_table()["b"].to_pylist() == ["x", "y", "x", "y", "y"]
    assert dataset.wal.compact().rows_upserted == 3
    assert lance.dataset(str(tmp_path)).to_table()["b"].to_pylist() == ["x", "y", "x", "y", "y"]
    assert dataset.wal.compact().rows_upserted == 0
    assert dataset.fresh().count_rows() == 5


@pytest.mark.parametrize("lost", [2, 3])
def test_a_hole_in_the_log_is_told(tmp_path: Path, lost: int) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    for key in range(1, 6):
        log.put(rows((key, "a")))
    log.abandon()
    Path(paths_of(tmp_path).entry(lost)).unlink()
    later = 5 - lost
    for read in (
        dataset.fresh,
        lambda: dataset.mem_wal_writer(SHARD),
        lambda: dataset.wal.compact(flush=True),
    ):
        with pytest.raises(WalHoleError, match=rf"log entry {lost} is missing before {later} later entries"):
            read()
    remaining = {key: "a" for key in range(1, 6) if key != lost}
    result = dataset.fresh(accept_loss=True).to_table()
    assert dict(zip(result["id"].to_pylist(), result["val"].to_pylist(), strict=True)) == remaining
    with dataset.mem_wal_writer(SHARD, accept_loss=True) as opened:
        # From here on nobody has to accept anything.
        assert seen(tmp_path) == remaining
        opened.put(rows((9, "b")))
    assert seen(tmp_path) == by_pylance(tmp_path) == remaining | {9: "b"}
    with lance.dataset(str(tmp_path)).mem_wal_writer(str(SHARD)) as theirs:
        theirs.put(rows((10, "c")))
    assert seen(tmp_path) == remaining | {9: "b", 10: "c"}


@pytest.mark.parametrize("by", ["pylance", "spark_lance"])
def test_a_sentinel_after_a_missing_entry_loses_nothing(tmp_path: Path, by: str) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    for key in range(1, 5):
        log.put(rows((key, "a")))
        if key == 2:
            log.flush()
    log.abandon()
    paths = paths_of(tmp_path)
    for position in (1, 2):  # collected, so pylance lists the log
        Path(paths.entry(position)).unlink()
    # A writer of pylance was killed while it wrote entry 5: the next one puts its sentinel to position 6.
    leftover = Path(f"{paths.entry(5)}.tmp.{uuid.uuid4()}")
    leftover.write_bytes(Path(paths.entry(4)).read_bytes()[:50])
    lance.dataset(str(tmp_path)).mem_wal_writer(str(SHARD))
    assert not Path(paths.entry(5)).exists()
    assert Path(paths.entry(6)).exists()
    written = dict.fromkeys(range(1, 5), "a")
    assert seen(tmp_path) == written
    opened = (
        lance.dataset(str(tmp_path)).mem_wal_writer(str(SHARD))
        if by == "pylance"
        else dataset.mem_wal_writer(SHARD)
    )
    for key in (5, 6, 7):
        opened.put(rows((key, "b")))
        written[key] = "b"
        assert seen(tmp_path) == written
    opened.close()
    dataset.wal.compact(flush=True)
    assert seen(tmp_path) == by_pylance(tmp_path) == plain(tmp_path) == written
    collected = dataset.wal.collect(older_than=timedelta(0), dry_run=True)
    assert str(leftover) in collected.paths


@pytest.mark.parametrize("left", [0, 1, 100, -8, -1])
def test_a_truncated_entry_is_told(tmp_path: Path, left: int) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    for key in range(1, 4):
        log.put(rows((key, "a")))
    log.abandon()
    entry = Path(paths_of(tmp_path).entry(2))
    entry.write_bytes(entry.read_bytes()[:left])
    for read in (dataset.fresh, lambda: dataset.mem_wal_writer(SHARD)):
        with pytest.raises(WalEntryError, match="log entry 2 is damaged") as caught:
            read()
        assert caught.value.path == str(entry)
    assert dataset.fresh(accept_loss=True).count_rows() == 2
    with dataset.mem_wal_writer(SHARD, accept_loss=True):
        pass
    assert seen(tmp_path) == {1: "a", 3: "a"}


def test_an_entry_without_an_epoch_is_told(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    dataset.mem_wal_writer(SHARD).close()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(rows((1, "a")))
    dataset.store.put_if_absent(paths_of(tmp_path).entry(1), bytes(sink.getvalue()))
    with pytest.raises(WalEntryError, match="writer_epoch"):
        dataset.fresh()


def test_entries_of_other_writers(tmp_path: Path) -> None:
    """Columns in another order, missing ones, no ids, no mark of deletions, compressed: all is legal."""
    dataset = make(tmp_path)
    schema = pa.schema([("val", pa.string()), ("id", pa.int64())], {"writer_epoch": "1"})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        stream.write_table(pa.table({"val": ["a"] * 100, "id": range(100)}, schema=schema))
    dataset.store.put_if_absent(paths_of(tmp_path).entry(1), bytes(sink.getvalue()))
    assert dataset.fresh().count_rows("val = 'a' and x is null") == 100
    with lance.dataset(str(tmp_path)).mem_wal_writer(str(SHARD)) as theirs:
        theirs.put(rows((1, "b")))
    assert dataset.fresh().count_rows("val = 'a'") == 99


def test_back_pressure_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Event()
    real = sstables.write_sstable

    def slow(*arguments: Any) -> int:
        begun.set()
        assert gate.wait(60)
        return real(*arguments)

    monkeypatch.setattr(writer, "write_sstable", slow)
    dataset = make(tmp_path)
    size = rows((1, "a")).nbytes
    log = dataset.mem_wal_writer(SHARD, max_memtable_rows=1, max_unflushed_memtable_bytes=4 * size)
    log.put(rows((1, "a")))
    assert begun.wait(60)
    log.put(rows((2, "a")))  # two SSTables wait, and there is room
    assert log.memtable_stats()["frozen_count"] == 2
    assert seen(tmp_path) == {1: "a", 2: "a"}

    def more() -> None:
        for key in range(3, 8):
            log.put(rows((key, "a")))

    waiting = threading.Thread(target=more)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive(), "nobody held the writer back"
    gate.set()
    waiting.join(60)
    log.close()
    assert log.stats.sstables == 7
    assert log.stats.waited_seconds > 0
    assert seen(tmp_path) == by_pylance(tmp_path) == dict.fromkeys(range(1, 8), "a")


def test_a_failed_flush_stops_the_writer_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD, max_memtable_rows=2, max_unflushed_memtable_bytes=0)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_sstable", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
        log.put(rows((1, "a"), (2, "b")))  # these are in the log
    with pytest.raises(OSError, match="disk full"):
        log.put(rows((3, "c")))
    with pytest.raises(OSError, match="disk full"):
        log.close()
    assert seen(tmp_path) == {1: "a", 2: "b"}
    with dataset.mem_wal_writer(SHARD) as again:
        again.put(rows((3, "c")))
    assert by_pylance(tmp_path) == {1: "a", 2: "b", 3: "c"}


def test_durability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    dataset = make(tmp_path)
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((1, "a")))
    assert not forced
    with dataset.mem_wal_writer(SHARD, durability="synced") as log:
        before = len(forced)
        log.put(rows((2, "a")))
        assert len(forced) > before
        before = len(forced)
        log.flush()
        assert len(forced) >= before + 5  # data, key index, manifests, directories
    with pytest.raises(OptionError, match="durability must be written or synced"):
        dataset.mem_wal_writer(SHARD, durability="eventual")
    with pytest.raises(OptionError, match="unknown setting of a shard writer: apples"):
        dataset.mem_wal_writer(SHARD, apples=1)


def test_an_unknown_outcome_stops_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    real = type(dataset.store).put_if_absent

    def lost(store: Any, path: str, data: bytes, *, sync: bool = False) -> None:
        real(store, path, data, sync=sync)
        raise ConnectionError("reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(type(dataset.store), "put_if_absent", lost)
        with pytest.raises(CommitOutcomeUnknownError, match="open a new writer"):
            log.put(rows((1, "a")))
    with pytest.raises(CommitOutcomeUnknownError):
        log.put(rows((1, "b")))
    with dataset.mem_wal_writer(SHARD) as again:
        again.put(rows((2, "b")))
    assert seen(tmp_path) == {1: "a", 2: "b"}


def test_what_a_memwal_cannot_have(tmp_path: Path) -> None:
    key = pa.field("k", pa.float64(), nullable=False, metadata=KEY)
    dataset = spark_lance.write_dataset(pa.schema([key]).empty_table(), tmp_path / "float")
    with pytest.raises(SchemaError, match="integers, booleans, text and bytes"):
        dataset.initialize_mem_wal()
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    dataset = spark_lance.write_dataset(
        pa.schema([blob]).empty_table(), tmp_path / "blob", data_storage_version="2.1"
    )
    with pytest.raises(UnsupportedFormatError, match="blobs"):
        dataset.initialize_mem_wal()
    dataset = spark_lance.write_dataset(pa.table({"_tombstone": [1]}), tmp_path / "mark")
    with pytest.raises(SchemaError, match="marks deleted rows"):
        dataset.initialize_mem_wal()
    with pytest.raises(OptionError, match="has no MemWAL"):
        dataset.mem_wal_writer(SHARD)
    with pytest.raises(OptionError, match="a UUID"):
        dataset.mem_wal_writer("one")


def test_shards_of_an_earlier_memwal_do_not_come_back(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((2, "old")))
    dataset = spark_lance.write_dataset(rows((1, "new")), tmp_path, mode="overwrite")
    assert seen(tmp_path) == {1: "new"}
    with pytest.raises(OptionError, match="of an earlier MemWAL"):
        dataset.initialize_mem_wal()
    dataset = dataset.wal.drop(delete_shards=True).initialize_mem_wal()
    assert seen(tmp_path) == {1: "new"}
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((2, "b")))
    with pytest.raises(OptionError, match="can have rows"):
        dataset.wal.drop()
    dataset.wal.compact()
    dropped = spark_lance.dataset(tmp_path).wal.drop(delete_shards=True)
    assert dropped.mem_wal_index_details() is None
    assert seen(tmp_path) == {1: "new", 2: "b"}
    assert not files(tmp_path)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": ["x"], "b": [1]}, "01780000018000000000000001"),
        ({"a": ["a\0b"], "b": [-2]}, "016100ff620000017ffffffffffffffe"),
        ({"a": [""], "b": [300]}, "01000001800000000000012c"),
    ],
)
def test_the_bytes_of_keys_of_several_columns(values: dict[str, list[Any]], expected: str) -> None:
    assert encoded_keys(pa.table(values)).to_pylist()[0].hex() == expected


def test_a_table_cannot_say_that_rows_may_be_lost() -> None:
    from spark_lance.memwal.writer import WriterConfig
    from spark_lance.proto.index_pb2 import MemWalIndexDetails

    defaults = {"accept_loss": "1", "durability": "0", "max_memtable_rows": "7", "max_memtable_batches": "²"}
    config = WriterConfig.of(MemWalIndexDetails(writer_config_defaults=defaults), {})
    assert config == WriterConfig(max_memtable_rows=7)
    assert WriterConfig.of(MemWalIndexDetails(), {"accept_loss": True}).accept_loss
