"""Many small byte ranges turned into few requests, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Request", "coalesce"]


@dataclass(frozen=True)
class Request:
    """One contiguous read that serves several asked ranges (`members` index the asked list)."""

    offset: int
    size: int
    members: tuple[int, ...]


def coalesce(ranges: Sequence[tuple[int, int]], max_gap: int, max_size: int) -> list[Request]:
    """Join (offset, size) ranges that lie within `max_gap` bytes of each other.

    A joined request stays under `max_size` bytes unless one asked range alone is larger. Overlapping
    and repeated ranges are allowed. Returns requests in file order.
    """
    order = sorted(range(len(ranges)), key=lambda i: ranges[i])
    requests: list[Request] = []
    members: list[int] = []
    start = end = 0
    for index in order:
        offset, size = ranges[index]
        grown = max(end, offset + size)
        if members and (offset - end > max_gap or (grown - start > max_size and offset + size > end)):
            requests.append(Request(start, end - start, tuple(members)))
            members = []
        if not members:
            start, end = offset, offset + size
        else:
            end = grown
        members.append(index)
    if members:
        requests.append(Request(start, end - start, tuple(members)))
    return requests
