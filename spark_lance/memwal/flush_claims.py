"""Claims of compactions, after which the displaced writer may claim the shard again.

A compaction with `flush` claims a shard only to write the rows of its log to an SSTable. Its sentinel has the
metadata `spark_lance.flush`. The displaced writer waits until these rows are in an SSTable, claims the shard
again, and continues:

    writer        claims (epoch 1), puts rows       finds the sentinel, waits      claims (epoch 3)
    compaction             claims (epoch 2), puts the sentinel, writes an SSTable

If the log has a sentinel or an entry of any other later claim, the writer stays displaced.
"""

from __future__ import annotations

import time

from spark_lance.file.base.schema import Schema
from spark_lance.memwal.entries import FLUSH, WalEntry, read_entry
from spark_lance.memwal.names import ShardPaths, parse_numbers
from spark_lance.memwal.shard_manifest import load_shard

_PAUSE_SECONDS = 0.05
# The longest time from a claim to its sentinel, and from the sentinel to the end of the flush. After that
# time, the compaction is considered dead.
_SENTINEL_SECONDS = 5.0
_FLUSH_SECONDS = 20.0


def await_flush(
    paths: ShardPaths, schema: Schema, *, epoch: int, position: int, last_rows: int
) -> int | None:
    """Wait for the compactions that displaced a writer, and return the epoch of the newest one.

    Args:
        paths: the shard.
        schema: the table's schema.
        epoch: the epoch of the displaced writer.
        position: the log position of the writer's next entry.
        last_rows: the position of the last entry with rows that the writer knows.

    Returns:
        None if the writer must not claim the shard: another writer has claimed it, or may have.
    """
    start = time.monotonic()
    flushes: set[int] = set()
    while True:
        manifest = load_shard(paths)
        if manifest is None:
            return None
        while (entry := _read(paths, position, schema)) is not None:
            position += 1
            if entry.epoch > epoch:
                if entry.rows is not None or FLUSH not in entry.metadata:
                    return None
                flushes.add(entry.epoch)
        seconds = time.monotonic() - start
        if flushes.issuperset(range(epoch + 1, manifest.writer_epoch + 1)):
            if manifest.replay_after_wal_entry_position >= last_rows or seconds > _FLUSH_SECONDS:
                return manifest.writer_epoch
        elif seconds > _SENTINEL_SECONDS:
            return None
        time.sleep(_PAUSE_SECONDS)


def _read(paths: ShardPaths, position: int, schema: Schema) -> WalEntry | None:
    try:
        return read_entry(paths, position, schema)
    except FileNotFoundError:
        return None


def last_logged_rows(paths: ShardPaths, schema: Schema) -> int:
    """Return the last log position whose rows are not in an SSTable; 0 if there is none.

    Raises:
        WalEntryError: an entry is damaged.
    """
    manifest = load_shard(paths)
    after = 0 if manifest is None else manifest.replay_after_wal_entry_position
    generation = 0 if manifest is None else manifest.current_generation
    for position in reversed(parse_numbers(list(paths.store.list(paths.entries)))):
        if position <= after:
            break
        entry = _read(paths, position, schema)
        if entry is None or entry.rows is None:
            continue  # collected, or a sentinel
        if entry.generation is None or entry.generation >= generation:
            return position
    return 0
