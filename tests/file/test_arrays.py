"""Rows picked from arrays on which Arrow's own kernels go wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.arrays import join, movable, movable_table, pick_rows


def nested_fixed_lists(rows: int) -> pa.Array:
    inner = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 6, dtype=np.int32)), 3)
    return pa.FixedSizeListArray.from_arrays(inner, 2)


@pytest.mark.parametrize("wrapped", [False, True])
def test_slices_of_nested_fixed_lists_can_be_picked_from(wrapped: bool) -> None:
    array = nested_fixed_lists(50)
    if wrapped:
        array = pa.StructArray.from_arrays([array], names=["a"])
    expected = array.to_pylist()
    part = array.slice(20, 20)
    mask = [i % 3 == 0 for i in range(20)]
    assert movable(part).take(pa.array([3, 7, 1])).to_pylist() == [expected[i] for i in (23, 27, 21)]
    filtered = movable_table(pa.table({"x": part})).filter(pa.array(mask))
    assert filtered["x"].to_pylist() == [expected[20 + i] for i in range(20) if mask[i]]


def test_arrays_are_joined() -> None:
    assert [a.to_pylist() for a in join([pa.array([1]), pa.array([2, 3])])] == [[1, 2, 3]]
    assert join([]) == []


def test_dictionaries_are_joined_where_arrow_gets_it_right() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    arrays = [
        pa.array(["a", "b"]).dictionary_encode().cast(kind),
        pa.array(["c", "a"]).dictionary_encode().cast(kind),
    ]
    assert [a.to_pylist() for a in join(arrays)] == [["a", "b", "c", "a"]]


def test_dictionaries_that_arrow_cannot_unite_stay_apart() -> None:
    halves = [
        pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([value], pa.float16()))
        for value in (1.0, 2.0)
    ]
    assert join(halves) == halves
    nulls = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", v])) for v in ("b", None)
    ]
    assert join(nulls) == nulls


def test_rows_are_picked_across_chunks_of_any_kind() -> None:
    halves = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(values, pa.float16()))
        for values in ([1.0, 2.0], [3.0, 4.0])
    ]
    table = pa.table(
        {
            "d": pa.chunked_array(halves),
            "v": pa.chunked_array([nested_fixed_lists(4).slice(0, 2), nested_fixed_lists(4).slice(2)]),
            "i": pa.chunked_array([[0, 1], [2, 3]]),
        }
    )
    expected = table.to_pylist()
    assert pick_rows(table, np.array([3, 0, 0, 2])).to_pylist() == [expected[i] for i in (3, 0, 0, 2)]
    assert pick_rows(table.select([]), np.array([3, 0])).num_rows == 2
    assert pick_rows(table.slice(0, 0), np.array([], np.int64)).num_rows == 0


def test_tables_whose_columns_are_cut_in_other_places_are_filtered_right() -> None:
    kind = pa.list_(pa.list_(pa.int8(), 1), 2)
    lists = pa.array([[[i], [i + 1]] for i in range(12)], kind)
    table = pa.table(
        {
            "lists": pa.chunked_array([lists.slice(0, 7), lists.slice(7)]),
            "numbers": pa.chunked_array([pa.array(range(3)), pa.array(range(3, 9)), pa.array(range(9, 12))]),
        }
    )
    for gone in range(12):
        keep = pa.array([i != gone for i in range(12)])
        found = movable_table(table).filter(keep)
        assert found["numbers"].to_pylist() == [i for i in range(12) if i != gone]
        assert found["lists"].to_pylist() == [[[i], [i + 1]] for i in range(12) if i != gone]
