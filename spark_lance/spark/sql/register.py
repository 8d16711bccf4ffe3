"""Making catalogs known to Spark, and starting what answers them."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.errors import PySparkException

from spark_lance.spark.session import java_classes
from spark_lance.spark.session.enable import first_line
from spark_lance.spark.sql.functions import register_functions
from spark_lance.spark.sql.late import LateBridge
from spark_lance.spark.sql.units import publish, take_statements

__all__ = ["PLANS_IN_DRIVER", "register", "take_save_modes"]

logger = logging.getLogger(__name__)

_CLASS = "spark_lance.sql.LanceCatalog"
# The format of those who asked for all save modes.
_CREATING_FORMAT = "lance"
# What refers from statements of other formats to ours.
_PARSER = "spark_lance.LanceParser"
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
        if not publish(spark, LateBridge(spark)):
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
        _help_with_words(spark, name, new_sessions=new_sessions)
    except (Py4JError, PySparkException) as error:
        logger.debug("Errors of parsing say nothing of Lance: %s", first_line(error))
    try:
        take_statements(spark)
    except (Py4JError, PySparkException) as error:
        _tell_of_no_statements(first_line(error))


def _help_with_words(spark: Any, catalog: str, *, new_sessions: bool) -> None:
    """Let errors of statements that Spark cannot parse, such as OPTIMIZE, say what to write here."""
    arguments = spark._sc._gateway.new_array(spark._jvm.java.lang.Object, 2)
    arguments[1] = catalog
    helper = java_classes.load(spark._jvm, _PARSER).getConstructors()[0].newInstance(arguments)
    helper.enter(spark._jsparkSession.sessionState())
    if new_sessions:
        helper.inject(spark._jsparkSession.extensions())


def take_save_modes(spark: Any) -> None:
    """Let writes by path make tables in the modes `errorifexists` and `ignore`, for a whole driver.

    Args:
        spark: a classic session that `register` has served.
    """
    try:
        if java_classes.can_publish(spark._jvm):
            java_classes.load(spark._jvm, _CREATING_FORMAT)
        else:
            _tell_of_no_modes("the driver's class loader takes no classes")
    except Py4JError as error:
        _tell_of_no_modes(first_line(error))


@cache
def _tell_of_no_modes(reason: str) -> None:
    """Say once that Spark refuses two save modes."""
    logger.warning("Lance tables are written in the modes append and overwrite only: %s", reason)


@cache
def _tell_of_no_catalog(reason: str, *, asked: bool) -> None:
    """Say once that tables have no names here; it is no more than a note to those who asked for none."""
    level = logging.WARNING if asked else logging.INFO
    logger.log(level, "Lance has no SQL catalog here, only paths: %s", reason)


@cache
def _tell_of_no_statements(reason: str) -> None:
    """Say once that Spark refuses what it cannot do itself."""
    logger.warning("UPDATE, MERGE and DELETE with subqueries are missing in SQL here: %s", reason)
