"""A store in memory that counts its requests, for budgets of requests and of round trips.

    install(monkeypatch)  # memory:// now leads to it
    with counting() as cost:
        dataset("memory://t").count_rows()
    assert cost.requests <= 2 and cost.trips <= 2

It behaves as S3 does: it lists the least names first, tags objects, and maps no files. Every request takes
a few milliseconds, so the times of requests tell which run in parallel and which in sequence.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest

from spark_lance.io import store as store_module
from spark_lance.io.cache import CACHE
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import OutputFile
from spark_lance.io.stored_object import StoredObject

if TYPE_CHECKING:
    import fsspec

__all__ = ["Cost", "FarStore", "counting", "forget", "install"]

Result = TypeVar("Result")

# Longer than a busy machine needs to start the threads of one volley.
SECONDS = 0.015


@dataclass
class Cost:
    """The requests of an operation.

    Attributes:
        log: of each request: what it did, its path, its bytes, and when it began and ended.
    """

    log: list[tuple[str, str, int, float, float]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.log)

    @property
    def bytes(self) -> int:
        """The bytes that were read."""
        return sum(size for doing, _, size, _, _ in self.log if doing == "GET")

    @property
    def trips(self) -> int:
        """The most requests that no two of them overlap: what a user waits for."""
        count, free = 0, 0.0
        for _, _, _, start, end in sorted(self.log, key=lambda request: request[4]):
            if start >= free:
                count, free = count + 1, end
        return count

    def count(self, doing: str, path: str = "") -> int:
        """Return the number of requests of a kind whose paths contain a text."""
        return sum(one == doing and path in place for one, place, *_ in self.log)


_costs: list[Cost] = []
_lock = threading.Lock()


@contextmanager
def counting() -> Iterator[Cost]:
    """Count the requests to far stores."""
    cost = Cost()
    _costs.append(cost)
    try:
        yield cost
    finally:
        _costs.remove(cost)


@dataclass(frozen=True)
class FarStore(MemoryStore):
    """Objects in memory, behind requests that take time."""

    @property
    def lists_tags(self) -> bool:
        return True

    def look_up(self, path: str) -> StoredObject:
        return _request("HEAD", path, lambda: super(FarStore, self).look_up(path))

    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        return _request("LIST", directory, lambda: super(FarStore, self).list_objects(directory, recursive))

    def list_directories(self, directory: str) -> Sequence[str]:
        return _request("LIST", directory, lambda: super(FarStore, self).list_directories(directory))

    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        return _request("LIST", directory, lambda: super(FarStore, self).first_entries(directory, limit))

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        def first() -> list[StoredObject]:
            objects = sorted(super(FarStore, self).list_objects(directory, True), key=lambda each: each.path)
            return [
                StoredObject(each.path, each.size, each.modified, _tag(self.fs, each.path))
                for each in objects[:limit]
            ]

        return _request("LIST", directory, first)

    def put(self, path: str, data: bytes) -> None:
        _request("PUT", path, lambda: super(FarStore, self).put(path, data))

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        _request("PUT", path, lambda: super(FarStore, self).put_if_absent(path, data, sync=sync))

    def copy(self, source: str, target: str) -> None:
        _request("PUT", target, lambda: self.fs.cp_file(source, target))

    def delete(self, path: str, root: str) -> None:
        _request("DELETE", path, lambda: super(FarStore, self).delete(path, root))

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        def delete() -> None:
            for path in paths:
                super(FarStore, self).delete(path, root)

        _request("DELETE", root, delete)

    def create(self, path: str) -> OutputFile:
        return _FarOutput(super().create(path), path)

    def _read(self, fs: fsspec.AbstractFileSystem, path: str) -> bytes:
        return _request("GET", path, lambda: super(FarStore, self)._read(fs, path))

    def _read_range(self, path: str, start: int, end: int) -> bytes:
        return _request("GET", path, lambda: super(FarStore, self)._read_range(path, start, end))


class _FarOutput:
    """Sends an object when it is closed."""

    def __init__(self, inner: OutputFile, path: str) -> None:
        self._inner, self._path = inner, path
        self.write, self.tell, self.abort = inner.write, inner.tell, inner.abort

    def close(self) -> None:
        _request("PUT", self._path, self._inner.close)


def _request(doing: str, path: str, send: Callable[[], Result]) -> Result:
    start = time.monotonic()
    size = 0
    try:
        time.sleep(SECONDS)
        result = send()
        size = len(result) if isinstance(result, bytes) else 0
        return result
    finally:
        with _lock:
            for cost in _costs:
                cost.log.append((doing, path, size, start, time.monotonic()))


def _tag(fs: fsspec.AbstractFileSystem, path: str) -> str:
    return f'"{hashlib.md5(fs.cat_file(path), usedforsecurity=False).hexdigest()}"'


def install(patch: pytest.MonkeyPatch) -> None:
    """Let memory:// lead to far stores."""
    kind = f"{FarStore.__module__}:{FarStore.__name__}"
    patch.setattr(store_module, "STORES", {**store_module.STORES, "memory": kind})


def forget() -> None:
    """Empty the cache of the process, as in a new one."""
    CACHE.clear()
