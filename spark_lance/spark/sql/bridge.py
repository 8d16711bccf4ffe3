"""Answers the requests of the Java classes: JSON objects with a verb. An answer is JSON, too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_lance import errors
from spark_lance.spark.driver.jobs import commit_origin
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.table.constraints import evaluate_with
from spark_lance.table.commits.commit_options import commit_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

Answer = Callable[[BridgeRequest], Any]

# Verb -> the module of this package with the function that answers it. It is imported at the first request:
# a session that only reads does not load the code for changing tables.
VERBS = {
    "open_catalog": "namespaces",
    "list_namespaces": "namespaces",
    "load_namespace": "namespaces",
    "create_namespace": "namespaces",
    "alter_namespace": "namespaces",
    "drop_namespace": "namespaces",
    "load_relation": "views",
    "load_view": "views",
    "list_views": "views",
    "create_view": "views",
    "replace_view": "views",
    "drop_view": "views",
    "rename_view": "views",
    "list_tables": "tables",
    "load_table": "tables",
    "load_changes": "tables",
    "load_merged": "tables",
    "fitting_types": "tables",
    "check_options": "tables",
    "drop_table": "tables",
    "rename_table": "tables",
    "alter_table": "tables",
    "supports_change": "tables",
    "truncate_table": "tables",
    "delete_where": "tables",
    "list_partitions": "partitions",
    "delete_partitions": "partitions",
    "change_rows": "row_level",
    "create_table": "definitions",
    "stage_table": "definitions",
    "commit_staged": "definitions",
    "abort_staged": "definitions",
    "list_procedures": "procedures",
    "load_procedure": "procedures",
    "call_procedure": "procedures",
    "describe_read": "scans",
    "pin_read": "scans",
    "describe_pushdown": "scans",
    "push_aggregates": "aggregates",
    "column_statistics": "aggregates",
    "plan_scan": "scans",
    "plan_write": "writes",
    "plan_upserts": "writes",
    "finish_write": "writes",
    "write_rows": "writes",
    "make_format": "java_objects",
    "make_blob_function": "java_objects",
    "search": "search",
    "search_each": "search",
    "nearest": "search",
}

# Errors with an own class in Spark, which IF EXISTS and the like need.
_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (errors.NamespaceNotFoundError, "NoSuchNamespace"),
    (errors.NamespaceExistsError, "NamespaceExists"),
    (errors.NamespaceInUseError, "NamespaceInUse"),
    (errors.BranchNotFoundError, "NoSuchBranch"),
    (errors.VersionNotFoundError, "Refused"),
    (errors.TableNotFoundError, "NoSuchTable"),
    (errors.TableExistsError, "TableExists"),
    (errors.ViewNotFoundError, "NoSuchView"),
    (errors.ViewExistsError, "ViewExists"),
    (errors.UnsupportedFormatError, "Unsupported"),
    (errors.WorkerPythonError, "Unsupported"),
)

# Errors of rows for which Spark has a condition, so that programs can test for it: with its parameters.
_CONDITIONS: tuple[tuple[type[Exception], str, Callable[[Any], dict[str, str]]], ...] = (
    (errors.CardinalityError, "MERGE_CARDINALITY_VIOLATION", lambda error: {}),
    (errors.NullValueError, "NOT_NULL_ASSERT_VIOLATION", lambda error: {"walkedTypePath": error.column}),
    (errors.TextLengthError, "EXCEED_LIMIT_LENGTH", lambda error: {"limit": str(error.length)}),
    (
        errors.ConstraintViolationError,
        "CHECK_CONSTRAINT_VIOLATION",
        lambda error: {
            "constraintName": error.constraint,
            "expression": error.expression,
            "values": error.row,
        },
    ),
)


class Bridge:
    """Answers the requests of one driver.

    Args:
        spark: a classic session of it.
        source: the data source of the format.
    """

    def __init__(self, spark: SparkSession, source: type[DataSource]) -> None:
        self._spark, self._source = spark, source
        evaluate_with(spark)

    def apply(self, text: str, subject: Any) -> str:
        """Answer a request: `{"answer": ...}`, or `{"error": kind, "message": ..., "name": [...]}`."""
        body = json.loads(text)
        try:
            request = BridgeRequest(self._spark, self._source, body, subject)
            with commit_options(origin=self._commit_origin):
                answer = _answer_to(body["verb"])(request)
        except (errors.LanceError, OSError, PySparkException) as error:
            return json.dumps(_failure(error, body))
        return json.dumps({"answer": answer})

    def _commit_origin(self) -> Mapping[str, str]:
        # The session of the statement, in the thread of the JVM that waits for this answer.
        return commit_origin(SparkSession.getActiveSession() or self._spark)


def _answer_to(verb: str) -> Answer:
    module = import_module(f"{__package__}.{VERBS[verb]}")
    return cast("Answer", getattr(module, verb))


def _sentence(error: Exception, body: Mapping[str, Any]) -> str:
    """Return what happened, where, and what to do; the system's own errors say only the first."""
    if isinstance(error, errors.LanceError) or not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    root = body.get("options", {}).get("root")
    remedy = "name a place that this process may write to"
    if root is not None and str(error.filename).startswith(root.rstrip("/").rpartition("/")[0]):
        setting = f"spark.sql.catalog.{body['catalog']}.root"
        remedy = f"let {setting}, {root}, be a folder that this process may write to"
    return f"{error.filename or root}: {error.strerror}; {remedy}"


def _failure(error: Exception, body: Mapping[str, Any]) -> dict[str, Any]:
    for error_class, condition, parameters in _CONDITIONS:
        if isinstance(error, error_class):
            return _failure_of(error, body) | {"condition": condition, "parameters": parameters(error)}
    return _failure_of(error, body)


def _failure_of(error: Exception, body: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((kind for error_class, kind in _KINDS if isinstance(error, error_class)), "Refused")
    logger.debug("%s failed: %s", body["verb"], error)
    is_final = isinstance(error, errors.WorkerPythonError)  # Spark's own read or write would fail, too
    in_place = body["verb"].endswith("_procedure") or not body.keys().isdisjoint(("read", "write"))
    if in_place and not is_final:
        kind = "Refused"  # the name is the procedure's, or there is none
    if body["verb"] == "alter_table" and kind == "Refused":
        kind = "Unsupported"  # Spark wraps the other one into an error with a stack trace
    name = list(getattr(error, "existing", None) or body.get("name", []))
    if kind in ("TableExists", "ViewExists") and "to" in body and not getattr(error, "existing", None):
        new = list(body["to"])  # the name that is taken
        name = [*name[:-1], *new] if len(new) == 1 else new
    if "write" in body:
        # By its name programs know whether a write may be repeated, as in what tasks raise.
        kind_of_error = f"{type(error).__module__}.{type(error).__qualname__}"
        return {"error": kind, "message": f"{kind_of_error}: {_sentence(error, body)}"}
    if kind != "NoSuchNamespace":
        return {"error": kind, "message": _sentence(error, body), "name": name}
    if body["verb"].endswith(("_table", "_view", "_relation")):
        name = name[:-1] or [body["catalog"]]
    # A name that is only missing needs no more words than Spark has for it.
    hint = None if {"root", "impl"} & set(body.get("options", {})) else _sentence(error, body)
    return {"error": kind, "message": _sentence(error, body), "name": name, "hint": hint}
