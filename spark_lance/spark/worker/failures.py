"""Shows errors of this package to Spark users as one line, with their original type.

Spark sends the text of an exception from a worker process to the driver, with its traceback. For our own
errors the message is enough, and the worker's traceback would hide it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from spark_lance import errors
from spark_lance.errors import LanceError

# Matches an error of this package in the text of Spark's exception: its name, and its message up to the end
# or to the stack trace of the JVM.
_ERROR_TEXT = re.compile(
    r"spark_lance\.errors\.(\w+): (.*?)\s*(?=SQLSTATE: |\n\s+at |JVM stacktrace|\Z)", re.DOTALL
)

# The errors that can be created from a message only.
_ERRORS_BY_NAME = {
    name: getattr(errors, name) for name in errors.__all__ if name != errors.AlreadyCommittedError.__name__
}

# Spark's worker reads these variables when it formats an exception. Spark sets the first one in worker
# processes only, unless the user wants long tracebacks (`spark.sql.execution.pyspark.udf.
# simplifiedTraceback.enabled = false`). A worker ends after it sends an exception, so the second one never
# affects later work.
_SIMPLIFIED = "SPARK_SIMPLIFIED_TRACEBACK"
_HIDDEN = "SPARK_HIDE_TRACEBACK"
# Main modules of processes that serve one stream. They also end with the first error.
_STREAM_RUNNERS = ("pyspark.sql.streaming.python_streaming_source_runner",)


# The function of `spark_lance/table/columns/new_columns.py` that calls a user's function.
USER_CALL = "call_user_function"


@contextmanager
def one_line() -> Iterator[None]:
    """Hide the worker's traceback of errors of this package that the block raises."""
    try:
        yield
    except LanceError:
        if _SIMPLIFIED in os.environ or _serves_a_stream():
            os.environ[_HIDDEN] = "1"
        raise


def hide_own_frames(error: Exception) -> None:
    """Let the traceback of an error of a user's function begin in the function, not in this package."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        trace = trace.tb_next
        if code.co_name == USER_CALL and trace is not None:
            error.__traceback__ = trace
            return


def _serves_a_stream() -> bool:
    """Return whether this is the process of a stream's reader, in which Spark does not set the variable."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name in _STREAM_RUNNERS


@contextmanager
def from_tasks() -> Iterator[None]:
    """Re-raise errors of this package from a failed Spark job with their original type.

    Raises:
        LanceError: the error that a task raised.
    """
    try:
        yield
    except PySparkException as error:
        match = _ERROR_TEXT.search(str(error))
        kind = _ERRORS_BY_NAME.get(match[1]) if match else None
        if match is None or kind is None:
            raise
        raise kind(match[2]) from error
