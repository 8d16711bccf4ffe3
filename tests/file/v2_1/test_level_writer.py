"""Bit-packed levels against a plain Python twin of the layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.file.v2_1.level_writer import pack_levels


def unpack(words: list[int], bits: int, count: int) -> list[int]:
    """Read the levels of one chunk, level by level and bit by bit."""
    out: list[int] = []
    block_words = 64 * bits
    while len(out) < count:
        left = count - len(out)
        if left < 1024 and len(words) == left:
            return out + words
        block, words = words[:block_words], words[block_words:]
        levels = [0] * 1024
        for lane in range(64):
            stream = [block[j * 64 + lane] for j in range(bits)]
            for row in range(16):
                value = sum(
                    (stream[(row * bits + b) // 16] >> (row * bits + b) % 16 & 1) << b for b in range(bits)
                )
                levels[row % 8 * 128 + row // 8 * 64 + lane] = value
        out += levels[: min(left, 1024)]
    assert not words
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.sampled_from([0, 1, 63, 64, 65, 128, 1000, 1023, 1024, 1025, 2048, 2112, 3000]), min_size=1),
    st.integers(0, 2**32 - 1),
)
def test_packed_levels_are_where_the_layout_says(bits: int, counts: list[int], seed: int) -> None:
    bounds = np.cumsum([0, *counts])
    levels = np.random.default_rng(seed).integers(0, 2**bits, bounds[-1], dtype=np.uint16)
    chunks = pack_levels(levels, bits, bounds)
    words = chunks.data.view(np.uint16)
    for c in range(len(counts)):
        piece = words[chunks.starts[c] // 2 : chunks.starts[c + 1] // 2].tolist()
        assert unpack(piece, bits, counts[c]) == levels[bounds[c] : bounds[c + 1]].tolist()


@pytest.mark.parametrize(("count", "words"), [(64, 64), (65, 65), (128, 128), (129, 128), (1024, 128)])
def test_a_tail_is_raw_if_that_takes_no_more_room(count: int, words: int) -> None:
    packed = pack_levels(np.ones(count, np.uint16), 2, np.array([0, count]))
    assert len(packed.data) == 2 * words
