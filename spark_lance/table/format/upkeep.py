"""Log failures of maintenance after a commit instead of raising them, because the commit has succeeded.

A job that sees an error repeats its commit, and the table would then have the rows twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def log_errors(failure: str) -> Iterator[None]:
    """Log errors of the `with` block instead of raising them, because the commit has succeeded.

    Args:
        failure: the consequence of a failure, for the log.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 (drivers, listeners and foreign tables raise anything)
        logger.warning("%s: %s: %s", failure, type(error).__name__, error)
