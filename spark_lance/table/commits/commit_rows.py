"""Commits of operations that delete rows, with or without new rows that replace them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from google.protobuf.message import Message

from spark_lance.table.commits.commit import SYSTEM_ENV, CommitEnv, commit_operation
from spark_lance.table.commits.discard import delete_on_failure
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.row_changes import Outcome, RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.upkeep import only_logged


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
