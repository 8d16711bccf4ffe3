"""Few distinct strings, many times: equal to `take`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.arrow.buffers import pack_bits
from spark_lance.file.v2_1.base.blocks import repeat_strings

KINDS = (pa.string(), pa.binary())


@settings(max_examples=150)
@given(
    texts=st.lists(st.text(max_size=5), min_size=1, max_size=40, unique=True),
    kind=st.sampled_from(KINDS),
    bits=st.sampled_from(["u1", "u2", "u4", "u8"]),
    count=st.integers(1, 60_000),
    nulls=st.booleans(),
)
def test_against_take(texts: list[str], kind: pa.DataType, bits: str, count: int, nulls: bool) -> None:
    rng = np.random.default_rng(count)
    items = pa.array(texts, pa.string()).cast(kind)
    valid = rng.random(count) < 0.7 if nulls else np.ones(count, np.bool_)
    indices = rng.integers(0, 255, count).astype(f"<{bits}")
    indices[valid] %= len(texts)
    got = repeat_strings(items, indices, None if valid.all() else pack_bits(valid))
    if got is None:
        assert count < 32 * (len(texts) + 1) ** 2 or not any(texts)
        return
    got.validate(full=True)
    assert got.equals(items.take(pa.array(indices, mask=~valid)))


@pytest.mark.parametrize("nulls", [False, True])
def test_indices_without_an_item(nulls: bool) -> None:
    items = pa.array(["a", "b"])
    indices = np.zeros(10_000, dtype="<u4")
    indices[77] = 2
    valid = np.ones(len(indices), dtype=np.bool_)
    valid[5] = False
    with pytest.raises(IndexError):
        repeat_strings(items, indices, pack_bits(valid) if nulls else None)


def test_many_distinct_strings_are_left_alone() -> None:
    items = pa.array([str(i) for i in range(200)])
    assert repeat_strings(items, np.zeros(1_000_000, dtype="<u4"), None) is None
    assert repeat_strings(items.slice(0, 2), np.zeros(10, dtype="<u4"), None) is None
