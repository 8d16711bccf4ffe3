"""The process-wide cache of index parts, manifests and file metadata, with one budget in bytes.

Each kind of value has its own section. All sections share the budget: the least recently used value is
dropped first, whatever its section. `SPARK_LANCE_CACHE_BYTES` sets the budget of a process. A forked
process, such as a Spark worker, starts with its parent's values and has its own budget.
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
# Approximate memory of an entry without its value.
_ENTRY_BYTES = 256


class Cache:
    """A thread-safe LRU cache with sections and a budget in bytes.

    Args:
        budget: total bytes of all sections; None reads `SPARK_LANCE_CACHE_BYTES`, 512 MB by default.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._sections: list[CacheSection[Any]] = []
        self._clock = itertools.count()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def budget(self) -> int:
        """The maximum total bytes of all sections.

        Raises:
            OptionError: the environment variable is not a number of bytes.
        """
        if self._budget is None:
            self._budget = _read_environment_budget()
        return self._budget

    @property
    def num_bytes(self) -> int:
        """The current total bytes of all values."""
        return self._bytes

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each section, by section name."""
        with self._lock:
            return {section.name: section.num_bytes for section in self._sections}

    def resize(self, budget: int) -> None:
        """Change the budget and drop the values that exceed it."""
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
            non_empty = (section for section in self._sections if section._entries)
            min(non_empty, key=lambda section: section._last_use)._drop_oldest()


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
        share: fraction of the budget that this section may fill. Metadata that every scan reads should not
            evict index parts.
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

    @property
    def max_value_bytes(self) -> int:
        """The size of the largest value that this section caches; negative if it caches none."""
        return int(self._cache.budget * self._share) - _ENTRY_BYTES

    def find(self, key: Hashable) -> Value | None:
        """Return the value of a key; None if it is not cached."""
        with self._cache._lock:
            entry = self._use(key)
        return None if entry is None else entry.value

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Cache a value of `size` bytes and replace any value with the same key."""
        with self._cache._lock:
            self._drop(key)
        self._insert({key: (value, size)})

    def get(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return the value of a key. `make` creates a missing value; `size` returns its size in bytes."""
        return self.get_all([key], lambda _: [make()], size)[0]

    def get_all(
        self,
        keys: Sequence[_Key],
        make: Callable[[list[_Key]], Iterable[Value]],
        size: Callable[[Value], int],
    ) -> list[Value]:
        """Return the values of several keys, in the order of the keys.

        Args:
            keys: distinct keys.
            make: creates the values of missing keys, all in one call; not called if none is missing.
            size: returns the size of a value in bytes.
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
            new_values = dict(zip(missing, make(missing), strict=True))
            self._insert({key: (value, size(value)) for key, value in new_values.items()})
            values |= new_values
        return [values[key] for key in keys]

    def _use(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            entry.last_use = next(self._cache._clock)
        return entry

    def _insert(self, entries: Mapping[Any, tuple[Value, int]]) -> None:
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
        """The last use of the least recently used value. The section must not be empty."""
        return next(iter(self._entries.values())).last_use

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
            self._cache._bytes -= entry.size


def _read_environment_budget() -> int:
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
