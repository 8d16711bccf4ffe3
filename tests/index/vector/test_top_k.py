"""The nearest rows of one query and of many, against sorting all distances."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.index.vector import top_k
from spark_lance.index.vector.top_k import BatchTopK, TopK, smallest


def plain(seen: list[tuple[int, float]], k: int) -> list[tuple[int, float]]:
    """All (address, distance) of one query sorted, NaN last, each address once."""
    far = float("inf")
    ordered = sorted(
        seen, key=lambda pair: (math.isnan(pair[1]), far if math.isnan(pair[1]) else pair[1], pair[0])
    )
    results: dict[int, float] = {}
    for address, distance in ordered:
        results.setdefault(address, distance)
    return list(results.items())[:k]


def same(found: TopK, expected: list[tuple[int, float]]) -> bool:
    distances = np.array([distance for _, distance in expected], np.float32)
    return found.addresses.tolist() == [address for address, _ in expected] and np.array_equal(
        found.distances, distances, equal_nan=True
    )


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(0, 6),
    st.sampled_from([2, 30, 1000]),
    st.booleans(),
)
def test_the_best_are_those_of_sorting_all(
    seed: int, queries: int, k: int, blocks: int, distinct: int, with_nan: bool
) -> None:
    random = np.random.default_rng(seed)
    gathered = BatchTopK(queries, k)
    seen: list[list[tuple[int, float]]] = [[] for _ in range(queries)]
    for number in range(blocks):
        askers = np.flatnonzero(random.random(queries) < 0.7)
        rows = int(random.integers(0, 300))
        addresses = (random.permutation(rows) + 400 * number).astype(np.uint64)
        scores = random.integers(-distinct, distinct, (len(askers), rows)).astype(np.float32)
        if with_nan:
            scores[random.random(scores.shape) < 0.3] = np.nan
        for asker, line in zip(askers.tolist(), scores, strict=True):
            seen[asker] += zip(addresses.tolist(), line.tolist(), strict=True)
        gathered.add(askers, addresses, scores)
    for result, all_of_it in zip(gathered.nearest(), seen, strict=True):
        assert same(result, plain(all_of_it, k))


def test_a_row_that_is_there_twice_counts_once() -> None:
    gathered = BatchTopK(2, 3)
    numbers = np.arange(2)
    gathered.add(numbers, np.array([5, 6, 7], np.uint64), np.array([[1, 2, 3], [3, 2, 1]], np.float32))
    gathered.add(numbers, np.array([5, 8], np.uint64), np.array([[0.5, 9], [9, 0]], np.float32))
    first, second = gathered.nearest()
    assert same(first, [(5, 0.5), (6, 2.0), (7, 3.0)])
    assert same(second, [(8, 0.0), (7, 1.0), (6, 2.0)])


def test_candidates_beyond_the_bounds_are_dropped(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(top_k, "_MAX_CANDIDATES", 50)
    random = np.random.default_rng(1)
    gathered = BatchTopK(3, 4)
    seen: list[list[tuple[int, float]]] = [[] for _ in range(3)]
    for number in range(40):
        scores = random.normal(size=(3, 25)).astype(np.float32)
        addresses = (np.arange(25) + 25 * number).astype(np.uint64)
        gathered.add(np.arange(3), addresses, scores)
        assert gathered._num_candidates <= 125
        for asker in range(3):
            seen[asker] += zip(addresses.tolist(), scores[asker].tolist(), strict=True)
    for result, all_of_it in zip(gathered.nearest(), seen, strict=True):
        assert same(result, plain(all_of_it, 4))


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 40), st.sampled_from([2, 30, 10**6]))
def test_the_smallest_of_one_query_are_those_of_sorting(
    seed: int, rows: int, count: int, distinct: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-distinct, distinct, rows).astype(np.float32)
    special = random.random(rows)
    scores[special < 0.02] = np.inf
    scores[special > random.choice([1.0, 0.999, 0.5, 0.0])] = np.nan
    result = smallest(scores, count)
    assert len(result) == len(set(result.tolist())) == min(count, rows)
    # NaN is sorted last.
    np.testing.assert_array_equal(np.sort(scores[result]), np.sort(scores)[:count])


def test_nothing_but_alike_scores_leaves_enough() -> None:
    result = smallest(np.zeros(5000, np.float32), 10)
    assert len(set(result.tolist())) == 10
