"""Zipping parts of nested fields back together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError
from spark_lance.file.base.nested import merge_paths
from spark_lance.file.base.schema import Field, Schema, paths
from spark_lance.file.v2_1.read.page import path_type
from tests.strategies import arrow_types, random_array


def field_of(arrow: pa.DataType) -> Field:
    return Schema.from_arrow(pa.schema([pa.field("a", arrow)])).fields[0]


def extract(array: pa.Array, path: tuple[Field, ...]) -> pa.Array:
    """Keep one leaf of an array, row by row: the twin of what is to be undone."""
    return pa.array([_one(row, path) for row in array.to_pylist()], path_type(path))


def _one(node: Any, path: tuple[Field, ...]) -> Any:
    top, *below = path
    if node is None or not below:
        return node
    if top.kind == "struct":
        return {below[0].name: _one(node[below[0].name], tuple(below))}
    if top.kind == "map":
        entries, leaf = below[0], below[1]
        number = 0 if leaf.id == entries.children[0].id else 1
        return [{leaf.name: _one(pair[number], tuple(below[1:]))} for pair in node]
    return [_one(item, tuple(below)) for item in node]


def comparable(kind: pa.DataType) -> bool:
    """Tell whether Python values of the type go back into Arrow unchanged."""
    if pa.types.is_dictionary(kind) or pa.types.is_duration(kind) or pa.types.is_timestamp(kind):
        return False
    if pa.types.is_time64(kind) or pa.types.is_float16(kind):
        return False
    if pa.types.is_map(kind):
        return comparable(kind.key_type) and comparable(kind.item_type)
    if pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        return comparable(kind.value_type)
    return not pa.types.is_struct(kind) or all(comparable(child.type) for child in kind)


@given(
    kind=arrow_types("2.2").filter(comparable),
    rows=st.integers(0, 20),
    seed=st.integers(0, 1000),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_paths_of_any_type(kind: pa.DataType, rows: int, seed: int, cut: tuple[int, int]) -> None:
    whole = random_array(np.random.default_rng(seed), pa.field("a", kind), rows)
    field = field_of(kind)
    parts = [extract(whole, path) for path in paths(field)]
    start, size = min(cut[0], rows), cut[1]
    for expected, pieces in (
        (whole, parts),
        (whole.slice(start, size), [part.slice(start, size) for part in parts]),
    ):
        merged = merge_paths(field, pieces)
        merged.validate(full=True)
        assert merged.type.equals(field.arrow_type(), check_metadata=True)
        assert repr(merged.to_pylist()) == repr(expected.to_pylist())


POINT = pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.list_(pa.int8()))])


def test_children_that_no_part_has_are_null() -> None:
    part = pa.array([{"y": "a"}, None, {"y": None}], pa.struct([("y", pa.string())]))
    merged = merge_paths(field_of(POINT), [part])
    assert merged.to_pylist() == [{"x": None, "y": "a", "z": None}, None, {"x": None, "y": None, "z": None}]


def test_parts_may_have_several_leaves() -> None:
    first = pa.array([{"x": 1, "z": [1]}, None], pa.struct([("x", pa.int32()), ("z", pa.list_(pa.int8()))]))
    second = pa.array([{"y": "a"}, None], pa.struct([("y", pa.string())]))
    merged = merge_paths(field_of(POINT), [second, first])
    assert merged.to_pylist() == [{"x": 1, "y": "a", "z": [1]}, None]


def test_whole_fields_are_returned_as_they_are() -> None:
    array = pa.array([{"x": 1, "y": "a", "z": []}], POINT)
    assert merge_paths(field_of(POINT), [array]) is array


def test_parts_of_different_length() -> None:
    parts = [
        pa.array([{"x": 1}, {"x": 2}], pa.struct([("x", pa.int32())])),
        pa.array([{"y": "a"}], pa.struct([("y", pa.string())])),
    ]
    with pytest.raises(FormatError, match="length"):
        merge_paths(field_of(POINT), parts)
    with pytest.raises(FormatError):
        merge_paths(field_of(POINT), [])


def test_lists_of_different_length() -> None:
    kind = pa.list_(POINT)
    xs = pa.list_(pa.struct([("x", pa.int32())]))
    ys = pa.list_(pa.struct([("y", pa.string())]))
    parts = [
        pa.array([[{"x": 1}], [{"x": 2}, {"x": 3}]], xs),
        pa.array([[{"y": "a"}, {"y": "b"}], [{"y": "c"}]], ys),
    ]
    with pytest.raises(FormatError, match="length"):
        merge_paths(field_of(kind), parts)


@pytest.mark.parametrize("keys", [["a", None], ["a", "b"]])
def test_null_keys_of_maps(keys: list[str | None]) -> None:
    """Arrow ends the process when it is given such a map."""
    field = field_of(pa.map_(pa.string(), pa.int32()))
    key_part = pa.array([[{"key": key} for key in keys]], pa.list_(pa.struct([("key", pa.string())])))
    values = [{"value": 1}, {"value": 2}] if None in keys else [{"value": 1}, None]
    value_part = pa.array([values], pa.list_(pa.struct([("value", pa.int32())])))
    order = [key_part, value_part] if None in keys else [value_part, key_part]
    with pytest.raises(FormatError, match="null keys"):
        merge_paths(field, order)


def test_keys_with_a_bitmap_but_no_nulls() -> None:
    field = field_of(pa.map_(pa.string(), pa.int32()))
    keys = pa.array(["a", "b"])
    with_bitmap = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\xff"), *keys.buffers()[1:]])
    entries = pa.StructArray.from_arrays([with_bitmap], ["key"])
    key_part = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    value_part = pa.array([[{"value": 1}], [{"value": None}]], pa.list_(pa.struct([("value", pa.int32())])))
    for start in (0, 1):
        merged = merge_paths(field, [key_part.slice(start), value_part.slice(start)])
        assert merged.to_pylist() == [[("a", 1)], [("b", None)]][start:]


def test_a_struct_is_null_where_all_its_parts_are() -> None:
    kind = pa.struct(
        [("x", pa.int32()), ("y", pa.int32()), ("z", pa.struct([("u", pa.int8()), ("v", pa.int8())]))]
    )
    xs = pa.array([{"x": 1}, {"x": 2}, None, None])
    ys = pa.array([{"y": 1, "z": {"u": 1}}, None, {"y": 3, "z": None}, None])
    vs = pa.array([{"z": {"v": 5}}, {"z": {"v": 6}}, {"z": {"v": 7}}, None])
    # What a null struct covers must not come to light.
    covered = pa.Array.from_buffers(
        xs.type, 4, [xs.buffers()[0]], children=[pa.array([1, 2, 77, 78], xs.type.field(0).type)]
    )
    types = [
        pa.struct([("x", pa.int32())]),
        pa.struct([("y", pa.int32()), ("z", pa.struct([("u", pa.int8())]))]),
    ]
    parts = [
        covered.cast(types[0]),
        ys.cast(types[1]),
        vs.cast(pa.struct([("z", pa.struct([("v", pa.int8())]))])),
    ]
    assert merge_paths(field_of(kind), parts).to_pylist() == [
        {"x": 1, "y": 1, "z": {"u": 1, "v": 5}},
        {"x": 2, "y": None, "z": {"u": None, "v": 6}},
        {"x": None, "y": 3, "z": {"u": None, "v": 7}},
        None,
    ]
