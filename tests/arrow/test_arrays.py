"""Rows picked from arrays on which Arrow's own kernels go wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.arrow.arrays import (
    empty_text,
    filter_rows,
    flags_to_arrow,
    flags_to_numpy,
    join,
    make_filterable,
    normalise_offsets,
    numbers_to_arrow,
    numbers_to_numpy,
    pick_rows,
)
from tests.strategies import canonical


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
    assert make_filterable(part).take(pa.array([3, 7, 1])).to_pylist() == [expected[i] for i in (23, 27, 21)]
    filtered = filter_rows(pa.table({"x": part}), pa.array(mask))
    assert filtered["x"].to_pylist() == [expected[20 + i] for i in range(20) if mask[i]]


def test_values_move_between_numpy_and_arrow() -> None:
    draw = np.random.default_rng(3)
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
        for count in (0, 1, 77):
            numbers = draw.integers(0, 100, 2 * count).astype(dtype)[::2]
            array = numbers_to_arrow(numbers)
            assert array.equals(pa.array(numbers))
            assert (numbers_to_numpy(array.slice(count // 3)) == numbers[count // 3 :]).all()
    for count in (0, 1, 8, 77):
        flags = draw.random(count) < 0.5
        assert flags_to_arrow(flags).equals(pa.array(flags, pa.bool_()))
        for start in range(min(count, 20)):
            assert (flags_to_numpy(pa.array(flags).slice(start)) == flags[start:]).all()
    for arrow in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        assert empty_text(arrow).equals(pa.array([b""], arrow))


WRITES_AND_READS = """
import sys
import numpy as np, pyarrow as pa
from spark_lance.file.reader import FileReader
from spark_lance.file.base.schema import Schema
from spark_lance.file.writer import FileWriter
from spark_lance.file.base.version import FileVersion
from spark_lance.io.store import open_store
batch = next(iter(pa.ipc.open_stream(sys.stdin.buffer.read())))
for version in ("2.1", "2.2"):
    store, path = open_store(f"{sys.argv[1]}/{version}.lance")
    with FileWriter(store, path, Schema.from_arrow(batch.schema), FileVersion.parse(version)) as writer:
        writer.write(batch)
        writer.finish()
    assert FileReader(store, path).read().num_rows == batch.num_rows
print("pandas" in sys.modules)
"""


def test_flat_columns_are_written_and_read_without_pandas(tmp_path: Path) -> None:
    # It would take 0.3 s of each process that Spark starts for Python.
    pytest.importorskip("pandas")
    draw = np.random.default_rng(9)
    count = 20_000
    lost = draw.random(count) < 0.1
    columns = {
        "near": pa.array(draw.integers(0, 900, count), pa.int32(), mask=lost),
        "few": pa.array(draw.choice(draw.integers(0, 2**60, 50), count)),
        "far": pa.array(draw.integers(0, 2**60, count)),
        "real": pa.array(draw.normal(size=count), mask=lost),
        "yes": pa.array(draw.random(count) < 0.5, mask=lost),
        "code": pa.array(draw.choice(["JFK", "EWR", "", "LGA"], count), mask=lost),
        "text": pa.array([f"{number} and {number % 7}" for number in range(count)], mask=lost),
        "list": pa.array([[1, None, 3], None, []] * (count // 3) + [[5]] * (count % 3), pa.list_(pa.int32())),
        "part": pa.array([{"x": 1, "y": "a"}, None] * (count // 2)),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=8 * count), pa.float32()), 8),
    }
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as out:
        out.write_batch(batch)
    command = [sys.executable, "-c", WRITES_AND_READS, str(tmp_path)]
    result = subprocess.run(command, input=sink.getvalue().to_pybytes(), capture_output=True, check=True)
    assert result.stdout.decode().strip() == "False"


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
        result = filter_rows(table, keep)
        assert result["numbers"].to_pylist() == [i for i in range(12) if i != gone]
        assert result["lists"].to_pylist() == [[[i], [i + 1]] for i in range(12) if i != gone]


def test_dictionaries_beside_nested_lists_stay_as_they_are() -> None:
    """Those of several chunks cannot always be united, and Arrow unites those of half floats wrongly."""
    lists = nested_fixed_lists(6)
    few = [pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(v, pa.float16()))
           for v in ([1.5, np.nan], [3.0, -1.0])]  # fmt: skip
    many = [
        pa.DictionaryArray.from_arrays(
            pa.array([0, 99, 5], pa.int8()), pa.array([f"{name}{i}" for i in range(100)])
        )
        for name in "ab"
    ]
    table = pa.table({"lists": lists, "few": pa.chunked_array(few), "many": pa.chunked_array(many)})
    expected = canonical([row for number, row in enumerate(table.to_pylist()) if number not in (1, 4)])
    keep = pa.array([number not in (1, 4) for number in range(6)])
    assert canonical(filter_rows(table, keep).to_pylist()) == expected


def without_offsets(array: pa.Array) -> pa.Array:
    """Return the array with empty parts as Java's Arrow sends them: without offsets."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [without_offsets(array.field(i)) for i in range(kind.num_fields)]
        # Arrow 25 takes any mask of a map's entries for nulls.
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return array if len(array) else pa.Array.from_buffers(kind, 0, [None, None, pa.py_buffer(b"")])
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        array = pa.concat_arrays([array])
        offsets = array.buffers()[1] if len(array) else None
        values = without_offsets(array.values)
        return pa.Array.from_buffers(
            kind, len(array), [array.buffers()[0], offsets], array.null_count, children=[values]
        )
    return array


TEXTS = pa.list_(pa.string())
EMPTY_PARTS = [
    (pa.list_(TEXTS), [[], None, []]),
    (pa.list_(pa.list_(TEXTS)), [[], [[]], None]),
    (pa.struct([("a", TEXTS), ("b", pa.map_(pa.string(), TEXTS))]), [None, {"a": [], "b": []}]),
    (pa.list_(pa.struct([("a", pa.string())])), [[], []]),
    (pa.map_(pa.string(), pa.binary()), [[], None]),
    (pa.list_(pa.list_(pa.list_(pa.int32(), 2))), [[], None]),
    (pa.string(), []),
    (pa.struct([("a", pa.string())]), []),
]


@pytest.mark.parametrize(("kind", "values"), EMPTY_PARTS, ids=[str(kind) for kind, _ in EMPTY_PARTS])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_empty_parts_without_offsets_are_written(
    kind: pa.DataType, values: list[Any], version: str, tmp_path: Path
) -> None:
    if version != "2.2" and "map" in str(kind):
        pytest.skip("maps need 2.2")
    array = without_offsets(pa.array(values, kind))
    better = normalise_offsets(array)
    better.validate(full=True)
    assert better.to_pylist() == values
    assert better.nbytes >= 0
    for part in (array, array.slice(1)):
        write_dataset(pa.table({"a": part}), tmp_path / "t", "overwrite", data_storage_version=version)
        assert dataset(tmp_path / "t").to_table()["a"].to_pylist() == part.to_pylist()
