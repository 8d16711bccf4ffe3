"""The driver's part of row-level changes: combine the answers of the tasks, and commit them once.

Each attempt pins a version, a Spark job finds rows in it and writes new rows, and one transaction commits
everything. The commit merges concurrent changes of other writers to other rows. On a conflict, the
attempt's files are deleted and the next attempt starts from the newest version.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import CardinalityError, CommitError, LanceError, OptionError
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.spark.table.row_tasks import TaskAnswer
from spark_lance.table.commits.commit import retry_operation
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet, row_address, split_address
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.rows.key_lookup import KeyFilter, key_filter
from spark_lance.table.rows.row_rewrites import commit_moves
from spark_lance.table.writing.write import delete_operation_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


RETRIES = 10
RETRY_TIMEOUT = timedelta(minutes=30)
_METRICS = (
    "num_affected_rows long, num_updated_rows long, num_deleted_rows long, num_inserted_rows long, "
    "bytes_written long, version long"
)


@dataclass(frozen=True)
class ChangeResult:
    """The result of an operation.

    Attributes:
        version: the version of the table with the result; the current one if nothing changed.
        updated, deleted, inserted: numbers of rows.
        bytes_written: bytes of new data files and deletion files.
    """

    version: int
    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    bytes_written: int = 0

    @property
    def affected(self) -> int:
        """The number of rows that changed."""
        return self.updated + self.deleted + self.inserted

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the counts as a DataFrame of one row, with Delta's column names."""
        row = (self.affected, self.updated, self.deleted, self.inserted, self.bytes_written, self.version)
        return spark.createDataFrame([row], _METRICS)


@dataclass(frozen=True)
class Attempt:
    """One attempt of an operation, on one version.

    Attributes:
        base: the table at that version.
        operation: 16 hexadecimal digits in the names of all data files that the attempt writes.
    """

    base: LanceDataset
    operation: str

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self.base.manifest

    def ref(self) -> SnapshotRef:
        """Return a reference to the version that tasks can load."""
        return self.base.snapshot.ref()

    def run(self, job: Callable[[], list[TaskAnswer]]) -> list[TaskAnswer]:
        """Run a Spark job; if it fails, delete the data files that its tasks wrote."""
        try:
            return job()
        except BaseException:
            self.delete_files()
            raise

    def delete_files(self) -> None:
        """Delete all data files of this uncommitted attempt."""
        delete_operation_files(self.base.snapshot.table, self.operation)

    def delete_rows(self, answers: Sequence[TaskAnswer], condition: str) -> ChangeResult:
        """Commit a Delete of the rows that tasks found.

        Raises:
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        rows = _union_of_rows(answers, repeated=True)
        deleted = rows.num_rows
        return self._commit_delete(RowChanges(self.base.snapshot, rows), condition, deleted)

    def delete_all(self, changes: RowChanges) -> ChangeResult:
        """Commit a Delete of all rows; errors as `delete_rows`."""
        return self._commit_delete(changes, "true", changes.rows.num_rows)

    def _commit_delete(self, changes: RowChanges, condition: str, deleted: int) -> ChangeResult:
        if not changes.rows:
            return ChangeResult(self.manifest.version)
        committed = commit_row_changes(
            changes, lambda outcome: delete_message(outcome.updated, outcome.removed, condition)
        )
        return ChangeResult(committed.version, deleted=deleted, bytes_written=_deletion_file_bytes(changes))

    def change_rows(
        self,
        answers: Sequence[TaskAnswer],
        field_ids: Iterable[int],
        key_ids: Sequence[int] | None = None,
        *,
        inserts: bool = False,
        repeated: bool = False,
    ) -> ChangeResult:
        """Commit an Update with the rows that tasks moved, inserted and deleted.

        Args:
            answers: answers of the tasks.
            field_ids: ids of the fields whose values changed.
            key_ids: ids of the fields in the tasks' key filters; None without key filters.
            inserts: whether the operation inserts rows whose keys are not in the table.
            repeated: whether a row may match several times.

        Raises:
            MergeError: several source rows would change the same table row.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        added = [table_pb2.DataFragment.FromString(data) for answer in answers for data in answer.fragments]
        counts = {kind: sum(a.counts[kind] for a in answers) for kind in ("update", "insert", "delete")}
        try:
            rows = _union_of_rows(answers, repeated)
            _check_counts(added, counts)
        except LanceError:
            self.delete_files()
            raise
        if not rows and not added:
            return ChangeResult(self.manifest.version)
        changes = RowChanges(self.base.snapshot, rows)
        committed = commit_moves(
            changes,
            added,
            field_ids,
            SYSTEM_ENV,
            _merge_key_filters(self.manifest, answers, key_ids) if inserts else None,
        )
        bytes_written = sum(int(file.file_size_bytes) for fragment in added for file in fragment.files)
        deleted = rows.num_rows - counts["update"]
        return ChangeResult(
            committed.version,
            counts["update"],
            deleted,
            counts["insert"],
            bytes_written + _deletion_file_bytes(changes),
        )


def policy(conflictRetries: int, retryTimeout: timedelta) -> RetryPolicy:
    """Return the retry policy of an operation after conflicts with other writers.

    Raises:
        OptionError: an argument is negative.
    """
    if conflictRetries < 0 or retryTimeout < timedelta(0):
        raise OptionError("conflictRetries and retryTimeout cannot be negative")
    return RetryPolicy(attempts=conflictRetries + 1, total_seconds=retryTimeout.total_seconds())


def run_attempts(
    table: LanceDataset, attempt: Callable[[Attempt], ChangeResult], reruns: RetryPolicy
) -> ChangeResult:
    """Run an operation on a version, and again on the newest one after each conflict.

    Raises:
        RetryableConflictError: every attempt conflicted with other writers.
        UnsupportedFormatError: the table uses a feature that this package cannot write.
    """

    def run_attempt(at: Snapshot) -> ChangeResult:
        return attempt(Attempt(table.at(at.manifest), secrets.token_hex(8)))

    return retry_operation(table.snapshot, run_attempt, reruns)


def may_repeat(answers: Sequence[TaskAnswer]) -> bool:
    """Return whether inserted rows may share a primary key: equal hashes, or a task without hashes."""
    hashes = np.concatenate(
        [np.empty(0, np.uint64), *(np.frombuffer(a.inserted, np.uint64) for a in answers)]
    )
    return any(answer.uncounted for answer in answers) or len(np.unique(hashes)) < len(hashes)


def _union_of_rows(answers: Sequence[TaskAnswer], repeated: bool) -> RowSet:
    """Return the union of the rows of all tasks.

    Raises:
        MergeError: a row matched twice, in one task or in two.
    """
    rows: dict[int, BitMap] = {}
    for answer in answers:
        if answer.doubled is not None:
            raise _duplicate_match_error(answer.doubled)
        for number, data in answer.rows.items():
            more = BitMap.deserialize(data)
            existing = rows.get(number)
            if existing is None:
                rows[number] = more
                continue
            if not repeated and (both := existing & more):
                raise _duplicate_match_error(row_address(number, both.min()))
            existing |= more
    return RowSet(dict(sorted(rows.items())))


def _duplicate_match_error(address: int) -> CardinalityError:
    fragment, offset = split_address(address)
    return CardinalityError(
        "several rows of the source match one row of the table, which may be changed once at most: row "
        f"{offset} of fragment {fragment}. Make the source's keys unique, or the clauses' conditions "
        "exclusive"
    )


def _check_counts(added: Sequence[table_pb2.DataFragment], counts: dict[str, int]) -> None:
    """Check that the written files have as many rows as the tasks moved and inserted."""
    row_count = sum(fragment.physical_rows for fragment in added)
    if row_count != counts["update"] + counts["insert"]:
        raise CommitError(
            f"tasks changed {counts['update']} rows and inserted {counts['insert']}, but stored {row_count}, "
            "so nothing was committed; this is a bug"
        )


def _merge_key_filters(
    manifest: Manifest, answers: Sequence[TaskAnswer], key_ids: Sequence[int] | None
) -> KeyFilter:
    """Return the filter of the keys of inserted rows.

    Without known keys, the filter matches every key, so that every concurrent insert conflicts. (Lance table
    format, update, KeyExistenceFilter.)
    """
    if key_ids is None:
        whole = transaction_pb2.Transaction.KeyExistenceFilter()
        bloom = whole.bloom
        bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability = b"\xff" * 32, 256, 1, 1.0
        return whole
    filters = [answer.keys for answer in answers if answer.keys is not None]
    types = {field.id: field.arrow_type() for field in manifest.schema.fields}
    filter = key_filter(key_ids, [pa.chunked_array([], types[number]) for number in key_ids])
    if filters:
        bits = reduce(np.bitwise_or, [np.frombuffer(keys, np.uint8) for keys in filters])
        filter.bloom.bitmap = bits.tobytes()
    return filter


def _deletion_file_bytes(changes: RowChanges) -> int:
    return sum(changes.written.values())
