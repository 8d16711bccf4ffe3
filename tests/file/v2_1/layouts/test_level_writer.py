"""Bit-packed levels against a plain Python twin of the layout."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.layouts.mini_block import LevelChunks, pack_levels
from spark_lance.file.v2_1.levels.ravel import ravel
from tests.file.v2_1.test_write_pylance import VERSIONS, check


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


def nulls_in_runs(lengths: list[int]) -> pa.Array:
    mask = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return pa.array(np.arange(len(mask)) * 7919 % 100_003, pa.int32(), mask=mask)


RUNNY: dict[str, pa.Array] = {
    "nulls in long runs": nulls_in_runs([3000, 4000, 255, 256, 1, 254, 9000, 511, 510]),
    "few nulls": nulls_in_runs([1, 2, *([700, 1] * 20)]),
    "short": nulls_in_runs([200, 300, 1]),
    "at the bounds of chunks": nulls_in_runs([1024, 1024, 1023, 1, 1025]),
    "first runs, then none": nulls_in_runs([60_000, 60_000] + [1] * 4000),
    "bits": pa.array([None] * 3000 + [True, False] * 3000),
    "text": pa.array([None] * 3000 + ["abc", "d"] * 300 + [None] * 900),
    "lists": pa.array([None] * 2000 + [[1, 2]] * 300 + [[]] * 2000 + [list(range(3000))]),
    "long lists": pa.array([list(range(2000)), list(range(5000)), None, [1]]),
    "many empty lists between values": pa.array([[1]] + [[]] * 60_000 + [[2], [3, 4]] * 100),
    "structs": pa.array([None] * 3000 + [{"x": 1, "y": "b"}] * 3000),
    "vectors": pa.array([None] * 3000 + [[1.0, 2.0]] * 3000, pa.list_(pa.float32(), 2)),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", RUNNY)
def test_levels_in_runs(name: str, version: str) -> None:
    check(pa.table({"c": RUNNY[name]}), version)


def test_which_levels_become_runs() -> None:
    def kind(array: pa.Array, version: FileVersion) -> str | None:
        (leaf,) = ravel(Schema.from_arrow(pa.schema([("c", array.type)])).fields[0], array)
        bounds = np.append(np.arange(0, leaf.num_levels, 1024), leaf.num_levels)
        _, definition = LevelChunks.of(leaf, version).encode_levels(bounds)
        return None if definition is None else definition.description.WhichOneof("compression")

    assert kind(RUNNY["nulls in long runs"], FileVersion.V2_2) == "rle"
    assert kind(RUNNY["nulls in long runs"], FileVersion.V2_1) == "out_of_line_bitpacking"
    assert kind(nulls_in_runs([2] * 5000), FileVersion.V2_2) == "out_of_line_bitpacking"
    assert kind(nulls_in_runs([1] * 50), FileVersion.V2_2) == "flat"
    assert kind(nulls_in_runs([1] * 65), FileVersion.V2_2) == "out_of_line_bitpacking"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [63, 64, 65, 127, 128, 129, 200, 1023])
def test_short_pages_of_levels(count: int, version: str) -> None:
    every_other = np.arange(count) % 2 == 0
    rows = [[i, None] if i % 3 else ([] if i % 2 else None) for i in range(count)]
    check(pa.table({"a": pa.array(np.arange(count), mask=every_other), "b": rows}), version)
