"""DataReplacement: a new data file for the same fields of one or more fragments.

A file with exactly these fields is replaced by the new file. Otherwise the fields are marked as removed in
the files that have them, and the new file is added. Rows do not move. All rows of the fragments count as
updated, and indexes on the fields no longer cover the fragments. (Lance table format, data replacement.)
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.index_upkeep import remove_fragments_from_bitmaps
from spark_lance.table.operations.merge import TOMBSTONE, drop_dead_files
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    mark_updated,
    start_version,
)


def data_replacement_message(
    files: Mapping[int, table_pb2.DataFile],
) -> transaction_pb2.Transaction.DataReplacement:
    """Return the operation that puts a new data file into each fragment, by fragment id."""
    group = transaction_pb2.Transaction.DataReplacementGroup
    groups = [group(fragment_id=number, new_file=file) for number, file in files.items()]
    return transaction_pb2.Transaction.DataReplacement(replacements=groups)


def data_replacement(
    base: Manifest, operation: transaction_pb2.Transaction.DataReplacement, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the operation's data files.

    Raises:
        FormatError: there is no replacement, a fragment does not exist or occurs twice, the files have no
            fields or different fields, or index entries are damaged.
    """
    files = {group.fragment_id: group.new_file for group in operation.replacements}
    fields = {tuple(file.fields) for file in files.values()}
    if len(fields) != 1 or not all(fields) or len(files) != len(operation.replacements):
        raise FormatError("a data replacement needs one file per fragment, all of them with the same fields")
    if missing := files.keys() - {fragment.id for fragment in base.fragments}:
        raise FormatError(f"a data replacement names fragments that do not exist: {sorted(missing)}")
    message = start_version(base, context)
    for fragment in message.fragments:
        if (file := files.get(fragment.id)) is not None:
            place_file(fragment, file)
            mark_updated(message, fragment)
    section = remove_fragments_from_bitmaps(base.index_section, set(files), fields.pop())
    return finish_version(message, section, base.naming, context)


def place_file(fragment: table_pb2.DataFragment, file: table_pb2.DataFile) -> None:
    """Add a data file to a fragment, so that the fragment reads the file's fields from it."""
    for present in fragment.files:
        if list(present.fields) == list(file.fields) and _file_version(present) == _file_version(file):
            present.CopyFrom(file)
            return
    replaced = set(file.fields)
    for present in fragment.files:
        if not replaced.isdisjoint(present.fields):
            present.fields[:] = [TOMBSTONE if field in replaced else field for field in present.fields]
    fragment.files.add().CopyFrom(file)
    drop_dead_files(fragment)


def _file_version(file: table_pb2.DataFile) -> tuple[int, int]:
    return file.file_major_version, file.file_minor_version
