"""ravel against a plain Python twin that walks values one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.v2_1.levels.ravel import Leaf, ravel
from spark_lance.proto import encodings21_pb2 as pb
from tests.strategies import arrow_types, canonical, random_array


@dataclass
class TwinLevel:
    """One level, top-down: the list depth it goes on in, and (layer from the outside, "null"|"empty")."""

    depth: int
    mark: tuple[int, str] | None
    slot: bool
    value: Any = None


@dataclass
class Twin:
    """The same facts as `Leaf`, made the slow way."""

    levels: list[TwinLevel] = field(default_factory=list)
    is_list: list[bool] = field(default_factory=list)


def twin(path: list[Field], rows: list[Any]) -> Twin:
    out = Twin([TwinLevel(0, None, True, row) for row in rows])
    for i, node in enumerate(path):
        k = len(out.is_list)
        out.is_list.append(node.kind in ("list", "map"))
        levels: list[TwinLevel] = []
        depth = sum(out.is_list)
        for level in out.levels:
            if not level.slot:
                levels.append(level)
                continue
            mark = level.mark or ((k, "null") if level.value is None else None)
            child = path[i + 1].name if i + 1 < len(path) else None
            if node.kind in ("list", "map"):
                items = level.value if mark is None else []
                if mark is None and not items:
                    mark = (k, "empty")
                if node.kind == "map" and items:
                    items = [{"key": key, "value": value} for key, value in items]
                if items:
                    levels.append(TwinLevel(level.depth, mark, True, items[0]))
                    levels += [TwinLevel(depth, None, True, item) for item in items[1:]]
                else:
                    levels.append(TwinLevel(level.depth, mark, False))
            elif node.kind == "struct":
                inner = None if mark else level.value[child]
                levels.append(TwinLevel(level.depth, mark, True, inner))
            elif node.kind == "fsl_struct":
                items = [None] * node.list_size if mark else level.value
                levels += [TwinLevel(level.depth, mark, True, item) for item in items]
            else:
                levels.append(TwinLevel(level.depth, mark, True, None if mark else level.value))
        out.levels = levels
    return out


def check(leaf: Leaf, chain: list[Field], expected: Twin) -> None:
    marks = {level.mark for level in expected.levels}
    numbers: dict[tuple[int, str] | None, int] = {None: 0}
    layers = []
    for k, node in enumerate(chain):
        inside = [below.kind for below in chain[k + 1 :]]
        spread = node.kind == "fsl_struct" or {"list", "map", "fsl_struct"} & set(inside)
        if node.kind in ("struct", "fsl_struct") and node.nullable and spread:
            marks.add((k, "null"))
        # A struct's nulls are nulls of what is in it.
        if k and not expected.is_list[k - 1] and (k - 1, "null") in marks:
            marks.add((k, "null"))
    for k in reversed(range(len(expected.is_list))):
        null, empty = (k, "null") in marks, (k, "empty") in marks
        for mark in ((k, "null"), (k, "empty")):
            if mark in marks:
                numbers[mark] = len(numbers)
        if expected.is_list[k]:
            layers.append(
                {
                    (False, False): pb.REPDEF_ALL_VALID_LIST,
                    (True, False): pb.REPDEF_NULLABLE_LIST,
                    (False, True): pb.REPDEF_EMPTYABLE_LIST,
                    (True, True): pb.REPDEF_NULL_AND_EMPTY_LIST,
                }[null, empty]
            )
        else:
            layers.append(pb.REPDEF_NULLABLE_ITEM if null else pb.REPDEF_ALL_VALID_ITEM)
    assert leaf.layers == tuple(layers)
    lists = sum(expected.is_list)
    count = len(expected.levels)
    assert leaf.num_levels == count
    rep = [0] * count if leaf.rep is None else leaf.rep.tolist()
    assert (leaf.rep is None) == (lists == 0)
    assert rep == [lists - level.depth for level in expected.levels] or lists == 0
    definition = [0] * count if leaf.definition is None else leaf.definition.tolist()
    assert definition == [numbers[level.mark] for level in expected.levels]
    slots = np.flatnonzero(leaf.has_slot()).tolist()
    assert slots == [i for i, level in enumerate(expected.levels) if level.slot]
    assert len(leaf.values) == len(slots)
    valid = [i for i, at in enumerate(slots) if expected.levels[at].mark is None]
    values = leaf.values.to_pylist()
    expected_rows = [expected.levels[slots[i]].value for i in valid]
    assert canonical([values[i] for i in valid]) == canonical(expected_rows)
    for p in range(1, len(slots)):
        assert leaf.levels_before(np.array([0, p, len(slots)])).tolist() == [0, slots[p - 1] + 1, count]
    validity = leaf.slot_validity()
    assert set(valid) == set(range(len(slots)) if validity is None else np.flatnonzero(validity).tolist())


def paths(top: Field) -> list[list[Field]]:
    below = top.children if top.kind in ("list", "map", "struct", "fsl_struct") else ()
    return [[top, *rest] for child in below for rest in paths(child)] if below else [[top]]


@settings(max_examples=300, deadline=None)
@given(arrow_types("2.2"), st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_ravel_agrees_with_the_twin(kind: pa.DataType, seed: int, rows: int) -> None:
    column = pa.field("c", kind)
    top = Schema.from_arrow(pa.schema([column])).fields[0]
    array = random_array(np.random.default_rng(seed), column, rows)
    leaves = list(ravel(top, array))
    chains = paths(top)
    assert [leaf.field for leaf in leaves] == [chain[-1] for chain in chains]
    for leaf, chain in zip(leaves, chains, strict=True):
        check(leaf, chain, twin(chain, array.to_pylist()))
        assert leaf.rows == rows


@settings(max_examples=100, deadline=None)
@given(arrow_types("2.2"), st.integers(0, 2**32 - 1), st.integers(2, 30))
def test_halves_hold_the_same_levels(kind: pa.DataType, seed: int, rows: int) -> None:
    column = pa.field("c", kind)
    top = Schema.from_arrow(pa.schema([column])).fields[0]
    array = random_array(np.random.default_rng(seed), column, rows)
    for whole in ravel(top, array):
        parts = whole.halves()
        assert [part.rows for part in parts] == [rows // 2, rows - rows // 2]
        assert sum(part.length for part in parts) == whole.length
        for name in ("rep", "definition"):
            levels = getattr(whole, name)
            if levels is not None:
                joined = np.concatenate([getattr(part, name) for part in parts])
                assert joined.tolist() == levels.tolist()
        assert canonical(pa.chunked_array([part.values for part in parts])) == canonical(whole.values)
        assert [len(part.row_starts()) for part in parts] == [part.length for part in parts]
        first, second = parts
        assert [*first.valueless, *(second.valueless + first.num_levels)] == whole.valueless.tolist()


def ravel_one(array: pa.Array, nullable: bool = True) -> list[Leaf]:
    schema = pa.schema([pa.field("c", array.type, nullable)])
    return list(ravel(Schema.from_arrow(schema).fields[0], array))


def test_the_example_of_the_module() -> None:
    (leaf,) = ravel_one(pa.array([[1, None], [], None, [2]], pa.list_(pa.int32())))
    assert leaf.layers == (pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULL_AND_EMPTY_LIST)
    assert leaf.rep is not None
    assert leaf.definition is not None
    assert leaf.rep.tolist() == [1, 0, 1, 1, 1]
    assert leaf.definition.tolist() == [0, 1, 3, 2, 0]
    assert leaf.values.to_pylist() == [1, None, 2]


def test_items_of_null_structs_are_null_in_the_struct_not_in_themselves() -> None:
    inner = pa.array([1, None, 3], pa.int32())
    array = pa.StructArray.from_arrays([inner], names=["x"], mask=pa.array([False, True, False]))
    (leaf,) = ravel_one(array)
    assert leaf.layers == (pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULLABLE_ITEM)
    assert leaf.definition is not None
    assert leaf.definition.tolist() == [0, 2, 0]


@pytest.mark.parametrize(
    ("array", "place"),
    [
        (pa.array([1, None]), "'c'"),
        (pa.array([{"x": None}], pa.struct([pa.field("x", pa.int8(), False)])), "'c.x'"),
        (pa.array([[1, None]], pa.list_(pa.field("item", pa.int8(), False))), "'c.item'"),
        (pa.array([None, [1]], pa.list_(pa.int8())), "'c'"),
    ],
)
def test_a_null_in_a_field_that_is_not_nullable_names_the_field(array: pa.Array, place: str) -> None:
    with pytest.raises(SchemaError, match=place):
        ravel_one(array, nullable=False)


def test_a_null_under_a_null_struct_may_be_in_a_field_that_is_not_nullable() -> None:
    kind = pa.struct([pa.field("x", pa.int8(), False)])
    array = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x01")], children=[pa.array([1, None], pa.int8())])
    (leaf,) = ravel_one(array)
    assert leaf.definition is not None
    assert leaf.definition.tolist() == [0, 2]


def test_a_dictionary_loses_null_items_and_items_that_no_row_uses() -> None:
    items = pa.array(["a", None, *(f"unused {i}" for i in range(100)), "z"])
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 102], pa.int8()), items)
    (leaf,) = ravel_one(array)
    assert leaf.values.dictionary.to_pylist() == ["a", "z"]
    assert leaf.values.to_pylist() == ["a", None, None, "z"]
    assert leaf.definition is not None
    assert leaf.definition.tolist() == [0, 1, 1, 0]
