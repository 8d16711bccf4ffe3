"""Apply a transaction to a manifest: one pure function per operation, and the table of all of them.

Each function takes the newest manifest, the operation's message and a `CommitContext`, and returns the
manifest of the next version. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.append import append
from spark_lance.table.operations.create_index import create_index
from spark_lance.table.operations.data_replacement import data_replacement
from spark_lance.table.operations.delete import delete
from spark_lance.table.operations.merge import merge
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.operations.overwrite import overwrite
from spark_lance.table.operations.project import project
from spark_lance.table.operations.reserve_fragments import reserve_fragments
from spark_lance.table.operations.restore import restore
from spark_lance.table.operations.rewrite import rewrite
from spark_lance.table.operations.update import update
from spark_lance.table.operations.update_bases import update_bases
from spark_lance.table.operations.update_config import update_config

Builder = Callable[[Manifest, Any, CommitContext], Manifest]

# Every operation of the format by its name in the Transaction message; None: not executed here, only
# recognized as the work of others.
OPERATIONS: dict[str, Builder | None] = {
    "append": append,
    "delete": delete,
    "overwrite": overwrite,
    "create_index": create_index,
    "rewrite": rewrite,
    "merge": merge,
    "restore": restore,
    "reserve_fragments": reserve_fragments,
    "update": update,
    "project": project,
    "update_config": update_config,
    "data_replacement": data_replacement,
    "update_mem_wal_state": None,
    "clone": None,
    "update_bases": update_bases,
    "data_overlay": None,
}
