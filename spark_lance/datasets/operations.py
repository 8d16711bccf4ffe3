"""Operations, transactions and index segments as values.

A program makes files in one place and commits in another. An operation says what a commit changes, a
transaction is an operation with the version that it was read from, and a segment is a part of an index.
"""

from __future__ import annotations

import uuid as uuids
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.datasets.fragment_metadata import DataFile, FragmentMetadata, fragment_messages
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import OptionError, OptionTypeError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.proto import transaction_pb2 as pb
from spark_lance.table.format import transaction as stored
from spark_lance.table.format.bases import BasePath, numbered
from spark_lance.table.format.bitmaps import covered_ids
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.merge import merge_message
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.operations.update_config import text_updates
from spark_lance.table.schema.changes import add_fields, schema_protos


@dataclass(frozen=True)
class IndexFile:
    """A file of an index: its path in the index folder, and its size in bytes."""

    path: str
    size_bytes: int


@dataclass
class Index:
    """An index segment of an operation.

    Attributes:
        uuid: id of the segment, and name of its folder.
        name: name of the index.
        fields: ids of the indexed fields.
        dataset_version: the table version that the segment was built from.
        fragment_ids: ids of the fragments that the segment covers.
        index_version: format version of the index.
        created_at: time of the build.
        base_id: id of the base path of the files; None for the table's root.
        files: the segment's files.
        index_details: type URL and bytes of the index details.
        covering_fields: ids of further fields whose values the segment stores.
    """

    uuid: str
    name: str
    fields: list[int]
    dataset_version: int
    fragment_ids: Iterable[int]
    index_version: int
    created_at: datetime | None = None
    base_id: int | None = None
    files: list[IndexFile] | None = None
    index_details: tuple[str, bytes] | None = None
    covering_fields: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, message: table_pb2.IndexMetadata) -> Index:
        """Return the segment of a protobuf message."""
        created_at = message.created_at / 1000 if message.HasField("created_at") else None
        details = message.index_details
        return cls(
            str(uuids.UUID(bytes=message.uuid.uuid)),
            message.name,
            list(message.fields),
            message.dataset_version,
            covered_ids(message) or set(),
            message.index_version,
            None if created_at is None else datetime.fromtimestamp(created_at, timezone.utc),
            message.base_id if message.HasField("base_id") else None,
            [IndexFile(file.path, file.size_bytes) for file in message.files] or None,
            (details.type_url, details.value) if details.type_url else None,
            list(message.covering_fields),
        )

    def message(self) -> table_pb2.IndexMetadata:
        """Return the message for a manifest."""
        message = table_pb2.IndexMetadata(
            uuid=table_pb2.UUID(uuid=uuids.UUID(self.uuid).bytes),
            name=self.name,
            fields=self.fields,
            dataset_version=self.dataset_version,
            fragment_bitmap=BitMap(self.fragment_ids).serialize(),
            index_version=self.index_version,
            base_id=self.base_id,
            files=[table_pb2.IndexFile(path=f.path, size_bytes=f.size_bytes) for f in self.files or ()],
            covering_fields=self.covering_fields,
        )
        if self.created_at is not None:
            message.created_at = int(self.created_at.timestamp() * 1000)
        if self.index_details is not None:
            message.index_details.type_url, message.index_details.value = self.index_details
        return message


AnySchema: TypeAlias = LanceSchema | pa.Schema


class Operation(ABC):
    """A change of a table in one commit."""

    @abstractmethod
    def message(self, manifest: Manifest | None) -> Message:
        """Return the message for a transaction.

        Args:
            manifest: the version that the operation is based on; None if the table does not exist.
        """


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, LanceSchema | pa.Schema):
        raise OptionTypeError(f"schema must be LanceSchema or pyarrow.Schema, got {type(schema)}")


def _check_fragments(fragments: Any) -> None:
    if isinstance(fragments, str | Mapping) or not isinstance(fragments, Iterable):
        raise OptionTypeError(f"fragments must be list[FragmentMetadata], got {type(fragments)}")
    for fragment in fragments if isinstance(fragments, Sequence) else ():
        if not isinstance(getattr(fragment, "metadata", fragment), FragmentMetadata | table_pb2.DataFragment):
            raise OptionTypeError(f"fragments must be list[FragmentMetadata], got one of {type(fragment)}")


def _assign_field_ids(fragments: Iterable[table_pb2.DataFragment], schema: pa.Schema, first: int) -> Schema:
    """Return an Arrow schema with the field ids that the files of new fragments use."""
    new_schema = LanceSchema.from_pyarrow(schema).stored_schema
    used = [
        number for fragment in fragments for file in fragment.files for number in file.fields if number >= 0
    ]
    if not used:
        return LanceSchema.from_pyarrow(schema, first).stored_schema
    leaves = [node.id for node in new_schema.walk() if not node.children or node.is_packed or node.is_blob]
    return LanceSchema.from_pyarrow(schema, max(0, min(used) - min(leaves))).stored_schema


def _merge_schemas(manifest: Manifest, schema: pa.Schema) -> Schema:
    """Return a version's schema extended by the new columns of `schema`, in the order of `schema`."""
    present = {field.name: field for field in manifest.schema.fields}
    new = pa.schema([column for column in schema if column.name not in present])
    if missing := sorted(set(present) - set(schema.names)):
        raise SchemaError(f"the schema of a merge lacks {', '.join(missing)}; drop columns with drop_columns")
    whole = add_fields(manifest, new)[0] if len(new) else manifest.schema
    by_name = {field.name: field for field in whole.fields}
    return Schema(tuple(by_name[name] for name in schema.names), whole.metadata)


class LanceOperation:
    """The operations that `LanceDataset.commit` accepts."""

    BaseOperation = Operation

    @dataclass
    class Append(Operation):
        """Add fragments."""

        fragments: Iterable[FragmentMetadata]

        def __post_init__(self) -> None:
            _check_fragments(self.fragments)

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            return pb.Transaction.Append(fragments=fragment_messages(self.fragments))

    @dataclass
    class Overwrite(Operation):
        """Replace the schema and all fragments, or create a table.

        A pyarrow schema gets the field ids that the files of the fragments use. `initial_bases` are the
        base paths of a table that the operation creates.
        """

        new_schema: AnySchema
        fragments: Iterable[FragmentMetadata]
        initial_bases: Sequence[DatasetBasePath] | None = None

        def __post_init__(self) -> None:
            _check_schema(self.new_schema)
            _check_fragments(self.fragments)

        def message(self, manifest: Manifest | None) -> Message:
            """Return the message for a transaction."""
            fragments = fragment_messages(self.fragments)
            bases = [base.message() for base in self.bases()]
            return overwrite_message(self.schema(manifest), fragments, bases=bases)

        def bases(self) -> tuple[BasePath, ...]:
            """Return the base paths with their ids.

            A dataset root keeps id 0, unless the files use ids that `write_fragments` chose.
            """
            bases = [base.to_base_path() for base in self.initial_bases or ()]
            zeros = [base for base in bases if not base.id]
            used = {
                file.base_id
                for fragment in fragment_messages(self.fragments)
                for file in fragment.files
                if file.HasField("base_id")
            }
            is_literal = len(zeros) == 1 and zeros[0].is_dataset_root and used <= {base.id for base in bases}
            return numbered(bases, keeps_zero=is_literal)

        def schema(self, manifest: Manifest | None) -> Schema:
            """Return the schema with field ids."""
            if isinstance(self.new_schema, LanceSchema):
                return self.new_schema.stored_schema
            first = 0 if manifest is None else manifest.first_new_field_id
            return _assign_field_ids(fragment_messages(self.fragments), self.new_schema, first)

    @dataclass
    class Delete(Operation):
        """Replace fragments by versions with new deletion files (same ids), and drop fragments."""

        updated_fragments: Iterable[FragmentMetadata]
        deleted_fragment_ids: Iterable[int]
        predicate: str = ""

        def __post_init__(self) -> None:
            _check_fragments(self.updated_fragments)

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            return pb.Transaction.Delete(
                updated_fragments=fragment_messages(self.updated_fragments),
                deleted_fragment_ids=self.deleted_fragment_ids,
                predicate=self.predicate,
            )

    @dataclass
    class Update(Operation):
        """Remove, change and add fragments after rows or columns were rewritten."""

        removed_fragment_ids: list[int] = field(default_factory=list)
        updated_fragments: list[FragmentMetadata] = field(default_factory=list)
        new_fragments: list[FragmentMetadata] = field(default_factory=list)
        fields_modified: list[int] = field(default_factory=list)
        fields_for_preserving_frag_bitmap: list[int] = field(default_factory=list)
        update_mode: str = ""
        updated_fragment_offsets: dict[int, bytes] | None = None
        # Keys of inserted rows, to detect a concurrent insert of the same key.
        inserted_rows: pb.Transaction.KeyExistenceFilter | None = field(default=None, repr=False)

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            modes = {"rewrite_rows": pb.Transaction.Update.REWRITE_ROWS}
            modes["rewrite_columns"] = pb.Transaction.Update.REWRITE_COLUMNS
            columns = bool(self.fields_modified) and not self.new_fragments
            mode = self.update_mode or ("rewrite_columns" if columns else "rewrite_rows")
            if mode not in modes:
                raise OptionError(f"update_mode is rewrite_rows or rewrite_columns, not {mode!r}")
            return pb.Transaction.Update(
                removed_fragment_ids=self.removed_fragment_ids,
                updated_fragments=fragment_messages(self.updated_fragments),
                new_fragments=fragment_messages(self.new_fragments),
                fields_modified=self.fields_modified,
                fields_for_preserving_frag_bitmap=self.fields_for_preserving_frag_bitmap,
                update_mode=modes[mode],
                updated_fragment_offset_bitmaps=self.updated_fragment_offsets or {},
                inserted_rows=self.inserted_rows,
            )

    @dataclass
    class Merge(Operation):
        """Replace the schema, and add files with new columns to the fragments."""

        fragments: Iterable[FragmentMetadata]
        schema: AnySchema
        preserves_nullability: bool = False

        def __post_init__(self) -> None:
            _check_schema(self.schema)
            _check_fragments(self.fragments)
            if isinstance(self.schema, pa.Schema):
                warnings.warn(
                    "the schema of a Merge as a pyarrow.Schema tells fields by their names alone: give the "
                    "LanceSchema that merge_columns returns",
                    DeprecationWarning,
                    stacklevel=3,
                )

        def message(self, manifest: Manifest | None) -> Message:
            """Return the message for a transaction."""
            if manifest is None:
                raise OptionError("a merge needs a table")
            schema = (
                self.schema.stored_schema
                if isinstance(self.schema, LanceSchema)
                else _merge_schemas(manifest, self.schema)
            )
            protos = schema_protos(schema, manifest)
            metadata = manifest.message.schema_metadata
            fragments = fragment_messages(self.fragments)
            return merge_message(protos, metadata, fragments, keeps_nulls=self.preserves_nullability)

    @dataclass
    class Project(Operation):
        """Keep only some columns, which may have new names."""

        schema: LanceSchema
        preserves_nullability: bool = False

        def message(self, manifest: Manifest | None) -> Message:
            """Return the message for a transaction."""
            if manifest is None:
                raise OptionError("a projection needs a table")
            protos = schema_protos(self.schema.stored_schema, manifest)
            return pb.Transaction.Project(schema=protos, preserves_nullability=self.preserves_nullability)

    @dataclass
    class Restore(Operation):
        """Restore the content of an old version."""

        version: int

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            return pb.Transaction.Restore(version=self.version)

    @dataclass
    class RewriteGroup:
        """Old fragments, and the new fragments that contain their rows."""

        old_fragments: Iterable[FragmentMetadata]
        new_fragments: Iterable[FragmentMetadata]

    @dataclass
    class RewrittenIndex:
        """An index segment, and the segment that replaces it."""

        old_id: str
        new_id: str
        new_details_type_url: str = ""
        new_details_value: bytes = b""
        new_index_version: int = 0

    @dataclass
    class Rewrite(Operation):
        """Move the rows of fragments into new fragments (compaction)."""

        groups: Iterable[LanceOperation.RewriteGroup]
        rewritten_indices: Iterable[LanceOperation.RewrittenIndex] = ()

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            message = pb.Transaction.Rewrite()
            for group in self.groups:
                message.groups.add(
                    old_fragments=fragment_messages(group.old_fragments),
                    new_fragments=fragment_messages(group.new_fragments),
                )
            for index in self.rewritten_indices:
                added = message.rewritten_indices.add(
                    old_id=table_pb2.UUID(uuid=uuids.UUID(index.old_id).bytes),
                    new_id=table_pb2.UUID(uuid=uuids.UUID(index.new_id).bytes),
                    new_index_version=index.new_index_version,
                )
                added.new_index_details.type_url = index.new_details_type_url
                added.new_index_details.value = index.new_details_value
            return message

    @dataclass
    class CreateIndex(Operation):
        """Add index segments whose files are already written, and drop other segments."""

        new_indices: list[Index]
        removed_indices: list[Index] = field(default_factory=list)

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            return pb.Transaction.CreateIndex(
                new_indices=[index.message() for index in self.new_indices],
                removed_indices=[index.message() for index in self.removed_indices],
            )

    @dataclass
    class DataReplacementGroup:
        """A fragment, and a new file with some of its columns."""

        fragment_id: int
        new_file: DataFile

    @dataclass
    class DataReplacement(Operation):
        """Replace data files of fragments by files with the same columns."""

        replacements: list[LanceOperation.DataReplacementGroup]

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            message = pb.Transaction.DataReplacement()
            for group in self.replacements:
                message.replacements.add(fragment_id=group.fragment_id, new_file=group.new_file.message())
            return message

    @dataclass
    class UpdateMap:
        """Keys and values to set; None deletes a key. `replace` drops all other keys."""

        updates: Mapping[str, str | None]
        replace: bool = False

    @dataclass
    class UpdateConfig(Operation):
        """Change config and metadata."""

        config_updates: LanceOperation.UpdateMap | None = None
        table_metadata_updates: LanceOperation.UpdateMap | None = None
        schema_metadata_updates: LanceOperation.UpdateMap | None = None
        field_metadata_updates: Mapping[int, LanceOperation.UpdateMap] | None = None

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            message = pb.Transaction.UpdateConfig()
            for name in ("config_updates", "table_metadata_updates", "schema_metadata_updates"):
                if (each := getattr(self, name)) is not None:
                    getattr(message, name).CopyFrom(text_updates(each.updates, replace=each.replace))
            for number, each in (self.field_metadata_updates or {}).items():
                message.field_metadata_updates[number].CopyFrom(
                    text_updates(each.updates, replace=each.replace)
                )
            return message

    @dataclass
    class Other(Operation):
        """A stored operation without a class of its own."""

        content: Message

        def message(self, manifest: Manifest | None) -> Message:  # noqa: ARG002
            """Return the message for a transaction."""
            return self.content


def _parse_fragments(messages: Iterable[table_pb2.DataFragment]) -> list[FragmentMetadata]:
    return [FragmentMetadata.of(message) for message in messages]


def _parse_schema(message: Any) -> LanceSchema:
    metadata = getattr(message, "schema_metadata", None)
    return LanceSchema(Schema.from_protos(message.schema, metadata))


def _parse_update_map(message: pb.Transaction.UpdateMap) -> LanceOperation.UpdateMap:
    updates = {e.key: e.value if e.HasField("value") else None for e in message.update_entries}
    return LanceOperation.UpdateMap(updates, message.replace)


def _parse_config_update(message: Any) -> Operation:
    parts = {
        name: _parse_update_map(getattr(message, name))
        for name in ("config_updates", "table_metadata_updates", "schema_metadata_updates")
        if message.HasField(name)
    }
    fields = {number: _parse_update_map(each) for number, each in message.field_metadata_updates.items()}
    return LanceOperation.UpdateConfig(**parts, field_metadata_updates=fields or None)


def _parse_rewrite(message: Any) -> Operation:
    groups = [
        LanceOperation.RewriteGroup(
            _parse_fragments(group.old_fragments), _parse_fragments(group.new_fragments)
        )
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


def _parse_update(message: Any) -> Operation:
    return LanceOperation.Update(
        list(message.removed_fragment_ids),
        _parse_fragments(message.updated_fragments),
        _parse_fragments(message.new_fragments),
        list(message.fields_modified),
        list(message.fields_for_preserving_frag_bitmap),
        pb.Transaction.Update.UpdateMode.Name(message.update_mode).lower(),
        dict(message.updated_fragment_offset_bitmaps) or None,
        message.inserted_rows if message.HasField("inserted_rows") else None,
    )


# Operation name in a transaction -> function that builds the operation from its message.
_READERS: dict[str, Any] = {
    "append": lambda m: LanceOperation.Append(_parse_fragments(m.fragments)),
    "overwrite": lambda m: LanceOperation.Overwrite(_parse_schema(m), _parse_fragments(m.fragments)),
    "delete": lambda m: LanceOperation.Delete(
        _parse_fragments(m.updated_fragments), list(m.deleted_fragment_ids), m.predicate
    ),
    "update": _parse_update,
    "merge": lambda m: LanceOperation.Merge(
        _parse_fragments(m.fragments), _parse_schema(m), m.preserves_nullability
    ),
    "project": lambda m: LanceOperation.Project(_parse_schema(m), m.preserves_nullability),
    "restore": lambda m: LanceOperation.Restore(m.version),
    "rewrite": _parse_rewrite,
    "create_index": lambda m: LanceOperation.CreateIndex(
        [Index.of(each) for each in m.new_indices], [Index.of(each) for each in m.removed_indices]
    ),
    "data_replacement": lambda m: LanceOperation.DataReplacement(
        [LanceOperation.DataReplacementGroup(g.fragment_id, DataFile.of(g.new_file)) for g in m.replacements]
    ),
    "update_config": _parse_config_update,
}


@dataclass
class Transaction:
    """An operation, and the version that it is based on.

    Attributes:
        read_version: the version that the operation is based on; 0 to create a table.
        operation: the operation.
        uuid: id of the commit.
        transaction_properties: key-value pairs stored with the transaction.
    """

    read_version: int
    operation: Operation
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))
    transaction_properties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, transaction: stored.Transaction) -> Transaction:
        """Return a stored transaction as a value; an operation without a class becomes `Other`."""
        name = transaction.name
        if name is None:
            raise UnsupportedFormatError("the transaction's operation is not known to this release")
        read = _READERS.get(name, LanceOperation.Other)
        properties = dict(transaction.properties)
        return cls(transaction.read_version, read(transaction.operation), transaction.uuid, properties)
