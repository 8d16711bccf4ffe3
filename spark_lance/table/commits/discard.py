"""The rule of all writers for the files of a commit that failed.

the commit is known to have failed    nothing names the files: they are deleted
nobody knows whether it failed        a version may name them: they stay, and a clean-up judges later
any other exception                   the same, for it may come from anywhere, after the commit too
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_lance.errors import CommitOutcomeUnknownError, LanceError

logger = logging.getLogger(__name__)


@contextmanager
def delete_on_failure(discard: Callable[[], object], *also: type[Exception]) -> Iterator[None]:
    """Discard the files of a commit if the commit, inside the block, certainly fails.

    Args:
        discard: deletes the files; called after an error which proves that nothing was committed: every
            LanceError except CommitOutcomeUnknownError, and every OSError. Files that it cannot delete are
            logged and stay.
        also: further errors which prove this here; `Exception` for work that commits nothing.

    Raises:
        CommitOutcomeUnknownError: unchanged; nothing was discarded.
        Exception: every other error of the block, unchanged.
    """
    certain: tuple[type[Exception], ...] = (LanceError, OSError, *also)
    try:
        yield
    except CommitOutcomeUnknownError:
        raise
    except certain:
        try:
            discard()
        except (LanceError, OSError) as error:
            logger.warning("files of a failed commit stay behind: %s", error)
        raise
