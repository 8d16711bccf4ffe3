"""DELETE, UPDATE and MERGE: statements that Spark has resolved, done by the jobs of `LanceTable`.

The Java side (`LanceRowLevel`) hands over what a statement is about, and its expressions as Columns.
Columns of the table stand in them behind one alias, those of the source of a MERGE behind another.
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
from spark_lance.spark.base.compat import java_exception, java_frame, session_of
from spark_lance.spark.options.foreign_options import STORAGE_NAMES, STORAGE_PREFIX
from spark_lance.spark.options.option_fields import OPTIONS, options_that_choose
from spark_lance.spark.options.options import read_options
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.table.base import WithSubqueryColumns
from spark_lance.spark.table.changing import delete_rows, update_rows
from spark_lance.spark.table.expressions import Resolved, quoted
from spark_lance.spark.table.merging import MergeBuilder
from spark_lance.spark.table.row_commits import RETRIES, RETRY_TIMEOUT, Changed, policy
from spark_lance.spark.table.staging import staged_options
from spark_lance.spark.table.table import LanceTable

logger = logging.getLogger(__name__)

# The aliases in the expressions that Java hands over.
_TARGET, _SOURCE = "__lance_target", "__lance_rows"
# With these options a view shows another version or a part of the table, so its rows cannot be changed.
_OTHER_ROWS = options_that_choose("version", "changes", "part", "search", "source")
# Options that lead to a table.
_PLACE = ("path", "branch")
_SESSIONS = 1000


@dataclass(frozen=True)
class LastChange:
    """The result of a statement.

    Attributes:
        statement: DELETE, UPDATE or MERGE.
        table: as SQL names it, or its path.
        counts: the rows and bytes that it changed.
        seconds: how long it took.
    """

    statement: str
    table: str
    counts: Changed
    seconds: float

    def row(self) -> tuple[Any, ...]:
        """Return the values in the order of `CALL <catalog>.system.last_change()`."""
        counts = self.counts
        return (
            *(self.statement, self.table, counts.version, counts.updated, counts.deleted, counts.inserted),
            *(counts.bytes_written, self.seconds),
        )


class _LastChanges:
    """The last change of each session, for a bounded number of sessions, the most recent ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, LastChange] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, session: str, change: LastChange) -> None:
        with self._lock:
            self._known[session] = change
            self._known.move_to_end(session)
            while len(self._known) > _SESSIONS:
                self._known.popitem(last=False)

    def get(self, session: str) -> LastChange | None:
        with self._lock:
            return self._known.get(session)


_CHANGES = _LastChanges()


def last_change(session: str) -> LastChange | None:
    """Return what the last DELETE, UPDATE or MERGE of a session did; None if there was none.

    Args:
        session: the session's id (Java's `sessionUUID`).
    """
    return _CHANGES.get(session)


def change_rows(request: BridgeRequest) -> None:
    """Carry out a statement.

    Raises:
        LanceError: as the method of `LanceTable` that does it.
        PySparkException: what Spark said of an expression or a job.
    """
    body, subject = request.body, request.subject
    began = time.monotonic()
    body = {**body, "options": staged_options(body["options"], body.get("staging"))}
    spark = session_of(request.spark, subject["session"])
    statement = _Statement(body, subject, _table(spark, body))
    try:
        result = getattr(statement, body["kind"])()
    except CapturedException as error:
        # Java throws it again as it is, with Spark's name for it.
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


@dataclass(frozen=True)
class _Statement:
    """A statement, its expressions and its table. The methods are named like kinds of statements."""

    body: Mapping[str, Any] = field(repr=False)
    subject: Any
    table: LanceTable

    def delete(self) -> Changed:
        return delete_rows(self.table, self._some("condition", self.body), _reruns(), self._wider)

    def update(self) -> Changed:
        condition = self._some("condition", self.body)
        return update_rows(self.table, condition, self._values(self.body), _reruns(), self._wider)

    def merge(self) -> Changed:
        names = self.body["source"]
        source = dataframe.DataFrame(self.subject["source"], self.table.spark).toDF(*names)
        rows = self._attached(source, "source").alias(_SOURCE)
        condition = self._expression(self.body["condition"], self.body["equal"])
        merge = MergeBuilder(self.table, rows, condition, self._wider)
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
            only = self._some("condition", clause)
            if clause["kind"] == "delete":
                drop[clause["rows"]](only)
            else:
                add[clause["rows"], clause["kind"]](only, self._values(clause))
        return merge.run()

    @property
    def _wider(self) -> WithSubqueryColumns:
        return WithSubqueryColumns(
            lambda frame: self._attached(frame, "target"), lambda frame: self._attached(frame, "pairs")
        )

    def _attached(self, frame: DataFrame, rows: str) -> DataFrame:
        """Add the values of subqueries that name columns of the table, of the source, or of both."""
        attached = self.subject["change"].attach(java_frame(frame), rows)
        return dataframe.DataFrame(attached, self.table.spark)

    def _values(self, part: Mapping[str, Any]) -> dict[str, Resolved]:
        values: dict[str, Resolved] = {}
        for path, value in part["values"]:
            if values.setdefault(quoted(*path), resolved := self._expression(value)) is not resolved:
                raise OptionError(f"{'.'.join(path)} is set twice")
        return values

    def _some(self, part: str, clause: Mapping[str, Any]) -> Resolved | None:
        return None if clause[part] is None else self._expression(clause[part])

    def _expression(self, text: Mapping[str, Any], equal: list[list[str]] | None = None) -> Resolved:
        column = Column(self.subject["columns"][text["column"]])
        pairs = tuple((mine.lower(), theirs) for mine, theirs in equal or ())
        return Resolved(column, frozenset(text["needs"]), text["text"], text["of_source"], pairs)


def _reruns() -> Any:
    return policy(RETRIES, RETRY_TIMEOUT)


def _table(spark: SparkSession, body: Mapping[str, Any]) -> LanceTable:
    """Return the table that a statement is about.

    Raises:
        UnsupportedFormatError: what leads to it shows other rows than those of the newest version.
    """
    options = read_options(body["options"])
    for name in _OTHER_ROWS:
        if getattr(options, name) != OPTIONS[name].default:
            raise UnsupportedFormatError(
                f"{body['kind'].upper()} changes the newest version of a whole table, and this view shows "
                f"something else by its option {name!r}: name the table itself"
            )
    place = {
        key: value
        for key, value in body["options"].items()
        if key.lower() in _PLACE or key.lower().startswith(STORAGE_PREFIX) or key.lower() in STORAGE_NAMES
    }
    place = {key.lower() if key.lower() in _PLACE else key: value for key, value in place.items()}
    return LanceTable.forPath(spark, place.pop("path"), **place).alias(_TARGET)
