"""Random DELETE, UPDATE and MERGE in SQL against a plain model of rows: what it says is in the table."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.table import merging
from tests.conftest import interpreted

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.int32()),
        ("d", pa.decimal128(12, 3)),
        ("w", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("e", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)
SOURCE = "k long, v int, d decimal(12,3), w string, t timestamp, e struct<a: int, b: string>"
NOON = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
Row = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """SQL with the table as x and the source as y; what it means for rows of both and all of the source."""

    sql: str
    means: Callable[[Any, Any, list[Row]], Any]


def some(function: Callable[..., Any], *values: Any) -> Any:
    """Return what a function gives, null if a value is null."""
    return None if None in values else function(*values)


def field(row: Row, name: str) -> Any:
    return row["e"] and row["e"][name]


def is_in(value: Any, others: list[Any]) -> bool | None:
    if value is not None and value in others:
        return True
    return False if not others or (value is not None and None not in others) else None


def no_more(a: Any, b: Any) -> bool:
    """Return whether a value is known to be at most another."""
    return bool(some(lambda a, b: a <= b, a, b))


OF_TABLE = [
    Text("x.v > 2", lambda x, y, all: some(lambda v: v > 2, x["v"])),
    Text("x.d IS NULL OR x.d < 0.5", lambda x, y, all: x["d"] is None or x["d"] < Decimal("0.5")),
    Text("x.w LIKE 'a%'", lambda x, y, all: some(lambda w: w.startswith("a"), x["w"])),
    Text("x.e.b = 'p'", lambda x, y, all: some(lambda b: b == "p", field(x, "b"))),
    Text("x.t >= TIMESTAMP '2024-02-29 12:00:00'", lambda x, y, all: some(lambda t: t >= NOON, x["t"])),
    Text("NOT (x.v <=> 1)", lambda x, y, all: x["v"] != 1),
    Text("odd(x.v)", lambda x, y, all: some(lambda v: v % 2 == 1, x["v"])),
    Text(
        "length(x.w) BETWEEN 1 AND x.v", lambda x, y, all: some(lambda w, v: 1 <= len(w) <= v, x["w"], x["v"])
    ),
    Text(
        "x.k % 2 = 0 AND x.v IS NOT NULL",
        lambda x, y, all: some(lambda k: k % 2 == 0, x["k"]) and x["v"] is not None,
    ),
]
QUERIES = [
    Text("x.k IN (SELECT k FROM source)", lambda x, y, all: is_in(x["k"], [s["k"] for s in all])),
    Text(
        "x.k NOT IN (SELECT k FROM source)",
        lambda x, y, all: some(lambda found: not found, is_in(x["k"], [s["k"] for s in all])),
    ),
    Text(
        "EXISTS (SELECT 1 FROM source s WHERE s.k = x.k AND s.v > x.v)",
        lambda x, y, all: any(
            some(lambda a, b, c, d: a == b and c > d, s["k"], x["k"], s["v"], x["v"]) for s in all
        ),
    ),
    Text(
        "x.v < (SELECT max(v) FROM source)",
        lambda x, y, all: some(
            lambda v: some(lambda m: v < m, max([s["v"] for s in all if s["v"] is not None], default=None)),
            x["v"],
        ),
    ),
    Text(
        "x.v >= (SELECT count(*) FROM source s WHERE s.k = x.k)",
        lambda x, y, all: some(
            lambda v: v >= sum(s["k"] is not None and s["k"] == x["k"] for s in all), x["v"]
        ),
    ),
]
OF_SOURCE = [
    Text("y.v > 2", lambda x, y, all: some(lambda v: v > 2, y["v"])),
    Text("y.k IS NULL", lambda x, y, all: y["k"] is None),
    Text("y.e.a = 1", lambda x, y, all: some(lambda a: a == 1, field(y, "a"))),
]
OF_BOTH = [
    *OF_TABLE,
    *OF_SOURCE,
    Text("x.v <= y.v", lambda x, y, all: some(lambda a, b: a <= b, x["v"], y["v"])),
    Text(
        "x.v + y.v NOT BETWEEN 1 AND 3",
        lambda x, y, all: some(lambda a, b: not 1 <= a + b <= 3, x["v"], y["v"]),
    ),
    Text("NOT (x.d <=> y.d)", lambda x, y, all: x["d"] != y["d"]),
    Text(
        "x.v < (SELECT max(s.v) FROM source s WHERE s.k = x.k AND s.v <= y.v)",
        lambda x, y, all: some(
            lambda v: some(
                lambda m: v < m,
                max([s["v"] for s in all if s["k"] == x["k"] and no_more(s["v"], y["v"])], default=None),
            ),
            x["v"],
        ),
    ),
]

SETS_OF_TABLE = {
    "v": Text("x.v * 2", lambda x, y, all: some(lambda v: v * 2, x["v"])),
    "d": Text("x.d + 1.005", lambda x, y, all: some(lambda d: d + Decimal("1.005"), x["d"])),
    "w": Text(
        "concat(x.w, '-', x.e.b)", lambda x, y, all: some(lambda w, b: f"{w}-{b}", x["w"], field(x, "b"))
    ),
    "t": Text("x.t + INTERVAL 1 DAY", lambda x, y, all: some(lambda t: t + timedelta(days=1), x["t"])),
    "e.a": Text("x.v", lambda x, y, all: x["v"]),
    "e.b": Text("upper(x.w)", lambda x, y, all: some(str.upper, x["w"])),
    "k": Text("DEFAULT", lambda x, y, all: None),
}
QUERY_SETS = {
    "v": Text(
        "(SELECT max(s.v) FROM source s WHERE s.k > x.k)",
        lambda x, y, all: max(
            [s["v"] for s in all if None not in (s["v"], s["k"], x["k"]) and s["k"] > x["k"]],
            default=None,
        ),
    ),
    "e": Text("named_struct('b', 5, 'a', 3)", lambda x, y, all: {"a": 3, "b": "5"}),
}
SETS_OF_SOURCE = {
    "k": Text("y.k", lambda x, y, all: y["k"]),
    "v": Text("y.v + 1L", lambda x, y, all: some(lambda v: v + 1, y["v"])),
    "d": Text("y.v", lambda x, y, all: some(Decimal, y["v"])),
    "w": Text("upper(y.w)", lambda x, y, all: some(str.upper, y["w"])),
    "e": Text("named_struct('b', y.w, 'a', y.v)", lambda x, y, all: {"a": y["v"], "b": y["w"]}),
}
SETS_OF_BOTH = {
    **SETS_OF_TABLE,
    "k": Text("y.k", lambda x, y, all: y["k"]),
    "v": Text("x.v + y.v", lambda x, y, all: some(lambda a, b: a + b, x["v"], y["v"])),
    "d": Text(
        "(SELECT count(*) FROM source s WHERE s.k = x.k AND s.v <= y.v)",
        lambda x, y, all: Decimal(sum(s["k"] == x["k"] and no_more(s["v"], y["v"]) for s in all)),
    ),
    "e.a": Text("y.e.a", lambda x, y, all: field(y, "a")),
    "t": Text("y.t", lambda x, y, all: y["t"]),
}
# Which rows a clause of MERGE is about -> what it does -> its conditions, and what it may set.
CLAUSES: dict[str, dict[str, tuple[list[Text], dict[str, Text] | None]]] = {
    "MATCHED": {"UPDATE": (OF_BOTH, SETS_OF_BOTH), "UPDATE *": (OF_BOTH, None), "DELETE": (OF_BOTH, None)},
    "NOT MATCHED": {"INSERT": (OF_SOURCE, SETS_OF_SOURCE), "INSERT *": (OF_SOURCE, None)},
    "NOT MATCHED BY SOURCE": {"UPDATE": (OF_TABLE, SETS_OF_TABLE), "DELETE": (OF_TABLE, None)},
}


@dataclass(frozen=True)
class Clause:
    rows: str
    kind: str
    condition: Text | None
    values: dict[str, Text]

    @property
    def sql(self) -> str:
        condition = "" if self.condition is None else f" AND {self.condition.sql}"
        action = {"UPDATE *": "UPDATE SET *"}.get(self.kind, self.kind)
        if self.kind == "UPDATE":
            action = f"UPDATE SET {assignments(self.values)}"
        elif self.kind == "INSERT":
            values = ", ".join(value.sql for value in self.values.values())
            action = f"INSERT ({', '.join(self.values)}) VALUES ({values})"
        return f"WHEN {self.rows}{condition} THEN {action}"

    def holds(self, x: Row | None, y: Row | None, everything: list[Row]) -> bool:
        return self.condition is None or bool(self.condition.means(x, y, everything))

    def result(self, x: Row | None, y: Row | None, everything: list[Row]) -> Row | None:
        """Return what becomes of a row."""
        if self.kind == "DELETE":
            return None
        if self.kind.endswith("*"):
            assert y is not None
            return dict(y)
        return changed(x or dict.fromkeys(SCHEMA.names), self.values, x, y, everything)


def assignments(values: dict[str, Text]) -> str:
    return ", ".join(f"{name} = {value.sql}" for name, value in values.items())


def changed(old: Row, values: dict[str, Text], x: Row | None, y: Row | None, everything: list[Row]) -> Row:
    new = dict(old)
    for name, value in values.items():
        column, _, inner = name.partition(".")
        result = value.means(x, y, everything)
        new[column] = {**(new[column] or {"a": None, "b": None}), inner: result} if inner else result
    return new


@dataclass(frozen=True)
class Statement:
    """A statement: DELETE, UPDATE or MERGE."""

    kind: str
    condition: Text | None
    values: dict[str, Text]
    clauses: tuple[Clause, ...]

    def sql(self, table: str) -> str:
        where = "" if self.condition is None else f" WHERE {self.condition.sql}"
        if self.kind == "DELETE":
            return f"DELETE FROM {table} AS x{where}"
        if self.kind == "UPDATE":
            return f"UPDATE {table} x SET {assignments(self.values)}{where}"
        return f"MERGE INTO {table} AS x USING source AS y ON x.k = y.k " + " ".join(
            c.sql for c in self.clauses
        )


class DoubledError(Exception):
    """Several rows of the source change one row."""


def model(table: list[Row], source: list[Row], todo: Statement) -> tuple[list[Row], Counter[str]]:
    """Return the rows after a statement, and how many were updated, deleted and inserted."""
    if todo.kind == "MERGE":
        return merged(table, source, todo.clauses)
    met = [todo.condition is None or bool(todo.condition.means(x, None, source)) for x in table]
    if todo.kind == "DELETE":
        return [x for x, is_met in zip(table, met, strict=True) if not is_met], Counter(deleted=sum(met))
    result = [
        changed(x, todo.values, x, None, source) if is_met else x
        for x, is_met in zip(table, met, strict=True)
    ]
    return result, Counter(updated=sum(met))


def merged(table: list[Row], source: list[Row], todo: tuple[Clause, ...]) -> tuple[list[Row], Counter[str]]:
    of = {rows: [clause for clause in todo if clause.rows == rows] for rows in CLAUSES}
    only = of["MATCHED"][0] if len(of["MATCHED"]) == 1 else None
    lenient = only is not None and only.kind == "DELETE" and only.condition is None
    result, counts = [], Counter[str]()
    matched: set[int] = set()
    for x in table:
        pairs = [i for i, y in enumerate(source) if x["k"] is not None and y["k"] == x["k"]]
        matched.update(pairs)
        sides: list[tuple[str, Row | None]] = [("MATCHED", source[i]) for i in pairs]
        done = [
            clause.result(x, y, source)
            for rows, y in sides or [("NOT MATCHED BY SOURCE", None)]
            for clause in itertools.islice((c for c in of[rows] if c.holds(x, y, source)), 1)
        ]
        if len(done) > 1 and not lenient:
            raise DoubledError
        if done:
            counts["deleted" if done[0] is None else "updated"] += 1
        kept = done[0] if done else x
        result += [] if kept is None else [kept]
    for i, y in enumerate(source):
        clause = next((c for c in of["NOT MATCHED"] if c.holds(None, y, source)), None)
        if clause is not None and i not in matched:
            counts["inserted"] += 1
            made = clause.result(None, y, source)
            assert made is not None
            result.append(made)
    return result, counts


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    kind = draw(st.sampled_from(["DELETE", "UPDATE", "MERGE", "MERGE"]))
    condition = draw(st.none() | st.sampled_from([*OF_TABLE, *QUERIES]))
    sets = draw(st.sampled_from([SETS_OF_TABLE, QUERY_SETS]))
    chosen = draw(st.sets(st.sampled_from(sorted(sets)), min_size=1))
    values = {name: sets[name] for name in sorted(chosen)}
    if kind != "MERGE":
        return Statement(kind, condition if kind == "UPDATE" else condition or OF_TABLE[0], values, ())
    found: list[Clause] = []
    for rows, kinds in CLAUSES.items():
        wanted = draw(st.integers(0, 2))
        for place in range(wanted):
            action = draw(st.sampled_from(sorted(kinds)))
            conditions, settable = kinds[action]
            one = draw(st.sampled_from(conditions))
            names = draw(st.sets(st.sampled_from(sorted(settable)), min_size=1)) if settable else set()
            # Spark takes a clause without a condition only as the last of its kind.
            last = place == wanted - 1 and draw(st.booleans())
            given_values = {name: settable[name] for name in sorted(names)} if settable else {}
            found.append(Clause(rows, action, None if last else one, given_values))
    return Statement(kind, None, {}, tuple(found)) if found else Statement("DELETE", OF_TABLE[0], {}, ())


VALUES = st.none() | st.integers(-3, 6)
ROWS = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(0, 7),
        "v": VALUES,
        "d": st.none() | st.decimals(-2, 2, places=3),
        "w": st.sampled_from([None, "", "a", "ab", "ä'`%"]),
        "t": st.none() | st.integers(-2, 2).map(lambda hours: NOON + timedelta(hours=hours)),
        "e": st.none() | st.fixed_dictionaries({"a": VALUES, "b": st.sampled_from([None, "p", "q"])}),
    }
)
# Every try is a Spark job: a failing example is small enough as it was drawn.
FEW = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def plain(value: Any) -> Any:
    """Return a value such that equal ones have one text."""
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, datetime):
        return value.isoformat()
    return value.normalize() + 0 if isinstance(value, Decimal) else value


def in_order(rows: list[Row]) -> list[str]:
    """Return rows as text in one order."""
    return sorted(repr([plain(row[name]) for name in SCHEMA.names]) for row in rows)


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    found = spark_lance.enable(interpreted(spark.newSession()), root=str(tmp_path_factory.mktemp("root")))
    found.udf.register("odd", lambda v: None if v is None else v % 2 == 1, "boolean")
    return found


def check(
    spark: SparkSession,
    path: str,
    table: list[Row],
    source: list[Row],
    todo: list[Statement],
    by_view: bool,
    prunes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # From how many rows on a merge reads only those that may have a key of its source.
    monkeypatch.setattr(merging, "_PRUNED_ROWS", 1 if prunes else 1 << 40)
    spark_lance.write_dataset(pa.Table.from_pylist(table, SCHEMA), path, max_rows_per_file=3)
    given_rows = [tuple(row[name] for name in SCHEMA.names) for row in source]
    spark.createDataFrame(given_rows, SOURCE).createOrReplaceTempView("source")
    name = f"lance.`{path}`"
    if by_view:
        name = "shown"
        spark.read.format("lance").load(path).createOrReplaceTempView(name)
    for statement in todo:
        sql = statement.sql(name)
        before = in_order(spark_lance.dataset(path).to_table().to_pylist())
        assert before == in_order(table)
        try:
            table, counts = model(table, source, statement)
        except DoubledError:
            with pytest.raises(PySparkException, match="several rows of the source match"):
                spark.sql(sql)
            continue
        spark.sql(sql)
        assert in_order(spark_lance.dataset(path).to_table().to_pylist()) == in_order(table), sql
        (done,) = spark.sql("CALL lance.system.last_change()").collect()
        found = {name: done[f"num_{name}_rows"] for name in ("updated", "deleted", "inserted")}
        assert found == {name: counts[name] for name in found}, sql
        assert (done.statement, done.version) == (statement.kind, spark_lance.dataset(path).version)
    assert spark.table(name).count() == len(table)


def arguments() -> dict[str, Any]:
    source = st.lists(ROWS, max_size=6)
    return {
        "table": st.lists(ROWS, min_size=1, max_size=8),
        "source": source | st.lists(ROWS, max_size=6, unique_by=lambda row: str(row["k"])),
        "todo": st.lists(statements(), min_size=1, max_size=3),
        "by_view": st.booleans(),
        "prunes": st.booleans(),
    }


@given(**arguments())
@settings(FEW, max_examples=5)
def test_statements(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **drawn: Any
) -> None:
    check(session, str(tmp_path / uuid.uuid4().hex), monkeypatch=monkeypatch, **drawn)


@pytest.mark.slow
@given(**arguments())
@settings(FEW, max_examples=100)
def test_many_statements(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **drawn: Any
) -> None:
    check(session, str(tmp_path / uuid.uuid4().hex), monkeypatch=monkeypatch, **drawn)
