"""Commit operations that delete or replace rows, and handle the files of failed commits.

All writers follow one rule for the files of a failed commit:

the commit certainly failed    no version names the files: they are deleted
the outcome is unknown         a version may name the files: they are kept, and a later clean-up decides
any other exception            the same, because it may have been raised after the commit
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from google.protobuf.message import Message

from spark_lance.errors import CommitOutcomeUnknownError, LanceError
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.row_changes import Outcome, RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.upkeep import log_errors

logger = logging.getLogger(__name__)


def proves_failure(error: Exception) -> bool:
    """Whether an error of a commit proves that nothing was committed."""
    return isinstance(error, LanceError) and not isinstance(error, CommitOutcomeUnknownError)


@contextmanager
def delete_on_failure(discard: Callable[[], object], *also: type[Exception]) -> Iterator[None]:
    """Delete the files of a commit if the `with` block proves that the commit failed.

    Args:
        discard: deletes the files. It is called after an error which proves that nothing was committed: every
            LanceError except CommitOutcomeUnknownError, and every OSError. A failure to delete is logged.
        also: additional errors which prove this; `Exception` for work that commits nothing.

    Raises:
        CommitOutcomeUnknownError: raised by the block; nothing was deleted.
        Exception: any other error of the block, unchanged.
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


def commit_row_changes(
    changes: RowChanges,
    message: Callable[[Outcome], Message],
    *,
    properties: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Write deletion files, commit the operation, delete unused deletion files, and return the new version.

    Args:
        changes: the rows to delete, and the version in which they were found.
        message: builds the operation from the changed fragments.
        properties, write_id, env: see `commit_operation`.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        CommitError: other writers conflicted; see its subclasses. The new deletion files were deleted.
        FormatError: an existing deletion file is damaged.
    """
    at = changes.source
    with delete_on_failure(changes.discard):
        committed = commit_operation(
            at.table,
            message(changes.apply()),
            read_version=at.version,
            properties=properties,
            rows=changes,
            write_id=write_id,
            env=env,
        )
    with log_errors(f"version {committed.version} was committed, but unused deletion files stay behind"):
        changes.discard(committed)
    return committed
