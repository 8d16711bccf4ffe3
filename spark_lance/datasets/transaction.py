"""Transactions as values: what a stored one says, and what the next commit shall say."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spark_lance.datasets.fragment_metadata import DataFile, FragmentMetadata
from spark_lance.datasets.index_segment import Index
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.operations import LanceOperation, Operation
from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.proto import transaction_pb2 as pb
from spark_lance.table.format import transaction as stored


def _fragments(messages: Iterable[table_pb2.DataFragment]) -> list[FragmentMetadata]:
    return [FragmentMetadata.of(message) for message in messages]


def _schema(message: Any) -> LanceSchema:
    metadata = getattr(message, "schema_metadata", None)
    return LanceSchema(Schema.from_protos(message.schema, metadata))


def _update_map(message: pb.Transaction.UpdateMap) -> LanceOperation.UpdateMap:
    updates = {e.key: e.value if e.HasField("value") else None for e in message.update_entries}
    return LanceOperation.UpdateMap(updates, message.replace)


def _config(message: Any) -> Operation:
    parts = {
        name: _update_map(getattr(message, name))
        for name in ("config_updates", "table_metadata_updates", "schema_metadata_updates")
        if message.HasField(name)
    }
    fields = {number: _update_map(each) for number, each in message.field_metadata_updates.items()}
    return LanceOperation.UpdateConfig(**parts, field_metadata_updates=fields or None)


def _rewrite(message: Any) -> Operation:
    groups = [
        LanceOperation.RewriteGroup(_fragments(group.old_fragments), _fragments(group.new_fragments))
        for group in message.groups
    ]
    indices = [
        LanceOperation.RewrittenIndex(
            str(uuids.UUID(bytes=index.old_id.uuid)),
            str(uuids.UUID(bytes=index.new_id.uuid)),
            index.new_index_details.type_url,
            index.new_index_details.value,
            index.new_index_version,
        )
        for index in message.rewritten_indices
    ]
    return LanceOperation.Rewrite(groups, indices)


def _update(message: Any) -> Operation:
    return LanceOperation.Update(
        list(message.removed_fragment_ids),
        _fragments(message.updated_fragments),
        _fragments(message.new_fragments),
        list(message.fields_modified),
        list(message.fields_for_preserving_frag_bitmap),
        pb.Transaction.Update.UpdateMode.Name(message.update_mode).lower(),
        dict(message.updated_fragment_offset_bitmaps) or None,
        message.inserted_rows if message.HasField("inserted_rows") else None,
    )


# Name of the operation in a transaction -> what makes the value from its message.
_READERS: dict[str, Any] = {
    "append": lambda m: LanceOperation.Append(_fragments(m.fragments)),
    "overwrite": lambda m: LanceOperation.Overwrite(_schema(m), _fragments(m.fragments)),
    "delete": lambda m: LanceOperation.Delete(
        _fragments(m.updated_fragments), list(m.deleted_fragment_ids), m.predicate
    ),
    "update": _update,
    "merge": lambda m: LanceOperation.Merge(_fragments(m.fragments), _schema(m), m.preserves_nullability),
    "project": lambda m: LanceOperation.Project(_schema(m), m.preserves_nullability),
    "restore": lambda m: LanceOperation.Restore(m.version),
    "rewrite": _rewrite,
    "create_index": lambda m: LanceOperation.CreateIndex(
        [Index.of(each) for each in m.new_indices], [Index.of(each) for each in m.removed_indices]
    ),
    "data_replacement": lambda m: LanceOperation.DataReplacement(
        [LanceOperation.DataReplacementGroup(g.fragment_id, DataFile.of(g.new_file)) for g in m.replacements]
    ),
    "update_config": _config,
}


@dataclass
class Transaction:
    """An operation, and the version that it was computed from.

    Attributes:
        read_version: that version; 0 for the making of a table.
        operation: what is done.
        uuid: the identity of the commit.
        transaction_properties: key-value pairs kept with it.
    """

    read_version: int
    operation: Operation
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))
    transaction_properties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, transaction: stored.Transaction) -> Transaction:
        """Return what a stored transaction says; an operation without a class here is `Other`."""
        name = transaction.name
        if name is None:
            raise UnsupportedFormatError("the transaction's operation is not known to this release")
        read = _READERS.get(name, LanceOperation.Other)
        properties = dict(transaction.properties)
        return cls(transaction.read_version, read(transaction.operation), transaction.uuid, properties)
