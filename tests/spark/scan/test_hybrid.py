"""Hybrid search: the same answer without Spark, as a read option, and as a Spark job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import OptionError, SchemaError
from tests.index.vectors import clustered, exact_neighbours, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400
VECTORS = clustered(ROWS, 8, seed=3)
QUERY = clustered(1, 8, seed=9)[0]
WORDS = ["red", "green", "blue", "gray", "gold"]
MEASURED = ["_distance", "_score", "_relevance_score"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with both indices over its first 300 rows."""
    path = str(tmp_path_factory.mktemp("hybrid") / "t")
    random = np.random.default_rng(4)
    texts = [" ".join(random.choice(WORDS, 3)) if n % 6 else None for n in range(ROWS)]
    rows = table_of(VECTORS).append_column("t", pa.array(texts))
    table = spark_lance.write_dataset(rows.slice(0, 300), path, max_rows_per_file=170)
    table = table.create_index("v", "IVF_FLAT", num_partitions=4).create_scalar_index("t", "INVERTED")
    spark_lance.write_dataset(rows.slice(300), path, mode="append")
    return path


def by_formula(
    path: str, k: int, weights: tuple[float, float], constant: float, candidates: int
) -> list[Any]:
    """Return (id, relevance), of the two searches on their own."""
    table = spark_lance.dataset(path)
    near = exact_neighbours(VECTORS, QUERY, candidates, "l2")
    words = table.to_table(["id"], limit=candidates, full_text_query="red gold")["id"].to_pylist()
    scores: dict[int, float] = {}
    for ranking, weight in zip((near, words), weights, strict=True):
        for place, row in enumerate(ranking):
            scores[row] = scores.get(row, 0.0) + weight / (constant + place + 1)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def nearest(**keys: Any) -> dict[str, Any]:
    return {"column": "v", "q": QUERY.tolist(), "nprobes": 4, **keys}


@pytest.mark.parametrize(
    ("k", "weights", "constant", "candidates"),
    [
        (10, (1.0, 1.0), 60.0, None),
        (40, (0.3, 2.0), 1.0, 50),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((7, (1.0, 0.0), 60.0, 7), (150, (1.0, 1.0), 5, None))
        ),
    ],
)
def test_everywhere_the_same_and_as_the_formula_says(
    spark: SparkSession,
    path: str,
    k: int,
    weights: tuple[float, float],
    constant: float,
    candidates: int | None,
) -> None:
    settings: dict[str, Any] = {
        "vector_weight": weights[0],
        "text_weight": weights[1],
        "rank_constant": constant,
    }
    plain = spark_lance.dataset(path).hybrid_search(
        nearest(), "red gold", k, columns=["id"], candidates=candidates, **settings
    )
    expected = by_formula(path, k, weights, constant, candidates or max(100, k))
    assert plain.column_names == ["id", *MEASURED]
    assert plain["id"].to_pylist() == [row for row, _ in expected]
    assert plain["_relevance_score"].to_pylist() == pytest.approx([score for _, score in expected])
    request = {
        "nearest": nearest(),
        "full_text_query": "red gold",
        "k": k,
        "candidates": candidates,
        **settings,
    }
    read = spark.read.format("lance").option("hybrid_search", json.dumps(request)).option("columns", "id")
    assert [tuple(row) for row in read.load(path).collect()] == rows_of(plain)
    job = LanceTable.forPath(spark, path).hybridSearch(
        QUERY.tolist(),
        "red gold",
        "v",
        "t",
        k,
        vectorWeight=weights[0],
        textWeight=weights[1],
        rankConstant=constant,
        candidates=candidates,
        nprobes=4,
        columns=["id"],
    )
    assert job.columns == ["id", *MEASURED]
    results = [tuple(row) for row in job.collect()]
    # Rows of one relevance have no order in Spark.
    assert sorted(results) == sorted(rows_of(plain))
    assert [row[-1] for row in results] == [row[-1] for row in rows_of(plain)]


def rows_of(table: pa.Table) -> list[Any]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_filters_come_before_or_after(path: str) -> None:
    table = spark_lance.dataset(path)
    before = table.hybrid_search(nearest(), "red", 12, filter="id % 3 = 0", columns=["id"])
    assert before.num_rows == 12
    assert all(row % 3 == 0 for row in before["id"].to_pylist())
    after = table.hybrid_search(nearest(), "red", 12, filter="id % 3 = 0", columns=["id"], prefilter=False)
    everything = table.hybrid_search(nearest(), "red", 12, columns=["id"])["id"].to_pylist()
    assert after["id"].to_pylist() == [row for row in everything if row % 3 == 0]


def test_what_was_not_ranked_is_null(path: str) -> None:
    result = spark_lance.dataset(path).hybrid_search(nearest(), "red", 60, candidates=60)
    near, words = result["_distance"].is_valid(), result["_score"].is_valid()
    assert 0 < near.to_pylist().count(True) <= 60
    assert 0 < words.to_pylist().count(True) <= 60
    assert all(a or b for a, b in zip(near.to_pylist(), words.to_pylist(), strict=True))
    assert result.column_names == ["id", "v", "t", *MEASURED]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k of a hybrid search"),
        ({"k": 2.5}, "k of a hybrid search"),
        ({"text_weight": -1}, "text_weight"),
        ({"vector_weight": float("nan")}, "vector_weight"),
        ({"rank_constant": 0}, "rank_constant"),
        ({"k": 9, "candidates": 8}, "candidates"),
        ({"nearest": {**nearest(), "k": 5}}, "candidates"),
        ({"nearest": nearest(q=[[0.0] * 8] * 2)}, "one query vector"),
        ({"nearest": nearest(q=[0.0] * 7)}, "7 values"),
        ({"full_text_query": {"query": "a", "operator": "xor"}}, "operator"),
    ],
)
def test_what_does_not_fit_is_refused(path: str, wrong: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"nearest": nearest(), "full_text_query": "red", **wrong}
    with pytest.raises(OptionError, match=message):
        spark_lance.dataset(path).hybrid_search(**request)


def test_a_column_without_words_is_refused(path: str) -> None:
    with pytest.raises(SchemaError, match="holds no text"):
        spark_lance.dataset(path).hybrid_search(nearest(), {"query": "red", "column": "id"})
