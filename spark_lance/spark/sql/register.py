"""Making catalogs known to Spark, and starting what answers them."""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

from spark_lance.spark.sql.bridge import Bridge
from spark_lance.spark.sql.units import publish

__all__ = ["register"]

logger = logging.getLogger(__name__)

_CLASS = "spark_lance.sql.LanceCatalog"


def register(spark: Any, name: str, root: str | None, *, new_sessions: bool) -> None:
    """Make a catalog known in a classic session.

    Args:
        spark: the session.
        name: the catalog's name.
        root: the folder of its tables; None keeps what the session's settings say.
        new_sessions: do it for sessions that are made later, too.
    """
    try:
        ensure_callback_server_started(spark._sc._gateway)
        if not publish(spark, Bridge(spark)):
            logger.warning("Lance has no SQL catalog here, as classes cannot be added to this driver")
            return
        prefix = f"spark.sql.catalog.{name}"
        settings = {prefix: _CLASS, **({} if root is None else {f"{prefix}.root": root})}
        for key, value in settings.items():
            spark._jsparkSession.conf().set(key, value)
            if new_sessions:
                spark._jsparkSession.sharedState().conf().set(key, value)
    except Py4JError as error:
        logger.warning("Lance has no SQL catalog here: %s", str(error).splitlines()[0])
