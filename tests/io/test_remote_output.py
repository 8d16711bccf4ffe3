"""Objects that a driver sends in parts have the bytes that were written, or the write fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_lance.errors import StoreError
from spark_lance.io.fsspec_store import RemoteOutput


class Parts:
    """A driver's file whose store has parts twice that were sent twice."""

    def __init__(self, fs: Driver, path: str, part: int | None) -> None:
        self._fs, self._path = fs, path
        if part is not None:
            self.blocksize = part

    def write(self, data: memoryview) -> None:
        self._fs.stored[self._path] = self._fs.stored.get(self._path, 0) + len(data) * self._fs.times

    def close(self) -> None:
        pass


class Driver:
    """A driver that repeats parts, in vain or not."""

    def __init__(self, times: int, part: int | None = 4) -> None:
        self.times, self.part = times, part
        self.stored: dict[str, int] = {}
        self.asked = 0

    def open(self, path: str, mode: str) -> Parts:
        return Parts(self, path, self.part)

    def size(self, path: str) -> int:
        self.asked += 1
        return self.stored[path]


def written(fs: Any, count: int) -> None:
    def guarded(call: Callable[[], Any]) -> Any:
        return call()

    out = RemoteOutput(fs, "b/x", guarded)
    for _ in range(count):
        out.write(b"abcd")
    out.close()


def test_parts_that_are_stored_twice_are_told() -> None:
    with pytest.raises(StoreError, match="b/x has 24 bytes after 12 were sent in parts"):
        written(Driver(2), 3)


@pytest.mark.parametrize(
    ("driver", "count", "asked"), [(Driver(1), 3, 1), (Driver(1), 1, 0), (Driver(1, None), 3, 0)]
)
def test_only_what_was_sent_in_parts_is_looked_at(driver: Driver, count: int, asked: int) -> None:
    written(driver, count)
    assert driver.asked == asked
