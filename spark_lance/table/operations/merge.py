"""Merge: add columns to the same fragments, or change the types of columns.

The operation lists every fragment with its new files. A fragment with changed files has updated rows. An
index no longer covers a fragment if the values of an indexed field are now in another file. (Lance table
format, merge.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_lance.errors import FormatError
from spark_lance.proto import file_pb2, table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.index_upkeep import keep_relevant, remove_fragments_from_bitmaps
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    keep_marks,
    mark_updated,
    replace_schema,
    start_version,
)

# Replaces a field id in a data file whose column is obsolete: a later file has the values.
TOMBSTONE = -2


def merge_message(
    fields: Iterable[file_pb2.Field],
    metadata: Mapping[str, bytes],
    fragments: Iterable[table_pb2.DataFragment],
    *,
    keeps_nulls: bool = True,
) -> transaction_pb2.Transaction.Merge:
    """Return the operation that changes a table's schema and the files of its fragments.

    Args:
        fields: the complete new schema with field ids.
        metadata: the schema metadata; if it is empty, the table keeps its metadata.
        fragments: all fragments of the table, with their ids and old files, followed by the new files.
        keeps_nulls: whether every nullable field stays nullable.
    """
    return transaction_pb2.Transaction.Merge(
        fragments=fragments, schema=fields, schema_metadata=metadata, preserves_nullability=keeps_nulls
    )


def merge(base: Manifest, operation: transaction_pb2.Transaction.Merge, context: CommitContext) -> Manifest:
    """Return the version after `base` with the operation's schema and files.

    Raises:
        FormatError: the operation does not list the fragments of `base`, or index entries are damaged.
    """
    message = start_version(base, context)
    keep_marks(message)
    replace_schema(message, operation.schema)
    if operation.schema_metadata:
        # pylance omits the metadata from the operation to keep the table's metadata.
        message.schema_metadata.clear()
        message.schema_metadata.update(operation.schema_metadata)
    fragments_by_fields: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    # The message starts as a copy of the base, so only changed fragments are copied.
    for fragment, old, new in zip(
        message.fragments, base.fragments, _order_fragments(base, operation), strict=True
    ):
        if new == old:
            continue
        fragment.CopyFrom(new)
        if new.files != old.files:
            drop_dead_files(fragment)
            mark_updated(message, fragment)
            fragments_by_fields[_moved_fields(old, fragment)].append(fragment.id)
    section = base.index_section
    for fields, fragment_ids in fragments_by_fields.items():
        section = remove_fragments_from_bitmaps(section, fragment_ids, fields)
    return finish_version(message, keep_relevant(section, message), base.naming, context)


def _order_fragments(
    base: Manifest, operation: transaction_pb2.Transaction.Merge
) -> Sequence[table_pb2.DataFragment]:
    """Return the operation's fragments in the order of the base's fragments.

    Raises:
        FormatError: the operation does not list exactly the fragments of the base.
    """
    current = [fragment.id for fragment in base.fragments]
    fragment_ids = [fragment.id for fragment in operation.fragments]
    if fragment_ids == current:
        return operation.fragments
    if sorted(fragment_ids) != sorted(current):
        raise FormatError("a merge must list all fragments of the table, and no others")
    by_id = {fragment.id: fragment for fragment in operation.fragments}
    return [by_id[number] for number in current]


def drop_dead_files(fragment: table_pb2.DataFragment) -> None:
    """Remove the data files whose columns have all been replaced."""
    live = [file for file in fragment.files if any(field != TOMBSTONE for field in file.fields)]
    if len(live) < len(fragment.files):
        copies = table_pb2.DataFragment(files=live)
        fragment.ClearField("files")
        fragment.files.MergeFrom(copies.files)


def _moved_fields(old: table_pb2.DataFragment, new: table_pb2.DataFragment) -> frozenset[int]:
    """Return the fields whose values are now in another file, or in none."""
    new_paths = _file_paths(new)
    return frozenset(field for field, home in _file_paths(old).items() if new_paths.get(field) != home)


def _file_paths(fragment: table_pb2.DataFragment) -> Mapping[int, str]:
    return {field: file.path for file in fragment.files for field in file.fields if field >= 0}
