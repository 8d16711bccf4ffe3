"""Stage the rows of tasks for the shards, and append them to the logs exactly once.

    {root}/_wal_staging/{job}/{task}-{shard value, hex}.arrow     an Arrow stream: rows of a task for a shard
    {root}/_wal_staging/{job}/{32 hex digits}.lease               rewritten periodically while the job runs
    {root}/_wal_staging/{digest of a query's id}/{epoch}.done     all shards have this micro-batch

Tasks write concurrently, and may run twice; only the rows of successful attempts are logged. Then one process
appends them to a shard, as the shard's writer, in one entry with the id of the query and its epoch. So a
shard has all of a write or nothing, and a retry skips shards that have the write. A write of more than 256 MB
for one shard has several entries. A shard that has only some of them gets all of them again.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from spark_lance.errors import FormatError, WriterFencedError
from spark_lance.file.base.limits import check_arrow_stream, decoding
from spark_lance.io.locations import join
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import OutputFile, Store
from spark_lance.io.stored_object import StoredObject
from spark_lance.memwal.names import ShardPaths, parse_numbers
from spark_lance.memwal.sharding import Router
from spark_lance.memwal.writer import ShardWriter
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.snapshot import Snapshot

logger = logging.getLogger(__name__)

STAGING_DIR = "_wal_staging"
LEASE_SECONDS = 300.0
_LEASE = ".lease"
_ENTRY_BYTES = 256 << 20
_HEAD_BYTES = 64 << 10
_CLAIM_RETRIES = RetryPolicy(attempts=3, base_seconds=0.2)
# Rows in logs are read again for every micro-batch, so streams write an SSTable after fewer rows.
_STREAM_ROWS = 20_000
_QUERY, _EPOCH, _LAST = "spark_lance.query", "spark_lance.epoch", "spark_lance.last"


@dataclass(frozen=True)
class WriteId:
    """The identity of an exactly-once write: the id of a query or job, and the number of the write."""

    query: str
    epoch: int


@dataclass(frozen=True)
class StagedPiece:
    """Rows of one task for one shard.

    Attributes:
        value: the value of the shard, as in its manifest.
        path: the path of the file.
        rows: the number of rows.
    """

    value: bytes
    path: str
    rows: int


class _Output:
    """A file object that lets pyarrow write to an output of a store."""

    def __init__(self, output: OutputFile) -> None:
        self._output = output
        self.closed = False

    def write(self, data: Any) -> int:
        self._output.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Lease:
    """Protects the staged rows of a running job from `collect_wal`; a context manager.

    A thread rewrites the lease every `LEASE_SECONDS`. A clean-up deletes staged rows only if the job has no
    lease younger than three times this period, and all files in its folder are old. The lease is not deleted
    at the end: `delete_staged` deletes it with the rows.

    Args:
        table: the table whose log gets the rows.
        job: the name of the job's folder.
        at_once: whether to write the lease at the start; if not, it is written after `LEASE_SECONDS`.
    """

    def __init__(self, table: TableRef, job: str, *, at_once: bool = True) -> None:
        self._store = table.store
        self._path = table.path(STAGING_DIR, job, f"{uuid.uuid4().hex}{_LEASE}")
        self._at_once = at_once
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lance-lease", daemon=True)

    def __enter__(self) -> Lease:
        if self._at_once:
            self._store.put(self._path, b"")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop renewing the lease."""
        self._stop_event.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._stop_event.wait(LEASE_SECONDS):
            try:
                self._store.put(self._path, b"")
            except OSError as error:
                logger.warning("the lease of staged rows %s is not renewed: %s", self._path, error)


def collectable_stages(table: TableRef, limit: datetime) -> list[StoredObject]:
    """Return the staged files of dead jobs, whose rows were not logged.

    Args:
        table: the table.
        limit: only jobs whose files are all older than this time.
    """
    jobs: dict[str, list[StoredObject]] = {}
    for entry in table.store.list_to_delete(table.path(STAGING_DIR), table.root, recursive=True):
        if entry.name.endswith((".arrow", _LEASE)):
            jobs.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    expired = datetime.now(timezone.utc) - timedelta(seconds=3 * LEASE_SECONDS)
    dead = (
        objects
        for objects in jobs.values()
        if all(_is_before(entry, limit) for entry in objects)
        and all(_is_before(entry, expired) for entry in objects if entry.name.endswith(_LEASE))
    )
    return [entry for objects in dead for entry in objects]


def _is_before(entry: StoredObject, moment: datetime) -> bool:
    return entry.modified is not None and entry.modified < moment


class Stage:
    """Writes the rows of a task to one staged file per shard.

    Args:
        table: the table whose log gets the rows.
        router: determines the shards.
        job: the name of the job's folder.
    """

    def __init__(self, table: TableRef, router: Router, job: str) -> None:
        self._store, self._router = table.store, router
        self._lease = Lease(table, job, at_once=False).__enter__()
        self._directory = table.path(STAGING_DIR, job)
        self._task = uuid.uuid4().hex
        self._open: dict[bytes, tuple[pa.RecordBatchWriter, OutputFile, str]] = {}
        self._rows: dict[bytes, int] = {}

    def write(self, rows: pa.Table) -> None:
        """Write rows, which must have the columns of the log."""
        for value, part in self._router.split(rows):
            if value not in self._open:
                path = join(self._directory, f"{self._task}-{value.hex() or 'empty'}.arrow")
                output = self._store.create(path)
                stream = pa.ipc.new_stream(pa.PythonFile(_Output(output), "w"), rows.schema)
                self._open[value] = stream, output, path
            self._open[value][0].write_table(part)
            self._rows[value] = self._rows.get(value, 0) + part.num_rows

    def finish(self) -> list[StagedPiece]:
        """Finish the files and return their descriptions."""
        self._lease.end()
        pieces = []
        for value, (stream, output, path) in self._open.items():
            stream.close()
            output.close()
            pieces.append(StagedPiece(value, path, self._rows[value]))
        return pieces

    def abort(self) -> None:
        """Discard the files."""
        self._lease.end()
        for _, output, _ in self._open.values():
            output.abort()


def pieces_by_value(pieces: Iterable[StagedPiece]) -> dict[bytes, list[StagedPiece]]:
    """Return the pieces by shard value, in order."""
    result: dict[bytes, list[StagedPiece]] = {}
    for piece in pieces:
        result.setdefault(piece.value, []).append(piece)
    return result


def append_staged(
    snapshot: Snapshot,
    shard: uuid.UUID,
    pieces: Sequence[StagedPiece],
    write_id: WriteId | None = None,
    settings: Mapping[str, Any] | None = None,
    store: Store | None = None,
) -> int:
    """Append staged rows to the log of a shard; return their number, or 0 if the shard has them already.

    This claims the shard, so its previous writer is fenced. With `write_id`, it claims the shard again if
    another writer fences it.

    Args:
        snapshot: a version of the table.
        shard: the id of the shard.
        pieces: the staged pieces for the shard, in order.
        write_id: the identity of the write; None appends in any case.
        settings: the settings of the shard's writer.
        store: the store of the pieces; the table's store by default.

    Raises:
        WriterFencedError: other writers claimed the shard concurrently, and did not log this write.
        CommitError, FormatError, OSError: see `ShardWriter`.
    """
    limits = {"max_memtable_rows": _STREAM_ROWS, **(settings or {})}
    paths = ShardPaths(snapshot.table, shard)
    for wait in (*_CLAIM_RETRIES.delays(random.random), None):
        try:
            writer = ShardWriter(snapshot, shard, limits)
            try:
                if write_id is not None and _is_logged(paths, write_id):
                    return 0
                return _append_tables(writer, _read_pieces(store or snapshot.store, pieces), write_id)
            finally:
                writer.abandon()
        except WriterFencedError:
            if write_id is None:
                raise
            # Another process may have done the same work, and its log entries may be collected already.
            if has_epoch(snapshot.table, write_id) or _is_logged(paths, write_id):
                return 0
            if wait is None:
                raise
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _append_tables(writer: ShardWriter, tables: Iterable[pa.Table], write_id: WriteId | None) -> int:
    total = 0
    pending: pa.Table | None = None
    for table in tables:
        if pending is not None:
            _put_with_metadata(writer, pending, write_id, last=False)
        pending = table
        total += table.num_rows
    if pending is not None:
        _put_with_metadata(writer, pending, write_id, last=True)
    return total


def _put_with_metadata(writer: ShardWriter, rows: pa.Table, write_id: WriteId | None, *, last: bool) -> None:
    metadata = None
    if write_id is not None:
        metadata = {_QUERY: write_id.query, _EPOCH: str(write_id.epoch), _LAST: str(last).lower()}
    writer.put_logged(rows, metadata)


def _read_pieces(store: Store, pieces: Sequence[StagedPiece]) -> Iterator[pa.Table]:
    """Yield the rows of pieces in tables of about `_ENTRY_BYTES`."""
    pending: list[pa.Table] = []
    size = 0
    for piece in pieces:
        data = store.map(piece.path) or pa.py_buffer(store.read(piece.path))
        rows = 0
        for batch in _read_batches(data, piece.path):
            rows += batch.num_rows
            pending.append(pa.Table.from_batches([batch]))
            size += batch.nbytes
            if size >= _ENTRY_BYTES:
                yield pa.concat_tables(pending)
                pending, size = [], 0
        if rows != piece.rows:
            raise FormatError(f"the staged file has {rows} rows, but {piece.rows} were written", piece.path)
    if pending:
        yield pa.concat_tables(pending)


def _read_batches(data: pa.Buffer, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a piece; raises FormatError if the bytes are damaged or need too much memory."""
    with decoding(path):
        try:
            check_arrow_stream(memoryview(data))
            with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
                while (batch := next(reader, None)) is not None:
                    batch.validate(full=True)
                    yield batch
        except FormatError as error:
            raise error.at(path=path) from error
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"staged rows are damaged: {error}", path) from error


def _is_logged(paths: ShardPaths, write_id: WriteId) -> bool:
    """Return whether the log of a shard has all of a write; searches backwards to the query's last entry."""
    for position in reversed(parse_numbers(list(paths.store.list(paths.entries)))):
        path = paths.entry(position)
        try:
            size = paths.store.size(path)
            (head,) = paths.store.read_ranges(path, [(0, min(size, _HEAD_BYTES))])
        except FileNotFoundError:
            continue
        try:
            with pa.ipc.open_stream(pa.BufferReader(head)) as reader:
                metadata = reader.schema.metadata or {}
        except (pa.ArrowException, OSError):
            continue
        if metadata.get(_QUERY.encode()) != write_id.query.encode():
            continue
        try:
            epoch = int(metadata.get(_EPOCH.encode(), b"-1"))
        except ValueError as error:
            raise FormatError(
                f"the write number of a log entry is missing or invalid: {error}", path
            ) from error
        if epoch != write_id.epoch:
            return epoch > write_id.epoch
        if metadata.get(_LAST.encode()) == b"true":
            return True
    return False


def _records_folder(root: str, query: str) -> str:
    return join(root, STAGING_DIR, hashlib.sha256(query.encode()).hexdigest()[:32])


def _recorded_epochs(table: TableRef, query: str) -> list[int]:
    names = table.store.list(_records_folder(table.root, query))
    return sorted(int(name[:-5]) for name in names if name.endswith(".done") and name[:-5].isdigit())


def has_epoch(table: TableRef, write_id: WriteId) -> bool:
    """Return whether all shards have a write, or a later write of the same query."""
    return any(epoch >= write_id.epoch for epoch in _recorded_epochs(table, write_id.query))


def record_epoch(table: TableRef, write_id: WriteId) -> None:
    """Record that all shards have a write, and delete the records of earlier writes."""
    directory = _records_folder(table.root, write_id.query)
    table.store.put(join(directory, f"{write_id.epoch:020d}.done"), b"")
    earlier = [epoch for epoch in _recorded_epochs(table, write_id.query) if epoch < write_id.epoch]
    table.store.delete_many((join(directory, f"{epoch:020d}.done") for epoch in earlier), table.root)


def delete_staged(table: TableRef, job: str) -> None:
    """Delete the staged files and the leases of a job."""
    directory = table.path(STAGING_DIR, job)
    _delete_files(
        table, [item.path for item in table.store.list_to_delete(directory, table.root)], {directory}
    )


def delete_pieces(table: TableRef, pieces: Iterable[StagedPiece]) -> None:
    """Delete pieces after their rows were logged."""
    paths = [piece.path for piece in pieces]
    _delete_files(table, paths, {path.rpartition("/")[0] for path in paths})


def _delete_files(table: TableRef, paths: Sequence[str], directories: Iterable[str]) -> None:
    table.store.delete_many(paths, table.root)
    for directory in directories:
        table.store.remove_empty(directory, table.root)
