"""Random DELETE, UPDATE and MERGE in SQL and by LanceTable: the table has the rows of the model.

pylance and this package read the rows after each statement. `tests/row_model.py` is the model.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import MergeError, OptionError
from spark_lance.spark.table import merging
from tests.conftest import interpreted
from tests.row_model import (
    Clause,
    Clauses,
    DoubledError,
    Row,
    Statement,
    Text,
    change,
    merges,
    some,
    values_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.int32()),
        ("d", pa.decimal128(12, 3)),
        ("w", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("e", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("vec", pa.list_(pa.float32(), 2)),
    ]
)
SOURCE = (
    "k long, v int, d decimal(12,3), w string, t timestamp, e struct<a: int, b: string>, vec array<float>"
)
NOON = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)


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
    Text("x.vec IS NULL", lambda x, y, all: x["vec"] is None),
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
        lambda x, y, all: some(lambda member: not member, is_in(x["k"], [s["k"] for s in all])),
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
    "vec": Text("array(0.5F, x.v)", lambda x, y, all: [0.5, None if x["v"] is None else float(x["v"])]),
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
    "vec": Text("y.vec", lambda x, y, all: y["vec"]),
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
    "vec": Text("y.vec", lambda x, y, all: y["vec"]),
}
# Rows that a clause is about -> what it does to them -> its conditions, and what it may set.
CLAUSES: Clauses = {
    "MATCHED": {"UPDATE": (OF_BOTH, SETS_OF_BOTH), "UPDATE *": (OF_BOTH, None), "DELETE": (OF_BOTH, None)},
    "NOT MATCHED": {"INSERT": (OF_SOURCE, SETS_OF_SOURCE), "INSERT *": (OF_SOURCE, None)},
    "NOT MATCHED BY SOURCE": {"UPDATE": (OF_TABLE, SETS_OF_TABLE), "DELETE": (OF_TABLE, None)},
}


FACES = ("SQL by path", "SQL by name", "SQL by view", "LanceTable")


def by_table(pool: Any) -> Any:
    """Return the part of a pool that LanceTable takes: no queries and no DEFAULT."""
    if isinstance(pool, Mapping):
        return {name: text for name, text in pool.items() if not text.has_query and text.sql != "DEFAULT"}
    return pool and [text for text in pool if not text.has_query]


CLAUSES_OF_TABLE: Clauses = {
    rows: {kind: (by_table(conditions), by_table(values)) for kind, (conditions, values) in kinds.items()}
    for rows, kinds in CLAUSES.items()
}


@st.composite
def statements(draw: st.DrawFn, face: str) -> Statement:
    in_sql = face != "LanceTable"
    kind = draw(st.sampled_from(["DELETE", "UPDATE", "MERGE", "MERGE"]))
    if kind == "MERGE":
        return draw(merges(CLAUSES if in_sql else CLAUSES_OF_TABLE, [("k",), ("k",), ("k", "w")]))
    conditions = [*OF_TABLE, *QUERIES] if in_sql else OF_TABLE
    if kind == "DELETE":
        return Statement(kind, draw(st.sampled_from(conditions)))
    values = draw(st.sampled_from([SETS_OF_TABLE, QUERY_SETS])) if in_sql else by_table(SETS_OF_TABLE)
    return Statement(kind, draw(st.none() | st.sampled_from(conditions)), draw(values_of(values)))


VALUES = st.none() | st.integers(-3, 6)
ROWS = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(0, 7),
        "v": VALUES,
        "d": st.none() | st.decimals(-2, 2, places=3),
        "w": st.sampled_from([None, "", "a", "ab", "ä'`%"]),
        "t": st.none() | st.integers(-2, 2).map(lambda hours: NOON + timedelta(hours=hours)),
        "e": st.none() | st.fixed_dictionaries({"a": VALUES, "b": st.sampled_from([None, "p", "q"])}),
        "vec": st.none() | st.tuples(*[st.sampled_from([0.0, 1.5])] * 2).map(list),
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
    """Return rows as text in one order, whatever the order of their columns."""
    return sorted(repr([plain(row[name]) for name in SCHEMA.names]) for row in rows)


def read_rows(path: str) -> tuple[list[str], set[int]]:
    """Return the rows and the row ids as pylance reads them, and check that this package reads the same."""
    rows = lance.dataset(path).to_table(with_row_id=True).to_pylist()
    ids = {row.pop("_rowid") for row in rows}
    assert len(ids) == len(rows)
    assert in_order(spark_lance.dataset(path).to_table().to_pylist()) == in_order(rows)
    return in_order(rows), ids


@dataclass
class Face:
    """A way to change the table at a path."""

    spark: SparkSession
    path: str
    name: str

    @property
    def errors(self) -> tuple[type[Exception], type[Exception]]:
        """The errors for doubled rows and for clauses out of order."""
        return (
            (MergeError, OptionError) if self.name == "LanceTable" else (PySparkException, PySparkException)
        )

    @property
    def table(self) -> str:
        names = {"SQL by path": f"lance.`{self.path}`", "SQL by name": f"lance.{Path(self.path).stem}"}
        return names.get(self.name, "shown")

    def run(self, statement: Statement) -> Any:
        """Run a statement, and return the row that counts its changes."""
        if self.name == "LanceTable":
            return self._by_table(statement).collect()[0]
        self.spark.sql(statement.sql(self.table))
        row = self.spark.sql("CALL lance.system.last_change()").collect()[0]
        assert row.statement == statement.kind
        return row

    def _by_table(self, statement: Statement) -> Any:
        table = LanceTable.forPath(self.spark, self.path).alias("x")
        condition = None if statement.condition is None else statement.condition.sql
        if statement.kind == "DELETE":
            return table.delete(condition)
        if statement.kind == "UPDATE":
            return table.update(condition, {name: value.sql for name, value in statement.values.items()})
        merge: Any = table.merge(self.spark.table("source").alias("y"), statement.on)
        for clause in statement.clauses:
            merge = with_clause(merge, clause)
        return merge.execute()


def with_clause(merge: Any, clause: Clause) -> Any:
    condition = None if clause.condition is None else clause.condition.sql
    values = {name: value.sql for name, value in clause.values.items()}
    rows = {"MATCHED": "Matched", "NOT MATCHED": "NotMatched"}.get(clause.rows, "NotMatchedBySource")
    action = clause.kind.replace(" *", "All").capitalize().replace("all", "All")
    add = getattr(merge, f"when{rows}{action}")
    return add(condition, values) if values else add(condition)


def write_rows(path: str, rows: list[Row], deleted: list[Row], stable: bool) -> None:
    """Write rows to a new table, and between them other rows, which are then deleted."""
    tagged = [(row, False) for row in rows] + [(row, True) for row in deleted]
    tagged = sorted(tagged, key=lambda pair: repr(pair[0]["vec"]))  # mixed, but not at random
    data = pa.Table.from_pylist([row for row, _ in tagged], SCHEMA)
    dataset = spark_lance.write_dataset(data, path, max_rows_per_file=3, enable_stable_row_ids=stable)
    addresses = [place // 3 << 32 | place % 3 for place, (_, is_deleted) in enumerate(tagged) if is_deleted]
    if addresses:
        dataset.delete(f"_rowaddr in ({', '.join(map(str, addresses))})")


def check(
    spark: SparkSession,
    face: str,
    table: list[Row],
    deleted: list[Row],
    source: list[Row],
    todo: list[Statement],
    stable: bool,
    prunes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # From how many rows on a merge reads only those that may have a key of its source.
    monkeypatch.setattr(merging, "_PRUNED_ROWS", 1 if prunes else 1 << 40)
    path = f"{spark.conf.get('tests.root')}/t{uuid.uuid4().hex}.lance"
    write_rows(path, table, deleted, stable)
    rows = [tuple(row[name] for name in SCHEMA.names) for row in source]
    spark.createDataFrame(rows, SOURCE).createOrReplaceTempView("source")
    if face == "SQL by view":
        spark.read.format("lance").load(path).createOrReplaceTempView("shown")
    changes = Face(spark, path, face)
    doubled, out_of_order = changes.errors
    for statement in todo:
        before, ids = read_rows(path)
        assert before == in_order(table)
        if not statement.is_in_order:
            with pytest.raises(out_of_order):
                changes.run(statement)
            continue
        try:
            table, counts = change(table, source, statement, SCHEMA.names)
        except DoubledError:
            with pytest.raises(doubled, match="several rows of the source match"):
                changes.run(statement)
            continue
        row = changes.run(statement)
        sql = statement.sql(changes.table)
        after, new_ids = read_rows(path)
        assert after == in_order(table), sql
        assert Counter({n: row[f"num_{n}_rows"] for n in ("updated", "deleted", "inserted")}) == counts, sql
        assert row.version == spark_lance.dataset(path).version
        if stable:
            assert (len(ids - new_ids), len(new_ids - ids)) == (counts["deleted"], counts["inserted"]), sql
    if face != "LanceTable":
        assert spark.table(changes.table).count() == len(table)


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    face = draw(st.sampled_from(FACES))
    source = st.lists(ROWS, max_size=6)
    return {
        "face": face,
        "table": draw(st.lists(ROWS, max_size=8)),
        "deleted": draw(st.lists(ROWS, max_size=3)),
        "source": draw(source | st.lists(ROWS, max_size=6, unique_by=lambda row: str(row["k"]))),
        "todo": draw(st.lists(statements(face), min_size=1, max_size=3)),
        "stable": draw(st.booleans()),
        "prunes": draw(st.booleans()),
    }


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    root = str(tmp_path_factory.mktemp("root"))
    session = spark_lance.enable(interpreted(spark.newSession()), root=root)
    session.conf.set("tests.root", root)
    session.udf.register("odd", lambda v: None if v is None else v % 2 == 1, "boolean")
    return session


@given(drawn=arguments())
@settings(FEW, max_examples=10)
def test_statements(session: SparkSession, monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]) -> None:
    check(session, monkeypatch=monkeypatch, **drawn)


@pytest.mark.slow
@given(drawn=arguments())
@settings(FEW, max_examples=250)
def test_many_statements(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]
) -> None:
    check(session, monkeypatch=monkeypatch, **drawn)
