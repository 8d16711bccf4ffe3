"""Runs the code of the documentation of Iceberg and Delta with `lance` in place of their names, and counts.

    python -m tests.peers.run FOLDER

FOLDER has a fetched copy (see pages.py). `--only ddl` runs the pages whose names contain a text. `--report
FILE` writes each statement's outcome as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_lance
from tests.peers.fixtures import CATALOGS, Site, values_of
from tests.peers.pages import Page, Statement, read_pages
from tests.spark_sql.run import start_session

__all__ = ["Outcome", "Result", "main", "run_pages"]

# Pages that need accounts of clouds, or services or engines of others.
_ELSEWHERE = ("delta-storage", "delta-sharing", "presto", "redshift", "snowflake")
_HINT = re.compile(
    r"\b(?:write|use|uses|instead|did you mean|leave|name (?:the|that|it)|call|CALL|see|give|make|set|drop|cluster|move|cast|"
    r"repartition|compute|add|read|enable)\b"
)
_SPELLING = re.compile(
    r"CALL |option '|ALTER TABLE|CREATE |SELECT |\.\w+\(|\w+\(\)|procedure |VERSION AS OF|INSERT |DESCRIBE |SHOW "
)
_OURS = re.compile(
    r"spark_lance|\blance\b|Lance|option '|procedure|TABLE_OR_VIEW|LANCE|leave out LOCATION"
    # Our classes of errors, and Java's, which Spark raises with a condition in brackets.
    r"|^(?:Option|Schema|Expression|UnsupportedFormat|ColumnNotFound)Error: "
    r"|^(?:IllegalArgument|UnsupportedOperation)Exception: (?!\[)",
    re.IGNORECASE,
)
# Statements that Spark or the other format refuses as well, or that are about other engines: they say
# nothing about us. Each has the reason.
_NOT_OURS = (
    (r"addColumn\('lastName', 'STRING', comment='surname'\)", "adds a column twice"),
    (r'eventTime >= "[^"]*" <= "', "compares a condition with a time"),
    (r"format\('lance'\)\.option\('fs\.azure[^\n]*\.read\(", "DataFrameReader has no read()"),
    (r"\.write\.mode\('append'\)\.withSchemaEvolution\(\)", "Spark's DataFrameWriter has no such method"),
    (r"format\('hudi'\)", "needs Hudi"),
    (r"configure_spark_with_delta_pip|DeltaSparkSessionExtension", "starts a session with Delta's JAR"),
    (r"UPDATE my_test WHERE", "UPDATE has SET before WHERE"),
    (r"THEN UPDATE \*", "UPDATE * lacks SET"),
    (r"WHEN MATCHED\s+UPDATE SET \*", "WHEN MATCHED lacks THEN"),
    (r"PARTITION \(level = 'INFO'\)\s+SELECT uuid, first\(level\)", "selects one column too many"),
)


_STREAM_SECONDS = 20
# Statements about tables that are registered at a place, or of other formats: Delta's pages use the session's
# own catalog for them.
_SESSION_CATALOG = re.compile(
    r"\b(?:TABLE|CLUSTER BY)\b.*\bLOCATION\b|USING PARQUET|option\(['\"]path['\"].*saveAsTable",
    re.DOTALL | re.IGNORECASE,
)
# Programs whose page says what `deltaTable` has, in its text only.
_KEYED = re.compile(r"newDedupedLogs|upsertToDelta|\boptimize\(\)")


class Outcome(Enum):
    """The outcome of a statement."""

    WORKS = "works"
    SPELLING = "other spelling"
    HINT = "hint"
    NOT_OURS = "not ours"
    REFUSED = "refused"
    ELSE = "something else"


@dataclass(frozen=True)
class Result:
    """A statement and its outcome; `detail` is the error, or what is missing in the result."""

    page: str
    number: int
    language: str
    outcome: Outcome
    statement: str
    detail: str = ""


def run_pages(spark: SparkSession, pages: Sequence[Page], folder: Path) -> Iterator[Result]:
    """Yield the outcome of every statement, each page over tables of its own."""
    for page in pages:
        place = folder / page.name.replace("/", "-")
        session = spark.newSession()
        for catalog in CATALOGS:
            spark_lance.enable(session, catalog=catalog, root=str(place / catalog), save_modes=True)
        spark_lance.enable(session, catalog="spark_catalog")
        session.sql("CREATE NAMESPACE IF NOT EXISTS lance.default")
        session.sql("CREATE NAMESPACE IF NOT EXISTS prod.db")
        site = Site(session, place)
        values = values_of(site, page.name)
        remaining, block = {name: values[name] for name in ("df", "deltaTable")}, -1
        for statement in page.statements:
            owner = "lance"
            text = statement.text
            if page.name.startswith("delta/") and _SESSION_CATALOG.search(text) and "CLONE" not in text:
                owner = "spark_catalog"
            if page.name.startswith("iceberg/") and re.match(r"CREATE TABLE \w+ \(.*USING parquet", text):
                owner = "spark_catalog"
            session.sql(f"USE {owner}.default")
            if statement.block != block:
                values["df"], block = remaining["df"], statement.block
                # A block about defaults of properties is not about the tables of the next blocks.
                for name in ("appendOnly", "enableRowTracking"):
                    session.conf.unset(f"spark.databricks.delta.properties.defaults.{name}")
            if _KEYED.search(text):
                values["deltaTable"] = remaining["deltaTable"]
            began = time.monotonic()
            yield _run(site, values, page, statement)
            if time.monotonic() - began > 20:
                print(f"slow: {page.name} {statement.number}", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)


def _run(site: Site, values: dict[str, Any], page: Page, statement: Statement) -> Result:
    text = site.replaced(statement.text, statement.language)
    outcome, detail = Outcome.WORKS, ""
    try:
        site.prepare(text)
    except Exception as error:  # noqa: BLE001 - reported as what it is
        return Result(
            page.name, statement.number, statement.language, Outcome.REFUSED, text, f"PREPARE {_line(error)}"
        )
    text = site.replaced(statement.text, statement.language)
    values["timestamp_string"] = values["yesterday"] = values["last_week"] = site.moment
    try:
        frame = site.spark.sql(text) if statement.language == "sql" else _program(site, values, text)
        if isinstance(frame, DataFrame):
            frame.collect()
            missing = [
                name for name in statement.columns if name.lower() not in {c.lower() for c in frame.columns}
            ]
            if missing:
                outcome, detail = (
                    Outcome.ELSE,
                    f"no columns {', '.join(missing)}; columns {', '.join(frame.columns)}",
                )
    except Exception as error:  # noqa: BLE001 - every error is an outcome
        detail = _line(error)
        outcome = _refusal(detail)
        reason = next((reason for pattern, reason in _NOT_OURS if re.search(pattern, text)), None)
        if outcome is Outcome.REFUSED and reason is not None:
            outcome, detail = Outcome.NOT_OURS, reason
    return Result(page.name, statement.number, statement.language, outcome, text, detail)


def _program(site: Site, values: dict[str, Any], text: str) -> object:
    before = dict(values)
    lines = text.rsplit("\n", 1)
    try:
        result = _evaluated(values, text, lines)
        fresh = [value for name, value in values.items() if before.get(name) is not value]
        result = result if result is not None else next((v for v in fresh if isinstance(v, DataFrame)), None)
        if isinstance(result, DataFrame) and result.isStreaming:
            query = result.writeStream.format("noop").trigger(availableNow=True).start()
            query.awaitTermination(_STREAM_SECONDS)
            _check(query)
            result = None
        for query in site.spark.streams.active:
            _wait(query)
    finally:
        for query in site.spark.streams.active:
            query.stop()
        values["spark"] = site.spark
    return result


def _check(query: Any) -> None:
    """Raise what ended a stream."""
    error: BaseException | None = query.exception()
    if error is not None:
        raise error


def _wait(query: Any) -> None:
    """Wait for the first batch of a stream, which may have no end."""
    deadline = time.monotonic() + _STREAM_SECONDS
    while query.isActive and not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.2)
    _check(query)


def _evaluated(values: dict[str, Any], text: str, lines: list[str]) -> object:
    text = re.sub(r"^from pyspark\.sql\.functions import \*$", "", text, flags=re.MULTILINE)
    import ast

    body = ast.parse(text).body
    if body and isinstance(body[-1], ast.Expr):
        exec(compile(ast.Module(body[:-1], []), "page", "exec"), values)
        return eval(compile(ast.Expression(body[-1].value), "page", "eval"), values)
    exec(compile(ast.Module(body, []), "page", "exec"), values)
    return None


def _refusal(detail: str) -> Outcome:
    if "PARSE_SYNTAX_ERROR" in detail or not _OURS.search(detail) or not _HINT.search(detail):
        return Outcome.REFUSED
    return Outcome.SPELLING if _SPELLING.search(detail) else Outcome.HINT


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--report", type=Path)
    choice = parser.parse_args(arguments)
    pages = [
        page
        for page in read_pages(choice.folder)
        if not page.name.endswith(_ELSEWHERE) and "integration" not in page.name
    ]
    pages = [page for page in pages if choice.only in page.name]
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    spark = start_session(folder)
    counts: dict[str, Counter[Outcome]] = {page.name: Counter() for page in pages}
    report = choice.report.open("w") if choice.report else None
    try:
        for result in run_pages(spark, pages, folder):
            counts[result.page][result.outcome] += 1
            if report:
                report.write(json.dumps({**asdict(result), "outcome": result.outcome.value}) + "\n")
                report.flush()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    _print(counts)
    return 0


def _print(counts: dict[str, Counter[Outcome]]) -> None:
    print(f"{'page':36}" + "".join(f"{outcome.value:>16}" for outcome in Outcome) + f"{'all':>6}")
    total: Counter[Outcome] = Counter()
    for name, page in counts.items():
        total += page
        print(
            f"{name:36}" + "".join(f"{page[outcome]:16}" for outcome in Outcome) + f"{sum(page.values()):6}"
        )
    print(
        f"{'all pages':36}"
        + "".join(f"{total[outcome]:16}" for outcome in Outcome)
        + f"{sum(total.values()):6}"
    )


if __name__ == "__main__":
    sys.exit(main())
