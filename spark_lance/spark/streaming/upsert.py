"""Streams of upserts: every micro-batch goes to the logs of the table's MemWAL, once.

Where the driver's Python plans the write, Spark sends all rows of a shard to one task (see below):

    write()    task     reads all of its rows, and appends them to the logs of its shards
    commit()   driver   records that all shards have the micro-batch

Elsewhere, tasks have rows of any shard:

    write()    task     rows become a file for each shard that they go to
    commit()   driver   what the tasks left for a shard is appended to its log, by one thread for each shard;
                        then it is recorded that all shards have the micro-batch

Readers see a micro-batch shard by shard, each as soon as its log has it. After a failure Spark repeats the
task, or the last micro-batch with the same number; shards that have it are passed over. A task that goes on
although Spark has given its work to another is fenced by the claim of that one, or finds the log done.

Routes: all rows of a shard go to one Spark task, so that the task can write its shards itself.

Spark sends a row to partition (Murmur3(x, seed 42) mod n, made positive) for a value x that it computes from
the row. For shards by bucket b, x is a number chosen so that Spark sends it to partition b mod n. For shards
by identity, x is the value itself; without shards there is one partition. So all rows of a shard are in one
partition. The task checks that: if Spark computed something else, the task fails before it writes.
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
    Once,
    Stage,
    StagedPiece,
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

# Spark's seed where it sends rows to partitions.
_SEED = 42
# Types of Spark's whose values hash as those of the table's columns do.
_ALIKE: tuple[tuple[st.DataType, tuple[pa.DataType, ...]], ...] = (
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
    """How the rows of one micro-batch come to the shards.

    Attributes:
        epoch: the number of the micro-batch.
        partitions: how many tasks there are.
        column: the place, in the rows, of the column that tells the shard; None without.
        values: for each bucket the number by which Spark sends its rows; none for other shards.
        shards: those that are there, by their value.
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
        """Return the route of a micro-batch; None if Spark hashes the column in another way.

        Args:
            snapshot, router: the table.
            names: the table's name of each column of the rows.
            rows: their schema.
            epoch: the number of the micro-batch.
            most: tasks at most.
        """
        shards = router.shards(snapshot.table)
        if router.transform == "unsharded":
            return cls(epoch, 1, shards=shards)
        if router.column not in names:
            return None
        place = names.index(router.column)
        column_type = snapshot.schema.field(router.column).arrow_type()
        if not any(rows[place].dataType == kind and column_type in alike for kind, alike in _ALIKE):
            return None
        if router.transform == "identity":
            return cls(epoch, max(1, most), place, shards=shards)
        count = max(1, min(most, router.num_buckets))
        numbers = _numbers(count)
        values = tuple(numbers[bucket % count] for bucket in range(router.num_buckets))
        return cls(epoch, count, place, values, shards)

    def described(self) -> dict[str, Any]:
        """Return what Java has to know to send the rows."""
        return {"partitions": self.partitions, "column": self.column, "values": list(self.values)}


def _numbers(count: int) -> list[int]:
    """Return for each of so many partitions the least number that Spark sends there."""
    tried = 32 * count + 256
    while True:
        partitions = _partitions(pa.array(np.arange(tried, dtype=np.int32)), count)
        numbers, firsts = np.unique(partitions, return_index=True)
        if len(numbers) == count:
            return [int(first) for first in firsts]
        tried *= 2


def _partitions(values: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the partition of every value, of so many, that Spark sends it to."""
    signed = hashes(values, _SEED).view(np.int32).astype(np.int64)
    numbers: np.ndarray[Any, np.dtype[np.int64]] = signed % count
    return numbers


def check_partition(route: Route, router: Router, rows: pa.Table, partition: int) -> None:
    """Make sure that rows of a task are of shards that no other task has rows of.

    Args:
        route, router: by which the rows were sent.
        rows: in the types of the table.
        partition: the number of the task's partition.

    Raises:
        CommitError: they are not.
    """
    if not rows.num_rows:
        return
    if route.values:
        right = one_array(router.values(rows)).to_numpy() % route.partitions
    else:
        right = _partitions(one_array(router.values(rows)), route.partitions)
    if bool((right != partition).any()):
        raise CommitError(
            f"rows of a shard came to task {partition}, which is that of another: nothing of this task was "
            "written; this is a bug. spark.lance.planInDriver=false writes in another way"
        )


_THREADS = 8
# A task appends to the logs of so many of its shards at a time.
_TASK_THREADS = 4


@dataclass(frozen=True)
class UpsertMessage(WriterCommitMessage):
    """The rows that one task has staged for the shards."""

    pieces: tuple[StagedPiece, ...]


@dataclass(frozen=True)
class Staging:
    """How tasks leave rows for the shards. Can be pickled.

    Attributes:
        snapshot: the table.
        router: tells the shards.
        names: the table's name of each column of the rows.
        job: names what the tasks leave.
        deletes: whether the rows are keys of rows to delete.
        route: by which rows come to tasks; None if a task may have rows of any shard.
    """

    snapshot: Snapshot
    router: Router
    names: tuple[str, ...]
    job: str
    deletes: bool = False
    route: Route | None = None

    @classmethod
    def plan(cls, snapshot: Snapshot, columns: list[str], *, deletes: bool = False) -> Staging:
        """Plan to leave rows with some columns; names may differ in case.

        Raises:
            OptionError: the table has no MemWAL, or one whose shards are chosen by hand.
            SchemaError: the table has no such column.
        """
        router = Router.of(check_loggable(snapshot), snapshot.schema)
        spellings = {field.name.lower(): field.name for field in snapshot.schema.fields}
        exact = {field.name for field in snapshot.schema.fields}
        names = [name if name in exact else spellings.get(name.lower(), name) for name in columns]
        if strange := [name for name in names if name not in exact] if not deletes else []:
            raise SchemaError(f"column {strange[0]!r} is not in the table")
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
        """Append the rows of a task to the logs of its shards; return how many were appended.

        All rows are read before the first log is written, into files of the task's own.

        Args:
            batches: the rows that came by the route.
            query: the id of the stream.
            partition: the number of the task's partition.

        Raises:
            SchemaError: a value does not fit its column, or must not be null; nothing was written.
            CommitError, FormatError, OSError: see `append_staged`.
        """
        at, route = self.snapshot, self.route
        assert route is not None  # the route tells that this task alone has rows of its shards
        once = Once(query, route.epoch)
        if has_epoch(at.table, once):
            for _ in batches:  # Spark's worker wants its rows taken
                pass
            return 0
        place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        with tempfile.TemporaryDirectory(prefix="spark-lance-", dir=place or None) as folder:
            staging = TableRef(*open_store(folder))
            pieces = pieces_by_value(self._stage(batches, staging, partition))

            def one(value: bytes, its: list[StagedPiece]) -> int:
                shard = self.router.shard_for(at.table, value, route.shards)
                return append_staged(at, shard, its, once, store=staging.store)

            with ThreadPoolExecutor(_TASK_THREADS) as pool:
                calls = [pool.submit(one, value, its) for value, its in pieces.items()]
                return sum(call.result() for call in calls)


def append_pieces(snapshot: Snapshot, router: Router, pieces: list[StagedPiece], once: Once | None) -> int:
    """Append what tasks left to the logs, each shard by a thread; return the rows that were appended."""
    shards = router.shards(snapshot.table)

    def append(value: bytes, its: list[StagedPiece]) -> int:
        shard = router.shard_for(snapshot.table, value, shards)
        return append_staged(snapshot, shard, its, once)

    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [pool.submit(append, value, its) for value, its in pieces_by_value(pieces).items()]
        return sum(call.result() for call in calls)


def table_to_upsert(options: WriteOptions) -> Snapshot:
    """Return the newest version of the table that a stream upserts."""
    store, root = open_store(options.path, options.storage)
    if options.branch is not None:
        root = resolve(store, root, (options.branch, None)).root
    return indexed_snapshot(TableRef(store, root), load_latest(TableRef(store, root)))


if DataSourceStreamArrowWriter is not None:

    class UpsertStreamWriter(DataSourceStreamArrowWriter):
        """Writes the micro-batches of a stream to the logs of a table.

        Args:
            options: what the stream was asked for.
            schema: of the rows.
            query: the id under which micro-batches are recorded.

        Raises:
            OptionError: the table has no MemWAL whose shards follow from the rows, or an option is not for
                upserts.
            SchemaError: the table lacks a column.
            TableNotFoundError: there is no table.
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
            """Let tasks append to the logs themselves, if Spark can send them the rows that way.

            Args:
                epoch: the number of the micro-batch.
                most: tasks at most.
            """
            at = self._staging
            route = Route.plan(at.snapshot, at.router, at.names, self._schema, epoch, most)
            self._staging = replace(at, route=route)
            return route

        def write(self, iterator: Iterator[pa.RecordBatch]) -> UpsertMessage:
            """Append the rows of one task to logs, or leave them for the shards.

            Raises:
                SchemaError: a value does not fit its column, or must not be null.
                CommitError, FormatError, OSError: as `Staging.append`.
            """
            with one_line():
                if self._staging.route is None:
                    return UpsertMessage(self._staging.stage(iterator))
                task = TaskContext.get()
                assert task is not None  # routes are for Spark's tasks
                self._staging.append(iterator, self._query, task.partitionId())
                return UpsertMessage(())

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Append what the tasks left to the logs, unless they have it; errors as `append_staged`."""
            answers = [message for message in messages if isinstance(message, UpsertMessage)]
            pieces = [piece for message in answers for piece in message.pieces]
            at, once = self._staging.snapshot, Once(self._query, batchId)
            job = self._staging.job
            with one_line():
                if not has_epoch(at.table, once):
                    with Lease(at.table, job, at_once=False):
                        append_pieces(at, self._staging.router, pieces, once)
                    record_epoch(at.table, once)
                delete_pieces(at.table, pieces)
                if pieces:
                    delete_staged(at.table, job)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Delete what the tasks left: what of it is in logs stays there."""
            at = self._staging.snapshot
            delete_staged(at.table, self._staging.job)
            for message in messages:
                if isinstance(message, UpsertMessage):
                    delete_pieces(at.table, message.pieces)
