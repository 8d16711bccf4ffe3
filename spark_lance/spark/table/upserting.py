"""Upserts by the table's MemWAL, and its upkeep, by Spark jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark_lance.errors import OptionError
from spark_lance.memwal.compact import (
    WalCompaction,
    compact_shard,
    shards_of,
)
from spark_lance.memwal.staged import (
    Lease,
    Once,
    StagedPiece,
    append_staged,
    delete_staged,
    has_epoch,
    pieces_by_value,
    record_epoch,
)
from spark_lance.spark.driver.jobs import collect_answers, map_tasks
from spark_lance.spark.streaming.upsert import Staging
from spark_lance.spark.table.base import TableBase
from spark_lance.table.format.upkeep import only_logged
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class UpsertLog:
    """Writes DataFrames to the logs of a table. Made by `LanceTable.upsertLog`.

    Tasks spread the rows over the shards, then one task for each shard appends them to its log. Readers with
    option `fresh` see them from then on. A shard that another writer holds is taken from it.
    """

    table: TableBase

    def upsert(self, rows: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Insert or update rows by the table's primary key; return how many were appended to logs.

        If several rows have the same key, any of them may win, so give each key once.

        Args:
            rows: columns of the table; those that are missing become null.
            txnAppId, txnVersion: name of the job and number of this write, which is done once then.

        Raises:
            OptionError: the table has no MemWAL whose shards follow from the rows.
            SchemaError: the rows do not fit the table.
            WriterFencedError: another writer claimed a shard meanwhile.
        """
        return self._log(rows, _once(txnAppId, txnVersion), deletes=False)

    def delete(self, keys: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Delete the rows of keys; return how many keys were appended to logs.

        Args:
            keys: the columns of the primary key; others are passed over.
            txnAppId, txnVersion: as for `upsert`.

        Raises:
            OptionError, SchemaError, WriterFencedError: as `upsert`.
        """
        return self._log(keys, _once(txnAppId, txnVersion), deletes=True)

    def _log(self, frame: DataFrame, once: Once | None, *, deletes: bool) -> int:
        at = self.table.dataset().snapshot
        if once is not None and has_epoch(at.table, once):
            return 0
        staging = Staging.plan(at, frame.columns, deletes=deletes)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[StagedPiece, ...]]:
            yield staging.stage(batches)

        try:
            with Lease(at.table, staging.job):
                pieces = [piece for its in collect_answers(frame, stage) for piece in its]
                shards = staging.router.shards(at.store, at.root)
                tasks = [
                    (at, staging.router.shard_for(at.store, at.root, value, shards), its, once)
                    for value, its in pieces_by_value(pieces).items()
                ]
                rows = sum(map_tasks(self.table.spark, tasks, _append))
            if once is not None:
                record_epoch(at.table, once)
        finally:
            with only_logged("staged rows are left to collectWal"):
                delete_staged(at.table, staging.job)
        return rows


def _append(task: tuple[Snapshot, UUID, list[StagedPiece], Once | None]) -> int:
    return append_staged(*task)


def _once(name: str | None, number: int | None) -> Once | None:
    if (name is None) != (number is None):
        raise OptionError("txnAppId and txnVersion come together")
    return None if name is None or number is None else Once(name, number)


def compact_logs(table: TableBase, flush: bool) -> WalCompaction:
    """Bring the rows of SSTables into the table; see `LanceTable.compactWal`."""
    at = table.dataset().snapshot
    done = WalCompaction(at.version)
    tasks = [(at, shard, flush) for shard in shards_of(at)]
    for its in map_tasks(table.spark, tasks, _compact):
        done = done.and_also(its)
    return done


def _compact(task: tuple[Snapshot, UUID, bool]) -> WalCompaction:
    snapshot, shard, flush = task
    return compact_shard(snapshot, shard, flush=flush)
