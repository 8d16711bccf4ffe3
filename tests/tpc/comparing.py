"""Queries over tables by name, and over the same rows in Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["answers_differ", "make_tables", "parquet_files", "parquet_session"]

_LIMIT = re.compile(r"\blimit\s+\d+\s*;?\s*$", re.IGNORECASE)
# Sums of floats depend on the order of the rows in their last digits.
_DIGITS = 9


def parquet_session(spark: SparkSession, files: Mapping[str, str]) -> SparkSession:
    """Return a session with a view of each Parquet file, by the table's name."""
    session = spark.newSession()
    for name, path in files.items():
        session.read.parquet(path).createOrReplaceTempView(name)
    return session


def make_tables(
    session: SparkSession, namespace: str, files: Mapping[str, str], indices: Iterable[str]
) -> None:
    """Make a table of each Parquet file in a namespace of the catalog `lance`, and make it the current one.

    Args:
        session: enabled.
        namespace: new.
        files: of the tables, by name.
        indices: what gets an index: `table.column KIND`.
    """
    session.sql(f"CREATE NAMESPACE lance.{namespace}").collect()
    session.sql(f"USE lance.{namespace}").collect()
    for name, path in files.items():
        session.sql(f"CREATE TABLE {name} AS SELECT * FROM parquet.`{path}`").collect()
    for index in indices:
        (table, column), kind = index.split()[0].split("."), index.split()[1]
        session.sql(f"CALL lance.system.create_index('{namespace}.{table}', '{column}', '{kind}')").collect()


def answers_differ(ours: SparkSession, theirs: SparkSession, query: str) -> str:
    """Return what is different in two sessions' answers to a query; empty if nothing is.

    Rows are compared without the limit at the end: which of equally good rows are behind it is nobody's word.
    """
    for text in dict.fromkeys((query, _LIMIT.sub("", query.rstrip()))):
        ours_frame, theirs_frame = ours.sql(text), theirs.sql(text)
        if ours_frame.schema.simpleString() != theirs_frame.schema.simpleString():
            return f"{ours_frame.schema.simpleString()} is not {theirs_frame.schema.simpleString()}"
        mine, other = _rows(ours_frame.collect()), _rows(theirs_frame.collect())
        if len(mine) != len(other):
            return f"{len(mine)} rows, not {len(other)}"
    wrong = [(a, b) for a, b in zip(mine, other, strict=True) if a != b]
    return f"{len(wrong)} of {len(other)} rows differ, such as {wrong[0]}" if wrong else ""


def _rows(found: Iterable[Any]) -> list[str]:
    return sorted(str(tuple(_rounded(value) for value in row)) for row in found)


def _rounded(value: Any) -> Any:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else value


def parquet_files(folder: Path) -> dict[str, str]:
    """Return the Parquet files of a folder by the names of their tables."""
    return {path.stem: str(path) for path in sorted(folder.glob("*.parquet"))}
