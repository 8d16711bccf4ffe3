"""Reads the bytes of one open data file by (offset, size).

Rows are read in two steps: all byte ranges that the columns need are fetched in few requests (`prefetch`,
`prefetch_in_steps`), then decoded from memory (`get`). Local files are memory-mapped: `get` returns a slice,
and nothing is fetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.counters import count_read
from spark_lance.io.ranges import plan_requests
from spark_lance.io.store import Store

Bytes = npt.NDArray[np.uint8]
# The (offset, size) byte ranges that a read needs, step by step: the ranges of one step are in memory before
# the next step is computed.
Plan: TypeAlias = Iterator[Sequence[tuple[int, int]]]

_EMPTY = pa.py_buffer(b"")
# The ends of immutable files that were opened earlier.
_TAILS: CacheSection[pa.Buffer] = CacheSection("file tails", CACHE, share=1 / 16, counted=False)


class PageSource:
    """Reads byte ranges of the object at `path`, which is `size` bytes long.

    Args:
        store, path, size: the object.
        immutable: whether the content of this path never changes, as for a table's files, which have unique
            names. Then the process caches the end of the file.
    """

    def __init__(self, store: Store, path: str, size: int, immutable: bool = False) -> None:
        self.path = path
        self.size = size
        self._immutable = immutable
        self._store = store
        self._mapped = store.map(path)
        # Ascending start offsets of the fetched blocks, and the blocks, which do not overlap. Threads may
        # share the source, so both lists are replaced together and never changed.
        self._fetched: tuple[list[int], list[pa.Buffer]] = [], []
        self._tail: tuple[int, pa.Buffer] | None = None
        if self._mapped is not None and self._mapped.size < size:
            raise FormatError(f"the file has {self._mapped.size} bytes where {size} were expected", path=path)

    @property
    def is_mapped(self) -> bool:
        """Whether the whole file is in memory, so that nothing is fetched."""
        return self._mapped is not None

    @cached_property
    def state(self) -> Hashable | None:
        """The identity of the file and its content; None if determining it needs a request."""
        return None if self._mapped is None else _file_state(self.path)

    def is_current(self) -> bool:
        """Return whether a local file still exists and has not changed since `state` was first read."""
        return self.state is not None and _file_state(self.path) == self.state

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
        block = self._block(offset, size)
        if block is None:
            return self._store.read_ranges(self.path, [(offset, size)])[0]
        return block[1].slice(offset - block[0], size)

    def tail(self, size: int) -> pa.Buffer:
        """Return the last `size` bytes of the file. For an object on a store they stay in memory.

        Raises:
            FormatError: the file is shorter.
        """
        start = self.size - size
        if self._mapped is not None or start < 0 or size == 0:
            return self.get(start, size)
        key = self._store.cache_key(self.path), self.size
        cached = None if self._tail is None else self._tail[1]
        if cached is None and self._immutable:
            cached = _TAILS.find(key)
        if cached is None or cached.size < size:
            front = self._store.read_ranges(self.path, [(start, size - (cached.size if cached else 0))])[0]
            cached = front if cached is None else pa.py_buffer(b"".join([front, cached]))
            if self._immutable:
                _TAILS.put(key, cached, cached.size)
        self._tail = self.size - cached.size, cached
        return cached.slice(cached.size - size)

    def gather(self, offsets: Ints, sizes: Ints) -> tuple[Bytes, Ints]:
        """Return bytes that contain these ranges of the file, and the start of each range in them.

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
        if not len(offsets):
            return np.empty(0, np.uint8), offsets
        first, stop = int(offsets[0]), int(offsets[-1] + sizes[-1])
        block = self._block(first, stop - first)
        if block is not None:
            return np.frombuffer(block[1], dtype=np.uint8), offsets - block[0]
        pieces = [self.get(*each) for each in zip(offsets.tolist(), sizes.tolist(), strict=True)]
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), np.cumsum(sizes) - sizes

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch all ranges that are not in memory yet, in few requests."""
        if self._mapped is not None:
            return
        missing = [r for r in dict.fromkeys(ranges) if r[1] > 0 and self._block(*r) is None]
        if not missing:
            return
        requests = [(request.offset, request.size) for request in plan_requests(missing)]
        fetched = zip(requests, self._store.read_ranges(self.path, requests), strict=True)
        blocks = {start: data for (start, _), data in fetched}
        for start, data in zip(*self._fetched, strict=True):
            blocks[start] = max(data, blocks.get(start, data), key=lambda block: block.size)
        starts = sorted(blocks)
        self._fetched = starts, [blocks[start] for start in starts]

    def prefetch_in_steps(self, plans: Iterable[Plan]) -> None:
        """Fetch the ranges of several plans, all ranges of a step together."""
        for ranges in () if self._mapped is not None else merge_plans(plans):
            self.prefetch(ranges)

    def release(self) -> None:
        """Release the fetched blocks."""
        self._fetched = [], []

    def _block(self, offset: int, size: int) -> tuple[int, pa.Buffer] | None:
        """Return the block in memory that contains a range, and its start in the file."""
        if self._tail is not None and offset >= self._tail[0]:
            return self._tail
        starts, blocks = self._fetched
        at = bisect_right(starts, offset) - 1
        if at < 0 or offset + size > starts[at] + blocks[at].size:
            return None
        return starts[at], blocks[at]


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Merge several plans: each step has the ranges of one step of every plan."""
    under_way = list(plans)
    while under_way:
        steps = [(plan, next(plan, None)) for plan in under_way]
        under_way = [plan for plan, ranges in steps if ranges is not None]
        yield [byte_range for _, ranges in steps for byte_range in ranges or ()]


def _file_state(path: str) -> Hashable | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
