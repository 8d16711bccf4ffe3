"""Finding rows by a condition.

A table is gone through fragment by fragment and piece by piece, so memory does not grow with it: only the
offsets of the rows that were found are kept, four bytes each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_lance.io.store import Store
from spark_lance.table.bases import Bases
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.deletion import read_deletions
from spark_lance.table.manifest import Manifest
from spark_lance.table.predicates.predicate import Predicate, compile_predicate
from spark_lance.table.reading.fragment import physical_rows
from spark_lance.table.reading.row_lookup import nameable
from spark_lance.table.reading.scan import ROW_ADDRESS, Scan

__all__ = ["find_rows"]

Offsets = npt.NDArray[np.uint32]

_WINDOW_BYTES = 64 << 20


def find_rows(store: Store, root: str, manifest: Manifest, predicate: Predicate | None) -> RowChanges:
    """Return the live rows of a version for which a predicate is true; all of them without a predicate.

    Reads only the columns that the predicate names.

    Raises:
        ExpressionError: the predicate does not fit the table.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    if predicate is None:
        return RowChanges(manifest, _live_rows(store, root, manifest))
    condition = compile_predicate(predicate, nameable(manifest))
    scan = Scan.plan(store, root, manifest, condition.columns, with_row_address=True)
    rows = {}
    for fragment in manifest.fragments:
        found = [
            condition.filter(table)[ROW_ADDRESS].to_numpy().astype(np.uint32)  # the low half is the offset
            for table in scan.task(fragment).tables(_WINDOW_BYTES)
        ]
        offsets = np.concatenate([np.empty(0, np.uint32), *found])
        if len(offsets):
            rows[fragment.id] = offsets
    return RowChanges(manifest, rows)


def _live_rows(store: Store, root: str, manifest: Manifest) -> dict[int, Offsets]:
    bases = Bases.of(store, root, manifest.message)
    rows = {}
    for fragment in manifest.fragments:
        total = physical_rows(store, root, fragment, bases)
        deleted = read_deletions(store, root, fragment, total, bases)
        live = np.delete(np.arange(total, dtype=np.uint32), deleted)
        if len(live):
            rows[fragment.id] = live
    return rows
