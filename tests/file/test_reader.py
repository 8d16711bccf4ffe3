"""Opening files: what is fetched, ranges and projections, and refusal of damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.metadata import FOOTER_SIZE, Footer
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import WRITABLE_VERSIONS, FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import open_store
from tests.strategies import canonical, tables
from tests.wrapped_store import WrappedStore

VERSIONS = list(WRITABLE_VERSIONS)


@dataclass(frozen=True)
class CountingStore(WrappedStore):
    """A store that records every requested range."""

    requests: list[list[tuple[int, int]]] = field(default_factory=list)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        self.requests.append(list(ranges))
        return super().read_ranges(path, ranges)


def write(
    path: Path, table: pa.Table, version: FileVersion = FileVersion.V2_2, page_bytes: int = 8 << 20
) -> str:
    store, name = open_store(path)
    writer = FileWriter(store, name, Schema.from_arrow(table.schema), version, page_bytes=page_bytes)
    writer.write(table)
    writer.finish()
    return name


def wide_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "a": rng.integers(0, 2**60, rows),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * 64, dtype=np.float32)), 64),
            "t": [f"text {i}" for i in range(rows)],
            "l": pa.array([[i, None] if i % 3 else None for i in range(rows)], pa.list_(pa.int64())),
        }
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_asked_columns_and_pages_are_fetched(tmp_path: Path, version: FileVersion) -> None:
    table = wide_table(20_000)
    path = write(tmp_path / "f.lance", table, version, page_bytes=1 << 17)
    size = Path(path).stat().st_size
    store = CountingStore.around(MemoryStore())
    store.fs.pipe_file(path, Path(path).read_bytes())
    reader = FileReader(store, path, size=size)
    assert len(store.requests) <= 2
    store.requests.clear()
    got = reader.read([reader.schema.field("a")], 10_000, 10_100)
    assert got["a"].to_pylist() == table["a"].slice(10_000, 100).to_pylist()
    assert sum(length for request in store.requests for _, length in request) < size / 20
    assert len(store.requests) <= 2


def test_two_columns_of_two_thousand_take_three_requests(tmp_path: Path) -> None:
    table = pa.table({f"column {i}": pa.array([i, i + 1]) for i in range(2000)})
    path = write(tmp_path / "f.lance", table)
    store = CountingStore.around(MemoryStore())
    store.fs.pipe_file(path, Path(path).read_bytes())
    reader = FileReader(store, path, size=Path(path).stat().st_size)
    chosen = [reader.schema.field("column 7"), reader.schema.field("column 1900")]
    assert reader.read(chosen).to_pylist() == table.select(["column 7", "column 1900"]).to_pylist()
    assert len(store.requests) == 3
    assert len(reader._parsed_columns) == 2


def test_metadata_that_is_too_long_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_lance.file.reader._MAX_METADATA", 1000)
    monkeypatch.setattr("spark_lance.io.ranges.REQUEST_BYTES", 1000)
    table = pa.table({f"column {i}": pa.array([i, i + 1]) for i in range(2000)})
    path = write(tmp_path / "f.lance", table)
    store = CountingStore.around(MemoryStore())
    store.fs.pipe_file(path, Path(path).read_bytes())
    reader = FileReader(store, path, size=Path(path).stat().st_size)
    chosen = [reader.schema.field("column 7"), reader.schema.field("column 1900")]
    assert reader.read(chosen).to_pylist() == table.select(["column 7", "column 1900"]).to_pylist()
    assert sum(length for request in store.requests for _, length in request) < Path(path).stat().st_size / 2


@settings(max_examples=40)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_any_row_range_is_the_slice_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: FileVersion
) -> None:
    table = data.draw(tables(version.text, max_rows=120))
    path = write(tmp_path_factory.mktemp("ranges") / "f.lance", table, version, page_bytes=256)
    store, _ = open_store(path)
    reader = FileReader(store, path)
    assert reader.num_rows == table.num_rows
    start = data.draw(st.integers(0, table.num_rows))
    stop = data.draw(st.integers(start, table.num_rows))
    got = reader.read(start=start, stop=stop)
    assert got.schema == table.schema
    for name in table.column_names:
        assert canonical(got[name]) == canonical(table[name].slice(start, stop - start)), name


@pytest.mark.parametrize("version", VERSIONS)
def test_sequential_reads_give_the_whole(tmp_path: Path, version: FileVersion) -> None:
    table = wide_table(5_000)
    path = write(tmp_path / "f.lance", table, version, page_bytes=1 << 14)
    store, _ = open_store(path)
    reader = FileReader(store, path)
    field = reader.schema.field("l")
    column = reader.open_field(field)
    parts = [column.read(start, min(start + 777, 5_000)) for start in range(0, 5_000, 777)]
    assert [v for part in parts for v in part.to_pylist()] == table["l"].to_pylist()


def test_vectors_are_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "f.lance", wide_table(1_000))
    store, _ = open_store(path)
    reader = FileReader(store, path)
    column = reader.read([reader.schema.field("v")]).column("v").chunk(0)
    mapped = reader.source.get(0, reader.source.size)
    assert mapped.address <= column.values.buffers()[1].address < mapped.address + mapped.size


def edited(path: str, **changes: int) -> str:
    """Write a copy of a file with another footer."""
    data = Path(path).read_bytes()
    footer = Footer.parse(data)
    copy = Path(path).with_name("edited.lance")
    copy.write_bytes(data[:-FOOTER_SIZE] + Footer(**{**vars(footer), **changes}).pack())
    return str(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"column_table_start": 2**63},
        {"global_table_start": 2**40},
        {"num_columns": 2**32 - 1},
        {"num_global_buffers": 2**32 - 1},
        {"num_global_buffers": 0},
        {"num_columns": 1},
    ],
    ids=str,
)
def test_wrong_footers_are_format_errors(tmp_path: Path, changes: dict[str, int]) -> None:
    path = edited(write(tmp_path / "f.lance", wide_table(10)), **changes)
    store, _ = open_store(path)
    with pytest.raises(FormatError, match=r"edited\.lance"):
        FileReader(store, path).read()


@pytest.mark.parametrize("numbers", [(0, 1), (0, 2), (0, 4), (2, 4), (3, 0), (9, 9)])
def test_other_versions_are_refused_by_name(tmp_path: Path, numbers: tuple[int, int]) -> None:
    path = edited(write(tmp_path / "f.lance", wide_table(10)), major=numbers[0], minor=numbers[1])
    store, _ = open_store(path)
    with pytest.raises(UnsupportedFormatError, match=r"edited\.lance"):
        FileReader(store, path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_cut_anywhere_is_a_typed_error(tmp_path: Path, version: FileVersion) -> None:
    table = wide_table(4)
    path = write(tmp_path / "f.lance", table, version)
    data = Path(path).read_bytes()
    cut = tmp_path / "cut.lance"
    store, _ = open_store(cut)
    for length in range(0, len(data), 7):
        cut.write_bytes(data[:length])
        with pytest.raises(FormatError):
            FileReader(store, str(cut)).read()


@pytest.mark.parametrize("version", VERSIONS)
def test_flipped_bytes_give_typed_errors_or_as_many_rows(tmp_path: Path, version: FileVersion) -> None:
    table = wide_table(12)
    path = write(tmp_path / "f.lance", table, version)
    data = bytearray(Path(path).read_bytes())
    flipped = tmp_path / "flipped.lance"
    store, _ = open_store(flipped)
    rng = np.random.default_rng(5)
    outcomes = {"error": 0, "rows": 0}
    for position in rng.permutation(len(data))[:600]:
        damaged = data.copy()
        damaged[position] ^= int(rng.integers(1, 256))
        flipped.write_bytes(damaged)
        try:
            got = FileReader(store, str(flipped)).read()
        except LanceError:
            outcomes["error"] += 1
            continue
        for column in got.columns:
            column.validate()
        outcomes["rows"] += 1
    assert outcomes["error"] > 0
    assert outcomes["rows"] > 0


def test_a_table_of_contents_entry_beyond_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "f.lance", wide_table(10))
    data = bytearray(Path(path).read_bytes())
    footer = Footer.parse(bytes(data))
    struct.pack_into("<QQ", data, footer.column_table_start, 2**62, 2**62)
    Path(path).write_bytes(data)
    store, _ = open_store(path)
    with pytest.raises(FormatError, match="not inside the file"):
        FileReader(store, path).read()


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("values", [[1, 2], [[1], []], [{"x": [1]}, {"x": []}]])
@pytest.mark.parametrize("more", [-1, 1])
def test_columns_have_as_many_rows_as_their_file(
    values: list[Any], more: int, version: str, tmp_path: Path
) -> None:
    table = pa.table({"a": values})
    store, path = open_store(str(tmp_path / "f.lance"))
    writer = FileWriter(store, path, Schema.from_arrow(table.schema), FileVersion.parse(version))
    writer.write(table)
    writer._rows += more
    writer.finish()
    with pytest.raises(FormatError, match=f"rows where the file has {2 + more}"):
        FileReader(store, path).read()
