"""The cache of the process: parts of indices, manifests and metadata of files, with one budget of bytes.

Each kind of value is a section of its own. All sections share the budget: the value that was used least
recently is dropped first, whatever its section. `SPARK_LANCE_CACHE_BYTES` sets the budget of a process. A
forked process, such as a worker of Spark, starts with the values of its parent and has a budget of its own.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from spark_lance.errors import OptionError
from spark_lance.io.counters import count_cache_hit

Value = TypeVar("Value")
_Key = TypeVar("_Key", bound=Hashable)

# The environment variable with the budget in bytes; 0 caches nothing.
VARIABLE = "SPARK_LANCE_CACHE_BYTES"
_DEFAULT_BYTES = 512 << 20
# About the memory of an entry without its value.
_ENTRY_BYTES = 256


class Cache:
    """Values that fit into a number of bytes, in sections. Several threads may use it.

    Args:
        budget: bytes of all sections together; None for the value of `SPARK_LANCE_CACHE_BYTES`, 512 MB by
            default.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._sections: list[CacheSection[Any]] = []
        self._clock = itertools.count()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def budget(self) -> int:
        """The most bytes that the sections hold together.

        Raises:
            OptionError: the environment variable is no number of bytes.
        """
        if self._budget is None:
            self._budget = _budget_of_environment()
        return self._budget

    @property
    def num_bytes(self) -> int:
        """The bytes of all values."""
        return self._bytes

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each section, by its name."""
        with self._lock:
            return {section.name: section.num_bytes for section in self._sections}

    def resize(self, budget: int) -> None:
        """Change the budget; values beyond it are dropped."""
        with self._lock:
            self._budget = budget
            self._evict()

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            for section in self._sections:
                while section._entries:
                    section._drop_oldest()

    def _evict(self) -> None:
        while self._bytes > self.budget:
            filled = (section for section in self._sections if section._entries)
            min(filled, key=lambda section: section._last_use)._drop_oldest()


class _Entry:
    """A value, its bytes, and the time of its last use."""

    __slots__ = ("last_use", "size", "value")

    def __init__(self, value: Any, size: int, last_use: int) -> None:
        self.value, self.size, self.last_use = value, size, last_use


class CacheSection(Generic[Value]):
    """The values of one kind in a cache.

    Args:
        name: the kind, as `Cache.sizes` reports it.
        cache: the cache.
        share: the part of the budget that this section may fill. Metadata that every scan reads should not
            replace the parts of indices.
        counted: whether a hit saves a read; `count_cache_hit` counts such hits.
    """

    def __init__(self, name: str, cache: Cache, *, share: float = 1.0, counted: bool = True) -> None:
        self.name, self._cache = name, cache
        self._share, self._counted = share, counted
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._bytes = 0
        cache._sections.append(self)

    @property
    def num_bytes(self) -> int:
        """The bytes of the values of this section."""
        return self._bytes

    def find(self, key: Hashable) -> Value | None:
        """Return the value of a key, None if it is not cached."""
        with self._cache._lock:
            entry = self._use(key)
        return None if entry is None else entry.value

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Cache a value of some bytes; it replaces the one with the same key."""
        with self._cache._lock:
            self._drop(key)
        self._keep({key: (value, size)})

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
            make: creates the values of missing keys, all in one call; not called if none is missing.
            size: returns the bytes of a value.
        """
        values: dict[_Key, Value] = {}
        with self._cache._lock:
            for key in keys:
                entry = self._use(key)
                if entry is not None:
                    values[key] = entry.value
                    if self._counted:
                        count_cache_hit()
        missing = [key for key in keys if key not in values]
        if missing:
            computed = dict(zip(missing, make(missing), strict=True))
            self._keep({key: (value, size(value)) for key, value in computed.items()})
            values |= computed
        return [values[key] for key in keys]

    def _use(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            entry.last_use = next(self._cache._clock)
        return entry

    def _keep(self, entries: Mapping[Any, tuple[Value, int]]) -> None:
        cache = self._cache
        limit = int(cache.budget * self._share)
        with cache._lock:
            for key, (value, size) in entries.items():
                cost = size + _ENTRY_BYTES
                if key not in self._entries and cost <= limit:
                    self._entries[key] = _Entry(value, cost, next(cache._clock))
                    self._bytes += cost
                    cache._bytes += cost
            while self._bytes > limit:
                self._drop_oldest()
            cache._evict()

    @property
    def _last_use(self) -> int:
        """When the oldest value was used last; the section has values."""
        return next(iter(self._entries.values())).last_use

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
            self._cache._bytes -= entry.size


def _budget_of_environment() -> int:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return _DEFAULT_BYTES
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{VARIABLE} is {text!r}, but must be a number of bytes, such as {_DEFAULT_BYTES}")
    return int(text)


CACHE = Cache()

# Another thread may use the cache while a process is forked: the copy must not start with a locked cache.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CACHE._lock.acquire,
        after_in_parent=CACHE._lock.release,
        after_in_child=CACHE._lock.release,
    )
