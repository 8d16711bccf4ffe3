"""How much this process has read from stores, for those who watch or compare.

A read is a range of bytes that the code above asked for; a request is what went to the store for one or more
of them. A range of a file that is mapped into memory counts as a request of its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["ReadCounts", "count_read", "read_counts"]


@dataclass(frozen=True)
class ReadCounts:
    """What was read: ranges of bytes, requests to stores, and bytes that the ranges have."""

    reads: int = 0
    requests: int = 0
    bytes: int = 0

    def __sub__(self, before: ReadCounts) -> ReadCounts:
        return ReadCounts(
            self.reads - before.reads, self.requests - before.requests, self.bytes - before.bytes
        )


_lock = threading.Lock()
_reads = _requests = _bytes = 0


def count_read(size: int, reads: int = 1, requests: int = 1) -> None:
    """Note that `reads` ranges of `size` bytes together were read by `requests` requests."""
    global _reads, _requests, _bytes
    with _lock:
        _reads += reads
        _requests += requests
        _bytes += int(size)


def read_counts() -> ReadCounts:
    """Return what this process has read since it began, all its threads together."""
    with _lock:
        return ReadCounts(_reads, _requests, _bytes)
