"""How errors of this package reach the user of Spark.

Spark sends the text of an exception from a worker process to the driver, with its traceback. For our own
errors the message says it all, and the traceback of a worker buries it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from spark_lance.errors import LanceError

__all__ = ["one_line"]

# Spark's worker looks at these when it formats an exception. The first is set by Spark itself, in worker
# processes only, unless the user wants long tracebacks (`spark.sql.execution.pyspark.udf.
# simplifiedTraceback.enabled = false`). A worker ends after sending an exception, so the second one is
# never seen by later work.
_SIMPLIFIED = "SPARK_SIMPLIFIED_TRACEBACK"
_HIDDEN = "SPARK_HIDE_TRACEBACK"


@contextmanager
def one_line() -> Iterator[None]:
    """Let errors of this package that leave the block show as one line, without the worker's traceback."""
    try:
        yield
    except LanceError:
        if _SIMPLIFIED in os.environ:
            os.environ[_HIDDEN] = "1"
        raise
