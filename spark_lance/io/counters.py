"""Counts of what this process has read from stores, for monitoring and comparison.

A read is a byte range that the caller requested. A request is what was sent to the store for one or more
reads. A range of a memory-mapped file counts as one request.
"""

from __future__ import annotations

import threading
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class ReadCounts:
    """Counts of reads.

    Attributes:
        reads, requests, bytes: byte ranges read, requests to stores, and the total bytes of the ranges.
        cache_hits: index parts and open versions that were in the cache.
    """

    reads: int = 0
    requests: int = 0
    bytes: int = 0
    cache_hits: int = 0

    def __sub__(self, before: ReadCounts) -> ReadCounts:
        return ReadCounts(*(one - two for one, two in zip(astuple(self), astuple(before), strict=True)))


_lock = threading.Lock()
_reads = _requests = _bytes = _hits = 0


def count_read(size: int, reads: int = 1, requests: int = 1) -> None:
    """Count `reads` ranges with `size` bytes in total, read by `requests` requests."""
    global _reads, _requests, _bytes
    with _lock:
        _reads += reads
        _requests += requests
        _bytes += int(size)


def count_cache_hit() -> None:
    """Count one value that came from the cache instead of the store."""
    global _hits
    with _lock:
        _hits += 1


def read_counts() -> ReadCounts:
    """Return the counts of this process since its start, over all threads."""
    with _lock:
        return ReadCounts(_reads, _requests, _bytes, _hits)
