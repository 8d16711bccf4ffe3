"""What makes Spark read from Lance tables only what a query needs, switched on for one session.

Spark plans the scans of a Python data source with all columns, and without filters and limits. That is mended
by a rule for its optimizer, `jvm/LancePruning.java`, which is compiled in the driver's JVM by the compiler
that Spark brings along. Clients of Spark Connect have no way to that JVM; there the options `columns` and
`filter` choose what is read, unless the server has switched the rule on for all of its sessions.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.session import SparkSession

from spark_lance.spark.sql.register import register

__all__ = ["enable"]

logger = logging.getLogger(__name__)

_RULE = "spark_lance.LancePruning"
_SOURCE = Path(__file__).parent / "jvm" / "LancePruning.java"


def enable(
    spark: SparkSession, *, new_sessions: bool = False, catalog: str = "lance", root: str | None = None
) -> SparkSession:
    """Let queries of a session read only the columns and rows of Lance tables that they need.

    Filters and limits reach the tables, columns that a query does not use are not fetched, rows are counted
    without reading any, and small tables are known to be small, so that Spark can broadcast them. Everything
    works without this call, too. Calling it again is harmless.

    Args:
        spark: a session, classic or of Spark Connect (where the call changes nothing).
        new_sessions: do the same for all sessions that the driver makes from now on, those of Spark Connect
            clients too if it is their server.
        catalog: the name of the SQL catalog of Lance tables that the session gets.
        root: the folder of the tables that this catalog has by name; without one it has tables by path only,
            unless the setting `spark.sql.catalog.<catalog>.root` names one.

    Returns:
        The session, which is the calling thread's active one now.
    """
    if hasattr(spark, "_jvm"):
        _activate(spark)
        _install(spark, new_sessions)
        register(spark, catalog, root, new_sessions=new_sessions)
    return spark


def _activate(spark: Any) -> None:
    """Make a session the active one of the calling thread: in that one Spark looks for formats to write.

    A session is active by itself only in the thread that made it.
    """
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


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
        reason = str(error).splitlines()[0]
        logger.warning("Lance tables are read with all columns, as Spark took no rule: %s", reason)


def _new(spark: Any, name: str) -> Any:
    """Compile the rule in the session's JVM; return an object of one of its classes."""
    jvm = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text())
    # The release of Spark that lets batches without columns have rows is the one that brought pushFilters.
    arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = hasattr(DataSourceReader, "pushFilters")
    arguments[1] = spark.sparkContext.defaultParallelism
    return compiler.getClassLoader().loadClass(name).getConstructors()[0].newInstance(arguments)
