"""UpdateBases: add base paths to a table. (Lance table format, base paths.)"""

from __future__ import annotations

from spark_lance.errors import OptionError
from spark_lance.proto.transaction_pb2 import Transaction
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import CommitContext, finish_version, start_version


def update_bases(base: Manifest, operation: Transaction.UpdateBases, context: CommitContext) -> Manifest:
    """Return the version after `base` with additional base paths; id 0 is replaced by the next id.

    Raises:
        OptionError: a name, a path or an id exists already. A missing name counts as a name.
    """
    message = start_version(base, context)
    for new in operation.new_bases:
        for base_path in message.base_paths:
            if (base_path.name, base_path.HasField("name")) == (new.name, new.HasField("name")):
                name = repr(new.name) if new.HasField("name") else "without a name"
                raise OptionError(f"there is a base path {name} already")
            if base_path.path == new.path:
                raise OptionError(f"there is a base path {new.path} already")
            if new.id and base_path.id == new.id:
                raise OptionError(f"there is a base path of id {new.id} already")
        added = message.base_paths.add()
        added.CopyFrom(new)
        if not added.id:
            added.id = max((base_path.id for base_path in message.base_paths), default=0) + 1
    return finish_version(message, base.index_section, base.naming, context)
