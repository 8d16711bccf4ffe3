"""Delete: fragments with new deletion files in place of the old ones, and fragments that go altogether.

The updated fragments replace those of the same id as a whole. Indices keep covering their fragments, for
readers of an index mask the rows that the deletion files name; a segment whose last fragment goes, goes too.
(Lance table format, delete.)
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.manifest import Manifest
from spark_lance.table.operations.index_upkeep import keep_relevant
from spark_lance.table.operations.next_version import Stamp, finish_version, keep_marks, start_version

__all__ = ["delete", "delete_message"]


def delete_message(
    updated: Iterable[table_pb2.DataFragment], removed: Iterable[int], predicate: str
) -> transaction_pb2.Transaction.Delete:
    """Return the operation that deletes rows.

    Args:
        updated: fragments with their new deletion files, complete in all other fields too.
        removed: ids of the fragments that lose their last row.
        predicate: what was asked for, as text for readers of the history.
    """
    return transaction_pb2.Transaction.Delete(
        updated_fragments=updated, deleted_fragment_ids=removed, predicate=predicate
    )


def delete(base: Manifest, operation: transaction_pb2.Transaction.Delete, stamp: Stamp) -> Manifest:
    """Return the version after `base` without the operation's rows.

    Raises:
        FormatError: the operation names a fragment that `base` does not have, or index entries are damaged.
    """
    message = start_version(base, stamp)
    keep_marks(message)
    removed = set(operation.deleted_fragment_ids)
    updated = {fragment.id: fragment for fragment in operation.updated_fragments}
    if missing := (removed | updated.keys()) - {fragment.id for fragment in base.fragments}:
        raise FormatError(f"a delete names fragments that do not exist: {sorted(missing)}")
    message.ClearField("fragments")
    message.fragments.extend(
        updated.get(fragment.id, fragment) for fragment in base.fragments if fragment.id not in removed
    )
    return finish_version(message, keep_relevant(base.index_section, message), base.naming, stamp)
