"""Reciprocal rank fusion, against the formula written down once more, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.index.fusion import reciprocal_rank_fusion

RANKINGS = st.lists(st.lists(st.integers(0, 40), unique=True, max_size=12), min_size=1, max_size=4)


@given(RANKINGS, st.data())
def test_scores_are_the_sums_of_the_formula(rankings: list[list[int]], data: st.DataObject) -> None:
    weights = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in rankings]
    constant = data.draw(st.sampled_from([0.5, 1.0, 60.0]))
    arrays = [np.array(ranking, np.uint64) for ranking in rankings]
    addresses, scores = reciprocal_rank_fusion(arrays, weights, constant)
    expected: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for place, row in enumerate(ranking):
            expected[row] = expected.get(row, 0.0) + weight / (constant + place + 1)
    assert sorted(addresses.tolist()) == sorted(expected)
    assert scores.tolist() == pytest.approx([expected[row] for row in addresses.tolist()])
    assert list(zip(-scores, addresses, strict=True)) == sorted(zip(-scores, addresses, strict=True))


def test_rankings_without_rows_have_no_rows() -> None:
    addresses, scores = reciprocal_rank_fusion([np.empty(0, np.uint64)] * 2, [1, 1])
    assert not len(addresses)
    assert not len(scores)
