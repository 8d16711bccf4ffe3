"""Streams into tables: every micro-batch becomes one version, once.

Spark makes a writer for each batch twice, to write in tasks and to commit, and numbers the batches of a
query. After a failure it repeats the last batch, with the same number and new files. So a commit carries the
query's id and the number, and is left out if the table has it already. The id is the one in the checkpoint:
after its checkpoint was deleted, a query is another query.

The commit must use the plan that the tasks wrote by, so the plan travels with their messages.
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
        options: what the stream was asked for.
        schema: of the rows.
        overwrite: whether each batch takes the place of the table's content (output mode complete).

    Raises:
        OptionError: this Spark version hands no Arrow batches to streams, an option is for batches, or it
            is not known what query this is.
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
            """Write the rows of one task to data files; errors as `LanceWriter.write`."""
            message = self._writer.write(iterator)
            return LanceStreamMessage(message.fragments, message.rows, self._writer.plan)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Make the files of a micro-batch a version, unless it is one already.

            An appended batch without rows makes no version. Errors as `LanceWriter.commit`.
            """
            answers = [message for message in messages if isinstance(message, LanceStreamMessage)]
            rows = sum(message.rows for message in answers)
            if not answers or (not rows and not self._overwrite):
                return
            self._writer.commit_files(
                answers, answers[0].plan, IdempotentWrite(self._query, batchId, "stream")
            )

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Delete the files of finished tasks, unless a commit has been tried; as `LanceWriter.abort`."""
            self._writer.abort(messages)


def query_id(options: WriteOptions) -> str:
    """Return the id under which a query's batches are recorded.

    Raises:
        OptionError: there is none to be found.
    """
    if options.streamingQueryId:
        return options.streamingQueryId
    advice = "give the query a name of its own with option 'streamingQueryId'"
    place = options.checkpointLocation
    if place is None:
        raise OptionError(
            f"the query's checkpoint is not known here: set it with option 'checkpointLocation', or {advice}"
        )
    try:
        # Spark's own file: {"id": "<uuid>"}.
        store, root = open_store(place, options.storage)
        return str(json.loads(bytes(store.read(join(root, "metadata"))))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"the query's id cannot be read from its checkpoint {place} ({error}): {advice}"
        ) from error
