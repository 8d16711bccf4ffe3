"""Rows of two versions of a table, compared by what tells one row from another.

With stable row ids that is the row's id, and a row has changed if another version last changed it. Without
them it is the address, and whether a row has changed cannot be told. Kept in memory are the ids of the older
rows and the numbers of all rows that differ, some 40 bytes each.
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
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.reading.lineage import ROW_ID, UPDATED_AT, LineageReader

Rows = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Fragment = table_pb2.DataFragment


@dataclass(frozen=True)
class IdentifiedRows:
    """Rows of a fragment: physical number, id, and the version that last changed it."""

    fragment: Fragment
    offsets: Rows
    ids: UInt64Array
    updated: UInt64Array


@dataclass(frozen=True)
class ComparedRows:
    """Rows of a fragment in one version, as the other version tells.

    Attributes:
        fragment: the fragment.
        alone: physical numbers of the rows that the other version does not have.
        changed: of those that it has with other values.
    """

    fragment: Fragment
    alone: Rows
    changed: Rows


@dataclass(frozen=True)
class FragmentView(OfTable):
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
        """Return a lineage column of some rows; see `lineage`."""
        total = self.total(fragment)
        return LineageReader(self.table, fragment, name, total, self.bases).read(0, total)[rows]

    def identified(self, fragment: Fragment, rows: Rows, stable_row_ids: bool) -> IdentifiedRows:
        """Return rows with the keys that identify them."""
        if not stable_row_ids:
            return IdentifiedRows(
                fragment, rows, row_addresses(fragment.id, rows), np.zeros(len(rows), np.uint64)
            )
        ids, updated = (self.lineage(fragment, name, rows) for name in (ROW_ID, UPDATED_AT))
        return IdentifiedRows(fragment, rows, ids, updated)


def compare_rows(
    before: Sequence[IdentifiedRows], after: Iterable[IdentifiedRows]
) -> tuple[list[ComparedRows], list[ComparedRows]]:
    """Return how rows of an older version and rows of a newer one differ, each in the given order.

    A row that is on both sides, maybe elsewhere, and was last changed by one version, is in neither answer.
    """
    nothing = np.empty(0, np.uint64)
    old_ids = np.concatenate([nothing, *(rows.ids for rows in before)])
    old_versions = np.concatenate([nothing, *(rows.updated for rows in before)])
    order = np.argsort(old_ids, kind="stable")
    ids = old_ids[order]
    remains = np.zeros(len(ids), np.bool_)
    changed = np.zeros(len(ids), np.bool_)
    newer = []
    for rows in after:
        in_both = np.zeros(len(rows.ids), np.bool_)
        other = in_both.copy()
        if len(ids):
            places = np.minimum(np.searchsorted(ids, rows.ids), len(ids) - 1)
            in_both = ids[places] == rows.ids
            former = order[places[in_both]]
            other[in_both] = old_versions[former] != rows.updated[in_both]
            remains[former] = True
            changed[former] = other[in_both]
        newer.append(ComparedRows(rows.fragment, rows.offsets[~in_both], rows.offsets[other]))
    older = []
    first = 0
    for rows in before:
        part = slice(first, first + len(rows.ids))
        older.append(ComparedRows(rows.fragment, rows.offsets[~remains[part]], rows.offsets[changed[part]]))
        first += len(rows.ids)
    return older, newer
