"""The metadata tables with a row for each version, newest first: versions, history, transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit_options import (
    APPLICATION,
    APPLICATION_NAME,
    COMMIT_MESSAGE,
    STATEMENT,
    USER,
)
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.old_writers import repair_manifest
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.metadata.columns import TEXT_MAP, TEXTS, TIME, Column, MetadataTable, history_version
from spark_lance.table.metadata.operations import (
    live_rows,
    metrics,
    operation_name,
    parameters,
    statement_name,
)
from spark_lance.table.operations.next_version import writer_name
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.ref_files import list_tags
from spark_lance.table.versions.versions import VersionFile, list_versions, read_whole


class _Tags:
    """The tags of the versions of one line, read once on the first request."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._names: dict[int, list[str]] | None = None

    def of(self, version: int) -> list[str]:
        with self._lock:
            if self._names is None:
                self._names = {}
                branch = self._snapshot.manifest.message.branch or None
                for name, tag in list_tags(self._snapshot.main_line).items():
                    if tag["branch"] == branch:
                        self._names.setdefault(tag["version"], []).append(name)
            return self._names.get(version, [])


class VersionRow:
    """A version of the history. Its files are read once, by the first thread that needs them."""

    def __init__(self, snapshot: Snapshot, tags: _Tags, file: VersionFile) -> None:
        self.snapshot = snapshot
        self.number = file.version
        self.older: VersionRow | None = None
        self._tags = tags
        self._file = file
        self._lock = threading.Lock()
        self._manifest: list[Manifest | None] = []
        self._transaction: list[Transaction | None] = []

    @property
    def manifest(self) -> Manifest | None:
        """The manifest; None if a clean-up deleted it after the versions were listed, or if it is torn."""
        with self._lock:
            if not self._manifest:
                snapshot = self.snapshot
                try:
                    result = read_whole(snapshot.store, self._file.path, self._file.naming)
                except FileNotFoundError:
                    result = None
                self._manifest.append(result and repair_manifest(snapshot.table, result))
            return self._manifest[0]

    @property
    def transaction(self) -> Transaction | None:
        """The transaction of the version; None if it has no readable record."""
        manifest = self.manifest
        with self._lock:
            if not self._transaction:
                self._transaction.append(_transaction(self.snapshot, manifest))
            return self._transaction[0]

    @property
    def message(self) -> table_pb2.Manifest | None:
        """The message of the manifest; None without a manifest."""
        manifest = self.manifest
        return None if manifest is None else manifest.message

    @property
    def tags(self) -> list[str]:
        """The tags of the version."""
        return self._tags.of(self.number)


def _transaction(snapshot: Snapshot, manifest: Manifest | None) -> Transaction | None:
    if manifest is None:
        return None
    try:
        return read_transaction(snapshot.table, manifest)
    except FormatError:
        # The record is only for information; the version is valid without it.
        return None


def version_rows(snapshot: Snapshot) -> Iterator[VersionRow]:
    """Yield the version and the earlier versions of its line, newest first."""
    tags = _Tags(snapshot)
    files = list_versions(snapshot.table)
    newest_first = (file for file in reversed(files) if file.version <= snapshot.manifest.version)
    rows = (VersionRow(snapshot, tags, file) for file in newest_first)
    for row, older in pairwise(chain(rows, [None])):
        assert row is not None
        row.older = older
        yield row


def version_time(row: VersionRow) -> datetime | None:
    """Return the commit time of a version; None if its manifest no longer exists."""
    manifest = row.manifest
    return manifest.timestamp if manifest is not None and manifest.message.HasField("timestamp") else None


def _writer(row: VersionRow) -> str | None:
    return None if row.message is None else writer_name(row.message)


def _rows(row: VersionRow) -> int | None:
    if row.message is None:
        return None
    counts = [live_rows(fragment) for fragment in row.message.fragments]
    recorded = [count for count in counts if count is not None]
    return sum(recorded) if len(recorded) == len(counts) else None


def _deleted_rows(row: VersionRow) -> int | None:
    if row.message is None:
        return None
    return sum(fragment.deletion_file.num_deleted_rows for fragment in row.message.fragments)


def _bytes(row: VersionRow) -> int | None:
    if row.message is None:
        return None
    sizes = [file.file_size_bytes for fragment in row.message.fragments for file in fragment.files]
    return None if 0 in sizes else sum(sizes)


def _of_message(value: Any) -> Any:
    """Return a column function that applies `value` to the manifest's message; None without a manifest."""
    return lambda row: None if row.message is None else value(row.message)


def _of_transaction(value: Any) -> Any:
    """Return a column function that applies `value` to the transaction; None without a transaction."""
    return lambda row: None if row.transaction is None else value(row.transaction)


def version_metrics(row: VersionRow) -> dict[str, str] | None:
    """Return the counts of a version's commit; None if they are unknown."""
    transaction, manifest = row.transaction, row.manifest
    if transaction is None or manifest is None:
        return None
    return metrics(transaction, _manifest_before(row), manifest)


def _manifest_before(row: VersionRow) -> Manifest | None:
    """Return the manifest of the directly preceding version; None if it no longer exists."""
    older = row.older if row.older is not None and row.older.number == row.number - 1 else None
    return None if older is None else older.manifest


def _statement(row: VersionRow) -> str | None:
    """Return the statement that committed a version; None if it is unknown."""
    transaction = row.transaction
    if transaction is None:
        return None
    reads_before = transaction.name in ("merge", "project")
    return statement_name(transaction, _manifest_before(row) if reads_before else None)


def _is_blind_append(transaction: Transaction) -> bool | None:
    if transaction.name is None:
        return None
    return transaction.name == "append" and transaction.properties.get(STATEMENT) != "MERGE"


def _is_inline(message: table_pb2.Manifest) -> bool:
    return message.HasField("transaction_section") or message.HasField("transaction_section_deprecated")


_VERSION = Column("version", pa.int64(), lambda row: row.number, "version number")
_TIMESTAMP = Column("timestamp", TIME, version_time, "commit time")
_READ_VERSION = _of_transaction(lambda transaction: history_version(transaction.read_version))

VERSIONS = MetadataTable(
    (
        _VERSION,
        _TIMESTAMP,
        Column("tags", TEXTS, lambda row: row.tags, "its tags"),
        Column("rows", pa.int64(), _rows, "live rows"),
        Column("deleted_rows", pa.int64(), _deleted_rows, "deleted rows that are still stored"),
        Column(
            "fragments",
            pa.int64(),
            _of_message(lambda message: len(message.fragments)),
            "fragments",
        ),
        Column(
            "data_files",
            pa.int64(),
            _of_message(lambda message: sum(len(fragment.files) for fragment in message.fragments)),
            "data files",
        ),
        Column("bytes", pa.int64(), _bytes, "size of its data files"),
        Column(
            "indices",
            pa.int64(),
            lambda row: None if row.manifest is None else len(row.manifest.indices),
            "index segments",
        ),
        Column(
            "data_storage_version",
            pa.string(),
            lambda row: None if row.manifest is None else row.manifest.file_version.text,
            "version of new data files",
        ),
        Column("writer", pa.string(), _writer, "library that committed it, with its release"),
        Column(
            "metadata",
            TEXT_MAP,
            _of_message(lambda message: dict(message.table_metadata)),
            "metadata of the table",
        ),
    ),
    version_rows,
    reads=True,
)

_NOTEBOOK = pa.struct([("notebookId", pa.string())])
_JOB = pa.struct([("jobId", pa.string()), ("jobName", pa.string())])


def _job(transaction: Transaction) -> dict[str, str | None] | None:
    application = transaction.properties.get(APPLICATION)
    name = transaction.properties.get(APPLICATION_NAME)
    return None if application is None else {"jobId": application, "jobName": name}


_user = _of_transaction(lambda transaction: transaction.properties.get(USER))

# The columns of Delta's history, in Delta's order. Columns without a meaning in Lance are null.
HISTORY = MetadataTable(
    (
        _VERSION,
        _TIMESTAMP,
        Column("userId", pa.string(), _user, "the same as `userName`"),
        Column(
            "userName",
            pa.string(),
            _user,
            "user of the Spark session",
        ),
        Column(
            "operation",
            pa.string(),
            _statement,
            "statement: `WRITE`, `MERGE`, `ADD COLUMNS`, ...",
        ),
        Column("operationParameters", TEXT_MAP, _of_transaction(parameters), "parameters of the operation"),
        Column("job", _JOB, _of_transaction(_job), "the Spark application"),
        Column("notebook", _NOTEBOOK, lambda row: None, "always null"),
        Column("clusterId", pa.string(), lambda row: None, "always null"),
        Column("readVersion", pa.int64(), _READ_VERSION, "version that the operation read"),
        Column("isolationLevel", pa.string(), lambda row: None, "always null"),
        Column(
            "isBlindAppend",
            pa.bool_(),
            _of_transaction(_is_blind_append),
            "whether it added rows without reading any",
        ),
        Column("operationMetrics", TEXT_MAP, version_metrics, "counts such as `numOutputRows`, as text"),
        Column(
            "userMetadata",
            pa.string(),
            _of_transaction(lambda transaction: transaction.properties.get(COMMIT_MESSAGE)),
            "the option `userMetadata` or `commit_message`",
        ),
        Column("engineInfo", pa.string(), _writer, "library that committed it, with its release"),
        Column("made_current_at", TIME, version_time, "Iceberg's name of `timestamp`"),
        Column("snapshot_id", pa.int64(), lambda row: row.number, "Iceberg's name of `version`"),
        Column(
            "parent_id",
            pa.int64(),
            lambda row: None if row.older is None else row.older.number,
            "previous version",
        ),
        Column("is_current_ancestor", pa.bool_(), lambda row: True, "always true"),
    ),
    version_rows,
    reads=True,
)

TRANSACTIONS = MetadataTable(
    (
        _VERSION,
        _TIMESTAMP,
        Column(
            "uuid",
            pa.string(),
            _of_transaction(lambda transaction: transaction.uuid),
            "id of the transaction",
        ),
        Column("read_version", pa.int64(), _READ_VERSION, "version that the operation read"),
        Column("operation", pa.string(), _of_transaction(operation_name), "Lance's name of the operation"),
        Column(
            "properties",
            TEXT_MAP,
            _of_transaction(lambda transaction: dict(transaction.properties)),
            "properties of the commit, such as its message",
        ),
        Column(
            "tag",
            pa.string(),
            _of_transaction(lambda transaction: transaction.message.tag or None),
            "tag in the transaction's record",
        ),
        Column(
            "file",
            pa.string(),
            _of_message(lambda message: message.transaction_file or None),
            "name of its file in `_transactions`",
        ),
        Column("inline", pa.bool_(), _of_message(_is_inline), "whether the manifest has a copy"),
    ),
    version_rows,
    reads=True,
)
