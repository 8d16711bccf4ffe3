"""The bytes of one open data file, by (offset, size).

A window of rows is read in two steps: all byte ranges that the columns say they need are fetched in one
coalesced request (`prefetch`), then decoded from memory (`get`). Local files are memory mapped, so there
`get` is a slice and `prefetch` does nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.io.counters import count_read
from spark_lance.io.store import Store

Bytes = npt.NDArray[np.uint8]

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

    @property
    def is_mapped(self) -> bool:
        """Whether the whole file is in memory, so that nothing is fetched."""
        return self._mapped is not None

    @cached_property
    def state(self) -> Hashable | None:
        """The identity of the file and its bytes; None if it would have to be fetched."""
        return None if self._mapped is None else _state(self.path)

    def is_current(self) -> bool:
        """Tell whether a local file is still there, and the same as when `state` was first asked for."""
        return self.state is not None and _state(self.path) == self.state

    @cached_property
    def _bytes(self) -> Bytes:
        assert self._mapped is not None
        return np.frombuffer(self._mapped, dtype=np.uint8)

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
            count_read(size)
            return self._mapped.slice(offset, size)
        cached = self._fetched.get((offset, size))
        if cached is None:
            cached = self._store.read_ranges(self.path, [(offset, size)])[0]
        return cached

    def gather(self, offsets: Ints, sizes: Ints) -> tuple[Bytes, Ints]:
        """Return bytes that have these ranges of the file in them, and where each range starts there.

        Args:
            offsets, sizes: int64, ascending.

        Raises:
            FormatError: a range is not inside the file.
        """
        if len(offsets) and (int(offsets.min()) < 0 or int((offsets + sizes).max()) > self.size):
            raise FormatError(f"a part of a page is not inside the file of {self.size} bytes", self.path)
        if self._mapped is not None:
            count_read(int(sizes.sum()), len(sizes), len(sizes))
            return self._bytes, offsets
        ranges = list(zip(offsets.tolist(), sizes.tolist(), strict=True))
        data = b"".join(self._store.read_ranges(self.path, ranges))
        return np.frombuffer(data, dtype=np.uint8), np.cumsum(sizes) - sizes

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch all the ranges that are not in memory yet, in few requests."""
        if self._mapped is not None:
            return
        missing = [r for r in dict.fromkeys(ranges) if r[1] > 0 and r not in self._fetched]
        if not missing:
            return
        for key, data in zip(missing, self._store.read_ranges(self.path, missing), strict=True):
            self._fetched[key] = data

    def release(self) -> None:
        """Forget what `prefetch` fetched."""
        self._fetched.clear()


def _state(path: str) -> Hashable | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
