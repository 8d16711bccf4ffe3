"""Compare the rows of two versions of a table by row id or by row address.

With stable row ids, rows are matched by id. A row has changed if different versions last changed it. Without
stable row ids, rows are matched by address, and changes of values cannot be detected. Memory holds the ids of
the older rows and the offsets of all rows that differ, about 40 bytes per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import row_addresses
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.lineage import ROW_ID, UPDATED_AT, LineageReader

Rows = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Fragment = table_pb2.DataFragment


@dataclass(frozen=True)
class IdentifiedRows:
    """Rows of a fragment: physical offset, id, and the version that last changed the row."""

    fragment: Fragment
    offsets: Rows
    ids: UInt64Array
    updated: UInt64Array


@dataclass(frozen=True)
class ComparedRows:
    """The differences of a fragment's rows in one version from the other version.

    Attributes:
        fragment: the fragment.
        alone: physical offsets of the rows that the other version does not have.
        changed: physical offsets of the rows that have other values in the other version.
    """

    fragment: Fragment
    alone: Rows
    changed: Rows


@dataclass(frozen=True)
class FragmentView(TableRefMixin):
    """Reads deletions and lineage of one version. All methods raise FormatError for damaged files."""

    table: TableRef
    bases: Bases

    def total(self, fragment: Fragment) -> int:
        """Return the number of physical rows."""
        return physical_rows(self.table, fragment, self.bases)

    def deleted(self, fragment: Fragment) -> Rows:
        """Return the deleted rows, ascending."""
        total = self.total(fragment)
        return read_deletions(self.table, fragment, total, self.bases).astype(np.int64)

    def live(self, fragment: Fragment) -> Rows:
        """Return the rows that are not deleted, ascending."""
        return np.delete(np.arange(self.total(fragment), dtype=np.int64), self.deleted(fragment))

    def lineage(self, fragment: Fragment, name: str, rows: Rows) -> UInt64Array:
        """Return the values of a lineage column (see `lineage`) for physical rows."""
        total = self.total(fragment)
        return LineageReader(self.table, fragment, name, total, self.bases).read(0, total)[rows]

    def identified(self, fragment: Fragment, rows: Rows, stable_row_ids: bool) -> IdentifiedRows:
        """Return rows with the ids that identify them: stable row ids, or else row addresses."""
        if not stable_row_ids:
            return IdentifiedRows(
                fragment, rows, row_addresses(fragment.id, rows), np.zeros(len(rows), np.uint64)
            )
        ids, updated = (self.lineage(fragment, name, rows) for name in (ROW_ID, UPDATED_AT))
        return IdentifiedRows(fragment, rows, ids, updated)


def compare_rows(
    before: Sequence[IdentifiedRows], after: Iterable[IdentifiedRows]
) -> tuple[list[ComparedRows], list[ComparedRows]]:
    """Return the differences of rows of an older version and of a newer version, in the order of the input.

    A row is in neither result if both versions have it, at any address, and the same version last changed it.
    """
    empty = np.empty(0, np.uint64)
    old_ids = np.concatenate([empty, *(rows.ids for rows in before)])
    old_versions = np.concatenate([empty, *(rows.updated for rows in before)])
    order = np.argsort(old_ids, kind="stable")
    ids = old_ids[order]
    in_newer = np.zeros(len(ids), np.bool_)
    changed = np.zeros(len(ids), np.bool_)
    newer = []
    for rows in after:
        in_both = np.zeros(len(rows.ids), np.bool_)
        has_changed = in_both.copy()
        if len(ids):
            places = np.minimum(np.searchsorted(ids, rows.ids), len(ids) - 1)
            in_both = ids[places] == rows.ids
            old_rows = order[places[in_both]]
            has_changed[in_both] = old_versions[old_rows] != rows.updated[in_both]
            in_newer[old_rows] = True
            changed[old_rows] = has_changed[in_both]
        newer.append(ComparedRows(rows.fragment, rows.offsets[~in_both], rows.offsets[has_changed]))
    older = []
    first = 0
    for rows in before:
        part = slice(first, first + len(rows.ids))
        older.append(ComparedRows(rows.fragment, rows.offsets[~in_newer[part]], rows.offsets[changed[part]]))
        first += len(rows.ids)
    return older, newer
