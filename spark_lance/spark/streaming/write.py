"""Writes streams into tables: every micro-batch becomes exactly one version.

Spark numbers the batches of a query, and creates two writers for each batch: one to write in tasks and one to
commit. After a failure it repeats the last batch, with the same number and new files. So a commit records the
query's id and the number, and is skipped if the table has this record already. The id comes from the
checkpoint: a query whose checkpoint was deleted is a new query.

The commit must use the plan of the tasks, so the messages of the tasks contain the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import WriterCommitMessage

from spark_lance.errors import OptionError
from spark_lance.io.locations import join
from spark_lance.io.store import open_store
from spark_lance.spark.base.compat import DataSourceStreamArrowWriter
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.streaming import upsert
from spark_lance.spark.worker.write import LanceCommitMessage
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.inserts.write_plan import WritePlan


@dataclass(frozen=True)
class LanceStreamMessage(LanceCommitMessage):
    """The result of one task, and the plan of its write."""

    plan: WritePlan


def stream_writer(
    options: WriteOptions, schema: st.StructType, overwrite: bool
) -> LanceStreamWriter | upsert.UpsertStreamWriter:
    """Return the writer of the micro-batches of a stream.

    Args:
        options: options of the stream.
        schema: schema of the rows.
        overwrite: whether each batch replaces the table's content (output mode complete).

    Raises:
        OptionError: this Spark version passes no Arrow batches to streams, an option is for batches, or the
            query's id is unknown.
        SchemaError, UnsupportedFormatError, AtomicPutUnsupportedError: see `LanceWriter`.
    """
    if DataSourceStreamArrowWriter is None:
        raise OptionError(
            "writeStream to Lance needs Spark 4.1 or newer; here use foreachBatch with a batch write that "
            "has the options txnAppId (a name of the query) and txnVersion (the batch id)"
        )
    if options.mode == "upsert":
        if options.partitionBy is not None:
            raise OptionError("option 'partitionBy' goes with mode append: upserts need a table")
        if overwrite:
            raise OptionError("option 'mode' = 'upsert' goes with output mode append or update, not complete")
        return upsert.UpsertStreamWriter(options, schema, query_id(options))
    return LanceStreamWriter(options, schema, overwrite)


if DataSourceStreamArrowWriter is not None:

    class LanceStreamWriter(DataSourceStreamArrowWriter):
        """Writes the micro-batches of a stream; see `stream_writer`."""

        def __init__(self, options: WriteOptions, schema: st.StructType, overwrite: bool) -> None:
            for name in ("txnAppId", "txnVersion", "replaceWhere", "replaceUsing", "replaceOn"):
                if getattr(options, name, None) is not None:
                    raise OptionError(f"option {name!r} is for batch writes, not for streams")
            self._query = query_id(options)
            self._overwrite = overwrite
            self._writer = LanceWriter(options, schema, overwrite)

        def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceStreamMessage:
            """Write the rows of one task to data files. Raises the errors of `LanceWriter.write`."""
            message = self._writer.write(iterator)
            return LanceStreamMessage(message.fragments, message.rows, self._writer.plan)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Commit the files of a micro-batch as a version, unless it has been committed before.

            An appended batch without rows creates no version. Raises the errors of `LanceWriter.commit`.
            """
            answers = [message for message in messages if isinstance(message, LanceStreamMessage)]
            rows = sum(message.rows for message in answers)
            if not answers or (not rows and not self._overwrite):
                return
            self._writer.commit_files(
                answers, answers[0].plan, IdempotentWrite(self._query, batchId, "stream")
            )

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Delete the files of all tasks, unless a commit has been tried, see `LanceWriter.abort`."""
            self._writer.abort(messages)


def query_id(options: WriteOptions) -> str:
    """Return the id with which commits record a query's batches.

    Raises:
        OptionError: the options have no id and no checkpoint, or the checkpoint cannot be read.
    """
    if options.streamingQueryId:
        return options.streamingQueryId
    advice = "give the query a name of its own with option 'streamingQueryId'"
    checkpoint = options.checkpointLocation
    if checkpoint is None:
        raise OptionError(
            f"the query's checkpoint is not known here: set it with option 'checkpointLocation', or {advice}"
        )
    try:
        # Spark's own file: {"id": "<uuid>"}.
        store, root = open_store(checkpoint, options.storage)
        return str(json.loads(bytes(store.read(join(root, "metadata"))))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"the query's id cannot be read from its checkpoint {checkpoint} ({error}): {advice}"
        ) from error
