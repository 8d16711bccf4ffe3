"""Upload the files of an operation in the background while the operation continues.

    with background_uploads(store):
        upload(output.close)      returns at once
        ...                       prepare the commit
        finish_uploads()          before a manifest names the files

Outside of a block, and on a local disk, `upload` sends the file before it returns. A block belongs to the
thread or task that opened it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

from spark_lance.io.store import Store

# Each pending upload holds its file in memory, or the last part of it.
_MAX_PENDING = 4


class _Uploads:
    """Uploads that are running, oldest first."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._pending: deque[Future[object]] = deque()

    def start(self, send: Callable[[], object]) -> None:
        """Start an upload; if too many are running, wait for the oldest first."""
        if len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(send))

    def finish(self) -> None:
        """Wait for all uploads, then raise the first error, if any."""
        errors = [error for error in map(Future.exception, self._pending) if error is not None]
        self._pending.clear()
        if errors:
            raise errors[0]

    def settle(self) -> None:
        """Wait for all uploads and ignore their errors."""
        for each in self._pending:
            each.exception()
        self._pending.clear()


_current: ContextVar[_Uploads | None] = ContextVar("background_uploads", default=None)


@contextmanager
def background_uploads(store: Store) -> Iterator[None]:
    """Let `upload` return before files are stored. At the end of the block all uploads have ended.

    Blocks can be nested: an inner block uses the outer one. For a local store the block has no effect.

    Raises:
        Exception: an upload failed, and `finish_uploads` was not called after it.
    """
    if store.is_local or _current.get() is not None:
        yield
        return
    with ThreadPoolExecutor(_MAX_PENDING, "spark-lance-upload") as pool:
        uploads = _Uploads(pool)
        token = _current.set(uploads)
        try:
            yield
            uploads.finish()
        finally:
            _current.reset(token)
            uploads.settle()


def upload(send: Callable[[], object]) -> None:
    """Send a file, in the background inside a block of `background_uploads`.

    Raises:
        Exception: this upload failed, or in a block an earlier one.
    """
    uploads = _current.get()
    if uploads is None:
        send()
    else:
        uploads.start(send)


def finish_uploads() -> None:
    """Wait for the uploads of this thread or task, and raise the first error, if any."""
    uploads = _current.get()
    if uploads is not None:
        uploads.finish()


def settle_uploads() -> None:
    """Wait for the uploads of this thread or task and ignore their errors, before their files are deleted."""
    uploads = _current.get()
    if uploads is not None:
        uploads.settle()
