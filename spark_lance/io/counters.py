"""How much this process has read from stores, for those who watch or compare.

A read is a range of bytes that the code above asked for; a request is what went to the store for one or more
of them. A range of a file that is mapped into memory counts as a request of its own.
"""

from __future__ import annotations

import threading
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class ReadCounts:
    """Counts of reads.

    Attributes:
        reads, requests, bytes: byte ranges read, requests to stores, and the total bytes of the ranges.
        cache_hits: parts of indices and open versions that were in the cache.
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
    """Note that `reads` ranges of `size` bytes together were read by `requests` requests."""
    global _reads, _requests, _bytes
    with _lock:
        _reads += reads
        _requests += requests
        _bytes += int(size)


def count_cache_hit() -> None:
    """Count something that was in the cache and was not read."""
    global _hits
    with _lock:
        _hits += 1


def read_counts() -> ReadCounts:
    """Return the counts of this process since its start, for all threads together."""
    with _lock:
        return ReadCounts(_reads, _requests, _bytes, _hits)
