"""From what an index says of a row to the row: where it is now, and whether it is there at all.

An index names rows by address, or by stable row id in tables that have these. A row counts if a compaction
did not drop it, its fragment is one that the segment covers, and it is not deleted: files of an index keep
rows that are long gone. (Lance index format, reader duties.)
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.index.moves import Moves
from spark_lance.index.row_sets import RowSet
from spark_lance.table.addresses import FRAGMENT_ROWS, Addresses, fragments_of, offsets_of, split_address
from spark_lance.table.deletion import read_deletions
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import addresses_of

__all__ = ["RowResolver"]

Mask = npt.NDArray[np.bool_]


class RowResolver:
    """Finds the rows of one version of a table.

    Args:
        snapshot: the version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._scan = snapshot.scan([])
        self._fragments = {fragment.id: fragment for fragment in snapshot.fragments}
        self._with_deletions = np.array(
            [f.id for f in snapshot.fragments if f.HasField("deletion_file")], dtype=np.uint64
        )
        self._deleted: dict[int, npt.NDArray[np.uint32]] = {}
        # What is covered -> the end of each fragment's rows by its id, 0 where it is not covered; the first
        # is kept so that its id stays its own.
        self._tables: dict[int, tuple[BitMap, Addresses]] = {}

    @property
    def scan(self) -> Scan:
        """A scan of no columns of the version."""
        return self._scan

    @property
    def has_moves(self) -> bool:
        """Whether rows may be elsewhere than an index says."""
        return bool(self._moves.groups)

    @cached_property
    def _moves(self) -> Moves:
        return Moves.of(self._snapshot)

    def addresses(
        self, numbers: Addresses, covered: BitMap, *, are_addresses: bool = False
    ) -> tuple[Addresses, Mask]:
        """Return the addresses of rows, and which of them count.

        Args:
            numbers: uint64, as the index has them.
            covered: ids of the fragments that the segment covers.
            are_addresses: they are addresses even if the table has stable row ids.

        Raises:
            FormatError: deletions or row ids of the table are damaged, or the index has rows that never were.
        """
        if self._scan.manifest.uses_stable_row_ids and not are_addresses:
            found, known = addresses_of(self._scan, numbers)
        else:
            found, known = self._moves(numbers)
        return found, known & self._covers(found, known, covered) & self.alive(found)

    def check(self, rows: RowSet) -> None:
        """Refuse rows by address that their fragments do not have.

        Raises:
            FormatError: there are some.
        """
        for number, here in rows.items():
            if here and number in self._fragments and here.max() >= self._end(number):
                raise FormatError(f"an index has row {here.max()} of fragment {number}, which has fewer")

    def _end(self, number: int) -> int:
        # Old tables do not tell how many rows a fragment has.
        return int(self._fragments[number].physical_rows) or FRAGMENT_ROWS

    def _covers(self, addresses: Addresses, known: Mask, covered: BitMap) -> Mask:
        """Return which addresses are of covered fragments; those that are known must be of rows there."""
        held = self._tables.get(id(covered))
        if held is None or held[0] is not covered:
            # By id, the last place is for all ids above the largest.
            table = np.zeros((covered.max() if covered else 0) + 2, dtype=np.uint64)
            for number in covered:
                table[number] = self._end(number) if number in self._fragments else FRAGMENT_ROWS
            held = self._tables[id(covered)] = (covered, table)
        ends = held[1][np.minimum(fragments_of(addresses), np.uint64(len(held[1]) - 1)).astype(np.int64)]
        counts: Mask = ends > 0
        beyond = known & counts & (offsets_of(addresses) >= ends)
        if beyond.any():
            fragment, row = split_address(int(addresses[beyond][0]))
            raise FormatError(f"an index has row {row} of fragment {fragment}, which has fewer")
        return counts

    def alive(self, addresses: Addresses) -> Mask:
        """Return which rows of the version's fragments are not deleted."""
        alive = np.ones(len(addresses), dtype=np.bool_)
        if not len(self._with_deletions):
            return alive
        homes = fragments_of(addresses)
        touched = np.intersect1d(np.unique(homes), self._with_deletions)
        for number in touched.tolist():
            mine = np.flatnonzero(homes == number)
            alive[mine] = ~np.isin(offsets_of(addresses[mine]), self.deletions(number))
        return alive

    def deletions(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the deleted rows of a fragment, ascending.

        Raises:
            FormatError: the deletion file is damaged or missing.
        """
        known = self._deleted.get(number)
        if known is None:
            scan = self._scan
            known = read_deletions(scan.store, scan.root, self._fragments[number], None, scan.bases)
            self._deleted[number] = known
        return known
