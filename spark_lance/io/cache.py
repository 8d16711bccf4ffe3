"""A cache of values that a process has read, bounded by a number of bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from spark_lance.io.counters import count_cache_hit

__all__ = ["CACHE_BYTES", "ByteCache", "held_bytes"]

Value = TypeVar("Value")
_Key = TypeVar("_Key", bound=Hashable)

# Bytes of decoded partitions and pages that a process keeps; the oldest go first.
CACHE_BYTES = int(os.environ.get("SPARK_LANCE_INDEX_CACHE_BYTES", 512 << 20))


_CACHES: WeakSet[ByteCache[Any]] = WeakSet()


def held_bytes() -> int:
    """Return how many bytes all caches of the process hold."""
    return sum(cache.held_bytes for cache in list(_CACHES))


class ByteCache(Generic[Value]):
    """The values used last, up to a number of bytes; may be used by several threads.

    Args:
        limit: bytes.
        counted: whether a value that is at hand has saved a read, which `count_cache_hit` is told of.
    """

    def __init__(self, limit: int, *, counted: bool = True) -> None:
        self._limit = limit
        self._counted = counted
        self._held: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        _CACHES.add(self)

    @property
    def held_bytes(self) -> int:
        """The bytes of the cached values."""
        return self._bytes

    def get(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return the value of a key; `make` creates a missing value, and `size` returns its bytes."""
        return self.get_all([key], lambda _: [make()], size)[0]

    def get_all(
        self,
        keys: Sequence[_Key],
        make: Callable[[list[_Key]], Iterable[Value]],
        size: Callable[[Value], int],
    ) -> list[Value]:
        """Return the values of keys, in their order.

        Args:
            keys: all different.
            make: makes the values of those keys that are not there, all in one call; not called for none.
            size: tells the bytes of a value.
        """
        values: dict[_Key, Value] = {}
        with self._lock:
            for key in keys:
                if key in self._held:
                    self._held.move_to_end(key)
                    values[key] = self._held[key][0]
                    if self._counted:
                        count_cache_hit()
        missing = [key for key in keys if key not in values]
        if missing:
            computed = dict(zip(missing, make(missing), strict=True))
            self._keep({key: (value, size(value)) for key, value in computed.items()})
            values |= computed
        return [values[key] for key in keys]

    def _keep(self, entries: Mapping[_Key, tuple[Value, int]]) -> None:
        with self._lock:
            for key, (value, count) in entries.items():
                if key not in self._held and count <= self._limit:
                    self._held[key] = (value, count)
                    self._bytes += count
            while self._bytes > self._limit:
                self._bytes -= self._held.popitem(last=False)[1][1]
