"""Clone: the first version of a table that starts as a copy of another one.

A shallow clone has the source as a base path. Files under the source's own root get that base's id, and other
files keep theirs. A branch is a shallow clone with the branch's name. A deep clone has copies of all files
and no base paths. (Lance table format, branches and shallow clones.)
"""

from __future__ import annotations

from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import Naming
from spark_lance.table.operations.next_version import Stamp, finish_version, start_version

__all__ = ["clone"]


def clone(source: Manifest, operation: transaction_pb2.Transaction.Clone, stamp: Stamp) -> Manifest:
    """Return the first version of a clone of `source`; it has the number of the source's version."""
    message = start_version(source, stamp)
    message.version = source.version
    message.ClearField("branch")
    if operation.branch_name:
        message.branch = operation.branch_name
    section = table_pb2.IndexSection.FromString(source.index_section)
    check_message(section, source.path)
    if operation.is_shallow:
        home = max((base.id for base in message.base_paths), default=-1) + 1
        message.base_paths.add(id=home, is_dataset_root=True, path=operation.ref_path)
        _move(message, section, home)
    else:
        message.ClearField("base_paths")
        _move(message, section, None)
    index_section = section.SerializeToString() if section.indices else b""
    return finish_version(message, index_section, Naming.V2, stamp)


def _move(message: table_pb2.Manifest, section: table_pb2.IndexSection, home: int | None) -> None:
    """Give every file without a base that base, or without `home` take the base of every file away."""
    for fragment in message.fragments:
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            _set_base(file, home)
        if fragment.HasField("deletion_file"):
            _set_base(fragment.deletion_file, home)
    for index in section.indices:
        _set_base(index, home)


def _set_base(
    entry: table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexMetadata, home: int | None
) -> None:
    if home is None:
        entry.ClearField("base_id")
    elif not entry.HasField("base_id"):
        entry.base_id = home
