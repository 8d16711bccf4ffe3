"""Resolve the row numbers of an index to current row addresses.

An index refers to rows by address, or by stable row id if the table has stable row ids. Index files keep rows
that no longer exist. A row counts only if no compaction dropped it, the segment covers its fragment, and it
is not deleted. (Lance index format, reader duties.)

A compaction that does not rewrite the indexes records the moved rows. Each group has the old fragments, the
old addresses that survived (a 64-bit Roaring treemap) and the new fragments. The surviving rows are ordered
by old fragment (as recorded) and offset. In this order they are the rows of the new fragments, concatenated.
(Lance index format, fragment reuse.)
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
    address_fragments,
    address_offsets,
    row_addresses,
    split_address,
)
from spark_lance.table.indices.fragment_reuse import find_reuse_entry, read_history
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import resolve_row_ids

# Maximum rows of one compaction group. A damaged bitmap of a few bytes can claim 2^32 rows.
_MAX_MOVED_ROWS = 1 << 26
# Highest supported fragment id. The lookup table by fragment id takes eight bytes per id, so at most 512 MB.
# Ids are never reused, so they count all fragments that the table ever had.
_MAX_FRAGMENT_ID = 1 << 26

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Group:
    """One compaction group: `targets[i]` is the new address of the row at old address `survivors[i]`."""

    old: npt.NDArray[np.uint64]
    survivors: Addresses
    targets: Addresses


@dataclass(frozen=True)
class RowAddressRemap:
    """The recorded moves of rows, in commit order."""

    groups: Sequence[_Group] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> RowAddressRemap:
        """Read the recorded moves of a version.

        Raises:
            FormatError, UnsupportedFormatError: the record is damaged or has a newer format.
        """
        entry = find_reuse_entry(snapshot.manifest)
        if entry is None:
            return cls()
        history = read_history(snapshot.bases, entry)
        if history.transitions:
            raise UnsupportedFormatError("a record of moved rows with transitions is not read here")
        return cls([_parse_group(group) for version in history.versions for group in version.groups])

    @classmethod
    def by(cls, groups: Iterable[table_pb2.FragmentReuseIndexDetails.Group]) -> RowAddressRemap:
        """Return the moves of one rewrite.

        Raises:
            FormatError: a group is damaged.
        """
        return cls([_parse_group(group) for group in groups])

    def __call__(self, addresses: Addresses) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the current addresses of rows, and the mask of rows that still exist."""
        present = np.ones(len(addresses), dtype=np.bool_)
        for group in self.groups:
            is_old = np.isin(address_fragments(addresses), group.old)
            if not is_old.any():
                continue
            moved_addresses = addresses[is_old]
            positions = np.searchsorted(group.survivors, moved_addresses)
            positions[positions == len(group.survivors)] = 0
            result = (
                group.survivors[positions] == moved_addresses
                if len(group.survivors)
                else np.zeros(len(moved_addresses), np.bool_)
            )
            addresses, present = addresses.copy(), present.copy()
            addresses[is_old] = np.where(
                result, group.targets[positions] if len(group.targets) else moved_addresses, moved_addresses
            )
            present[is_old] &= result
        return addresses, present


def _parse_group(group: table_pb2.FragmentReuseIndexDetails.Group) -> _Group:
    try:
        treemap = BitMap64.deserialize(group.changed_row_addrs)
    except (ValueError, IndexError) as error:
        raise FormatError(f"undecodable addresses in the record of moved rows: {error}") from error
    rows = sum(digest.physical_rows for digest in group.new_fragments)
    if rows != len(treemap) or rows > _MAX_MOVED_ROWS:
        raise FormatError(
            f"the record of moved rows has {len(treemap)} old addresses for {rows} new ones "
            f"({_MAX_MOVED_ROWS} at most)"
        )
    if any(digest.id >= FRAGMENT_ROWS for digest in (*group.old_fragments, *group.new_fragments)):
        raise FormatError("the record of moved rows has a fragment id above 2^32 - 1")
    ascending = np.array(treemap.to_array(), dtype=np.uint64)
    old = np.array([digest.id for digest in group.old_fragments], dtype=np.uint64)
    parts = [ascending[address_fragments(ascending) == number] for number in old]
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
    """Resolves row numbers of indexes to the rows of one table version.

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
        # id(covered) -> (covered, row count by fragment id, 0 for fragments that are not covered). Keeping
        # `covered` ensures that no other object gets its id.
        self._row_counts: dict[int, tuple[BitMap, Addresses]] = {}

    @property
    def scan(self) -> Scan:
        """A scan of the version without columns."""
        return self._scan

    @property
    def has_remaps(self) -> bool:
        """Whether the version records moved rows."""
        return bool(self._moves.groups)

    @cached_property
    def _moves(self) -> RowAddressRemap:
        return RowAddressRemap.of(self._snapshot)

    def addresses(
        self, numbers: Addresses, covered: BitMap, *, are_addresses: bool = False
    ) -> tuple[Addresses, Mask]:
        """Return the current addresses of rows (uint64), and the mask of rows that count.

        Args:
            numbers: row numbers in the index, uint64.
            covered: ids of the fragments that the segment covers.
            are_addresses: whether `numbers` are addresses even though the table has stable row ids.

        Raises:
            FormatError: deletions or row ids of the table are damaged, or the index has rows that never
                existed.
        """
        if self._scan.manifest.uses_stable_row_ids and not are_addresses:
            result, is_present = resolve_row_ids(self._scan, numbers)
        else:
            result, is_present = self._moves(numbers)
        return result, is_present & self._covers(result, is_present, covered) & self.live_mask(result)

    def check(self, rows: RowSet) -> None:
        """Check that every address of a set is within its fragment.

        Raises:
            FormatError: an address is beyond the end of its fragment.
        """
        for number, here in rows.items():
            if here and number in self._fragments and here.max() >= self._row_count(number):
                raise FormatError(f"an index has row {here.max()} of fragment {number}, which has fewer")

    @cached_property
    def possible(self) -> Mapping[int, BitMap]:
        """The rows that an index may refer to by address, by fragment: rows of the version and moved rows."""
        rows = {number: BitMap() for number in self._fragments}
        for number, here in rows.items():
            here.add_range(0, self._row_count(number))
        for group in self._moves.groups:
            for number, here in RowSet.from_addresses(group.survivors).bitmaps.items():
                rows[number] = rows.get(number, BitMap()) | here
        return rows

    def existing_rows(self, rows: RowSet, *, are_addresses: bool = True) -> RowSet:
        """Return the rows of a set that can exist. A set of a few bytes can claim 2^32 rows.

        Args:
            rows: the set, from an index.
            are_addresses: whether `rows` has addresses, not stable row ids.

        Raises:
            FormatError: an address is beyond the end of its fragment.
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

    def _row_count(self, number: int) -> int:
        # Old tables do not store the number of rows of a fragment.
        return int(self._fragments[number].physical_rows) or FRAGMENT_ROWS

    def _covers(self, addresses: Addresses, is_present: Mask, covered: BitMap) -> Mask:
        """Return the mask of addresses in covered fragments. Present rows must be within their fragment."""
        entry = self._row_counts.get(id(covered))
        if entry is None or entry[0] is not covered:
            if covered and covered.max() > _MAX_FRAGMENT_ID:
                raise UnsupportedFormatError(
                    f"an index covers fragment {covered.max()}; a limit of this reader is {_MAX_FRAGMENT_ID}"
                )
            # Indexed by fragment id. The last element stands for all larger ids.
            table = np.zeros((covered.max() if covered else 0) + 2, dtype=np.uint64)
            for number in covered:
                table[number] = self._row_count(number) if number in self._fragments else FRAGMENT_ROWS
            entry = self._row_counts[id(covered)] = (covered, table)
        ends = entry[1][
            np.minimum(address_fragments(addresses), np.uint64(len(entry[1]) - 1)).astype(np.int64)
        ]
        counts: Mask = ends > 0
        beyond = is_present & counts & (address_offsets(addresses) >= ends)
        if beyond.any():
            fragment, row = split_address(int(addresses[beyond][0]))
            raise FormatError(f"an index has row {row} of fragment {fragment}, which has fewer")
        return counts

    def live_mask(self, addresses: Addresses) -> Mask:
        """Return the mask of addresses whose rows are not deleted in the version."""
        alive = np.ones(len(addresses), dtype=np.bool_)
        if not len(self._with_deletions):
            return alive
        fragment_ids = address_fragments(addresses)
        affected = np.intersect1d(np.unique(fragment_ids), self._with_deletions)
        for number in affected.tolist():
            positions = np.flatnonzero(fragment_ids == number)
            alive[positions] = ~np.isin(address_offsets(addresses[positions]), self.deletions(number))
        return alive

    def deletions(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the offsets of a fragment's deleted rows, ascending.

        Raises:
            FormatError: the deletion file is damaged or missing.
        """
        cached = self._deleted.get(number)
        if cached is None:
            scan = self._scan
            cached = read_deletions(scan.table, self._fragments[number], None, scan.bases)
            self._deleted[number] = cached
        return cached
