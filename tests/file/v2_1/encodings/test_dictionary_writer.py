"""Pages with dictionaries and runs, in pylance and in our reader."""

from __future__ import annotations

import hashlib
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.dictionary_writer import DictionaryLimits, encode_dictionary
from spark_lance.file.v2_1.encodings.rle import RunChunks, find_runs
from spark_lance.file.v2_1.levels.ravel import ravel
from spark_lance.file.v2_1.write.field_writer import MiniBlock, choose
from tests.file.v2_1.pylance_table import open_in_pylance, write_file
from tests.file.v2_1.test_write_pylance import VERSIONS, check, compare

N = 6000
PICKS = np.random.default_rng(5).integers(0, 37, N)
RARE = np.random.default_rng(5).integers(0, 2000, N)


def repeated(kind: pa.DataType, picks: np.ndarray = PICKS, nulls: bool = False) -> pa.Array:
    items = pa.array([f"item number {i}" for i in range(2000)], kind)
    taken = items.take(pa.array(picks))
    return pc.if_else(pa.array(np.arange(len(picks)) % 4 > 0), taken, None) if nulls else taken


TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
KINDS = (pa.string(), pa.large_binary(), pa.int64(), pa.float64(), pa.int16(), pa.decimal128(5, 0))

DICTIONARIES: dict[str, pa.Array] = {
    **{
        f"{kind}": repeated(kind) for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    },
    "with nulls": repeated(pa.string(), nulls=True),
    "large with nulls": repeated(pa.large_binary(), nulls=True),
    "more items than a byte counts": repeated(pa.string(), RARE),
    "more items than two bytes count": pa.array(
        [hashlib.md5(b"%d" % i).hexdigest() for i in np.random.default_rng(0).integers(0, 70_000, 250_000)]
    ),
    "empty strings among them": pa.array(["", "abcdef", "abcdefg"] * 100),
    "wide strings": pa.array(["x" * 300, "y" * 4000] * 500),
    "in runs": repeated(pa.string(), np.sort(PICKS)),
    "in lists": pa.ListArray.from_arrays(pa.array(np.arange(0, N + 1, 3), pa.int32()), repeated(pa.string())),
    "in lists with nulls": pa.ListArray.from_arrays(
        pa.array([0, None, 3000, 3000, N], pa.int32()), repeated(pa.string(), nulls=True)
    ),
    "in null structs": pa.StructArray.from_arrays(
        [repeated(pa.string(), nulls=True)], ["x"], mask=pa.array(np.arange(N) % 3 == 0)
    ),
    "slice": repeated(pa.string(), nulls=True)[5:-7],
}

NUMBERS: dict[str, pa.Array] = {
    "doubles": pa.array(PICKS * 0.25 - 3),
    "doubles with nulls": pa.array(PICKS * 0.25 - 3, mask=PICKS == 5),
    "zeros and NaNs of several kinds": pa.array([0.0, -0.0, float("nan"), float("inf"), -1.5] * 200),
    "negative integers": pa.array(-(2**60) - PICKS),
    "unsigned integers": pa.array(2**63 + PICKS.astype(np.uint64)),
    "timestamps": pa.array(2**52 + PICKS * 10**9, pa.timestamp("us")),
    "durations": pa.array(-PICKS * 10**9, pa.duration("ns")),
    "list of doubles": pa.array([[0.5, None, -1.5, -3.25], None, []] * 500),
}

WIDE: dict[str, pa.Array] = {
    "decimals": pa.array([Decimal(int(i)) / 4 for i in PICKS], pa.decimal128(20, 2)),
    "decimals with nulls": pa.array([Decimal(int(i)) if i else None for i in PICKS], pa.decimal128(20, 2)),
    "sixteen bytes": pa.array([b"%016d" % i for i in PICKS], pa.binary(16)),
}

LENGTHS = np.array([1, 2, 254, 255, 256, 510, 511, 1023, 1, 5000, 3, 9, 1024])


def runs(kind: pa.DataType, mask: bool = False) -> pa.Array:
    values = np.repeat(np.arange(len(LENGTHS)) % 7, LENGTHS)
    return pa.array(values, mask=np.arange(len(values)) % 1000 < 30 if mask else None).cast(kind)


RUNS: dict[str, pa.Array] = {
    **{f"{kind}": runs(kind) for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float32())},
    "with nulls": runs(pa.int32(), mask=True),
    "negative": pa.array(np.repeat(np.arange(100) * -7, 50).astype(np.int16)),
    "doubles": pa.array(np.repeat(np.random.default_rng(1).normal(size=50), 60)),
    "all but one": pa.array([5] * 5000 + [6], pa.int32()),
    "all equal, with nulls": pa.array([5, 5, 5, None] * 1000, pa.int32()),
    **{f"one change in {n}": pa.array([1] * (n - 1) + [2], pa.int32()) for n in (2, 1023, 1024, 1025, 4097)},
    "lists": pa.array([[3] * (i // 100) if i % 5 else None for i in range(1000)], pa.list_(pa.int32())),
    "dates": pa.array(np.repeat(np.arange(30), 300), pa.int32()).cast(pa.date32()),
    "dictionary": runs(pa.int32()).cast(pa.string()).dictionary_encode(),
}


def chosen(array: pa.Array, version: str) -> MiniBlock:
    (leaf,) = ravel(Schema.from_arrow(pa.schema([("c", array.type)])).fields[0], array)
    choice = choose(leaf, FileVersion.parse(version))
    assert isinstance(choice, MiniBlock)
    return choice


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", DICTIONARIES)
def test_dictionaries_of_text(name: str, version: str) -> None:
    array = DICTIONARIES[name]
    if not array.type.num_fields:
        assert chosen(array, version).dictionary is not None
    check(pa.table({"c": array}), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NUMBERS)
def test_dictionaries_of_numbers(name: str, version: str) -> None:
    array = NUMBERS[name]
    if not array.type.num_fields:
        assert chosen(array, version).dictionary is not None
    check(pa.table({"c": array}), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", WIDE)
def test_dictionaries_of_wide_numbers(name: str, version: str) -> None:
    assert chosen(WIDE[name], version).dictionary is not None
    check(pa.table({"c": WIDE[name]}), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str, version: str) -> None:
    check(pa.table({"c": RUNS[name]}), version)


def test_what_becomes_runs() -> None:
    for name in ("int32", "negative", "with nulls", "dates"):
        assert isinstance(chosen(RUNS[name], "2.2").values, RunChunks)
        assert isinstance(chosen(RUNS[name], "2.1").values, RunChunks)
    assert isinstance(chosen(DICTIONARIES["in runs"], "2.1").values, RunChunks)
    assert not isinstance(chosen(pa.array(np.arange(5000) % 2, pa.int8()), "2.2").values, RunChunks)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 700)), min_size=1, max_size=30),
    st.lists(st.integers(0, 20_000), max_size=10),
)
def test_runs_are_cut_at_chunks(pieces: list[tuple[int, int]], cuts: list[int]) -> None:
    words = np.repeat(*np.array(pieces).T).astype(np.uint16)
    bounds = np.array(sorted({0, len(words), *(cut % len(words) for cut in cuts)}))
    starts = find_runs(words, len(words) + 1)
    assert starts is not None
    values, lengths = RunChunks.of(words, starts).chunk(bounds)
    for c in range(len(bounds) - 1):
        some = values.data[values.starts[c] : values.starts[c + 1]].view(np.uint16)
        counts = lengths.data[lengths.starts[c] : lengths.starts[c + 1]]
        assert (counts > 0).all()
        np.testing.assert_array_equal(np.repeat(some, counts), words[bounds[c] : bounds[c + 1]])


def test_unique_values_get_no_dictionary() -> None:
    limits = DictionaryLimits()
    unique = pa.array([f"{i * 7919 % 100_003}" for i in range(100_000)])
    assert encode_dictionary(unique, None, limits) is None
    assert encode_dictionary(unique[:50], None, limits) is None
    assert encode_dictionary(repeated(pa.string()), None, limits) is not None
    # Neighbours that repeat, although values far apart do not.
    sorted_ids = pa.array(np.repeat(np.arange(3000), 60))
    assert encode_dictionary(sorted_ids, None, limits) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_on_dictionaries_and_runs(version: str) -> None:
    table = pa.table(
        {
            "text": repeated(pa.string(), nulls=True),
            "number": pa.array(PICKS * 0.5),
            "run": pa.array(np.arange(N) // 100, pa.int32()),
        }
    )
    with tempfile.TemporaryDirectory() as name:
        written = write_file(Path(name), table, version)
        dataset = open_in_pylance(Path(name), table.schema, [written])
        got = dataset.to_table(filter="text = 'item number 7' and number = 3.5 and run > 10")
        text = pc.fill_null(pc.equal(table["text"], "item number 7"), False)
        mask = pc.and_(text, pc.greater(table["run"], 10))
        assert got.num_rows > 10
        compare(got, table.filter(mask))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(100, 3000),
    st.integers(1, 300),
    st.sampled_from(
        [pa.string(), pa.large_binary(), pa.int64(), pa.float64(), pa.int16(), pa.decimal128(5, 0)]
    ),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_random_repetition(
    version: str, rows: int, distinct: int, kind: pa.DataType, in_order: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    items = pa.array(rng.integers(-9999, 9999, distinct))
    items = items.cast(pa.string()).cast(kind) if not pa.types.is_integer(kind) else items.cast(kind)
    picks = rng.integers(0, distinct, rows)
    taken = items.take(pa.array(np.sort(picks) if in_order else picks))
    lost = pa.array(rng.random(rows) < rng.choice([0.0, 0.1]))
    check(pa.table({"c": pc.if_else(lost, pa.scalar(None, kind), taken)}), version, page_bytes=4000)
