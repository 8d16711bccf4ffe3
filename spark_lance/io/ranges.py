"""Joins many small byte ranges into few requests and splits the responses again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from spark_lance.errors import StoreError
from spark_lance.io.counters import count_read

# On an object store a request costs about as much as the transfer of this many bytes: its latency times the
# bandwidth of a connection.
REQUEST_BYTES = 1 << 20
# If joining ranges reads more than this many unwanted bytes, only nearer ranges are joined.
_MAX_WASTE = 32 << 20
_SMALL_GAP = 1 << 16
_MAX_REQUEST = 8 << 20
_PARALLEL_REQUESTS = 16


@dataclass(frozen=True)
class Request:
    """One contiguous read that serves several requested ranges (`members` index the requested list)."""

    offset: int
    size: int
    members: tuple[int, ...]


def coalesce(ranges: Sequence[tuple[int, int]], max_gap: int, max_size: int) -> list[Request]:
    """Join (offset, size) ranges that are within `max_gap` bytes of each other.

    A joined request stays under `max_size` bytes unless a single range is larger. Overlapping
    and repeated ranges are allowed. Returns requests in file order.
    """
    order = sorted(range(len(ranges)), key=lambda i: ranges[i])
    requests: list[Request] = []
    members: list[int] = []
    start = end = 0
    for index in order:
        offset, size = ranges[index]
        new_end = max(end, offset + size)
        if members and (offset - end > max_gap or (new_end - start > max_size and offset + size > end)):
            requests.append(Request(start, end - start, tuple(members)))
            members = []
        if not members:
            start, end = offset, offset + size
        else:
            end = new_end
        members.append(index)
    if members:
        requests.append(Request(start, end - start, tuple(members)))
    return requests


def plan_requests(ranges: Sequence[tuple[int, int]]) -> list[Request]:
    """Return the requests that read (offset, size) ranges of an object, in the order of the object.

    A gap between ranges is read, too, if this costs less than another request.
    """
    requests = coalesce(ranges, REQUEST_BYTES, _MAX_REQUEST)
    needed_bytes = sum(size for _, size in ranges)
    waste = sum(request.size for request in requests) - needed_bytes
    if waste > max(_MAX_WASTE, needed_bytes):
        requests = coalesce(ranges, _SMALL_GAP, _MAX_REQUEST)
    return requests


def fetch_joined(
    path: str, ranges: Sequence[tuple[int, int]], fetch: Callable[[int, int], bytes]
) -> list[pa.Buffer]:
    """Return the bytes of each (offset, size) of an object, in the order of the ranges.

    Nearby ranges are joined into one request. Requests run in parallel threads.

    Args:
        path: path of the object, for messages.
        ranges: requested (offset, size) ranges; at least one.
        fetch: (offset, size) -> bytes; fewer than `size` if the object ends before.

    Raises:
        StoreError: the object ends before a range does.
    """
    requests = plan_requests(ranges)
    count_read(sum(size for _, size in ranges), len(ranges), len(requests))

    def fetch_block(request: Request) -> pa.Buffer:
        data = fetch(request.offset, request.size)
        check_length(path, request.offset, request.size, len(data))
        return pa.py_buffer(data)

    if len(requests) == 1:
        blocks = [fetch_block(requests[0])]
    else:
        with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, len(requests))) as pool:
            blocks = list(pool.map(fetch_block, requests))
    out: list[pa.Buffer] = [blocks[0]] * len(ranges)
    for request, data in zip(requests, blocks, strict=True):
        for index in request.members:
            out[index] = data.slice(ranges[index][0] - request.offset, ranges[index][1])
    return out


def check_length(path: str, offset: int, size: int, num_bytes: int) -> None:
    """Raise an error if a store returned fewer bytes of a range than were requested."""
    if num_bytes < size:
        # If the range starts after the end, the response does not reveal where the object ends.
        end_text = (
            f"after {offset + num_bytes} bytes" if num_bytes or not offset else f"before byte {offset + 1}"
        )
        raise StoreError(f"{path} ends {end_text}, but bytes up to {offset + size} were requested")
