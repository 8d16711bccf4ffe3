"""Making catalogs known to Spark, with the statements and functions of SQL, and what answers them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from py4j.protocol import Py4JError

from spark_lance.redaction import SECRET_NAMES
from spark_lance.spark.compat import jvm_view
from spark_lance.spark.options.option_fields import java_option_names
from spark_lance.spark.session import java_classes
from spark_lance.spark.session.start import NOT_TAKEN, Wish
from spark_lance.spark.sql.functions import functions
from spark_lance.spark.sql.late import LateBridge
from spark_lance.spark.sql.units import CHOICES, compiled_units, unit_names

__all__ = ["PLANS_IN_DRIVER", "catalog_wish", "take_save_modes", "tell_of_missing"]

logger = logging.getLogger(__name__)

_CLASS = "org.lance.spark.catalog.LanceCatalog"
# The format of those who asked for all save modes.
_CREATING_FORMAT = "lance"
# Whether the driver's own Python plans the reads of a session (`LanceScan`), or Spark's workers do.
PLANS_IN_DRIVER = "spark.lance.planInDriver"

# Names of options whose values Spark hides in plans: those of its own default, and those that may be secret.
_HIDDEN_OPTIONS, _HIDDEN_NAMES = "spark.sql.redaction.options.regex", f"{SECRET_NAMES}|url"

# The classes that answer questions; the functions and a rule; parse errors; statements.
_UNITS, _FUNCTIONS = "org.lance.spark.load.LanceUnits", "org.lance.spark.load.LanceLate"
_PARSER, _STATEMENTS = "org.lance.spark.load.LanceParser", "org.lance.spark.rowlevel.LanceStatements"
PARTS = (_UNITS, _FUNCTIONS, _PARSER, _STATEMENTS)
VITAL = (_UNITS, _FUNCTIONS)


def catalog_wish(spark: Any, name: str, root: str | None) -> Wish:
    """Return what makes a catalog known in a classic session.

    Args:
        spark: the session.
        name: the catalog's name.
        root: the folder of its tables; None keeps what the session's settings say.
    """
    prefix = f"spark.sql.catalog.{name}"
    arguments = {
        "catalog": name,
        "settings": {prefix: _CLASS, **({} if root is None else {f"{prefix}.root": root})},
        "defaults": {PLANS_IN_DRIVER: "true", _HIDDEN_OPTIONS: _HIDDEN_NAMES},
        "sources": str(java_classes.FOLDER),
        "units": unit_names(),
        "choices": CHOICES,
        "compiledUnits": str(compiled_units(jvm_view(spark))),
        "functions": functions(),
        "options": java_option_names(),
    }
    return Wish(PARTS, VITAL, LateBridge(spark), arguments)


def tell_of_missing(missing: Mapping[str, str], *, is_explicit: bool) -> None:
    """Say what SQL lacks here, and why.

    Args:
        missing: reasons by class.
        is_explicit: whether the user asked for tables by name.
    """
    for part in VITAL:
        if part in missing:
            reason = missing[part]
            _tell_of_no_catalog(reason, is_explicit=is_explicit or not reason.endswith(NOT_TAKEN))
            return
    if _PARSER in missing:
        logger.debug("Errors of parsing say nothing of Lance: %s", missing[_PARSER])
    if _STATEMENTS in missing:
        _tell_of_no_statements(missing[_STATEMENTS])


def take_save_modes(spark: Any) -> None:
    """Let writes by path make tables in the modes `errorifexists` and `ignore`, for a whole driver.

    Args:
        spark: a classic session that has the catalog.
    """
    try:
        if java_classes.can_publish(jvm_view(spark)):
            java_classes.load(jvm_view(spark), _CREATING_FORMAT)
        else:
            _tell_of_no_modes(NOT_TAKEN)
    except Py4JError as error:
        _tell_of_no_modes(java_classes.first_line(error))


@cache
def _tell_of_no_modes(reason: str) -> None:
    """Say once that Spark refuses two save modes."""
    logger.warning("Lance tables are written in the modes append and overwrite only: %s", reason)


@cache
def _tell_of_no_catalog(reason: str, *, is_explicit: bool) -> None:
    """Say once that tables have no names here; an info message unless the user asked for a catalog."""
    level = logging.WARNING if is_explicit else logging.INFO
    logger.log(level, "Lance has no SQL catalog here, only paths: %s", reason)


@cache
def _tell_of_no_statements(reason: str) -> None:
    """Say once that Spark refuses what it cannot do itself."""
    logger.warning("UPDATE, MERGE and DELETE with subqueries are missing in SQL here: %s", reason)
