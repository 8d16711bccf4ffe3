"""Restore: an older version's content as the newest version.

The older version provides the schema, fragments, indexes, config and metadata. The newest version provides
only the values that must never decrease: the counters of fragment ids, row ids, field ids and identity
columns, and the sticky flags. (Lance table format, restore.)
"""

from __future__ import annotations

from spark_lance.errors import UnsupportedFormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.features import STABLE_ROW_IDS, STICKY, check_writable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import IDENTITY_VALUES
from spark_lance.table.operations.next_version import CommitContext, finish_version, keep_marks, start_version


def restore(
    base: Manifest, operation: transaction_pb2.Transaction.Restore, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the content of `context.restored`.

    Raises:
        UnsupportedFormatError: the restored version has no stable row ids, but `base` has; or it needs a
            feature that this release does not write.
        ValueError: the context does not have the operation's version.
    """
    source = context.restored
    if source is None or source.version != operation.version:
        raise ValueError(f"restoring version {operation.version} needs that version in the context")
    check_writable(source.message, source.path)
    if base.uses_stable_row_ids and not source.uses_stable_row_ids:
        raise UnsupportedFormatError(
            f"version {source.version} has no stable row ids; a table that has them keeps them", base.path
        )
    message = start_version(source, context)
    message.version = context.number_after(base)
    keep_marks(message)
    _keep_counters(message, base.message)
    message.reader_feature_flags |= base.message.reader_feature_flags & (STICKY | STABLE_ROW_IDS)
    return finish_version(message, source.index_section, base.naming, context)


def _keep_counters(message: table_pb2.Manifest, newest: table_pb2.Manifest) -> None:
    """Raise every counter to its value in the newest version."""
    highest = max((fragment.id for fragment in newest.fragments), default=-1)
    if newest.HasField("max_fragment_id"):
        highest = max(highest, newest.max_fragment_id)
    if highest >= 0:
        message.max_fragment_id = max(highest, message.max_fragment_id)
    message.next_row_id = max(message.next_row_id, newest.next_row_id)
    for key, value in newest.config.items():
        if key.startswith(IDENTITY_VALUES):
            message.config[key] = value
    for name in ("max_allocated_field_id", "max_clustering_id"):
        if newest.HasField(name):
            setattr(message, name, max(getattr(message, name), getattr(newest, name)))
