"""The bytes of one open data file, by (offset, size).

A window of rows is read in two steps: all byte ranges that the columns say they need are fetched in one
coalesced request (`prefetch`), then decoded from memory (`get`). Local files are memory mapped, so there
`get` is a slice and `prefetch` does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.io.store import Store

__all__ = ["PageSource"]

_EMPTY = pa.py_buffer(b"")


class PageSource:
    """Reads byte ranges of the object at `path`, which is `size` bytes long."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._store = store
        self._mapped = store.map(path)
        self._fetched: dict[tuple[int, int], pa.Buffer] = {}
        if self._mapped is not None and self._mapped.size < size:
            raise FormatError(f"the file has {self._mapped.size} bytes where {size} were expected", path=path)

    def get(self, offset: int, size: int) -> pa.Buffer:
        """Return `size` bytes from `offset`, without a copy where possible.

        Raises:
            FormatError: the range is not inside the file.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise FormatError(
                f"{size} bytes at {offset} are not inside the file of {self.size} bytes", self.path
            )
        if size == 0:
            return _EMPTY
        if self._mapped is not None:
            return self._mapped.slice(offset, size)
        known = self._fetched.get((offset, size))
        if known is None:
            known = self._store.read_ranges(self.path, [(offset, size)])[0]
        return known

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch all the ranges that are not in memory yet, in few requests."""
        if self._mapped is not None:
            return
        wanted = [r for r in dict.fromkeys(ranges) if r[1] > 0 and r not in self._fetched]
        for key, data in zip(wanted, self._store.read_ranges(self.path, wanted), strict=True):
            self._fetched[key] = data

    def release(self) -> None:
        """Forget what `prefetch` fetched."""
        self._fetched.clear()
