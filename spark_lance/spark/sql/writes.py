"""Writes that the driver's own Python plans and commits, and does itself where there are few rows.

Every request that plans has `write`: the options of a write, the schema of its rows, and whether they take
the place of the table's content. The answer None leaves the write to Spark's own way, which says in the way
of all Python data sources what is wrong with it; nothing has been written then.

Between plan and commit the writer is with Spark, pickled: whoever never comes back leaves nothing here.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_lance.errors import LanceError
from spark_lance.spark.base.compat import java_session
from spark_lance.spark.driver.interpreters import check_package
from spark_lance.spark.driver.jobs import wait_for_tasks
from spark_lance.spark.options.options import write_options
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.streaming.write import stream_writer
from spark_lance.spark.table.staging import check_staged
from spark_lance.spark.worker.write import pickled_write

if TYPE_CHECKING:
    from spark_lance.spark.streaming.upsert import UpsertStreamWriter
    from spark_lance.spark.streaming.write import LanceStreamWriter


def plan_write(request: BridgeRequest) -> dict[str, str] | None:
    """Return what the tasks of a write run, and the writer that commits, pickled and in base64.

    Raises:
        OptionError: the session directs writes to a branch, and this one goes to the table itself.
        WorkerPythonError: the workers that would run the tasks have no spark_lance.
    """
    _check(request)
    try:
        writer = _writer(request.body["write"], streams=request.body["streams"])
    except (LanceError, OSError):
        return None
    check_package(request.spark)
    tasks = writer.task_rows() if isinstance(writer, LanceWriter) else writer
    function = pickled_write(tasks, batches=request.body["batches"])
    return {"writer": _text(pickle.dumps(writer)), "function": _text(function)}


def plan_upserts(request: BridgeRequest) -> dict[str, Any] | None:
    """Return the plan of a micro-batch of upserts, and how its rows are to be sent to tasks (`route`).

    `epoch` is the number of the micro-batch, `partitions` the tasks that it may have. Without a route any
    task may have any row.
    """
    body = request.body
    _check(request)
    try:
        writer = _writer(body["write"], streams=True)
        route = writer.by_route(body["epoch"], body["partitions"])  # type: ignore[union-attr]
    except (LanceError, OSError):
        return None
    check_package(request.spark)
    return {
        "writer": _text(pickle.dumps(writer)),
        "function": _text(pickled_write(writer)),
        "route": None if route is None else route.describe(),
    }


def finish_write(request: BridgeRequest) -> None:
    """Commit what tasks wrote, or delete it.

    `messages` are those of all tasks, None for one that did not finish; `epoch` is the number of a stream's
    micro-batch, `execution` that of the query.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        CommitError, SchemaError, OSError: nothing was committed; the files were deleted.
    """
    body = request.body
    writer = pickle.loads(_bytes(body["writer"]))
    messages = [None if message is None else pickle.loads(_bytes(message)) for message in body["messages"]]
    epoch = () if body["epoch"] is None else (body["epoch"],)
    if not body["aborts"]:
        writer.commit(messages, *epoch)
        return
    wait_for_tasks(request.spark, lambda: _stages(request.spark, body["execution"]))
    writer.abort(messages, *epoch)


def _stages(spark: Any, execution: str | None) -> list[int]:
    """Return the ids of the stages of a query."""
    if execution is None:
        return []
    execution_data = java_session(spark).sharedState().statusStore().execution(int(execution))
    if execution_data.isEmpty():
        return []
    ids = execution_data.get().stages().toSeq()
    return [ids.apply(place) for place in range(ids.size())]


def write_rows(request: BridgeRequest) -> dict[str, int] | None:
    """Write and commit rows, which come as a stream of Arrow in base64; return how many these are.

    Raises:
        SchemaError: a value does not fit its column; nothing was committed.
        CommitError: as `finish_write`.
    """
    _check(request)
    try:
        writer = _writer(request.body["write"], streams=False)
    except (LanceError, OSError):
        return None
    assert isinstance(writer, LanceWriter)  # no stream
    with pa.ipc.open_stream(pa.py_buffer(_bytes(request.body["arrow"]))) as stream:
        message = writer.write(iter(stream))
    writer.commit([message])
    return {"rows": message.rows}


def _check(request: BridgeRequest) -> None:
    check_staged(request.body["write"]["options"], request.body.get("staging"))


def _writer(body: Any, *, streams: bool) -> LanceWriter | LanceStreamWriter | UpsertStreamWriter:
    schema = st.StructType.fromJson(json.loads(body["schema"]))
    options = write_options(CaseInsensitiveDict(body["options"]), body["overwrite"])
    if streams:
        return stream_writer(options, schema, body["overwrite"])
    return LanceWriter(options, schema, body["overwrite"], body["declaration"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
