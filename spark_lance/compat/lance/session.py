"""A session as in pylance: the caches that datasets share."""

from __future__ import annotations

import logging

from spark_lance.io.cache import CACHE, VARIABLE

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The caches of this process. All datasets share them, so all sessions are the same.

    Args:
        index_cache_size_bytes, metadata_cache_size_bytes: ignored. The environment variable
            SPARK_LANCE_CACHE_BYTES limits the size of all caches.
    """

    def __init__(
        self,
        index_cache_size_bytes: int | None = None,
        metadata_cache_size_bytes: int | None = None,
        **_: object,
    ) -> None:
        if index_cache_size_bytes is not None or metadata_cache_size_bytes is not None:
            logger.debug("the environment variable %s sets the size of all caches", VARIABLE)

    def size_bytes(self) -> int:
        """Return the bytes of indexes, manifests and other metadata in the caches of the process."""
        return CACHE.num_bytes

    def is_same_as(self, other: Session) -> bool:
        """Return true: all sessions use the same caches."""
        return isinstance(other, Session)

    def __repr__(self) -> str:
        return f"Session(size_bytes={self.size_bytes()})"
