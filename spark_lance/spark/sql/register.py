"""Registers the SQL catalog, its statements and its functions in a session, and connects Java's requests.

SQL functions are searches in FROM, distances of vectors, and ranges of blobs. `LanceUnits` serves Spark's
class loader: it compiles a class of the catalog at its first use, or loads it from the cache folder. The
first request of Java imports the modules that answer it. A session that uses no catalog compiles nothing and
imports none of these modules.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from spark_lance.redaction import SECRET_NAMES
from spark_lance.spark.base.compat import SESSION_CATALOG, jvm_view
from spark_lance.spark.driver import java_classes
from spark_lance.spark.driver.start import NOT_TAKEN, PUBLISHED, EnableRequest
from spark_lance.spark.options.option_fields import java_option_names
from spark_lance.spark.sql.search_functions import SEARCH_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from spark_lance.spark.sql.protocol import Function, StartArguments

_CATALOG, _SPARK = "org.lance.spark.catalog", "org.apache.spark.sql.connector.catalog"
# Class -> the units that it may extend, best first. Each unit has the interface of Spark that it needs.
CHOICES = {
    f"{_CATALOG}.LanceCatalog": [
        [f"{_CATALOG}.LanceChangelogCatalog", f"{_SPARK}.ChangelogContext"],
        [f"{_CATALOG}.LanceViewCatalog", f"{_SPARK}.RelationCatalog"],
        [f"{_CATALOG}.LanceConstraintCatalog", f"{_SPARK}.TableInfo"],
        [f"{_CATALOG}.LanceTableCatalog", f"{_SPARK}.TableCatalog"],
    ],
    f"{_CATALOG}.LanceSessionCatalog": [
        [f"{_CATALOG}.LanceSessionChangelogCatalog", f"{_SPARK}.ChangelogContext"],
        [f"{_CATALOG}.LanceSessionConstraintCatalog", f"{_SPARK}.TableInfo"],
        [f"{_CATALOG}.LanceSessionTableCatalog", f"{_SPARK}.TableCatalog"],
    ],
}


def unit_names() -> list[str]:
    """Return the sorted names of the classes that are compiled at their first use, one for each source file.

    If a class does not compile with a release of Spark, only this class is missing.
    """
    files = java_classes.FOLDER.glob("org/**/*.java")
    names = {".".join(file.relative_to(java_classes.FOLDER).with_suffix("").parts) for file in files}
    return sorted(names - set(PUBLISHED))


def units_folder(jvm: Any) -> Path:
    """Return the folder for compiled units of these sources."""
    content = hashlib.sha256()
    for name in unit_names():
        content.update(java_classes.source(name).encode() + b"\0")
    content.update(repr(CHOICES).encode())
    return java_classes.cache_folder(jvm) / f"units-{content.hexdigest()[:16]}"


class LateBridge:
    """A `java.util.function.BiFunction` that creates a `bridge.Bridge` at the first request.

    Args:
        spark: a classic session.
        source: the data source of the format.
    """

    def __init__(self, spark: Any, source: type[DataSource]) -> None:
        self._spark, self._source = spark, source

    def apply(self, request: str, subject: Any) -> str:
        """Answer a request, see `Bridge.apply`."""
        from spark_lance.spark.sql.bridge import Bridge

        return Bridge(self._spark, self._source).apply(request, subject)

    class Java:  # noqa: D106 (py4j reads it)
        implements = ("java.util.function.BiFunction",)


_SEARCH = "org.lance.spark.search.LanceSearch"
_DISTANCE = "org.lance.spark.search.LanceDistance"
_BLOB = "org.lance.spark.catalog.LanceBlobFunction"
_DISTANCES: Mapping[str, str] = {
    "l2_distance": "_FUNC_(a, b) - The sum of squared differences of two arrays of numbers.",
    "cosine_distance": "_FUNC_(a, b) - 1 minus the cosine of the angle between two arrays of numbers.",
    "dot_distance": "_FUNC_(a, b) - 1 minus the product of two arrays of numbers.",
}
_BLOBS: Mapping[str, str] = {
    "lance_blob": "_FUNC_(blob[, offset[, length]]) - The bytes of a blob column, of which only the range is "
    "fetched.",
}


def functions() -> list[Function]:
    """Return the SQL functions."""
    searches = {name: function.usage for name, function in SEARCH_FUNCTIONS.items()}
    kinds = ((_SEARCH, searches), (_DISTANCE, _DISTANCES), (_BLOB, _BLOBS))
    return [
        {"unit": unit, "name": name, "usage": usage, "rows": usages is searches}
        for unit, usages in kinds
        for name, usage in usages.items()
    ]


logger = logging.getLogger(__name__)

_CLASS, _SESSION_CLASS = f"{_CATALOG}.LanceCatalog", f"{_CATALOG}.LanceSessionCatalog"
# The class of the format with all save modes.
_CREATING_FORMAT = "lance"
# Whether the driver's own Python plans the reads of a session (`LanceScan`), or Spark's workers do.
PLANS_IN_DRIVER = "spark.lance.planInDriver"

# Names of options whose values Spark hides in plans: Spark's default, and names of possible secrets.
_HIDDEN_OPTIONS, _HIDDEN_NAMES = "spark.sql.redaction.options.regex", f"{SECRET_NAMES}|url"

# The classes that answer requests; functions; a rule of the optimizer; parse errors; statements.
_UNITS, _FUNCTIONS = "org.lance.spark.load.LanceUnits", "org.lance.spark.load.LanceLazyFunctions"
_RULE = "org.lance.spark.load.LanceSessionRule"
_PARSER, _STATEMENTS = "org.lance.spark.load.LanceParser", "org.lance.spark.rowlevel.LanceStatements"
PARTS = (_UNITS, _FUNCTIONS, _RULE, _PARSER, _STATEMENTS)
VITAL = (_UNITS, _FUNCTIONS, _RULE)


def enable_request(spark: Any, source: type[DataSource], name: str, root: str | None) -> EnableRequest:
    """Return the request that registers a catalog in a classic session.

    Args:
        spark: the session.
        source: the data source of the format.
        name: the catalog's name.
        root: the folder of the catalog's tables; None keeps the session's setting.
    """
    prefix = f"spark.sql.catalog.{name}"
    kind = _SESSION_CLASS if name == SESSION_CATALOG else _CLASS
    arguments: StartArguments = {
        "catalog": name,
        "settings": {
            prefix: kind,
            **({} if root is None else {f"{prefix}.root": root}),
        },
        "defaults": {PLANS_IN_DRIVER: "true", _HIDDEN_OPTIONS: _HIDDEN_NAMES},
        "sources": str(java_classes.FOLDER),
        "units": unit_names(),
        "choices": CHOICES,
        "compiledUnits": str(units_folder(jvm_view(spark))),
        "functions": functions(),
        "options": java_option_names(),
    }
    return EnableRequest(PARTS, VITAL, LateBridge(spark, source), arguments)


def log_missing_parts(missing: Mapping[str, str], *, is_explicit: bool) -> None:
    """Log which features of SQL are missing in a session, and why.

    Args:
        missing: class that could not be started -> reason.
        is_explicit: whether the user has set the root of a catalog.
    """
    for part in VITAL:
        if part in missing:
            reason = missing[part]
            _log_no_catalog(reason, is_explicit=is_explicit or not reason.endswith(NOT_TAKEN))
            return
    if _PARSER in missing:
        logger.debug("Errors of parsing say nothing of Lance: %s", missing[_PARSER])
    if _STATEMENTS in missing:
        _warn_no_statements(missing[_STATEMENTS])


def enable_save_modes(spark: Any) -> None:
    """Let writes by path create tables in the modes `errorifexists` and `ignore`, in the whole driver.

    Args:
        spark: a classic session that has the catalog.
    """
    try:
        if java_classes.can_publish(jvm_view(spark)):
            java_classes.load(jvm_view(spark), _CREATING_FORMAT)
        else:
            _warn_no_save_modes(NOT_TAKEN)
    except Py4JError as error:
        _warn_no_save_modes(java_classes.first_line(error))


@cache
def _warn_no_save_modes(reason: str) -> None:
    """Warn once that Spark refuses two save modes."""
    logger.warning("Lance tables are written in the modes append and overwrite only: %s", reason)


@cache
def _log_no_catalog(reason: str, *, is_explicit: bool) -> None:
    """Log once that there is no catalog: a warning if the user has set its root, otherwise information."""
    level = logging.WARNING if is_explicit else logging.INFO
    logger.log(level, "Lance has no SQL catalog here, only paths: %s", reason)


@cache
def _warn_no_statements(reason: str) -> None:
    """Warn once that Spark refuses the statements that it cannot run itself."""
    logger.warning("UPDATE, MERGE and DELETE with subqueries are missing in SQL here: %s", reason)
