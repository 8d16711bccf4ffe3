"""Answers to what the Java classes ask: a question is a JSON object with a verb, an answer is JSON, too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_lance import errors
from spark_lance.spark.sql import (
    aggregates,
    definitions,
    namespaces,
    procedures,
    row_level,
    scans,
    search,
    tables,
)
from spark_lance.spark.sql.catalogs import Question

__all__ = ["VERBS", "Bridge"]

logger = logging.getLogger(__name__)

Answer = Callable[[Question], Any]

VERBS: dict[str, Answer] = {
    "open_catalog": namespaces.open_catalog,
    "list_namespaces": namespaces.list_namespaces,
    "load_namespace": namespaces.load_namespace,
    "create_namespace": namespaces.create_namespace,
    "alter_namespace": namespaces.alter_namespace,
    "drop_namespace": namespaces.drop_namespace,
    "list_tables": tables.list_tables,
    "load_table": tables.load_table,
    "drop_table": tables.drop_table,
    "rename_table": tables.rename_table,
    "alter_table": tables.alter_table,
    "truncate_table": tables.truncate_table,
    "delete_where": tables.delete_where,
    "change_rows": row_level.change_rows,
    "create_table": definitions.create_table,
    "stage_table": definitions.stage_table,
    "commit_staged": definitions.commit_staged,
    "abort_staged": definitions.abort_staged,
    "list_procedures": procedures.list_procedures,
    "load_procedure": procedures.load_procedure,
    "call_procedure": procedures.call_procedure,
    "describe_read": scans.describe_read,
    "pin_read": scans.pin_read,
    "push_predicates": scans.push_predicates,
    "push_aggregates": aggregates.push_aggregates,
    "column_statistics": aggregates.column_statistics,
    "push_top": scans.push_top,
    "push_limit": scans.push_limit,
    "plan_scan": scans.plan_scan,
    "search": search.search,
    "nearest": search.nearest,
}

# Errors that Spark has a class of its own for, by which IF EXISTS and the like work.
_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (errors.NamespaceNotFoundError, "NoSuchNamespace"),
    (errors.NamespaceExistsError, "NamespaceExists"),
    (errors.NamespaceInUseError, "NamespaceInUse"),
    (errors.VersionNotFoundError, "Refused"),
    (errors.TableNotFoundError, "NoSuchTable"),
    (errors.TableExistsError, "TableExists"),
    (errors.UnsupportedFormatError, "Unsupported"),
)


class Bridge:
    """Answers the questions of one driver.

    Args:
        spark: a classic session of it.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def apply(self, question: str, subject: Any) -> str:
        """Answer a question: `{"answer": ...}`, or `{"error": kind, "message": ..., "name": [...]}`."""
        asked = json.loads(question)
        try:
            answer = VERBS[asked["verb"]](Question(self._spark, asked, subject))
        except (errors.LanceError, OSError, PySparkException) as error:
            return json.dumps(_failure(error, asked))
        return json.dumps({"answer": answer})


def _failure(error: Exception, asked: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), "Refused")
    logger.debug("%s failed: %s", asked["verb"], error)
    if asked["verb"].endswith("_procedure") or "read" in asked:
        kind = "Refused"  # the name is the procedure's, or there is none
    if asked["verb"] == "alter_table" and kind == "Refused":
        kind = "Unsupported"  # Spark wraps the other one into an error with a stack trace
    name = list(asked.get("name", []))
    if kind != "NoSuchNamespace":
        return {"error": kind, "message": str(error), "name": name}
    if asked["verb"].endswith("_table"):
        name = name[:-1] or [asked["catalog"]]
    # A name that is only missing needs no more words than Spark has for it.
    hint = None if {"root", "impl"} & set(asked.get("options", {})) else str(error)
    return {"error": kind, "message": str(error), "name": name, "hint": hint}
