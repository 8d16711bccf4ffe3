"""Writing DataFrames: tasks write data files, the driver commits them as one version.

    writer()   driver   plans and checks the write (`_plan`); stores nothing
    write()    task     writes rows to data files with unique names; the message has their fragments
    commit()   driver   makes the fragments of all tasks one version, or deletes their files
    abort()    driver   deletes the files of all tasks if one failed; the job's id is in their names

Spark runs the four in different processes and copies the writer between them. Only the messages carry data
from one to the next.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_lance.errors import (
    AlreadyCommittedError,
    AtomicPutUnsupportedError,
    CommitError,
    OptionError,
)
from spark_lance.index.pruners import index_pruners
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.sink.write_schema import plan_rows
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.write import LanceCommitMessage, WrittenRows
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import WritePlan, commit_or_discard
from spark_lance.table.versions.resolve import resolve
from spark_lance.table.writing.write import delete_fragment_files, delete_operation_files

logger = logging.getLogger(__name__)


class LanceWriter(DataSourceArrowWriter):
    """Appends rows to a table, or overwrites all or some of its rows. Creates the table if it does not exist.

    `write_schema` decides how the table's columns change. Columns of a new table are nullable.

    Args:
        options: options of the write.
        schema: schema of the rows.
        overwrite: whether the rows replace the table's content, or the part of it that an option selects.
        partitions: the setting `partition-fields` of a table that the write creates or replaces.

    Raises:
        SchemaError: the rows do not fit the table, or cannot be stored. The message lists all differences.
        OptionError: an option does not fit the table, the schema or the mode.
        ExpressionError: the condition of `replaceWhere` does not fit the table.
        UnsupportedFormatError: the table has a feature that this package cannot write.
        AtomicPutUnsupportedError: the store cannot commit safely.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: st.StructType,
        overwrite: bool,
        partitions: str | None = None,
    ) -> None:
        if options.mode == "upsert":
            raise OptionError(
                "option 'mode' = 'upsert' is for streams: LanceTable.upsertLog().upsert(frame) upserts a "
                "batch, and so do df.mergeInto and LanceTable.merge, without logs"
            )
        store, root = open_store(options.path, options.storage)
        _check_store(store)
        if options.branch is not None:
            root = resolve(TableRef(store, root), (options.branch, None)).root
        self._table = TableRef(store, root)
        self._options = options
        self._job = secrets.token_hex(8)
        self._names, self._plan = plan_rows(self._table, options, schema, overwrite, partitions)

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self._table.store

    @property
    def plan(self) -> WritePlan:
        """The plan of the write."""
        return self._plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommitMessage:
        """Write the rows of one task to data files.

        Raises:
            SchemaError: a value does not fit its column, or a row does not meet the condition of
                `replaceWhere`.
        """
        return self.task_rows().write(iterator)

    def task_rows(self) -> WrittenRows:
        """Return the writer of the rows of one task."""
        return WrittenRows(
            self._table,
            self._names,
            self._plan.schema,
            self._plan.version,
            self._plan.check,
            self._options.max_rows_per_file,
            self._options.max_bytes_per_file,
            self._job,
            self._plan.partitions,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks as a version of the table.

        An append without rows creates no version, unless the options `txnAppId` and `txnVersion` require a
        record of it. An overwrite without rows creates an empty table. If `txnAppId` has committed this
        `txnVersion` or a higher one before, this only deletes the files.

        Raises:
            CommitOutcomeUnknownError: the version may exist. No file was deleted.
            CommitError, SchemaError: nothing was committed. The files were deleted.
        """
        answers = [message for message in messages if isinstance(message, LanceCommitMessage)]
        self.commit_files(answers, self._plan, self._once())

    def commit_files(
        self, messages: Sequence[LanceCommitMessage], plan: WritePlan, write_id: IdempotentWrite | None
    ) -> None:
        """Commit the files of all tasks as a version of the table. Raises the errors of `commit`.

        Args:
            messages: messages of all tasks.
            plan: the plan by which the files were written.
            write_id: name of the job and number of this write, if it must be committed only once.
        """
        fragments = [data for message in messages for data in message.fragments]
        with one_line():
            try:
                _check_rows(messages)
            except CommitError:
                delete_fragment_files(self._table, fragments)
                raise
            options = self._options
            with commit_options(
                retry=self._retry_policy(), message=options.commit_message, properties=options.properties
            ):
                try:
                    commit_or_discard(
                        self._table,
                        plan,
                        fragments,
                        write_id=write_id,
                        pruner_factory=index_pruners,
                    )
                except AlreadyCommittedError as skipped:  # the files were deleted
                    logger.info("%s", skipped)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of all tasks, including killed tasks, unless a commit has been tried.

        Spark also calls this after `commit` has failed, in another process. Then every task has a message,
        and `commit` has deleted everything that was certainly not committed. A commit was certainly not tried
        if the message of a task is None, because the task did not finish.
        """
        answers = [message for message in messages if isinstance(message, LanceCommitMessage)]
        if len(answers) < len(messages):
            fragments = [data for message in answers for data in message.fragments]
            delete_fragment_files(self._table, fragments)
            delete_operation_files(self._table, self._job)

    def _once(self) -> IdempotentWrite | None:
        name, number = self._options.txnAppId, self._options.txnVersion
        return None if name is None or number is None else IdempotentWrite(name, number)

    def _retry_policy(self) -> RetryPolicy:
        default = RetryPolicy()
        retries, seconds = self._options.commit_retries, self._options.commit_timeout
        return replace(
            default,
            attempts=default.attempts if retries is None else retries + 1,
            total_seconds=default.total_seconds if seconds is None else seconds,
        )


def _check_store(store: Store) -> None:
    if not store.can_create:
        raise AtomicPutUnsupportedError(
            f"tables on {store.protocol}:// cannot be written: it has no atomic create-if-absent"
        )


def _check_rows(messages: Sequence[LanceCommitMessage]) -> None:
    """Check that the files of the tasks have as many rows as Spark passed to the tasks."""
    received = sum(message.rows for message in messages)
    row_count = sum(
        table_pb2.DataFragment.FromString(data).physical_rows
        for message in messages
        for data in message.fragments
    )
    if received != row_count:
        raise CommitError(
            f"tasks were given {received} rows but stored {row_count}, so nothing was "
            "committed; this is a bug"
        )
