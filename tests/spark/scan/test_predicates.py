"""Spark's predicates on floats: Spark has only one NaN, whatever its sign on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
import pytest

import spark_lance
from spark_lance.expressions.predicate import compile_tree
from spark_lance.file.base.schema import Schema
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan.predicates import pushdown_description, translate_predicate
from spark_lance.spark.schema.read_schema import to_spark_schema

NEGATIVE = np.array([0xFFF8000000000000], np.uint64).view(np.float64)[0]
VALUES = np.array([1.5, np.nan, NEGATIVE, -np.inf, np.inf, 0.0, -0.0, -2.0])
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: key(a) == key(b),
    ">": lambda a, b: key(a) > key(b),
    ">=": lambda a, b: key(a) >= key(b),
    "<": lambda a, b: key(a) < key(b),
    "<=": lambda a, b: key(a) <= key(b),
}


def key(number: float) -> tuple[bool, float]:
    """Order numbers as Spark does: any NaN is one and above all others, 0.0 equals -0.0."""
    return (number != number, 0.0 if number != number else number + 0.0)


@pytest.mark.parametrize("index", [None, "BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
def test_the_sign_of_nan_does_not_count(tmp_path: Path, index: str | None) -> None:
    table = spark_lance.write_dataset(pa.table({"n": range(8), "x": pa.array(VALUES)}), tmp_path / "t.lance")
    if index is not None:
        table = table.create_scalar_index("x", index)
    seen = st.StructType([st.StructField("n", st.LongType()), st.StructField("x", st.DoubleType())])
    for name, literal, inverted in itertools.product(
        COMPARE, [1.5, 0.0, np.inf, -2.0, np.nan], [False, True]
    ):
        node = {"op": name, "args": [{"path": ["x"]}, {"type": '"double"', "value": str(literal)}]}
        node = {"op": "NOT", "args": [node]} if inverted else node
        tree = translate_predicate(node, table.lance_schema, seen)
        assert tree is not None
        condition = compile_tree(tree, table.schema)
        results = [n for part in table.plan_scan(["n"]).tables(condition) for n in part["n"].to_pylist()]
        expected = [n for n, value in enumerate(VALUES) if COMPARE[name](float(value), literal) != inverted]
        assert results == expected, (name, literal, inverted)


def test_what_is_pushed_down_has_an_expression() -> None:
    columns = {
        "i": pa.array([1], pa.int32()),
        "x": pa.array([1.5]),
        "s": pa.array(["a"]),
        "ns": pa.array([7], pa.timestamp("ns")),
        "st": pa.array([{"a": 1, "t": {"z": "b"}, "l": [1]}]),
        "v": pa.array([[1.0, 2.0]]),
    }
    schema = Schema.from_arrow(pa.table(columns).schema)
    collated = st.StructField("s", st.StringType("UNICODE"))
    options = read_options({"path": "/t"})
    for seen, names in (
        (
            to_spark_schema(schema, options.projection),
            {("i",), ("x",), ("s",), ("st", "a"), ("st", "t", "z")},
        ),
        (st.StructType([collated, st.StructField("i", st.IntegerType())]), {("i",)}),
    ):
        pushdown = pushdown_description(options, schema, seen)
        assert {tuple(path) for path in pushdown["values"] if not path[0].startswith("_")} == names
        assert pushdown["whole"]
        for path in [*pushdown["values"], *pushdown["nulls"]]:
            literal = {"type": '"long"', "value": "1"}
            for op, args in (("IS_NULL", []), ("=", [literal]), ("IN", [literal, literal])):
                tree = translate_predicate({"op": op, "args": [{"path": path}, *args]}, schema, seen)
                assert (tree is not None) == (op == "IS_NULL" or path in pushdown["values"]), (path, op)
    assert not pushdown_description(read_options({"path": "/t", "filter": "i = 1"}), schema, seen)["whole"]
    assert pushdown_description(options, None, seen)["values"] == []
