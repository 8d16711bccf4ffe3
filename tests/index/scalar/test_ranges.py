"""Two bounds of a value are one question to an ordered index, which reads no more than lies between them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.expressions.expressions import Call, Column, Literal
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.index.scalar.btree import BTree, Entries
from spark_lance.index.scalar.column_predicate import conjuncts
from spark_lance.index.scalar.full_coverage import exact_rows

PAGE = 4096
A, B = Column(("a",)), Column(("b",))


def bound(operator: str, column: Column, value: Any) -> Call:
    return Call(operator, (column, Literal(value)))


def test_bounds_of_one_value_go_together() -> None:
    low, high, other = bound(">", A, 1), bound("<=", A, 5), bound("<", B, 2)
    same = bound("=", A, 3)
    turned = Call("<", (Literal(1), A))
    assert conjuncts([Call("and", (turned, Call("and", (other, same)))), high]) == [
        Call("and", (low, high)),
        other,
        same,
    ]
    either = Call("or", (low, high))
    assert conjuncts([either]) == [either]
    assert conjuncts([low]) == [low]


@pytest.mark.parametrize("index", ["BTREE", "BITMAP", "ZONEMAP"])
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.string()], ids=str)
def test_random_ranges(tmp_path: Path, index: str, kind: pa.DataType) -> None:
    rng = random.Random(f"{index} {kind}")

    def draw() -> Any:
        number = rng.randrange(200)
        if pa.types.is_string(kind):
            return f"{number:03}"
        return float("nan") if pa.types.is_floating(kind) and number > 190 else number

    values = [None if rng.random() < 0.1 else draw() for _ in range(2_000)]
    table = pa.table({"x": pa.array(values, kind), "id": range(len(values))})
    plain = spark_lance.write_dataset(table, tmp_path / "plain", max_rows_per_file=700)
    indexed = spark_lance.write_dataset(table, tmp_path / "t", max_rows_per_file=700)
    indexed = indexed.create_scalar_index("x", index).delete("id % 7 = 3")
    for _ in range(8):
        quote = "'" if pa.types.is_string(kind) else ""
        low, high = (f"{quote}{rng.randrange(200):03}{quote}" for _ in range(2))
        text = rng.choice(
            [
                f"x between {low} and {high}",
                f"x > {low} and x < {high}",
                f"{low} <= x and x < {high} and id < 1000",
                f"(x >= {low} and x <= {high}) or x is null",
                f"not (x >= {low} and x <= {high})",
            ]
        )
        rows = indexed.to_table(["id"], text)["id"].to_pylist()
        assert rows == plain.to_table(["id"], f"({text}) and id % 7 != 3")["id"].to_pylist(), text


def test_a_range_reads_what_lies_between_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(1).permutation(12 * PAGE)
    ds = spark_lance.write_dataset(pa.table({"x": numbers}), tmp_path / "t").create_scalar_index("x", "BTREE")
    read: list[int] = []
    really = BTree._read_all

    def noted(index: BTree, spans: list[tuple[int, int]]) -> list[Entries]:
        read.extend(stop - start for start, stop in spans)
        return really(index, spans)

    monkeypatch.setattr(BTree, "_read_all", noted)
    text = f"x >= {8 * PAGE + 5} and x < {8 * PAGE + 15}"
    assert sorted(ds.to_table(filter=text)["x"].to_pylist()) == list(range(8 * PAGE + 5, 8 * PAGE + 15))
    assert read == [PAGE]
    read.clear()
    rows = exact_rows(ds.snapshot, compile_predicate(text, ds.schema).trees(), 1 << 30)
    assert rows is not None
    assert rows.num_rows == 10
    assert read == [PAGE]
