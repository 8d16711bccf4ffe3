"""Overwrite: replace the schema and all fragments; also creates a table.

The new version keeps the config, the table metadata, the counters of fragment ids and row ids, and the
version of data files unless the new files have another version. It has no indexes. The operation provides the
schema metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_lance.errors import OptionError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    keep_marks,
    number_fragments,
    start_version,
)


def overwrite_message(
    schema: Schema,
    fragments: Iterable[table_pb2.DataFragment],
    config: Mapping[str, str] | None = None,
    bases: Iterable[table_pb2.BasePath] = (),
) -> transaction_pb2.Transaction.Overwrite:
    """Return the operation that replaces a table's content.

    Args:
        schema: the new schema; its field ids start at `Manifest.first_new_field_id`.
        fragments: the new fragments, with id 0.
        config: settings to add to the table's settings.
        bases: base paths with ids; only when the operation creates the table.
    """
    return transaction_pb2.Transaction.Overwrite(
        fragments=fragments,
        schema=schema.to_protos(),
        schema_metadata={key: value.encode() for key, value in schema.metadata.items()},
        config_upsert_values=config or {},
        initial_bases=bases,
    )


def overwrite(
    base: Manifest, operation: transaction_pb2.Transaction.Overwrite, context: CommitContext
) -> Manifest:
    """Return the version after `base` with only the operation's schema and fragments.

    Raises:
        FormatError: fragment ids run out.
        OptionError: the operation has base paths, but the table exists already.
    """
    if operation.initial_bases and base.version:
        raise OptionError("Cannot register new bases in Overwrite mode: add_bases does that")
    message = start_version(base, context)
    message.base_paths.extend(operation.initial_bases)
    keep_marks(message)
    message.ClearField("fields")
    message.fields.MergeFrom(operation.schema)
    message.schema_metadata.clear()
    message.schema_metadata.update(operation.schema_metadata)
    message.config.update(operation.config_upsert_values)
    message.ClearField("fragments")
    if (version := _common_file_version(operation)) is not None:
        message.data_format.version = version.text
    if message.HasField("max_allocated_field_id"):
        highest = max((field.id for field in operation.schema), default=-1)
        message.max_allocated_field_id = max(message.max_allocated_field_id, highest)
    number_fragments(message, operation.fragments)
    return finish_version(message, b"", base.naming, context)


def _common_file_version(operation: transaction_pb2.Transaction.Overwrite) -> FileVersion | None:
    """Return the version of the new data files; None without files or with different versions."""
    versions = {
        (file.file_major_version, file.file_minor_version)
        for fragment in operation.fragments
        for file in fragment.files
    }
    return FileVersion.from_manifest(*versions.pop()) if len(versions) == 1 else None
