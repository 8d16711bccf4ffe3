"""Create snapshots whose scans use the table's indexes.

Every layer above the table layer creates its snapshots here, so that no read or update skips the indexes.
"""

from __future__ import annotations

from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.pruning import Pruner
from spark_lance.table.reading.snapshot import Snapshot


def index_pruners(snapshot: Snapshot) -> tuple[Pruner, ...]:
    """Return the pruners that use a version's indexes. This is the `pruner_factory` of every snapshot."""
    if not snapshot.manifest.index_section:
        return ()
    # Importing here saves write tasks, and tables without indexes, from loading many modules.
    from spark_lance.index.scalar.pruner import ScalarPruner

    return (ScalarPruner(snapshot),)


def indexed_snapshot(table: TableRef, manifest: Manifest) -> Snapshot:
    """Return a snapshot of a version whose scans use the table's indexes."""
    return Snapshot(table, manifest, index_pruners)
