"""Hybrid search without Spark: the fusion of two searches, computed by hand."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import write_dataset
from spark_lance.datasets.dataset import LanceDataset

WORDS = ["red", "green", "blue", "gray", "gold"]
DIM = 4


def rows_of(chance: random.Random, first: int, count: int) -> pa.Table:
    vectors = pa.array([chance.gauss(0, 1) for _ in range(count * DIM)], pa.float32())
    texts = [" ".join(chance.choices(WORDS, k=chance.randrange(5))) or None for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "v": pa.FixedSizeListArray.from_arrays(vectors, DIM),
            "t": pa.array(texts, pa.string()),
        }
    )


def near_rows(table: LanceDataset, query: list[float], filter: str | None, most: int) -> list[int]:
    """Return the rows by distance, from all of their vectors."""
    rows = table.to_table(["id", "v"], filter)
    vectors = rows["v"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
    distances = ((vectors - np.array(query, np.float32)) ** 2).sum(axis=1)
    ids: list[int] = rows["id"].to_numpy()[np.argsort(distances, kind="stable")].tolist()
    return ids[:most]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_relevance_is_what_the_formula_says(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    chance = random.Random(seed)
    count = chance.randrange(20, 150)
    path = tmp_path_factory.mktemp("hybrid") / "t"
    table = write_dataset(
        rows_of(chance, 0, count), path, max_rows_per_file=40, enable_stable_row_ids=chance.random() < 0.5
    )
    if chance.random() < 0.7:
        table = table.create_scalar_index("t", "INVERTED")
    if chance.random() < 0.5:
        table = table.create_index("v", "IVF_FLAT", num_partitions=2)
    if chance.random() < 0.5:
        table = table.delete(f"id % {chance.randrange(3, 7)} = 0")
    if chance.random() < 0.5:
        table = write_dataset(rows_of(chance, count, 15), path, mode="append")
    k = chance.randrange(1, 30)
    candidates = chance.choice([None, k, k + 20])
    weights = chance.choice([(1.0, 1.0), (0.2, 3.0), (1.0, 0.0)])
    constant = chance.choice([1.0, 60.0])
    filter = chance.choice([None, "id % 2 = 1"])
    query = [chance.gauss(0, 1) for _ in range(DIM)]
    words = " ".join(chance.choices(WORDS, k=2))
    result = table.hybrid_search(
        {"column": "v", "q": query, "nprobes": 2},
        {"query": words, "column": "t"},
        k,
        columns=["id"],
        filter=filter,
        vector_weight=weights[0],
        text_weight=weights[1],
        rank_constant=constant,
        candidates=candidates,
    )
    most = max(100, k) if candidates is None else candidates
    text = table.to_table(
        ["id"], filter, limit=most, full_text_query={"query": words, "column": "t"}, prefilter=True
    )
    rankings = [near_rows(table, query, filter, most), text["id"].to_pylist()]
    scores: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for place, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + weight / (constant + place)
    best = sorted(scores.values(), reverse=True)[:k]
    assert result["_relevance_score"].to_pylist() == pytest.approx(best)
    ids = result["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert [scores[row] for row in ids] == pytest.approx(best)
    assert result["_distance"].is_valid().to_pylist() == [row in rankings[0] for row in ids]
    assert result["_score"].is_valid().to_pylist() == [row in rankings[1] for row in ids]
