"""Merge: another schema and more columns for the same fragments; it adds columns and changes their types.

The operation lists every fragment in its new form. Only the files show its effect on rows: a fragment with
other files than before has updated rows. An index no longer covers a fragment if the values of an indexed
field are now in another file. (Lance table format, merge.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_lance.errors import FormatError
from spark_lance.proto import file_pb2, table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.index_upkeep import keep_relevant, remove_fragments_from_bitmaps
from spark_lance.table.operations.next_version import (
    Stamp,
    finish_version,
    keep_marks,
    mark_updated,
    replace_schema,
    start_version,
)

# In place of a field's id: the column is there, but values are to be taken from a later file.
TOMBSTONE = -2


def merge_message(
    fields: Iterable[file_pb2.Field],
    metadata: Mapping[str, bytes],
    fragments: Iterable[table_pb2.DataFragment],
    *,
    keeps_nulls: bool = True,
) -> transaction_pb2.Transaction.Merge:
    """Return the operation that gives a table another schema and its fragments other files.

    Args:
        fields: the whole new schema with ids.
        metadata: of the schema; without any, that of the table stays.
        fragments: all fragments of the table, with their ids and old files, and with new files last.
        keeps_nulls: no field that could be null before must not be null now.
    """
    return transaction_pb2.Transaction.Merge(
        fragments=fragments, schema=fields, schema_metadata=metadata, preserves_nullability=keeps_nulls
    )


def merge(base: Manifest, operation: transaction_pb2.Transaction.Merge, stamp: Stamp) -> Manifest:
    """Return the version after `base` with the operation's schema and files.

    Raises:
        FormatError: the operation does not list the fragments of `base`, or index entries are damaged.
    """
    message = start_version(base, stamp)
    keep_marks(message)
    replace_schema(message, operation.schema)
    if operation.schema_metadata:
        # pylance leaves them out of the operation, and means the table's.
        message.schema_metadata.clear()
        message.schema_metadata.update(operation.schema_metadata)
    fragments_by_fields: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    # The message begins as a copy of the base, so only what differs is copied.
    for fragment, old, new in zip(message.fragments, base.fragments, _in_order(base, operation), strict=True):
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
    return finish_version(message, keep_relevant(section, message), base.naming, stamp)


def _in_order(
    base: Manifest, operation: transaction_pb2.Transaction.Merge
) -> Sequence[table_pb2.DataFragment]:
    """Return the operation's fragments in the order of the base's.

    Raises:
        FormatError: they are not those of the base.
    """
    current = [fragment.id for fragment in base.fragments]
    listed = [fragment.id for fragment in operation.fragments]
    if listed == current:
        return operation.fragments
    if sorted(listed) != sorted(current):
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
    """Return the fields whose values came from one file and now come from another, or from none."""
    homes = _homes(new)
    return frozenset(field for field, home in _homes(old).items() if homes.get(field) != home)


def _homes(fragment: table_pb2.DataFragment) -> Mapping[int, str]:
    return {field: file.path for file in fragment.files for field in file.fields if field >= 0}
