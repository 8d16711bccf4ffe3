"""Hilbert curves: they visit each cell once, and each step leads to a neighbour."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from spark_lance.table.maintenance.hilbert import MAX_DIMENSIONS, STATE_BITS, hilbert_steps


def position(point: tuple[int, ...], bits: int) -> int:
    steps, state, result = hilbert_steps(len(point)), 0, 0
    for bit in reversed(range(bits)):
        cell = sum((each >> bit & 1) << place for place, each in enumerate(point))
        step = steps[(state << len(point)) + cell]
        state = step & ((1 << STATE_BITS) - 1)
        result = result << len(point) | step >> STATE_BITS
    return result


@pytest.mark.parametrize(("dimensions", "bits"), [(1, 4), (2, 4), (3, 3), (MAX_DIMENSIONS, 2)])
def test_each_step_leads_to_a_neighbour(dimensions: int, bits: int) -> None:
    points = sorted(product(range(1 << bits), repeat=dimensions), key=lambda point: position(point, bits))
    assert [position(point, bits) for point in points] == list(range(1 << bits * dimensions))
    for one, other in pairwise(points):
        assert sum(abs(left - right) for left, right in zip(one, other, strict=True)) == 1
