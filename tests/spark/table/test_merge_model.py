"""Random merges against a plain model of rows: what it says is what pylance reads."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import MergeError, OptionError

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.int32()),
        ("vec", pa.list_(pa.float32(), 2)),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)
SOURCE = "k long, v int, vec array<float>, s struct<a: int, b: string>"
Row = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """SQL and what it means: a function of the table's row and the source's row."""

    sql: str
    means: Callable[[Any, Any], Any]


def plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def above(value: int | None, limit: int) -> bool:
    return value is not None and value > limit


BOTH = [
    Text("s.v > 2", lambda t, s: above(s["v"], 2)),
    Text("t.v <= s.v", lambda t, s: None not in (t["v"], s["v"]) and t["v"] <= s["v"]),
    Text("t.s.b = 'x'", lambda t, s: t["s"] is not None and t["s"]["b"] == "x"),
    Text("t.vec is null", lambda t, s: t["vec"] is None),
]
OF_SOURCE = [Text("v > 2", lambda t, s: above(s["v"], 2)), Text("k is null", lambda t, s: s["k"] is None)]
OF_TABLE = [Text("v > 2", lambda t, s: above(t["v"], 2)), Text("s is null", lambda t, s: t["s"] is None)]

SETS_OF_BOTH = {
    "v": Text("t.v + s.v", lambda t, s: plus(t["v"], s["v"])),
    "k": Text("s.k", lambda t, s: s["k"]),
    "vec": Text("s.vec", lambda t, s: s["vec"]),
    "s.b": Text("concat('#', s.v)", lambda t, s: None if s["v"] is None else f"#{s['v']}"),
}
SETS_OF_SOURCE = {
    "k": Text("k", lambda t, s: s["k"]),
    "v": Text("v + 1", lambda t, s: plus(s["v"], 1)),
    "s": Text("s.s", lambda t, s: s["s"]),
}
SETS_OF_TABLE = {
    "v": Text("v * 2", lambda t, s: plus(t["v"], t["v"])),
    "s.a": Text("-1", lambda t, s: -1),
}
# Rows that a clause is about -> kind -> its conditions and what it may set.
CLAUSES: dict[str, dict[str, tuple[list[Text], dict[str, Text] | None]]] = {
    "matched": {"update": (BOTH, SETS_OF_BOTH), "all": (BOTH, None), "delete": (BOTH, None)},
    "new": {"insert": (OF_SOURCE, SETS_OF_SOURCE), "all": (OF_SOURCE, None)},
    "missing": {"update": (OF_TABLE, SETS_OF_TABLE), "delete": (OF_TABLE, None)},
}


@dataclass(frozen=True)
class Clause:
    rows: str
    kind: str
    condition: Text | None
    values: dict[str, Text]

    def holds(self, t: Row | None, s: Row | None) -> bool:
        return self.condition is None or bool(self.condition.means(t, s))

    def result(self, t: Row | None, s: Row | None) -> Row | None:
        """Return what becomes of a row."""
        if self.kind == "delete":
            return None
        if self.kind == "all":
            assert s is not None
            return dict(s)
        new = dict(t) if t is not None else dict.fromkeys(SCHEMA.names)
        for name, value in self.values.items():
            column, _, inner = name.partition(".")
            if inner:
                old = (t or {}).get(column) or {"a": None, "b": None}
                new[column] = {**old, inner: value.means(t, s)}
            else:
                new[column] = value.means(t, s)
        return new

    def add_to(self, merge: Any) -> Any:
        condition = None if self.condition is None else self.condition.sql
        values = {name: value.sql for name, value in self.values.items()}
        if self.rows == "matched":
            if self.kind == "delete":
                return merge.whenMatchedDelete(condition)
            if self.kind == "all":
                return merge.whenMatchedUpdateAll(condition)
            return merge.whenMatchedUpdate(condition, values)
        if self.rows == "new":
            if self.kind == "all":
                return merge.whenNotMatchedInsertAll(condition)
            return merge.whenNotMatchedInsert(condition, values)
        if self.kind == "delete":
            return merge.whenNotMatchedBySourceDelete(condition)
        return merge.whenNotMatchedBySourceUpdate(condition, values)


@st.composite
def clauses(draw: st.DrawFn) -> list[Clause]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.sampled_from(sorted(CLAUSES)))
        kind = draw(st.sampled_from(sorted(CLAUSES[rows])))
        conditions, values = CLAUSES[rows][kind]
        condition = draw(st.none() | st.sampled_from(conditions))
        chosen = draw(st.sets(st.sampled_from(sorted(values)), min_size=1)) if values else set()
        found.append(
            Clause(rows, kind, condition, {name: values[name] for name in sorted(chosen)} if values else {})
        )
    return found


# Every try is a Spark job: a failing example is small enough as it was drawn.
FEW = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

KEYS = st.none() | st.integers(0, 7)
VALUES = st.none() | st.integers(-3, 6)
ROWS = st.fixed_dictionaries(
    {
        "k": KEYS,
        "v": VALUES,
        "vec": st.none() | st.tuples(*[st.sampled_from([0.0, 1.5])] * 2).map(list),
        "s": st.none() | st.fixed_dictionaries({"a": VALUES, "b": st.sampled_from([None, "x", "y"])}),
    }
)


class DoubledError(Exception):
    """Several rows of the source change one row."""


def model(table: list[Row], source: list[Row], todo: list[Clause]) -> tuple[list[Row], Counter[str]]:
    """Return the rows after a merge, and how many were updated, deleted and inserted."""
    of = {rows: [c for c in todo if c.rows == rows] for rows in CLAUSES}
    lenient = len(of["matched"]) == 1 and of["matched"][0].kind == "delete" and not of["matched"][0].condition
    result, counts = [], Counter[str]()
    matched: set[int] = set()
    for t in table:
        pairs = [i for i, s in enumerate(source) if t["k"] is not None and s["k"] == t["k"]]
        matched.update(pairs)
        sides: list[tuple[str, Row | None]] = [("matched", source[i]) for i in pairs] or [("missing", None)]
        done = [
            clause.result(t, s)
            for rows, s in sides
            for clause in itertools.islice((c for c in of[rows] if c.holds(t, s)), 1)
        ]
        if len(done) > 1 and not lenient:
            raise DoubledError
        if done:
            counts["deleted" if done[0] is None else "updated"] += 1
        kept = done[0] if done else t
        result += [] if kept is None else [kept]
    for i, s in enumerate(source):
        clause = next((c for c in of["new"] if c.holds(None, s)), None) if i not in matched else None
        if clause is not None:
            counts["inserted"] += 1
            made = clause.result(None, s)
            assert made is not None
            result.append(made)
    return result, counts


def in_order(rows: list[Row]) -> list[str]:
    """Return rows as text in one order, whatever the order of their columns."""
    return sorted(
        repr(
            [sorted(row[name].items()) if isinstance(row[name], dict) else row[name] for name in SCHEMA.names]
        )
        for row in rows
    )


def check(
    spark: SparkSession,
    path: str,
    table: list[Row],
    gone: list[Row],
    source: list[Row],
    todo: list[Clause],
    stable: bool,
) -> None:
    tagged = [(row, True) for row in table] + [(row, False) for row in gone]
    tagged = sorted(tagged, key=lambda pair: repr(pair[0]["vec"]))  # mixed, but not at random
    data = pa.Table.from_pylist([row for row, _ in tagged], SCHEMA)
    dataset = spark_lance.write_dataset(data, path, max_rows_per_file=3, enable_stable_row_ids=stable)
    if gone:
        offsets = [place for place, (_, kept) in enumerate(tagged) if not kept]
        addresses = [place // 3 << 32 | place % 3 for place in offsets]
        dataset = dataset.delete(f"_rowaddr in ({', '.join(map(str, addresses))})")
    before = {row["_rowid"] for row in lance.dataset(path).to_table(with_row_id=True).to_pylist()}
    rows = [(r["k"], r["v"], r["vec"], r["s"] and (r["s"]["a"], r["s"]["b"])) for r in source]
    frame = spark.createDataFrame(rows, SOURCE).alias("s")
    merge = LanceTable.forPath(spark, path).alias("t").merge(frame, "t.k = s.k")
    for clause in todo:
        merge = clause.add_to(merge)
    groups = [[c for c in todo if c.rows == rows] for rows in CLAUSES]
    if any(clause.condition is None for group in groups for clause in group[:-1]):
        with pytest.raises(OptionError):
            merge.execute()
        return
    try:
        expected, counts = model(table, source, todo)
    except DoubledError:
        with pytest.raises(MergeError):
            merge.execute()
        return
    done = merge.execute().collect()[0]
    found = lance.dataset(path).to_table(with_row_id=True).to_pylist()
    ids = {row.pop("_rowid") for row in found}
    assert in_order(found) == in_order(expected)
    assert in_order(spark_lance.dataset(path).to_table().to_pylist()) == in_order(expected)
    assert [done.num_updated_rows, done.num_deleted_rows, done.num_inserted_rows] == [
        counts[name] for name in ("updated", "deleted", "inserted")
    ]
    if stable:
        assert len(ids) == len(found)
        assert (len(before - ids), len(ids - before)) == (counts["deleted"], counts["inserted"])


def arguments() -> dict[str, Any]:
    return {
        "table": st.lists(ROWS, max_size=8),
        "gone": st.lists(ROWS, max_size=3),
        "source": st.lists(ROWS, max_size=6)
        | st.lists(ROWS, max_size=6, unique_by=lambda row: str(row["k"])),
        "todo": clauses(),
        "stable": st.booleans(),
    }


@given(**arguments())
@settings(FEW, max_examples=6)
def test_merges(spark: SparkSession, tmp_path: Path, **drawn: Any) -> None:
    check(spark, str(tmp_path / uuid.uuid4().hex), **drawn)


@pytest.mark.slow
@given(**arguments())
@settings(FEW, max_examples=150)
def test_many_merges(spark: SparkSession, tmp_path: Path, **drawn: Any) -> None:
    check(spark, str(tmp_path / uuid.uuid4().hex), **drawn)
