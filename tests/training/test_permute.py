"""All rows in another order: as Arrow's `take` would have them, whatever the types, chunks and offsets."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.training.batches import permute_rows

KINDS = [
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.float16(),
    pa.float64(),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.list_(pa.float32(), 5),
    pa.list_(pa.int8(), 3),
    pa.list_(pa.list_(pa.float64(), 2), 3),
    pa.bool_(),
    pa.string(),
    pa.list_(pa.int64()),
    pa.struct([("x", pa.int32())]),
    pa.dictionary(pa.int8(), pa.string()),
    pa.binary(3),
    pa.list_(pa.string(), 2),
]


def values(kind: pa.DataType, rows: int, chance: np.random.Generator, nulls: bool) -> pa.Array:
    """Return random values of a type."""

    def one(kind: pa.DataType, may_be_null: bool = nulls) -> object:
        if may_be_null and chance.random() < 0.2:
            return None
        number = int(chance.integers(0, 100))
        if pa.types.is_fixed_size_list(kind):
            return [one(kind.value_type) for _ in range(kind.list_size)]
        if pa.types.is_list(kind):
            return [one(kind.value_type) for _ in range(number % 4)]
        if pa.types.is_struct(kind):
            return {"x": number}
        if pa.types.is_timestamp(kind):
            return datetime.datetime(2020, 1, 1, 0, number % 60)
        if pa.types.is_date(kind):
            return datetime.date(2020, 1, 1 + number % 28)
        if pa.types.is_boolean(kind):
            return number % 2 == 0
        if pa.types.is_floating(kind):
            return np.float16(number / 4) if pa.types.is_float16(kind) else number / 4
        if pa.types.is_fixed_size_binary(kind):
            return b"%03d" % number
        if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
            return str(number)
        return number

    return pa.array([one(kind) for _ in range(rows)], kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_rows_are_those_that_take_gives(kind: pa.DataType, nulls: bool) -> None:
    chance = np.random.default_rng([nulls, KINDS.index(kind)])
    for _ in range(8):
        sizes = chance.integers(0, 9, chance.integers(1, 5)).tolist()
        chunks = [values(kind, size + 3, chance, nulls).slice(2, size) for size in sizes]
        column = pa.chunked_array(chunks, kind)
        table = pa.table({"c": column, "n": np.arange(len(column))})
        order = chance.permutation(len(column))
        result = permute_rows(table, order)
        result.validate(full=True)
        assert result.schema == table.schema
        assert result["n"].to_pylist() == order.tolist()
        assert result["c"].to_pylist() == [column[i].as_py() for i in order]
        assert pa.types.is_dictionary(kind) or result["c"].num_chunks <= 1


def test_a_table_without_chunks() -> None:
    table = pa.schema([("v", pa.list_(pa.float32(), 4)), ("s", pa.string())]).empty_table()
    assert permute_rows(table, np.empty(0, np.int64)).equals(table)
