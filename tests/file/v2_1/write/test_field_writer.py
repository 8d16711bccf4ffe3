"""The form of numbers: chosen by bytes and reading time, read by pylance, whatever it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Chunks, Ranges
from spark_lance.file.v2_1.encodings.dictionary_writer import DictionaryLimits, number_words
from spark_lance.file.v2_1.encodings.general import CompressedChunks, Compression
from spark_lance.file.v2_1.encodings.plain_writer import FixedChunks, flat
from spark_lance.file.v2_1.encodings.rle import decode_items
from spark_lance.file.v2_1.write.field_writer import CostModel, MiniBlock, choose_form, fill_nulls_forward
from spark_lance.file.v2_1.write.settings import Settings
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.test_write_pylance import VERSIONS, check
from tests.file.v2_1.write.test_compression_writer import chosen, describe

RNG = np.random.default_rng(11)
ROWS = 20_000
DEFAULT = CostModel.of(Settings())
TYPES = [
    pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.date32(),
    pa.timestamp("us"), pa.duration("s"), pa.time32("s"),
]  # fmt: skip


def holed(array: pa.Array, share: float) -> pa.Array:
    return pc.if_else(pa.array(RNG.random(len(array)) >= share), array, pa.scalar(None, array.type))


def of_type(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers as values of a type, by their lowest bits."""
    width = kind.bit_width // 8
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers.astype(f"i{width}"))])


# What the numbers are, and the largest share of their plain bytes that may be left of them.
SERIES: dict[str, tuple[np.ndarray, float]] = {
    "delays around zero": (np.clip(RNG.normal(10, 30, ROWS), -100, 120).astype(np.int64), 0.34),
    "few that lie far apart": (RNG.integers(-5, 6, ROWS) * 11 % 100, 0.2),
    "sorted": (np.arange(ROWS) // 9 % 100, 0.2),
    "zipf": (np.minimum(RNG.zipf(1.5, ROWS), 100), 0.25),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_numbers_of_every_type(kind: pa.DataType, version: str) -> None:
    columns = {}
    for name, (numbers, _) in SERIES.items():
        wide = numbers if kind.bit_width == 8 else numbers * 13 - 50
        columns[name] = of_type(wide, kind)
        columns[f"{name} with nulls"] = holed(columns[name], 0.1 if name < "m" else 0.99)
    check(pa.table(columns), version)


@pytest.mark.parametrize("name", SERIES)
def test_what_is_left(name: str) -> None:
    numbers, share = SERIES[name]
    choice = chosen(pa.array(numbers, pa.int32()))
    assert isinstance(choice, MiniBlock)
    assert choice.dictionary is not None
    items = choice.dictionary.data.nbytes
    (first, *others) = choice.values.chunk(np.append(np.arange(0, ROWS, 1024), ROWS))
    assert len(first.data) + sum(len(other.data) for other in others) + items < share * 4 * ROWS


def test_negative_numbers_are_counted_from_the_least() -> None:
    numbered = number_words(
        np.arange(-900, 900).astype(np.int32).view(np.uint32), DictionaryLimits(divisor=1)
    )
    assert numbered is not None
    assert numbered.items.view(np.int32).tolist() == list(range(-900, 900))
    assert numbered.indices.tolist() == list(range(1800))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 80_000),
    st.integers(1, 3000),
    st.integers(0, 2**32),
)
def test_numbered_words_are_the_words(kind: type, base: int, span: int, distinct: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = (rng.integers(0, span, distinct).astype(np.uint64) + np.uint64(base)).astype(kind)
    words = pool[rng.integers(0, distinct, 20_000)]
    numbered = number_words(words, DictionaryLimits())
    if numbered is not None:
        assert numbered.items.dtype == words.dtype
        assert np.array_equal(numbered.items[numbered.indices], words)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scheme", [None, "zstd", "lz4"])
def test_shapes_that_shrink(scheme: str | None, version: str) -> None:
    pixels = np.where(RNG.random((2000, 64)) < 0.2, RNG.integers(0, 16, (2000, 64)), 0)
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1), pa.float32()), 64)
    small = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1), pa.int16()), 8)
    amounts = pa.array(RNG.integers(0, 10**6, ROWS)).cast(pa.decimal128(20, 0))
    table = pa.table(
        {
            "images": pa.concat_arrays([images] * 8),
            "small": small.slice(0, 16_000),
            "holed": holed(small, 0.1).slice(0, 16_000),
            "amounts": amounts.slice(0, 16_000),
            "wide": amounts.cast(pa.decimal256(50, 0)).slice(0, 16_000),
            "codes": pa.array([f"{n:020}".encode() for n in range(16_000)], pa.binary(20)),
            "bytes": pa.array([f"{n * 7919:020}".encode() for n in range(16_000)]),
            "ids": np.arange(16_000),
        }
    )
    if scheme is not None:
        keys = {"lance-encoding:compression": scheme}
        table = table.cast(pa.schema([field.with_metadata(keys) for field in table.schema]))
    check(table, version)


def test_what_shrinks_is_compressed() -> None:
    amounts = pa.array(RNG.integers(0, 10**6, ROWS)).cast(pa.decimal128(20, 0))
    assert "general" in describe(chosen(amounts))
    assert "general" in describe(chosen(pa.array(np.arange(ROWS))))
    assert "general" not in describe(chosen(pa.array(np.arange(ROWS)), compression="none"))
    noise = RNG.normal(size=ROWS)
    assert "general" not in describe(chosen(pa.array(noise)))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(noise, pa.float32()), 16)
    assert "general" not in describe(chosen(vectors))
    bits = pa.array(RNG.integers(0, 2**64 - 1, (ROWS, 2), np.uint64).view("S16").reshape(-1), pa.binary(16))
    assert "general" not in describe(chosen(bits))


def test_whoever_asks_gets_smaller_files() -> None:
    words = np.minimum(RNG.geometric(0.03, 200_000), 255).astype(np.uint8)
    fast = choose_form(words, DEFAULT)
    small = choose_form(words, CostModel.of(Settings(compression=Compression("zstd"))))
    assert small.nbytes < fast.nbytes
    assert isinstance(small.build(), CompressedChunks)
    assert not isinstance(fast.build(), CompressedChunks)


def test_one_word() -> None:
    assert isinstance(choose_form(np.zeros(1, np.uint32), DEFAULT).build(), FixedChunks)


def test_nulls_of_sparse_numbers_make_no_runs() -> None:
    valid = RNG.random(ROWS) < 0.01
    valid[0] = False
    numbers = RNG.integers(0, 1 << 40, ROWS)
    choice = chosen(pa.array(numbers, mask=~valid))
    assert isinstance(choice, MiniBlock)
    assert describe(choice).startswith("rle")
    values, _ = choice.values.chunk(np.append(np.arange(0, ROWS, 4096), ROWS))
    # An entry for each number and the nulls behind it; more where these are over 255 or a chunk begins.
    assert len(values.data) // 8 < 1.25 * np.count_nonzero(valid)
    remaining = fill_nulls_forward(np.where(valid, numbers, 0).astype(np.uint64), valid)
    assert remaining is not None
    assert np.array_equal(remaining[valid], numbers[valid])
    assert fill_nulls_forward(np.arange(10, dtype=np.uint64), np.arange(10) < 6) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_sparse_numbers(share: float, version: str) -> None:
    kinds = {"ints": pa.int64(), "floats": pa.float32(), "times": pa.timestamp("ms"), "bytes": pa.uint8()}
    columns = {name: holed(of_type(RNG.integers(0, 99, ROWS), kind), share) for name, kind in kinds.items()}
    sizes = np.append(0, np.cumsum(RNG.integers(0, 4, ROWS)))
    items = holed(pa.array(RNG.integers(0, 1 << 30, int(sizes[-1]))), share)
    columns["lists"] = pa.ListArray.from_arrays(pa.array(sizes, pa.int32()), items)
    check(pa.table(columns), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_long_runs_of_few_wide_numbers_have_a_dictionary(version: str) -> None:
    numbers = np.repeat(RNG.integers(0, 12, 200) + 2013, 100)
    choice = chosen(pa.array(numbers))
    assert isinstance(choice, MiniBlock)
    assert choice.dictionary is not None
    assert describe(choice).startswith("rle")
    columns = {kind: of_type(numbers, kind) for kind in (pa.int64(), pa.int32(), pa.timestamp("us"))}
    table = {str(kind): array for kind, array in columns.items()}
    table |= {f"{kind} with nulls": holed(array, 0.1) for kind, array in columns.items()}
    check(pa.table(table), version)


def test_an_index_of_a_run_without_an_item_is_left_to_the_general_decoder() -> None:
    lengths = Ranges(np.array([2, 3], np.uint8), np.array([0]), np.array([2]))
    items = FixedWidth(64, 2, np.array([5, 7], "<u8").view(np.uint8))
    message = pb.Rle(values=flat(8), run_lengths=flat(8))
    for indices, expected in (([1, 0], [7, 7, 5, 5, 5]), ([1, 2], None)):
        values = Ranges(np.array(indices, np.uint8), np.array([0]), np.array([2]))
        block = decode_items(message, Chunks((values, lengths), np.array([5])), items)
        assert (None if block is None else block.data.view("<u8").tolist()) == expected
