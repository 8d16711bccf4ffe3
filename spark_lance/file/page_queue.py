"""Pages that are encoded in threads and written in the order in which their rows came.

numpy, Arrow and the compressors let other threads run while they work, so columns are encoded in parallel
where cores are free. The output depends on the rows alone, never on which thread is done first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from spark_lance.file.metadata import EncodedPage

__all__ = ["PageQueue"]

# Fewer bytes are encoded sooner than a thread takes them up.
_WORTH_A_THREAD = 128 << 10

Encode = Callable[[], Sequence[EncodedPage]]


class PageQueue:
    """Encodes pages and writes them.

    Args:
        write: takes the pages, in order; called by the thread that calls `put` and `drain`.
        limit: bytes of rows that may be under way.
        threads: how many encode; with one, `put` does all itself.
    """

    def __init__(self, write: Callable[[EncodedPage], None], limit: int, threads: int) -> None:
        self._write = write
        self._limit = limit
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Future[Sequence[EncodedPage]], int]] = deque()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the rows whose pages are not written yet."""
        return self._bytes

    def put(self, encode: Encode, size: int) -> None:
        """Have the pages of some rows encoded, and write what must be to stay within the limit.

        Args:
            encode: makes the pages.
            size: bytes of the rows.

        Raises:
            Exception: what `encode` or `write` raised, for these rows or for some before them.
        """
        if self._threads < 2 or (size < _WORTH_A_THREAD and not self._under_way):
            self._written(encode())
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "spark-lance-encode")
        while self._under_way and self._bytes + size > self._limit:
            self._next()
        self._under_way.append((self._pool.submit(encode), size))
        self._bytes += size

    def drain(self) -> None:
        """Write all that was put in; errors as of `put`."""
        while self._under_way:
            self._next()

    def close(self) -> None:
        """End the threads; pages that are not written are lost."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._under_way.clear()
        self._bytes = 0

    def _next(self) -> None:
        future, size = self._under_way.popleft()
        self._bytes -= size
        self._written(future.result())

    def _written(self, pages: Sequence[EncodedPage]) -> None:
        for page in pages:
            self._write(page)
