"""2.0 files that FileWriter makes, read back by pylance and by ourselves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_0.field_writer import FieldWriter
from tests.file.v2_0.pylance_file import one_column, open_file
from tests.file.v2_0.test_read_pylance import CASES, PACKED, PACKED_ROWS, TEXT, has_hidden_nulls
from tests.file.v2_1.pylance_table import open_in_pylance, write_file
from tests.strategies import canonical, tables


def commit(root: Path, table: pa.Table, page_bytes: int = 8 << 20) -> lance.LanceDataset:
    """Write the table, check that we read it back, and open it in pylance."""
    written = write_file(root, table, "2.0", page_bytes=page_bytes)
    assert written.num_rows == table.num_rows
    assert_same(open_file(Path(written.path)).read(), table)
    dataset = open_in_pylance(root, table.schema, [written])
    dataset.validate()  # type: ignore[no-untyped-call]
    return dataset


def assert_same(got: pa.Table, expected: pa.Table) -> None:
    got.validate(full=True)
    assert got.schema.equals(expected.schema)
    for name in expected.column_names:
        assert canonical(got[name]) == canonical(expected[name]), name


def assert_pylance_reads(dataset: lance.LanceDataset, table: pa.Table) -> None:
    """Compare a scan, a range and a take."""
    assert_same(dataset.to_table(), table)
    if not table.num_rows:
        return
    middle = table.num_rows // 2
    rows = sorted({0, middle, table.num_rows - 1})
    taken = dataset.take(rows)
    part = dataset.to_table(offset=middle, limit=3)
    for name in table.column_names:
        values = table[name].to_pylist()
        assert canonical(taken[name]) == canonical([values[row] for row in rows])
        assert canonical(part[name]) == canonical(values[middle : middle + 3])


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_each_type(values: pa.Array, tmp_path: Path) -> None:
    table = one_column(values)
    assert_pylance_reads(commit(tmp_path, table), table)


@settings(max_examples=60)
@given(table=tables("2.0"))
def test_random_tables(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        if has_hidden_nulls(table):
            with pytest.raises(SchemaError, match="not nullable"):
                write_file(Path(name), table, "2.0")
            return
        assert_pylance_reads(commit(Path(name), table), table)


def test_packed_struct(tmp_path: Path) -> None:
    table = one_column(pa.array([{}, *PACKED_ROWS], PACKED)[1:], packed="true")
    assert_pylance_reads(commit(tmp_path, table), table)


@pytest.mark.parametrize("scheme", ["zstd", "lz4", "fsst", "none"])
def test_asked_compression_of_strings(scheme: str, tmp_path: Path) -> None:
    table = one_column(pa.array(TEXT * 50), compression=scheme)
    dataset = commit(tmp_path / scheme, table)
    assert_pylance_reads(dataset, table)
    plain = write_file(tmp_path / "plain", one_column(pa.array(TEXT * 50)), "2.0")
    written = next((tmp_path / scheme / "data").iterdir()).stat().st_size
    assert (written < plain.size / 2) == (scheme in ("zstd", "lz4"))


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "i >= 990": lambda row: row["i"] >= 990,
    "s = 'v3' AND i < 40": lambda row: row["s"] == "v3" and row["i"] < 40,
    "s IS NULL": lambda row: row["s"] is None,
    "d IS NULL": lambda row: row["d"] is None,
    "l IS NOT NULL AND i > 950": lambda row: row["l"] is not None and row["i"] > 950,
}


def test_filters_in_pylance(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array([*range(1000)]),
            "s": pa.array([None if i % 5 == 0 else f"v{i % 10}" for i in range(1000)]),
            "d": pa.array([None if i % 5 == 0 else f"v{i % 10}" for i in range(1000)]).dictionary_encode(),
            "l": pa.array([None if i % 3 == 0 else [i] * (i % 4) for i in range(1000)]),
        }
    )
    dataset = commit(tmp_path, table)
    assert_pylance_reads(dataset, table)
    rows = table.to_pylist()
    for text, keep in FILTERS.items():
        expected = [row for row in rows if keep(row)]
        assert dataset.to_table(filter=text).to_pylist() == expected, text


def test_many_pages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, 20_000)
    offsets = pa.array(
        np.concatenate([[0], np.cumsum(lengths)]), mask=np.append(rng.random(20_000) < 0.1, False)
    )
    items = int(lengths.sum())
    numbers, texts = pa.array(range(items)), pa.array([f"item {i}" for i in range(items)])
    structs = pa.StructArray.from_arrays([numbers, texts], ["p", "q"])
    table = pa.table(
        {
            "int": pa.array(rng.integers(0, 1000, 20_000), mask=rng.random(20_000) < 0.1),
            "text": pa.array([f"value {i}" for i in range(20_000)]),
            "list": pa.LargeListArray.from_arrays(offsets, texts),
            "deep": pa.LargeListArray.from_arrays(offsets, structs),
            "struct": structs.slice(0, 20_000),
            "fsl": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(80_000)), 4),
        }
    )
    dataset = commit(tmp_path, table, page_bytes=30_000)
    file = next((tmp_path / "data").iterdir())
    reader = open_file(file)
    # pylance reads struct headers of one page only.
    headers = {f.id for f in reader.schema.walk() if f.kind == "struct"}
    for field_id, number in reader.columns.items():
        count = len(reader.column(number).pages)
        assert count == 1 if field_id in headers else count > 2
    assert_pylance_reads(dataset, table)


def top_field(arrow: pa.Field) -> Field:
    return Schema.from_arrow(pa.schema([arrow])).fields[0]


def writer(arrow: pa.Field) -> FieldWriter:
    return FieldWriter(top_field(arrow), 0, FileVersion.V2_0)


def test_null_structs_are_refused() -> None:
    values = pa.array([{"x": 1}, None])
    with pytest.raises(SchemaError, match=r"'a' has 1 null structs.*2\.1"):
        writer(pa.field("a", values.type)).encode(values, 0)
    nested = pa.array([[{"x": 1}, None]])
    with pytest.raises(SchemaError, match=r"'a' \(field 'item'\) has 1 null structs"):
        writer(pa.field("a", nested.type)).encode(nested, 0)


def test_null_structs_outside_of_a_slice_do_not_count() -> None:
    values = pa.array([None, {"x": 1}])
    assert len(writer(pa.field("a", values.type)).encode(values[1:], 0)) == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.map_(pa.string(), pa.int32()), "maps"),
        (pa.list_(pa.map_(pa.string(), pa.int32())), "maps"),
        (pa.list_(pa.struct([pa.field("x", pa.int8())]), 2), "fixed-size lists of structs"),
    ],
    ids=str,
)
def test_types_of_later_versions_are_refused(kind: pa.DataType, words: str) -> None:
    with pytest.raises(SchemaError, match=f"'a': {words}.*2.2"):
        writer(pa.field("a", kind))


def test_nulls_in_fields_that_are_not_nullable_are_refused() -> None:
    with pytest.raises(SchemaError, match="'a' is not nullable"):
        writer(pa.field("a", pa.int8(), nullable=False)).encode(pa.array([None], pa.int8()), 0)


@pytest.mark.parametrize(
    "rows", [[{"x": 1, "y": None}], [None], [{"x": None, "y": 1.0}]], ids=["null y", "null struct", "null x"]
)
def test_nulls_in_packed_structs_are_refused(rows: list[Any]) -> None:
    kind = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.float64())])
    packed = pa.field("a", kind, metadata={"lance-encoding:packed": "true"})
    with pytest.raises(SchemaError, match="packed struct cannot hold nulls"):
        writer(packed).encode(pa.array(rows, kind), 0)


def test_strings_in_packed_structs_are_refused() -> None:
    kind = pa.struct([pa.field("x", pa.string())])
    packed = pa.field("a", kind, metadata={"lance-encoding:packed": "true"})
    with pytest.raises(SchemaError, match="fixed-width"):
        writer(packed).encode(pa.array([{"x": "s"}], kind), 0)


def test_pages_count_items_below_lists() -> None:
    values = pa.array([[[1, 2], [3]], None, [[4]]], pa.list_(pa.list_(pa.int8())))
    pages = FieldWriter(top_field(pa.field("a", values.type)), 7, FileVersion.V2_0).encode(values, 100)
    assert [page.column for page in pages] == [7, 8, 9]
    assert [page.length for page in pages] == [3, 3, 4]
    assert {page.priority for page in pages} == {100}
