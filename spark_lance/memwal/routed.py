"""Writing rows to the shards that they belong to, in one process: a writer per shard."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_lance.memwal.logged import logged_keys, logged_rows
from spark_lance.memwal.sharding import Router
from spark_lance.memwal.writer import ShardWriter, check_loggable
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.writing.inputs import as_reader

__all__ = ["RoutedWriter"]

_THREADS = 8


class RoutedWriter:
    """Writes rows to their shards, as the only writer of these. Made by `LanceDataset.upsert_log`.

    Rows of one call are one entry of each shard's log: of a shard readers see all of them or none. If a call
    fails, some shards may have its rows; repeating the call does no harm.
    """

    def __init__(self, snapshot: Snapshot, config: Mapping[str, Any] | None = None) -> None:
        self._snapshot = snapshot
        self._config = dict(config or {})
        self._router = Router.of(check_loggable(snapshot), snapshot.schema)
        self._shards = self._router.shards(snapshot.store, snapshot.root)
        self._writers: dict[uuid.UUID, ShardWriter] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lance-shards")

    @property
    def writers(self) -> Mapping[uuid.UUID, ShardWriter]:
        """The writers that are open, by shard."""
        return self._writers

    def put(self, data: Any, *, schema: pa.Schema | None = None) -> None:
        """Insert or update rows; arguments and errors as of `ShardWriter.put`."""
        self._each(logged_rows(self._snapshot.schema, as_reader(data, schema)))

    def delete(self, keys: Any, *, schema: pa.Schema | None = None) -> None:
        """Delete the rows of keys; arguments and errors as of `ShardWriter.delete`."""
        self._each(logged_keys(self._snapshot.schema, as_reader(keys, schema)))

    def _each(self, rows: pa.Table) -> None:
        # In the types of the table: the hash of a value depends on its type.
        parts = [(self._writer(value), part) for value, part in self._router.split(rows)]
        calls = [self._pool.submit(writer.put_logged, part) for writer, part in parts]
        failures = [error for call in calls if (error := call.exception()) is not None]
        if failures:
            raise failures[0]

    def _writer(self, value: bytes) -> ShardWriter:
        shard = self._shards.get(value)
        if shard is None:
            at = self._snapshot
            shard = self._router.shard_for(at.store, at.root, value, self._shards)
            self._shards[value] = shard
        writer = self._writers.get(shard)
        if writer is None:
            writer = self._writers[shard] = ShardWriter(self._snapshot, shard, self._config)
        return writer

    def flush(self) -> None:
        """Flush all shards; errors as of `ShardWriter.flush`."""
        list(self._pool.map(lambda writer: writer.flush(), list(self._writers.values())))

    def close(self) -> None:
        """Flush and end; errors as of `ShardWriter.close`, of the first shard that has one."""
        failures = []
        for writer in self._writers.values():
            try:
                writer.close()
            except Exception as error:  # noqa: BLE001 (the others are closed first, then it is raised)
                failures.append(error)
        self._pool.shutdown()
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """End without a flush; what was put is in the logs."""
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
