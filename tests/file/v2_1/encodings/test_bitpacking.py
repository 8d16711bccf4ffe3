"""Bit-packed pages: the kernel against the reader's, and files in pylance."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.bitpacking import PackedChunks, block_widths, pack, unpack
from spark_lance.file.v2_1.levels.ravel import ravel
from spark_lance.file.v2_1.write.field_writer import MiniBlock, choose
from tests.file.v2_1.test_write_pylance import VERSIONS, check

WIDTHS = [(bits, width) for bits in (8, 16, 32, 64) for width in range(bits + 1)]


@pytest.mark.parametrize(("bits", "width"), WIDTHS)
def test_packed_blocks_unpack(bits: int, width: int) -> None:
    rng = np.random.default_rng(bits * 100 + width)
    for blocks in (1, 2, 130):
        words = rng.integers(0, 2**64, (blocks, 1024), dtype=np.uint64, endpoint=False)
        words = (words >> np.uint64(64 - width) if width else words * np.uint64(0)).astype(f"<u{bits // 8}")
        packed = pack(words, width)
        assert packed.shape == (blocks, 1024 * width // bits)
        np.testing.assert_array_equal(unpack(packed, width), words)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3000))
def test_widths_are_bit_lengths(values: list[int]) -> None:
    words = np.array(values, np.uint64)
    expected = [max(v.bit_length() for v in values[i : i + 1024]) for i in range(0, len(values), 1024)]
    assert block_widths(words).tolist() == expected


ARRAYS: dict[str, pa.Array] = {
    **{
        f"{n} of {kind}": pa.array(np.arange(n) % 11 + 1, pa.int8()).cast(kind)
        for n in (100, 1000, 1023, 1024, 1025, 2048, 5000)
        for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64())
    },
    "dates": pa.array(np.arange(3000) % 2000 + 15_000, pa.int32()).cast(pa.date32()),
    "timestamps": pa.array(1_357_016_400_000_000 + np.arange(5000) * 60_000_000, pa.timestamp("us", "UTC")),
    "float32 in 0 to 1": pa.array(np.random.default_rng(0).random(3000, np.float32)),
    "float16": pa.array((np.arange(3000) % 7).astype(np.float16)),
    "widths differ from block to block": pa.array(2 ** (np.arange(20_000) // 1024 % 40)),
    "a block of zeros": pa.array(np.concatenate([np.zeros(1024), np.arange(3000)]).astype(np.int64)),
    "negatives in one block": pa.array(np.where(np.arange(20_000) == 5000, -1, 3)),
    "nulls": pa.array(np.arange(5000), pa.int32(), mask=np.arange(5000) % 3 == 0),
    "lists": pa.array([list(range(i % 9)) if i % 7 else None for i in range(3000)], pa.list_(pa.int64())),
    "long lists": pa.array([list(range(i)) for i in (3000, 0, 1, 2000, 1024)], pa.list_(pa.int64())),
    "empty lists between": pa.array(
        [[1, 2]] * 700 + [[]] * 70_000 + [[3]] * 900 + [None] * 9, pa.list_(pa.int32())
    ),
    "structs": pa.array([{"x": i % 100, "y": None} for i in range(2000)]),
    "dictionary": pa.array([f"{i % 40}" for i in range(5000)]).dictionary_encode(),
    "narrow dictionary with nulls": pa.DictionaryArray.from_arrays(
        pa.array(np.arange(5000) % 3, pa.int8(), mask=np.arange(5000) % 5 == 0), ["a", "b", "c"]
    ),
}


def chosen(array: pa.Array, version: str) -> MiniBlock:
    table = pa.table({"c": array})
    (leaf,) = ravel(Schema.from_arrow(table.schema).fields[0], array)
    choice = choose(leaf, FileVersion.parse(version))
    assert isinstance(choice, MiniBlock)
    return choice


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ARRAYS)
def test_packed_pages_in_pylance(name: str, version: str) -> None:
    check(pa.table({"c": ARRAYS[name]}), version)


def test_what_is_packed() -> None:
    noise = pa.array(np.random.default_rng(0).normal(size=5000))
    scattered = np.random.default_rng(0).integers(0, 1 << 40, 5000)
    assert isinstance(chosen(pa.array(scattered, pa.timestamp("us")), "2.2").values, PackedChunks)
    assert isinstance(chosen(pa.array(scattered), "2.1").values, PackedChunks)
    assert not isinstance(chosen(noise, "2.2").values, PackedChunks)
    assert not isinstance(chosen(pa.array([1, 2, 3]), "2.2").values, PackedChunks)
