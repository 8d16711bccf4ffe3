"""Write rows to their shards, in one process with one writer per shard."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_lance.errors import CommitOutcomeUnknownError
from spark_lance.memwal.entries import logged_keys, logged_rows
from spark_lance.memwal.sharding import Router
from spark_lance.memwal.writer import ShardWriter, check_loggable
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.writing.inputs import as_reader

_THREADS = 8


@dataclass
class _Call:
    """Rows that a thread waits for, and the outcome of their write."""

    rows: pa.Table
    is_done: bool = False
    failure: Exception | None = None


class RoutedWriter:
    """Writes rows to their shards, as the only writer of these shards. Made by `LanceDataset.upsert_log`.

    The rows of one call are one entry in each shard's log: readers see all of a shard's rows or none. If a
    call fails, some shards may have its rows; it is safe to repeat the call.

    Thread-safe. Rows that threads put during another write are combined into the next entry of each shard, in
    the order of the calls. Each call returns when its rows are in the logs.
    """

    def __init__(self, snapshot: Snapshot, config: Mapping[str, Any] | None = None) -> None:
        self._snapshot = snapshot
        self._config = dict(config or {})
        self._router = Router.of(check_loggable(snapshot), snapshot.schema)
        self._shards = self._router.shards(snapshot.table)
        self._writers: dict[uuid.UUID, ShardWriter] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lance-shards")
        self._waiting: list[_Call] = []
        self._waiting_lock = threading.Lock()
        # The thread that holds it writes all waiting rows, including those of other threads.
        self._turn = threading.RLock()

    @property
    def writers(self) -> Mapping[uuid.UUID, ShardWriter]:
        """The open writers by shard id."""
        return self._writers

    def put(self, data: Any, *, schema: pa.Schema | None = None) -> None:
        """Insert or update rows; arguments and errors are as in `ShardWriter.put`."""
        self._write_in_turn(logged_rows(self._snapshot.schema, as_reader(data, schema)))

    def delete(self, keys: Any, *, schema: pa.Schema | None = None) -> None:
        """Delete the rows of keys; arguments and errors are as in `ShardWriter.delete`."""
        self._write_in_turn(logged_keys(self._snapshot.schema, as_reader(keys, schema)))

    def _write_in_turn(self, rows: pa.Table) -> None:
        call = _Call(rows)
        with self._waiting_lock:
            self._waiting.append(call)
        with self._turn:
            if not call.is_done:
                with self._waiting_lock:
                    calls, self._waiting = self._waiting, []
                self._write(calls)
        if call.failure is not None:
            raise call.failure

    def _write(self, calls: Sequence[_Call]) -> None:
        """Write the rows of calls as one entry of each shard, and store the outcome in the calls."""
        failure: Exception | None = None
        try:
            # The rows have the types of the table, because the hash of a value depends on its type.
            tables = [call.rows for call in calls]
            rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
            parts = [(self._writer(value), part) for value, part in self._router.split(rows)]
            if len(parts) > 1:
                futures = [self._pool.submit(writer.put_logged, part) for writer, part in parts]
                failures = [error for future in futures if (error := future.exception()) is not None]
                if failures:
                    raise failures[0]
            else:
                for writer, part in parts:
                    writer.put_logged(part)
        except Exception as error:  # noqa: BLE001 (each call raises it)
            failure = error
        except BaseException:
            failure = CommitOutcomeUnknownError(
                "the thread that wrote these rows was interrupted: they may be in some logs; put them again"
            )
            raise
        finally:
            for call in calls:
                call.is_done, call.failure = True, failure

    def _writer(self, value: bytes) -> ShardWriter:
        shard = self._shards.get(value)
        if shard is None:
            at = self._snapshot
            shard = self._router.shard_for(at.table, value, self._shards)
            self._shards[value] = shard
        writer = self._writers.get(shard)
        if writer is None:
            writer = self._writers[shard] = ShardWriter(self._snapshot, shard, self._config)
        return writer

    def flush(self) -> None:
        """Flush all shards; raises the errors of `ShardWriter.flush`."""
        with self._turn:
            list(self._pool.map(lambda writer: writer.flush(), list(self._writers.values())))

    def close(self) -> None:
        """Flush and close all writers; raises the first error of `ShardWriter.close`."""
        failures = []
        with self._turn:
            for writer in self._writers.values():
                try:
                    writer.close()
                except Exception as error:  # noqa: BLE001 (the others are closed first, then it is raised)
                    failures.append(error)
            self._pool.shutdown()
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """Close all writers without a flush; the rows are in the logs."""
        with self._turn:
            for writer in self._writers.values():
                writer.abandon()
            self._pool.shutdown()

    def __enter__(self) -> RoutedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()
