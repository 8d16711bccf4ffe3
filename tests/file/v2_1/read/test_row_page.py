"""Single rows and narrow ranges of 2.1 and 2.2 files: equal to the whole, and read from few bytes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.pages import RowReader
from spark_lance.file.reader import FileReader, take_field
from spark_lance.file.v2_1.encodings.random_access import pickable
from spark_lance.file.v2_1.read import field_reader, row_page
from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.pylance_file import one_column, open_file, pylance_file
from tests.file.v2_1.test_corruption import LIMIT, SMALL, damaged
from tests.file.v2_1.test_read_pylance import (
    HINTED,
    HINTS,
    NESTED,
    NESTED_2_2,
    PLAIN,
    VERSIONS,
    some_null,
)
from tests.strategies import canonical, tables
from tests.wrapped_store import WrappedStore


def take(reader: FileReader, rows: Sequence[int]) -> pa.Table:
    """Take rows of all columns with readers that have not decoded anything yet."""
    fields = reader.schema.fields
    numbers = np.array(rows, dtype=np.int64)
    arrays = []
    for field in fields:
        opened = reader.open_field(field)
        if not isinstance(opened, RowReader):
            raise UnsupportedFormatError("the file claims to be of another version")
        arrays.append(take_field(opened, field, "here", numbers))
    return pa.Table.from_arrays(arrays, schema=pa.schema([field.arrow_field() for field in fields]))


def some_rows(count: int) -> list[list[int]]:
    rng = random.Random(count)
    sizes = {1, 2, 7, count // 20, count // 3, count}
    return [sorted(rng.sample(range(count), size)) for size in sizes if 0 < size <= count] + [
        [0],
        [count - 1],
    ]


def check(reader: FileReader) -> None:
    """What is taken, and what narrow ranges hold, is what the whole holds."""
    whole = reader.read()
    for rows in some_rows(reader.num_rows):
        taken = take(reader, rows)
        taken.validate(full=True)
        assert taken.equals(pick_rows(whole, np.array(rows))), rows
    rng = random.Random(1)
    for _ in range(4):
        size = rng.randrange(1, reader.num_rows // 16 + 2)
        start = rng.randrange(max(1, reader.num_rows - size))
        stop = min(start + size, reader.num_rows)
        assert reader.read(start=start, stop=stop).equals(whole.slice(start, stop - start))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str, version: str, tmp_path: Path) -> None:
    check(open_file(pylance_file(one_column(PLAIN[name]), version, tmp_path / "full")))
    if not pa.types.is_dictionary(PLAIN[name].type):
        check(open_file(pylance_file(one_column(some_null(PLAIN[name])), version, tmp_path / "null")))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*NESTED, *NESTED_2_2])
def test_nested(name: str, version: str, tmp_path: Path) -> None:
    if name in NESTED_2_2 and version == "2.1":
        pytest.skip("2.1 has no such type")
    check(open_file(pylance_file(one_column({**NESTED, **NESTED_2_2}[name]), version, tmp_path)))


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: " ".join(f"{k}={v}" for k, v in hint.items()))
def test_encodings_asked_for(hint: dict[str, str], tmp_path: Path) -> None:
    for name in HINTED:
        check(open_file(pylance_file(one_column(some_null(PLAIN[name]), **hint), "2.2", tmp_path / name)))


def long_lists(rows: int, seed: int) -> pa.Array:
    """Lists of lists of which some are longer than several chunks."""
    rng = np.random.default_rng(seed)

    def one(i: int) -> Any:
        kind = rng.random()
        if kind < 0.2:
            return None if kind < 0.1 else []
        size = int(rng.integers(0, 30_000)) if rng.random() < 0.01 else int(rng.integers(0, 6))
        return [[i] * int(k) if k < 3 else None for k in rng.integers(0, 4, size)]

    return pa.array([one(i) for i in range(rows)], pa.list_(pa.list_(pa.int32())))


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_longer_than_chunks(version: str, tmp_path: Path) -> None:
    reader = open_file(pylance_file(one_column(long_lists(600, 1)), version, tmp_path))
    whole = reader.read()
    for row in range(0, 600, 7):
        assert take(reader, [row]).equals(whole.slice(row, 1)), row
    check(reader)


@settings(max_examples=40)
@given(drawn=st.sampled_from(VERSIONS).flatmap(lambda v: st.tuples(st.just(v), tables(v))), data=st.data())
def test_random_tables(drawn: tuple[str, pa.Table], data: st.DataObject) -> None:
    version, table = drawn
    if table.num_rows == 0:
        return
    with tempfile.TemporaryDirectory() as name:
        try:
            file = pylance_file(table, version, Path(name))
        except BaseException as error:  # pylance panics on some types: those are not files to read
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        reader = open_file(file)
        whole = reader.read()
        rows = sorted(data.draw(st.sets(st.integers(0, reader.num_rows - 1), min_size=1)))
        taken = take(reader, rows)
        taken.validate(full=True)
        expected = pick_rows(whole, np.array(rows))
        for column in whole.column_names:
            assert canonical(taken[column]) == canonical(expected[column])


BIG = 300_000
WIDE: dict[str, pa.Array] = {
    "bit-packed": pa.array(np.random.default_rng(1).integers(0, 1 << 40, BIG)),
    "flat, null": some_null(pa.array(np.random.default_rng(2).normal(size=BIG))),
    "runs": pa.array(np.repeat(np.random.default_rng(3).integers(0, 1 << 30, BIG // 5, np.int32), 5)),
    "seldom null": pa.array(np.arange(BIG, dtype=np.int32), mask=np.random.default_rng(4).random(BIG) < 0.01),
    "fsst": pa.array([f"https://example.org/{i * 7919 % 99991}/{i}" for i in range(BIG)]),
    "vectors": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(BIG * 2, np.float32)), 200),
    "full-zip text": pa.array([f"{i} " * 50 for i in range(BIG // 20)]),
    "lists": pa.array([[i * 7919 % 99_991 + k * k for k in range(i % 9)] for i in range(BIG // 3)]),
    "zstd": pa.array([f"{i} {i * 7919 % 9973}" for i in range(BIG)]),
}


class _CountingStore(WrappedStore):
    """Serves one local file as if it were far away, and counts."""

    read_bytes = 0
    requests = 0

    def map(self, path: str) -> None:
        return None

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        type(self).read_bytes += sum(size for _, size in ranges)
        type(self).requests += 1
        data = Path(path).read_bytes()
        return [pa.py_buffer(data[offset : offset + size]) for offset, size in ranges]


@pytest.mark.parametrize("name", WIDE)
def test_few_rows_need_few_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the pages were larger: small ones are read whole.
    for module in ("io.ranges", "file.v2_1.read.row_page"):
        monkeypatch.setattr(f"spark_lance.{module}.REQUEST_BYTES", 1 << 12)
    monkeypatch.setattr("spark_lance.file.v2_1.read.row_page._FIRST_BYTES", 1 << 12)
    hints = {"compression": "zstd"} if name == "zstd" else {}
    file = pylance_file(one_column(WIDE[name], **hints), "2.2", tmp_path)
    expected = open_file(file).read()
    size = file.stat().st_size
    reader = FileReader(_CountingStore.around(LocalStore()), str(file), size=size)
    rows = [5, expected.num_rows // 2, expected.num_rows - 2]

    def one_by_one() -> pa.Table:
        return pa.concat_tables([reader.read(start=row, stop=row + 1) for row in rows])

    for action in (partial(take, reader, rows), one_by_one):
        monkeypatch.setattr(_CountingStore, "read_bytes", 0)
        monkeypatch.setattr(_CountingStore, "requests", 0)
        assert action().equals(pick_rows(expected, np.array(rows)))
        assert 0 < _CountingStore.read_bytes < size / 10
        assert _CountingStore.requests <= 4 * len(rows)


@pytest.mark.parametrize("name", [*WIDE, "dictionary", "few texts"])
def test_windows_decode_parts_of_pages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array([f"text {i % 7}" for i in range(BIG)])
    more = {"dictionary": some_null(texts).dictionary_encode(), "few texts": some_null(texts)}
    array = WIDE[name] if name in WIDE else more[name]
    monkeypatch.setattr(field_reader, "_PART_BYTES", 1 << 15)
    reader = open_file(pylance_file(one_column(array), "2.2", tmp_path))
    whole = reader.read().column(0)
    field = reader.schema.fields[0]
    opened = reader.open_field(field)
    assert isinstance(opened, field_reader.FieldReader)
    rng = random.Random(name)
    start = 0
    while start < reader.num_rows:
        stop = min(reader.num_rows, start + rng.choice([1, 100, 5000, 30_000]))
        window = opened.read(start, stop)
        window.validate(full=True)
        assert window.equals(whole.slice(start, stop - start))
        if name not in ("lists", "vectors", "full-zip text"):
            last = opened._paths[0]._last_decoded
            assert last is not None
            assert len(last[2]) < reader.num_rows / 3
        start = stop


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SMALL)
def test_flipped_bytes(name: str, version: str, tmp_path: Path) -> None:
    if name in ("map", "packed") and version == "2.1":
        pytest.skip("2.1 has no such type")
    data = pylance_file(SMALL[name], version, tmp_path).read_bytes()
    rows = [0, 1, SMALL[name].num_rows - 1]
    store = MemoryStore()
    outcomes = {"refused": 0, "read": 0}
    for changed in damaged(data, 150):
        store.put("/damaged-rows", changed)
        try:
            got = take(FileReader(store, "/damaged-rows"), rows)
        except LanceError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            # Damage to the schema can hide the column.
            assert got.num_rows == len(rows) * bool(got.num_columns)
            assert got.nbytes < LIMIT
            got.validate(full=name != "decimal")
    assert min(outcomes.values()) > 5


@pytest.mark.parametrize("rows", [[-1], [0, 10], [10]])
def test_rows_that_are_not_there(rows: list[int], tmp_path: Path) -> None:
    reader = open_file(pylance_file(one_column(pa.array(range(10))), "2.2", tmp_path))
    with pytest.raises(FormatError):
        take(reader, rows)


def test_sequential_windows_decode_pages_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_file(pylance_file(one_column(WIDE["bit-packed"]), "2.2", tmp_path))
    taken: list[int] = []
    original = row_page.RowPage.take

    def counting(self: row_page.RowPage, rows: Any) -> pa.Array:
        taken.append(len(rows))
        return original(self, rows)

    monkeypatch.setattr(row_page.RowPage, "take", counting)
    field = reader.open_field(reader.schema.fields[0])
    for start in range(1000, 20_000, 1000):
        assert field.read(start, start + 1000).combine_chunks().equals(WIDE["bit-packed"].slice(start, 1000))
    assert taken == [1000]


COMPRESSED = {
    "lz4": {"compression": "lz4"},
    "lz4 of split bytes": {"compression": "lz4", "bss": "on"},
    "zstd": {"compression": "zstd"},
    "zstd of split bytes": {"compression": "zstd", "bss": "on"},
}


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("hint", COMPRESSED)
def test_single_values_of_compressed_chunks(hint: str, nulls: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(hint))
    for number, kind in enumerate((pa.int64(), pa.float32(), pa.int8(), pa.string())):
        values = pa.array(rng.integers(0, 99, BIG // 10).astype(str)).cast(pa.int64()).cast(kind)
        column = some_null(values) if nulls else values
        reader = open_file(
            pylance_file(one_column(column, **COMPRESSED[hint]), "2.2", tmp_path / str(number))
        )
        for size in (1, 40, 700):
            rows = np.sort(rng.choice(reader.num_rows, size, replace=False))
            assert take(reader, rows.tolist())["a"].combine_chunks().equals(column.take(pa.array(rows)))


def test_chunks_that_are_compressed_are_picked_from() -> None:
    split = pb.CompressiveEncoding()
    split.byte_stream_split.values.flat.bits_per_value = 64
    for scheme in (pb.COMPRESSION_LZ4, pb.COMPRESSION_ZSTD):
        around = pb.CompressiveEncoding()
        around.general.compression.scheme = scheme
        around.general.values.CopyFrom(split)
        assert pickable(around)
    split.byte_stream_split.values.flat.bits_per_value = 16
    assert not pickable(split)
