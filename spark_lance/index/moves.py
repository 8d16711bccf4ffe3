"""From the row addresses that an index stores to those after later compactions.

A compaction that leaves the indices as they are records what it moved: per group the old fragments, the old
addresses that survived (a 64-bit Roaring treemap) and the new fragments. The surviving rows, in the order of
the old fragments as recorded and by offset, are the rows of the new fragments laid end to end. (Lance index
format, fragment reuse.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2
from spark_lance.table.addresses import Addresses, fragments_of, row_addresses
from spark_lance.table.indices.fragment_reuse import find_reuse_entry, read_history
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["Moves"]


@dataclass(frozen=True)
class _Group:
    """One group of fragments: `survivors` are old addresses, `targets` the new ones, in the same order."""

    old: npt.NDArray[np.uint64]
    survivors: Addresses
    targets: Addresses


@dataclass(frozen=True)
class Moves:
    """The recorded moves of a version's rows, in order."""

    groups: Sequence[_Group] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Moves:
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
    def by(cls, groups: Iterable[table_pb2.FragmentReuseIndexDetails.Group]) -> Moves:
        """Return the moves of one rewrite.

        Raises:
            FormatError: a group is damaged.
        """
        return cls([_group(group) for group in groups])

    def __call__(self, addresses: Addresses) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return where rows are now, and which of them are still there."""
        present = np.ones(len(addresses), dtype=np.bool_)
        for group in self.groups:
            moved = np.isin(fragments_of(addresses), group.old)
            if not moved.any():
                continue
            asked = addresses[moved]
            places = np.searchsorted(group.survivors, asked)
            places[places == len(group.survivors)] = 0
            found = (
                group.survivors[places] == asked if len(group.survivors) else np.zeros(len(asked), np.bool_)
            )
            addresses, present = addresses.copy(), present.copy()
            addresses[moved] = np.where(found, group.targets[places] if len(group.targets) else asked, asked)
            present[moved] &= found
        return addresses, present


def _group(group: table_pb2.FragmentReuseIndexDetails.Group) -> _Group:
    try:
        treemap = BitMap64.deserialize(group.changed_row_addrs)
    except (ValueError, IndexError) as error:
        raise FormatError(f"undecodable addresses in the record of moved rows: {error}") from error
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
