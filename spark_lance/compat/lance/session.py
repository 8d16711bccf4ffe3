"""A session as in pylance: the caches that datasets share."""

from __future__ import annotations

import logging

from spark_lance.io.cache import held_bytes
from spark_lance.table.versions.recent import recent_bytes

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The caches of this process, which all its datasets share; every session stands for the same ones.

    Args:
        index_cache_size_bytes, metadata_cache_size_bytes: say nothing; the environment variable
            SPARK_LANCE_INDEX_CACHE_BYTES bounds what is kept of indices.
    """

    def __init__(
        self,
        index_cache_size_bytes: int | None = None,
        metadata_cache_size_bytes: int | None = None,
        **_: object,
    ) -> None:
        if index_cache_size_bytes is not None or metadata_cache_size_bytes is not None:
            logger.debug("the sizes of a session's caches are set by SPARK_LANCE_INDEX_CACHE_BYTES here")

    def size_bytes(self) -> int:
        """Return how many bytes the process keeps of indices and manifests."""
        return held_bytes() + recent_bytes()

    def is_same_as(self, other: Session) -> bool:
        """Whether another session stands for the same caches: it does."""
        return isinstance(other, Session)

    def __repr__(self) -> str:
        return f"Session(size_bytes={self.size_bytes()})"
