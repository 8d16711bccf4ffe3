"""Taking an index out of a table."""

from __future__ import annotations

from spark_lance.errors import IndexNotFoundError, OptionError
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["drop_index"]

_SYSTEM_PREFIX = "__lance_"


def drop_index(snapshot: Snapshot, name: str) -> Manifest:
    """Take all segments of an index out of the table and return the version without them.

    The files stay for older versions, until a clean-up.

    Raises:
        IndexNotFoundError: the version has no index of this name.
        OptionError: the name is that of an entry that belongs to the format.
        CommitError: the commit failed; see its subclasses.
    """
    if name.startswith(_SYSTEM_PREFIX):
        raise OptionError(f"{name!r} is not an index of a column: the format keeps its own records there")
    removed = [entry for entry in snapshot.manifest.indices if entry.name == name]
    if not removed:
        names = sorted({e.name for e in snapshot.manifest.indices if not e.name.startswith(_SYSTEM_PREFIX)})
        raise IndexNotFoundError(f"index not found: {name!r}; there is {', '.join(names) or 'none'}")
    operation = create_index_message(removed=removed)
    return commit_operation(snapshot.table, operation, read_version=snapshot.version)
