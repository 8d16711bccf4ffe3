"""Searches give the rows and columns that pylance gives for the same call."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError, SchemaError

ROWS = 60
WORDS = ["new", "york", "city", "big", "apple", "running", "runs", "the", "of", "foxes"]
RANDOM = np.random.default_rng(5)


def texts(rows: int, random: np.random.Generator = RANDOM) -> list[str | None]:
    return [" ".join(random.choice(WORDS, random.integers(1, 9))) if i % 13 else None for i in range(rows)]


def vectors(rows: int, dim: int = 4) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(RANDOM.random(rows * dim, np.float32)), dim)


def table(rows: int = ROWS, first: int = 0) -> pa.Table:
    inner = pa.StructArray.from_arrays([vectors(rows), pa.array(texts(rows))], ["v", "e"])
    missing = pa.array([i % 11 == 5 for i in range(rows)])
    inner = pa.StructArray.from_arrays(
        [inner.field(0), inner.field(1)], fields=list(inner.type), mask=missing
    )
    outer = pa.StructArray.from_arrays([inner, pa.array(range(rows))], ["d", "n"])
    numbers = pa.array(range(first, first + rows))
    return pa.table({"n": numbers, "s": texts(rows), "v": vectors(rows), "o": outer})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("searches") / "t.lance")
    ds = lance.write_dataset(table(), root, max_rows_per_file=25)
    ds.create_scalar_index("s", "INVERTED", with_position=True)
    return root


NEAREST: dict[str, Any] = {"column": "v", "q": [0.5, 0.5, 0.5, 0.5]}
COLUMNS: list[list[str] | None] = [
    None,
    [],
    ["n"],
    ["n", "*"],
    ["*", "n"],
    ["_rowid", "n"],
    ["n", "*", "_rowaddr"],
    ["_rowaddr", "*", "_rowid", "n"],
    ["v", "_rowaddr", "n"],
]


@pytest.mark.parametrize("score", ["_distance", "_score"])
def test_columns_come_in_the_order_of_pylance(root: str, score: str) -> None:
    request = {"nearest": {**NEAREST, "k": 4}} if score == "_distance" else {"full_text_query": "york city"}
    for names, row_id, address in itertools.product(COLUMNS, [False, True], [False, True]):
        columns = None if names is None else [score if name == "*" else name for name in names]
        call: dict[str, Any] = {
            **request,
            "columns": columns,
            "with_row_id": row_id,
            "with_row_address": address,
        }
        theirs = lance.dataset(root).to_table(**call)
        ours = spark_lance.dataset(root).to_table(**call)
        assert ours.column_names == theirs.column_names, call
        assert ours.num_rows == theirs.num_rows


def test_columns_of_scans_come_in_the_order_of_pylance(root: str) -> None:
    for names, row_id, address in itertools.product(COLUMNS, [False, True], [False, True]):
        if names is not None and ("*" in names or not names):
            continue
        call: dict[str, Any] = {"columns": names, "with_row_id": row_id, "with_row_address": address}
        theirs = lance.dataset(root).to_table(**call)
        assert spark_lance.dataset(root).to_table(**call).column_names == theirs.column_names, call


@pytest.mark.parametrize("k", [None, 4, 30])
def test_a_limit_without_k_is_k(root: str, k: int | None) -> None:
    nearest = NEAREST if k is None else {**NEAREST, "k": k}
    for limit, offset in itertools.product([None, 3, 10, 50], [None, 0, 2, 40]):
        call: dict[str, Any] = {
            "nearest": nearest,
            "columns": ["n", "_distance"],
            "limit": limit,
            "offset": offset,
        }
        expected = lance.dataset(root).to_table(**call)["n"].to_pylist()
        assert spark_lance.dataset(root).to_table(**call)["n"].to_pylist() == expected, call
    many = spark_lance.dataset(root).to_table(["n"], nearest=NEAREST, limit=50)
    assert many.num_rows == 50


QUERIES = ['"new york"', "new york", '"york new" city', 'city "new york"', '"new york" "big apple"', '""']
QUERIES += ['"runs"', '"the foxes of"', '"New  York!"', 'big "apple', '"city the york"', '"running foxes"']


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_in_quotes_is_a_phrase(root: str, query: str) -> None:
    for request in (query, {"query": query, "columns": ["s"]}):
        call: dict[str, Any] = {"full_text_query": request, "columns": ["n", "_score"]}
        expected = lance.dataset(root).to_table(**call)
        result = spark_lance.dataset(root).to_table(**call)
        assert sorted(result["n"].to_pylist()) == sorted(expected["n"].to_pylist())
        assert np.allclose(np.sort(result["_score"]), np.sort(expected["_score"]), rtol=1e-4)


def answers(found: pa.Table, score: str) -> dict[int, float]:
    return dict(zip(found["n"].to_pylist(), np.round(found[score].to_numpy(), 3).tolist(), strict=True))


def assert_same_answers(root: str, scores: bool = False) -> None:
    """Compare rows; scores only where all are indexed: pylance counts words of others by themselves."""
    ours, theirs = spark_lance.dataset(root), lance.dataset(root)
    nearest = {"column": "o.d.v", "q": [0.4] * 4, "k": 7, "nprobes": 3}
    for call, score in (
        ({"nearest": nearest}, "_distance"),
        ({"full_text_query": {"query": "york runs", "columns": ["o.d.e"]}}, "_score"),
    ):
        result = ours.to_table(columns=["n", score], **call)
        expected = theirs.to_table(columns=["n", score], **call)
        assert answers(result, score).keys() == answers(expected, score).keys()
        if scores or score == "_distance":
            found_scores, expected_scores = answers(result, score).values(), answers(expected, score).values()
            assert np.allclose(sorted(found_scores), sorted(expected_scores), atol=2e-3)


@pytest.mark.parametrize("builder", ["ours", "theirs"])
def test_fields_of_structs_are_indexed_and_searched(tmp_path: Path, builder: str) -> None:
    root = str(tmp_path / "t.lance")
    lance.write_dataset(table(), root, max_rows_per_file=25)
    assert_same_vectors_without_index(root)
    result: Any = spark_lance.dataset(root) if builder == "ours" else lance.dataset(root)
    result.create_index("o.d.v", "IVF_FLAT", num_partitions=3)
    result = spark_lance.dataset(root) if builder == "ours" else lance.dataset(root)
    result.create_scalar_index("o.d.e", "INVERTED")
    assert {index.name for index in lance.dataset(root).describe_indices()} == {"o.d.v_idx", "o.d.e_idx"}
    assert_same_answers(root, scores=True)
    lance.write_dataset(table(first=ROWS), root, mode="append")
    assert_same_answers(root)
    spark_lance.dataset(root).optimize.optimize_indices()
    facts = spark_lance.dataset(root).index_statistics("o.d.v_idx")
    assert facts["num_unindexed_rows"] == 0
    assert_same_answers(root)
    spark_lance.dataset(root).delete("n % 7 = 3")
    spark_lance.dataset(root).optimize.compact_files()
    assert_same_answers(root)
    lance.write_dataset(table(first=2 * ROWS), root, mode="append")
    lance.dataset(root).optimize.optimize_indices()
    lance.dataset(root).optimize.compact_files()
    assert_same_answers(root)
    assert spark_lance.dataset(root).to_table(["n"], full_text_query="york runs").num_rows


def assert_same_vectors_without_index(root: str) -> None:
    nearest = {"column": "o.d.v", "q": [0.4] * 4, "k": 7}
    call: dict[str, Any] = {"nearest": nearest, "columns": ["n", "_distance"]}
    expected = lance.dataset(root).to_table(**call)["n"].to_pylist()
    assert spark_lance.dataset(root).to_table(**call)["n"].to_pylist() == expected


def test_fields_that_are_not_there_are_refused(tmp_path: Path) -> None:
    ds = spark_lance.write_dataset(table(), tmp_path / "t.lance")
    for wrong in ("o.x", "s.x", "o.d.v.z"):
        with pytest.raises(SchemaError):
            ds.create_index(wrong, "IVF_FLAT", num_partitions=1)
    with pytest.raises((SchemaError, OptionError)):
        ds.to_table(nearest={"column": "o.d.e", "q": [1.0], "k": 1})
