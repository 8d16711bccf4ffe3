"""Packed structs that we write, read by both implementations from inside a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import SchemaError
from tests.file.v2_1.pylance_file import layouts, open_file
from tests.strategies import canonical, random_array

PACKED = {"packed": "true"}
INTS = pa.struct([("x", pa.int32()), ("y", pa.int8())])
TEXT = pa.struct([("x", pa.int16()), ("s", pa.string()), ("d", pa.float64()), ("b", pa.large_binary())])


def vectors(item: pa.DataType, size: int) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False), size)


VECTOR = pa.struct([("v", vectors(pa.float32(), 2)), ("i", pa.int64())])


def write(path: Path, array: pa.Array, version: str, field: pa.Field | None = None) -> str:
    field = field or pa.field("a", array.type, metadata=PACKED)
    table = pa.Table.from_arrays([array], schema=pa.schema([field]))
    spark_lance.write_dataset(table, path, data_storage_version=version)
    return str(path)


def check(path: str, array: pa.Array) -> None:
    """Compare scans, filters and single rows, ours and pylance's, with what was written."""
    ours, theirs = spark_lance.dataset(path), lance.dataset(path)
    assert canonical(ours.to_table().column("a")) == canonical(array)
    assert canonical(theirs.to_table().column("a")) == canonical(array)
    assert theirs.to_table(filter="a is not null").num_rows == len(array) - array.null_count
    if len(array):
        rows = [0, len(array) - 1, len(array) // 2]
        expected = canonical([array[row].as_py() for row in rows])
        assert canonical(ours.take(rows).column("a")) == expected
        assert canonical(theirs.take(rows).column("a")) == expected


def structs(kind: pa.StructType, rows: int, nulls: bool = True) -> pa.Array:
    """Structs with nulls, as a slice; what is under the nulls is not null."""
    rng = np.random.default_rng(rows)
    children = [without_nulls(rng, field, rows + 3) for field in kind]
    mask = pa.array(rng.random(rows + 3) < 0.3) if nulls else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask).slice(3)


def without_nulls(rng: np.random.Generator, field: pa.Field, rows: int) -> pa.Array:
    """Values without nulls; items of fixed-size lists can be null, except bools."""
    if pa.types.is_struct(field.type):
        children = [without_nulls(rng, child, rows) for child in field.type]
        return pa.StructArray.from_arrays(children, fields=list(field.type))
    if pa.types.is_fixed_size_list(field.type):
        inner = field.type.value_field
        size = rows * field.type.list_size
        if pa.types.is_boolean(inner.type) or pa.types.is_fixed_size_list(inner.type):
            items = without_nulls(rng, inner, size)
        else:
            items = random_array(rng, inner, size)
        return pa.FixedSizeListArray.from_arrays(items, type=field.type)
    return random_array(rng, field.with_nullable(False), rows)


@pytest.mark.parametrize(
    ("kind", "version", "layout"),
    [
        (INTS, "2.1", "mini_block_layout"),
        (INTS, "2.2", "mini_block_layout"),
        (TEXT, "2.2", "full_zip_layout"),
        (VECTOR, "2.2", "full_zip_layout"),
    ],
)
@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_rows_come_back(tmp_path: Path, kind: Any, version: str, layout: str, rows: int) -> None:
    array = structs(kind, rows)
    path = write(tmp_path / "t", array, version)
    check(path, array)
    full = structs(kind, rows, nulls=False)
    path = write(tmp_path / "full", full, version)
    (file,) = (tmp_path / "full" / "data").glob("*.lance")
    assert layouts(open_file(file))[0].WhichOneof("layout") == layout
    check(path, full)
    check(write(tmp_path / "nulls", pa.nulls(rows, kind), version), pa.nulls(rows, kind))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_in_lists_and_structs(tmp_path: Path, version: str) -> None:
    array = structs(INTS, 40, nulls=False)
    item = pa.field("item", INTS, metadata=PACKED)
    offsets = pa.array([0, 3, 3, 10, 40], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, array, type=pa.list_(item))
    check(write(tmp_path / "l", lists, version, pa.field("a", lists.type)), lists)
    outer = pa.StructArray.from_arrays([array], fields=[item])
    check(write(tmp_path / "s", outer, version, pa.field("a", outer.type)), outer)
    if version == "2.2":
        texts = structs(TEXT, 40)
        lists = pa.ListArray.from_arrays(
            offsets, texts, type=pa.list_(item.with_type(TEXT)), mask=pa.array([False, False, True, False])
        )
        check(write(tmp_path / "t", lists, version, pa.field("a", lists.type)), lists)


@settings(max_examples=40)
@given(data=st.data())
def test_random_fields(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    plain = [pa.int8(), pa.uint16(), pa.float32(), pa.timestamp("us"), pa.decimal128(20, 3), pa.binary(3)]
    wide = [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        vectors(pa.int16(), 3),
        vectors(vectors(pa.int8(), 2), 2),
    ]
    wide += [
        pa.list_(pa.bool_(), 16),
        pa.list_(pa.int16(), 3),
        pa.list_(pa.list_(pa.int8(), 2), 3),
        pa.struct([("p", pa.string()), ("q", pa.int32())]),
        pa.struct([("p", pa.struct([("q", pa.binary()), ("r", vectors(pa.int8(), 3))]))]),
    ]
    version = data.draw(st.sampled_from(["2.1", "2.2"]))
    kinds = data.draw(
        st.lists(st.sampled_from(plain if version == "2.1" else plain + wide), min_size=1, max_size=5)
    )
    kind = pa.struct([pa.field(f"f{i}", each) for i, each in enumerate(kinds)])
    array = structs(kind, data.draw(st.integers(0, 300)), data.draw(st.booleans()))
    if len(array):
        check(write(tmp_path_factory.mktemp("p") / "t", array, version), array)


def test_what_is_under_a_null_struct_may_be_null(tmp_path: Path) -> None:
    vectors = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    mask = pa.array([False, True, False])
    array = pa.StructArray.from_arrays([vectors, pa.array([1, None, 3])], names=["v", "i"], mask=mask)
    check(write(tmp_path / "t", array, "2.2"), array)


@pytest.mark.parametrize("kind", [TEXT, VECTOR, pa.struct([("n", TEXT)])])
def test_version_2_1_stores_pages_of_null_structs(tmp_path: Path, kind: pa.StructType) -> None:
    check(write(tmp_path / "nulls", pa.nulls(3, kind), "2.1"), pa.nulls(3, kind))
    empty = pa.array([[], None], pa.list_(pa.field("item", kind, metadata=PACKED)))
    check(write(tmp_path / "lists", empty, "2.1", pa.field("a", empty.type)), empty)
    theirs = tmp_path / "theirs"
    table = pa.table([pa.nulls(3, kind)], schema=pa.schema([pa.field("a", kind, metadata=PACKED)]))
    lance.write_dataset(table, str(theirs), data_storage_version="2.1")
    check(str(theirs), pa.nulls(3, kind))


@settings(max_examples=20)
@given(data=st.data())
def test_random_fields_that_pylance_wrote(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kinds = [
        pa.string(),
        pa.large_binary(),
        pa.int32(),
        pa.list_(pa.bool_(), 8),
        pa.list_(pa.int16(), 3),
        pa.list_(pa.list_(pa.int8(), 2), 3),
        pa.struct([("p", pa.string()), ("q", pa.int32())]),
    ]
    version = data.draw(st.sampled_from(["2.2", "2.3"]))
    types = [pa.string(), *data.draw(st.lists(st.sampled_from(kinds), max_size=4))]
    kind = pa.struct([pa.field(f"f{i}", each) for i, each in enumerate(types)])
    array = structs(kind, data.draw(st.integers(1, 200)), nulls=False)
    array = pa.StructArray.from_arrays(array.flatten(), fields=list(kind))
    path = str(tmp_path_factory.mktemp("p") / "t")
    table = pa.table([array], schema=pa.schema([pa.field("a", kind, metadata=PACKED)]))
    lance.write_dataset(table, path, data_storage_version=version)  # type: ignore[arg-type]
    check(path, array)


@pytest.mark.parametrize(
    ("version", "array", "message"),
    [
        ("2.1", pa.array([{"x": 1, "s": "a"}]), "file version 2.1"),
        ("2.1", pa.array([{"x": None}], pa.struct([("x", pa.int32())])), "'a.x'.* cannot be null"),
        (
            "2.1",
            pa.array([{"v": [1.0, 2.0]}], pa.struct([("v", vectors(pa.float32(), 2))])),
            "file version 2.1",
        ),
        (
            "2.2",
            pa.array([{"x": None, "s": "a"}], pa.struct([("x", pa.int32()), ("s", pa.string())])),
            "cannot be null",
        ),
        ("2.2", pa.array([{"v": None}], pa.struct([("v", pa.list_(pa.int32(), 2))])), "cannot be null"),
        ("2.2", pa.array([{"v": [None] * 8}], pa.struct([("v", pa.list_(pa.bool_(), 8))])), "cannot be null"),
        ("2.2", pa.array([{"v": [True] * 3}], pa.struct([("v", pa.list_(pa.bool_(), 3))])), "bool"),
        (
            "2.2",
            pa.array([{"v": {"s": None}}], pa.struct([("v", pa.struct([("s", pa.string())]))])),
            "'a.v.s'.* cannot be null",
        ),
        ("2.2", pa.array([{"x": True}]), "bool"),
        ("2.2", pa.array([{"x": {"y": 1}}]), "struct"),
        ("2.2", pa.array([{"x": [1]}]), "list"),
        ("2.2", pa.array([{}], pa.struct([])), None),
    ],
)
def test_what_cannot_be_packed_is_refused(
    tmp_path: Path, version: str, array: pa.Array, message: str | None
) -> None:
    if message is None:
        # Nothing to pack: an empty struct, as it is without the key.
        message = "without fields"
    with pytest.raises(SchemaError, match=message):
        write(tmp_path / "t", array, version)
    assert not list(tmp_path.rglob("*.lance"))
