"""A small pool of open files, each kept for a short time.

Opening a file and reading its metadata takes longer than a look-up in it. The pool hands each file to one
user at a time. An open file occupies a descriptor, and its disk space even after someone deletes it: hence
the limits. Before this process deletes files, it closes the files in the pool.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Handle = TypeVar("Handle")

# A mapped file occupies a descriptor, and a process usually has 1024 of them.
_MAX_FILES = 32
_SECONDS = 60.0

_POOLS: list[HandleCache] = []  # type: ignore[type-arg]


class HandleCache(Generic[Handle]):
    """A thread-safe pool of open files that are not in use, the newest last."""

    def __init__(self, most: int = _MAX_FILES, seconds: float = _SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self._files: OrderedDict[Hashable, tuple[Handle, float]] = OrderedDict()
        self._lock = threading.Lock()
        _POOLS.append(self)

    def take(self, key: Hashable) -> Handle | None:
        """Remove the open file of a key from the pool and return it; None if the pool has none."""
        with self._lock:
            self._drop_old()
            entry = self._files.pop(key, None)
        return None if entry is None else entry[0]

    def give(self, key: Hashable, handle: Handle) -> None:
        """Put a file that is no longer in use into the pool and replace any file with the same key."""
        with self._lock:
            self._files.pop(key, None)
            self._files[key] = handle, time.monotonic()
            self._drop_old()

    def clear(self) -> None:
        """Drop all files."""
        with self._lock:
            self._files.clear()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - self._seconds
        while self._files and (len(self._files) > self._most or next(iter(self._files.values()))[1] < oldest):
            self._files.popitem(last=False)


def evict_all() -> None:
    """Close all files that are not in use, in every pool."""
    for files in _POOLS:
        files.clear()
