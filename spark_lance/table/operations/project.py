"""Project: a new schema for the same files, to drop and rename columns and to change their properties.

Files without a field of the new schema are removed from the table. The other files do not change, even if
they have dropped fields. (Lance table format, project.)
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_lance.proto import file_pb2, table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.rowids import spilled_fields
from spark_lance.table.operations.index_upkeep import keep_relevant
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    keep_marks,
    replace_schema,
    start_version,
)


def project_message(
    fields: Iterable[file_pb2.Field], *, keeps_nulls: bool = True
) -> transaction_pb2.Transaction.Project:
    """Return the operation that gives a table another schema for its existing columns.

    Args:
        fields: the complete new schema, with field ids of the table.
        keeps_nulls: whether every nullable field stays nullable.
    """
    return transaction_pb2.Transaction.Project(schema=fields, preserves_nullability=keeps_nulls)


def project(
    base: Manifest, operation: transaction_pb2.Transaction.Project, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the operation's schema.

    Raises:
        FormatError: index entries are damaged.
    """
    message = start_version(base, context)
    keep_marks(message)
    replace_schema(message, operation.schema)
    live = {field.id for field in message.fields}
    for fragment in message.fragments:
        drop_idle_files(fragment, live)
    return finish_version(message, keep_relevant(base.index_section, message), base.naming, context)


def drop_idle_files(fragment: table_pb2.DataFragment, live: set[int]) -> None:
    """Remove data files that have no field in `live` and no row lineage."""
    used_fields = live | spilled_fields(fragment)
    used = [file for file in fragment.files if not used_fields.isdisjoint(file.fields)]
    if len(used) < len(fragment.files):
        copies = table_pb2.DataFragment(files=used)
        fragment.ClearField("files")
        fragment.files.MergeFrom(copies.files)
