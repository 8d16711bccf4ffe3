"""Upkeep after a commit: its failures are logged and not raised, because the commit has landed.

A job that sees an error repeats its commit, and then the table has the rows twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def only_logged(failure: str) -> Iterator[None]:
    """Log errors inside the block instead of raising them, because a commit has landed before.

    Args:
        failure: the consequence of a failure, for the log.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 (drivers, listeners and tables of others raise anything)
        logger.warning("%s: %s: %s", failure, type(error).__name__, error)
