"""Runs DELETE, UPDATE and MERGE statements, which Spark has resolved, by the jobs of `LanceTable`.

The Java side (`LanceRowLevel`) sends the parts of a statement, and its expressions as Columns. In them,
columns of the table have one alias, and columns of the source of a MERGE have another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic import dataframe
from pyspark.sql.classic.column import Column

from spark_lance.errors import OptionError, UnsupportedFormatError
from spark_lance.spark.base.compat import java_exception, java_frame, python_session
from spark_lance.spark.options.foreign_options import STORAGE_NAMES, STORAGE_PREFIX
from spark_lance.spark.options.option_fields import OPTIONS, options_that_choose
from spark_lance.spark.options.options import read_options
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.protocol import ChangeAnswer
from spark_lance.spark.table.base import SubqueryColumns
from spark_lance.spark.table.changing import delete_rows, update_rows
from spark_lance.spark.table.expressions import ResolvedExpression, quoted
from spark_lance.spark.table.merging import MergeBuilder
from spark_lance.spark.table.row_commits import RETRIES, RETRY_TIMEOUT, ChangeResult, policy
from spark_lance.spark.table.staging import staged_options
from spark_lance.spark.table.table import LanceTable

logger = logging.getLogger(__name__)

# The aliases in the expressions that Java sends.
_TARGET, _SOURCE = "__lance_target", "__lance_rows"
# With these options a view shows another version or a part of the table, so it cannot be changed.
_ROW_SELECTING_OPTIONS = options_that_choose("version", "changes", "part", "search", "source")
# Options with the location of a table.
_LOCATION_OPTIONS = ("path", "branch")
_SESSIONS = 1000


@dataclass(frozen=True)
class LastChange:
    """The result of a statement.

    Attributes:
        statement: DELETE, UPDATE or MERGE.
        table: the table's name in SQL, or its path.
        counts: the numbers of changed rows and written bytes.
        seconds: the duration.
    """

    statement: str
    table: str
    counts: ChangeResult
    seconds: float

    def row(self) -> tuple[Any, ...]:
        """Return the values in the order of `CALL <catalog>.system.last_change()`."""
        counts = self.counts
        return (
            *(self.statement, self.table, counts.version, counts.updated, counts.deleted, counts.inserted),
            *(counts.bytes_written, self.seconds),
        )


class _LastChanges:
    """The last change of each session, for a limited number of the most recent sessions."""

    def __init__(self) -> None:
        self._by_session: OrderedDict[str, LastChange] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, session: str, change: LastChange) -> None:
        with self._lock:
            self._by_session[session] = change
            self._by_session.move_to_end(session)
            while len(self._by_session) > _SESSIONS:
                self._by_session.popitem(last=False)

    def get(self, session: str) -> LastChange | None:
        with self._lock:
            return self._by_session.get(session)


_CHANGES = _LastChanges()


def last_change(session: str) -> LastChange | None:
    """Return the result of a session's last DELETE, UPDATE or MERGE; None if there was none.

    Args:
        session: the session's id (Java's `sessionUUID`).
    """
    return _CHANGES.get(session)


def change_rows(request: BridgeRequest) -> ChangeAnswer:
    """Run a statement, and return its counts.

    Raises:
        LanceError: see the corresponding method of `LanceTable`.
        PySparkException: Spark refused an expression, or a job failed.
    """
    body, subject = request.body, request.subject
    began = time.monotonic()
    body = {**body, "options": staged_options(body["options"], body.get("staging"))}
    spark = python_session(request.spark, subject["session"])
    statement = _Statement(body, subject, _table(spark, body))
    try:
        result = getattr(statement, body["kind"])()
    except CapturedException as error:
        # Java throws Spark's own exception again.
        subject["thrown"] = java_exception(error)
        raise
    name = body["display_name"]
    title = statement.table.path if name.lower() == "lance" else name
    change = LastChange(body["kind"].upper(), title, result, round(time.monotonic() - began, 3))
    _CHANGES.put(body["session"], change)
    logger.info(
        "%s %s: %d rows updated, %d deleted, %d inserted, version %d, %.2f s",
        *(change.statement, change.table, result.updated, result.deleted, result.inserted, result.version),
        change.seconds,
    )
    return {
        "num_affected_rows": result.affected,
        "num_updated_rows": result.updated,
        "num_deleted_rows": result.deleted,
        "num_inserted_rows": result.inserted,
    }


@dataclass(frozen=True)
class _Statement:
    """A statement, its expressions and its table. Each method runs the kind of statement with its name."""

    body: Mapping[str, Any] = field(repr=False)
    subject: Any
    table: LanceTable

    def delete(self) -> ChangeResult:
        return delete_rows(
            self.table,
            self._optional_expression("condition", self.body),
            _retry_policy(),
            self._subquery_columns,
        )

    def update(self) -> ChangeResult:
        condition = self._optional_expression("condition", self.body)
        return update_rows(
            self.table, condition, self._values(self.body), _retry_policy(), self._subquery_columns
        )

    def merge(self) -> ChangeResult:
        names = self.body["source"]
        source = dataframe.DataFrame(self.subject["source"], self.table.spark).toDF(*names)
        rows = self._with_subqueries(source, "source").alias(_SOURCE)
        condition = self._expression(self.body["condition"], self.body["equal"])
        merge = MergeBuilder(self.table, rows, condition, self._subquery_columns)
        add = {
            ("matched", "update"): merge.whenMatchedUpdate,
            ("not matched", "insert"): merge.whenNotMatchedInsert,
            ("not matched by source", "update"): merge.whenNotMatchedBySourceUpdate,
        }
        drop = {
            "matched": merge.whenMatchedDelete,
            "not matched by source": merge.whenNotMatchedBySourceDelete,
        }
        for clause in self.body["clauses"]:
            clause_condition = self._optional_expression("condition", clause)
            if clause["kind"] == "delete":
                drop[clause["rows"]](clause_condition)
            else:
                add[clause["rows"], clause["kind"]](clause_condition, self._values(clause))
        return merge.run()

    @property
    def _subquery_columns(self) -> SubqueryColumns:
        return SubqueryColumns(
            lambda frame: self._with_subqueries(frame, "target"),
            lambda frame: self._with_subqueries(frame, "pairs"),
        )

    def _with_subqueries(self, frame: DataFrame, rows: str) -> DataFrame:
        """Add columns for subqueries that refer to columns of the table, of the source, or of both."""
        attached = self.subject["change"].attach(java_frame(frame), rows)
        return dataframe.DataFrame(attached, self.table.spark)

    def _values(self, part: Mapping[str, Any]) -> dict[str, ResolvedExpression]:
        values: dict[str, ResolvedExpression] = {}
        for path, value in part["values"]:
            if values.setdefault(quoted(*path), resolved := self._expression(value)) is not resolved:
                raise OptionError(f"{'.'.join(path)} is set twice")
        return values

    def _optional_expression(self, part: str, clause: Mapping[str, Any]) -> ResolvedExpression | None:
        return None if clause[part] is None else self._expression(clause[part])

    def _expression(
        self, text: Mapping[str, Any], equal: list[list[str]] | None = None
    ) -> ResolvedExpression:
        column = Column(self.subject["columns"][text["column"]])
        pairs = tuple((target_name.lower(), source_name) for target_name, source_name in equal or ())
        return ResolvedExpression(column, frozenset(text["needs"]), text["text"], text["of_source"], pairs)


def _retry_policy() -> Any:
    return policy(RETRIES, RETRY_TIMEOUT)


def _table(spark: SparkSession, body: Mapping[str, Any]) -> LanceTable:
    """Return the table that a statement changes.

    Raises:
        UnsupportedFormatError: the statement names a view that shows other rows than the newest version has.
    """
    options = read_options(body["options"])
    for name in _ROW_SELECTING_OPTIONS:
        if getattr(options, name) != OPTIONS[name].default:
            raise UnsupportedFormatError(
                f"{body['kind'].upper()} changes the newest version of a whole table, and this view shows "
                f"something else by its option {name!r}: name the table itself"
            )
    location = {
        key: value
        for key, value in body["options"].items()
        if key.lower() in _LOCATION_OPTIONS
        or key.lower().startswith(STORAGE_PREFIX)
        or key.lower() in STORAGE_NAMES
    }
    location = {
        key.lower() if key.lower() in _LOCATION_OPTIONS else key: value for key, value in location.items()
    }
    return LanceTable.forPath(spark, location.pop("path"), **location).alias(_TARGET)
