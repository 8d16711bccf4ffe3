"""Commits of operations that delete or replace rows, and the fate of files whose commit failed.

All writers follow one rule for the files of a commit that failed:

the commit is known to have failed    nothing names the files: they are deleted
nobody knows whether it failed        a version may name them: they stay, and a clean-up judges later
any other exception                   the same, for it may come from anywhere, after the commit too
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
from spark_lance.table.format.upkeep import only_logged

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


def commit_row_changes(
    changes: RowChanges,
    message: Callable[[Outcome], Message],
    *,
    properties: Mapping[str, str] | None = None,
    once: IdempotentWrite | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Write the deletion files of rows, commit the operation with them, and delete those it does not need.

    Args:
        changes: the rows, and the version in which they were found.
        message: makes the operation of what becomes of the fragments.
        properties, once, env: see `commit_operation`.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        CommitError: other writers were in the way; see its subclasses. The deletion files are gone.
        FormatError: a present deletion file is damaged.
    """
    at = changes.source
    with delete_on_failure(changes.discard):
        committed = commit_operation(
            at.table,
            message(changes.apply()),
            read_version=at.version,
            properties=properties,
            rows=changes,
            once=once,
            env=env,
        )
    with only_logged(f"version {committed.version} was committed, but unused deletion files stay behind"):
        changes.discard(committed)
    return committed
