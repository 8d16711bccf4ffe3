"""What a merge does, as published for Delta: one target, one source, clauses, and the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import ExpressionError, LanceError, MergeError, OptionError, SchemaError
from spark_lance.spark.table.merging import MergeBuilder

Row = tuple[Any, ...]

TARGET: list[Row] = [(1, 10, "a"), (2, 20, "b"), (3, 30, "c"), (None, 40, "n")]
SOURCE: list[Row] = [(2, 200, "B"), (3, 300, "C"), (4, 400, "D"), (None, 500, "N")]
TWICE: list[Row] = [(2, 200, "B"), (2, 201, "BB"), (4, 400, "D")]
KEPT = (None, 40, "n")
ALL = {"id": "s.id", "v": "s.v", "w": "s.w"}


@dataclass(frozen=True)
class Case:
    """What is merged and what comes of it: the rows, or the type and text of an error."""

    name: str
    clauses: Callable[[MergeBuilder], MergeBuilder]
    expected: list[Row] | tuple[type[LanceError], str]
    source: list[Row] | None = None
    condition: str = "t.id = s.id"
    names: tuple[str, str, str] = ("id", "v", "w")


CASES = [
    Case(
        "update all columns",
        lambda m: m.whenMatchedUpdateAll(),
        [(1, 10, "a"), (2, 200, "B"), (3, 300, "C"), KEPT],
    ),
    Case(
        "update one column, from both sides",
        lambda m: m.whenMatchedUpdate(set={"v": "s.v + t.v"}),
        [(1, 10, "a"), (2, 220, "b"), (3, 330, "c"), KEPT],
    ),
    Case(
        "the old row is what all values are computed from",
        lambda m: m.whenMatchedUpdate(set={"v": "t.id", "id": "t.v"}),
        [(1, 10, "a"), (20, 2, "b"), (30, 3, "c"), KEPT],
    ),
    Case(
        "update with a condition",
        lambda m: m.whenMatchedUpdate("s.v > 250", {"w": "s.w"}),
        [(1, 10, "a"), (2, 20, "b"), (3, 30, "C"), KEPT],
    ),
    Case(
        "a condition that is null is not true",
        lambda m: m.whenMatchedDelete("t.w = nullif(s.w, s.w)"),
        TARGET,
    ),
    Case("delete what matches", lambda m: m.whenMatchedDelete(), [(1, 10, "a"), KEPT]),
    Case(
        "the first clause whose condition is true counts",
        lambda m: m.whenMatchedDelete("t.v < 25").whenMatchedUpdate("t.v < 35", {"w": "'x'"}),
        [(1, 10, "a"), (3, 30, "x"), KEPT],
    ),
    Case(
        "the last clause needs no condition",
        lambda m: m.whenMatchedUpdate("t.v < 25", {"w": "'x'"}).whenMatchedDelete(),
        [(1, 10, "a"), (2, 20, "x"), KEPT],
    ),
    Case(
        "null keys match nothing, so they are inserted",
        lambda m: m.whenNotMatchedInsertAll(),
        [*TARGET, (4, 400, "D"), (None, 500, "N")],
    ),
    Case(
        "null-safe equality matches null keys",
        lambda m: m.whenMatchedDelete().whenNotMatchedInsertAll(),
        [(1, 10, "a"), (4, 400, "D")],
        condition="t.id <=> s.id",
    ),
    Case(
        "insert some columns, others are null",
        lambda m: m.whenNotMatchedInsert("s.id is not null", {"id": "id + 0", "v": "v * 2"}),
        [*TARGET, (4, 800, None)],
    ),
    Case(
        "several inserts, in order",
        lambda m: m.whenNotMatchedInsert("v = 400", {"w": "'first'"}).whenNotMatchedInsert(
            values={"w": "'second'"}
        ),
        [*TARGET, (None, None, "first"), (None, None, "second")],
    ),
    Case(
        "upsert",
        lambda m: m.whenMatchedUpdateAll().whenNotMatchedInsertAll(),
        [(1, 10, "a"), (2, 200, "B"), (3, 300, "C"), (4, 400, "D"), KEPT, (None, 500, "N")],
    ),
    Case(
        "keep columns out of an upsert",
        lambda m: m.whenMatchedUpdateAll(exceptCols=["v"]).whenNotMatchedInsertAll("id = 4", ["W"]),
        [(1, 10, "a"), (2, 20, "B"), (3, 30, "C"), (4, 400, None), KEPT],
    ),
    Case(
        "delete what the source lacks",
        lambda m: m.whenNotMatchedBySourceDelete(),
        [(2, 20, "b"), (3, 30, "c")],
    ),
    Case(
        "update what the source lacks; names are the table's",
        lambda m: m.whenNotMatchedBySourceUpdate("id = 1", {"w": "concat(w, '-')"}),
        [(1, 10, "a-"), (2, 20, "b"), (3, 30, "c"), KEPT],
    ),
    Case(
        "matched and not matched by source",
        lambda m: m.whenMatchedUpdate(set={"w": "s.w"}).whenNotMatchedBySourceDelete("v = 40"),
        [(1, 10, "a"), (2, 20, "B"), (3, 30, "C")],
    ),
    Case(
        "make the table like the source",
        lambda m: m.whenMatchedUpdateAll().whenNotMatchedInsertAll().whenNotMatchedBySourceDelete(),
        SOURCE,
    ),
    Case(
        "clauses of all kinds, by names that both sides have",
        lambda m: (
            m.whenMatchedDelete("s.v = 200")
            .whenMatchedUpdate(set={"v": "t.v + 1"})
            .whenNotMatchedInsert("v < 450", {"id": "id", "w": "lower(w)"})
            .whenNotMatchedBySourceUpdate("v = 10", {"v": "v - 1"})
            .whenNotMatchedBySourceDelete("v = 40")
        ),
        [(1, 9, "a"), (3, 31, "c"), (4, None, "d")],
    ),
    Case(
        "several source rows change one row",
        lambda m: m.whenMatchedUpdateAll(),
        (MergeError, "several rows of the source"),
        TWICE,
    ),
    Case(
        "several source rows, one deletes and one updates",
        lambda m: m.whenMatchedDelete("s.v = 200").whenMatchedUpdate(set={"v": "0"}),
        (MergeError, "several rows of the source"),
        TWICE,
    ),
    Case(
        "several source rows, but conditions choose one",
        lambda m: m.whenMatchedUpdate("s.v = 201", {"v": "s.v"}),
        [(1, 10, "a"), (2, 201, "b"), (3, 30, "c"), KEPT],
        TWICE,
    ),
    Case(
        "several source rows delete one row without a condition",
        lambda m: m.whenMatchedDelete(),
        [(1, 10, "a"), (3, 30, "c"), KEPT],
        TWICE,
    ),
    Case(
        "several source rows delete one row under a condition",
        lambda m: m.whenMatchedDelete("s.v > 0"),
        (MergeError, "several rows of the source"),
        TWICE,
    ),
    Case(
        "several source rows that match nothing are all inserted",
        lambda m: m.whenNotMatchedInsertAll(),
        [*TARGET, (9, 1, "x"), (9, 2, "y")],
        [(9, 1, "x"), (9, 2, "y")],
    ),
    Case("an empty source changes nothing", lambda m: m.whenMatchedUpdateAll(), TARGET, []),
    Case("an empty source has nothing", lambda m: m.whenNotMatchedBySourceDelete(), [], []),
    Case(
        "a condition on more than keys",
        lambda m: m.whenMatchedUpdate(set={"w": "s.w"}).whenNotMatchedInsert("s.id = 2", ALL),
        [(1, 10, "a"), (2, 20, "b"), (3, 30, "C"), KEPT, (2, 200, "B")],
        condition="t.id = s.id and t.v > 25",
    ),
    Case(
        "a condition that is always false inserts everything",
        lambda m: m.whenMatchedDelete().whenNotMatchedInsertAll(),
        [*TARGET, *SOURCE],
        condition="false",
    ),
    Case(
        "a condition without equality",
        lambda m: m.whenMatchedUpdate("s.id = 4", {"v": "s.v"}),
        [(1, 10, "a"), (2, 20, "b"), (3, 400, "c"), KEPT],
        condition="t.id = s.id - 1 or t.id > 100",
    ),
    Case(
        "columns by any case",
        lambda m: m.whenMatchedUpdate(set={"T.V": "S.V"}),
        [
            (1, 10, "a"),
            (2, 200, "b"),
            (3, 300, "c"),
            KEPT,
        ],
    ),
    Case(
        "numbers are cast",
        lambda m: m.whenMatchedUpdate(set={"v": "1.9D"}),
        [
            (1, 10, "a"),
            (2, 1, "b"),
            (3, 1, "c"),
            KEPT,
        ],
    ),
    Case(
        "numbers become text",
        lambda m: m.whenMatchedUpdate(set={"w": "s.v"}),
        [
            (1, 10, "a"),
            (2, 20, "200"),
            (3, 30, "300"),
            KEPT,
        ],
    ),
    Case(
        "text, not a number", lambda m: m.whenMatchedUpdate(set={"v": "s.w"}), (SchemaError, "`v` is bigint")
    ),
    Case("no clause", lambda m: m, (OptionError, "needs a clause")),
    Case(
        "a clause behind one without a condition",
        lambda m: m.whenMatchedDelete().whenMatchedUpdateAll(),
        (OptionError, "only the last may have no condition"),
    ),
    Case(
        "likewise for inserts",
        lambda m: m.whenNotMatchedInsertAll().whenNotMatchedInsertAll("id = 1"),
        (OptionError, "when not matched only the last"),
    ),
    Case(
        "likewise for rows that the source lacks",
        lambda m: m.whenNotMatchedBySourceDelete().whenNotMatchedBySourceDelete("id = 1"),
        (OptionError, "when not matched by source only the last"),
    ),
    Case(
        "the source lacks a column of all",
        lambda m: m.whenMatchedUpdateAll(),
        (SchemaError, "the source has no 'w'"),
        names=("id", "v", "x"),
    ),
    Case(
        "an unknown column in the condition",
        lambda m: m.whenMatchedDelete(),
        (ExpressionError, "the merge condition"),
        condition="t.id = s.nope",
    ),
    Case(
        "an ambiguous column in the condition",
        lambda m: m.whenMatchedDelete(),
        (ExpressionError, "ambiguous"),
        condition="id = s.id",
    ),
    Case(
        "an ambiguous column in a matched clause",
        lambda m: m.whenMatchedUpdate(set={"v": "v + 1"}),
        (ExpressionError, "ambiguous"),
    ),
    Case(
        "an insert that names the table",
        lambda m: m.whenNotMatchedInsert(values={"id": "t.id"}),
        (ExpressionError, "not matched then insert, 't.id'"),
    ),
    Case(
        "rows that the source lacks cannot name it",
        lambda m: m.whenNotMatchedBySourceUpdate(set={"v": "s.v"}),
        (ExpressionError, "not matched by source then update, 's.v'"),
    ),
    Case(
        "an unknown column is set",
        lambda m: m.whenMatchedUpdate(set={"nope": "1"}),
        (SchemaError, "no column 'nope'"),
    ),
    Case(
        "a column is set twice",
        lambda m: m.whenMatchedUpdate(set={"v": "1", "V": "2"}),
        (SchemaError, "set twice"),
    ),
    Case(
        "text that is no SQL",
        lambda m: m.whenMatchedDelete("s.v >"),
        (ExpressionError, "then delete, 's.v >'"),
    ),
]


# Cases whose like is in the table besides.
MORE = {
    "update with a condition",
    "several inserts, in order",
    "keep columns out of an upsert",
    "delete what the source lacks",
    "matched and not matched by source",
    "several source rows, one deletes and one updates",
    "several source rows that match nothing are all inserted",
    "an empty source has nothing",
    "a condition that is always false inserts everything",
    "columns by any case",
    "numbers become text",
}


def marked(case: Case) -> Any:
    return pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name in MORE else [])


def test_the_names_of_the_cases() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(names) > MORE


def write(path: Path, stable: bool = False) -> str:
    """Two fragments, one with a row that has been deleted."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
    rows = [*TARGET[:2], (99, 0, "gone"), *TARGET[2:]]
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)
    dataset = spark_lance.write_dataset(table, str(path), max_rows_per_file=3, enable_stable_row_ids=stable)
    dataset.delete("id = 99")
    return str(path)


def source(spark: SparkSession, rows: list[Row], names: tuple[str, str, str]) -> DataFrame:
    kinds = zip(names, ("long", "long", "string"), strict=True)
    return spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in kinds)).alias("s")


def content(path: str) -> list[Row]:
    """Return the rows, as pylance and this package read them, in one order."""
    theirs = [tuple(row.values()) for row in lance.dataset(path).to_table().to_pylist()]
    ours = [tuple(row.values()) for row in spark_lance.dataset(path).to_table().to_pylist()]
    assert ours == theirs
    return sorted(ours, key=repr)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_case(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    path = write(tmp_path / "t", stable=len(case.name) % 2 == 0)
    rows = SOURCE if case.source is None else case.source
    merge = LanceTable.forPath(spark, path).alias("t").merge(source(spark, rows, case.names), case.condition)
    before = lance.dataset(path).version
    files = {file.name for file in (tmp_path / "t" / "data").iterdir()}
    if isinstance(case.expected, tuple):
        with pytest.raises(case.expected[0], match=case.expected[1]):
            case.clauses(merge).execute()
        assert lance.dataset(path).version == before
        assert content(path) == sorted(TARGET, key=repr)
        assert {file.name for file in (tmp_path / "t" / "data").iterdir()} == files
        return
    metrics = case.clauses(merge).execute().collect()[0].asDict()
    assert content(path) == sorted(case.expected, key=repr)
    counts = [metrics[f"num_{kind}_rows"] for kind in ("updated", "deleted", "inserted")]
    assert metrics["num_affected_rows"] == sum(counts)
    assert len(case.expected) == len(TARGET) - counts[1] + counts[2]
    assert metrics["version"] == lance.dataset(path).version == before + (sum(counts) > 0)
    assert (metrics["bytes_written"] > 0) == (sum(counts) > 0 and bool(case.expected))
