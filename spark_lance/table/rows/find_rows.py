"""Finding rows by a condition.

A table is gone through fragment by fragment and piece by piece, so memory does not grow with it: only the
offsets of the rows that were found are kept, four bytes each.
"""

from __future__ import annotations

import numpy as np

from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.addresses import Offsets, offsets_of
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.scan import ROW_ADDRESS
from spark_lance.table.reading.scan_task import Filter
from spark_lance.table.reading.snapshot import Snapshot

_WINDOW_BYTES = 64 << 20


def find_rows(snapshot: Snapshot, predicate: Filter | None) -> RowChanges:
    """Return the live rows of a version for which a predicate is true; all of them without a predicate.

    Reads what a scan with the predicate reads: only the columns that it names, and of these only what row
    numbers, indices and page statistics cannot rule out.

    Raises:
        ExpressionError: the predicate does not fit the table.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    if predicate is None:
        return RowChanges(snapshot, RowSet.from_offsets(_live_rows(snapshot)))
    scan = snapshot.scan([ROW_ADDRESS])
    condition = scan.condition(predicate)
    rows = {}
    for task in scan.tasks_for(condition):
        parts = [offsets_of(table[ROW_ADDRESS].to_numpy()) for table in task.tables(_WINDOW_BYTES, condition)]
        offsets = np.concatenate([np.empty(0, np.uint32), *parts])
        if len(offsets):
            rows[task.message.id] = offsets
    return RowChanges(snapshot, RowSet.from_offsets(rows))


def _live_rows(snapshot: Snapshot) -> dict[int, Offsets]:
    rows = {}
    for fragment in snapshot.fragments:
        total = snapshot.physical_rows(fragment)
        live = np.delete(np.arange(total, dtype=np.uint32), snapshot.deletions(fragment))
        if len(live):
            rows[fragment.id] = live
    return rows
