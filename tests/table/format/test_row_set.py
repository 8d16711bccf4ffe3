"""A set of rows by fragment is compared with a Python set of addresses."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.table.format.row_set import RowSet, row_address, split_address

SIZE = 6
SETS = st.dictionaries(
    st.integers(0, 3), st.none() | st.sets(st.integers(0, SIZE - 1)).map(BitMap), max_size=3
).map(RowSet)


def plain(rows: RowSet) -> set[int]:
    """The addresses in a set, if every fragment has `SIZE` rows."""
    return {
        row_address(fragment, row)
        for fragment, offsets in rows.items()
        for row in (range(SIZE) if offsets is None else offsets)
    }


@given(SETS, SETS)
def test_sets_are_combined(one: RowSet, other: RowSet) -> None:
    assert plain(one | other) == plain(one) | plain(other)
    assert plain(one & other) == plain(one) & plain(other)
    sized = one.with_sizes(dict.fromkeys(one, SIZE))
    assert plain(sized) == plain(one)
    assert plain(sized - other) == plain(one) - plain(other)
    every = np.array([row_address(fragment, row) for fragment in range(4) for row in range(SIZE)], np.uint64)
    assert set(every[one.mask(every)].tolist()) == plain(one)
    assert plain(one.select_fragments([2, 0, 9])) == {
        each for each in plain(one) if split_address(each)[0] in (0, 2)
    }


@given(SETS)
def test_forms_of_a_set(rows: RowSet) -> None:
    assert RowSet.from_bytes(rows.to_bytes()) == rows == pickle.loads(pickle.dumps(rows))
    sized = rows.with_sizes(dict.fromkeys(rows, SIZE))
    assert set(sized.addresses().tolist()) == plain(rows)
    assert sized.num_rows == len(plain(rows))
    assert RowSet.from_offsets(sized.offsets_by_fragment()) == sized
    assert plain(RowSet.from_addresses(sized.addresses()[::-1])) == plain(rows)


def test_fragments_as_a_whole_have_no_known_rows() -> None:
    rows = RowSet.from_fragments([3])
    for attempt in (
        lambda: rows.num_rows,
        lambda: rows.offsets(3),
        rows.addresses,
        lambda: operator.sub(rows, RowSet({3: BitMap([1])})),
    ):
        with pytest.raises(ValueError, match="rows of fragment 3"):
            attempt()
    assert rows - RowSet.from_fragments([3]) == {}
    assert rows - RowSet({3: BitMap()}) == rows


@pytest.mark.parametrize(
    "data", [b"", b"\1\0\0\0", b"\1\0\0\0\0\0\0\0\xff\0\0\0", b"\1\0\0\0\0\0\0\0\1\0\0\0x"]
)
def test_damaged_sets_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="set of rows"):
        RowSet.from_bytes(data)
