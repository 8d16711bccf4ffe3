"""CreateIndex: index entries that come and entries that go; without new ones it drops indices.

An entry that has the uuid of a new or a removed one is replaced or taken out. The files of an index that goes
stay for the versions that name them, until a clean-up. (Lance table format, create index.)
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.mem_wal_marks import with_catchup
from spark_lance.table.operations.next_version import Stamp, finish_version, start_version


def create_index_message(
    new: Iterable[table_pb2.IndexMetadata] = (), removed: Iterable[table_pb2.IndexMetadata] = ()
) -> transaction_pb2.Transaction.CreateIndex:
    """Return the operation that adds index entries and takes others out."""
    return transaction_pb2.Transaction.CreateIndex(new_indices=new, removed_indices=removed)


def create_index(
    base: Manifest, operation: transaction_pb2.Transaction.CreateIndex, stamp: Stamp
) -> Manifest:
    """Return the version after `base` with the operation's index entries.

    Raises:
        FormatError: the index section cannot be decoded.
    """
    try:
        section = table_pb2.IndexSection.FromString(base.index_section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}", path=base.path) from error
    gone = {entry.uuid.uuid for entry in (*operation.new_indices, *operation.removed_indices)}
    others = [entry for entry in section.indices if entry.uuid.uuid not in gone]
    after = table_pb2.IndexSection(indices=[*others, *operation.new_indices])
    message = start_version(base, stamp)
    section_after = after.SerializeToString()
    if operation.new_indices:
        section_after = with_catchup(section_after, message.fragments, message.version, stamp)
    return finish_version(message, section_after, base.naming, stamp)
