"""What makes Spark read from Lance tables only what a query needs, switched on for one session.

Spark plans the scans of a Python data source with all columns, and without filters and limits. That is mended
by a rule for its optimizer, `jvm/LancePruning.java`, which is compiled in the driver's JVM by the compiler
that Spark brings along. Clients of Spark Connect have no way to that JVM; there the options `columns` and
`filter` choose what is read, unless the server has switched the rule on for all of its sessions.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.session import SparkSession

from spark_lance.spark.compat import KEEPS_ROWS_WITHOUT_COLUMNS
from spark_lance.spark.session import java_classes
from spark_lance.spark.session.builder import tell_of_settings

__all__ = ["enable", "first_line"]

logger = logging.getLogger(__name__)

_RULE = "spark_lance.LancePruning"
_FORMAT = "lance.DefaultSource"


def enable(spark: SparkSession, *, new_sessions: bool = False) -> SparkSession:
    """Let queries of a session read only the columns and rows of Lance tables that they need.

    Filters and limits reach the tables, columns that a query does not use are not fetched, rows are counted
    without reading any, and small tables are known to be small, so that Spark can broadcast them. Everything
    works without this call, too. Calling it again is harmless.

    Args:
        spark: a session, classic or of Spark Connect (where the call changes nothing).
        new_sessions: do the same for all sessions that the driver makes from now on, those of Spark Connect
            clients too if it is their server.

    Returns:
        The session, which is the calling thread's active one now.
    """
    if hasattr(spark, "_jvm"):
        _activate(spark)
        _share_format(spark)
        _install(spark, new_sessions)
        tell_of_settings(spark)
    return spark


def _activate(spark: Any) -> None:
    """Make a session the active one of the calling thread: in that one Spark looks for formats to write.

    A session is active by itself only in the thread that made it. Where `_share_format` has its way, it does
    not matter which one is.
    """
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def _share_format(spark: Any) -> None:
    """Let all threads find the format to write. If that fails, only those do that call `enable`."""
    try:
        if java_classes.can_publish(spark._jvm):
            java_classes.load(spark._jvm, _FORMAT)
        else:
            _warn_of_threads("the driver's class loader takes no classes")
    except Py4JError as error:
        _warn_of_threads(first_line(error))


@cache
def _warn_of_threads(reason: str) -> None:
    """Say once what threads need."""
    logger.warning(
        "Call spark_lance.enable(spark) in every thread that writes Lance tables; here one call does not "
        "serve all of them: %s",
        reason,
    )


def _install(spark: Any, new_sessions: bool) -> None:
    """Add the rule to the session's optimizer. If that fails, queries read more than they need."""
    try:
        experimental = spark._jsparkSession.experimental()
        rules = experimental.extraOptimizations()
        if not any(rules.apply(i).getClass().getName() == _RULE for i in range(rules.size())):
            getattr(experimental, "extraOptimizations_$eq")(rules.appended(_new(spark, _RULE)))
        if new_sessions:
            spark._jsparkSession.extensions().injectPreCBORule(_new(spark, f"{_RULE}$ForSessions"))
    except Py4JError as error:
        logger.warning("Lance tables are read with all columns, as Spark took no rule: %s", first_line(error))


def first_line(error: Exception) -> str:
    """Return what went wrong, without where in the JVM it did."""
    thrown = getattr(error, "java_exception", None)
    lines = str(error if thrown is None else thrown.toString()).splitlines()
    return lines[0] if lines else type(error).__name__


def _new(spark: Any, name: str) -> Any:
    """Return a new object of one of the rule's classes."""
    jvm = spark._jvm
    arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = KEEPS_ROWS_WITHOUT_COLUMNS
    arguments[1] = spark.sparkContext.defaultParallelism
    loader = java_classes.load(jvm, _RULE).getClassLoader()
    return loader.loadClass(name).getConstructors()[0].newInstance(arguments)
