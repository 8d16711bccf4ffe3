"""A process of `test_many_writers.py`, which is killed at any time.

    python many_writers_worker.py TABLE LOG SHARD PACKAGE SEED    writes to a shard until it is killed
    python many_writers_worker.py TABLE LOG                       compacts until it is killed

A writer's log has a line before each step, [key, value] pairs as JSON with null for deleted rows, and a line
"ok" after the package has acknowledged it. The compactor's log names the package of each compaction.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import uuid
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

import spark_lance
from spark_lance.errors import WriterFencedError
from spark_lance.memwal.fresh import compacted_generations
from spark_lance.memwal.names import ShardPaths, list_shards
from spark_lance.memwal.shard_manifest import load_shard
from tests.memwal.tables import rows

WRITERS = 4
KEYS = 60


def shard_of(number: int) -> uuid.UUID:
    return uuid.UUID(int=(number + 1) << 80)


# A flush displaces pylance's writers, but not those of this package.
FLUSHED = [shard_of(number) for number in range(1, WRITERS, 2)]


def open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(path: str, log: str, number: int, package: str, seed: int) -> None:
    """Put and delete rows of the keys of a shard."""
    rng = random.Random(seed)

    def open_writer() -> Any:
        dataset: Any = importlib.import_module(package).dataset(path)
        return dataset.mem_wal_writer(str(shard_of(number)), max_memtable_rows=40)

    writer = open_writer()
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for step in count():
        keys = rng.sample(range(number, KEYS, WRITERS), rng.randint(1, 4))
        deletes = rng.random() < 0.1
        pairs = [(key, None if deletes else f"{seed}.{step}.{key}") for key in keys]
        os.write(lines, (json.dumps(pairs) + "\n").encode())
        while True:
            try:
                if deletes:
                    writer.delete(pa.table({"id": pa.array(keys, pa.int64())}))
                else:
                    writer.put(rows(*pairs))
                break
            except WriterFencedError:  # a compaction was killed between its claim and its sentinel
                writer.abandon()
                writer = open_writer()
        os.write(lines, b"ok\n")


def compact(path: str, log: str) -> None:
    """Bring SSTables into the table, by pylance and by this package in turns."""
    lines = open_log(log)
    for turn in count():
        dataset = spark_lance.dataset(path)
        if turn % 2:
            flushed = (
                [shard for shard in list_shards(dataset.table) if shard in FLUSHED] if turn % 4 == 3 else []
            )
            sstables = dataset.wal.compact(flushed, flush=True).sstables if flushed else 0
            if dataset.wal.compact().sstables or sstables:
                os.write(lines, b"spark_lance\n")
            # A fresh read on a busy machine can take longer than 5 seconds.
            dataset.wal.collect(older_than=timedelta(seconds=20))
            continue
        for shard in list_shards(dataset.table):
            if compact_by_pylance(path, shard):
                os.write(lines, b"lance\n")


def compact_by_pylance(path: str, shard: uuid.UUID) -> bool:
    """Merge the oldest SSTable of a shard, unless it has deleted rows, which pylance cannot merge."""
    dataset = spark_lance.dataset(path)
    paths = ShardPaths(dataset.table, shard)
    manifest = load_shard(paths)
    done = (compacted_generations(dataset.snapshot) or {}).get(shard, 0)
    waiting = [] if manifest is None else [entry for entry in manifest.sstables if entry.generation > done]
    if not waiting:
        return False
    oldest = min(waiting, key=lambda entry: entry.generation)
    table = lance.dataset(str(Path(paths.sstable(oldest.path)))).to_table()
    if any(table["_tombstone"].to_pylist()):
        return False
    merge: Any = lance.dataset(path).merge_insert("id")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([CompactedSsTable(str(shard), oldest.generation)])
    merge.execute(table.drop_columns(["_tombstone"]))
    return True


if __name__ == "__main__":
    if len(sys.argv) == 3:
        compact(sys.argv[1], sys.argv[2])
    else:
        write(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
