"""How errors of this package reach the user of Spark.

Spark sends the text of an exception from a worker process to the driver, with its traceback. For our own
errors the message says it all, and the traceback of a worker buries it.
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

# How an error of this package looks in the text of Spark's exception: its name, and the message until the end
# or until the stack of the JVM.
_OURS = re.compile(
    r"spark_lance\.errors\.(\w+): (.*?)\s*(?=SQLSTATE: |\n\s+at |JVM stacktrace|\Z)", re.DOTALL
)

# Those that a message is enough for.
_BY_NAME = {
    name: getattr(errors, name) for name in errors.__all__ if name != errors.AlreadyCommittedError.__name__
}

# Spark's worker looks at these when it formats an exception. The first is set by Spark itself, in worker
# processes only, unless the user wants long tracebacks (`spark.sql.execution.pyspark.udf.
# simplifiedTraceback.enabled = false`). A worker ends after sending an exception, so the second one is
# never seen by later work.
_SIMPLIFIED = "SPARK_SIMPLIFIED_TRACEBACK"
_HIDDEN = "SPARK_HIDE_TRACEBACK"
# Such a process serves one stream and ends with the first error, too.
_STREAM_RUNNERS = ("pyspark.sql.streaming.python_streaming_source_runner",)


@contextmanager
def one_line() -> Iterator[None]:
    """Let errors of this package that leave the block show as one line, without the worker's traceback."""
    try:
        yield
    except LanceError:
        if _SIMPLIFIED in os.environ or _serves_a_stream():
            os.environ[_HIDDEN] = "1"
        raise


def _serves_a_stream() -> bool:
    """Tell whether this is the process in which Spark keeps the reader of a stream, which has no settings."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name in _STREAM_RUNNERS


@contextmanager
def from_tasks() -> Iterator[None]:
    """Raise errors of this package that tasks of a Spark job raised as what they are, not as Spark's.

    Raises:
        LanceError: see its subclasses.
    """
    try:
        yield
    except PySparkException as error:
        match = _OURS.search(str(error))
        kind = _BY_NAME.get(match[1]) if match else None
        if match is None or kind is None:
            raise
        raise kind(match[2]) from error
