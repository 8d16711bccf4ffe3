"""Switch on, for one session, that Spark reads from Lance tables only what a query needs.

Spark plans the scans of a Python data source with all columns, and without filters and limits. A rule for
its optimizer, `LancePruning`, fixes that; Spark's own compiler compiles it in the driver's JVM.
Clients of Spark Connect cannot reach that JVM. There the options `columns` and `filter` choose what is read,
unless the server has switched the rule on for all of its sessions.

Spark looks up the format to write in the thread's active session, and a session is active by itself only in
the thread that made it. Where the class `FORMAT` is published, the active session does not matter.
"""

from __future__ import annotations

import logging
from functools import cache

from pyspark.sql.session import SparkSession

from spark_lance.spark.session.builder import FAST_SETTINGS, tell_of_settings
from spark_lance.spark.session.start import FORMAT, RULE, Started, Wish, start

__all__ = ["enable"]

logger = logging.getLogger(__name__)


def enable(spark: SparkSession, wish: Wish | None = None, *, new_sessions: bool = False) -> Started:
    """Let queries of a session read only the columns and rows of Lance tables that they need.

    Filters and limits reach the tables, and columns that a query does not use are not fetched. Rows are
    counted from metadata. Spark learns the sizes of small tables, so that it can broadcast them. Everything
    works without this call, too. Calling it again is harmless.

    Args:
        spark: a classic session, which is the calling thread's active one from then on.
        wish: what else it is given.
        new_sessions: do the same for all sessions that the driver makes from now on, those of Spark Connect
            clients too if it is their server.
    """
    started = start(spark, wish or Wish(), new_sessions=new_sessions, settings=list(FAST_SETTINGS))
    if FORMAT in started.missing:
        _warn_of_threads(started.missing[FORMAT])
    if RULE in started.missing:
        logger.warning(
            "Lance tables are read with all columns, as Spark took no rule: %s", started.missing[RULE]
        )
    tell_of_settings(started.settings)
    return started


@cache
def _warn_of_threads(reason: str) -> None:
    """Say once what threads need."""
    logger.warning(
        "Call spark_lance.enable(spark) in every thread that writes Lance tables; here one call does not "
        "serve all of them: %s",
        reason,
    )
