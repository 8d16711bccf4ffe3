"""CreateIndex: add and remove index entries. Without new entries, it drops indexes.

An entry with the uuid of a new entry is replaced; an entry with the uuid of a removed entry is removed. The
files of a removed index remain for older versions until a clean-up. (Lance table format, create index.)
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.mem_wal_marks import with_catchup
from spark_lance.table.operations.next_version import CommitContext, finish_version, start_version


def create_index_message(
    new: Iterable[table_pb2.IndexMetadata] = (), removed: Iterable[table_pb2.IndexMetadata] = ()
) -> transaction_pb2.Transaction.CreateIndex:
    """Return the operation that adds and removes index entries."""
    return transaction_pb2.Transaction.CreateIndex(new_indices=new, removed_indices=removed)


def create_index(
    base: Manifest, operation: transaction_pb2.Transaction.CreateIndex, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the index entries added and removed.

    Raises:
        FormatError: the index section cannot be decoded.
    """
    try:
        section = table_pb2.IndexSection.FromString(base.index_section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}", path=base.path) from error
    replaced_uuids = {entry.uuid.uuid for entry in (*operation.new_indices, *operation.removed_indices)}
    others = [entry for entry in section.indices if entry.uuid.uuid not in replaced_uuids]
    after = table_pb2.IndexSection(indices=[*others, *operation.new_indices])
    message = start_version(base, context)
    new_section = after.SerializeToString()
    if operation.new_indices:
        new_section = with_catchup(new_section, message.fragments, message.version, context)
    return finish_version(message, new_section, base.naming, context)
