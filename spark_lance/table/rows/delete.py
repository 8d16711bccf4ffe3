"""Deleting rows: find them, write deletion files, commit; begin anew where another writer was in the way."""

from __future__ import annotations

from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit import SYSTEM_ENV, CommitEnv, commit_operation
from spark_lance.table.commits.discard import discarding
from spark_lance.table.commits.retry_operation import CONFLICT_RETRIES, retry_operation
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.manifest import Manifest
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.predicates.predicate import Predicate
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.find_rows import find_rows

__all__ = ["delete_rows"]


def delete_rows(
    snapshot: Snapshot,
    predicate: Predicate,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Delete the rows for which a predicate is true and return the version without them.

    A version is committed even if no row matches. Rows are looked for in `snapshot`; where another writer
    changed the same rows or moved them meanwhile, they are looked for again in the newest version.

    Raises:
        ExpressionError: the predicate does not fit the table.
        RetryableConflictError: other writers were in the way each time.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that is not written here.
    """

    def attempt(base: Snapshot) -> Manifest:
        changes = find_rows(base, predicate)
        return _commit(changes, str(predicate), env)

    return retry_operation(snapshot, attempt, reruns, env)


def _commit(changes: RowChanges, predicate: str, env: CommitEnv) -> Manifest:
    with discarding(lambda: changes.discard()):
        outcome = changes.apply()
        operation = delete_message(outcome.updated, outcome.removed, predicate)
        committed = commit_operation(
            changes.source.store,
            changes.source.root,
            operation,
            read_version=changes.source.version,
            rows=changes,
            env=env,
        )
    changes.discard(committed)
    return committed
