"""Legacy (0.1) tables written by pylance, against what pylance reads from them."""

from __future__ import annotations

import datetime
import struct
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader, open_file
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import open_store
from spark_lance.proto import file_pb2
from tests.strategies import canonical, tables

ROWS = 1300


def holes(share: float = 0.2) -> np.ndarray:
    return np.random.default_rng(3).random(ROWS) < share


def lists(make: Any, kind: pa.DataType) -> pa.Array:
    """Lists of 0 to 3 items, some of them null."""
    values = [
        None if i % 7 == 0 else [] if i % 5 == 0 else [make(i + k) for k in range(i % 4)] for i in range(ROWS)
    ]
    return pa.array(values, kind)


def columns() -> dict[str, pa.Array]:
    numbers = np.arange(ROWS) % 100
    out: dict[str, pa.Array] = {"halffloat": pa.array(numbers.astype(np.float16))}
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        out[name] = pa.array(numbers, mask=holes()).cast(getattr(pa, name)())
    out["float"] = pa.array(numbers / 8, mask=holes()).cast(pa.float32())
    out["double"] = pa.array(numbers / 8)
    out["bool"] = pa.array(numbers % 3 == 0, mask=holes())
    words = [None if i % 5 == 0 else "" if i % 7 == 0 else "é" * (i % 9) for i in range(ROWS)]
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        out[str(kind)] = pa.array(words, pa.string()).cast(kind)
    out["fixed_binary"] = pa.array([b"abcd" if i % 4 else None for i in range(ROWS)], pa.binary(4))
    days = pa.array(np.arange(ROWS), pa.int32())
    out["date32"] = days.cast(pa.date32())
    out["date64"] = days.cast(pa.date32()).cast(pa.date64())
    out["time32"] = days.cast(pa.time32("ms"))
    out["time64"] = pa.array(np.arange(ROWS)).cast(pa.time64("ns"))
    for unit in ("s", "ms", "us", "ns"):
        out[f"timestamp_{unit}"] = pa.array(np.arange(ROWS), mask=holes()).cast(pa.timestamp(unit, "UTC"))
        out[f"duration_{unit}"] = pa.array(np.arange(ROWS)).cast(pa.duration(unit))
    out["decimal128"] = pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(10, 2))
    out["decimal256"] = pa.array([None if i % 2 else Decimal(i) for i in range(ROWS)], pa.decimal256(50, 0))
    out["vector"] = pa.array(
        [None if i % 3 == 0 else [1.0, i] for i in range(ROWS)], pa.list_(pa.float32(), 2)
    )
    bits = pa.array(np.arange(ROWS * 3) % 4 == 0)
    out["fixed_bools"] = pa.FixedSizeListArray.from_arrays(bits, 3)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 6.0)), 3)
    out["matrix"] = pa.FixedSizeListArray.from_arrays(inner, 2)
    out["null"] = pa.nulls(ROWS)
    return out | nested_columns()


def nested_columns() -> dict[str, pa.Array]:
    out: dict[str, pa.Array] = {}
    out["list"] = lists(lambda i: None if i % 11 == 0 else i, pa.list_(pa.int64()))
    out["large_list"] = lists(lambda i: i, pa.large_list(pa.int32()))
    out["list_string"] = lists(lambda i: None if i % 9 == 0 else str(i), pa.list_(pa.string()))
    out["list_bool"] = lists(lambda i: i % 3 == 0, pa.list_(pa.bool_()))
    out["list_vector"] = lists(lambda i: [1.0, i], pa.list_(pa.list_(pa.float32(), 2)))
    out["list_list"] = lists(lambda i: [i] * (i % 3), pa.list_(pa.list_(pa.int64())))
    out["list_null"] = lists(lambda i: None, pa.list_(pa.null()))
    pair = pa.struct([("a", pa.int64()), ("b", pa.string())])
    out["list_struct"] = lists(lambda i: {"a": i, "b": str(i)}, pa.list_(pair))
    out["struct"] = pa.array(
        [None if i % 6 == 0 else {"x": i, "y": str(i), "z": {"q": [i] * (i % 3)}} for i in range(ROWS)]
    )
    keys = [None if i % 10 == 0 else i % 4 for i in range(ROWS)]
    for index in (pa.int8(), pa.uint16(), pa.int32(), pa.int64()):
        for values in (pa.array(["a", "", "dd", None]), pa.array([b"a", b"b", b"c", b"d"])):
            name = f"dictionary_{index}_{values.type}"
            out[name] = pa.DictionaryArray.from_arrays(pa.array(keys, index), values)
    out["dictionary_numbers"] = pa.DictionaryArray.from_arrays(
        pa.array(keys, pa.int16()), pa.array([4, 2, 1, 7], pa.uint8())
    )
    out["struct_dictionary"] = pa.StructArray.from_arrays([out["dictionary_int8_string"]], ["d"])
    return out


COLUMNS = columns()


def write(path: Path, table: pa.Table, **options: Any) -> str:
    lance.write_dataset(table, path, data_storage_version="legacy", **options)
    return str(path)


def check(path: str) -> None:
    """Compare a table with what pylance reads from it when it opens it anew."""
    expected = lance.dataset(path).to_table()
    got = spark_lance.dataset(path).to_table()
    got.validate(full=True)
    assert got.schema.equals(expected.schema, check_metadata=True)
    assert canonical(got.to_pylist()) == canonical(expected.to_pylist())


@pytest.mark.parametrize("name", COLUMNS)
def test_columns(tmp_path: Path, name: str) -> None:
    array = COLUMNS[name]
    table = pa.table({name: array})
    check(write(tmp_path / "whole", table))
    check(write(tmp_path / "batches", table, max_rows_per_group=100, max_rows_per_file=550))
    if not (array.null_count or name.startswith("dictionary") or name == "null"):
        schema = pa.schema([pa.field(name, array.type, nullable=False)])
        check(write(tmp_path / "required", pa.table([array], schema=schema)))


def test_many_columns_in_one_file_from_a_store_without_mapping(tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.table(COLUMNS), max_rows_per_group=128)
    expected = lance.dataset(path).to_table()
    file = next((tmp_path / "t" / "data").iterdir())
    store, inside = open_store(f"memory://legacy/{file.name}")
    store.put(inside, file.read_bytes())
    reader = open_file(store, inside)
    assert reader.version is FileVersion.V0_1
    assert reader.num_rows == ROWS
    whole = [reader.open_field(field) for field in reader.schema.fields]
    for start, stop in ((0, 50), (50, 300), (300, ROWS)):
        reader.prefetch(whole, start, stop)
        for field, each in zip(reader.schema.fields, whole, strict=True):
            part = each.read(start, stop)
            assert part.to_pylist() == expected.column(field.name).slice(start, stop - start).to_pylist()
    store.delete(inside, inside.rpartition("/")[0])


def test_parts_of_structs_rows_and_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.table({n: COLUMNS[n] for n in ("int32", "struct", "string")}))
    dataset = spark_lance.dataset(path)
    expected = lance.dataset(path).to_table()
    rows = [1299, 0, 1023, 1024, 5, 5]
    assert dataset.take(rows).to_pylist() == expected.take(rows).to_pylist()
    assert dataset.to_table(["string"], limit=70, offset=1000).to_pylist() == (
        expected.select(["string"]).slice(1000, 70).to_pylist()
    )
    file = open_file(dataset.store, next(str(each) for each in (tmp_path / "t" / "data").iterdir()))
    top = file.schema.field("struct")
    pruned = top.prune(lambda leaf: leaf.name == "y")
    assert pruned is not None
    got = file.open_field(pruned).read(1000, 1100).to_pylist()
    assert got == [{"y": row["y"]} for row in expected.column("struct").to_pylist()[1000:1100]]


def test_statistics(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([5, None, 7, -2, 9], pa.int32()),
            "s": ["b", "a", None, "q" * 100, "z"],
            "o": pa.StructArray.from_arrays(
                [pa.array([datetime.date(2020, 1, 1 + k) for k in range(5)])], ["d"]
            ),
            "l": [[1], [2], [], None, [3]],
        }
    )
    path = write(tmp_path / "t", table, max_rows_per_group=2)
    store, _ = open_store(path)
    reader = open_file(store, next(str(each) for each in (tmp_path / "t" / "data").iterdir()))
    assert isinstance(reader, LegacyFileReader)
    assert list(reader.batch_starts) == [0, 2, 4, 5]
    numbers = reader.statistics(reader.schema.field("n").id)
    assert numbers is not None
    assert numbers.to_pylist() == [
        {"null_count": 1, "min_value": 5, "max_value": 5},
        {"null_count": 0, "min_value": -2, "max_value": 7},
        {"null_count": 0, "min_value": 9, "max_value": 9},
    ]
    words = reader.statistics(reader.schema.field("s").id)
    assert words is not None
    second = words.to_pylist()[1]
    assert second["null_count"] == 1
    assert second["min_value"] <= "q" * 100 <= second["max_value"]
    assert len(second["max_value"]) == 64
    assert reader.statistics(reader.schema.field("l").id) is None
    assert reader.statistics(99) is None
    for field in reader.schema.walk():
        result = reader.statistics(field.id)
        assert result is None or result.num_rows == 3


def test_files_are_not_taken_for_another_version(tmp_path: Path) -> None:
    write(tmp_path / "t", pa.table({"a": [1]}))
    legacy = next(str(each) for each in (tmp_path / "t" / "data").iterdir())
    store, modern = open_store(tmp_path / "f.lance")
    writer = FileWriter(store, modern, Schema.from_arrow(pa.schema([("a", pa.int64())])))
    writer.write(pa.table({"a": [1]}))
    writer.finish()
    with pytest.raises(UnsupportedFormatError, match="legacy"):
        FileReader(store, legacy)
    with pytest.raises(FormatError, match=r"2\.2"):
        LegacyFileReader(store, modern)
    assert open_file(store, modern).version is FileVersion.V2_2


def damaged_table() -> pa.Table:
    names = ["int32", "bool", "string", "list_string", "struct", "dictionary_int8_string", "vector", "null"]
    return pa.table({name: COLUMNS[name].slice(0, 40) for name in names})


def test_a_file_cut_anywhere_is_a_typed_error(tmp_path: Path) -> None:
    write(tmp_path / "t", damaged_table())
    data = next((tmp_path / "t" / "data").iterdir()).read_bytes()
    cut = tmp_path / "cut.lance"
    store, path = open_store(cut)
    for length in range(0, len(data), 11):
        cut.write_bytes(data[:length])
        with pytest.raises(FormatError):
            open_file(store, path)


def read_all(path: str) -> pa.Table:
    store, inside = open_store(path)
    reader = open_file(store, inside)
    fields = reader.schema.fields
    arrays = [reader.open_field(field).read(0, reader.num_rows) for field in fields]
    if isinstance(reader, LegacyFileReader):
        for field in reader.schema.walk():
            reader.statistics(field.id)
    return pa.table(arrays, names=[field.name for field in fields])


def test_flipped_bytes_give_typed_errors_or_as_many_rows(tmp_path: Path) -> None:
    write(tmp_path / "t", damaged_table(), max_rows_per_group=16)
    data = bytearray(next((tmp_path / "t" / "data").iterdir()).read_bytes())
    flipped = tmp_path / "flipped.lance"
    rng = np.random.default_rng(8)
    outcomes = {"error": 0, "rows": 0}
    for position in rng.permutation(len(data))[:1500]:
        damaged = data.copy()
        damaged[position] ^= int(rng.integers(1, 256))
        flipped.write_bytes(damaged)
        try:
            got = read_all(str(flipped))
        except LanceError:
            outcomes["error"] += 1
            continue
        for column in got.columns:
            column.validate(full=True)
        outcomes["rows"] += 1
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize("value", [-1, 2**31, 2**62, 2**63 - 1])
def test_huge_and_negative_page_entries(tmp_path: Path, value: int) -> None:
    write(tmp_path / "t", damaged_table())
    data = bytearray(next((tmp_path / "t" / "data").iterdir()).read_bytes())
    store, good = open_store(next((tmp_path / "t" / "data").iterdir()))
    reader = open_file(store, good)
    assert isinstance(reader, LegacyFileReader)
    table = reader._metadata.page_table_position
    cells = len(reader.columns) * 2
    wrong = tmp_path / "wrong.lance"
    errors = 0
    for cell in range(cells):
        damaged = data.copy()
        struct.pack_into("<q", damaged, table + cell * 8, value)
        wrong.write_bytes(damaged)
        try:
            read_all(str(wrong))
        except FormatError:
            errors += 1
    # The cells of structs, and the position of null pages, are not used.
    assert errors >= cells - 8


def test_legacy_files_are_not_written(tmp_path: Path) -> None:
    store, path = open_store(tmp_path / "f.lance")
    with pytest.raises(UnsupportedFormatError, match=r"0\.1"):
        FileWriter(store, path, Schema.from_arrow(pa.schema([("a", pa.int64())])), FileVersion.V0_1)
    assert not (tmp_path / "f.lance").exists()


def test_a_file_without_a_schema_is_read_with_the_ids_of_the_manifest(tmp_path: Path) -> None:
    table = pa.table(
        {name: COLUMNS[name] for name in ("int32", "struct", "string", "dictionary_int8_string")}
    )
    path = write(tmp_path / "t", table)
    expected = lance.dataset(path).to_table()
    file = next((tmp_path / "t" / "data").iterdir())
    data = file.read_bytes()
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    (length,) = struct.unpack_from("<I", data, position)
    metadata = file_pb2.Metadata.FromString(data[position + 4 : position + 4 + length])
    metadata.manifest_position = 0
    body = metadata.SerializeToString()
    file.write_bytes(
        data + struct.pack("<I", len(body)) + body + struct.pack("<qhh4s", len(data), 0, 1, b"LANC")
    )
    store, inside = open_store(file)
    schema = spark_lance.dataset(path).lance_schema
    reader = open_file(store, inside, columns={field.id: 0 for field in schema.walk()})
    with pytest.raises(FormatError, match="no schema"):
        _ = reader.schema
    for field in schema.fields:
        if field.logical_type.startswith("dict"):
            with pytest.raises(UnsupportedFormatError, match="does not say"):
                reader.open_field(field)
        else:
            got = reader.open_field(field).read(0, ROWS)
            assert got.to_pylist() == expected.column(field.name).to_pylist()


@settings(max_examples=60)
@given(table=tables("2.0", max_chunks=2), group=st.sampled_from([1, 7, 1024]))
def test_random_tables(table: pa.Table, group: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "t"
        try:
            write(path, table, max_rows_per_group=group)
            lance.dataset(str(path)).to_table()
        except BaseException as error:
            # pylance refuses some types, panics on others and loses dictionaries of others.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            reject()
        check(str(path))
