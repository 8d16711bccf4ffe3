"""Delete: fragments get new deletion files, or are removed as a whole.

Each updated fragment replaces the fragment with the same id. Indexes still cover their fragments, because
readers of an index mask deleted rows. A segment is removed with its last fragment. (Lance table
format, delete.)
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.index_upkeep import keep_relevant
from spark_lance.table.operations.next_version import (
    CommitContext,
    change_fragments,
    finish_version,
    keep_marks,
    start_version,
)


def delete_message(
    updated: Iterable[table_pb2.DataFragment], removed: Iterable[int], predicate: str
) -> transaction_pb2.Transaction.Delete:
    """Return the operation that deletes rows.

    Args:
        updated: complete fragments with their new deletion files.
        removed: ids of the fragments that lose their last row.
        predicate: the condition of the delete as text, for the history.
    """
    return transaction_pb2.Transaction.Delete(
        updated_fragments=updated, deleted_fragment_ids=removed, predicate=predicate
    )


def delete(base: Manifest, operation: transaction_pb2.Transaction.Delete, context: CommitContext) -> Manifest:
    """Return the version after `base` without the deleted rows.

    Raises:
        FormatError: the operation names a fragment that `base` does not have, or index entries are damaged.
    """
    message = start_version(base, context)
    keep_marks(message)
    change_fragments(message, operation.updated_fragments, operation.deleted_fragment_ids, "a delete")
    return finish_version(message, keep_relevant(base.index_section, message), base.naming, context)
