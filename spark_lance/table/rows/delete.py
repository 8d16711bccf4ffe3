"""Delete rows: find them, write deletion files, commit; start over if another writer was in the way."""

from __future__ import annotations

from spark_lance.expressions.predicate import Condition
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.retry_operation import CONFLICT_RETRIES, retry_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.reading.scan_task import Filter
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.find_rows import find_rows


def delete_rows(
    snapshot: Snapshot,
    predicate: Filter,
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

    text = predicate.text if isinstance(predicate, Condition) else str(predicate)

    def attempt(base: Snapshot) -> Manifest:
        return commit_row_changes(
            find_rows(base, predicate),
            lambda outcome: delete_message(outcome.updated, outcome.removed, text),
            env=env,
        )

    return retry_operation(snapshot, attempt, reruns, env)
