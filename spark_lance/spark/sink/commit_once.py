"""The commit of a Spark write, batch or stream: the files of all tasks become one version, once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_lance.errors import AlreadyCommittedError
from spark_lance.index.pruners import index_pruners
from spark_lance.io.store import Store
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.inserts.write_plan import WritePlan, commit_or_discard

__all__ = ["commit_once"]

logger = logging.getLogger(__name__)


def commit_once(
    store: Store,
    root: str,
    plan: WritePlan,
    fragments: Sequence[bytes],
    properties: Mapping[str, str] | None = None,
    once: IdempotentWrite | None = None,
) -> int | None:
    """Commit files that tasks wrote by `plan`, unless the pair `once` has landed before.

    Args:
        store: where the table is.
        root: the table's root path.
        plan: by which the files were written.
        fragments: serialized DataFragment messages of all tasks.
        properties: key-value pairs kept with the transaction.
        once: name of the job and number of this write; None commits in any case.

    Returns:
        The table's version that holds the files; None if the job has committed this number, or a higher one,
        before: then the files were deleted.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted. Repeating the write is safe
            with `once` only.
        CommitError, SchemaError, OSError: nothing was committed; the files were deleted.
    """
    try:
        return commit_or_discard(
            store, root, plan, fragments, properties, once=once, pruner_factory=index_pruners
        ).version
    except AlreadyCommittedError as skipped:
        logger.info("%s", skipped)
        return None
