"""Making catalogs known to Spark, and starting what answers them."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.errors import PySparkException

from spark_lance.spark.session.enable import first_line
from spark_lance.spark.sql.bridge import Bridge
from spark_lance.spark.sql.functions import register_functions
from spark_lance.spark.sql.units import publish, take_statements

__all__ = ["PLANS_IN_DRIVER", "register"]

logger = logging.getLogger(__name__)

_CLASS = "spark_lance.sql.LanceCatalog"
# Whether the driver's own Python plans the reads of a session (jvm/LanceScan.java), or Spark's workers do.
PLANS_IN_DRIVER = "spark.lance.planInDriver"


def register(spark: Any, name: str, root: str | None, *, new_sessions: bool) -> None:
    """Make a catalog known in a classic session.

    Args:
        spark: the session.
        name: the catalog's name.
        root: the folder of its tables; None keeps what the session's settings say.
        new_sessions: do it for sessions that are made later, too.
    """
    prefix = f"spark.sql.catalog.{name}"
    try:
        start: Any = java_gateway.ensure_callback_server_started
        start(spark._sc._gateway)
        if not publish(spark, Bridge(spark)):
            _tell_of_no_catalog("the driver's class loader takes no classes", asked=root is not None)
            return
        settings = {prefix: _CLASS, **({} if root is None else {f"{prefix}.root": root})}
        if spark._jsparkSession.conf().get(PLANS_IN_DRIVER, None) is None:
            settings[PLANS_IN_DRIVER] = "true"
        for key, value in settings.items():
            spark._jsparkSession.conf().set(key, value)
            if new_sessions:
                spark._jsparkSession.sharedState().conf().set(key, value)
        register_functions(spark, name, new_sessions=new_sessions)
    except Py4JError as error:
        _tell_of_no_catalog(first_line(error), asked=True)
        return
    try:
        take_statements(spark)
    except (Py4JError, PySparkException) as error:
        _tell_of_no_statements(first_line(error))


@cache
def _tell_of_no_catalog(reason: str, *, asked: bool) -> None:
    """Say once that tables have no names here; it is no more than a note to those who asked for none."""
    level = logging.WARNING if asked else logging.INFO
    logger.log(level, "Lance has no SQL catalog here, only paths: %s", reason)


@cache
def _tell_of_no_statements(reason: str) -> None:
    """Say once that Spark refuses what it cannot do itself."""
    logger.warning("UPDATE, MERGE and DELETE with subqueries are missing in SQL here: %s", reason)
