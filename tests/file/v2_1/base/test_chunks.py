"""Pieces of byte arrays: what is picked by words of memory is what is picked byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from spark_lance.file.v2_1.base.chunks import Ranges, gather_integers, run_starts, view_words


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("shift", [0, 1, 4, 8])
def test_integers_at_any_place(size: int, shift: int) -> None:
    rng = np.random.default_rng(size * 10 + shift)
    data = rng.integers(0, 256, 1003, np.uint8)[shift:]
    for step in (1, size):
        places = np.sort(rng.integers(0, (len(data) - size) // step, 50)) * step
        expected = [int.from_bytes(data[at : at + size].tobytes(), "little") for at in places]
        assert gather_integers(data, places, size).tolist() == expected
    last = np.array([len(data) - size])
    assert gather_integers(data, last, size).tolist() == [int.from_bytes(data[-size:].tobytes(), "little")]


def test_words_only_where_memory_allows() -> None:
    data = np.zeros(64, np.uint8)
    assert view_words(data, np.array([0, 8, 56]), 8) is not None
    assert view_words(data, np.array([0, 4]), 8) is None
    assert view_words(data[1:], np.array([0, 8]), 8) is None
    assert view_words(data[4:], np.array([0, 8]), 4) is not None


@pytest.mark.parametrize("count", [0, 1, 3, 5, 60, 300])
@pytest.mark.parametrize("longest", [1, 9, 90])
def test_pieces_one_after_the_other(count: int, longest: int) -> None:
    rng = np.random.default_rng(count + longest)
    data = rng.integers(0, 256, 100 + count * (longest + 2), np.uint8)
    sizes = rng.integers(0, longest + 1, count)
    for gaps in (np.zeros(count, np.int64), rng.integers(0, 3, count)):
        starts = np.cumsum(sizes + gaps) - sizes
        expected = b"".join(data[s : s + n].tobytes() for s, n in zip(starts, sizes, strict=True))
        assert Ranges(data, starts, sizes).concat().tobytes() == expected


def test_where_runs_start() -> None:
    assert run_starts(np.array([4, 4, 5, 7, 7, 7])).tolist() == [True, False, True, True, False, False]
    assert run_starts(np.array([], np.int64)).tolist() == []
