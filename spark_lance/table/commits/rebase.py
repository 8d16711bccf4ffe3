"""Fitting an operation onto versions that it was not computed from.

Most operations are simply applied to the newest version. These few name things that others may have changed
meanwhile without being in the way:

    delete, update    fragments with deletion files: rows that others deleted in them stay deleted
    create_index      what an index covers: not the fragments whose indexed columns were rewritten in place
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.index_upkeep import remove_fragments_from_bitmaps

__all__ = ["REBASES", "Rebase", "RebaseContext"]

pb = transaction_pb2.Transaction


@dataclass(frozen=True)
class RebaseContext:
    """The target of a rebase.

    Attributes:
        latest: the newest version.
        theirs: the operations since the last check that require it, oldest first.
        rows: the rows that ours deletes, if its transaction contains them.
    """

    latest: Manifest
    theirs: Sequence[Message]
    rows: RowChanges | None


Rebase = Callable[[Any, RebaseContext], Message]


def _delete(operation: pb.Delete, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    fitted = pb.Delete(predicate=operation.predicate)
    fitted.updated_fragments.extend(outcome.updated)
    fitted.deleted_fragment_ids.extend(outcome.removed)
    return fitted


def _update(operation: pb.Update, context: RebaseContext) -> Message:
    assert context.rows is not None  # without them, rows that others deleted are a conflict
    outcome = context.rows.apply(context.latest)
    fitted = pb.Update()
    fitted.CopyFrom(operation)
    fitted.ClearField("updated_fragments")
    fitted.ClearField("removed_fragment_ids")
    fitted.updated_fragments.extend(outcome.updated)
    fitted.removed_fragment_ids.extend(outcome.removed)
    return fitted


def _create_index(operation: pb.CreateIndex, context: RebaseContext) -> Message:
    section = table_pb2.IndexSection(indices=operation.new_indices).SerializeToString()
    for update in context.theirs:
        if isinstance(update, pb.Update):
            rewritten = [fragment.id for fragment in update.updated_fragments]
            section = remove_fragments_from_bitmaps(section, rewritten, update.fields_modified)
    fitted = pb.CreateIndex(removed_indices=operation.removed_indices)
    fitted.new_indices.extend(table_pb2.IndexSection.FromString(section).indices)
    return fitted


# Operation -> what makes it fit; all others fit as they are.
REBASES: Mapping[str, Rebase] = MappingProxyType(
    {"delete": _delete, "update": _update, "create_index": _create_index}
)
