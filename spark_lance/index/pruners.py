"""Snapshots whose scans use the indices of the table.

The layers above the table layer make their snapshots here, so no read and no change of rows can miss
the indices.
"""

from __future__ import annotations

from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.pruning import Pruner
from spark_lance.table.reading.snapshot import Snapshot


def index_pruners(snapshot: Snapshot) -> tuple[Pruner, ...]:
    """Return what the indices of a version know of its rows: the `pruner_factory` of every snapshot."""
    if not snapshot.manifest.index_section:
        return ()
    # Reading indices takes many modules; tasks that write, and tables without indices, do without them.
    from spark_lance.index.scalar.pruner import ScalarPruner

    return (ScalarPruner(snapshot),)


def indexed_snapshot(table: TableRef, manifest: Manifest) -> Snapshot:
    """Return a version of a table whose scans use its indices."""
    return Snapshot(table, manifest, index_pruners)
