"""Give one session what `spark_lance.enable` brings, and say what its release or its driver does not take.

Spark plans the scans of a Python data source with all columns, and without filters and limits. In a session
that was enabled, the driver's own Python plans them (`LanceScan`). Clients of Spark Connect cannot reach that
JVM. There the options `columns` and `filter` choose what is read, unless the server has enabled all of its
sessions.

Spark looks up the format to write in the thread's active session, and a session is active by itself only in
the thread that made it. Where the class `FORMAT` is published, the active session does not matter.
"""

from __future__ import annotations

import logging
from functools import cache

from pyspark.sql.session import SparkSession

from spark_lance.spark.session.builder import FAST_SETTINGS, tell_of_settings
from spark_lance.spark.session.start import FORMAT, Started, Wish, start

__all__ = ["enable"]

logger = logging.getLogger(__name__)


def enable(spark: SparkSession, wish: Wish, *, new_sessions: bool = False) -> Started:
    """Give a session the parts of `wish`. Calling it again is harmless.

    Args:
        spark: a classic session, which is the calling thread's active one from then on.
        wish: the parts.
        new_sessions: do the same for all sessions that the driver makes from now on, those of Spark Connect
            clients too if it is their server.
    """
    started = start(spark, wish, new_sessions=new_sessions, settings=list(FAST_SETTINGS))
    if FORMAT in started.missing:
        _warn_of_threads(started.missing[FORMAT])
    tell_of_settings(started.settings)
    return started


@cache
def _warn_of_threads(reason: str) -> None:
    """Say once what reads and writes by path lack."""
    logger.warning(
        "Reads of Lance tables by path fetch all columns and rows here, and each thread that writes by path "
        "needs its own call of spark_lance.enable(spark): %s",
        reason,
    )
