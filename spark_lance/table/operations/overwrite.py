"""Overwrite: a new schema and new fragments in place of all the old ones; also the birth of a table.

Kept are config, table metadata, the version of data files unless the new files are of another one, and the
counters of fragment ids and row ids. The indices go, and schema metadata is the operation's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_lance.errors import OptionError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import (
    Stamp,
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
        schema: the new schema; ids as `Manifest.first_new_field_id` allows.
        fragments: the new fragments, of id 0.
        config: settings to add to the table's.
        bases: base paths, with ids; only for a table that this makes.
    """
    return transaction_pb2.Transaction.Overwrite(
        fragments=fragments,
        schema=schema.to_protos(),
        schema_metadata={key: value.encode() for key, value in schema.metadata.items()},
        config_upsert_values=config or {},
        initial_bases=bases,
    )


def overwrite(base: Manifest, operation: transaction_pb2.Transaction.Overwrite, stamp: Stamp) -> Manifest:
    """Return the version after `base` that holds just the operation's schema and fragments.

    Raises:
        FormatError: fragment ids run out.
        OptionError: the operation brings base paths to a table that is there already.
    """
    if operation.initial_bases and base.version:
        raise OptionError("Cannot register new bases in Overwrite mode: add_bases does that")
    message = start_version(base, stamp)
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
    return finish_version(message, b"", base.naming, stamp)


def _common_file_version(operation: transaction_pb2.Transaction.Overwrite) -> FileVersion | None:
    """Return the version of the new data files if there are files and all are of one version."""
    versions = {
        (file.file_major_version, file.file_minor_version)
        for fragment in operation.fragments
        for file in fragment.files
    }
    return FileVersion.from_manifest(*versions.pop()) if len(versions) == 1 else None
