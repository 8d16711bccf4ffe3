"""The writer of a shard: it writes rows to the log, and from memory to SSTables.

    open     claim the shard (raise its epoch), put a sentinel at the end of its log, replay the log
    put      write one entry of the log; when it returns, every reader sees the rows
    flush    write the rows in memory to an SSTable; then the shard's manifest lists it, and its replay
    position
             is moved to the end of these rows
    close    flush, wait

The first writer that creates the file of a log position owns the position. A displaced writer finds the
sentinel, or an entry of its successor, at the position of its own next entry. It then reads the manifest and
stops: it is fenced. Its successor has replayed all acknowledged writes. If the successor was a compaction
that only flushed the log, the writer claims the shard again (`flush_claims`). A store error with an unknown
outcome stops the writer, too: opening the shard again replays the log. (MemWAL, writer.)

SSTables are written in the background while the writer accepts rows. The number of waiting bytes is limited
(back-pressure).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import join
from spark_lance.errors import (
    CommitError,
    OptionError,
    SchemaError,
    UnsupportedFormatError,
    WriterFencedError,
)
from spark_lance.memwal.entries import (
    TOMBSTONE,
    WalEntry,
    check_rows,
    entries_to_table,
    entry_mark,
    group_by_generation,
    log_schema,
    logged_keys,
    logged_rows,
    pack_entry,
    pack_sentinel,
    plain_schema,
    read_entry,
    read_tail,
)
from spark_lance.memwal.flush_claims import await_flush
from spark_lance.memwal.names import ShardPaths, new_sstable_name
from spark_lance.memwal.shard_manifest import change_shard, claim_shard, load_shard, put_new
from spark_lance.memwal.sstables import check_key, write_sstable
from spark_lance.proto.index_pb2 import MemWalIndexDetails, ShardManifest
from spark_lance.table.commits.constraints import check_rows as check_constraints
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.operations.mem_wal_marks import mem_wal_details
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.constraints import generated_constraints, table_constraints
from spark_lance.table.schema.defaults import get_identity
from spark_lance.table.writing.inputs import as_reader

DURABILITIES = ("written", "synced")
# The settings for which the table can have defaults. Only the caller may set `accept_loss`.
_TABLE_SETTINGS = (
    "max_memtable_size",
    "max_memtable_rows",
    "max_memtable_batches",
    "max_unflushed_memtable_bytes",
)


@dataclass(frozen=True)
class WriterConfig:
    """The settings of a writer; the table's MemWAL can have defaults for the numbers.

    Attributes:
        max_memtable_size: the bytes of rows in memory after which an SSTable is written.
        max_memtable_rows, max_memtable_batches: the numbers of rows and of writes after which it is written.
        max_unflushed_memtable_bytes: the most bytes that may wait for background writes; a put waits above
            this. 0 waits for every SSTable.
        durability: with "written", put hands an entry to the operating system, so a killed process loses
            nothing. With "synced", the entry is on disk when put returns. Object stores always store what
            they acknowledge.
        accept_loss: whether to open a shard with missing or damaged log entries, without their rows.
    """

    max_memtable_size: int = 256 << 20
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_unflushed_memtable_bytes: int = 1 << 30
    durability: str = "written"
    accept_loss: bool = False

    @classmethod
    def of(cls, details: MemWalIndexDetails, options: Mapping[str, Any]) -> WriterConfig:
        """Return the settings: `options` override the defaults of the table's MemWAL.

        Raises:
            OptionError: a setting is unknown or cannot be used.
        """
        names = set(cls.__dataclass_fields__)
        if unknown := sorted(set(options) - names):
            raise OptionError(
                f"unknown setting of a shard writer: {', '.join(unknown)}; use {', '.join(names)}"
            )
        settings = {
            name: int(text)
            for name, text in details.writer_config_defaults.items()
            if name in _TABLE_SETTINGS and text.isascii() and text.isdigit()
        }
        config = cls(**{**settings, **{name: value for name, value in options.items() if value is not None}})
        for name in ("max_memtable_size", "max_memtable_rows", "max_memtable_batches"):
            if getattr(config, name) < 1:
                raise OptionError(f"{name} must be 1 or more, not {getattr(config, name)}")
        if config.max_unflushed_memtable_bytes < 0:
            raise OptionError(
                f"max_unflushed_memtable_bytes must be 0 or more, not {config.max_unflushed_memtable_bytes}"
            )
        if config.durability not in DURABILITIES:
            raise OptionError(f"durability must be {' or '.join(DURABILITIES)}, not {config.durability!r}")
        return config


@dataclass
class WriterStats:
    """Statistics of a writer: calls, rows, entries, bytes, SSTables, and seconds that puts waited."""

    put_count: int = 0
    put_rows: int = 0
    wal_entries: int = 0
    wal_bytes: int = 0
    sstables: int = 0
    sstable_rows: int = 0
    waited_seconds: float = 0.0


logger = logging.getLogger(__name__)

# Log entries can be collected `GRACE` after they were flushed. So the entry that would stop a displaced
# writer may no longer exist, and a writer also checks its epoch after this time.
_EPOCH_CHECK_SECONDS = 60.0


@dataclass
class _MemTable:
    """The rows of one generation."""

    generation: int
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    last_position: int = 0

    def add(self, table: pa.Table, position: int) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.nbytes += table.nbytes
        self.last_position = position


def check_loggable(snapshot: Snapshot) -> MemWalIndexDetails:
    """Return the details of a table's MemWAL, after checking that rows can be logged.

    Raises:
        OptionError: the table has no MemWAL.
        SchemaError: a MemWAL does not support the type of the key.
        UnsupportedFormatError: the table has blobs, is legacy, or has several sharding specs.
    """
    details = mem_wal_details(snapshot.manifest.indices)
    if details is None:
        raise OptionError(f"{snapshot.root} has no MemWAL: create one with initialize_mem_wal()")
    if len(details.sharding_specs) > 1:
        raise UnsupportedFormatError("a MemWAL with several sharding specs", path=snapshot.manifest.path)
    if any(node.is_blob for node in snapshot.schema.walk()):
        raise UnsupportedFormatError("writing to a MemWAL of a table with blobs", path=snapshot.manifest.path)
    if not snapshot.manifest.file_version.writable:
        raise UnsupportedFormatError("writing legacy files", path=snapshot.manifest.path)
    check_key(snapshot.schema)
    return details


def place_sentinel(
    paths: ShardPaths,
    position: int,
    epoch: int,
    sync: bool = False,
    *,
    flush: bool = False,
) -> int:
    """Write a sentinel to the first free position from `position`, and return its position.

    With `flush`, the displaced writer may claim the shard again.

    Raises:
        WriterFencedError: another writer has claimed the shard.
        CommitOutcomeUnknownError: the store did not confirm the write.
    """
    data = pack_sentinel(epoch, entry_mark(), flush=flush)
    while not put_new(paths.store, paths.entry(position), data, unique=True, sync=sync):
        check_epoch(paths, epoch)
        position += 1
    return position


def check_epoch(paths: ShardPaths, epoch: int) -> None:
    """Check that a shard still has the epoch of its writer.

    Raises:
        WriterFencedError: another writer has claimed the shard.
    """
    newest = load_shard(paths)
    stored_epoch = 0 if newest is None else newest.writer_epoch
    if stored_epoch != epoch:
        raise WriterFencedError(
            f"another writer claimed shard {paths.shard} of {paths.root} (its epoch is {stored_epoch}, this "
            f"writer's is {epoch}). Acknowledged writes are stored: open a new writer"
        )


class ShardWriter:
    """The only writer of a shard; a context manager. Not thread-safe.

    Made by `LanceDataset.mem_wal_writer`.

    Args:
        snapshot: the version of the table.
        shard: the id of the shard.
        config: the settings; see `WriterConfig`.
        only_flushes: whether this writer only flushes the log, so that the displaced writer may claim the
            shard again.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shard: uuid.UUID,
        config: Mapping[str, Any] | None = None,
        *,
        only_flushes: bool = False,
    ) -> None:
        details = check_loggable(snapshot)
        self._snapshot = snapshot
        self._details = details
        self._only_flushes = only_flushes
        self._store, self._schema = snapshot.store, snapshot.schema
        self._paths = ShardPaths(snapshot.table, shard)
        self._config = WriterConfig.of(details, config or {})
        self._spec_id = details.sharding_specs[0].spec_id if details.sharding_specs else 0
        self._arrow = log_schema(self._schema)
        self._plain = plain_schema(self._schema)
        self._sync = self._config.durability == "synced"
        self.stats = WriterStats()
        self._failure: Exception | None = None
        self._is_displaced = False
        self._closed = False
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._lock = threading.Lock()
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="lance-memwal")
        try:
            self._open()
        except BaseException:
            self._flusher.shutdown()
            raise

    @property
    def shard_id(self) -> str:
        """The id of the shard."""
        return str(self._paths.shard)

    @property
    def epoch(self) -> int:
        """The epoch of this writer's claim."""
        return self._epoch

    @property
    def generation(self) -> int:
        """The current generation, to which rows are added."""
        return self._memtable.generation

    def _open(self, after: int | None = None) -> None:
        """Claim the shard and replay its log, again if a compaction claims the shard meanwhile.

        Args:
            after: the epoch of the compaction that displaced this writer; None for the first claim.

        Raises:
            WriterFencedError: another writer has claimed the shard.
        """
        while True:
            try:
                self._claim(after)
                return
            except WriterFencedError as error:
                after = self._await_flush(error)

    def _claim(self, after: int | None) -> None:
        manifest, existed = claim_shard(self._paths, self._spec_id, self._sync, after=after)
        self._epoch = manifest.writer_epoch
        self._last_epoch_check = time.monotonic()
        self._last_rows = after = manifest.replay_after_wal_entry_position
        self._next = after + 1
        tail = read_tail(self._paths, after, self._schema, accept_loss=self._config.accept_loss)
        entries = list(tail.entries)
        self._next = tail.next_position
        if existed or entries:
            sentinel_position = place_sentinel(
                self._paths,
                self._next,
                self._epoch,
                self._sync,
                flush=self._only_flushes,
            )
            # The previous writer may have added entries after the log was read: they are valid, too.
            entries += [
                read_entry(self._paths, position, self._schema)
                for position in range(self._next, sentinel_position)
            ]
            self._next = sentinel_position + 1
            self._record_last_position(sentinel_position)
        self._last_rows = max([after, *(entry.position for entry in entries if entry.rows is not None)])
        self._replay(entries, manifest)
        if tail.lost:
            self._restart_log()

    def _await_flush(self, error: WriterFencedError) -> int:
        """Wait for the compactions that displaced this writer, and return the epoch of the newest one.

        Raises:
            WriterFencedError: another writer has claimed the shard.
            Exception: the error of a flush.
        """
        while self._waiting:
            _, future = self._waiting.popleft()
            if (failure := future.exception()) is not None and not isinstance(failure, WriterFencedError):
                self._failure = failure if isinstance(failure, Exception) else error
                raise failure
        epoch = None
        if not (self._is_displaced or self._only_flushes):
            epoch = await_flush(
                self._paths,
                self._schema,
                epoch=self._epoch,
                position=self._next,
                last_rows=self._last_rows,
            )
        if epoch is None:
            self._failure, self._is_displaced = error, True
            raise error
        self._failure = None
        return epoch

    def _restart_log(self) -> None:
        """Write the readable rows of a damaged log to an SSTable, and start the log again after it."""
        if self._memtable.rows:
            self._freeze()
        self._wait(0)

        def change(message: ShardManifest) -> bool:
            if message.writer_epoch != self._epoch:
                self._fence(message.writer_epoch)
            message.replay_after_wal_entry_position = self._next - 1
            return True

        change_shard(self._paths, change, sync=self._sync)

    def _record_last_position(self, position: int) -> None:
        """Record the last position of the log in the shard's manifest."""

        def change(message: ShardManifest) -> bool:
            if message.writer_epoch != self._epoch:
                self._fence(message.writer_epoch)
            message.wal_entry_position_last_seen = position
            return True

        change_shard(self._paths, change, sync=self._sync)

    def _replay(self, entries: Sequence[WalEntry], manifest: ShardManifest) -> None:
        """Read rows of the log into memory; all generations except the newest are written to SSTables."""
        current = manifest.current_generation
        first = self._first_generation()
        self._memtable = _MemTable(max(current, first))
        for logged, generation_entries in group_by_generation(entries, current):
            generation = max(logged, first)
            if generation != self._memtable.generation:
                if self._memtable.rows:
                    self._freeze()
                self._memtable = _MemTable(generation)
            rows = pa.Table.from_arrays(
                entries_to_table(generation_entries, self._schema).columns, schema=self._plain
            )
            self._memtable.add(rows, generation_entries[-1].position)
        self._wait(0)

    def _first_generation(self) -> int:
        """Return the first generation of this shard that is not in the table.

        A branch or clone has the compacted generations of the source's shards, but not their files.
        """
        marks = {mark.shard_id.uuid: mark.generation for mark in self._details.compacted_sstables}
        return 1 + marks.get(self._paths.shard.bytes, 0)

    def put(
        self, data: Any, *, schema: pa.Schema | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Insert or update rows; when it returns, they are in the log and visible to readers.

        If several rows have the same key, the last row wins. All rows are one entry of the log, so readers
        see all of them or none.

        Args:
            data: any data that `write_dataset` accepts, with the columns of the table.
            schema: the schema of an iterable of batches.
            metadata: key-value pairs to store with the entry.

        Raises:
            SchemaError: the rows do not fit the table, or a key is null.
            WriterFencedError: another writer has claimed the shard; the rows are not written.
            Exception: an earlier SSTable could not be written; the rows are not written.
            CommitOutcomeUnknownError: the rows may be written: open the shard again and check.
        """
        self._log(logged_rows(self._schema, as_reader(data, schema)), metadata)

    def put_logged(self, rows: pa.Table, metadata: Mapping[str, str] | None = None) -> None:
        """Write results of `logged_rows` or `logged_keys`; raises the errors of `put`."""
        self._log(pa.Table.from_arrays(rows.columns, schema=self._plain).combine_chunks(), metadata)

    def delete(self, keys: Any, *, schema: pa.Schema | None = None) -> None:
        """Delete the rows of keys; keys without a row are allowed.

        Args:
            keys: any data that `write_dataset` accepts, with the key columns; other columns are ignored.
            schema: the schema of an iterable of batches.

        Raises:
            OptionError: the table has no primary key.
            SchemaError, WriterFencedError, CommitOutcomeUnknownError: as `put`.
        """
        self._log(logged_keys(self._schema, as_reader(keys, schema)), None)

    def _log(self, rows: pa.Table, metadata: Mapping[str, str] | None) -> None:
        """Write rows as the next entry, and add them to the rows in memory."""
        self._check()
        if not rows.num_rows:
            return
        check_rows(rows)
        if identity_columns := [
            field.name for field in self._schema.fields if get_identity(field) is not None
        ]:
            raise SchemaError(
                f"a MemWAL cannot fill the identity column {identity_columns[0]!r}: write with insert()"
            )
        settings = self._snapshot.manifest.config
        if table_constraints(settings) or generated_constraints(self._schema):
            live_rows = rows.filter(pc.invert(rows[TOMBSTONE]))
            check_constraints(settings, self._schema, live_rows, self._snapshot.root)
        logged = pa.Table.from_arrays(rows.columns, schema=self._arrow)
        while True:
            data = pack_entry(logged, self._arrow, self._epoch, self._memtable.generation, metadata)
            try:
                # A local store can write the buffer without a copy.
                self._append(data if self._store.is_local else data.to_pybytes())
                break
            except WriterFencedError as error:
                self._open(self._await_flush(error))
            except Exception as error:
                # Only a replay can find out whether the entry was written, so no entry may follow it.
                self._failure = error
                raise
        self._last_rows = self._next - 1
        self.stats.put_count += 1
        self.stats.put_rows += rows.num_rows
        self.stats.wal_entries += 1
        self.stats.wal_bytes += data.size
        table = self._memtable
        table.add(rows, self._next - 1)
        config = self._config
        if (
            table.rows >= config.max_memtable_rows
            or table.nbytes >= config.max_memtable_size
            or len(table.tables) >= config.max_memtable_batches
        ):
            with log_errors("the rows are in the log, but an SSTable was not written"):
                # This call has written its rows: the next call raises the error.
                self._freeze()
                self._wait(config.max_unflushed_memtable_bytes)

    def _append(self, data: bytes) -> None:
        """Write the next entry.

        Raises:
            WriterFencedError: another writer has claimed the shard.
        """
        self._check_epoch_sometimes()
        while not put_new(self._store, self._paths.entry(self._next), data, unique=True, sync=self._sync):
            check_epoch(self._paths, self._epoch)
            entry = read_entry(self._paths, self._next, self._schema)
            if entry.rows is not None or entry.epoch >= self._epoch:
                raise CommitError(
                    f"log position {self._next} of shard {self._paths.shard} is taken, but no other writer "
                    "has claimed the shard: open a new writer"
                )
            self._next += 1  # a sentinel that an earlier writer put after a missing position
        try:
            self._check_epoch_sometimes()  # after a long put, too
        except WriterFencedError:
            self._is_displaced = True  # the entry was written, so this writer cannot write it again
            raise
        self._next += 1

    def _check_epoch_sometimes(self) -> None:
        if time.monotonic() - self._last_epoch_check > _EPOCH_CHECK_SECONDS:
            check_epoch(self._paths, self._epoch)
            self._last_epoch_check = time.monotonic()

    def _freeze(self) -> None:
        """Submit the rows in memory to the background, and start the next generation."""
        full = self._memtable
        self._memtable = _MemTable(full.generation + 1)
        self._waiting.append((full.nbytes, self._flusher.submit(self._write, full)))

    def _wait(self, most: int) -> None:
        """Wait until at most `most` bytes are waiting for background writes.

        Raises:
            Exception: the error of a flush.
        """
        start = time.monotonic()
        while self._waiting and (
            self._waiting[0][1].done() or sum(size for size, _ in self._waiting) > most or most == 0
        ):
            _, future = self._waiting.popleft()
            try:
                future.result()
            except Exception as error:
                self._failure = error
                raise
        self.stats.waited_seconds += time.monotonic() - start

    def _write(self, full: _MemTable) -> None:
        """Write an SSTable and add it to the shard's manifest; runs in the background."""
        if self._failure is not None:
            raise self._failure
        name = new_sstable_name(full.generation)
        root = self._paths.sstable(name)
        rows = pa.concat_tables(full.tables)
        columns = [pa.chunked_array(join(column.chunks), column.type) for column in rows.columns]
        rows = pa.Table.from_arrays(columns, schema=rows.schema)
        version = self._snapshot.manifest.file_version
        key_bytes = write_sstable(TableRef(self._store, root), rows, self._schema, version, self._sync)

        def change(message: ShardManifest) -> bool:
            if message.writer_epoch != self._epoch:
                self._fence(message.writer_epoch)
            if message.current_generation > full.generation:
                return False  # a response was lost: the SSTable is listed already
            entry = message.sstables.add(
                generation=full.generation,
                path=name,
                in_memory_bytes=full.nbytes,
                physical_rows=full.rows,
            )
            if key_bytes:
                entry.primary_key_bytes = key_bytes
            message.current_generation = full.generation + 1
            message.replay_after_wal_entry_position = full.last_position
            message.wal_entry_position_last_seen = max(
                full.last_position, message.wal_entry_position_last_seen
            )
            return True

        change_shard(self._paths, change, sync=self._sync)
        with self._lock:
            self.stats.sstables += 1
            self.stats.sstable_rows += full.rows

    def _fence(self, epoch: int) -> None:
        raise WriterFencedError(
            f"another writer claimed shard {self._paths.shard} of {self._paths.root} (its epoch is {epoch}, "
            f"this writer's is {self._epoch}). Acknowledged writes are stored: open a new writer"
        )

    def flush(self) -> None:
        """Write the rows in memory to an SSTable, and wait until all SSTables are written.

        Raises:
            WriterFencedError: another writer has claimed the shard.
            CommitOutcomeUnknownError, OSError: the store failed; the rows are in the log.
        """
        self._check()
        while True:
            try:
                if self._memtable.rows:
                    self._freeze()
                self._wait(0)
                return
            except WriterFencedError as error:
                self._open(self._await_flush(error))

    def close(self) -> None:
        """Flush and close; further calls fail.

        A failed writer closes without a flush: its rows are in the log.

        Raises:
            WriterFencedError, CommitOutcomeUnknownError, OSError: as `flush`, or the writer's earlier error.
        """
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            self._flusher.shutdown()

    def abandon(self) -> None:
        """Close without a flush; the rows are in the log."""
        self._closed = True
        self._flusher.shutdown(cancel_futures=True)

    def memtable_stats(self) -> dict[str, int]:
        """Return the rows, writes and bytes in memory, the generation, and the SSTables being written."""
        table = self._memtable
        return {
            "row_count": table.rows,
            "batch_count": len(table.tables),
            "estimated_size_bytes": table.nbytes,
            "generation": table.generation,
            "frozen_count": len(self._waiting),
            "frozen_bytes": sum(size for size, _ in self._waiting),
        }

    def _check(self) -> None:
        if isinstance(self._failure, WriterFencedError) and not self._closed:
            self._open(self._await_flush(self._failure))
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise OptionError(f"the writer of shard {self._paths.shard} is closed: open a new writer")

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()
