"""Random histories of a table with a MemWAL: what fresh reads see is always what a dict says.

Writers of this package and of pylance take turns on the shards; they are killed, displaced and flushed,
SSTables are compacted, files are collected, indices are built and the table is compacted in between.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import WriterFencedError
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.memwal.writer import ShardWriter
from tests.memwal.tables import OTHER, SHARD, Rows, as_rows, by_pylance, make, plain, rows, seen

KEYS = 24
SHARDS = (SHARD, OTHER)
SETTINGS = {"max_memtable_rows": 9, "max_unflushed_memtable_bytes": 0}


class History:
    """A table, the rows that it should have, and the writers at work."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.rows: Rows = dict.fromkeys(range(0, KEYS, 3), "base")
        self.dataset = make(path, *self.rows.items(), stable_row_ids=seed % 2 == 1, max_memtable_rows=9)
        self.writers: dict[uuid.UUID, Any] = {}
        self.counter = 0

    def shard_of(self, key: int) -> uuid.UUID:
        return SHARDS[key % 2]

    def writer(self, shard: uuid.UUID) -> Any:
        if shard not in self.writers:
            if self.random.random() < 0.4:
                opened: Any = lance.dataset(str(self.path)).mem_wal_writer(str(shard), max_memtable_rows=9)
            else:
                opened = spark_lance.dataset(self.path).mem_wal_writer(shard, **SETTINGS)
            self.writers[shard] = opened
        return self.writers[shard]

    def put(self) -> None:
        keys = self.random.choices(range(KEYS), k=self.random.randint(1, 4))
        self.counter += 1
        shard = self.shard_of(keys[0])
        pairs = [(key, f"v{self.counter}.{n}") for n, key in enumerate(keys) if self.shard_of(key) == shard]
        self.writer(shard).put(rows(*pairs))
        self.rows.update(pairs)

    def delete(self) -> None:
        key = self.random.randrange(KEYS)
        self.writer(self.shard_of(key)).delete(pa.table({"id": pa.array([key], pa.int64())}))
        self.rows.pop(key, None)

    def flush(self) -> None:
        for shard, writer in list(self.writers.items()):
            if isinstance(writer, ShardWriter):
                writer.flush()
            else:
                writer.close()
                del self.writers[shard]

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()

    def abandon(self) -> None:
        """Lose a writer of ours without a flush, as if its process were killed."""
        for shard, writer in list(self.writers.items()):
            if isinstance(writer, ShardWriter):
                writer.abandon()
                del self.writers[shard]

    def displace(self) -> None:
        """Another writer claims a shard; the one before goes on as if it did not know."""
        shard = self.random.choice(SHARDS)
        zombie = self.writers.pop(shard, None)
        self.writer(shard)
        if zombie is None:
            return
        with pytest.raises((WriterFencedError, OSError, RuntimeError)):
            zombie.put(rows((2 if shard == SHARD else 1, "of a zombie")))

    def compact(self) -> None:
        spark_lance.dataset(self.path).wal.compact()

    def close_theirs(self) -> None:
        """Close pylance's writers, which a flush displaces."""
        for shard, writer in list(self.writers.items()):
            if not isinstance(writer, ShardWriter):
                writer.close()
                del self.writers[shard]

    def compact_with_flush(self) -> None:
        self.close_theirs()
        spark_lance.dataset(self.path).wal.compact(flush=True)
        assert plain(self.path) == self.rows

    def collect(self) -> None:
        spark_lance.dataset(self.path).wal.collect(older_than=timedelta(0))

    def compact_files(self) -> None:
        spark_lance.dataset(self.path).optimize.compact_files()

    def index(self) -> None:
        column = self.random.choice(["id", "val"])
        spark_lance.dataset(self.path).create_scalar_index(column, "BTREE")

    def optimize(self) -> None:
        spark_lance.dataset(self.path).optimize.optimize_indices()

    def change_base(self) -> None:
        """Change a row in the table itself, which no shard has a newer state of."""
        self.close_theirs()
        dataset = spark_lance.dataset(self.path)
        dataset.wal.compact(flush=True)
        key = self.random.randrange(KEYS)
        self.counter += 1
        merge = spark_lance.dataset(self.path).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows((key, f"d{self.counter}")))
        self.rows[key] = f"d{self.counter}"

    def check(self) -> None:
        fresh = spark_lance.dataset(self.path).fresh()
        assert as_rows(fresh.to_table()) == self.rows
        assert fresh.count_rows() == len(self.rows)
        key = self.random.randrange(KEYS)
        result = fresh.lookup([key, KEYS + 1])
        assert as_rows(result) == ({key: self.rows[key]} if key in self.rows else {})
        value = self.random.choice([*self.rows.values(), "base"])
        filtered = fresh.to_table(filter=f"val = '{value}' and id < {KEYS - 3}")
        assert as_rows(filtered) == {
            key: own for key, own in self.rows.items() if own == value and key < KEYS - 3
        }

    def run(self, steps: int) -> None:
        work: dict[Callable[[], None], int] = {
            self.put: 40,
            self.delete: 12,
            self.flush: 8,
            self.close: 3,
            self.abandon: 4,
            self.displace: 5,
            self.compact: 7,
            self.compact_with_flush: 3,
            self.collect: 4,
            self.compact_files: 2,
            self.index: 1,
            self.optimize: 2,
            self.change_base: 2,
        }
        for step in range(steps):
            (chosen,) = self.random.choices(list(work), list(work.values()))
            sys.stdout.write(f"step {step}: {chosen.__name__}\n")  # shown if the test fails
            chosen()
            if step % 3 == 0:
                self.check()
        self.check()
        # pylance's scanner sees SSTables, not what a writer that was lost has left in a log.
        for shard in SHARDS:
            self.writer(shard)
        self.close()
        assert seen(self.path) == self.rows
        # What is compacted and still listed would mislead pylance; nothing is.
        assert by_pylance(self.path) == self.rows
        spark_lance.dataset(self.path).wal.compact()
        assert plain(self.path) == by_pylance(self.path) == self.rows


@pytest.mark.parametrize("seed", [1, 2])
def test_fresh_reads_see_what_was_written(tmp_path: Path, seed: int) -> None:
    History(tmp_path / "t", seed).run(45)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_fresh_reads_see_what_was_written_in_long_histories(tmp_path: Path, seed: int) -> None:
    seed = int(os.environ.get("MEM_WAL_SEED", 0)) + seed
    History(tmp_path / "t", seed).run(100)


@pytest.mark.slow
def test_one_history_of_two_thousand_steps(tmp_path: Path) -> None:
    History(tmp_path / "t", 7).run(2000)


def test_a_compacted_sstable_that_is_still_listed_hides_nothing(tmp_path: Path) -> None:
    dataset = make(tmp_path / "t", (1, "a"))
    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(rows((1, "b")))
    paths = ShardPaths(dataset.table, SHARD)
    listed = load_shard(paths)
    assert listed is not None
    dataset.wal.compact()
    drained = load_shard(paths)
    assert drained is not None
    assert not drained.sstables
    # As after a crash between the commit and the change of the shard's manifest.
    drained.sstables.extend(listed.sstables)
    drained.version += 1
    dataset.store.put_if_absent(paths.manifest(drained.version), drained.SerializeToString())
    merge = spark_lance.dataset(tmp_path / "t").merge_insert("id")
    merge.when_matched_update_all().execute(rows((1, "newer")))
    assert by_pylance(tmp_path / "t") == {1: "b"}, "the reference no longer has the trap"
    assert seen(tmp_path / "t") == {1: "newer"}
    assert spark_lance.dataset(tmp_path / "t").fresh().lookup([1])["val"].to_pylist() == ["newer"]
    done = spark_lance.dataset(tmp_path / "t").wal.compact()
    assert done.sstables == 0
    assert by_pylance(tmp_path / "t") == seen(tmp_path / "t") == {1: "newer"}
