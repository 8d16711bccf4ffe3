"""Which pages of the columns of a fragment have been read, and which a read would look at.

A page holds the values of consecutive rows of one column, or of a field inside it. One that is read in
part is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.counters import count_pages

__all__ = ["PAGE_STARTS", "PageMarks", "PageStarts", "pages_of_rows", "pages_of_runs"]

Rows = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PageStarts:
    """The pages of some fields of a fragment, from the footers.

    Attributes:
        num_rows: rows of the fragment.
        columns: for each stored column the first row of each page.
        is_legacy: whether pages of the fragment may have statistics of their values.
    """

    num_rows: int
    columns: tuple[Rows, ...]
    is_legacy: bool

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, about."""
        return sum(_ARRAY_BYTES + starts.nbytes for starts in self.columns)


_ARRAY_BYTES = 112
# Those of fragments that plans have told of before.
PAGE_STARTS: CacheSection[PageStarts] = CacheSection("page starts", CACHE, share=1 / 32, counted=False)


def pages_of_rows(starts: Rows, rows: Rows) -> Marks:
    """Return which pages hold some rows.

    Args:
        starts: the first row of each page, ascending.
        rows: numbers of rows, ascending.
    """
    if len(starts) == 1:
        return np.array([len(rows) > 0])
    ends = np.searchsorted(rows, np.append(starts, np.iinfo(np.int64).max)[1:])
    marks: Marks = np.diff(ends, prepend=0) > 0
    return marks


def pages_of_runs(starts: Rows, runs: Iterable[tuple[int, int]]) -> Marks:
    """Return which pages hold rows of some runs [start, stop)."""
    marks = np.zeros(len(starts), np.bool_)
    for start, stop in runs:
        if start < stop:
            first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
            marks[first : int(np.searchsorted(starts, stop))] = True
    return marks


class PageMarks:
    """Records the pages of one field that have been read, and reports them to `count_pages`.

    Pages that have not been read count as skipped.

    Args:
        columns: for each of the field's columns the first row of each page.
    """

    def __init__(self, columns: Sequence[Rows]) -> None:
        self._columns = columns
        self.begin()

    def begin(self) -> None:
        """Start over: no page has been read."""
        self._seen: list[Marks] | None = None
        self._left = sum(map(len, self._columns))
        count_pages(0, self._left)

    def read_run(self, start: int, stop: int) -> None:
        """Take note of a read of rows [start, stop)."""
        if self._left:
            self._add([pages_of_runs(starts, [(start, stop)]) for starts in self._columns])

    def read_rows(self, rows: Rows) -> None:
        """Take note of a read of rows by ascending number."""
        if self._left == len(self._columns) and len(rows) and self._seen is None:
            # One page for each column.
            count_pages(self._left, -self._left)
            self._left = 0
        elif self._left:
            self._add([pages_of_rows(starts, rows) for starts in self._columns])

    def _add(self, read: Sequence[Marks]) -> None:
        new = 0
        if self._seen is None:
            self._seen = [np.zeros(len(starts), np.bool_) for starts in self._columns]
        for seen, here in zip(self._seen, read, strict=True):
            new += int(np.count_nonzero(here & ~seen))
            seen |= here
        self._left -= new
        count_pages(new, -new)
