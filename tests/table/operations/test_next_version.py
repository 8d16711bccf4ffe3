"""Changing the fragments of a version in the making."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.table.operations import next_version
from spark_lance.table.operations.next_version import change_fragments


@given(
    ids=st.lists(st.integers(0, 30), unique=True, max_size=20),
    updated=st.sets(st.integers(0, 30), max_size=4),
    removed=st.sets(st.integers(0, 30), max_size=8),
    few=st.sampled_from([0, 3, 100]),
)
def test_fragments_are_replaced_and_removed(
    ids: list[int], updated: set[int], removed: set[int], few: int
) -> None:
    updated -= removed
    message = table_pb2.Manifest(
        fragments=[table_pb2.DataFragment(id=number, physical_rows=7, clustering_id=1) for number in ids]
    )
    before = table_pb2.Manifest.FromString(message.SerializeToString())
    new = [table_pb2.DataFragment(id=number, physical_rows=9) for number in updated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_version, "_FEW_FRAGMENTS", few)
        if missing := (updated | removed) - set(ids):
            with pytest.raises(FormatError, match=str(min(missing))):
                change_fragments(message, new, removed, "a test")
            assert message == before
            return
        change_fragments(message, new, removed, "a test")
    by_id = {fragment.id: fragment for fragment in new}
    expected = [by_id.get(f.id, f) for f in before.fragments if f.id not in removed]
    assert list(message.fragments) == expected
