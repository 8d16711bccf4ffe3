"""Random queries over random tables, by name: their answers are those of the same rows in Spark's memory."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from tests.conftest import interpreted
from tests.spark.sql.random_queries import INDICES, SCHEMA, Queries, rows

ROWS = 300
# The columns as Spark names their types.
COLUMNS = (
    "id long not null, i int, tiny byte, n double, f float, d decimal(12,3), big decimal(38,10), s string, "
    "raw binary, yes boolean, day date, t timestamp, w timestamp_ntz, st struct<x: int, y: string>, "
    "l array<int>"
)
# Of a session: where rows are read, and what a moment is.
SETTINGS = {
    "spark.lance.localRows": ("0", "40", "10000"),
    "spark.lance.transport": ("columns", "rows"),
    "spark.sql.session.timeZone": ("UTC", "America/New_York", "Asia/Kolkata"),
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.cbo.enabled": ("true", "false"),
}


def made(draw: random.Random, path: str) -> list[dict[str, Any]]:
    """Make a table with indices, some of which know only a part of it, and return its rows."""
    known: list[dict[str, Any]] = []
    options: dict[str, Any] = {"enable_stable_row_ids": draw.random() < 0.5}
    indexed = draw.sample(sorted(INDICES), draw.randint(0, 6))
    parts = draw.randint(1, 4)
    for part in range(parts):
        more = rows(draw, ROWS // parts, len(known))
        table = pa.Table.from_pylist(more, SCHEMA)
        size = draw.choice((20, 1000))
        spark_lance.write_dataset(table, path, mode="append", max_rows_per_file=size, **options)
        known += more
        # What comes later is not in the index.
        if part == max(0, parts - 2):
            for name in indexed:
                spark_lance.dataset(path).create_scalar_index(name, draw.choice(INDICES[name]))
        if draw.random() < 0.5:
            gone = set(draw.sample(range(len(known)), len(known) // 10))
            spark_lance.dataset(path).delete(f"id in ({', '.join(map(str, gone))})")
            known = [row for row in known if row["id"] not in gone]
    if draw.random() < 0.5:
        changed = {row["id"] for row in known if row["id"] % 9 == 4}
        spark_lance.dataset(path).update({"i": "77", "s": "'zz'", "n": "0.1"}, where="id % 9 = 4")
        known = [{**row, "i": 77, "s": "zz", "n": 0.1} if row["id"] in changed else row for row in known]
    if draw.random() < 0.3:
        spark_lance.dataset(path).optimize.compact_files()
    if draw.random() < 0.3:
        spark_lance.dataset(path).optimize.optimize_indices()
    return known


def told(session: SparkSession, query: str, in_order: bool) -> list[str] | str:
    """Return the rows of an answer as texts, or the kind of its error."""
    try:
        values = session.sql(query).collect()
    except PySparkException as error:
        return f"error {error.getCondition() if hasattr(error, 'getCondition') else error.getErrorClass()}"
    # Sums and groups have no sign of zero.
    texts = [re.sub(r"-0\.0\b", "0.0", str(tuple(row))) for row in values]
    return texts if in_order else sorted(texts)


def opened(spark: SparkSession, root: str, seed: int, draw: random.Random) -> tuple[SparkSession, str]:
    """Return a session with a table, its name or that of a view, and `plain`, its rows in Spark's memory."""
    session = spark_lance.enable(interpreted(spark.newSession()), root=root)
    session.conf.set("spark.sql.ansi.enabled", "false")
    for name, values in SETTINGS.items():
        session.conf.set(name, draw.choice(values))
    known = made(draw, f"{root}/t{seed}.lance")
    plain = session.createDataFrame(pa.Table.from_pylist(known, SCHEMA), COLUMNS)
    plain.createOrReplaceTempView("plain")
    if draw.random() < 0.3:
        session.read.format("lance").load(f"{root}/t{seed}.lance").createOrReplaceTempView(f"t{seed}")
    else:
        session.sql("USE lance")
    return session, f"t{seed}"


def check(spark: SparkSession, root: str, seed: int, queries: int) -> None:
    draw = random.Random(seed)
    session, name = opened(spark, root, seed, draw)
    made_of = Queries(draw)
    wrong = []
    for _ in range(queries):
        query, in_order = made_of.query()
        mine = told(session, query.format(rows=name), in_order)
        theirs = told(session, query.format(rows="plain"), in_order)
        if mine != theirs:
            wrong.append((query.format(rows=name), mine[:5], theirs[:5]))
    assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.parametrize("seed", [1])
def test_answers(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, str(tmp_path), seed, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("SPARK_LANCE_SEEDS", "2,12").split(","))))
def test_many_answers(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, str(tmp_path), seed, 60)
