"""A compaction flushes the logs of shards whose writers are active: the writers go on, and no row is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import spark_lance
from spark_lance.errors import WriterFencedError
from spark_lance.memwal import compact, flush_claims, staged, writer
from spark_lance.memwal.compact import flush_log
from spark_lance.memwal.entries import logged_rows
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import claim_shard, load_shard
from spark_lance.memwal.sharding import Router
from spark_lance.memwal.writer import ShardWriter
from tests.memwal.tables import SHARD, by_pylance, make, plain, rows, seen


def flushed(path: Path) -> int:
    return spark_lance.dataset(path).wal.compact(flush=True).sstables


def epoch_of(path: Path) -> int:
    dataset = spark_lance.dataset(path)
    manifest = load_shard(ShardPaths(dataset.table, SHARD))
    assert manifest is not None
    return manifest.writer_epoch


def test_a_writer_goes_on_after_a_flush(tmp_path: Path) -> None:
    with make(tmp_path).mem_wal_writer(SHARD) as log:
        log.put(rows((1, "a"), (2, "a")))
        assert flushed(tmp_path) == 1
        assert plain(tmp_path) == {1: "a", 2: "a"}
        log.put(rows((1, "b")))
        assert (log.epoch, log.generation) == (3, 2)
        assert seen(tmp_path) == {1: "b", 2: "a"}
        assert flushed(tmp_path) == 1
        log.delete({"id": [2]})
        assert flushed(tmp_path) == 1
        assert flushed(tmp_path) == 0
        log.flush()
        log.put(rows((3, "c")))
    assert seen(tmp_path) == by_pylance(tmp_path) == {1: "b", 3: "c"}
    assert flushed(tmp_path) == 1
    assert plain(tmp_path) == {1: "b", 3: "c"}


def test_a_flush_without_logged_rows_claims_nothing(tmp_path: Path) -> None:
    with make(tmp_path).mem_wal_writer(SHARD) as log:
        assert flushed(tmp_path) == 0
        log.put(rows((1, "a")))
        log.flush()
        assert flushed(tmp_path) == 1
        assert epoch_of(tmp_path) == log.epoch == 1


@pytest.mark.parametrize("method", ["flush", "close"])
def test_a_flush_or_close_after_a_flush(tmp_path: Path, method: str) -> None:
    log = make(tmp_path).mem_wal_writer(SHARD)
    log.put(rows((1, "a")))
    assert flushed(tmp_path) == 1
    getattr(log, method)()
    assert (plain(tmp_path), seen(tmp_path)) == ({1: "a"}, {1: "a"})
    log.abandon()


def test_a_background_flush_that_is_fenced(tmp_path: Path) -> None:
    log = make(tmp_path).mem_wal_writer(SHARD, max_memtable_rows=3, max_unflushed_memtable_bytes=0)
    log.put(rows((1, "a"), (2, "a")))
    assert flushed(tmp_path) == 1
    for step in range(6):
        log.put(rows((step, "b"), (9, f"b{step}")))
        if step % 2:
            flushed(tmp_path)
    log.close()
    expected = {**dict.fromkeys(range(6), "b"), 9: "b5"}
    assert seen(tmp_path) == by_pylance(tmp_path) == expected
    flushed(tmp_path)
    assert plain(tmp_path) == expected


def test_another_writer_stays_the_only_one(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    first = dataset.mem_wal_writer(SHARD)
    first.put(rows((1, "a")))
    assert flushed(tmp_path) == 1
    second = dataset.mem_wal_writer(SHARD)
    second.put(rows((2, "b")))
    assert flushed(tmp_path) == 1
    for _ in range(2):
        with pytest.raises(WriterFencedError):
            first.put(rows((1, "zombie")))
    second.put(rows((3, "b")))
    second.close()
    assert seen(tmp_path) == {1: "a", 2: "b", 3: "b"}


def test_a_compaction_that_dies_before_its_sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can know who claimed the shard: the writer stops, and the next one has all rows."""
    monkeypatch.setattr(flush_claims, "_SENTINEL_SECONDS", 0.1)
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((1, "a")))
    claim_shard(ShardPaths(dataset.table, SHARD), 0)
    log.put(rows((2, "a")))
    for _ in range(2):
        with pytest.raises(WriterFencedError):
            log.flush()
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((3, "b")))
    assert seen(tmp_path) == {1: "a", 2: "a", 3: "b"}


def test_a_compaction_that_dies_after_its_sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_claims, "_FLUSH_SECONDS", 0.1)
    dataset = make(tmp_path)
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((1, "a")))
        ShardWriter(dataset.snapshot, SHARD, only_flushes=True).abandon()
        log.put(rows((2, "b")))
        assert log.epoch == 3
    assert seen(tmp_path) == by_pylance(tmp_path) == {1: "a", 2: "b"}


def test_a_writer_waits_for_the_end_of_the_flush(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((1, "a")))
    flusher = ShardWriter(dataset.snapshot, SHARD, only_flushes=True)
    timer = threading.Timer(0.2, flusher.close)
    timer.start()
    log.put(rows((2, "b")))
    assert not flusher.stats.sstables - 1
    timer.join()
    log.close()
    assert seen(tmp_path) == {1: "a", 2: "b"}


def test_a_flush_retries_after_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(tmp_path)
    log = dataset.mem_wal_writer(SHARD)
    log.put(rows((1, "a")))
    claims: list[Any] = []

    class Displaced(ShardWriter):
        def flush(self) -> None:
            if len(claims) < 2:
                claims.append(dataset.mem_wal_writer(SHARD))
                claims[-1].put(rows((1 + len(claims), "b")))
                claims[-1].abandon()
            super().flush()

    monkeypatch.setattr(compact, "ShardWriter", Displaced)
    flush_log(dataset.snapshot, SHARD)
    assert len(claims) == 2
    spark_lance.dataset(tmp_path).wal.compact()
    assert plain(tmp_path) == {1: "a", 2: "b", 3: "b"}


def test_a_task_that_is_fenced_claims_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed claim leaves no sentinel, so the task's writer stops; the task opens another one."""
    monkeypatch.setattr(flush_claims, "_SENTINEL_SECONDS", 0.0)
    dataset = make(tmp_path, unsharded=True)
    real, calls = staged._append_tables, []

    def displaced(log: ShardWriter, tables: Any, once: Any) -> int:
        calls.append(log)
        if len(calls) == 1:
            claim_shard(ShardPaths(dataset.table, SHARD), 0)
            monkeypatch.setattr(writer, "_EPOCH_CHECK_SECONDS", -1.0)
        return real(log, tables, once)

    monkeypatch.setattr(staged, "_append_tables", displaced)
    for name, number in (("a", 0), ("b", 1)):
        router = Router.of(writer.check_loggable(dataset.snapshot), dataset.snapshot.schema)
        stage = staged.Stage(dataset.table, router, "job")
        stage.write(logged_rows(dataset.snapshot.schema, rows((1, name), (2, name)).to_reader()))
        pieces, once = stage.finish(), staged.WriteId("q", number)
        assert staged.append_staged(dataset.snapshot, SHARD, pieces, once) == 2
        assert staged.append_staged(dataset.snapshot, SHARD, pieces, once) == 0
    assert len(calls) == 3
    assert seen(tmp_path) == {1: "b", 2: "b"}


def test_a_log_of_a_stream_is_flushed_all_the_time(tmp_path: Path) -> None:
    """A writer and compactions with `flush` at the same time: every acknowledged row is in the table."""
    dataset = make(tmp_path, max_memtable_rows=50)
    stop = threading.Event()
    failures: list[BaseException] = []

    def compact_all_the_time() -> None:
        try:
            while not stop.is_set():
                flushed(tmp_path)
        except BaseException as error:  # noqa: BLE001 (the test reports it)
            failures.append(error)

    thread = threading.Thread(target=compact_all_the_time)
    thread.start()
    try:
        with dataset.mem_wal_writer(SHARD) as log:
            for step in range(40):
                log.put(rows((step % 7, f"v{step}"), (100 + step, "once")))
    finally:
        stop.set()
        thread.join()
    assert not failures
    flushed(tmp_path)
    expected = {**{step % 7: f"v{step}" for step in range(40)}, **{100 + step: "once" for step in range(40)}}
    assert plain(tmp_path) == seen(tmp_path) == expected
    assert epoch_of(tmp_path) > 2
