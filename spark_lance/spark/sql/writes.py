"""Plans and commits writes in the driver's own Python, and writes few rows directly.

Every request that plans has `write`: the options of a write, the schema of its rows, and whether they replace
the table's content. After the answer None, Spark runs the write itself, and reports its errors as for every
Python data source. Nothing has been written then.

Between plan and commit Spark has the pickled writer, so a write that is never finished leaves nothing here.
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
from spark_lance.io.uploads import background_uploads
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
    """Return the function for the tasks of a write, and the writer that commits, pickled and in base64.

    Raises:
        OptionError: the session sends writes to a branch, and this write is to the table itself.
        WorkerPythonError: the workers that would run the tasks have no spark_lance.
    """
    _check_staging(request)
    try:
        writer = _create_writer(request.body["write"], streams=request.body["streams"])
    except (LanceError, OSError):
        return None
    check_package(request.spark)
    tasks = writer.task_rows() if isinstance(writer, LanceWriter) else writer
    function = pickled_write(tasks, batches=request.body["batches"])
    return {"writer": _base64_text(pickle.dumps(writer)), "function": _base64_text(function)}


def plan_upserts(request: BridgeRequest) -> dict[str, Any] | None:
    """Return the plan of a micro-batch of upserts, and the assignment of its rows to tasks (`route`).

    `epoch` is the number of the micro-batch, `partitions` the largest number of tasks. Without a route any
    task may have any row.
    """
    body = request.body
    _check_staging(request)
    try:
        writer = _create_writer(body["write"], streams=True)
        route = writer.by_route(body["epoch"], body["partitions"])  # type: ignore[union-attr]
    except (LanceError, OSError):
        return None
    check_package(request.spark)
    return {
        "writer": _base64_text(pickle.dumps(writer)),
        "function": _base64_text(pickled_write(writer)),
        "route": None if route is None else route.describe(),
    }


def finish_write(request: BridgeRequest) -> None:
    """Commit the files of the tasks, or delete them.

    `messages` has the message of each task, None for a task that did not finish. `epoch` is the number of a
    stream's micro-batch, `execution` the number of the query.

    Raises:
        CommitOutcomeUnknownError: the version may exist. No file was deleted.
        CommitError, SchemaError, OSError: nothing was committed. The files were deleted.
    """
    body = request.body
    writer = pickle.loads(_decode_base64(body["writer"]))
    messages = [
        None if message is None else pickle.loads(_decode_base64(message)) for message in body["messages"]
    ]
    epoch = () if body["epoch"] is None else (body["epoch"],)
    if not body["aborts"]:
        writer.commit(messages, *epoch)
        return
    wait_for_tasks(request.spark, lambda: _stage_ids(request.spark, body["execution"]))
    writer.abort(messages, *epoch)


def _stage_ids(spark: Any, execution: str | None) -> list[int]:
    """Return the ids of the stages of a query."""
    if execution is None:
        return []
    execution_data = java_session(spark).sharedState().statusStore().execution(int(execution))
    if execution_data.isEmpty():
        return []
    ids = execution_data.get().stages().toSeq()
    return [ids.apply(index) for index in range(ids.size())]


def write_rows(request: BridgeRequest) -> dict[str, int] | None:
    """Write and commit rows, which the request has as an Arrow stream in base64; return their number.

    Raises:
        SchemaError: a value does not fit its column. Nothing was committed.
        CommitError: see `finish_write`.
    """
    _check_staging(request)
    try:
        writer = _create_writer(request.body["write"], streams=False)
    except (LanceError, OSError):
        return None
    assert isinstance(writer, LanceWriter)  # no stream
    with background_uploads(writer.store):
        with pa.ipc.open_stream(pa.py_buffer(_decode_base64(request.body["arrow"]))) as stream:
            message = writer.write(iter(stream))
        writer.commit([message])
    return {"rows": message.rows}


def _check_staging(request: BridgeRequest) -> None:
    check_staged(request.body["write"]["options"], request.body.get("staging"))


def _create_writer(body: Any, *, streams: bool) -> LanceWriter | LanceStreamWriter | UpsertStreamWriter:
    schema = st.StructType.fromJson(json.loads(body["schema"]))
    options = write_options(CaseInsensitiveDict(body["options"]), body["overwrite"])
    if streams:
        return stream_writer(options, schema, body["overwrite"])
    return LanceWriter(options, schema, body["overwrite"], body["declaration"])


def _base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text)
