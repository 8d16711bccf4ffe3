"""Repair the damage of a power failure: torn manifests are moved aside, and the table goes on.

If the newest manifest is torn, the newest whole version is restored first, under the next free number. So the
number of the torn file is never used twice. Other engines find a whole newest version from then on. Nothing
is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_lance.proto import transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.torn import set_aside
from spark_lance.table.versions.versions import load_newest


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    Attributes:
        manifest: the newest version.
        restored: the version that was made the newest one again; None if the newest one was whole.
        moved: where the torn manifests are now.
    """

    manifest: Manifest
    restored: int | None
    moved: Sequence[str]


def repair(table: TableRef) -> Repair:
    """Move torn manifests of a line aside; if the newest is torn, restore the newest whole version first.

    Raises:
        TornManifestError: no version is whole.
        CommitError: the restore failed; see its subclasses. Nothing was moved.
        OSError: the store failed; what has been moved stays moved.
    """
    newest = load_newest(table)
    manifest, restored = newest.manifest, None
    if newest.highest_number > manifest.version:
        restored = manifest.version
        operation = transaction_pb2.Transaction.Restore(version=restored)
        manifest = commit_operation(table, operation, read_version=restored)
    return Repair(manifest, restored, set_aside(table))
