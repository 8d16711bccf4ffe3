"""Many single values asked of ordered indices find what a look at every row finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.expressions.expressions import Call, Column, Literal
from spark_lance.index.scalar import btree
from spark_lance.index.scalar.column_predicate import ColumnPredicate

ROWS = 30_000


def number(rng: random.Random) -> int:
    return rng.choice([rng.randrange(-100, 100), rng.randrange(20_000), 2**40, 2**63, -(2**70)])


def word(rng: random.Random) -> str:
    return rng.choice([f"w{rng.randrange(9_000)}", "", "é" * rng.randrange(4), "\U0001f600", "\uffff", "w"])


KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "int8": (pa.int8(), number),
    "int32": (pa.int32(), number),
    "int64": (pa.int64(), number),
    "string": (pa.string(), word),
    "large_string": (pa.large_string(), word),
}


@pytest.mark.parametrize("index", ["BTREE", "ZONEMAP"])
@pytest.mark.parametrize("name", KINDS)
def test_random_points(tmp_path: Path, name: str, index: str) -> None:
    kind, draw = KINDS[name]
    rng = random.Random(f"{name} {index}")
    low, high = (
        (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1)) if pa.types.is_integer(kind) else (0, 0)
    )
    values: list[Any] = [draw(rng) for _ in range(ROWS)]
    remaining = [v if isinstance(v, str) or low <= v < high else None for v in values]
    # Whole pages of null, and runs of one value.
    remaining[:5000] = [None] * 5000 if rng.random() < 0.5 else remaining[:5000]
    place = str(tmp_path / "t.lance")
    table = pa.table({"x": pa.array(remaining, kind), "id": range(ROWS)})
    spark_lance.write_dataset(table, place, max_rows_per_file=ROWS // 3)
    dataset = spark_lance.dataset(place)
    dataset.create_scalar_index("x", index)
    dataset.delete("id % 7 = 3")
    dataset = spark_lance.dataset(place)
    for size in (1, 2, 40, 400):
        request = [draw(rng) for _ in range(size)] + ([None] if rng.random() < 0.3 else [])
        quoted = ["NULL" if a is None else f"'{a}'" if isinstance(a, str) else str(a) for a in request]
        expected_rows = {a for a in request if a is not None}
        expected = [i for i, value in enumerate(remaining) if value in expected_rows and i % 7 != 3]
        result = dataset.to_table(filter=f"x IN ({', '.join(quoted)})", columns=["id"])
        assert result["id"].to_pylist() == expected


def probe(*values: Any) -> ColumnPredicate:
    return ColumnPredicate(("x",), Call("in", (Column(("value",)), *map(Literal, values))))


def entries(values: pa.Array | pa.ChunkedArray) -> btree.Entries:
    return btree.Entries(pa.table({"values": values, "ids": pa.array(range(len(values)), pa.uint64())}))


def test_points_are_tried_one_by_one_where_their_type_is_another() -> None:
    assert probe(3, 1, None, 3).points(pa.int16()) == [1, 3, 3]
    assert probe(2**64).points(pa.int64()) == []
    for values, kind in (
        ((1, 2.5), pa.int64()), ((True,), pa.int64()), (("a",), pa.int64()), ((1,), pa.float64()),
        ((1,), pa.uint64()), ((b"a",), pa.binary()), ((1,), pa.string()),
    ):  # fmt: skip
        assert probe(*values).points(kind) is None


def test_bounds_hold_a_point_as_they_do_one_by_one() -> None:
    rng = random.Random(5)
    for kind, draw in ((pa.int16(), lambda: rng.randrange(-50, 50)), (pa.string(), lambda: word(rng))):
        pairs = [sorted((draw(), draw())) for _ in range(300)]
        low = pa.array([None if rng.random() < 0.1 else pair[0] for pair in pairs], kind)
        high = pa.array([None if rng.random() < 0.1 else pair[1] for pair in pairs], kind)
        request = probe(*(draw() for _ in range(9)))
        result = request.maybe_between(low, high)
        one_by_one = request._test_constants(low, high) & pc.is_valid(high).to_numpy(zero_copy_only=False)
        assert result is not None
        assert result.tolist() == one_by_one.tolist()
        assert 0 < result.sum() < len(result)


def test_values_that_are_not_in_order_are_looked_at_all() -> None:
    values = pa.chunked_array([pa.array([1, 3, 3]), pa.array([5, 9])])
    places = btree._find_points(np.array([0, 3, 9, 10]), entries(values))
    assert places is not None
    assert places.tolist() == [1, 2, 4]
    assert btree._find_points(np.array([3]), entries(pa.array([3, 1]))) is None
    assert btree._find_points(np.array([3]), entries(pa.array([None, 3]))) is None
