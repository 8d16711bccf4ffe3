"""Upserts streams: every micro-batch is appended to the logs of the table's MemWAL exactly once.

If the driver's Python plans the write, Spark sends all rows of a shard to one task (see below):

    write()    task     reads all of its rows, and appends them to the logs of its shards
    commit()   driver   records that all shards have the micro-batch

Otherwise, a task can have rows of any shard:

    write()    task     writes a staging file for each shard
    commit()   driver   appends the staging files of each shard to its log, with one thread per shard;
                        then records that all shards have the micro-batch

Readers see a micro-batch shard by shard, as soon as the shard's log has it. After a failure Spark repeats the
task, or the last micro-batch with the same number; shards that have the micro-batch are skipped. A task may
continue although Spark has started it again. Then the new task's claim fences the old one off, or the old
task sees that the log already has the micro-batch.

A route sends all rows of a shard to one Spark task, so that the task can write its shards itself. Spark sends
a row to partition (Murmur3(x, seed 42) mod n, made positive) for a value x that it computes from the row. For
shards by bucket b, x is a number that Spark sends to partition b mod n. For shards by identity, x is the
value itself. Without shards there is one partition. So all rows of a shard are in one partition. The task
checks this: if Spark has sent a row elsewhere, the task fails before it writes.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import CommitError, OptionError, SchemaError
from spark_lance.index.pruners import indexed_snapshot
from spark_lance.io.store import open_store
from spark_lance.memwal.entries import logged_keys, logged_rows
from spark_lance.memwal.sharding import Router, hashes
from spark_lance.memwal.staged import (
    Lease,
    Stage,
    StagedPiece,
    WriteId,
    append_staged,
    delete_pieces,
    delete_staged,
    has_epoch,
    pieces_by_value,
    record_epoch,
)
from spark_lance.memwal.writer import check_loggable
from spark_lance.spark.base.compat import DataSourceStreamArrowWriter
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.schema.variants import with_variant_texts
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.resolve import resolve
from spark_lance.table.versions.versions import load_latest

# The seed of the hash that Spark uses to send rows to partitions.
_SEED = 42
# Spark types, and the column types whose values have the same hashes.
_EQUALLY_HASHED: tuple[tuple[st.DataType, tuple[pa.DataType, ...]], ...] = (
    (st.BooleanType(), (pa.bool_(),)),
    (st.ByteType(), (pa.int8(),)),
    (st.ShortType(), (pa.int16(),)),
    (st.IntegerType(), (pa.int32(),)),
    (st.LongType(), (pa.int64(),)),
    (st.DateType(), (pa.date32(),)),
    (st.StringType(), (pa.string(), pa.large_string())),
)


@dataclass(frozen=True)
class Route:
    """The assignment of the rows of one micro-batch to tasks.

    Attributes:
        epoch: the number of the micro-batch.
        partitions: the number of tasks.
        column: the position of the sharding column in the rows; None for a table without shards.
        values: for each bucket the number that Spark hashes to send its rows; empty for other shards.
        shards: the existing shards by their value.
    """

    epoch: int
    partitions: int
    column: int | None = None
    values: tuple[int, ...] = ()
    shards: Mapping[bytes, uuid.UUID] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        snapshot: Snapshot,
        router: Router,
        names: tuple[str, ...],
        rows: st.StructType,
        epoch: int,
        most: int,
    ) -> Route | None:
        """Return the route of a micro-batch; None if Spark hashes the column differently.

        Args:
            snapshot, router: the table and its sharding.
            names: the table's name of each column of the rows.
            rows: the schema of the rows.
            epoch: the number of the micro-batch.
            most: the largest number of tasks.
        """
        shards = router.shards(snapshot.table)
        if router.transform == "unsharded":
            return cls(epoch, 1, shards=shards)
        if router.column not in names:
            return None
        position = names.index(router.column)
        column_type = snapshot.schema.field(router.column).arrow_type()
        kind = rows[position].dataType
        if not any(kind == spark_kind and column_type in kinds for spark_kind, kinds in _EQUALLY_HASHED):
            return None
        if router.transform == "identity":
            return cls(epoch, max(1, most), position, shards=shards)
        count = max(1, min(most, router.num_buckets))
        numbers = _number_per_partition(count)
        values = tuple(numbers[bucket % count] for bucket in range(router.num_buckets))
        return cls(epoch, count, position, values, shards)

    def describe(self) -> dict[str, Any]:
        """Return the description that Java uses to send the rows."""
        return {"partitions": self.partitions, "column": self.column, "values": list(self.values)}


def _number_per_partition(count: int) -> list[int]:
    """Return for each of `count` partitions the least number that Spark sends there."""
    limit = 32 * count + 256
    while True:
        partitions = _spark_partitions(pa.array(np.arange(limit, dtype=np.int32)), count)
        numbers, firsts = np.unique(partitions, return_index=True)
        if len(numbers) == count:
            return [int(first) for first in firsts]
        limit *= 2


def _spark_partitions(values: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the partition, from 0 to `count` - 1, to which Spark sends each value."""
    signed = hashes(values, _SEED).view(np.int32).astype(np.int64)
    numbers: np.ndarray[Any, np.dtype[np.int64]] = signed % count
    return numbers


def check_partition(route: Route, router: Router, rows: pa.Table, partition: int) -> None:
    """Check that Spark has sent the rows of a task to the right partition.

    Args:
        route, router: the route and the sharding.
        rows: the rows, in the types of the table.
        partition: the number of the task's partition.

    Raises:
        CommitError: a row belongs to another task.
    """
    if not rows.num_rows:
        return
    if route.values:
        expected = one_array(router.values(rows)).to_numpy() % route.partitions
    else:
        expected = _spark_partitions(one_array(router.values(rows)), route.partitions)
    if bool((expected != partition).any()):
        raise CommitError(
            f"rows of a shard came to task {partition}, which is that of another: nothing of this task was "
            "written; this is a bug. spark.lance.planInDriver=false writes in another way"
        )


_THREADS = 8
# A task appends to the logs of this many of its shards at a time.
_TASK_THREADS = 4


@dataclass(frozen=True)
class UpsertMessage(WriterCommitMessage):
    """The rows that one task has staged for the shards."""

    pieces: tuple[StagedPiece, ...]


@dataclass(frozen=True)
class Staging:
    """Stages rows for the shards, or appends them to the logs, in tasks. Can be pickled.

    Attributes:
        snapshot: the table.
        router: the sharding, which computes the shard of a row.
        names: the table's name of each column of the rows.
        job: id in the names of staging files.
        deletes: whether the rows are keys of rows to delete.
        route: the assignment of rows to tasks; None if a task may have rows of any shard.
    """

    snapshot: Snapshot
    router: Router
    names: tuple[str, ...]
    job: str
    deletes: bool = False
    route: Route | None = None

    @classmethod
    def plan(cls, snapshot: Snapshot, columns: list[str], *, deletes: bool = False) -> Staging:
        """Plan the staging of rows with these columns. Their names may differ in case from the table's.

        Raises:
            OptionError: the table has no MemWAL, or its shards do not follow from the rows.
            SchemaError: the table lacks a column.
        """
        router = Router.of(check_loggable(snapshot), snapshot.schema)
        spellings = {field.name.lower(): field.name for field in snapshot.schema.fields}
        exact = {field.name for field in snapshot.schema.fields}
        names = [name if name in exact else spellings.get(name.lower(), name) for name in columns]
        if unknown := [name for name in names if name not in exact] if not deletes else []:
            raise SchemaError(f"column {unknown[0]!r} is not in the table")
        return cls(snapshot, router, tuple(names), secrets.token_hex(8), deletes)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> tuple[StagedPiece, ...]:
        """Stage the rows of a task next to the table, and return the staged pieces."""
        return self._stage(batches, self.snapshot.table, None)

    def _stage(
        self, batches: Iterator[pa.RecordBatch], staging: TableRef, partition: int | None
    ) -> tuple[StagedPiece, ...]:
        at = self.snapshot
        logged = logged_keys if self.deletes else logged_rows
        stage = Stage(staging, self.router, self.job)
        documents = {field.name for field in at.schema.fields if field.is_json}
        try:
            for batch in batches:
                if batch.num_rows:
                    named = with_variant_texts(batch.rename_columns(list(self.names)), documents)
                    reader = pa.RecordBatchReader.from_batches(named.schema, [named])
                    rows = logged(at.schema, reader)
                    if self.route is not None and partition is not None:
                        check_partition(self.route, self.router, rows, partition)
                    stage.write(rows)
            return tuple(stage.finish())
        except BaseException:
            stage.abort()
            raise

    def append(self, batches: Iterator[pa.RecordBatch], query: str, partition: int) -> int:
        """Append the rows of a task to the logs of its shards, and return the number of appended rows.

        The task reads all rows into temporary files before it writes the first log.

        Args:
            batches: the rows that Spark has sent by the route.
            query: the id of the stream.
            partition: the number of the task's partition.

        Raises:
            SchemaError: a value does not fit its column, or must not be null; nothing was written.
            CommitError, FormatError, OSError: see `append_staged`.
        """
        at, route = self.snapshot, self.route
        assert route is not None  # without a route, other tasks could have rows of the same shards
        write_id = WriteId(query, route.epoch)
        if has_epoch(at.table, write_id):
            for _ in batches:  # Spark's worker requires that all rows are consumed
                pass
            return 0
        parent = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        with tempfile.TemporaryDirectory(prefix="spark-lance-", dir=parent or None) as folder:
            staging = TableRef(*open_store(folder))
            pieces = pieces_by_value(self._stage(batches, staging, partition))

            def append_to_shard(value: bytes, shard_pieces: list[StagedPiece]) -> int:
                shard = self.router.shard_for(at.table, value, route.shards)
                return append_staged(at, shard, shard_pieces, write_id, store=staging.store)

            with ThreadPoolExecutor(_TASK_THREADS) as pool:
                calls = [
                    pool.submit(append_to_shard, value, shard_pieces)
                    for value, shard_pieces in pieces.items()
                ]
                return sum(call.result() for call in calls)


def append_pieces(
    snapshot: Snapshot, router: Router, pieces: list[StagedPiece], write_id: WriteId | None
) -> int:
    """Append the staged pieces to the logs, one thread per shard, and return the number of appended rows."""
    shards = router.shards(snapshot.table)

    def append(value: bytes, shard_pieces: list[StagedPiece]) -> int:
        shard = router.shard_for(snapshot.table, value, shards)
        return append_staged(snapshot, shard, shard_pieces, write_id)

    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [
            pool.submit(append, value, shard_pieces)
            for value, shard_pieces in pieces_by_value(pieces).items()
        ]
        return sum(call.result() for call in calls)


def table_to_upsert(options: WriteOptions) -> Snapshot:
    """Return the newest version of the table that a stream upserts."""
    store, root = open_store(options.path, options.storage)
    if options.branch is not None:
        root = resolve(TableRef(store, root), (options.branch, None)).root
    return indexed_snapshot(TableRef(store, root), load_latest(TableRef(store, root)))


if DataSourceStreamArrowWriter is not None:

    class UpsertStreamWriter(DataSourceStreamArrowWriter):
        """Writes the micro-batches of a stream to the logs of a table.

        Args:
            options: options of the stream.
            schema: schema of the rows.
            query: the id with which micro-batches are recorded.

        Raises:
            OptionError: the table has no MemWAL whose shards follow from the rows, or an option is not for
                upserts.
            SchemaError: the table lacks a column.
            TableNotFoundError: the table does not exist.
        """

        def __init__(self, options: WriteOptions, schema: st.StructType, query: str) -> None:
            for name in ("txnAppId", "txnVersion", "replaceWhere", "replaceUsing", "replaceOn"):
                if getattr(options, name, None) is not None:
                    raise OptionError(f"option {name!r} is for batch writes, not for streams")
            if options.mergeSchema:
                raise OptionError(
                    "option 'mergeSchema' does not go with upserts: add the columns to the table"
                )
            self._query = query
            self._schema = schema
            self._staging = Staging.plan(table_to_upsert(options), schema.fieldNames())

        def by_route(self, epoch: int, most: int) -> Route | None:
            """Let tasks append to the logs themselves, if Spark can send all rows of a shard to one task.

            Args:
                epoch: the number of the micro-batch.
                most: the largest number of tasks.

            Returns:
                The route; None if tasks must stage rows instead.
            """
            at = self._staging
            route = Route.plan(at.snapshot, at.router, at.names, self._schema, epoch, most)
            self._staging = replace(at, route=route)
            return route

        def write(self, iterator: Iterator[pa.RecordBatch]) -> UpsertMessage:
            """Append the rows of one task to the logs, or stage them.

            Raises:
                SchemaError: a value does not fit its column, or must not be null.
                CommitError, FormatError, OSError: see `Staging.append`.
            """
            with one_line():
                if self._staging.route is None:
                    return UpsertMessage(self._staging.stage(iterator))
                task = TaskContext.get()
                assert task is not None  # routes are used only in Spark tasks
                self._staging.append(iterator, self._query, task.partitionId())
                return UpsertMessage(())

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Append the staged rows to the logs, unless they have them. Raises errors of `append_staged`."""
            answers = [message for message in messages if isinstance(message, UpsertMessage)]
            pieces = [piece for message in answers for piece in message.pieces]
            at, write_id = self._staging.snapshot, WriteId(self._query, batchId)
            job = self._staging.job
            with one_line():
                if not has_epoch(at.table, write_id):
                    with Lease(at.table, job, at_once=False):
                        append_pieces(at, self._staging.router, pieces, write_id)
                    record_epoch(at.table, write_id)
                delete_pieces(at.table, pieces)
                if pieces:
                    delete_staged(at.table, job)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Delete the staging files of the tasks. Rows that are in the logs already stay there."""
            at = self._staging.snapshot
            delete_staged(at.table, self._staging.job)
            for message in messages:
                if isinstance(message, UpsertMessage):
                    delete_pieces(at.table, message.pieces)
