"""Random DELETE, UPDATE, INSERT and MERGE with random conditions: the table has the rows that SELECTs say.

test_row_level_model.py compares with a model in Python that has few conditions. Here Spark computes the rows
by SELECT over a copy in memory, and conditions are about columns of all types.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql.random_queries import SCHEMA, Queries
from tests.spark.sql.test_select_model import COLUMNS, opened, told

# Column or field -> values that it may be set to.
VALUES = {
    "i": ("tiny + 1", "st.x", "77", "NULL", "length(s)"),
    "n": ("n * 2", "cast(f AS DOUBLE)", "double('NaN')", "-0.0D", "i"),
    "d": ("d / 2", "1.5", "cast(tiny AS DECIMAL(5, 1))", "NULL"),
    "s": ("upper(s)", "concat(s, st.y)", "'zz'", "cast(day AS STRING)", "coalesce(st.y, '')"),
    "raw": ("cast(s AS BINARY)", "X'00FF'", "NULL"),
    "yes": ("NOT yes", "i > 0", "NULL"),
    "day": ("day + 1", "cast(w AS DATE)", "date'2024-02-29'"),
    "t": ("t + INTERVAL 1 HOUR", "timestamp'1969-12-31 23:59:59.999999'", "NULL"),
    "w": ("w - INTERVAL 1 DAY", "timestamp_ntz'2024-02-29 00:00:00'"),
    "st": ("named_struct('y', s, 'x', i)", "NULL", "named_struct('x', 1, 'y', 'q')"),
    "l": ("array(i, NULL)", "array_append(l, 7)", "NULL"),
}
# Columns of the source of a MERGE -> what they are made of.
SOURCE = "id % 700 AS k, tiny AS a, upper(s) AS b, day AS c"
SET_OF_SOURCE = {"i": "a", "s": "b", "day": "c"}
TYPES = dict(
    part.split(" ", 1) for part in COLUMNS.replace("st struct<x: int, y: string>", "st st").split(", ")
)


class Changes:
    """Statements over `{rows}`, each with the SELECT that gives the rows after it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._queries = Queries(draw)
        self._fresh = 1000

    def one(self) -> tuple[str, str]:
        return self._draw.choice(
            (self._delete, self._update, self._update, self._insert, self._merge, self._merge)
        )()

    def _condition(self) -> str:
        """Return a condition that may stand anywhere, so without a query."""
        while "SELECT" in (condition := self._queries.condition()):
            pass
        return condition

    def _delete(self) -> tuple[str, str]:
        condition = self._queries.condition()
        remaining = f"SELECT * FROM {{rows}} WHERE NOT coalesce({condition}, false)"
        if "SELECT" in condition:
            gone = f"SELECT id FROM {{rows}} WHERE {condition}"
            remaining = f"SELECT * FROM {{rows}} WHERE id NOT IN ({gone})"
        return f"DELETE FROM {{rows}} WHERE {condition}", remaining

    def _sets(self) -> dict[str, str]:
        chosen = self._draw.sample(sorted(VALUES), self._draw.randint(1, 3))
        return {name: self._draw.choice(VALUES[name]) for name in chosen}

    @staticmethod
    def _stored(name: str, value: str) -> str:
        """Return a value in the type of its column; fields of structs go by their names."""
        if name == "st":
            swapped = value.startswith("named_struct('y'")
            return (
                "named_struct('x', i, 'y', s)" if swapped else f"cast({value} AS STRUCT<x: INT, y: STRING>)"
            )
        return f"cast({value} AS {TYPES[name]})"

    def _update(self) -> tuple[str, str]:
        sets, condition = self._sets(), self._condition()
        assigned = ", ".join(f"{name} = {value}" for name, value in sets.items())
        after = ", ".join(
            f"if(coalesce({condition}, false), {self._stored(name, sets[name])}, {name}) AS {name}"
            if name in sets
            else name
            for name in SCHEMA.names
        )
        return f"UPDATE {{rows}} SET {assigned} WHERE {condition}", f"SELECT {after} FROM {{rows}}"

    def _insert(self) -> tuple[str, str]:
        self._fresh *= 3
        names = ", ".join(SCHEMA.names[1:])
        more = f"SELECT id + {self._fresh} AS id, {names} FROM {{rows}} WHERE {self._queries.condition()}"
        return f"INSERT INTO {{rows}} {more}", f"SELECT * FROM {{rows}} UNION ALL {more}"

    def _merge(self) -> tuple[str, str]:
        draw = self._draw
        # One row for each key.
        source = (
            f"SELECT k, min(a) AS a, max(b) AS b, min(c) AS c FROM (SELECT {SOURCE} FROM {{rows}} WHERE "
            f"{self._condition()}) GROUP BY k"
        )
        clauses, cases = [], {"MATCHED": [], "NOT MATCHED BY SOURCE": []}  # type: ignore[var-annotated]
        for rows in cases:
            for _ in range(draw.randint(0, 2)):
                condition = self._condition()
                sets = SET_OF_SOURCE if rows == "MATCHED" and draw.random() < 0.5 else self._sets()
                deletes = draw.random() < 0.3
                assigned = ", ".join(f"{name} = {value}" for name, value in sets.items())
                clauses.append(
                    f"WHEN {rows} AND {condition} THEN {'DELETE' if deletes else f'UPDATE SET {assigned}'}"
                )
                cases[rows].append((condition, None if deletes else sets))
        inserts = draw.random() < 0.7 or not clauses
        self._fresh *= 3
        if inserts:
            values = f"(k + {self._fresh}, a, b)"
            fresh_rows = f"WHEN NOT MATCHED AND k % 2 = 0 THEN INSERT (id, i, s) VALUES {values}"
            clauses.insert(len(cases["MATCHED"]), fresh_rows)
        merge = f"MERGE INTO {{rows}} USING ({source}) q ON id = k {' '.join(clauses)}"
        joined = f"SELECT * FROM {{rows}} LEFT JOIN ({source}) ON id = k"
        matched = [("k IS NOT NULL", *case) for case in cases["MATCHED"]]
        matched += [("k IS NULL", *case) for case in cases["NOT MATCHED BY SOURCE"]]
        number = " ".join(f"WHEN {which} AND ({c}) THEN {i}" for i, (which, c, _) in enumerate(matched))
        action = f"CASE {number} ELSE -1 END" if matched else "-1"
        after = []
        for name in SCHEMA.names:
            values = " ".join(
                f"WHEN {i} THEN {self._stored(name, sets[name])}"
                for i, (_, _, sets) in enumerate(matched)
                if sets and name in sets
            )
            after.append(f"CASE action {values} ELSE {name} END AS {name}" if values else name)
        gone = [str(i) for i, (_, _, sets) in enumerate(matched) if sets is None]
        remaining = f"WHERE action NOT IN ({', '.join(gone)})" if gone else ""
        result = f"SELECT {', '.join(after)} FROM (SELECT *, {action} AS action FROM ({joined})) {remaining}"
        if inserts:
            results = {"id": f"k + {self._fresh}", "i": "int(a)", "s": "b"}
            row = ", ".join(f"{results.get(name, 'NULL')} AS {name}" for name in SCHEMA.names)
            fresh = f"SELECT {row} FROM ({source}) WHERE k % 2 = 0 AND k NOT IN (SELECT id FROM {{rows}})"
            result += f" UNION ALL {fresh}"
        return merge, result


def check(spark: SparkSession, root: str, seed: int, statements: int) -> None:
    draw = random.Random(seed)
    session, name = opened(spark, root, seed, draw)
    changes = Changes(draw)
    shown = f"SELECT {', '.join(SCHEMA.names)} FROM {{rows}}"
    for _ in range(statements):
        statement, after = changes.one()
        session.sql(statement.format(rows=name)).collect()
        rows = session.sql(after.format(rows="plain")).toArrow()
        session.createDataFrame(rows, COLUMNS).createOrReplaceTempView("plain")
        mine, theirs = (told(session, shown.format(rows=each), False) for each in (name, "plain"))
        if mine != theirs:
            odd = sorted(set(mine) ^ set(theirs))[:6]
            raise AssertionError(f"seed {seed}: {statement.format(rows=name)}: {odd}")
    # What indices and statistics tell of the rows is still true.
    queries = Queries(draw)
    for _ in range(statements):
        query, in_order = queries.query()
        mine, theirs = (told(session, query.format(rows=each), in_order) for each in (name, "plain"))
        assert mine == theirs, f"seed {seed}: {query}"


@pytest.mark.parametrize("seed", [1])
def test_changes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, str(tmp_path), seed, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("SPARK_LANCE_SEEDS", "2,10").split(","))))
def test_many_changes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, str(tmp_path), seed, 12)
