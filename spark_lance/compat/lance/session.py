"""A session as in pylance: the caches that datasets share."""

from __future__ import annotations

import logging

from spark_lance.io.cache import CACHE, VARIABLE

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The caches of this process, which all its datasets share; every session stands for the same ones.

    Args:
        index_cache_size_bytes, metadata_cache_size_bytes: say nothing; the environment variable
            SPARK_LANCE_CACHE_BYTES bounds them all.
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
        """Return the bytes of indices, manifests and other metadata that the process caches."""
        return CACHE.num_bytes

    def is_same_as(self, other: Session) -> bool:
        """Whether another session stands for the same caches: it does."""
        return isinstance(other, Session)

    def __repr__(self) -> str:
        return f"Session(size_bytes={self.size_bytes()})"
