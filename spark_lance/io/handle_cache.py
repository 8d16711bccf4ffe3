"""A pool of open files: few of them, and for a short time.

Opening a file and reading its first bytes takes longer than a look-up in it. The pool lends each file to one
user at a time. An open file occupies a descriptor, and disk space after others have deleted it: hence the
limits. Before this process deletes files, it closes those in the pool.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Opened = TypeVar("Opened")

# A mapped file occupies a descriptor, and a process usually has 1024 of them.
_MOST = 32
_SECONDS = 60.0

_ALL: list[HandleCache] = []  # type: ignore[type-arg]


class HandleCache(Generic[Opened]):
    """Files that are open and not in use, the newest last. Several threads may use it."""

    def __init__(self, most: int = _MOST, seconds: float = _SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self._held: OrderedDict[Hashable, tuple[Opened, float]] = OrderedDict()
        self._lock = threading.Lock()
        _ALL.append(self)

    def take(self, key: Hashable) -> Opened | None:
        """Take the open file of a key out of the pool and return it; None if there is none."""
        with self._lock:
            self._drop_old()
            entry = self._held.pop(key, None)
        return None if entry is None else entry[0]

    def give(self, key: Hashable, opened: Opened) -> None:
        """Return a file that is no longer in use to the pool; it replaces the one with the same key."""
        with self._lock:
            self._held.pop(key, None)
            self._held[key] = opened, time.monotonic()
            self._drop_old()

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._held.clear()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - self._seconds
        while self._held and (len(self._held) > self._most or next(iter(self._held.values()))[1] < oldest):
            self._held.popitem(last=False)


def evict_all() -> None:
    """Keep no file open that is not in use."""
    for files in _ALL:
        files.clear()
