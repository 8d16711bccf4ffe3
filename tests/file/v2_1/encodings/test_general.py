"""Compressed chunks of text: what decoders make of them, and how large they are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.base.chunks import Ranges
from spark_lance.file.v2_1.encodings.general import CompressedText, Compression, _with_literals, decompress
from spark_lance.file.v2_1.encodings.plain_writer import VariableChunks
from spark_lance.file.v2_1.levels.ravel import ravel
from spark_lance.file.v2_1.write.field_writer import MiniBlock, choose

RNG = np.random.default_rng(5)
TEXTS: dict[str, list[str] | list[bytes]] = {
    "words": [" ".join(["lance", "spark", "größe"][k] for k in row) for row in RNG.integers(0, 3, (900, 9))],
    "noise": [RNG.bytes(int(size)) for size in RNG.integers(0, 60, 900)],
    "one byte each": ["abc"[k] for k in RNG.integers(0, 3, 900)],
    "empty": [""] * 900,
    "empty at the end": ["some words"] * 700 + [""] * 200,
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("scheme", ["lz4", "zstd"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("packs_tables", [False, True])
def test_chunks_are_those_of_variable(name: str, scheme: str, large: bool, packs_tables: bool) -> None:
    array = pa.array(TEXTS[name], pa.large_binary() if large else pa.binary())
    values = VariableChunks.of(array[3:-2], None)
    text = CompressedText(values, Compression(scheme), packs_tables)
    bounds = np.array([0, 2, 4, 260, 516, 772, values.count])
    (plain,), (packed,) = values.chunk(bounds), text.chunk(bounds)
    pieces = Ranges(packed.data, packed.starts[:-1], np.diff(packed.starts))
    result = decompress(text.description.general.compression, pieces)
    assert result.sizes.tolist() == np.diff(plain.starts).tolist()
    step = values.width // 8
    used = (np.diff(bounds) + 1) * step + np.diff(values.offsets[bounds])
    for c, (start, stop) in enumerate(pairwise(plain.starts.tolist())):
        at, size = int(result.starts[c]), int(used[c])
        assert stop - start - step < size <= stop - start
        assert result.data[at : at + size].tobytes() == plain.data[start : start + size].tobytes()
        # The decoder of the reference takes each piece alone.
        piece = packed.data[packed.starts[c] : packed.starts[c + 1]].tobytes()
        prefix = 8 if scheme == "zstd" else 4
        assert int.from_bytes(piece[:prefix], "little") == stop - start
    # Nothing of what follows in the array comes into the file.
    end = int(used[-1])
    assert not result.data[int(result.starts[-1]) + end :].any()


@pytest.mark.parametrize("literals", [0, 1, 14, 15, 16, 269, 270, 271, 600])
@pytest.mark.parametrize("repeated", [False, True])
def test_literals_before_an_lz4_block(literals: int, repeated: bool) -> None:
    codec = pa.Codec("lz4_raw")
    tail = RNG.bytes(literals) + (b"again and " * 40 if repeated else b"")
    block = codec.compress(tail) if tail else pa.py_buffer(b"\0")
    for size in (*range(18), 253, 254, 255, 256, 269, 270, 271, 510, 525, 4100):
        head = RNG.bytes(size)
        result = b"".join(_with_literals(head, block))
        if head or tail:
            assert codec.decompress(result, decompressed_size=size + len(tail), asbytes=True) == head + tail


def text_page(values: list[str] | list[bytes], version: str = "2.2", **metadata: str) -> MiniBlock:
    wishes = {f"lance-encoding:{key}": value for key, value in metadata.items()}
    array = pa.array(values)
    schema = Schema.from_arrow(pa.schema([pa.field("c", array.type, metadata=wishes)]))
    (leaf,) = ravel(schema.fields[0], array)
    choice = choose(leaf, FileVersion.parse(version))
    assert isinstance(choice, MiniBlock)
    return choice


def test_sizes_of_chunks() -> None:
    # What zstd hardly makes smaller than lz4 does: long repetitions between noise.
    known = [RNG.bytes(60) for _ in range(40)]
    phrases = [RNG.bytes(8) + known[k] for k in RNG.integers(0, 40, 4000)]
    codes = [RNG.bytes(5).hex() for _ in range(8000)]
    by_lz4, by_zstd = text_page(phrases), text_page(codes)
    assert isinstance(by_lz4.values, CompressedText)
    assert isinstance(by_zstd.values, CompressedText)
    assert (by_lz4.values.compression.scheme, by_lz4.policy.target_bytes) == ("lz4", 64 * 1024)
    assert (by_zstd.values.compression.scheme, by_zstd.policy.target_bytes) == ("zstd", 28 * 1024)
    assert text_page(phrases, "2.1").policy.target_bytes == 28 * 1024
    assert text_page(codes, compression="zstd").policy.target_bytes == 64 * 1024
    assert text_page(phrases, **{"minichunk-size": "8192"}).policy.target_bytes == 8192


def test_tables_of_offsets_are_packed_beside_short_values_and_on_request() -> None:
    def packs(values: list[str], **metadata: str) -> bool:
        page = text_page(values, **metadata)
        assert isinstance(page.values, CompressedText)
        return page.values.packs_tables

    long = [RNG.bytes(40).hex() for _ in range(4000)]
    assert packs([RNG.bytes(5).hex() for _ in range(8000)])
    assert not packs(long)
    assert packs(long, compression="zstd")
    values = VariableChunks.of(pa.array(long), None)
    bounds = np.arange(0, len(long) + 1, 400)
    sizes = [
        int(CompressedText(values, Compression("zstd"), packed).chunk(bounds)[0].starts[-1])
        for packed in (False, True)
    ]
    assert sizes[1] < sizes[0] - len(long)


@pytest.mark.parametrize(
    ("count", "length", "scheme"),
    [(100, 30, "LZ4"), (2000, 30, "ZSTD"), (2000, 300, "LZ4"), (800, 30, "LZ4")],
)
def test_dictionaries_of_text(count: int, length: int, scheme: str) -> None:
    names = [f"{RNG.bytes(2).hex()} {'of the names ' * (length // 13)} {k}" for k in range(count)]
    page = text_page([names[k] for k in RNG.integers(0, count, 50_000 if count == 800 else 20_000)])
    assert page.dictionary is not None
    assert f"COMPRESSION_{scheme}" in str(page.dictionary.description)
