"""Joining byte ranges: every asked byte is in its request, and requests are few and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_lance.io.ranges import coalesce

RANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=30)


@given(ranges=RANGES, gap=st.integers(0, 40), limit=st.integers(1, 200))
def test_each_range_lies_in_exactly_one_request(ranges: list[tuple[int, int]], gap: int, limit: int) -> None:
    requests = coalesce(ranges, gap, limit)
    members = [member for request in requests for member in request.members]
    assert sorted(members) == list(range(len(ranges)))
    for request in requests:
        for member in request.members:
            offset, size = ranges[member]
            assert request.offset <= offset
            assert offset + size <= request.offset + request.size


@given(ranges=RANGES, gap=st.integers(0, 40), limit=st.integers(1, 200))
def test_requests_are_no_longer_than_asked_for(ranges: list[tuple[int, int]], gap: int, limit: int) -> None:
    for request in coalesce(ranges, gap, limit):
        longest = max(ranges[member][1] for member in request.members)
        assert request.size <= max(limit, longest)


def test_near_ranges_are_joined_and_far_ones_are_not() -> None:
    requests = coalesce([(100, 10), (0, 10), (15, 5)], max_gap=5, max_size=1000)
    assert [(r.offset, r.size, r.members) for r in requests] == [(0, 20, (1, 2)), (100, 10, (0,))]


def test_nothing_asked_is_no_request() -> None:
    assert coalesce([], 10, 10) == []
