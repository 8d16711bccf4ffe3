"""Scans that use scalar indices give what full scans give, whoever built them and whatever came after."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import dataset
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.index.scalar.btree import value_order
from spark_lance.index.scalar.create import create_scalar_index, extend_scalar_index
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.scalar.pruner import ScalarPruner
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.system_columns import filterable_schema

ROWS = 12_000
WORDS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "ba",
    "zebra",
    "Zebra",
    "\u00e4",
    "\u00e4b",
    "\U0001f600",
    "abcdefghij" * 3,
]


FLOATS = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 7.25]


@cache
def column(kind: str, rows: int, seed: int) -> pa.Array:
    """Return random values with nulls."""
    random = np.random.default_rng(seed)
    numbers = random.integers(-50, 50, rows)
    if kind == "float":
        values: list[Any] = random.choice(
            [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 7.25], rows
        ).tolist()
    elif kind == "text":
        values = [WORDS[n % len(WORDS)] for n in numbers]
    elif kind == "binary":
        values = [WORDS[n % len(WORDS)].encode() for n in numbers]
    elif kind == "list":
        values = [[int(m) for m in numbers[i : i + int(n) % 4]] for i, n in enumerate(numbers)]
    elif kind == "date":
        values = [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(n)) for n in numbers]
    elif kind == "time":
        values = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=int(n)) for n in numbers]
    elif kind == "decimal":
        values = [Decimal(int(n)) / 4 for n in numbers]
    elif kind == "bool":
        values = [bool(n % 2) for n in numbers]
    else:
        values = numbers.tolist()
    nulls = random.random(rows) < 0.1
    return pa.array([None if null else value for value, null in zip(values, nulls, strict=True)], TYPES[kind])


TYPES = {
    "int": pa.int64(),
    "short": pa.int16(),
    "float": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 2),
    "bool": pa.bool_(),
    "list": pa.list_(pa.int64()),
}
# Indices that tell zones of rows apart, which takes rows of like values side by side.
BY_ZONE = ("ZONEMAP", "BLOOMFILTER")
CONDITIONS = {
    "int": ["c = 7", "c < -40", "c >= 45", "c in (1, 2, 99)", "c > 10 and c < 13", "7 > c", "c != 3",
            "abs(c) = 4"],
    "short": ["c = 7", "c > 100000", "c between 3 and 5"],
    "float": ["c = 0.0", "c > 1e300", "c < -1e300", "c >= 7.25", "c != 1.5", "isnan(c)", "c in (1.5, 7.25)"],
    "text": ["c = 'ab'", "c like 'ab%'", "starts_with(c, 'Z')", "c > 'b'", "c <= ''", "c in ('a', 'nope')",
             "upper(c) = 'ZEBRA'", "c like '%bc%'"],
    "binary": ["c = X'6162'", "c > X'62'"],
    "date": ["c = date '2024-01-05'", "c < date '2023-12-01'"],
    "time": ["c >= timestamp '2024-01-02 20:00:00'"],
    "decimal": ["c = 2.25", "c > 12", "c < -12.3"],
    "bool": ["c", "not c", "c = true"],
    "list": ["array_has(c, 7)", "array_has_any(c, [1, 2])", "array_has_all(c, [3, 4])"],
}  # fmt: skip
COMMON = ["c is null", "c is not null", "c is null or k = 3"]
# Pylance does not take such a literal for such a column.
REFUSED_LITERALS = {("short", "c > 100000"), ("decimal", "c = 2.25"), ("decimal", "c < -12.3")}
CASES = [
    (name, kind)
    for name, index in SCALAR_INDICES.items()
    for kind, arrow in TYPES.items()
    # Scans do not use indices of words, and nothing here is a geometry.
    if index.supports_type(arrow) and name not in ("INVERTED", "RTREE")
]


@cache
def table_of(kind: str, rows: int = ROWS, seed: int = 0, *, ordered: bool = False) -> pa.Table:
    values = column(kind, rows, seed)
    if ordered:
        values = values.take(pa.array(value_order(pa.chunked_array([values]))))
    return pa.table(
        {"k": np.arange(rows) % 10, "c": values, "s": pa.StructArray.from_arrays([values], ["c"])}
    )


def found_rows(path: Path, condition: str) -> tuple[list[int], int]:
    """Return the addresses of the rows that a condition keeps, and how many rows the indices point to."""
    table = dataset(path)
    names = filterable_schema(table.lance_schema)
    compiled = compile_predicate(condition, names)
    pruner = ScalarPruner(table.snapshot)
    scan = table.snapshot.scan(["_rowaddr"])
    rows = [address for part in scan.tables(compiled) for address in part["_rowaddr"].to_pylist()]
    where = pruner(compiled, table.manifest.fragments)
    pointed = ROWS if where is None else sum(ROWS if here is None else len(here) for here in where.values())
    return rows, pointed


def all_rows(path: Path, condition: str) -> list[int]:
    table = dataset(path)
    scan = Scan.plan(table.table, table.manifest, ["_rowaddr"])
    return [int(address) for part in scan.tables(condition) for address in part["_rowaddr"].to_pylist()]


def check(path: Path, conditions: list[str]) -> Iterator[int]:
    for condition in conditions:
        rows, pointed = found_rows(path, condition)
        assert rows == all_rows(path, condition), condition
        yield pointed


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_our_index_is_used_by_us_and_by_pylance(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table_of(kind, ordered=name in BY_ZONE), str(path), max_rows_per_file=9000)
    table = dataset(path).delete("k = 9")
    create_scalar_index(table.snapshot, "c", name)
    pointed = list(check(path, [*CONDITIONS[kind], *COMMON]))
    assert min(pointed) < ROWS
    theirs = lance.dataset(str(path))
    plain = lance.dataset(str(path), version=table.version)
    for condition in [c for c in [*CONDITIONS[kind], *COMMON] if pylance_understands(c)]:
        if (kind, condition) in REFUSED_LITERALS:
            with pytest.raises(ValueError, match="Received literal"):
                plain.to_table(filter=condition, columns=["k"])
            continue
        other = plain.to_table(filter=condition, columns=["k"], with_row_address=True)
        one = theirs.to_table(filter=condition, columns=["k"], with_row_address=True)
        assert sorted(one["_rowaddr"].to_pylist()) == sorted(other["_rowaddr"].to_pylist()), condition


def pylance_understands(condition: str) -> bool:
    return not any(part in condition for part in ("X'", "isnan"))


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("stable", [False, True])
def test_pylance_index_is_used_by_us(name: str, kind: str, stable: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    theirs = lance.write_dataset(
        table_of(kind, ordered=name in BY_ZONE),
        str(path),
        max_rows_per_file=9000,
        enable_stable_row_ids=stable,
    )
    kind_of_index: Any = name
    theirs.create_scalar_index("c", kind_of_index)
    theirs.delete("k = 8")
    pointed = list(check(path, [*CONDITIONS[kind], *COMMON]))
    assert min(pointed) < ROWS


TYPED = {
    "date": ["c = date '2024-01-05'", "c < date '2023-12-01'", "date '2024-02-10' <= c"],
    "time": ["c >= timestamp '2024-01-02 20:00:00'", "timestamp '2024-01-01 07:00:00Z' = c"],
    "int": ["c = cast(7 as int)", "c > cast('45' as bigint)", "c in (cast(1 as smallint), 2)"],
    "decimal": ["c > cast(12 as decimal(5, 1))"],
    "text": ["c = cast('ab' as string)"],
}


@pytest.mark.parametrize("name", ["BTREE", "BITMAP", *BY_ZONE])
@pytest.mark.parametrize("kind", list(TYPED))
def test_constants_of_a_type_point_to_rows_as_literals_do(name: str, kind: str, tmp_path: Path) -> None:
    if (name, kind) not in CASES:
        pytest.skip(f"{name} does not index {kind}")
    path = tmp_path / "t"
    lance.write_dataset(table_of(kind, ordered=True), str(path), max_rows_per_file=9000)
    table = dataset(path)
    create_scalar_index(table.snapshot, "c", name)
    conditions = [c for c in TYPED[kind] if name != "BLOOMFILTER" or not {*"<>"} & {*c}]
    assert all(pointed < ROWS for pointed in check(path, conditions))


STEPS = ["append", "delete", "update", "compact", "rewrite", "extend", "extend_pylance", "compact_defer"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("name", ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
@settings(max_examples=3)
@given(data=st.data())
def test_rows_are_never_lost(
    name: str, stable: bool, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    rows = 600
    # Tables with stable row ids do not defer what their indices have to be told.
    steps = st.sampled_from([step for step in STEPS if not (stable and step == "compact_defer")])
    lance.write_dataset(table_of("int", rows), str(path), max_rows_per_file=250, enable_stable_row_ids=stable)
    table = dataset(path)
    create_scalar_index(table.snapshot, "c", name)
    for number, step in enumerate(data.draw(st.lists(steps, min_size=1, max_size=5))):
        take(path, step, number)
        list(check(path, ["c = 7", "c > 40", "c is null", "c = 7 or k = 3", "c < 0 and k = 2", "c = 1000"]))


def take(path: Path, step: str, number: int) -> None:
    """Do one thing to a table; some steps by pylance, some by us."""
    table = dataset(path)
    if step == "append":
        lance.write_dataset(table_of("int", 120, number + 1), str(path), mode="append")
    elif step == "delete":
        table.delete(f"k = {number}")
    elif step == "update":
        table.update({"c": "1000"}, where=f"k = {number} and c > 30")
    elif step == "compact":
        table.compact_files(target_rows_per_fragment=400)
    elif step == "compact_defer":
        table.compact_files(target_rows_per_fragment=400, defer_index_remap=True)
    elif step == "rewrite":
        lance.dataset(str(path)).optimize.compact_files(target_rows_per_fragment=400)
    elif step == "extend" and any(entry.name == "c_idx" for entry in table.manifest.indices):
        extend_scalar_index(table.snapshot, "c_idx", merge=number % 2 or None)
    elif step == "extend_pylance":
        lance.dataset(str(path)).optimize.optimize_indices()


def test_an_index_on_a_field_of_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table_of("int"), str(path))
    table = dataset(path)
    create_scalar_index(table.snapshot, "s.c", "BTREE", name="nested")
    (pointed,) = check(path, ["s.c = 7"])
    assert pointed < ROWS / 20


def test_several_indices_work_together(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table_of("int"), str(path))
    table = dataset(path)
    create_scalar_index(table.snapshot, "c", "BTREE")
    table = dataset(path)
    create_scalar_index(table.snapshot, "k", "BITMAP")
    both, either, unknown = check(path, ["c = 7 and k = 3", "c = 7 or k = 3", "c = 7 or length('x') = k"])
    assert both < 60 < either < ROWS / 5
    assert unknown <= ROWS
