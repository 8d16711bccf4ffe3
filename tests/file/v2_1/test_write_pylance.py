"""Files of versions 2.1 and 2.2 that FileWriter makes, read back by pylance."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import open_store
from tests.file.v2_1.pylance_table import open_in_pylance, write_file
from tests.strategies import canonical, tables

VERSIONS = ("2.1", "2.2")


def check(table: pa.Table, version: str, takes: int = 5, page_bytes: int = 8 << 20) -> lance.LanceDataset:
    """Write the table, open it in pylance and compare scans, takes and a filter with it."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        written = write_file(root, table, version, page_bytes=page_bytes)
        assert written.num_rows == table.num_rows
        assert written.size == Path(written.path).stat().st_size
        dataset = open_in_pylance(root, table.schema, [written])
        dataset.validate()  # type: ignore[no-untyped-call]
        assert dataset.count_rows() == table.num_rows
        store, path = open_store(written.path)
        reader = FileReader(store, path)
        compare(reader.read(reader.schema.fields), table)
        groups = [[field.name] for field in table.schema if len(page_lengths(field)) == 1]
        if all(page_lengths(field) == {1} for field in table.schema):
            groups.append(table.column_names)
        for columns in groups:
            compare(dataset.to_table(columns=columns), table.select(columns))
            compare_takes(dataset, table.select(columns), takes)
        return dataset


def page_lengths(field: pa.Field) -> set[int]:
    """Return the page entries per row of a field's columns.

    Only fixed-size lists of structs make them differ, and pylance 14 refuses to read two columns together
    that differ in it, whoever wrote them.
    """
    kind = field.type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_struct(kind.value_type):
        return {kind.list_size * below for below in page_lengths(kind.value_field)}
    if pa.types.is_map(kind):
        return page_lengths(kind.item_field) | {1}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return page_lengths(kind.value_field)
    if pa.types.is_struct(kind) and kind.num_fields:
        return set().union(*(page_lengths(child) for child in kind))
    return {1}


def compare_takes(dataset: lance.LanceDataset, table: pa.Table, takes: int) -> None:
    if not table.num_rows:
        return
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(table.num_rows, min(takes, table.num_rows), replace=False))
    taken = dataset.take(rows, columns=table.column_names)
    for column in table.column_names:
        values = table[column].to_pylist()
        assert canonical(taken[column]) == canonical([values[row] for row in rows]), column
    offset = int(rows[0])
    compare(dataset.to_table(columns=table.column_names, offset=offset, limit=7), table.slice(offset, 7))


def compare(got: pa.Table, expected: pa.Table) -> None:
    assert got.num_rows == expected.num_rows
    for name in expected.column_names:
        kind = expected.schema.field(name).type
        assert got.schema.field(name).type == kind
        if not got[name].equals(expected[name]):
            assert canonical(got[name]) == canonical(expected[name]), name


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_tables(version: str, data: st.DataObject) -> None:
    table = data.draw(tables(version))
    page_bytes = data.draw(st.sampled_from([1, 200, 4000, 8 << 20]))
    check(table, version, page_bytes=page_bytes)


def struct_with_mask(child: pa.Array, mask: list[bool], nullable: bool = True) -> pa.Array:
    field = pa.field("x", child.type, nullable)
    return pa.StructArray.from_arrays([child], fields=[field], mask=pa.array(mask))


EDGES: dict[str, pa.Array] = {
    "one row": pa.array([7]),
    "one null": pa.array([None], pa.int32()),
    "all null strings": pa.nulls(100, pa.string()),
    "all null lists": pa.nulls(100, pa.list_(pa.int8())),
    "all null structs": pa.nulls(100, pa.struct([("x", pa.int8()), ("y", pa.string())])),
    "all null vectors": pa.nulls(100, pa.list_(pa.float32(), 3)),
    "all null dictionary": pa.nulls(3, pa.dictionary(pa.int8(), pa.string())),
    "null type": pa.nulls(5),
    "lists of nulls": pa.array([[None], None, [], [None, None]], pa.list_(pa.null())),
    "all lists empty": pa.array([[], [], []], pa.list_(pa.string())),
    "empty strings": pa.array(["", "", ""]),
    "empty and null binaries": pa.array([b"", None, b""], pa.large_binary()),
    "nulls at each level": pa.array(
        [None, [], [None], [{"x": None}], [{"x": []}], [{"x": [None]}], [{"x": [1, None]}, None]],
        pa.list_(pa.struct([("x", pa.list_(pa.int64()))])),
    ),
    "lists in lists in lists": pa.array(
        [[[[1], []], None, []], None, [], [[None, [None, 2]]]], pa.list_(pa.list_(pa.list_(pa.int16())))
    ),
    "structs in structs": pa.array(
        [{"a": {"b": 1}}, {"a": {"b": None}}, {"a": None}, None],
        pa.struct([("a", pa.struct([("b", pa.int64())]))]),
    ),
    "field that is not nullable in null structs": struct_with_mask(
        pa.array([1, 2, 3]), [False, True, False], nullable=False
    ),
    "struct without fields": pa.array([{}, {}], pa.struct([])),
    "bits off the byte": pa.array([True, None, False] * 999)[5:2000],
    "bits in short lists": pa.array([[True], [False, None], []] * 500, pa.list_(pa.bool_())),
    "vectors of bits": pa.array([[True, False, None], None, [False] * 3], pa.list_(pa.bool_(), 3)),
    "vectors of bits, wide": pa.FixedSizeListArray.from_arrays(pa.array([True, False, False] * 2051), 2051),
    "vectors with nulls inside": pa.array([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2)),
    "wide vectors with nulls inside": pa.array(
        [[1.0] * 99 + [None], None, [3.0] * 100], pa.list_(pa.float32(), 100)
    ),
    "wide vectors in lists": pa.array(
        [[[1.0] * 100, None], [], None, [[2.0] * 100]], pa.list_(pa.list_(pa.float32(), 100))
    ),
    "wide strings": pa.array(["a" * 300, None, "", "b" * 5000], pa.string()),
    "wide large binaries in lists": pa.array(
        [[b"a" * 300, None], [], None, [b""], [b"b" * 70_000]], pa.list_(pa.large_binary())
    ),
    "one wide string among short ones": pa.array(["ab"] * 1000 + ["x" * 4000] + ["cd"] * 1000),
    "very wide value": pa.array([b"x" * 20_000_000, b"y", None]),
    "dictionary with null items": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 2], pa.int16()), pa.array(["a", None, "b"])
    ),
    "dictionary with one item": pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), ["a"]),
    "dictionary of bits": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), [True, False]),
    "lists of dictionaries": pa.ListArray.from_arrays(
        pa.array([0, 2, None, 3], pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint8()), ["a", "b"]),
    ),
    "one string only": pa.array(["abc"] * 9),
    "one empty string only": pa.array([""] * 3, pa.large_string()),
    "one wide string only": pa.array(["abc" * 1000] * 2000),
    "one bit only": pa.array([True] * 10),
    "one false bit only": pa.array([False] * 10),
    "one decimal only": pa.array([Decimal("-1.25")] * 2, pa.decimal256(60, 2)),
    "one NaN only": pa.array([float("nan")] * 2),
    "one item only": pa.array([[1], [1, 1]]),
    "one vector only": pa.array([[1, 1]] * 2, pa.list_(pa.int8(), 2)),
    "zeros of two kinds": pa.array([0.0, -0.0]),
    "one short array, nearly constant": pa.array([1] * 4000 + [2] + [1] * 4000),
    "decimals": pa.array([Decimal("1.25"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "a long list": pa.array([list(range(50_000)), [1], [], list(range(30_000)), None]),
    "runs of empty lists": pa.array([[]] * 70_000 + [[1]] + [[]] * 70_000 + [[2]], pa.list_(pa.int8())),
    "runs of empty lists in one row": pa.array(
        [[[1], *[[]] * 70_000, [2]], [[3]]], pa.list_(pa.list_(pa.int8()))
    ),
    "runs of empty lists of bits": pa.array([[True]] + [[]] * 70_000 + [[False]], pa.list_(pa.bool_())),
    **{f"{n} rows": pa.array(np.arange(n)) for n in (1023, 1024, 1025, 4095, 4097, 65_535, 65_536, 65_537)},
    **{
        f"{n} rows, some null": pa.array(np.arange(n), pa.int32(), mask=np.arange(n) % 3 == 0)
        for n in (1023, 1024, 1025, 4097, 65_537)
    },
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str, version: str) -> None:
    check(pa.table({"c": EDGES[name]}), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_zero_rows(version: str) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("b", pa.list_(pa.struct([("x", pa.string())]))), ("c", pa.null())]
    )
    check(schema.empty_table(), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_wide_list_offsets_and_maps(version: str) -> None:
    entries = [[("a", 1), ("b", None)], None, [], [("c", 3)]]
    columns: dict[str, pa.Array] = {"l": pa.array([[1], None, [], [2, 3]], pa.large_list(pa.int32()))}
    if version == "2.2":
        columns["m"] = pa.array(entries, pa.map_(pa.string(), pa.int32()))
        columns["sliced"] = pa.array(entries * 2, pa.map_(pa.string(), pa.int32()))[3:7]
    check(pa.table(columns), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_of_columns_end_at_different_rows(version: str) -> None:
    rng = np.random.default_rng(1)
    n = 50_000
    table = pa.table(
        {
            "wide": pa.array([f"{i:0>40}" for i in range(n)]),
            "narrow": pa.array(rng.integers(0, 100, n), pa.int8()),
            "lists": pa.array(
                [list(range(i % 7)) if i % 11 else None for i in range(n)], pa.list_(pa.int32())
            ),
        }
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        written = write_file(root, table, version, page_bytes=100_000, batch_rows=777)
        dataset = open_in_pylance(root, table.schema, [written])
        compare(dataset.to_table(), table)
        filtered = dataset.to_table(filter="narrow = 42 and wide like '%7'")
        pairs = zip(table["narrow"].to_pylist(), table["wide"].to_pylist(), strict=True)
        mask = [narrow == 42 and wide.endswith("7") for narrow, wide in pairs]
        compare(filtered, table.filter(pa.array(mask)))
        compare_takes(dataset, table, 200)


def test_rows_of_long_lists_are_found_one_by_one() -> None:
    """The repetition index of rows that span chunks, end at chunk ends, or share a chunk."""
    lengths = [5000, 0, 1, 4096, 4095, 1, 2048, 2048, 9000, 3, 0, 0, 12_345]
    rows = [np.arange(k) + 1000 * i for i, k in enumerate(lengths)]
    table = pa.table({"c": pa.array(rows, pa.list_(pa.int64()))})
    with tempfile.TemporaryDirectory() as name:
        for version in VERSIONS:
            root = Path(name) / version
            dataset = open_in_pylance(root, table.schema, [write_file(root, table, version)])
            for i in range(len(rows)):
                compare(dataset.take([i]), table.slice(i, 1))
                compare(dataset.to_table(offset=i, limit=3), table.slice(i, 3))


def test_dictionaries_of_chunks_are_united_where_they_can_be() -> None:
    def chunk(items: list[str], index: pa.DataType) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(range(len(items)), index), items)

    small = pa.chunked_array([chunk(["a", "b"], pa.int8()), chunk(["b", "c"], pa.int8())])
    check(pa.table({"c": small}), "2.2")
    # These become one page each, and pylance cannot unite them either, so it has to read them one by one.
    many = [chunk([f"{i} {j}" for j in range(100)], pa.int8()) for i in range(3)]
    table = pa.table({"c": pa.chunked_array(many)})
    with tempfile.TemporaryDirectory() as name:
        dataset = open_in_pylance(Path(name), table.schema, [write_file(Path(name), table, "2.2")])
        for start in (0, 100, 200):
            compare(dataset.to_table(offset=start, limit=100), table.slice(start, 100))


@pytest.mark.parametrize(
    ("kind", "version", "error"),
    [
        (pa.map_(pa.string(), pa.int8()), "2.1", SchemaError),
        (pa.list_(pa.struct([("x", pa.int8())]), 2), "2.1", SchemaError),
        (pa.list_(pa.list_(pa.struct([("x", pa.int8())]), 2)), "2.2", SchemaError),
        (pa.list_(pa.struct([("x", pa.list_(pa.int8()))]), 2), "2.2", SchemaError),
        (pa.struct([("y", pa.map_(pa.string(), pa.int8()))]), "2.1", SchemaError),
    ],
)
def test_types_that_cannot_be_stored_are_refused_by_name(
    kind: pa.DataType, version: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match="column 'c"):
        open_writer(tmp_path, pa.field("c", kind), version)


def open_writer(root: Path, field: pa.Field, version: str) -> FileWriter:
    store, path = open_store(str(root / "x.lance"))
    return FileWriter(store, path, Schema.from_arrow(pa.schema([field])), FileVersion.parse(version))


def test_an_aborted_file_leaves_nothing(tmp_path: Path) -> None:
    field = pa.field("c", pa.int64(), nullable=False)
    with open_writer(tmp_path, field, "2.2") as writer:
        writer.write(pa.table({"c": [1, 2, None]}))
        with pytest.raises(SchemaError, match="'c'"):
            writer.finish()
        writer.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        {"d": pa.array([1])},
        {"c": pa.array(["a"])},
        {"c": pa.array([1]), "d": pa.array([1])},
        {"c": pa.array([[1]])},
    ],
)
def test_other_columns_or_types_are_refused(data: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SchemaError), open_writer(tmp_path, pa.field("c", pa.int64()), "2.2") as writer:
        writer.write(pa.table(data))


HIDDEN = b"do not store"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wide", [1, 40])
def test_what_stands_under_nulls_is_not_stored(version: str, wide: int, tmp_path: Path) -> None:
    texts = pa.array([b"a" * 12 * wide, HIDDEN * wide, b"c" * 12 * wide])
    fixed = texts.cast(pa.binary(12 * wide))
    validity = pa.py_buffer(b"\x05")
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    under_struct = pa.StructArray.from_arrays([texts, fixed], names=["t", "f"])
    numbers = pa.Array.from_buffers(pa.uint32(), 9 * wide, [None, pa.py_buffer(HIDDEN * 3 * wide)])
    table = pa.table(
        {
            "text": pa.Array.from_buffers(texts.type, 3, [validity, *texts.buffers()[1:]]),
            "fixed": pa.Array.from_buffers(fixed.type, 3, [validity, *fixed.buffers()[1:]]),
            "struct": pa.Array.from_buffers(
                under_struct.type, 3, [validity], children=[under_struct.field(0), under_struct.field(1)]
            ),
            "list": pa.Array.from_buffers(
                pa.list_(pa.binary()), 3, [validity, offsets.buffers()[1]], children=[texts]
            ),
            "vector": pa.FixedSizeListArray.from_arrays(numbers, 3 * wide, mask=pa.array([True] * 3)),
        }
    )
    written = write_file(tmp_path, table, version)
    compare(open_in_pylance(tmp_path, table.schema, [written]).to_table(), table)
    assert HIDDEN not in Path(written.path).read_bytes()


def test_many_columns_stay_within_the_buffer(tmp_path: Path) -> None:
    count = 200
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(count)])
    store, path = open_store(str(tmp_path / "data" / "x.lance"))
    writer = FileWriter(store, path, Schema.from_arrow(schema), buffer_bytes=1 << 20)
    batches = []
    for b in range(20):
        # Random numbers do not get smaller.
        rng = np.random.default_rng(b)
        columns = [pa.array(rng.integers(-(2**63), 2**63 - 1, 1000)) for _ in range(count)]
        batches.append(pa.record_batch(columns, schema=schema))
        writer.write(batches[-1])
        assert writer.bytes_written > writer.rows_written * count * 8 - (1 << 20)
    dataset = open_in_pylance(tmp_path, schema, [writer.finish()])
    compare(dataset.to_table(), pa.Table.from_batches(batches))
