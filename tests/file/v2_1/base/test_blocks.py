"""Numbers of dictionary items to the items, whatever stands in the place of nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.v2_1.base.blocks import DictionaryBlock, FixedWidth, to_arrow

KINDS = [pa.int64(), pa.float32(), pa.timestamp("us"), pa.decimal128(20, 2), pa.binary(3), pa.bool_()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("strays", ["none", "nulls", "all"])
def test_items_by_number(kind: pa.DataType, strays: str) -> None:
    random = np.random.default_rng(1)
    bits, count = kind.bit_width, 500
    data = random.integers(0, 256, 7 * max(1, bits // 8)).astype(np.uint8)
    if pa.types.is_decimal(kind):
        data.reshape(7, -1)[:, 8:] = 0
    items = pa.Array.from_buffers(kind, 7, [None, pa.py_buffer(data)])
    numbers = random.integers(0, 7, count).astype(np.uint16)
    valid = random.random(count) < 0.7
    expected = items.take(pa.array(numbers.astype(np.int64), mask=~valid))
    if strays == "nulls":
        numbers[~valid] = 60_000
    if strays == "all":
        numbers[valid.argmax()] = 7
    block = DictionaryBlock(FixedWidth(16, count, numbers.view(np.uint8)), FixedWidth(bits, 7, data))
    validity = np.packbits(valid, bitorder="little")
    if strays == "all":
        with pytest.raises(IndexError):
            to_arrow(block, kind, validity)
        return
    result = to_arrow(block, kind, validity)
    result.validate(full=True)
    assert result.equals(expected)
    assert to_arrow(block, kind).equals(items.take(pa.array(numbers))) if strays == "none" else True
