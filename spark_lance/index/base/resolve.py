"""From what an index says of a row to the row: where it is now, and whether it is there at all.

An index names rows by address, or by stable row id in tables that have these. A row counts if a compaction
did not drop it, its fragment is one that the segment covers, and it is not deleted: files of an index keep
rows that are long gone. (Lance index format, reader duties.)

A compaction that leaves the indices as they are records what it moved: per group the old fragments, the old
addresses that survived (a 64-bit Roaring treemap) and the new fragments. The surviving rows, in the order of
the old fragments as recorded and by offset, are the rows of the new fragments laid end to end. (Lance index
format, fragment reuse.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import (
    FRAGMENT_ROWS,
    Addresses,
    RowSet,
    fragments_of,
    offsets_of,
    row_addresses,
    split_address,
)
from spark_lance.table.indices.fragment_reuse import find_reuse_entry, read_history
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import addresses_of

# Rows of one group of a compaction; a bitmap of a few bytes can hold 2^32.
_MOST_MOVED = 1 << 26
# A limit of this reader: a table by fragment id takes eight bytes for each, so half a gigabyte at most.
# Ids count the fragments that a table ever had.
_LAST_TABLED = 1 << 26

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Group:
    """One group of fragments: `survivors` are old addresses, `targets` the new ones, in the same order."""

    old: npt.NDArray[np.uint64]
    survivors: Addresses
    targets: Addresses


@dataclass(frozen=True)
class RowAddressRemap:
    """The recorded moves of a version's rows, in order."""

    groups: Sequence[_Group] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> RowAddressRemap:
        """Read the moves of a version.

        Raises:
            FormatError, UnsupportedFormatError: the record is damaged, or of a newer form.
        """
        entry = find_reuse_entry(snapshot.manifest)
        if entry is None:
            return cls()
        history = read_history(snapshot.bases, entry)
        if history.transitions:
            raise UnsupportedFormatError("a record of moved rows with transitions is not read here")
        return cls([_group(group) for version in history.versions for group in version.groups])

    @classmethod
    def by(cls, groups: Iterable[table_pb2.FragmentReuseIndexDetails.Group]) -> RowAddressRemap:
        """Return the moves of one rewrite.

        Raises:
            FormatError: a group is damaged.
        """
        return cls([_group(group) for group in groups])

    def __call__(self, addresses: Addresses) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return where rows are now, and which of them are still there."""
        present = np.ones(len(addresses), dtype=np.bool_)
        for group in self.groups:
            is_old = np.isin(fragments_of(addresses), group.old)
            if not is_old.any():
                continue
            moved_addresses = addresses[is_old]
            places = np.searchsorted(group.survivors, moved_addresses)
            places[places == len(group.survivors)] = 0
            result = (
                group.survivors[places] == moved_addresses
                if len(group.survivors)
                else np.zeros(len(moved_addresses), np.bool_)
            )
            addresses, present = addresses.copy(), present.copy()
            addresses[is_old] = np.where(
                result, group.targets[places] if len(group.targets) else moved_addresses, moved_addresses
            )
            present[is_old] &= result
        return addresses, present


def _group(group: table_pb2.FragmentReuseIndexDetails.Group) -> _Group:
    try:
        treemap = BitMap64.deserialize(group.changed_row_addrs)
    except (ValueError, IndexError) as error:
        raise FormatError(f"undecodable addresses in the record of moved rows: {error}") from error
    rows = sum(digest.physical_rows for digest in group.new_fragments)
    if rows != len(treemap) or rows > _MOST_MOVED:
        raise FormatError(
            f"the record of moved rows has {len(treemap)} old addresses for {rows} new ones "
            f"({_MOST_MOVED} at most)"
        )
    if any(digest.id >= FRAGMENT_ROWS for digest in (*group.old_fragments, *group.new_fragments)):
        raise FormatError("the record of moved rows has a fragment id above 2^32 - 1")
    ascending = np.array(treemap.to_array(), dtype=np.uint64)
    old = np.array([digest.id for digest in group.old_fragments], dtype=np.uint64)
    parts = [ascending[fragments_of(ascending) == number] for number in old]
    survivors = np.concatenate(parts) if parts else ascending[:0]
    targets = np.concatenate(
        [
            row_addresses(digest.id, np.arange(digest.physical_rows, dtype=np.uint64))
            for digest in group.new_fragments
        ]
        or [ascending[:0]]
    )
    if len(survivors) != len(targets) or len(survivors) != len(ascending):
        raise FormatError(
            f"the record of moved rows has {len(survivors)} old addresses for {len(targets)} new ones"
        )
    order = np.argsort(survivors)
    return _Group(old, survivors[order], targets[order])


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
    def has_remaps(self) -> bool:
        """Whether rows may be elsewhere than an index says."""
        return bool(self._moves.groups)

    @cached_property
    def _moves(self) -> RowAddressRemap:
        return RowAddressRemap.of(self._snapshot)

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
            result, is_present = addresses_of(self._scan, numbers)
        else:
            result, is_present = self._moves(numbers)
        return result, is_present & self._covers(result, is_present, covered) & self.alive(result)

    def check(self, rows: RowSet) -> None:
        """Refuse rows by address that their fragments do not have.

        Raises:
            FormatError: there are some.
        """
        for number, here in rows.items():
            if here and number in self._fragments and here.max() >= self._end(number):
                raise FormatError(f"an index has row {here.max()} of fragment {number}, which has fewer")

    @cached_property
    def possible(self) -> Mapping[int, BitMap]:
        """The rows that an index by address can name, by fragment: those of the version, and moved ones."""
        rows = {number: BitMap() for number in self._fragments}
        for number, here in rows.items():
            here.add_range(0, self._end(number))
        for group in self._moves.groups:
            for number, here in RowSet.from_addresses(group.survivors).bitmaps.items():
                rows[number] = rows.get(number, BitMap()) | here
        return rows

    def bounded(self, rows: RowSet, *, are_addresses: bool = True) -> RowSet:
        """Return the rows of a set that an index can name; a few bytes can hold 2^32 others.

        Args:
            rows: of the index.
            are_addresses: they are addresses, not stable row ids.

        Raises:
            FormatError: a fragment has fewer rows.
        """
        if are_addresses:
            self.check(rows)
            possible = self.possible
        else:
            possible = {}
            for upper in rows:
                possible[upper] = ids = BitMap()
                ids.add_range(0, min(max(self._scan.manifest.next_row_id - (upper << 32), 0), FRAGMENT_ROWS))
        return rows & RowSet(possible)

    def _end(self, number: int) -> int:
        # Old tables do not tell how many rows a fragment has.
        return int(self._fragments[number].physical_rows) or FRAGMENT_ROWS

    def _covers(self, addresses: Addresses, is_present: Mask, covered: BitMap) -> Mask:
        """Return which addresses are of covered fragments; those that are known must be of rows there."""
        entry = self._tables.get(id(covered))
        if entry is None or entry[0] is not covered:
            if covered and covered.max() > _LAST_TABLED:
                raise UnsupportedFormatError(
                    f"an index covers fragment {covered.max()}; a limit of this reader is {_LAST_TABLED}"
                )
            # By id, the last place is for all ids above the largest.
            table = np.zeros((covered.max() if covered else 0) + 2, dtype=np.uint64)
            for number in covered:
                table[number] = self._end(number) if number in self._fragments else FRAGMENT_ROWS
            entry = self._tables[id(covered)] = (covered, table)
        ends = entry[1][np.minimum(fragments_of(addresses), np.uint64(len(entry[1]) - 1)).astype(np.int64)]
        counts: Mask = ends > 0
        beyond = is_present & counts & (offsets_of(addresses) >= ends)
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
        cached = self._deleted.get(number)
        if cached is None:
            scan = self._scan
            cached = read_deletions(scan.table, self._fragments[number], None, scan.bases)
            self._deleted[number] = cached
        return cached
