"""One file of Spark's suite in two sessions, over Lance tables and over Parquet tables, compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark_sql.inputs import POSTGRES_TABLES, InputFile, data_folder

__all__ = ["Answer", "Outcome", "Result", "Side", "compare_file", "make_shared_tables"]

_PROVIDER = re.compile(r"\bUSING\s+(?:parquet|orc|json|csv)\b", re.IGNORECASE)
_CREATES_TABLE = re.compile(r"^\s*(?:CREATE|REPLACE)\b.*?\bTABLE\b", re.IGNORECASE | re.DOTALL)
_VIEW_OF_VALUES = re.compile(
    r"^\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP|TEMPORARY)\s+VIEW\s+(?:IF\s+NOT\s+EXISTS\s+)?`?(\w+)`?.*\bVALUES\b",
    re.IGNORECASE | re.DOTALL,
)
# Statements whose rows name the provider, the location or the plan of a table.
_ABOUT_TABLES = re.compile(
    r"^\s*(?:EXPLAIN|SHOW\s+(?:CREATE|TABLE|TBLPROPERTIES|VIEWS|CATALOGS|NAMESPACES|DATABASES|SCHEMAS|CURRENT)"
    r"|DESC(?:RIBE)?|ANALYZE)\b|.*\bcurrent_catalog\b",
    re.IGNORECASE | re.DOTALL,
)
_INSERT = re.compile(r"^\s*INSERT\s+(?:INTO|OVERWRITE)\s+(?:TABLE\s+)?`?(\w+)", re.IGNORECASE)
# Spark puts the full names of tables into the names of some columns.
_CATALOG = re.compile(r"\b(?:lance|spark_catalog)\.(?=default\.)")
# Which rows they return depends on the order of the rows in the files.
_DEPENDS_ON_ORDER = re.compile(
    r"\b(?:LIMIT|OFFSET|FETCH|TABLESAMPLE|ROWNUM|(?:first|last|any_value|first_value|last_value|mode|listagg"
    r"|string_agg|collect_list|array_agg|row_number|lag|lead|nth_value|ntile|rand|randn|uuid)\s*\()",
    re.IGNORECASE,
)
# Both sessions share one database of global views.
_GLOBAL_VIEWS = re.compile(r"\bglobal_temp\b|\bGLOBAL\s+TEMP", re.IGNORECASE)
_REFUSALS = (PySparkException, Py4JJavaError)
_FLOAT = re.compile(r"(?<![\w.])-?\d+\.\d+(?:E-?\d+)?(?![\w.])")
_BETWEEN_ROWS = "\x1e"
_DIGITS = 9
_SESSION_OF_A_FILE = ("spark.sql.session.timeZone", "America/Los_Angeles")


class Outcome(Enum):
    """How the answer over Lance compares with the answer over Parquet."""

    EQUAL = "equal"
    ROWS = "other rows"
    SCHEMA = "another schema"
    REFUSED = "refused"
    FOLLOWS = "reads a table whose rows were refused"
    ABOUT_TABLES = "another description of a table or a plan"
    VARYING = "any of several answers is right"
    CONTROL_FAILED = "fails on Parquet"


@dataclass(frozen=True)
class Result:
    """One statement compared.

    Attributes:
        file: name of the input file.
        number: position of the statement in it, from 0.
        statement: its text.
        outcome: the comparison.
        detail: the first difference, or the error.
    """

    file: str
    number: int
    statement: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """Schema and rows of a statement, or its error."""

    schema: str = ""
    rows: tuple[str, ...] = ()
    error: str | None = None


@dataclass
class Side:
    """A session whose tables are of one provider.

    Attributes:
        session: its current namespace is where tables without a qualified name are made.
        provider: "lance" or "parquet".
    """

    session: SparkSession
    provider: str
    _views: int = 0

    def run(self, statement: str) -> Answer:
        """Run a statement with the provider's tables."""
        text = self._with_provider(statement)
        try:
            frame = self.session.sql(text)
            answer = Answer(_CATALOG.sub("", frame.schema.simpleString()), tuple(self._texts(frame)))
        except _REFUSALS as error:
            return Answer(error=_first_line(error))
        return answer

    def _texts(self, frame: DataFrame) -> list[str]:
        """Return each row as text, as Spark's own suite does: Python lacks values for some rows."""
        plan = frame._jdf.queryExecution().executedPlan()
        jvm: Any = self.session._jvm
        rows = jvm.org.apache.spark.sql.execution.HiveResult.hiveResultString(plan).mkString(_BETWEEN_ROWS)
        return [_rounded(row) for row in rows.split(_BETWEEN_ROWS)] if rows else []

    def store_view(self, name: str) -> bool:
        """Replace a temporary view by one over a table with the same rows; False if it cannot be stored."""
        self._views += 1
        table = f"stored_view_{self._views}"
        try:
            frame: DataFrame = self.session.table(name)
            frame.coalesce(1).write.format(self.provider).saveAsTable(table)
            self.session.table(table).createOrReplaceTempView(name)
        except _REFUSALS:
            return False
        return True

    def _with_provider(self, statement: str) -> str:
        if not _CREATES_TABLE.match(statement):
            return statement
        return _PROVIDER.sub(f"USING {self.provider}", statement)


def make_shared_tables(side: Side) -> None:
    """Make the tables that Spark's suite has before any file runs."""
    session, provider = side.session, side.provider
    frames = {
        "testdata": session.sql(
            "SELECT CAST(id AS INT) AS key, CAST(id AS STRING) AS value FROM range(1, 101)"
        ),
        "arraydata": session.sql(
            "SELECT numbers AS arraycol, array(numbers) AS nestedarraycol"
            " FROM VALUES (array(1, 2, 3)), (array(2, 3, 4)) AS t(numbers)"
        ),
        "mapdata": session.sql(
            "SELECT map(1, 'a' || n, 2, 'b' || n, 3, 'c' || n, 4, 'd' || n, 5, 'e' || n) AS mapcol"
            " FROM VALUES 1, 2, 3, 4, 5 AS t(n)"
        ),
    }
    for name, (file, schema) in POSTGRES_TABLES.items():
        frames[name] = session.read.csv(str(data_folder() / file), schema=schema, sep="\t")
    for name, frame in frames.items():
        frame.coalesce(1).write.format(provider).saveAsTable(name)


def compare_file(file: InputFile, ours: Side, control: Side) -> Iterator[Result]:
    """Run the statements of a file on both sides and compare their answers.

    Args:
        file: the statements.
        ours: over Lance tables.
        control: over Parquet tables.
    """
    for side in (ours, control):
        side.session.conf.set(*_SESSION_OF_A_FILE)
        for name, value in file.settings.items():
            side.session.conf.set(name, value)
    incomplete: set[str] = set()
    for number, statement in enumerate(file.statements):
        if _GLOBAL_VIEWS.search(statement):
            continue
        expected = control.run(statement)
        if expected.error is not None:
            # Both sides keep the same tables only if neither runs it.
            yield Result(file.name, number, statement, Outcome.CONTROL_FAILED, expected.error)
            continue
        answer = ours.run(statement)
        outcome, detail = _judge(statement, answer, expected)
        if outcome is Outcome.ROWS and (
            _DEPENDS_ON_ORDER.search(statement) or control.run(statement).rows != expected.rows
        ):
            outcome = Outcome.VARYING
        if outcome is Outcome.REFUSED and (insert := _INSERT.match(statement)):
            incomplete.add(insert[1].lower())
        if outcome is Outcome.ROWS and incomplete.intersection(re.findall(r"\w+", statement.lower())):
            outcome = Outcome.FOLLOWS
        yield Result(file.name, number, statement, outcome, detail)
        view = _VIEW_OF_VALUES.match(statement)
        if view and answer.error is None and control.store_view(view[1]):
            ours.store_view(view[1])


def _judge(statement: str, answer: Answer, expected: Answer) -> tuple[Outcome, str]:
    if answer.error is not None:
        return Outcome.REFUSED, answer.error
    same_rows = sorted(answer.rows) == sorted(expected.rows)
    if answer.schema == expected.schema and same_rows:
        return Outcome.EQUAL, ""
    if _ABOUT_TABLES.match(statement):
        return Outcome.ABOUT_TABLES, ""
    if answer.schema != expected.schema:
        return Outcome.SCHEMA, f"{answer.schema} is not {expected.schema}"
    return Outcome.ROWS, _first_difference(answer.rows, expected.rows)


def _first_difference(rows: Iterable[str], expected: Iterable[str]) -> str:
    ours, theirs = sorted(rows), sorted(expected)
    pairs = ((a, b) for a, b in zip(ours, theirs, strict=False) if a != b)
    first = next(pairs, None)
    counts = f"{len(ours)} rows, {len(theirs)} expected"
    return f"{counts}; {first[0]} is not {first[1]}" if first else counts


def _rounded(text: str) -> str:
    """Return a row's text with fewer digits of floats: row order changes the last ones of sums."""
    return _FLOAT.sub(lambda match: f"{float(match[0]):.{_DIGITS}g}", text)


def _first_line(error: Exception) -> str:
    """Return the first line of an error that says something; py4j puts one of its own before it."""
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("An error occurred")]
    return lines[0][:300] if lines else type(error).__name__
