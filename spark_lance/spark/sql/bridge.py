"""Answers requests of the Java classes. A request is a JSON object with a verb, an answer is JSON, too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_lance import errors
from spark_lance.spark.driver.delta_settings import append_setting_error, change_setting_error
from spark_lance.spark.driver.jobs import commit_origin
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.table.constraints import evaluate_with
from spark_lance.table.commits.commit_options import commit_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

Answer = Callable[[BridgeRequest], Any]

# Verb -> the module of this package with the function of this name. The module is imported at the first
# request, so a session that only reads does not load the code that changes tables.
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

# Errors with a class of their own in Spark, needed for IF EXISTS and similar clauses.
_ERROR_KINDS: tuple[tuple[type[Exception], str], ...] = (
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

# Errors about rows -> Spark's error condition with its parameters, so that programs can test for it.
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
        spark: a classic session of the driver.
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
            if "ignored_setting" in body:
                _check_repeated(body)
            with commit_options(origin=self._commit_origin):
                answer = _find_answer(body["verb"])(request)
        except (errors.LanceError, OSError, PySparkException) as error:
            return json.dumps(_error_answer(error, body))
        return json.dumps({"answer": answer})

    def _commit_origin(self) -> Mapping[str, str]:
        # The session of the statement, in the thread of the JVM that waits for this answer.
        return commit_origin(SparkSession.getActiveSession() or self._spark)


def _check_repeated(body: Mapping[str, Any]) -> None:
    """Check that a request does not write rows in a session that relies on a setting without effect.

    Raises:
        OptionError: it does. A write with the equivalent options is allowed.
    """
    setting = body["ignored_setting"]
    if body["verb"] in ("plan_write", "write_rows") and not body.get("streams"):
        if not any(key.lower() == "txnappid" for key in body["write"]["options"]):
            raise append_setting_error(setting)
    elif body["verb"] in ("change_rows", "delete_where", "delete_partitions", "truncate_table"):
        raise change_setting_error(setting)


def _find_answer(verb: str) -> Answer:
    module = import_module(f"{__package__}.{VERBS[verb]}")
    return cast("Answer", getattr(module, verb))


def _error_message(error: Exception, body: Mapping[str, Any]) -> str:
    """Return the message of an error. For errors of the operating system, it adds where and what to do."""
    if isinstance(error, errors.LanceError) or not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    root = body.get("options", {}).get("root")
    remedy = "name a place that this process may write to"
    if root is not None and str(error.filename).startswith(root.rstrip("/").rpartition("/")[0]):
        setting = f"spark.sql.catalog.{body['catalog']}.root"
        remedy = f"let {setting}, {root}, be a folder that this process may write to"
    return f"{error.filename or root}: {error.strerror}; {remedy}"


def _error_answer(error: Exception, body: Mapping[str, Any]) -> dict[str, Any]:
    for error_class, condition, parameters in _CONDITIONS:
        if isinstance(error, error_class):
            return _basic_error_answer(error, body) | {
                "condition": condition,
                "parameters": parameters(error),
            }
    return _basic_error_answer(error, body)


def _basic_error_answer(error: Exception, body: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((kind for error_class, kind in _ERROR_KINDS if isinstance(error, error_class)), "Refused")
    logger.debug("%s failed: %s", body["verb"], error)
    is_final = isinstance(error, errors.WorkerPythonError)  # Spark's own read or write would fail, too
    in_place = body["verb"].endswith("_procedure") or not body.keys().isdisjoint(("read", "write"))
    if in_place and not is_final:
        kind = "Refused"  # the name is that of the procedure, or there is none
    if body["verb"] == "alter_table" and kind == "Refused":
        kind = "Unsupported"  # Spark wraps "Refused" into an error with a stack trace
    name = list(getattr(error, "existing", None) or body.get("name", []))
    if kind in ("TableExists", "ViewExists") and "to" in body and not getattr(error, "existing", None):
        new = list(body["to"])  # the name that is taken
        name = [*name[:-1], *new] if len(new) == 1 else new
    if "write" in body:
        # As in errors of tasks, the class name tells programs whether they may repeat the write.
        kind_of_error = f"{type(error).__module__}.{type(error).__qualname__}"
        return {"error": kind, "message": f"{kind_of_error}: {_error_message(error, body)}"}
    if kind != "NoSuchNamespace":
        return {"error": kind, "message": _error_message(error, body), "name": name}
    if body["verb"].endswith(("_table", "_view", "_relation")):
        name = name[:-1] or [body["catalog"]]
    # For a name that does not exist, Spark's own message is enough.
    hint = None if {"root", "impl"} & set(body.get("options", {})) else _error_message(error, body)
    return {"error": kind, "message": _error_message(error, body), "name": name, "hint": hint}
