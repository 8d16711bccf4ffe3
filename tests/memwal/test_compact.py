"""Bringing SSTables into the table: what is recorded, what others see, and what is deleted."""

from __future__ import annotations

import os
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.mem_wal import CompactedSsTable

import spark_lance
from spark_lance.errors import IncompatibleConflictError, OptionError
from spark_lance.memwal import compact as compact_module
from spark_lance.memwal.fresh import compacted_generations
from spark_lance.memwal.names import ShardPaths, parse_numbers
from spark_lance.proto import table_pb2
from spark_lance.proto.index_pb2 import MemWalIndexDetails
from spark_lance.proto.transaction_pb2 import Transaction
from spark_lance.table.commits.conflicts import RULES, Verdict
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.mem_wal_marks import mem_wal_details
from tests.memwal.tables import OTHER, SHARD, Rows, as_rows, by_pylance, files, make, plain, rows, seen


def details_of(path: Path) -> MemWalIndexDetails:
    details = mem_wal_details(spark_lance.dataset(path).manifest.indices)
    assert details is not None
    return details


def entry_of(path: Path) -> table_pb2.IndexMetadata:
    return next(e for e in spark_lance.dataset(path).manifest.indices if e.name == MEM_WAL)


def generations(path: Path, shard: uuid.UUID, *batches: Rows) -> None:
    with spark_lance.dataset(path).mem_wal_writer(shard) as log:
        for batch in batches:
            log.put(rows(*batch.items()))
            log.flush()


def test_the_commit_records_what_was_compacted(tmp_path: Path) -> None:
    make(tmp_path, (1, "a"), maintained_indexes=[])
    generations(tmp_path, SHARD, {1: "b"}, {2: "c"})
    generations(tmp_path, OTHER, {11: "d"})
    before = entry_of(tmp_path)
    spark_lance.dataset(tmp_path).wal.compact([SHARD])
    table = spark_lance.dataset(tmp_path)
    transaction = read_transaction(table.table, table.manifest)
    operation: Any = transaction.operation
    (mark,) = operation.compacted_sstables
    assert (mark.shard_id.uuid, mark.generation) == (SHARD.bytes, 2)
    entry = entry_of(tmp_path)
    assert entry.uuid.uuid != before.uuid.uuid
    assert entry.dataset_version == table.version
    assert entry.created_at >= before.created_at
    assert compacted_generations(table.snapshot) == {SHARD: 2}
    # A false that is written as such stays.
    assert details_of(tmp_path).HasField("maintain_all_indexes")
    table.wal.compact()
    assert compacted_generations(spark_lance.dataset(tmp_path).snapshot) == {SHARD: 2, OTHER: 1}
    theirs = lance.dataset(str(tmp_path))
    assert (theirs.mem_wal_index_details() or {})["maintain_all_indexes"] is False
    # pylance knows what was compacted.
    merge = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(OSError, match="Stale SSTable compaction"):
        merge.mark_sstables_as_compacted([CompactedSsTable(str(SHARD), 2)]).execute(rows((1, "stale")))
    assert plain(tmp_path) == {1: "b", 2: "c", 11: "d"}


def test_what_pylance_compacted_is_known(tmp_path: Path) -> None:
    make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b"}, {1: "c"})
    merge = lance.dataset(str(tmp_path)).merge_insert("id")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([CompactedSsTable(str(SHARD), 1)]).execute(rows((1, "b")))
    assert seen(tmp_path) == {1: "c"}
    done = spark_lance.dataset(tmp_path).wal.compact()
    assert done.sstables == 1
    assert plain(tmp_path) == by_pylance(tmp_path) == {1: "c"}


def test_deleted_keys_stay_deleted(tmp_path: Path) -> None:
    make(tmp_path, *((key, "base") for key in range(6)), stable_row_ids=True)
    with spark_lance.dataset(tmp_path).mem_wal_writer(SHARD) as log:
        log.delete({"id": [0, 1, 100]})
        log.flush()
        log.put(rows((1, "again"), (7, "new")))
        log.delete({"id": [7, 2]})
        log.flush()
        log.delete({"id": [1]})
        log.put(rows((2, "again")))
    expected = {2: "again", 3: "base", 4: "base", 5: "base"}
    assert seen(tmp_path) == by_pylance(tmp_path) == expected
    done = spark_lance.dataset(tmp_path).wal.compact()
    assert (done.sstables, done.rows_upserted, done.rows_deleted) == (3, 1, 2)
    assert plain(tmp_path) == seen(tmp_path) == by_pylance(tmp_path) == expected


def test_folds_of_any_size_end_in_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b", 2: "b"}, {1: "c"}, {3: "d"})
    folds: list[Any] = []
    real = compact_module._fold

    def counted(*given: Any) -> Any:
        folds.append(given)
        return real(*given)

    monkeypatch.setattr(compact_module, "_fold", counted)
    snapshot = spark_lance.dataset(tmp_path).snapshot
    done = compact_module.compact_wal(snapshot, max_bytes=1)
    assert (len(folds), done.sstables) == (3, 3)
    assert plain(tmp_path) == {1: "c", 2: "b", 3: "d"}


def test_compactions_at_the_same_time(tmp_path: Path) -> None:
    make(tmp_path, *((key, "base") for key in range(20)))
    expected: Rows = dict.fromkeys(range(20), "base")
    for shard, first in ((SHARD, 0), (OTHER, 1)):
        batches: list[Rows] = [dict.fromkeys(range(first, 16 + g, 2), f"gen {g}") for g in range(3)]
        generations(tmp_path, shard, *batches)
        for batch in batches:
            expected |= batch
    failures: list[Exception] = []

    def work() -> None:
        try:
            spark_lance.dataset(tmp_path).wal.compact()
        except Exception as error:  # noqa: BLE001 (looked at below)
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A compaction that was late may be told so, but nothing is lost or there twice.
    assert all(isinstance(error, IncompatibleConflictError) for error in failures)
    spark_lance.dataset(tmp_path).wal.compact()
    assert plain(tmp_path) == seen(tmp_path) == by_pylance(tmp_path) == expected


def test_a_writer_at_work_goes_on(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    ours = dataset.mem_wal_writer(SHARD)
    theirs = lance.dataset(str(tmp_path)).mem_wal_writer(str(OTHER), max_memtable_rows=1)
    for round in range(3):
        ours.put(rows((1, f"r{round}")))
        ours.flush()
        theirs.put(rows((11, f"r{round}")))
        theirs.put(rows((12, f"r{round}")))
        dataset.wal.compact()
        dataset.wal.collect(older_than=timedelta(0))
        assert seen(tmp_path)[1] == f"r{round}"
    ours.close()
    theirs.close()
    expected = dict.fromkeys((1, 11, 12), "r2")
    assert seen(tmp_path) == expected
    dataset.wal.compact(flush=True)
    assert plain(tmp_path) == by_pylance(tmp_path) == expected


def test_indices_are_credited_with_what_they_have(tmp_path: Path) -> None:
    make(tmp_path, *((key, "base") for key in range(6)))
    spark_lance.dataset(tmp_path).create_scalar_index("id", "BTREE", "by_id")
    assert not details_of(tmp_path).index_catchup
    generations(tmp_path, SHARD, {1: "b"})
    spark_lance.dataset(tmp_path).wal.compact()
    assert not details_of(tmp_path).index_catchup
    spark_lance.dataset(tmp_path).optimize.optimize_indices()
    (credit,) = details_of(tmp_path).index_catchup
    assert credit.index_name == "by_id"
    assert [(m.shard_id.uuid, m.generation) for m in credit.caught_up_generations] == [(SHARD.bytes, 1)]
    generations(tmp_path, SHARD, {2: "c"})
    spark_lance.dataset(tmp_path).wal.compact()
    (credit,) = details_of(tmp_path).index_catchup
    assert [m.generation for m in credit.caught_up_generations] == [1], "not yet in the index"
    lance.dataset(str(tmp_path)).optimize.optimize_indices()
    (credit,) = details_of(tmp_path).index_catchup
    assert [m.generation for m in credit.caught_up_generations] == [2], "pylance credits it, too"
    assert seen(tmp_path) == plain(tmp_path)


def test_what_is_collected(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b"}, {2: "c"})
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((3, "logged")))
        log.abandon()
    assert dataset.wal.collect(older_than=timedelta(0)).sstables == 0, "they are listed"
    dataset.wal.compact()
    present = files(tmp_path)
    assert dataset.wal.collect().paths == (), "within the grace"
    would = dataset.wal.collect(older_than=timedelta(0), dry_run=True)
    assert files(tmp_path) == present
    assert would.sstables == 2
    done = dataset.wal.collect(older_than=timedelta(0))
    assert done.paths == would.paths
    paths = ShardPaths(dataset.table, SHARD)
    left = parse_numbers(list(dataset.store.list(paths.entries)))
    assert left[-1] == 4, "the entry that is in no SSTable"
    assert dataset.store.list_directories(paths.directory) in (["manifest", "wal"], ["wal", "manifest"])
    assert seen(tmp_path) == {1: "b", 2: "c", 3: "logged"}
    dataset.wal.compact(flush=True)
    dataset.wal.collect(older_than=timedelta(0))
    highest = parse_numbers(list(dataset.store.list(paths.entries)))
    assert len(highest) == 1, "never the last one"
    assert highest[0] >= 5
    with pytest.raises(OptionError, match="no shard"):
        dataset.wal.collect([OTHER])


def test_left_over_sstables_are_collected_after_the_next_flush(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b"}, {2: "c"})
    paths = ShardPaths(dataset.table, SHARD)
    # Two failed flushes of the generation that another writer has flushed, and a flush that is still active.
    for name in ("00000000_gen_1", "00000000_gen_2", "00000000_gen_3"):
        dataset.store.put(f"{paths.sstable(name)}/data/x.lance", b"rows")

    def leftovers() -> list[str]:
        dataset.wal.collect(older_than=timedelta(0))
        return sorted(name for name in dataset.store.list_directories(paths.directory) if name[:8] == "0" * 8)

    assert leftovers() == ["00000000_gen_2", "00000000_gen_3"], "the newest generation may still be flushed"
    dataset.wal.compact()
    assert leftovers() == ["00000000_gen_3"], "generation 2 is in the table"
    generations(tmp_path, SHARD, {1: "d"})
    assert leftovers() == ["00000000_gen_3"]
    generations(tmp_path, SHARD, {1: "e"})
    assert leftovers() == []


def test_readers_can_use_a_shard_manifest_during_the_grace_period(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b"}, {2: "c"})
    paths = ShardPaths(dataset.table, SHARD)

    def make_older(hours: float) -> None:
        for file in (tmp_path / "_mem_wal").rglob("*"):
            moment = file.stat().st_mtime - hours * 3600
            os.utime(file, (moment, moment))

    make_older(2)
    with dataset.mem_wal_writer(SHARD) as log:
        log.put(rows((3, "logged")))
        log.abandon()
    make_older(2)
    dataset.wal.collect()
    reader = dataset.fresh()
    dataset.wal.compact(flush=True)
    # All files of the reader are old, but the manifest that lists them was replaced a moment ago.
    done = dataset.wal.collect()
    assert (done.sstables, done.wal_entries) == (0, 0)
    assert as_rows(reader.to_table()) == {1: "b", 2: "c", 3: "logged"}
    make_older(2)
    done = dataset.wal.collect()
    assert (done.sstables, done.wal_entries > 0) == (3, True)
    assert dataset.store.list_directories(paths.directory) in (["manifest", "wal"], ["wal", "manifest"])
    assert seen(tmp_path) == plain(tmp_path) == {1: "b", 2: "c", 3: "logged"}


def test_marks_of_others_that_came_in_between() -> None:
    def marks(*pairs: tuple[uuid.UUID, int]) -> list[dict[str, Any]]:
        return [{"shard_id": {"uuid": shard.bytes}, "generation": number} for shard, number in pairs]

    ours = Transaction.Update(compacted_sstables=marks((SHARD, 3)))
    for recorded, verdict in (
        ([(SHARD, 3)], Verdict.INCOMPATIBLE),
        ([(SHARD, 4)], Verdict.INCOMPATIBLE),
        ([(SHARD, 2)], Verdict.FINE),
        ([(OTHER, 9)], Verdict.FINE),
    ):
        theirs = Transaction.UpdateMemWalState(compacted_sstables=marks(*recorded))
        assert RULES["w"](ours, theirs) is verdict
    assert RULES["w"](Transaction.Update(), Transaction.UpdateMemWalState()) is Verdict.FINE


def test_a_branch_has_shards_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, (1, "a"))
    generations(tmp_path, SHARD, {1: "b"}, {2: "b"})
    spark_lance.dataset(tmp_path).wal.compact()
    branch = spark_lance.dataset(tmp_path).create_branch("dev")
    # It knows that two generations of the shard are in it, and begins with the third.
    with branch.mem_wal_writer(SHARD) as log:
        log.put(rows((1, "on dev")))
        assert as_rows(branch.fresh().to_table()) == {1: "on dev", 2: "b"}
    assert log.stats.sstables == 1
    assert as_rows(branch.fresh().to_table()) == {1: "on dev", 2: "b"}
    assert branch.wal.compact().sstables == 1
    assert as_rows(branch.fresh().to_table()) == {1: "on dev", 2: "b"}
    assert seen(tmp_path) == plain(tmp_path) == {1: "b", 2: "b"}


def test_what_tasks_left_behind_is_collected(tmp_path: Path) -> None:
    dataset = make(tmp_path, (1, "a"))
    left = tmp_path / "_wal_staging" / "job" / "task-00.arrow"
    dataset.store.put(str(left), b"rows")
    assert dataset.wal.collect().paths == ()
    assert dataset.wal.collect(older_than=timedelta(0)).bytes_removed == 4
    assert not left.exists()
