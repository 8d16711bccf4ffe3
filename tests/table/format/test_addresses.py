"""Row addresses: taken apart, put together, grouped by fragment."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.table.format.row_set import (
    address_fragments,
    address_offsets,
    row_address,
    row_addresses,
    runs_by_fragment,
    split_address,
)

HALVES = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))


@given(st.lists(st.tuples(HALVES, HALVES)))
def test_addresses_are_fragment_and_row(pairs: list[tuple[int, int]]) -> None:
    numbers = [fragment * 2**32 + offset for fragment, offset in pairs]
    addresses = np.array(numbers, np.uint64)
    assert [row_address(*pair) for pair in pairs] == numbers
    assert [split_address(number) for number in numbers] == pairs
    assert (
        list(zip(address_fragments(addresses).tolist(), address_offsets(addresses).tolist(), strict=True))
        == pairs
    )
    for fragment, offset in pairs:
        assert row_addresses(fragment, np.array([offset], np.uint32)).tolist() == [
            row_address(fragment, offset)
        ]
    runs = list(runs_by_fragment(addresses))
    assert [pair for fragment, run in runs for pair in pairs[run] if pair[0] == fragment] == pairs
    assert all(one[0] != two[0] for one, two in itertools.pairwise(runs))
