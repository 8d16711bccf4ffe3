"""What this process has read so far: requests to stores, bytes, pages, and what caches had already.

What a piece of work reads is the difference of two states, with what other threads of the process read in the
meantime.
"""

from __future__ import annotations

import threading
from dataclasses import astuple, dataclass

__all__ = ["Reads", "note_reads", "reads_so_far"]


@dataclass(frozen=True)
class Reads:
    """Amounts.

    Attributes:
        requests: calls of a store, or local files that were opened.
        size: bytes that came of them; of local files, which are mapped into memory, those that were taken.
        cache_hits: parts of indices and open versions that the process still had.
        pages, pages_skipped: pages of data files that were read, and those in the same columns of the same
            fragments that were not.
    """

    requests: int = 0
    size: int = 0
    cache_hits: int = 0
    pages: int = 0
    pages_skipped: int = 0

    def __sub__(self, other: Reads) -> Reads:
        return Reads(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))


_lock = threading.Lock()
_counts = [0] * len(astuple(Reads()))


def note_reads(
    requests: int = 0, size: int = 0, cache_hits: int = 0, pages: int = 0, pages_skipped: int = 0
) -> None:
    """Add to the numbers of the process."""
    with _lock:
        _counts[0] += requests
        _counts[1] += size
        _counts[2] += cache_hits
        _counts[3] += pages
        _counts[4] += pages_skipped


def reads_so_far() -> Reads:
    """Return the numbers of the process."""
    with _lock:
        return Reads(*_counts)
